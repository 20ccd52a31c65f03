"""Exceptions as data: what is stored, shown, and raised again. Nothing is ever imported by a stored name."""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from holdfast import errors
from holdfast.errors import StepFailed
from holdfast.payloads.encodable import PLAIN, check, write

T = TypeVar("T")
_State = tuple[list[Any] | None, dict[str, Any] | None]


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


def error_text(exc: BaseException) -> str:
    """Return the name of an exception's class and its message; never raises, however broken the exception is."""
    return _safely(lambda: f"{type(exc).__name__}: {exc}", "") or f"{_name_of(type(exc))}: {_message_of(exc)}"


def error_repr(exc: BaseException) -> str:
    """Return the repr of an exception, or what else can be said of it; never raises."""
    return ("" if _is_group(exc) else _safely(lambda: repr(exc), "")) or error_text(exc)


def loggable(exc: BaseException) -> BaseException:
    """Return an exception that can be printed: itself, or a StepFailed in its place."""
    printed = _safely(lambda: traceback.format_exception(exc), None) if _is_small(exc) else None
    return exc if printed is not None else StepFailed(_name_of(type(exc)), _message_of(exc))


def _is_small(exc: BaseException) -> bool:
    """Whether printing an exception comes to an end: a group may have one member many times over, at every level."""
    waiting, left = [exc], _MOST_PRINTED
    while waiting and left:
        left -= 1
        waiting.extend(members_of(waiting.pop()))
    return not waiting


def tamed(exc: BaseException) -> BaseException:
    """Return an exception that can be compared with classes: itself, or a StepFailed if looking at it may raise.

    One that says it is of another class than its own is not believed either.
    """
    if _safely(lambda: all(map(_is_tame, whole_of(exc))), False):
        return exc
    return StepFailed(_name_of(type(exc)), _message_of(exc)).with_traceback(own(exc, "__traceback__"))


