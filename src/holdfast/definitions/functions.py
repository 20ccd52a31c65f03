"""The parts of a definition: a function, its name, its options, its types and its place in the source."""

from __future__ import annotations

import functools
import inspect
import logging
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import CodeType
from typing import Any, cast

from holdfast.errors import BadInput

_logger = logging.getLogger("holdfast.engine")


class Definition:
    """A function that was decorated: an activity or a workflow."""

    name: str
    declared_at = ""
    """The file and line of its declaration, if that is not where its function is."""


def function_name(function: Callable[..., Any]) -> str:
    """Return the name a function goes by."""
    if isinstance(function, functools.partial):
        return function_name(function.func)
    name = getattr(function, "__name__", None) or type(function).__name__
    return name.strip("<>")


def check_plain(callback: Any, where: str) -> None:
    """Refuse what cannot be called back at once.

    Raises:
        BadInput: it is neither None nor a plain function.
    """
    if callback is not None and (not callable(callback) or is_async(callback)):
        raise BadInput(f"{where} must be a plain function (not `async def`), not {callback!r}")


def check_callback(callback: Any, where: str) -> None:
    """Refuse what cannot be called back, plain or async.

    Raises:
        BadInput: it is neither None nor a function.
    """
    if callback is not None and not callable(callback):
        raise BadInput(f"{where} must be a function, not {callback!r}")


def is_async(function: Any) -> bool:
    """Tell whether calling this makes something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # an object whose __call__ is async


def options_given(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword options of a call that were given another value than their default.

    `values` is what `locals()` says at the beginning of the function.
    """
    given = {}
    for name, default in _defaults(function):
        value = values[name]
        if value is not default and (type(value) is not type(default) or value != default):
            given[name] = value
    return given


@functools.cache
def _defaults(function: Callable[..., Any]) -> tuple[tuple[str, Any], ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple((each.name, each.default) for each in parameters if each.kind is each.KEYWORD_ONLY)


def option_error(error: TypeError, options: type) -> str:
    """Say which option is wrong, and which there are."""
    known = ", ".join(field.name for field in fields(options))
    return f"{str(error).partition(' ')[2]}; the options are {known}"


def source_line(function: Any) -> str:
    """Return where a function, an activity or a workflow is defined, as file:line."""
    if isinstance(function, Definition) and function.declared_at:
        return function.declared_at
    code = getattr(inspect.unwrap(getattr(function, "function", function)), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else "?"


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function, resolved."""
    target = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception as error:
        # A name that cannot be resolved (a type imported for checkers only) leaves plain JSON types.
        _logger.warning(
            "the annotations of %s (%s) cannot be resolved (%s): values keep their plain JSON types",
            function_name(target),
            source_line(target),
            error,
        )
        return {
            name: hint for name, hint in getattr(target, "__annotations__", {}).items() if not isinstance(hint, str)
        }


def return_type(function: Callable[..., Any]) -> Any:
    """Return the annotated type of the result; Any when there is none."""
    return type_hints(cast(Any, function)).get("return", Any)
