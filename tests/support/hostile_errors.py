"""Exceptions that raise, lie or grow when they are looked at; importable, so that a child process finds them."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.errors import RetryAfter


def _raising(name: str) -> property:
    def look(self: Any) -> Any:
        raise RuntimeError(f"{name} cannot be looked at")

    return property(look)


class NoArgs(Exception):
    """Its arguments cannot be looked at."""

    args = _raising("args")


class NoDict(Exception):
    """Its attributes cannot be looked at."""

    __dict__ = _raising("__dict__")


class NoText(Exception):
    """It cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class TextExits(Exception):
    """Printing it would end the process."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class TextCancels(Exception):
    """Printing it seems to be cancelled."""

    def __str__(self) -> str:
        raise asyncio.CancelledError

    __repr__ = __str__


class TextIsNoText(Exception):
    """What it prints is no text."""

    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307  # that is the point


class OddText(str):
    """A text that cannot be encoded or compared."""

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        raise RuntimeError("no bytes")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = str.__hash__

    def __format__(self, how: str) -> str:
        raise RuntimeError("no format")


class TextIsOdd(Exception):
    """What it prints is a text that raises."""

    def __str__(self) -> str:
        return OddText("odd")


class NoClass(Exception):
    """Its class cannot be asked for."""

    __class__ = _raising("__class__")


class Liar(Exception):
    """It says that it is a RetryAfter, and has nothing that one has."""

    __class__ = property(lambda self: RetryAfter)


class NoAttributes(Exception):
    """Whatever it is asked for raises, unless Python itself finds it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"{name} cannot be looked at")


class AnyAttribute(Exception):
    """It has every attribute, and each is nonsense."""

    def __getattr__(self, name: str) -> Any:
        return "nonsense"


class NoReduce(Exception):
    """It cannot be pickled, in a way that is no Exception."""

    def __reduce__(self) -> Any:
        raise SystemExit(4)


class OddReduce(Exception):
    """What it gives to pickle is nonsense."""

    def __reduce__(self) -> Any:
        return (OddReduce, 5, {"x": OddText("x")}, None)


class NoCause(Exception):
    """What caused it cannot be looked at."""

    __cause__ = _raising("__cause__")
    __context__ = _raising("__context__")
    __suppress_context__ = _raising("__suppress_context__")
    __traceback__ = _raising("__traceback__")
    __notes__ = _raising("__notes__")


class NoNotes(Exception):
    """It takes no notes."""

    def add_note(self, note: str) -> None:
        raise SystemExit(5)


class OddDelay(RetryAfter):
    """It asks to be tried again at no time that there is."""

    def __init__(self) -> None:
        Exception.__init__(self, "later")

    delay = _raising("delay")


class _OddKind(type):
    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("not comparable")

    def __hash__(cls) -> int:
        raise RuntimeError("no hash")


class OddClass(Exception, metaclass=_OddKind):
    """Its class cannot be compared with others."""


class OddModule(Exception):
    """Its class does not say where it is from."""


OddModule.__module__ = None  # type: ignore[assignment]


class Outside(BaseException):
    """No Exception, nor anything that Python knows."""


def _cycle() -> BaseException:
    one, other = NoText("one"), NoArgs("other")
    one.__cause__, other.__cause__ = other, one
    return one


def _crowd(leaf: Exception | None = None) -> BaseException:
    """Return a group whose members, counted each time they occur, are more than a computer can visit."""
    group: Exception = leaf or NoText("leaf")
    for level in range(40):
        group = ExceptionGroup(f"level {level}", [group] * 10)
    return group


def _deep() -> BaseException:
    group: Exception = ValueError("leaf")
    for level in range(3000):
        group = ExceptionGroup(f"level {level}", [group])
    return group


def _with_attribute(value: object) -> BaseException:
    error = ValueError("x")
    error.attribute = value  # type: ignore[attr-defined]
    return error


MAKERS: dict[str, Any] = {
    **{
        kind.__name__: kind
        for kind in (
            NoArgs, NoDict, NoText, TextExits, TextCancels, TextIsNoText, TextIsOdd, NoClass, Liar, NoAttributes,
            AnyAttribute, NoReduce, OddReduce, NoCause, NoNotes, OddDelay, OddClass, OddModule, Outside,
        )
    },
    "cycle": _cycle,
    "crowd": _crowd,
    "crowd of ordinary ones": lambda: _crowd(ValueError("leaf")),
    "deep": _deep,
    "group": lambda: ExceptionGroup("all", [NoText(), NoArgs(), NoClass(), Liar(), NoAttributes(), NoCause()]),
    "odd attribute": lambda: _with_attribute(OddText("x")),
    "odd key": lambda: _with_attribute({OddText("x"): 1}),
    "surrogate": lambda: ValueError("a\ud800b"),
    "binary": lambda: ValueError(b"\xff\x00" * 1000, "\x00\x1b[31m"),
    "huge": lambda: ValueError("x" * 20_000_000),
}  # fmt: skip


def raise_hostile(name: str) -> None:
    """Raise one of them."""
    raise MAKERS[name]()