def whole_of(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception and, of a group, every member at any depth, each once."""
    seen: set[int] = set()
    waiting = [exc]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting.extend(members_of(each))


def cause_of(exc: BaseException) -> BaseException | None:
    """Return what an exception was raised from, or while handling what, unless that was suppressed."""
    cause = own(exc, "__cause__")
    if cause is None and not own(exc, "__suppress_context__"):
        cause = own(exc, "__context__")
    return cause if issubclass(type(cause), BaseException) else None


def _is_tame(exc: BaseException) -> bool:
    kind = type(exc)
    return exc.__class__ is kind and kind == kind and isinstance(hash(kind), int) and bool(qualified_name(kind))


def members_of(exc: BaseException) -> tuple[BaseException, ...]:
    """Return the members of a group, of any other exception none."""
    return vars(BaseExceptionGroup)["exceptions"].__get__(exc) if _is_group(exc) else ()


def _is_group(exc: BaseException) -> bool:
    return issubclass(type(exc), BaseExceptionGroup)


def own(exc: BaseException, name: str) -> Any:
    """Return what an exception itself has under a name, whatever its class makes of it."""
    return vars(BaseException)[name].__get__(exc)


def _safely(look: Callable[[], T], otherwise: T) -> T:
    """Return what a look at an exception says, or something else if that raises, even what is no Exception."""
    try:
        return look()
    except BaseException:
        return otherwise


def error_from_data(data: ErrorData, registered: Mapping[str, type[BaseException]]) -> BaseException:
    """Return the exception to raise for stored data, with its causes.

    It has its own class if that is builtin, one of `holdfast.errors`, or in `registered` (by `qualified_name`);
    otherwise, or if an instance with that message cannot be made, it is a StepFailed. Nothing is imported.
    """
    exc = _rebuilt(data, registered)
    if exc is not None and _safely(partial(_completed, exc, data, registered), False):
        return exc
    exc = StepFailed(data.type, data.message)
    _completed(exc, data, registered)
    return exc


def _completed(exc: BaseException, data: ErrorData, registered: Mapping[str, type[BaseException]]) -> bool:
    """Give an exception its notes and its cause; tell whether it takes them, and more notes after these."""
    if type(exc).add_note is not BaseException.add_note or type(getattr(exc, "__notes__", [])) is not list:
        return False
    for note in data.notes:
        exc.add_note(note)
    if data.cause is not None:
        exc.__cause__ = error_from_data(data.cause, registered)
    return tamed(exc) is exc


_MAX_LEVELS = 5
_MAX_TEXT = 8192
_MAX_ARGS = 65_536
_MAX_FRAMES = 64
_MAX_NOTES = 8
_MOST_PRINTED = 1000
_NAMED_LEVELS = 2
"""How deep the members of groups are named in a message: a group may have one member many times over."""
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
    nothing: _State = (None, None)
    no_notes: list[str] = []
    args, attributes = _safely(lambda: _state_of(exc, room), nothing)
    message = _message_of(exc, room.text)
    name = _name_of(kind)
    notes = _safely(lambda: _notes_of(exc), no_notes)
    last = f"{name}: {message[:1024]}" if message else name
    text = _traceback_of(exc, "\n".join([last, *notes]), room.text)
    cause = cause_of(exc) if levels else None
    caused = None if cause is None else _error_to_data(cause, True, levels - 1, room)
    members: list[ErrorData] = []
    if _is_group(exc) and levels:
        room.text = min(room.text, 2048)
        parts = members_of(exc)
        for member in parts:
            if room.members > 0:
                room.members -= 1
                members.append(_error_to_data(member, True, levels - 1, room))
        if len(members) < len(parts):
            notes.append(f"{len(parts) - len(members)} of its {len(parts)} members were left out")
    return ErrorData(
        type=name,
        message=message,
        args=args,
        attributes=attributes or None,
        traceback=text,
        cause=caused,
        retryable=retryable and not issubclass(kind, errors.NonRetryable),
        bases=_safely(lambda: _bases_of(kind), [name]),
        notes=notes,
        members=members,
    )


def _name_of(kind: type) -> str:
    return _safely(lambda: _clean(qualified_name(kind), 1024), "<a class without a name>")


def _bases_of(kind: type) -> list[str]:
    return [_clean(base.__name__, 256) for base in kind.__mro__[:32] if base not in (BaseException, object)]


def _notes_of(exc: BaseException) -> list[str]:
    notes: object = getattr(exc, "__notes__", None)
    if not isinstance(notes, list | tuple):
        return []
    return [_clean(note, _MAX_NOTE) for note in notes if isinstance(note, str)][:_MAX_NOTES]


def _message_of(exc: BaseException, limit: int = _MAX_TEXT, levels: int = _NAMED_LEVELS) -> str:
    try:
        text = str.__str__(str(exc))
        if _is_group(exc) and levels:
            parts = members_of(exc)[:10]
            members = "; ".join(f"{type(part).__name__}: {_message_of(part, levels=levels - 1)}" for part in parts)
            text = f"{text}: {members}"
        return _clean(text, limit)
    except BaseException as error:
        name, raised = (_name_of(kind).rpartition(".")[2] for kind in (type(exc), type(error)))
        return f"<unprintable {name}: its __str__ raised {raised}>"


def _state_of(exc: BaseException, room: _Room) -> _State:
    """Return the arguments that make the exception again and the attributes set on it besides, as far as JSON goes."""
    if _is_group(exc):
        return [_clean(vars(BaseExceptionGroup)["message"].__get__(exc))], None
    args: Any = _safely(lambda: exc.args, own(exc, "args"))
    state: Any = _safely(lambda: exc.__dict__, own(exc, "__dict__"))
    # An OSError keeps its filename and an ImportError its module only in what it gives to pickle.
    reduced: Any = _safely(lambda: exc.__reduce__(), None)
    if type(reduced) is tuple and len(reduced) > 1 and reduced[0] is type(exc):
        args, state = reduced[1], reduced[2] if len(reduced) > 2 else state
    kept = {}
    for name, value in dict.items(state) if isinstance(state, dict) else ():
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
    except BaseException:
        return None


def _traceback_of(exc: BaseException, end: str, limit: int) -> str:
    try:
        frames = "".join(traceback.format_tb(own(exc, "__traceback__"), limit=-_MAX_FRAMES))
    except BaseException as error:
        frames = f"  <no frames: {_name_of(type(error))}>\n"
    return _clean(frames + end, limit, keep_end=True)


def _clean(text: str, limit: int = _MAX_TEXT, keep_end: bool = False) -> str:
    """Return a text of at most `limit` bytes that JSON can carry."""
    part = str.__getitem__(text, slice(-limit - 1, None) if keep_end else slice(limit + 1))
    data = str.encode(part, "utf-8", "replace")
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
        except BaseException:  # noqa: S112 - a class that cannot be made this way is tried the next way
            continue
    return None


def _rebuilt_group(cls: Any, data: ErrorData, registered: Mapping[str, type[BaseException]]) -> BaseException | None:
    try:
        group = cls(
            *(data.args or [data.message])[:1], [error_from_data(member, registered) for member in data.members]
        )
    except BaseException:
        return None
    return group if isinstance(group, BaseExceptionGroup) else None


def _known_class(name: str) -> type[BaseException] | None:
    module, _, simple = name.rpartition(".")
    scope = {"": builtins, errors.__name__: errors}.get(module)
    found = vars(scope).get(simple) if scope else None
    known = isinstance(found, type) and issubclass(found, Exception)
    return found if known else None
