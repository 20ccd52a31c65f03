"""What workflow code must not do while it runs: blocking I/O, and calls that belong in steps or callers."""

from __future__ import annotations

import asyncio
import os
import sys
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, NoReturn

from holdfast.errors import NonDeterministic
from holdfast.system import watch_audited


class TurnGuard:
    """Refuses files, sockets, processes and blocking sleeps to the thread that is inside a turn.

    Put `enter` and `leave` around every turn, on the thread that runs it. Other threads are free at all times, and so
    is everything outside a turn. The first violation is kept, so workflow code that catches the error does not hide it.
    """

    __slots__ = ("_bottom", "_installed", "_thread", "violation")

    def __init__(self) -> None:
        self.violation: NonDeterministic | None = None
        self._thread: int | None = None
        self._bottom: CodeType | None = None
        self._installed = False

    def install(self) -> None:
        """Watch what the process does, once; Python has no way to remove an audit hook."""
        if not self._installed:
            self._installed = True
            watch_audited(_WATCHED, self._audit)

    def enter(self, bottom: CodeType) -> None:
        """Begin a turn on this thread; workflow code is what the function with this code calls until it leaves."""
        self._bottom = bottom
        self._thread = get_ident()

    def leave(self) -> NonDeterministic | None:
        """End the turn and hand over its first violation, if there was one."""
        self._thread = self._bottom = None
        violation, self.violation = self.violation, None
        return violation

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        # Runs for ever, and after this module's globals are gone at exit: outside a turn nothing but this comparison
        # may happen.
        if self._thread is not None and get_ident() == self._thread:
            self._judge(event, arguments)

    def _judge(self, event: str, arguments: tuple[object, ...]) -> None:
        thread, self._thread = self._thread, None  # whatever the judging itself does is not the workflow's doing
        try:
            frame = sys._getframe(3)
            bottom: FrameType | None = frame
            while bottom is not None and bottom.f_code is not self._bottom:
                bottom = bottom.f_back
            if _is_harmless_read(event, arguments) or _serves_the_interpreter(frame, bottom):
                return
            found = user_line(frame, stop=bottom)
            place = f" at {os.path.basename(found[0])}:{found[1]}" if found is not None else ""
            advice = "use ctx.sleep()" if event == "time.sleep" else "this is I/O: put it in a step"
            error = NonDeterministic(f"blocking I/O ({_describe(event, arguments)}) in workflow code{place}; {advice}")
        finally:
            self._thread = thread
        if self.violation is None:
            self.violation = error
        raise error


# A mutable module-level object: the audit hook belongs to the process and cannot be taken back, so a guard for each
# engine would leave one more hook behind for each engine ever made.
guard = TurnGuard()


class WorkflowLoop:
    """The event loop that workflow code runs in, as other code meets it there."""

    __slots__ = ()

    def refuse(self, what: str, advice: str) -> NoReturn:
        """Refuse something that workflow code must not do."""
        raise NotImplementedError


def refuse_in_workflow_code(what: str, advice: str) -> None:
    """Refuse something if workflow code does it.

    Raises:
        NonDeterministic: it does; the message names its line.
    """
    loop: object = asyncio._get_running_loop()
    if isinstance(loop, WorkflowLoop):
        loop.refuse(what, advice)


def user_line(frame: FrameType | None = None, *, stop: FrameType | None = None) -> tuple[str, int] | None:
    """Name the file and line of the innermost frame that is the user's own code; for error messages.

    That is a frame outside the standard library, installed packages and holdfast. If the user's code is itself
    installed too, it is the frame by which holdfast entered it. The search ends before `stop`: pass the frame that
    drives the turn, for further out is the code that started the engine, which did not write the line.
    """
    if frame is None:
        frame = sys._getframe(1)
    installed: tuple[str, int] | None = None
    while frame is not None and frame is not stop:
        owner = _owner(frame)
        if owner == "user":
            return frame.f_code.co_filename, frame.f_lineno
        if owner == "installed":
            installed = frame.f_code.co_filename, frame.f_lineno
        elif owner == "holdfast" and installed is not None:
            break
        frame = frame.f_back
    return installed


def raised_at(error: BaseException) -> str:
    """Return " at file:line" of the innermost user code an error passed through, for error messages."""
    found, step = "", vars(BaseException)["__traceback__"].__get__(error)
    while step is not None:
        if _owner(step.tb_frame) == "user":
            found = f" at {os.path.basename(step.tb_frame.f_code.co_filename)}:{step.tb_lineno}"
        step = step.tb_next
    return found


def name_of(future: Any) -> str:
    """Return what to call a task or verb in a message."""
    return (
        future.get_name()
        if isinstance(future, asyncio.Task)
        else type(future).word
        if hasattr(future, "word")
        else "a future"
    )


