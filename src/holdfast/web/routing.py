"""What a route is: a method and a path, who may, what it takes and what it answers."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import tzinfo
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar, get_origin
from zoneinfo import ZoneInfo

import msgspec

from holdfast.contract.tokens import Role
from holdfast.looking.desk import Desk
from holdfast.looking.views import Acted
from holdfast.payloads.codec import MAX_DEPTH
from holdfast.web.auth import Principal
from holdfast.web.problems import Problem, misfit
from holdfast.web.redaction import Redaction

S = TypeVar("S", bound=msgspec.Struct)

SMALL_BODY = 64 << 10
LARGE_BODY = (2 << 20) + SMALL_BODY
"""How many bytes a body may have: of what carries a payload, that and a little more."""
_BRACKETS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[^"\[\]{}]++|([\[{])|[\]}]', re.DOTALL)
"""A text, what lies between, an opening or a closing bracket: each in one piece, however long, and tried once."""
_PART = re.compile(r"\{(\w+)\}")
_ID = r"[A-Za-z0-9._:@=+~-]+"


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class LongQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether long values are told whole."""

    cut: bool = False
    """Of values longer than 64 KiB only how many bytes they have and how they begin."""


class TellingQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How sentences say times."""

    relative: bool = False
    """As people read them, "in 38 s"; otherwise as instants."""
    zone: str = "UTC"
    """The time zone of filters and sentences, as Europe/Berlin."""


class LiveQuery(TellingQuery, frozen=True, kw_only=True):
    """Which views."""

    view: list[str]
    """runs?q=..., run/ID, counts, counts?q=..., letters, newest-letters?seen=..., workers, queues, limits, bulk/ID,
    schedules, events, audit, figures?by=..., versions, checks, doctor or database; several."""


class ApiCall(msgspec.Struct, frozen=True):
    """One request, read and checked."""

    desk: Desk
    who: Principal
    path: Mapping[str, str]
    query: Any
    body: Any
    headers: Mapping[str, str]
    redaction: Redaction
    root: str = ""
    """Where the application is mounted."""
    logs_url: str = ""


class ApiAnswer(msgspec.Struct, frozen=True):
    """What is answered."""

    value: Any = None
    status: int = 200
    headers: dict[str, str] = {}


Handler = Callable[[ApiCall], Awaitable[ApiAnswer]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of the API."""

    method: str
    path: str
    """Below /api/v1; `{id}` stands for one part of it."""
    handler: Handler
    answers: Any
    """The class of what is answered."""
    otherwise: Any = None
    """The class of what is answered instead if the parameters ask for it."""
    summary: str
    also: dict[int, Any] = {}
    """The class of what is answered with another status."""
    role: Role = "viewer"
    query: type[msgspec.Struct] = Nothing
    body: Any = None
    """The class of what it takes."""
    statuses: tuple[int, ...] = (200,)
    problems: tuple[int, ...] = ()
    """Statuses of errors beside those that any route may answer."""
    largest: int = SMALL_BODY

    @property
    def parts(self) -> list[str]:
        """The names in its path."""
        return _PART.findall(self.path)


def get(path: str, handler: Handler, answers: Any, summary: str, **more: Any) -> Route:
    """Return a route that only looks, for viewers unless it says otherwise."""
    return Route(method="GET", path=path, handler=handler, answers=answers, summary=summary, **more)


def act(method: str, path: str, handler: Handler, summary: str, **more: Any) -> Route:
    """Return a route that acts, for operators unless it says otherwise."""
    given: dict[str, Any] = {"answers": Acted, "role": "operator", **more}
    return Route(method=method, path=path, handler=handler, summary=summary, **given)


class FoundRoutes(msgspec.Struct, frozen=True):
    """The routes of a path, by method, and what stands in it."""

    routes: dict[str, Route]
    path: dict[str, str]


