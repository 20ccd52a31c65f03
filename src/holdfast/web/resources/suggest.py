"""Completions of the filter language, and the names that they are made of."""

from __future__ import annotations

import msgspec

from holdfast.web.resources.house import ListView
from holdfast.web.routing import ApiAnswer, ApiCall, Nothing


class PrefixQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How names begin."""

    prefix: str = ""


class ValuesQuery(PrefixQuery, frozen=True, kw_only=True):
    """Which values of an attribute."""

    name: str


class SuggestQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A filter, and where in it a person writes."""

    q: str = ""
    at: int | None = None
    """How many characters stand before the cursor; at its end if it is not said."""


async def suggest(call: ApiCall) -> ApiAnswer:
    found = await call.desk.suggest(call.query.q, call.query.at)
    shown = [
        each for each in found.items if each.kind != "value" or not call.redaction.hides(each.text.partition("=")[0])
    ]
    return ApiAnswer(msgspec.structs.replace(found, items=shown))


async def workflows(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView[str](await call.desk.workflows(call.query.prefix)))


async def attributes(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView[str](await call.desk.attributes(call.query.prefix)))


async def values(call: ApiCall) -> ApiAnswer:
    name, prefix = call.query.name, call.query.prefix
    return ApiAnswer(
        ListView[str]([] if call.redaction.hides(name) else await call.desk.attribute_values(name, prefix))
    )
