"""What the code of a workflow refers to: its activities, found again by their names."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from holdfast.definitions import Activity, as_activity, function_name

_MAX_FUNCTIONS = 500
_FUNCTIONS = (FunctionType, MethodType)


def find_activity(function: Callable[..., Any], name: str) -> Activity[..., Any] | None:
    """Return the activity of that name that a function refers to, itself or by way of other functions.

    A plain function has to be named where compensations are registered: in other code its name may mean anything.
    """
    plain: Callable[..., Any] | None = None
    for value, near in referred(function):
        if isinstance(value, Activity):
            if value.name == name:
                return value
        elif near and plain is None and isinstance(value, _FUNCTIONS) and function_name(value) == name:
            plain = value
    return as_activity(plain) if plain is not None else None


def referred(function: Callable[..., Any]) -> Iterator[tuple[Any, bool]]:
    """Go through the objects that a function and the functions it refers to name, the nearest first."""
    waiting: deque[Any] = deque([function])
    seen: set[int] = set()
    while waiting and len(seen) < _MAX_FUNCTIONS:
        target = inspect.unwrap(waiting.popleft())
        target = getattr(target, "__func__", target)
        if id(target) in seen or not isinstance(target, FunctionType):
            continue
        seen.add(id(target))
        names = dict.fromkeys(name for code in _codes(target.__code__) for name in code.co_names)
        near = target is function or "compensate" in names
        for value in _named_in(target, names):
            yield value, near
            if isinstance(value, _FUNCTIONS):
                waiting.append(value)


def _named_in(function: FunctionType, names: Iterable[str]) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            yield from (vars(value)[each] for each in names if each in vars(value))
        elif value is not None:
            yield value


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
