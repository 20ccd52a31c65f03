"""Bodies in a child process of their own, which can really be killed.

The child is spawned, never forked, and finds the function by importing the module it was defined in. Arguments and result
cross as JSON. The child ends itself when its parent is gone.
"""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, get_type_hints

from holdfast import codec
from holdfast.codec import ErrorData, error_to_data
from holdfast.errors import BadInput, StepCrashed

_SPAWN = multiprocessing.get_context("spawn")


def importable(function: Callable[..., Any]) -> tuple[str, str] | None:
    """Return module and qualified name under which a child process finds a function, None if it cannot."""
    target = inspect.unwrap(function)
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if not module or not name or "<" in name:
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    found = getattr(found, "function", found)
    return (module, name) if inspect.unwrap(found) is target else None


class IsolatedBody:
    """One body running in a child process."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        report: Callable[[bytes | None, ErrorData | BaseException | None], None],
    ) -> None:
        place = importable(function)
        if place is None:
            raise BadInput(
                f"isolate='process' needs a function defined at the top of a module, not {function!r}: "
                "the child process imports it by name"
            )
        payload = codec.encode([list(args), kwargs], f"the arguments of {place[1]!r}")
        self._report = report
        self._ended = False
        self._loop = asyncio.get_running_loop()
        mine, theirs = _SPAWN.Pipe()
        self._pipe: Connection[Any, Any] = mine
        self._process = _SPAWN.Process(target=_child, args=(theirs, *place, payload), daemon=True)
        self._process.start()
        theirs.close()
        self._loop.add_reader(mine.fileno(), self._readable)

    def kill(self) -> None:
        """End the child now."""
        if not self._ended:
            self._finish()

    def _readable(self) -> None:
        try:
            ok, data = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            self._finish()
            self._report(None, StepCrashed(f"the child process died (exit code {code})"))
            return
        self._finish()
        if ok:
            self._report(data, None)
        else:
            self._report(None, codec.decode(data, ErrorData))

    def _finish(self) -> None:
        self._ended = True
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()
        self._process.kill()
        threading.Thread(target=self._process.join, daemon=True).start()


def _child(pipe: Connection[Any, Any], module: str, name: str, payload: bytes) -> None:
    """Run one body in the child process and send back what became of it."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        function: Any = sys.modules.get(module) or __import__(module, fromlist=["_"])
        for part in name.split("."):
            function = getattr(function, part)
        function = getattr(function, "function", function)
        args, kwargs = _typed(function, *codec.decode(payload))
        result = function(*args, **kwargs)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        pipe.send((True, codec.encode(result, f"the result of step {name!r}")))
    except BaseException as error:
        pipe.send((False, codec.encode(error_to_data(error))))


def _typed(function: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        hints = get_type_hints(inspect.unwrap(function))
    except Exception:
        hints = {}
    bound = inspect.signature(function).bind(*args, **kwargs)
    for name, value in bound.arguments.items():
        if name in hints:
            bound.arguments[name] = codec.decode(codec.encode(value), hints[name], f"argument {name!r}")
    return bound.args, bound.kwargs


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