class RouteTable:
    """Routes, found by path."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self._by_pattern: dict[str, dict[str, Route]] = {}
        for route in routes:
            pattern = _PART.sub(lambda part: f"(?P<{part[1]}>[^/]+)", route.path)
            self._by_pattern.setdefault(pattern, {})[route.method] = route
        plain_first = sorted(self._by_pattern, key=lambda pattern: "(" in pattern)
        self._patterns = [(re.compile(pattern), self._by_pattern[pattern]) for pattern in plain_first]

    def find(self, path: str) -> FoundRoutes:
        """Return the routes of a path.

        Raises:
            Problem: 404 without any, 400 for an id that none can be.
        """
        for pattern, routes in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None:
                for name, value in match.groupdict().items():
                    if re.fullmatch(_ID, value) is None or len(value) > 255 or not value.strip("."):
                        raise Problem(
                            400,
                            "invalid-id",
                            f"the {name} in the path must be 1 to 255 characters of A-Z a-z 0-9 . _ : @ = + ~ - "
                            "and not only dots",
                            field=name,
                        )
                return FoundRoutes(routes, match.groupdict())
        raise Problem(404, "no-such-path", "there is nothing here; /api/v1/openapi.json says what there is")


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of parameters; msgspec reads their annotations each time it is asked."""
    return msgspec.structs.fields(kind)


def read_query(kind: type[S], pairs: list[tuple[str, str]]) -> S:
    """Return the parameters of a URL.

    Raises:
        Problem: 400 for one that there is none of, that is given twice or does not fit, naming it.
    """
    given: dict[str, Any] = {}
    several = {field.name for field in _fields(kind) if get_origin(field.type) is list}
    for name, value in pairs:
        if name in several:
            given.setdefault(name, []).append(value)
            continue
        if name in given:
            raise Problem(400, "bad-request", f"the parameter {name} is given twice", field=name)
        given[name] = value
    known = {field.encode_name: field.name for field in _fields(kind)}
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known) or 'none'}"
            raise Problem(400, "bad-request", f"there is no parameter {name[:60]!r} here; {hint}", field=name[:60])
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(400, "bad-request", f"a parameter does not fit: {error}") from None


def read_body(kind: Any, body: bytes) -> Any:
    """Return the body of a request.

    Raises:
        Problem: 400 for what is no JSON or would be read in two ways, 422 for what does not fit its schema.
    """
    value = read_json(body or b"{}")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Problem(422, "unprocessable", f"the body does not fit: {error}", errors=[misfit(error)]) from None


def read_json(body: bytes) -> Any:
    """Return a JSON text as plain values, with every key once and every number finite.

    Raises:
        Problem: 400, saying where.
    """
    depth = 0
    for match in _BRACKETS.finditer(body):
        if match[1] is not None:
            depth += 1
        elif body[match.start()] in b"]}":
            depth -= 1
        if depth > MAX_DEPTH:
            raise Problem(400, "bad-request", f"the body is nested deeper than {MAX_DEPTH}")
    try:
        text = body.decode("utf-8")
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise Problem(400, "bad-request", f"the body is no UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        at = len(text[: error.pos].encode("utf-8", "surrogatepass"))
        raise Problem(400, "bad-request", f"the body is no JSON at byte {at}: {error.msg}") from None
    except ValueError as error:
        said = "a number of the body is too long" if "digits" in str(error) else str(error)
        raise Problem(400, "bad-request", said) from None
    except RecursionError:
        raise Problem(400, "bad-request", f"the body is nested deeper than {MAX_DEPTH}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name[:60]!r} stands twice in one object of the body")
        found[name] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"the body has {name}, which is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:60]} of the body is too large")
    return value


def zone_of(name: str) -> tzinfo:
    """Return a time zone.

    Raises:
        Problem: 400, there is none of that name.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise Problem(
            400, "bad-input", f"there is no time zone {name[:60]!r}; write one as Europe/Berlin", field="zone"
        ) from None
