"""The inputs of workflows as JSON Schema, from which a face can make a form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from holdfast.definitions import Registry


class InputView(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow whose code is at hand, and the JSON Schema of its arguments by name.

    The schema is empty where a type has none: then any arguments are tried.
    """

    workflow: str
    version: str
    schema: dict[str, Any]


def input_views(code: Registry | None) -> list[InputView]:
    """Return what the workflows at hand take, by name."""
    found: list[InputView] = []
    for name in sorted(code.names()) if code is not None else []:
        assert code is not None
        workflow = code.get(name)
        found.append(InputView(workflow=name, version=workflow.version, schema=_schema(workflow.input_type)))
    return found


def _schema(kind: Any) -> dict[str, Any]:
    """Return the schema of arguments, with what it refers to inside."""
    try:
        [described], parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    except (TypeError, NameError):  # a type that JSON Schema cannot say, or that is not defined here
        return {}
    name = described.get("$ref", "").rpartition("/")[2]
    return {**parts.pop(name, described), **({"$defs": parts} if parts else {})}
