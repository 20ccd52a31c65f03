"""Arguments on their way to another process: as JSON, and back as the types that a function declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.engine.steps.child_main import typed_arguments
from holdfast.errors import DefinitionError
from holdfast.payloads import codec


def write_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], step: str, whom: str
) -> bytes:
    """Return arguments as JSON from which `read_arguments` makes equal ones; `whom` they are to reach.

    Raises:
        DefinitionError: an argument would arrive as something else.
        NotSerializable: JSON does not carry one.
    """
    payload = codec.encode([list(args), kwargs], f"the arguments of step {step!r}")
    crossed, crossed_named = read_arguments(function, payload)
    for name, before, after in [
        *((str(number), *pair) for number, pair in enumerate(zip(args, crossed, strict=True), 1)),
        *((name, value, crossed_named[name]) for name, value in kwargs.items()),
    ]:
        if type(before) is not type(after) or (before != after and codec.encode(before) != codec.encode(after)):
            raise DefinitionError(
                f"argument {name} of step {step!r} is a {type(before).__name__} and would reach {whom} "
                f"as a {type(after).__name__}: annotate the parameter with its type"
            )
    return payload


def read_arguments(function: Callable[..., Any], payload: bytes | str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments that came as JSON, of the types that a function declares."""
    return typed_arguments(function, *codec.decode(payload))
