"""Exceptions as data: what is stored, shown, and raised again. Nothing is ever imported by a stored name."""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast import errors
from holdfast.errors import StepFailed
from holdfast.payloads.encodable import PLAIN, check, write


class ErrorData(msgspec.Struct, frozen=True, kw_only=True):
    """An exception as data: what is stored, shown, and raised again.

    `type` is its qualified class name, `bases` the simple names of its class and base classes up to Exception,
    `attributes` those of its own attributes that JSON carries unchanged, and `members` the exceptions of a group.
    """

    type: str
    message: str
    args: list[Any] | None = None
    attributes: dict[str, Any] | None = None
    traceback: str = ""
    cause: ErrorData | None = None
    retryable: bool = True
    bases: list[str] = []
    notes: list[str] = []
    members: list[ErrorData] = []

    @property
    def postpones(self) -> bool:
        """Whether it is a RetryAfter, which asks to be tried again later and counts as no failure."""
        return "RetryAfter" in self.bases

    def brief(self) -> dict[str, Any]:
        """Return what is told of it: its type and message."""
        return {"type": self.type, "message": self.message}


def qualified_name(cls: type) -> str:
    """Return `module.qualname` of a class, and the bare name of a builtin."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def error_to_data(exc: BaseException, *, retryable: bool = True) -> ErrorData:
    """Return an exception as encodable data; never raises, however broken the exception is."""
    return _error_to_data(exc, retryable, _MAX_LEVELS, _Room())


def error_from_data(data: ErrorData, registered: Mapping[str, type[BaseException]]) -> BaseException:
    """Return the exception to raise for stored data, with its causes.

    It has its own class if that is builtin, one of `holdfast.errors`, or in `registered` (by `qualified_name`);
    otherwise, or if an instance with that message cannot be made, it is a StepFailed. Nothing is imported.
    """
    exc = _rebuilt(data, registered) or StepFailed(data.type, data.message)
    for note in data.notes:
        exc.add_note(note)
    if data.cause is not None:
        exc.__cause__ = error_from_data(data.cause, registered)
    return exc


_MAX_LEVELS = 5
_MAX_TEXT = 8192
_MAX_ARGS = 65_536
_MAX_FRAMES = 64
_MAX_NOTES = 8
_MAX_NOTE = 1024
# Levels kept free for causes and members and for the record that will hold the error.
_ARGS_DEPTH = 16
# What a step may never throw into a workflow: they end the interpreter, a generator or a coroutine instead.
_NEVER_RAISED = (StopIteration, StopAsyncIteration)


class _Room:
    """What is left for one error and all below it, so that the whole stays within the size of a payload."""

    __slots__ = ("members", "state", "text")

    def __init__(self) -> None:
        self.members = 32
        self.state = 524_288
        self.text = _MAX_TEXT


def _error_to_data(exc: BaseException, retryable: bool, levels: int, room: _Room) -> ErrorData:
    kind = type(exc)
    args, attributes = _state_of(exc, room)
    message = _message_of(exc, room.text)
    name = _clean(qualified_name(kind), 1024)
    notes = _notes_of(exc)
    last = f"{name}: {message[:1024]}" if message else name
    text = _traceback_of(exc, "\n".join([last, *notes]), room.text)
    cause = _cause_of(exc) if levels else None
    caused = None if cause is None else _error_to_data(cause, True, levels - 1, room)
    members: list[ErrorData] = []
    if isinstance(exc, BaseExceptionGroup) and levels:
        room.text = min(room.text, 2048)
        for member in exc.exceptions:
            if room.members > 0:
                room.members -= 1
                members.append(_error_to_data(member, True, levels - 1, room))
        if len(members) < len(exc.exceptions):
            notes.append(f"{len(exc.exceptions) - len(members)} of its {len(exc.exceptions)} members were left out")
    return ErrorData(
        type=name,
        message=message,
        args=args,
        attributes=attributes or None,
        traceback=text,
        cause=caused,
        retryable=retryable and not isinstance(exc, errors.NonRetryable),
        bases=[_clean(base.__name__, 256) for base in kind.__mro__[:32] if base not in (BaseException, object)],
        notes=notes,
        members=members,
    )


def _cause_of(exc: BaseException) -> BaseException | None:
    if exc.__cause__ is not None:
        return exc.__cause__
    if exc.__context__ is not None and not exc.__suppress_context__:
        return exc.__context__
    return None


def _notes_of(exc: BaseException) -> list[str]:
    notes: object = getattr(exc, "__notes__", None)
    if not isinstance(notes, list | tuple):
        return []
    return [_clean(note, _MAX_NOTE) for note in notes if isinstance(note, str)][:_MAX_NOTES]


def _message_of(exc: BaseException, limit: int = _MAX_TEXT) -> str:
    try:
        text = str(exc)
        if isinstance(exc, BaseExceptionGroup):
            members = "; ".join(f"{type(member).__name__}: {_message_of(member)}" for member in exc.exceptions[:10])
            text = f"{text}: {members}"
        return _clean(text, limit)
    except BaseException as error:
        return f"<unprintable {_clean(type(exc).__name__)}: its __str__ raised {_clean(type(error).__name__)}>"


def _state_of(exc: BaseException, room: _Room) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """Return the arguments that make the exception again and the attributes set on it besides, as far as JSON goes."""
    if isinstance(exc, BaseExceptionGroup):
        return [_clean(exc.message)], None
    args: Any = getattr(exc, "args", None)
    state: Any = getattr(exc, "__dict__", None)
    try:
        # An OSError keeps its filename and an ImportError its module only in what it gives to pickle.
        reduced: Any = exc.__reduce__()
        if reduced[0] is type(exc):
            args, state = reduced[1], reduced[2] if len(reduced) > 2 else state
    except Exception:  # noqa: S110 - a broken __reduce__ leaves what the exception itself says
        pass
    kept = {}
    for name, value in (state or {}).items() if isinstance(state, dict | None) else ():
        plain = _small_json(value)
        if _is_own_attribute(name) and type(plain) is type(value) and plain == value:
            kept[name] = plain
    return _small_json(list(args), room) if isinstance(args, tuple) else None, _small_json(kept, room)


def _is_own_attribute(name: object) -> bool:
    return isinstance(name, str) and not name.startswith("_") and not hasattr(BaseException, name)


def _small_json(value: object, room: _Room | None = None) -> Any:
    try:
        check(value, "error", _ARGS_DEPTH)
        data = write(PLAIN, value, "error")
        if len(data) > (_MAX_ARGS if room is None else min(_MAX_ARGS, room.state)):
            return None
        if room is not None:
            room.state -= len(data)
        return msgspec.json.decode(data)
    except Exception:
        return None


def _traceback_of(exc: BaseException, end: str, limit: int) -> str:
    try:
        frames = "".join(traceback.format_tb(exc.__traceback__, limit=-_MAX_FRAMES))
    except Exception as error:
        frames = f"  <no frames: {type(error).__name__}>\n"
    return _clean(frames + end, limit, keep_end=True)


def _clean(text: str, limit: int = _MAX_TEXT, keep_end: bool = False) -> str:
    """Return a text of at most `limit` bytes that JSON can carry."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    room = limit - 4
    if keep_end:
        return "...\n" + data[-room:].decode("utf-8", "ignore")
    return data[:room].decode("utf-8", "ignore") + " ..."


