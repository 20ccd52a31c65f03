"""Whether a document is as its JSON Schema says: the part of JSON Schema that records are described with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip
_KNOWN = {
    "$schema", "$id", "$defs", "$ref", "title", "description", "type", "properties", "required", "items", "anyOf",
    "enum", "const", "default", "format", "additionalProperties", "minimum", "maximum",
}  # fmt: skip


def faults(document: Any, schema: dict[str, Any], whole: dict[str, Any] | None = None, at: str = "$") -> Iterator[str]:
    """Yield what is wrong with a document: also fields that its schema does not name."""
    whole = whole if whole is not None else schema
    assert schema.keys() <= _KNOWN, f"{schema.keys() - _KNOWN} is not understood here"
    if "$ref" in schema:
        yield from faults(document, whole["$defs"][schema["$ref"].removeprefix("#/$defs/")], whole, at)
        return
    if "anyOf" in schema:
        tried = [[*faults(document, each, whole, at)] for each in schema["anyOf"]]
        yield from [] if not all(tried) else min(tried, key=len)
        return
    if "const" in schema and document != schema["const"]:
        yield f"{at} is {document!r}, not {schema['const']!r}"
    if "enum" in schema and document not in schema["enum"]:
        yield f"{at} is {document!r}, none of {schema['enum']}"
    kind = schema.get("type")
    if kind is not None and (not isinstance(document, _TYPES[kind]) or (kind != "boolean" and document is True)):
        yield f"{at} is {document!r}, no {kind}"
        return
    if isinstance(document, dict) and kind == "object":
        yield from _of_object(document, schema, whole, at)
    if isinstance(document, list) and "items" in schema:
        for number, each in enumerate(document):
            yield from faults(each, schema["items"], whole, f"{at}[{number}]")


def _of_object(document: dict[str, Any], schema: dict[str, Any], whole: dict[str, Any], at: str) -> Iterator[str]:
    properties, more = schema.get("properties", {}), schema.get("additionalProperties", "properties" not in schema)
    yield from (f"{at} has no {name}" for name in schema.get("required", ()) if name not in document)
    for name, value in document.items():
        if name in properties:
            yield from faults(value, properties[name], whole, f"{at}.{name}")
        elif isinstance(more, dict):
            yield from faults(value, more, whole, f"{at}.{name}")
        elif not more:
            yield f"{at} has {name}, of which its schema says nothing"
