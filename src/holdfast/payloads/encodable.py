"""What JSON can carry: every part of a value is visited, and the first that would not come back equal is refused."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from math import isfinite
from typing import Any
from uuid import UUID

import msgspec

from holdfast.errors import NaiveDatetime, NotSerializable, NumberTooLong, PayloadTooLarge, TooDeep

MAX_BYTES = 2_097_152
MAX_DEPTH = 64
MAX_DIGITS = 4300
# Exclusive bounds; msgspec reads back no more than 4,300 characters, of which the sign is one.
_LONGEST_INT = 10**MAX_DIGITS
_LONGEST_NEGATIVE_INT = -(10 ** (MAX_DIGITS - 1))
# The walk's size is at most twice the encoded size (a pydantic model is counted twice), so above this all hope is lost.
_HOPELESS_SIZE = 2 * MAX_BYTES


def is_scalar(value: Any) -> bool:
    kind = type(value)
    return (
        kind is str
        or value is None
        or kind is bool
        or (kind is int and _LONGEST_NEGATIVE_INT < value < _LONGEST_INT)
        or (kind is float and isfinite(value))
    )


def write(encoder: msgspec.json.Encoder, value: object, where: str) -> bytes:
    try:
        data = encoder.encode(value)
    except Exception as error:
        check(value, where)
        raise NotSerializable(f"{error} at $ in {where}") from error
    if len(data) > MAX_BYTES:
        raise PayloadTooLarge(f"{len(data):,} > {MAX_BYTES:,} at {where}")
    return data


def check(value: object, where: str, depth: int = 0) -> Walk:
    walk = Walk()
    try:
        walk.visit(value, depth)
    except _Refused as refused:
        if refused.kind is PayloadTooLarge:
            raise PayloadTooLarge(f"{refused.what} > {MAX_BYTES:,} at {where}") from None
        path = "$" + "".join(reversed(refused.path))
        hint = f": {refused.hint}" if refused.hint else ""
        raise refused.kind(f"{refused.what} at {path} in {where}{hint}", path) from None
    return walk


class _Refused(Exception):
    """Unwinds the walk, collecting the path from the inside out."""

    def __init__(self, kind: type[NotSerializable], what: str, hint: str = "") -> None:
        self.kind = kind
        self.what = what
        self.hint = hint
        self.path: list[str] = []


class Walk:
    """Visits every part of a value, because msgspec writes NaN as null, 1 as "1" and naive datetimes as they are."""

    __slots__ = ("lenient", "sets", "size", "unordered")

    def __init__(self) -> None:
        self.size = 0
        self.unordered = False
        self.sets = False
        self.lenient = False

    def visit(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind is str:
            self.size += len(value)
            if not value.isascii():
                _check_unicode(value)
        elif kind is int:
            if not _LONGEST_NEGATIVE_INT < value < _LONGEST_INT:
                raise _Refused(NumberTooLong, f"integer above {MAX_DIGITS:,} digits", "carry it as a string")
        elif kind is bool or value is None:
            pass
        elif kind is dict:
            self.mapping(value, depth)
        elif kind is list or kind is tuple:
            self.sequence(value, depth)
        elif kind is float:
            if not isfinite(value):
                raise _Refused(NotSerializable, "NaN" if value != value else "Infinity")
        else:
            self.other(value, kind, depth)

    def mapping(self, value: dict[Any, Any], depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise _too_deep()
        length = len(value)
        self.size += length + 1
        if length > 1:
            self.unordered = True
        for key, item in dict.items(value):
            if isinstance(key, str):
                self.size += len(key)
                if not key.isascii():
                    _check_unicode(key, "dict key")
            elif not self.lenient:
                raise _Refused(NotSerializable, f"dict key of type {type(key).__name__}", "JSON keys are strings")
            try:
                self.visit(item, depth + 1)
            except _Refused as refused:
                refused.path.append(_path_part(key))
                raise
        if self.size > _HOPELESS_SIZE:
            raise _hopeless()

    def sequence(self, value: Any, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise _too_deep()
        self.size += len(value) + 1
        for item in value:
            try:
                self.visit(item, depth + 1)
            except _Refused as refused:
                # Whether an item is refused depends on the item alone, so its first occurrence is the one that failed.
                index = next(index for index, other in enumerate(value) if other is item)
                refused.path.append(f"[{index}]")
                raise
        if self.size > _HOPELESS_SIZE:
            raise _hopeless()

    def other(self, value: Any, kind: type, depth: int) -> None:
        if isinstance(value, Enum):
            self.visit(value.value, depth)
        elif (fields := record_fields(kind)) is not None:
            self.record(value, fields, depth)
        elif isinstance(value, set | frozenset):
            self.sets = self.sets or len(value) > 1
            self.sequence(value, depth)
        elif isinstance(value, dict):
            self.mapping(value, depth)
        elif isinstance(value, list | tuple):
            self.sequence(value, depth)
        elif isinstance(value, datetime | time):
            _check_zone(value)
        elif isinstance(value, Decimal):
            if not value.is_finite():
                raise _Refused(NotSerializable, "NaN" if value.is_nan() else "Infinity")
        elif isinstance(value, bytes | bytearray | memoryview):
            self.size += len(value)
        elif isinstance(value, str | int | float):
            self.visit(_as_builtin(value), depth)
        elif is_model(kind):
            self.model(value, kind, depth)
        elif knows_pydantic(kind):
            try:
                plain = dump(value)
            except Exception as error:
                raise _Refused(NotSerializable, f"{kind.__name__} ({first_line(error)})") from error
            self.visit(plain, depth)
        elif not isinstance(value, UUID | date | timedelta) and not self.lenient:
            raise _Refused(NotSerializable, f"object of type {kind.__name__}", _not_awaited(value, kind))

    def record(self, value: object, fields: tuple[tuple[str, str], ...], depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise _too_deep()
        self.size += 2
        self.unordered = True
        for attribute, name in fields:
            item = getattr(value, attribute, msgspec.UNSET)
            if item is not msgspec.UNSET:
                try:
                    self.visit(item, depth + 1)
                except _Refused as refused:
                    refused.path.append(_path_part(name))
                    raise
        if self.size > _HOPELESS_SIZE:
            raise _hopeless()

    def model(self, value: Any, kind: type, depth: int) -> None:
        # The serializer may turn NaN into None by itself, so the fields are visited too: leniently, since only the
        # model knows which of its types it can write.
        outer, self.lenient = self.lenient, True
        extra = getattr(value, "__pydantic_extra__", None) or {}
        self.record(value, model_fields(kind) + tuple((name, name) for name in extra), depth)
        self.lenient = outer
        if not outer:
            try:
                plain = dump_model(value)
            except Exception as error:
                raise _Refused(NotSerializable, f"{kind.__name__} ({first_line(error)})") from error
            self.visit(plain, depth)


def _not_awaited(value: Any, kind: type) -> str:
    """Return what to do about a value that code has yet to wait for; nothing for any other."""
    if hasattr(kind, "not_awaited"):  # a verb, which knows its name and its line
        return str(value.not_awaited())
    return "write `await` before the call that returned it" if hasattr(kind, "__await__") else ""


def _too_deep() -> _Refused:
    return _Refused(TooDeep, f"nested deeper than {MAX_DEPTH}", "flatten it, or cut the cycle")


def _hopeless() -> _Refused:
    return _Refused(PayloadTooLarge, f"more than {_HOPELESS_SIZE:,}")


def _check_unicode(text: str, what: str = "string") -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Refused(NotSerializable, f"invalid Unicode ({what} with a lone surrogate)") from None


def _check_zone(value: datetime | time) -> None:
    offset = value.utcoffset()
    kind = "datetime" if isinstance(value, datetime) else "time"
    if offset is None:
        raise _Refused(NaiveDatetime, f"naive {kind}", "add a timezone")
    if offset % timedelta(minutes=1):
        raise _Refused(NotSerializable, f"{kind} with the UTC offset {offset}", "convert it to UTC")


def _path_part(key: object) -> str:
    text = str(key)[:80]
    return f".{text}" if text.isidentifier() and text.isascii() else f"[{text!r}]"


@lru_cache(maxsize=4096)
def record_fields(kind: type) -> tuple[tuple[str, str], ...] | None:
    """Return the attributes of a record class and their names in JSON; None for any other class."""
    if issubclass(kind, msgspec.Struct):
        return tuple(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    if dataclasses.is_dataclass(kind):
        return tuple((field.name, field.name) for field in dataclasses.fields(kind))
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else tuple((field.name, field.name) for field in attributes)


def is_model(kind: type) -> bool:
    return hasattr(kind, "__pydantic_serializer__") and hasattr(kind, "model_dump")


@lru_cache(maxsize=4096)
def model_fields(kind: Any) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in kind.model_fields)


def dump_model(value: Any) -> Any:
    return value.model_dump(mode="json", by_alias=False, round_trip=True)


def knows_pydantic(kind: type) -> bool:
    """Tell whether a class that is no model says itself how pydantic writes and reads it."""
    return hasattr(kind, "__get_pydantic_core_schema__") and adapter_of(kind) is not None


def dump(value: Any) -> Any:
    """Return what pydantic writes for an object of such a class."""
    adapter = adapter_of(type(value))
    assert adapter is not None
    return adapter.dump_python(value, mode="json", by_alias=False, round_trip=True)


def adapter_of(kind: Any) -> Any:
    """Return pydantic's TypeAdapter for a type in which something is pydantic's; None for others."""
    try:
        return _cached_adapter(kind)
    except TypeError:  # not hashable
        return _new_adapter(kind)


def _new_adapter(kind: Any) -> Any:
    if not _is_pydantics(kind):
        return None
    from pydantic import ConfigDict, TypeAdapter

    for config in (ConfigDict(val_json_bytes="base64"), None):  # as msgspec writes bytes; a model has its own
        try:
            return TypeAdapter(kind, config=config)
        except Exception:  # noqa: S110  # which of its errors, depends on its version
            pass
    return None


def _is_pydantics(kind: Any) -> bool:
    """Tell whether a type is, or is made of, a model or something else that was written for pydantic."""
    marks = getattr(kind, "__metadata__", ())
    if any(type(mark).__module__.partition(".")[0] == "pydantic" for mark in marks):
        return True
    if isinstance(kind, type) and any(hasattr(kind, name) for name in _PYDANTICS):
        return True
    return any(map(_is_pydantics, typing.get_args(kind)))


_PYDANTICS = ("__get_pydantic_core_schema__", "__pydantic_core_schema__")


_cached_adapter = lru_cache(maxsize=1024)(_new_adapter)


def _as_builtin(value: Any) -> Any:
    """Return what msgspec can write of a value it does not know; the walk has let it pass."""
    for kind, convert in _CONVERSIONS.items():
        if isinstance(value, kind):
            return convert(value)
    if is_model(type(value)):
        return dump_model(value)
    if knows_pydantic(type(value)):
        return dump(value)
    raise TypeError(f"object of type {type(value).__name__}")


_CONVERSIONS: Mapping[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    bytearray: lambda value: bytearray.__getitem__(value, slice(None)),
    datetime: lambda value: datetime.combine(date(value.year, value.month, value.day), value.timetz()),
    date: lambda value: date(value.year, value.month, value.day),
    time: lambda value: time(
        value.hour, value.minute, value.second, value.microsecond, tzinfo=value.tzinfo, fold=value.fold
    ),
    timedelta: lambda value: timedelta(value.days, value.seconds, value.microseconds),
    Decimal: Decimal,
}
PLAIN = msgspec.json.Encoder(enc_hook=_as_builtin)
SORTED = msgspec.json.Encoder(enc_hook=_as_builtin, order="sorted")


def first_line(error: BaseException) -> str:
    """Return the first line of what an exception says."""
    try:
        return str(error).partition("\n")[0]
    except Exception:
        return type(error).__name__
