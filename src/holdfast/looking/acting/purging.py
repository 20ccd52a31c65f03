"""Deleting old records at a desk: by kind and age, counted first."""

from __future__ import annotations

import msgspec

from holdfast.engine.engine import Engine
from holdfast.errors import BadInput
from holdfast.looking.acting.requests import PurgeRequest


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """How many of each kind were deleted, or, of a dry run, would be; `finished` False if there are more."""

    dry_run: bool
    counts: dict[str, int]
    finished: bool


async def purge(engine: Engine, request: PurgeRequest, by: str, reason: str, dry_run: bool) -> PurgeReport:
    """Delete what is old enough of each kind, or count it.

    Raises:
        BadInput: no kind is named.
    """
    if not request.kinds:
        raise BadInput("say what to purge: completed, failed, cancelled, letters, seen_letters or events")
    counts, finished = dict[str, int](), True
    for kind in dict.fromkeys(request.kinds):
        counts[kind], more = await engine.purging.purge(
            kind, older_than=request.older_than, limit=request.limit, dry_run=dry_run, by=by, reason=reason
        )
        finished = finished and not more
    return PurgeReport(dry_run=dry_run, counts=counts, finished=finished)
