"""The child's side of an isolated step: find the function, run it, send back the outcome."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import os
import runpy
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from holdfast.bodies.context import STEP, StepContext
from holdfast.errors import DefinitionError
from holdfast.payloads import codec
from holdfast.payloads.codec import error_to_data

# The first byte of each line the child sends.
BEGUN, BEAT, RESULT, FAILED = b"+", b".", b"R", b"E"
# How long a child that has answered may take to leave in order: flush its output, run its exit handlers.
LEAVE_SECONDS = 2.0


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is to run."""

    module: str
    name: str
    main_path: str
    main_spec: str
    arguments: str
    run_id: str
    workflow: str
    step: str
    attempt: int
    key: str
    app: str = "{}"


def main(descriptor: int) -> None:
    """Run one call and send what became of it."""
    with socket.socket(fileno=descriptor) as channel:
        reader = channel.makefile("rb")
        call: Call = codec.decode(reader.readline(), Call)
        answered = threading.Event()
        threading.Thread(target=_die_with_parent, args=(reader, answered), daemon=True).start()
        lock = threading.Lock()

        def send(kind: bytes, data: bytes = b"") -> None:
            with lock:
                channel.sendall(kind + data + b"\n")

        try:
            function = _find(call)
            args, kwargs = typed_arguments(function, *codec.decode(call.arguments))
            context = StepContext(call.run_id, call.workflow, call.attempt)
            context.step, context.idempotency_key = call.step, call.key
            context.app = codec.decode(call.app)
            context.beat = lambda: send(BEAT)
            STEP.set(context)
            send(BEGUN)
            result = function(*args, **kwargs)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
            outcome = RESULT, codec.encode(result, f"the result of step {call.step!r}")
        except BaseException as error:
            outcome = FAILED, codec.encode(error_to_data(error))
        answered.set()
        send(*outcome)


def typed_arguments(
    function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return plain JSON values as arguments of the types a function declares."""
    try:
        hints = get_type_hints(inspect.unwrap(function), include_extras=True)
    except Exception:
        hints = {}
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin that does not tell: nor does it tell types
        return tuple(args), kwargs
    bound = signature.bind(*args, **kwargs)
    for name, value in bound.arguments.items():
        if name not in hints:
            continue
        where = f"argument {name!r}"
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            bound.arguments[name] = tuple(_typed(item, hints[name], where) for item in value)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            bound.arguments[name] = {key: _typed(item, hints[name], where) for key, item in value.items()}
        else:
            bound.arguments[name] = _typed(value, hints[name], where)
    named = {name: value for name, value in _flat(signature, bound.arguments) if name in kwargs}
    return bound.args[: len(args)], named


def _flat(signature: inspect.Signature, arguments: dict[str, Any]) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in arguments.items():
        extra = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        pairs.extend(value.items() if extra else [(name, value)])
    return pairs


def _typed(value: Any, hint: Any, where: str) -> Any:
    return codec.decode(codec.encode(value), hint, where)


def _find(call: Call) -> Callable[..., Any]:
    try:
        found: Any = _main_module(call) if call.module == "__main__" else importlib.import_module(call.module)
        for part in call.name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise DefinitionError(f"the child process cannot find {call.module}.{call.name}: {error}") from error
    function: Callable[..., Any] = getattr(found, "function", found)
    return function


def _main_module(call: Call) -> types.ModuleType:
    """Run the main script again under the name that its `if __name__ == "__main__":` does not match."""
    name = "__mp_main__"
    if call.main_spec:
        content = runpy.run_module(call.main_spec, run_name=name, alter_sys=True)
    else:
        content = runpy.run_path(call.main_path, run_name=name)
    module = types.ModuleType(name)
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules[name] = module
    return module


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _die_with_parent(reader: Any, answered: threading.Event) -> None:
    """Wait for the end of the connection, which comes with the parent's; then end the whole process group."""
    with contextlib.suppress(OSError):  # reset, where the parent died with something unread
        reader.read()
    if answered.is_set():
        time.sleep(LEAVE_SECONDS)
    os.killpg(0, signal.SIGKILL)