def await_chain(coro: Any) -> str:
    """Return the file:line at which a coroutine waits, outermost first."""
    lines: list[str] = []
    while coro is not None and len(lines) < 6:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None) or getattr(coro, "ag_frame", None)
        if frame is None:
            break
        lines.append(f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}")
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None) or getattr(coro, "ag_await", None)
    return " > ".join(lines) or "?"


def waits_at(coro: Any) -> tuple[str, int] | None:
    """Return the file and line of the innermost code of the user's own at which a coroutine waits."""
    found: tuple[str, int] | None = None
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None) or getattr(coro, "ag_frame", None)
        if frame is None:
            break
        if _owner(frame) == "user":
            found = frame.f_code.co_filename, frame.f_lineno
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None) or getattr(coro, "ag_await", None)
    return found


_EVENTS = {
    "http.client": "connect",
    "os": "chmod chown exec fork forkpty link listdir mkdir posix_spawn remove rename rmdir scandir spawn startfile "
    "symlink system truncate utime",
    "shutil": "chown copyfile copymode copystat copytree make_archive move rmtree unpack_archive",
    "socket": "bind connect getaddrinfo gethostbyaddr gethostbyname getnameinfo sendmsg sendto",
    "sqlite3": "connect",
    "subprocess": "Popen",
    "time": "sleep",
    "urllib": "Request",
}
_WATCHED = frozenset({"open", *(f"{group}.{name}" for group, names in _EVENTS.items() for name in names.split())})
_TELLING = (str, bytes, int, float, tuple, list, os.PathLike)
_SOURCES = (".py", ".pyc", ".pyi", ".pyw")
# Modules that touch files on behalf of code that imports, warns, prints a traceback, logs or debugs.
_INTERPRETER = frozenset(
    {"_frozen_importlib", "_frozen_importlib_external", "encodings", "importlib", "inspect", "linecache", "logging"}
    | {"pdb", "pkgutil", "tokenize", "traceback", "warnings", "zipimport", "zoneinfo"}
)
_HOLDFAST = os.path.normcase(os.path.join(os.path.dirname(os.path.dirname(__file__)), ""))
# As sysconfig has it, which would read the whole configuration of the interpreter for it.
_LIBRARY = os.path.join(sys.platlibdir, "python{}.{}".format(*sys.version_info))
_STANDARD = tuple(
    os.path.normcase(os.path.join(folder, ""))
    for folder in {
        os.path.dirname(os.__file__),
        *(os.path.join(home, _LIBRARY) for home in (sys.base_prefix, sys.base_exec_prefix, sys.exec_prefix)),
    }
)
_INSTALLED = tuple(os.path.normcase(f"{os.sep}{name}{os.sep}") for name in ("site-packages", "dist-packages"))


def _owner(frame: FrameType) -> str:
    file = os.path.normcase(frame.f_code.co_filename)
    if file.startswith(_HOLDFAST):
        return "holdfast"
    if any(folder in file for folder in _INSTALLED):
        return "installed"
    if file.startswith(_STANDARD):
        return "standard"
    if file.startswith("<"):  # typed in, or generated: only what is typed in has no module to come from
        return "user" if frame.f_globals.get("__name__") == "__main__" else "standard"
    return "user"


def _is_harmless_read(event: str, arguments: tuple[object, ...]) -> bool:
    if event != "open" or not isinstance(arguments[0], (str, bytes, os.PathLike)):
        return False
    path, mode, flags = os.fsdecode(arguments[0]), arguments[1], arguments[2]
    if isinstance(mode, str):
        reads = "r" in mode and "+" not in mode
    else:  # os.open has only flags
        reads = isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR)
    # ZoneInfo reads its file from C, with no frame of its own to know it by.
    zones: tuple[str, ...] = getattr(sys.modules.get("zoneinfo"), "TZPATH", ())
    return reads and (path.endswith(_SOURCES) or path.startswith(zones))


def _serves_the_interpreter(frame: FrameType | None, stop: FrameType | None) -> bool:
    while frame is not None and frame is not stop:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _INTERPRETER:
            return True
        frame = frame.f_back
    return False


def _describe(event: str, arguments: tuple[object, ...]) -> str:
    if event == "open":
        path, mode = arguments[:2]
        return f"open {_show(path)}, mode {mode!r}" if mode is not None else f"open {_show(path)}"
    telling = [argument for argument in arguments if isinstance(argument, _TELLING) and argument != -1]
    return f"{event} {', '.join(map(_show, telling))}".rstrip()[:200]


def _show(argument: object) -> str:
    return repr(os.fspath(argument) if isinstance(argument, os.PathLike) else argument)
