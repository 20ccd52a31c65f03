"""Requests for acts, besides the actor, and what a reveal shows: records, the same for every face."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from holdfast.ops.purging import PurgeKind
from holdfast.schedules.times import CatchUp, Overlap

WorkKind = Literal["workflow", "queue", "limit"]


class StartRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run to start, with the options of `Engine.start`; arguments go by name."""

    workflow: str
    arguments: dict[str, Any] = {}
    id: str | None = None
    unique_key: str | None = None
    on_conflict: Literal["raise", "return"] = "raise"
    delay: timedelta | None = None
    start_at: datetime | None = None
    timeout: timedelta | None = None
    priority: int = 0
    attributes: dict[str, Any] | None = None
    tenant: str | None = None


class ScheduleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule to put, with the options of `engine.schedules.put`; arguments of its runs go by name."""

    workflow: str
    arguments: dict[str, Any] | None = {}
    """None to leave those of the schedule that has the id: a face may not show them whole."""
    cron: str | None = None
    every: timedelta | None = None
    timezone: str = "UTC"
    jitter: timedelta = timedelta(0)
    catch_up: CatchUp = "latest"
    overlap: Overlap = "skip"
    starting: datetime | None = None
    until: datetime | None = None


class PurgeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to delete: of these kinds, what is older than that. Runs that have not ended are never touched.

    Runs count from their end, dead letters and queued events from when they were put there. `letters` are those that no
    person has seen, too; `seen_letters` those that were acknowledged or replayed.
    """

    kinds: list[PurgeKind]
    older_than: timedelta
    limit: int = 10_000
    """At most so many of each kind at once; the report says whether there are more."""


class RevealRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value of a run that a person wants to see as it is stored, once."""

    field: Literal[
        "input", "output", "error", "compensation", "attributes", "result", "progress", "arguments", "fact", "message"
    ]
    """Of the run; `result`, `progress` and `arguments` of a step, `fact` of its history, `message` of its inbox."""
    step: str = ""
    """The path of the step."""
    n: int = 0
    """The number of the fact, or of the message."""
    pointer: str = ""
    """Where it stands in the payload, as a JSON pointer: `/card/number`; empty for all of it."""


class RevealedView(msgspec.Struct, frozen=True, kw_only=True):
    """A value of a run as it is stored."""

    run: str
    field: str
    step: str = ""
    n: int = 0
    pointer: str = ""
    value: Any = None
