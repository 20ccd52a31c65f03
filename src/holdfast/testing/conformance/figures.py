"""Figures: what workers counted is added up by minute and by hour, and goes when it is old."""

from __future__ import annotations

import asyncio

from holdfast.contract.figures import BOUNDS, HOUR, MINUTE, Figure, FigureFilter
from holdfast.contract.operations import Done, Purge
from holdfast.contract.store import Store
from holdfast.testing.conformance.samples import Another, one

DAY = 24 * HOUR
MIDNIGHT = 20_000 * DAY
NONE = (0,) * len(BOUNDS)


def figure(
    step: str = "charge",
    outcome: str = "completed",
    *,
    at: int = MIDNIGHT,
    workflow: str = "order",
    n: int = 1,
    total: int = 1_000,
    bucket: int = 0,
) -> Figure:
    """Return what a worker counted."""
    return Figure(at, workflow, step, outcome, n, total, (*NONE[:bucket], n, *NONE[bucket + 1 :]))


async def read(store: Store, by: str = "step", *, workflow: str | None = None, **fields: int) -> list[Figure]:
    """Return the figures of a day, unless said otherwise."""
    asked = {"since": MIDNIGHT, "until": MIDNIGHT + DAY, **fields}
    page = await store.figures(FigureFilter(by=by, workflow=workflow, **asked))  # type: ignore[arg-type]  # a Literal
    assert not page.partial
    assert page.since == asked["since"]
    return page.rows


class FigureConformance:
    """What is counted by many and read by few."""

    async def test_what_several_workers_count_in_one_minute_is_added(self, store: Store) -> None:
        assert await read(store) == []
        await store.add_figures([figure(n=2, total=900, bucket=0), figure(outcome="failed", bucket=3)])
        await store.add_figures([figure(n=1, total=5_000, bucket=2)])
        added = Figure(0, "order", "charge", "completed", 3, 5_900, (2, 0, 1, *NONE[3:]))
        assert await read(store) == [added, figure(outcome="failed", at=0, bucket=3)]
        assert await read(store, span=MINUTE) == [added, figure(outcome="failed", at=0, bucket=3)]

    async def test_workers_may_add_to_the_same_minutes_at_the_same_time(self, store: Store, another: Another) -> None:
        beside = await another()
        names = [f"step-{number}" for number in range(20)]
        forth = [figure(name, at=MIDNIGHT + MINUTE * place) for place in range(3) for name in names]
        for _ in range(5):
            await asyncio.gather(store.add_figures(forth), beside.add_figures(forth[::-1]))
        found = await read(store)
        assert {row.step: row.n for row in found} == dict.fromkeys(names, 30)
        assert {row.n for row in await read(store, span=MINUTE, until=MIDNIGHT + MINUTE)} == {10}

    async def test_figures_of_one_batch_for_one_minute_are_added(self, store: Store) -> None:
        await store.add_figures([figure(), figure(n=4), figure(at=MIDNIGHT + 59 * MINUTE)])
        assert [row.n for row in await read(store)] == [6]
        assert [row.n for row in await read(store, span=MINUTE, until=MIDNIGHT + MINUTE)] == [5]

    async def test_runs_are_told_apart_from_steps_by_workflow_and_by_time(self, store: Store) -> None:
        await store.add_figures(
            [
                figure("", at=MIDNIGHT),
                figure("", "failed", at=MIDNIGHT + 61 * MINUTE),
                figure("", at=MIDNIGHT + 119 * MINUTE, workflow="refund", n=3, bucket=5),
                figure("", "claimed", at=MIDNIGHT + 61 * MINUTE),
                figure("charge"),
            ]
        )
        assert [(row.workflow, row.outcome, row.n) for row in await read(store, "workflow")] == [
            ("order", "claimed", 1),
            ("order", "completed", 1),
            ("order", "failed", 1),
            ("refund", "completed", 3),
        ]
        assert [(row.start, row.outcome, row.n) for row in await read(store, "time")] == [
            (MIDNIGHT, "completed", 1),
            (MIDNIGHT + HOUR, "claimed", 1),
            (MIDNIGHT + HOUR, "completed", 3),
            (MIDNIGHT + HOUR, "failed", 1),
        ]
        in_a_day = await read(store, "time", slot=DAY)
        assert [(row.start, row.outcome, row.n) for row in in_a_day] == [
            (MIDNIGHT, "claimed", 1),
            (MIDNIGHT, "completed", 4),
            (MIDNIGHT, "failed", 1),
        ]
        assert in_a_day[1].buckets == (1, 0, 0, 0, 0, 3, *NONE[6:])
        assert [row.n for row in await read(store, "time", slot=DAY, workflow="refund")] == [3]
        assert [row.n for row in await read(store, workflow="refund")] == []

    async def test_a_range_has_its_first_instant_and_not_its_last(self, store: Store) -> None:
        await store.add_figures([figure("a"), figure("b", at=MIDNIGHT + HOUR), figure("c", at=MIDNIGHT + 2 * HOUR)])
        found = await read(store, since=MIDNIGHT, until=MIDNIGHT + 2 * HOUR)
        assert [row.step for row in found] == ["a", "b"]

    async def test_minutes_go_before_hours_a_few_at_a_time(self, store: Store) -> None:
        await store.add_figures(
            [figure(step, at=MIDNIGHT + place * MINUTE) for step in ("", "charge") for place in range(4)]
        )
        purge = Purge(what="minutes", before=MIDNIGHT + 3 * MINUTE, at=MIDNIGHT + DAY, limit=5)
        assert [(await one(store, purge, Done)).count for _ in range(3)] == [5, 1, 0]
        assert [row.n for row in await read(store, span=MINUTE)] == [1]
        assert [row.n for row in await read(store)] == [4]
        assert [row.n for row in await read(store, "workflow")] == [4]
        purge = Purge(what="hours", before=MIDNIGHT + HOUR, at=MIDNIGHT + DAY)
        assert (await one(store, purge, Done)).count == 2
        assert await read(store) == []
