"""The description of the API in OpenAPI 3.1, made of the table of routes and the classes that it names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import inspect

from holdfast import __version__
from holdfast.web.problems import ProblemView
from holdfast.web.routing import Route

_REF = "#/components/schemas/{name}"
_ANY_ROUTE = (400, 401, 403, 405, 414, 421, 429, 431, 500, 503)
"""What every route may answer instead."""
_WITH_BODY = (408, 413, 415, 422)
_STREAMS = {"/live": "text/event-stream", "/audit/export": "application/x-ndjson"}
_FORMATS = {"DateTimeType": "date-time", "TimeDeltaType": "duration"}
_ID = {"type": "string", "pattern": "^[A-Za-z0-9._:@=+~-]{1,255}$"}


def openapi(routes: Sequence[Route], root: str) -> dict[str, Any]:
    """Return the description; `root` is where the application is mounted."""
    kinds: list[Any] = [ProblemView]
    for route in routes:
        kinds += [
            kind
            for kind in (route.answers, route.otherwise, route.body, route.query, *route.also.values())
            if kind is not None
        ]
    found, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    _add_formats(kinds, components)
    schemas = dict(zip(map(_name, kinds), found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "holdfast", "version": __version__},
        "servers": [{"url": f"{root}/api/v1"}],
        "security": [{"bearer": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "holdfast"},
            },
        },
    }


def _add_formats(kinds: list[Any], components: dict[str, Any]) -> None:
    """Say of texts that they are instants or durations, which msgspec leaves out where any time zone would do."""
    ahead: list[Any] = list(inspect.multi_type_info(kinds))
    seen: set[Any] = set()
    while ahead:
        info = ahead.pop()
        if isinstance(info, inspect.StructType):
            if info.cls in seen:
                continue
            seen.add(info.cls)
            properties = components.get(info.cls.__name__, {}).get("properties", {})
            for field in info.fields:
                ahead.append(field.type)
                _add_format(field.type, properties.get(field.encode_name, {}))
        elif isinstance(info, inspect.UnionType):
            ahead += info.types
        elif isinstance(info, inspect.ListType):
            ahead.append(info.item_type)
        elif isinstance(info, inspect.DictType):
            ahead.append(info.value_type)


def _add_format(info: Any, schema: dict[str, Any]) -> None:
    for each in info.types if isinstance(info, inspect.UnionType) else [info]:
        said = _FORMATS.get(type(each).__name__)
        for place in [schema, *schema.get("anyOf", [])] if said else []:
            if place.get("type") == "string":
                place["format"] = said


def _name(kind: Any) -> str:
    return repr(kind)


def _operation(route: Route, schemas: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    kind = _STREAMS.get(route.path, "application/json")
    answers: dict[str, Any] = {}
    for status in route.statuses:
        schema = schemas[_name(route.also.get(status, route.answers))]
        if route.otherwise is not None and status not in route.also:
            schema = {"anyOf": [schema, schemas[_name(route.otherwise)]]}
        content = {} if status in (204, 304) else {"content": {kind: {"schema": schema}}}
        answers[str(status)] = {"description": route.summary, **content}
    for status in sorted({*_ANY_ROUTE, *route.problems, *(_WITH_BODY if route.body is not None else ())}):
        problem = {"application/problem+json": {"schema": schemas[_name(ProblemView)]}}
        answers[str(status)] = {"description": "A problem", "content": problem}
    made: dict[str, Any] = {
        "summary": route.summary,
        "description": f"Needs the role {route.role}.",
        "operationId": f"{route.method.lower()}{route.path.replace('/', '_').replace('{', '').replace('}', '')}",
        "parameters": [
            *({"name": part, "in": "path", "required": True, "schema": _ID} for part in route.parts),
            *_parameters(schemas[_name(route.query)], components),
        ],
        "responses": answers,
    }
    if route.body is not None:
        body = {"application/json": {"schema": schemas[_name(route.body)]}}
        made["requestBody"] = {"required": True, "content": body}
    return made


def _parameters(reference: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    schema = components[reference["$ref"].rpartition("/")[2]]
    return [
        {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": what}
        for name, what in schema["properties"].items()
    ]
