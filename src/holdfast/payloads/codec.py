"""Payloads to JSON text and back.

An encoded value comes back equal when decoded with its type; a value that would not is refused before any write.
JSON never names a class to import: types come from the caller's annotations, exceptions from builtins and a registry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.inspect import CustomType, Field, Type, type_info

from holdfast.errors import BadInput, DefinitionError, NumberTooLong, TooDeep, UndecodablePayload
from holdfast.payloads.encodable import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_DIGITS,
    PLAIN,
    SORTED,
    adapter_of,
    check,
    first_line,
    is_model,
    is_scalar,
    model_fields,
    record_fields,
    write,
)
from holdfast.payloads.errors import ErrorData, error_from_data, error_to_data, qualified_name

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_DIGITS",
    "ErrorData",
    "decode",
    "decoder",
    "digest",
    "encode",
    "encode_named",
    "encode_record",
    "encode_with_digest",
    "error_from_data",
    "error_to_data",
    "qualified_name",
    "scalar_digest",
]


def encode(value: object, where: str = "value") -> bytes:
    """Return the JSON text of a value; `where` names it in errors, as in "result of step 'fetch'".

    A pydantic model is written by its own serializer, by field name.

    Raises:
        NotSerializable: the value would not come back equal; `path` says which part of it.
    """
    kind = type(value)
    if kind is str or value is None or kind is bool or (kind is int and -_FAR < value < _FAR):  # type: ignore[operator]
        try:
            data = PLAIN.encode(value)
        except UnicodeError:
            return write(PLAIN, value, where)  # which says what is wrong
        if len(data) <= MAX_BYTES:
            return data
    elif not is_scalar(value):
        check(value, where)
    return write(PLAIN, value, where)


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


def readable(text: str) -> Any:
    """Return stored JSON to be shown: a text that is none stands for itself, nothing for None."""
    if not text:
        return None
    try:
        return decode(text)
    except BadInput:
        return text


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


def _are_plain(values: Iterable[object]) -> bool:
    """Tell whether values are texts, numbers, truths and Nones: these need no walk to be checked and no copy."""
    for value in values:
        kind = type(value)
        if kind is not str and value is not None and kind is not bool and (kind is not int or not -_FAR < value < _FAR):  # type: ignore[operator]
            return False
    return True


def scalar_digest(values: tuple[object, ...]) -> int | None:
    """Return the digest of a tuple of plain texts, numbers, truths and Nones, None for any other.

    Most steps have such arguments, so all of it is done without a further call.
    """
    for value in values:
        kind = type(value)
        if kind is not str and value is not None and kind is not bool and (kind is not int or not -_FAR < value < _FAR):  # type: ignore[operator]
            return None
    try:
        data = PLAIN.encode(values)
    except UnicodeError:
        return None
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True) if len(data) <= MAX_BYTES else None


def encode_named(values: dict[str, object], where: str = "value") -> bytes:
    """Return `encode` of a dict; one of plain values alone, as most inputs are, needs no walk.

    Raises:
        NotSerializable: as `encode`.
    """
    if not _are_plain(values.values()):
        return encode(values, where)
    try:
        data = PLAIN.encode(values)
    except UnicodeError:
        return encode(values, where)  # which says what is wrong
    return data if len(data) <= MAX_BYTES else encode(values, where)


def encode_record(record: msgspec.Struct, where: str = "value") -> tuple[bytes, int]:
    """Return `encode_with_digest` of a record that was decoded; one of plain values alone needs no walk.

    Raises:
        NotSerializable: as `encode`.
    """
    if not _are_plain(msgspec.structs.astuple(record)):
        return encode_with_digest(record, where)
    return write(PLAIN, record, where), _digest_of(SORTED.encode(record))


def _digest_of(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True)


def encode_with_digest(value: object, where: str = "value") -> tuple[bytes, int]:
    """Return `encode` and `digest` of a value, checking it once.

    Raises:
        NotSerializable: as `encode`.
    """
    if is_scalar(value) or (type(value) is tuple and all(map(is_scalar, value))):
        data = ordered = write(PLAIN, value, where)
    else:
        walk = check(value, where)
        data = ordered = write(PLAIN, value, where)
        if walk.sets:
            ordered = SORTED.encode(_sort_sets(value, _decoder_of(Any).decode(data)))
        elif walk.unordered:
            ordered = SORTED.encode(value)
    return data, _digest_of(ordered)


def _sort_sets(value: Any, plain: Any) -> Any:
    """Return `plain`, the JSON of `value`, with every array that stands for a set in the order of its members' JSON.

    msgspec sorts the members themselves, which fails for mixed types and means nothing for frozensets.
    """
    if isinstance(value, Enum):
        return _sort_sets(value.value, plain)
    if isinstance(value, set | frozenset | list | tuple) and isinstance(plain, list) and len(value) == len(plain):
        items = [_sort_sets(item, part) for item, part in zip(value, plain, strict=True)]
        return sorted(items, key=SORTED.encode) if isinstance(value, set | frozenset) else items
    if isinstance(value, dict) and isinstance(plain, dict) and len(value) == len(plain):
        return {key: _sort_sets(item, plain[key]) for key, item in zip(plain, value.values(), strict=True)}
    kind: type = type(value)
    fields = model_fields(kind) if is_model(kind) else record_fields(kind)
    if fields and isinstance(plain, dict):
        present = [(attribute, name) for attribute, name in fields if name in plain]
        return plain | {name: _sort_sets(getattr(value, attribute), plain[name]) for attribute, name in present}
    if fields and isinstance(plain, list):
        tag = plain[: len(plain) - len(fields)]
        parts = zip(fields, plain[len(tag) :], strict=True)
        return tag + [_sort_sets(getattr(value, attribute), part) for (attribute, _), part in parts]
    return plain


_FAR = 1 << 63
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)


def _decoder_of(type: Any) -> Decodes:
    try:
        return _cached_decoder(type)
    except TypeError:  # an unhashable type, such as Annotated[int, []]
        return _new_decoder(type)


class Decodes(Protocol):
    """What reads JSON as one type."""

    def decode(self, data: bytes | str, /) -> Any:
        """Return the value."""
        ...


def _new_decoder(type: Any) -> Decodes:
    if isinstance(type, TypeVar) or (not inspect.isclass(type) and getattr(type, "__parameters__", None)):
        raise _undecodable_type(type, "it has a free type variable")
    refusal: Exception | None = None
    try:
        made = msgspec.json.Decoder(type, dec_hook=_from_plain)
        unknown = [kind for kind in _custom_types(type_info(type), set()) if kind is not object and not is_model(kind)]
        if not unknown:
            return made
        reason = f"{qualified_name(unknown[0])} has no fields that JSON could fill"
    except Exception as error:
        refusal, reason = error, str(error)
    adapter = adapter_of(type)
    if adapter is None:
        raise _undecodable_type(type, reason) from refusal
    return _Adapted(adapter)


class _Adapted:
    """Reads JSON by pydantic: unions of models, and other types that msgspec refuses."""

    def __init__(self, adapter: Any) -> None:
        self._read = adapter.validate_json
        self._names = _by_name(adapter.validate_json)

    def decode(self, data: bytes | str) -> Any:
        try:
            return self._read(data, **self._names)
        except ValueError as error:
            raise msgspec.ValidationError(_model_complaint(error)) from error


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
        return type.model_validate_json(msgspec.json.encode(plain), **_by_name(type.model_validate_json))
    except ValueError as error:
        raise ValueError(_model_complaint(error)) from error


@lru_cache(maxsize=4096)
def _by_name(validate: Any) -> dict[str, bool]:
    """Return the arguments that make pydantic read what `dump_model` wrote, beside aliases."""
    known = "by_name" in inspect.signature(validate).parameters
    return {"by_alias": True, "by_name": True} if known else {}


def _model_complaint(error: Any) -> str:
    try:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{first['msg']} ({error.title}.{'.'.join(str(part) for part in first['loc'])})"
    except Exception:
        return first_line(error)


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