def _rebuilt(data: ErrorData, registered: Mapping[str, type[BaseException]]) -> BaseException | None:
    cls = registered.get(data.type) or _known_class(data.type)
    if cls is None or issubclass(cls, _NEVER_RAISED):
        return None
    if issubclass(cls, BaseExceptionGroup):
        return _rebuilt_group(cls, data, registered)
    args = data.args or []
    attempts: tuple[Callable[[], BaseException], ...] = (
        lambda: cls(*args),
        lambda: cls.__new__(cls, *args),
        lambda: cls.__new__(cls, data.message),
    )
    for attempt in attempts:
        try:
            exc = attempt()
            for name, value in (data.attributes or {}).items():
                if _is_own_attribute(name):
                    setattr(exc, name, value)
            # A KeyError shows the repr of its message.
            if isinstance(exc, cls) and _message_of(exc) in (data.message, repr(data.message)):
                return exc
        except Exception:  # noqa: S112 - a class that cannot be made this way is tried the next way
            continue
    return None


def _rebuilt_group(cls: Any, data: ErrorData, registered: Mapping[str, type[BaseException]]) -> BaseException | None:
    try:
        group = cls(
            *(data.args or [data.message])[:1], [error_from_data(member, registered) for member in data.members]
        )
    except Exception:
        return None
    return group if isinstance(group, BaseExceptionGroup) else None


def _known_class(name: str) -> type[BaseException] | None:
    module, _, simple = name.rpartition(".")
    scope = {"": builtins, errors.__name__: errors}.get(module)
    found = vars(scope).get(simple) if scope else None
    known = isinstance(found, type) and issubclass(found, Exception)
    return found if known else None
