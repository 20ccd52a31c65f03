"""Payloads to JSON text and back, errors to data and back.

What is encoded comes back equal when decoded with its type; whatever would not is refused before anything is written.
JSON never names a class to import: types come from the caller's annotations, exceptions from builtins and a registry.
"""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from math import isfinite
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec.inspect import CustomType, Field, Type, type_info

from holdfast import errors
from holdfast.errors import (
    DefinitionError,
    NaiveDatetime,
    NotSerializable,
    NumberTooLong,
    PayloadTooLarge,
    StepFailed,
    TooDeep,
    UndecodablePayload,
)

MAX_BYTES = 2_097_152
MAX_DEPTH = 64
MAX_DIGITS = 4300


def encode(value: object, where: str = "value") -> bytes:
    """Return the JSON text of a value; `where` names it in errors, as in "result of step 'fetch'".

    A pydantic model is written by its own serializer, by field name.

    Raises:
        NotSerializable: the value would not come back equal; `path` says which part of it.
    """
    if not _is_scalar(value):
        _check(value, where)
    return _write(_PLAIN, value, where)


def decode(data: bytes | str, type: Any = Any, where: str = "value") -> Any:
    """Return the value of a JSON text, of the type asked for; `Any` gives plain JSON types.

    Raises:
        UndecodablePayload: the text is malformed or does not fit the type.
        TooDeep: the text is nested too deeply to read.
        NumberTooLong: an integer above the limit.
        DefinitionError: no JSON text could ever be decoded to that type.
    """
    try:
        return _decoder_of(type).decode(data)
    except _DECODE_ERRORS as error:
        raise _undecodable(error, where) from error


def decoder(type: Any = Any, where: str = "value") -> Callable[[bytes | str], Any]:
    """Return `decode` bound to a type, for paths that decode it often; an impossible type is refused here."""
    read = _decoder_of(type).decode

    def bound(data: bytes | str) -> Any:
        try:
            return read(data)
        except _DECODE_ERRORS as error:
            raise _undecodable(error, where) from error

    return bound


def digest(value: object, where: str = "value") -> int:
    """Return a signed 64-bit digest of a value: equal for equal values in every process.

    The order of dict keys, record fields and set members does not count.

    Raises:
        NotSerializable: as `encode`.
    """
    return encode_with_digest(value, where)[1]


def encode_with_digest(value: object, where: str = "value") -> tuple[bytes, int]:
    """Return `encode` and `digest` of a value, checking it once.

    Raises:
        NotSerializable: as `encode`.
    """
    if _is_scalar(value):
        data = ordered = _write(_PLAIN, value, where)
    else:
        walk = _check(value, where)
        data = ordered = _write(_PLAIN, value, where)
        if walk.sets:
            ordered = _SORTED.encode(_sort_sets(value, _decoder_of(Any).decode(data)))
        elif walk.unordered:
            ordered = _SORTED.encode(value)
    return data, int.from_bytes(blake2b(ordered, digest_size=8).digest(), "big", signed=True)


class ErrorData(msgspec.Struct, frozen=True, kw_only=True):
    """An exception as data: what is stored, shown, and raised again.

    `type` is its qualified class name, `bases` the simple names of its class and base classes up to Exception, and
    `attributes` those of its own attributes that JSON carries unchanged.
    """

    type: str
    message: str
    args: list[Any] | None = None
    attributes: dict[str, Any] | None = None
    traceback: str = ""
    cause: ErrorData | None = None
    retryable: bool = True
    bases: list[str] = []


