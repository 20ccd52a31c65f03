"""Bodies in a child process, which can be killed.

The child is a fresh interpreter, never a fork, and finds the function by importing the module it was defined in.
Call and outcome cross a socket as lines of JSON. The child leads its own process group, so that processes it started
die with it, and it ends itself when its parent is gone. See `child_main` for the other side.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.bodies.child_main import BEAT, BEGUN, FAILED, LEAVE_SECONDS, RESULT, Call, typed_arguments
from holdfast.bodies.context import StepContext
from holdfast.errors import DefinitionError, NotSerializable, StepCrashed
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData

_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from holdfast.bodies.child_main import main; main(int(sys.argv[2]))"
)

Report = Callable[[bytes | None, ErrorData | BaseException | None], None]


def importable(function: Callable[..., Any], asked: bool = True) -> tuple[str, str] | None:
    """Return module and qualified name under which a child process finds a function, None if it cannot.

    A function of the main script is found by running that script again under another name. Where the user has not
    `asked` for a child process, the script must say that this does no harm, by `if __name__ == "__main__":`.
    """
    target = inspect.unwrap(function)
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if not module or not name or "<" in name:
        return None
    if module == "__main__" and (_main_place() == ("", "") or not (asked or _main_is_guarded())):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    found = getattr(found, "function", found)
    return (module, name) if found is not None and inspect.unwrap(found) is target else None


class IsolatedBody:
    """One body running in a child process.

    Everything that may block is done in a thread of its own. `begun`, when the child has reached the body, and
    `report`, at the end, are called on the event loop.

    Raises:
        DefinitionError: the function cannot be found from another process, or its arguments would change on the way.
        NotSerializable: its arguments cannot cross.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: StepContext,
        begun: Callable[[], None],
        report: Report,
    ) -> None:
        self._call = _call(function, args, kwargs, context)
        self._context = context
        self._begun = begun
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._killed = False
        self._process: subprocess.Popen[bytes] | None = None
        threading.Thread(target=self._attend, name="holdfast isolated step", daemon=True).start()

    @property
    def pid(self) -> int | None:
        """The child's process id, once it has one."""
        return self._process.pid if self._process is not None else None

    def kill(self) -> None:
        """End the child and what it started, now; nothing is reported."""
        with self._lock:
            self._killed = True
            self._end()

    def _end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            _kill_group(self._process)

    def _attend(self) -> None:
        try:
            data, error = self._converse()
        except Exception as failure:
            data, error = None, failure
        if not self._killed:
            self._tell(self._report, data, error)
        if self._process is not None:
            try:
                self._process.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
                self._process.wait()

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        # The loop may be closed by now: then no run waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def _converse(self) -> tuple[bytes | None, ErrorData | BaseException | None]:
        mine, theirs = socket.socketpair()
        with mine, mine.makefile("rwb") as pipe:
            with theirs:
                command = [
                    sys.executable,
                    "-c",
                    _CHILD,
                    msgspec.json.encode([str(place) for place in sys.path]).decode(),
                    str(theirs.fileno()),
                ]
                process = subprocess.Popen(  # noqa: S603  # our own interpreter and our own code
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
                )
            with self._lock:
                self._process = process
                if self._killed:
                    self._end()
            threading.Thread(target=_reap, args=(process, mine), name="holdfast isolated step", daemon=True).start()
            begun = False
            with contextlib.suppress(OSError):
                pipe.write(codec.encode(self._call, "a call") + b"\n")
                pipe.flush()
                for line in pipe:
                    kind, data = line[:1], line[1:-1]
                    if not line.endswith(b"\n"):
                        break
                    if kind == BEAT:
                        self._context.heartbeat()
                    elif kind == RESULT:
                        return data, None
                    elif kind == FAILED:
                        return None, codec.decode(data, ErrorData)
                    elif kind == BEGUN:
                        begun = True
                        self._tell(self._begun)
        return None, self._died(begun)

    def _died(self, begun: bool) -> BaseException:
        assert self._process is not None  # for the type checker
        code = self._process.wait()
        _kill_group(self._process)
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        if begun:
            return StepCrashed(f"the child process of step {self._context.step!r} died ({how})")
        return DefinitionError(
            f"the child process of step {self._context.step!r} ended before it reached the body ({how}); if the "
            'function is in the main script, that script must start its work under `if __name__ == "__main__":`'
        )


def _reap(process: subprocess.Popen[bytes], channel: socket.socket) -> None:
    """Wait for the child's end, then end the conversation: processes that it forked may hold its side open."""
    process.wait()
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_RD)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: StepContext) -> Call:
    place = importable(function)
    if place is None:
        raise DefinitionError(
            f"step {context.step!r} is to run in a child process, which imports its function by name: "
            f"define it at the top of a module ({function!r} is not)"
        )
    payload = write_arguments(function, args, kwargs, context.step, "the child process")
    path, spec = _main_place() if place[0] == "__main__" else ("", "")
    return Call(
        module=place[0],
        name=place[1],
        main_path=path,
        main_spec=spec,
        arguments=payload.decode(),
        run_id=context.run_id,
        workflow=context.workflow,
        step=context.step,
        attempt=context.attempt,
        key=context.idempotency_key,
        app=_carried(context.app),
    )


def _carried(app: Mapping[str, Any]) -> str:
    """Return what the app said as JSON; what JSON does not carry is not said to a child."""
    said = {}
    for name, value in app.items():
        with contextlib.suppress(NotSerializable):
            codec.encode({name: value})
            said[name] = value
    return codec.encode(said).decode()


def _main_place() -> tuple[str, str]:
    """Return the path of the main script, or the name of the module that was run with -m; empty for neither."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    path = getattr(main, "__file__", None)
    return (os.path.abspath(path) if path and spec is None else "", spec.name if spec is not None else "")


@functools.cache
def _main_is_guarded() -> bool:
    """Tell whether the main script starts its work under `if __name__ == "__main__":`, so that it can be run again."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules["__main__"]))
    except (OSError, TypeError, SyntaxError, ValueError):  # no source, or another language
        return False
    tests = [statement.test for statement in tree.body if isinstance(statement, ast.If)]
    return any(isinstance(node, ast.Name) and node.id == "__name__" for test in tests for node in ast.walk(test))


# Arguments on their way to another process: as JSON, and back as the types that a function declares.


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
