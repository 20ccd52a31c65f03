"""Figures: how often runs and steps ended, and how long they took, by minute and by hour, all workers together."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from holdfast.clock import Instant

MINUTE: Instant = 60_000_000
HOUR: Instant = 60 * MINUTE
BOUNDS: tuple[Instant, ...] = tuple(1_024 << 2 * place for place in range(14))
"""How long, in microseconds, what is counted in each bucket took at most: about 1 ms in the first and about 19 h in the
last, each bound four times the one before. What took longer is in none of them."""

CLAIMED = "claimed"
"""In place of the outcome of a run: a worker took it, so long after it was due."""


class Figure(NamedTuple):
    """What happened in the minute that begins at `start`: so often, and so many microseconds in all.

    Without a step it is about runs: how they ended, from their start to their end, or how long they were due before a
    worker claimed them.
    """

    start: Instant
    workflow: str
    step: str
    outcome: str
    """Of a run: completed, failed, cancelled, or CLAIMED. Of an attempt: its step completed or failed for good with it,
    it raised and another follows (retried), or nothing came of it (lost)."""
    n: int
    total: int
    buckets: tuple[int, ...]
    """Of BOUNDS, how many took at most that long and longer than the bound before."""


class FigureFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which figures to add up: those of minutes or hours (`span`) that begin in [since, until).

    By step: of attempts, for each workflow, step and outcome. By workflow: of runs, for each workflow and outcome. By
    time: of runs, for each `slot` (whole spans, counted from the epoch) and outcome.
    """

    since: Instant
    until: Instant
    workflow: str | None = None
    by: Literal["step", "workflow", "time"] = "step"
    span: Instant = HOUR
    slot: Instant = HOUR


class FigurePage(msgspec.Struct, frozen=True, kw_only=True):
    """Figures that were added up; `since` is from when on that is all of them, later than asked for if `partial`."""

    rows: list[Figure]
    since: Instant
    partial: bool = False