def qualified_name(cls: type) -> str:
    """Return `module.qualname` of a class, and the bare name of a builtin."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def error_to_data(exc: BaseException, *, retryable: bool = True) -> ErrorData:
    """Return an exception as encodable data; never raises, however broken the exception is."""
    return _error_to_data(exc, retryable, _MAX_CAUSES)


def error_from_data(data: ErrorData, registered: Mapping[str, type[BaseException]]) -> BaseException:
    """Return the exception to raise for stored data, with its causes.

    It has its own class if that is builtin, one of `holdfast.errors`, or in `registered` (by `qualified_name`);
    otherwise, or if an instance with that message cannot be made, it is a StepFailed. Nothing is imported.
    """
    exc = _rebuilt(data, registered) or StepFailed(data.type, data.message)
    if data.cause is not None:
        exc.__cause__ = error_from_data(data.cause, registered)
    return exc


# Exclusive bounds; msgspec reads back no more than 4,300 characters, of which the sign is one.
_LONGEST_INT = 10**MAX_DIGITS
_LONGEST_NEGATIVE_INT = -(10 ** (MAX_DIGITS - 1))
# The walk's size is at most twice the encoded size (a pydantic model is counted twice), so above this all hope is lost.
_HOPELESS_SIZE = 2 * MAX_BYTES


def _is_scalar(value: Any) -> bool:
    kind = type(value)
    return (
        kind is str
        or value is None
        or kind is bool
        or (kind is int and _LONGEST_NEGATIVE_INT < value < _LONGEST_INT)
        or (kind is float and isfinite(value))
    )


def _write(encoder: msgspec.json.Encoder, value: object, where: str) -> bytes:
    try:
        data = encoder.encode(value)
    except Exception as error:
        _check(value, where)
        raise NotSerializable(f"{error} at $ in {where}") from error
    if len(data) > MAX_BYTES:
        raise PayloadTooLarge(f"{len(data):,} > {MAX_BYTES:,} at {where}")
    return data


def _check(value: object, where: str, depth: int = 0) -> _Walk:
    walk = _Walk()
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


class _Walk:
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
        elif (fields := _record_fields(kind)) is not None:
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
        elif _is_model(kind):
            self.model(value, kind, depth)
        elif not isinstance(value, UUID | date | timedelta) and not self.lenient:
            raise _Refused(NotSerializable, f"object of type {kind.__name__}")

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
        self.record(value, _model_fields(kind) + tuple((name, name) for name in extra), depth)
        self.lenient = outer
        if not outer:
            try:
                plain = _dump_model(value)
            except Exception as error:
                raise _Refused(NotSerializable, f"{kind.__name__} ({_first_line(error)})") from error
            self.visit(plain, depth)


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
def _record_fields(kind: type) -> tuple[tuple[str, str], ...] | None:
    """Return the attributes of a record class and their names in JSON; None for any other class."""
    if issubclass(kind, msgspec.Struct):
        return tuple(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    if dataclasses.is_dataclass(kind):
        return tuple((field.name, field.name) for field in dataclasses.fields(kind))
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else tuple((field.name, field.name) for field in attributes)


def _is_model(kind: type) -> bool:
    return hasattr(kind, "__pydantic_serializer__") and hasattr(kind, "model_dump")


@lru_cache(maxsize=4096)
def _model_fields(kind: Any) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in kind.model_fields)


def _dump_model(value: Any) -> Any:
    return value.model_dump(mode="json", by_alias=False, round_trip=True)


def _as_builtin(value: Any) -> Any:
    """Return what msgspec can write of a value it does not know; the walk has let it pass."""
    for kind, convert in _CONVERSIONS.items():
        if isinstance(value, kind):
            return convert(value)
    if _is_model(type(value)):
        return _dump_model(value)
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
_PLAIN = msgspec.json.Encoder(enc_hook=_as_builtin)
_SORTED = msgspec.json.Encoder(enc_hook=_as_builtin, order="sorted")


def _sort_sets(value: Any, plain: Any) -> Any:
    """Return `plain`, the JSON of `value`, with every array that stands for a set in the order of its members' JSON.

    msgspec sorts the members themselves, which fails for mixed types and means nothing for frozensets.
    """
    if isinstance(value, Enum):
        return _sort_sets(value.value, plain)
    if isinstance(value, set | frozenset | list | tuple) and isinstance(plain, list) and len(value) == len(plain):
        items = [_sort_sets(item, part) for item, part in zip(value, plain, strict=True)]
        return sorted(items, key=_SORTED.encode) if isinstance(value, set | frozenset) else items
    if isinstance(value, dict) and isinstance(plain, dict) and len(value) == len(plain):
        return {key: _sort_sets(item, plain[key]) for key, item in zip(plain, value.values(), strict=True)}
    kind: type = type(value)
    fields = _model_fields(kind) if _is_model(kind) else _record_fields(kind)
    if fields and isinstance(plain, dict):
        present = [(attribute, name) for attribute, name in fields if name in plain]
        return plain | {name: _sort_sets(getattr(value, attribute), plain[name]) for attribute, name in present}
    if fields and isinstance(plain, list):
        tag = plain[: len(plain) - len(fields)]
        parts = zip(fields, plain[len(tag) :], strict=True)
        return tag + [_sort_sets(getattr(value, attribute), part) for (attribute, _), part in parts]
    return plain


_DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)


def _decoder_of(type: Any) -> msgspec.json.Decoder[Any]:
    try:
        return _cached_decoder(type)
    except TypeError:  # an unhashable type, such as Annotated[int, []]
        return _new_decoder(type)


def _new_decoder(type: Any) -> msgspec.json.Decoder[Any]:
    if isinstance(type, TypeVar) or (not inspect.isclass(type) and getattr(type, "__parameters__", None)):
        raise _undecodable_type(type, "it has a free type variable")
    try:
        made = msgspec.json.Decoder(type, dec_hook=_from_plain)
        unknown = [kind for kind in _custom_types(type_info(type), set()) if kind is not object and not _is_model(kind)]
    except Exception as error:
        raise _undecodable_type(type, str(error)) from error
    if unknown:
        raise _undecodable_type(type, f"{qualified_name(unknown[0])} has no fields that JSON could fill")
    return made


_cached_decoder = lru_cache(maxsize=1024)(_new_decoder)


def _undecodable_type(type: Any, reason: str) -> DefinitionError:
    shown = qualified_name(type) if inspect.isclass(type) else repr(type)
    return DefinitionError(
        f"{shown} cannot be decoded from JSON: {reason}; use a dataclass, msgspec.Struct, pydantic model, TypedDict or "
        "plain JSON types, and for a union of records a tagged Struct union: class A(msgspec.Struct, tag=True)"
    )


def _custom_types(info: object, seen: set[int]) -> Iterator[type]:
    if isinstance(info, CustomType):
        yield info.cls
    elif isinstance(info, tuple):
        for part in info:
            yield from _custom_types(part, seen)
    elif isinstance(info, Type | Field) and id(info) not in seen:
        seen.add(id(info))
        for name in info.__struct_fields__:
            yield from _custom_types(getattr(info, name), seen)


def _from_plain(type: Any, plain: Any) -> Any:
    if type is object:
        return plain
    try:
        # JSON mode, so that models in strict mode take datetimes and sets from what JSON has for them.
        return type.model_validate_json(msgspec.json.encode(plain), **_by_name(type))
    except ValueError as error:
        raise ValueError(_model_complaint(error)) from error


@lru_cache(maxsize=4096)
def _by_name(model: Any) -> dict[str, bool]:
    """Return the arguments that make a model read what `_dump_model` wrote, beside its aliases."""
    known = "by_name" in inspect.signature(model.model_validate_json).parameters
    return {"by_alias": True, "by_name": True} if known else {}


def _model_complaint(error: Any) -> str:
    try:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{first['msg']} ({error.title}.{'.'.join(str(part) for part in first['loc'])})"
    except Exception:
        return _first_line(error)


def _undecodable(error: Exception, where: str) -> Exception:
    if isinstance(error, RecursionError):
        return TooDeep(f"nested deeper than {MAX_DEPTH} in {where}")
    if isinstance(error, UnicodeError):
        return UndecodablePayload(f"{where}: invalid Unicode: {error}")
    reason, _, path = str(error).partition(" - at `")
    path = path.rstrip("`") or "$"
    if reason == "Integer value out of range":
        return NumberTooLong(f"integer above {MAX_DIGITS:,} digits at {path} in {where}", path)
    if isinstance(error, msgspec.ValidationError):
        return UndecodablePayload(f"{where}: {reason} at {path}")
    return UndecodablePayload(f"{where}: {reason}")


_MAX_CAUSES = 5
_MAX_TEXT = 8192
_MAX_ARGS = 65_536
_MAX_FRAMES = 64
# Levels kept free for the causes and for the record that will hold the error.
_ARGS_DEPTH = 16
# What a step may never throw into a workflow: they end the interpreter, a generator or a coroutine instead.
_NEVER_RAISED = (StopIteration, StopAsyncIteration)


def _error_to_data(exc: BaseException, retryable: bool, causes: int) -> ErrorData:
    kind = type(exc)
    cause = _cause_of(exc) if causes else None
    args, attributes = _state_of(exc)
    message = _message_of(exc)
    name = _clean(qualified_name(kind))
    return ErrorData(
        type=name,
        message=message,
        args=args,
        attributes=attributes or None,
        traceback=_traceback_of(exc, f"{name}: {message[:1024]}" if message else name),
        cause=None if cause is None else _error_to_data(cause, True, causes - 1),
        retryable=retryable,
        bases=[_clean(base.__name__) for base in kind.__mro__ if base not in (BaseException, object)],
    )


def _cause_of(exc: BaseException) -> BaseException | None:
    if exc.__cause__ is not None:
        return exc.__cause__
    if exc.__context__ is not None and not exc.__suppress_context__:
        return exc.__context__
    return exc.exceptions[0] if isinstance(exc, BaseExceptionGroup) else None


def _message_of(exc: BaseException) -> str:
    try:
        text = str(exc)
        if isinstance(exc, BaseExceptionGroup):
            members = "; ".join(f"{type(member).__name__}: {_message_of(member)}" for member in exc.exceptions[:10])
            text = f"{text}: {members}"
        return _clean(text)
    except Exception as error:
        return f"<unprintable {_clean(type(exc).__name__)}: its __str__ raised {type(error).__name__}>"


def _state_of(exc: BaseException) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """Return the arguments that make the exception again and the attributes set on it besides, as far as JSON goes."""
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
    return _small_json(list(args)) if isinstance(args, tuple) else None, _small_json(kept)


def _is_own_attribute(name: object) -> bool:
    return isinstance(name, str) and not name.startswith("_") and not hasattr(BaseException, name)


def _small_json(value: object) -> Any:
    try:
        _check(value, "error", _ARGS_DEPTH)
        data = _write(_PLAIN, value, "error")
        return decode(data) if len(data) <= _MAX_ARGS else None
    except Exception:
        return None


def _traceback_of(exc: BaseException, last_line: str) -> str:
    try:
        frames = "".join(traceback.format_tb(exc.__traceback__, limit=-_MAX_FRAMES))
    except Exception as error:
        frames = f"  <no frames: {type(error).__name__}>\n"
    return _clean(frames + last_line, keep_end=True)


def _clean(text: str, keep_end: bool = False) -> str:
    """Return a text of at most `_MAX_TEXT` bytes that JSON can carry."""
    data = text.encode("utf-8", "replace")
    if len(data) <= _MAX_TEXT:
        return data.decode()
    room = _MAX_TEXT - 4
    if keep_end:
        return "...\n" + data[-room:].decode("utf-8", "ignore")
    return data[:room].decode("utf-8", "ignore") + " ..."


def _rebuilt(data: ErrorData, registered: Mapping[str, type[BaseException]]) -> BaseException | None:
    cls = registered.get(data.type) or _known_class(data.type)
    if cls is None:
        return None
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


def _known_class(name: str) -> type[BaseException] | None:
    module, _, simple = name.rpartition(".")
    scope = {"": builtins, errors.__name__: errors}.get(module)
    found = vars(scope).get(simple) if scope else None
    known = isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, _NEVER_RAISED)
    return found if known else None


def _first_line(error: BaseException) -> str:
    return _message_of(error).partition("\n")[0]
