"""Schedules: each tick starts its runs exactly once."""

from __future__ import annotations

import asyncio

from holdfast.contract.operations import (
    Committed,
    Done,
    DropSchedule,
    PauseSchedule,
    Purge,
    PutSchedule,
    Refused,
    RequestCancel,
    Tick,
)
from holdfast.contract.rows import ScheduleRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import RunOptions, StartRun
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    Another,
    claim,
    end,
    ended,
    new_run,
    one,
    optioned,
    row,
    started,
    turn,
    unread,
)


def schedule(id: str = "daily", next: int | None = NOW, *, paused: bool = False, at: int = NOW) -> PutSchedule:
    """Return the making of a schedule."""
    return PutSchedule(id=id, workflow="order", spec="{}", input="1", next=next, paused=paused, at=at)


def tick(number: int = 0, overlap: str = "allow", *, runs: int = 1, **fields: object) -> Tick:
    """Return the tick of a number: one a second."""
    at = NOW + number * SECOND
    names = [f"daily-{number}" + (f".{n}" if n else "") for n in range(runs)]
    return Tick(
        schedule="daily", expected=at, next=at + SECOND, at=at, overlap=overlap,
        runs=[new_run(name, at=at) for name in names], **fields,  # type: ignore[arg-type]  # its fields
    )  # fmt: skip


class ScheduleConformance:
    """Schedules and their ticks."""

    async def test_a_schedule_is_made_changed_and_dropped(self, store: Store) -> None:
        """S0-54."""
        assert await one(store, schedule(), Done) == Done(1)
        row_then = ScheduleRow(
            id="daily", workflow="order", spec="{}", input="1", next=NOW, paused=False, last_run=None, created=NOW,
            updated=NOW,
        )  # fmt: skip
        assert await store.schedules() == [row_then]
        await store.apply([tick(), schedule(next=NOW + 5 * SECOND, at=NOW + 9), schedule("a", None)])
        [first, second] = await store.schedules()
        assert first.id == "a"
        assert (second.next, second.last_run, second.created, second.updated) == (
            NOW + 5 * SECOND, "daily-0", NOW, NOW + 9,
        )  # fmt: skip
        drop = DropSchedule(id="daily", at=NOW)
        assert await store.apply([drop, drop]) == [Done(1), Refused(None)]
        assert [found.id for found in await store.schedules()] == ["a"]
        assert (await row(store, "daily-0")).status is Status.PENDING

    async def test_due_schedules_are_those_with_a_tick_that_are_not_paused(self, store: Store) -> None:
        await store.apply(
            [
                schedule("b", NOW + 2), schedule("a", NOW + 1), schedule("late", NOW + 3), schedule("never", None),
                schedule("paused", NOW, paused=True),
            ]
        )  # fmt: skip
        assert [found.id for found in await store.schedules(NOW + 2)] == ["a", "b"]
        assert await store.schedules(NOW) == []
        assert len(await store.schedules()) == 5

    async def test_a_tick_starts_its_runs_and_moves_the_schedule_on(self, store: Store) -> None:
        """S0-54: catching up, several at once; they are pending and due."""
        await one(store, schedule(), Done)
        names = ("daily-0", "daily-0.1", "daily-0.2")
        assert await one(store, tick(runs=3), Done) == Done(3, names)
        assert {(await row(store, name)).status for name in names} == {Status.PENDING}
        [found] = await store.schedules()
        assert (found.next, found.last_run) == (NOW + SECOND, "daily-0.2")
        await store.join("w", LEASE)
        assert len(await claim(store)) == 3

    async def test_a_tick_happens_once(self, store: Store) -> None:
        """S0-54: whoever comes second, in the batch or later, starts nothing."""
        await one(store, schedule(), Done)
        late = Tick(
            schedule="daily", expected=NOW, next=NOW + 9 * SECOND, runs=[new_run("other")], overlap="allow", at=NOW
        )
        assert await store.apply([tick(), late]) == [Done(1, ("daily-0",)), Refused(None, "tick")]
        assert await one(store, late, Refused) == Refused(None, "tick")
        assert await store.get("other") is None
        assert [found.next for found in await store.schedules()] == [NOW + SECOND]

    async def test_of_two_workers_one_has_the_tick(self, store: Store, another: Another) -> None:
        """S0-54: at the same time, through stores of their own."""
        other = await another()
        await one(store, schedule(), Done)
        for number in range(10):
            both = await asyncio.gather(store.apply([tick(number)]), other.apply([tick(number)]))
            assert sorted(type(outcome).__name__ for [outcome] in both) == ["Done", "Refused"]
        assert (await store.counts()).runs == {"pending": 10}

    async def test_a_paused_or_dropped_schedule_does_not_tick(self, store: Store) -> None:
        await one(store, schedule(paused=True), Done)
        assert await one(store, tick(), Refused) == Refused(None, "tick")
        await one(store, DropSchedule(id="daily", at=NOW), Done)
        assert await one(store, tick(), Refused) == Refused(None, "tick")
        assert (await store.counts()).runs == {}

    async def test_a_schedule_is_paused_and_goes_on_with_the_tick_it_is_given(self, store: Store) -> None:
        """S0-54: the rest of it stays as it is."""
        await store.apply([schedule(), tick()])
        pause = PauseSchedule(id="daily", paused=True, next=NOW + SECOND, at=NOW + 1)
        assert await one(store, pause, Done) == Done(1)
        assert await store.schedules(NOW + 9 * SECOND) == []
        assert await one(store, tick(1), Refused) == Refused(None, "tick")
        resume = PauseSchedule(id="daily", paused=False, next=NOW + 5 * SECOND, at=NOW + 2)
        assert await one(store, resume, Done) == Done(1)
        [found] = await store.schedules(NOW + 9 * SECOND)
        assert (found.next, found.paused, found.last_run, found.updated) == (
            NOW + 5 * SECOND,
            False,
            "daily-0",
            NOW + 2,
        )
        assert (found.workflow, found.spec, found.input, found.created) == ("order", "{}", "1", NOW)
        assert await one(store, tick(5), Done) == Done(1, ("daily-5",))
        assert await one(store, PauseSchedule(id="no", paused=True, next=None, at=NOW), Refused) == Refused(None)

    async def test_a_tick_without_runs_moves_the_schedule_on(self, store: Store) -> None:
        """S0-54: what was missed may be left out; what comes after the last tick is nothing."""
        await one(store, schedule(), Done)
        last = Tick(schedule="daily", expected=NOW, next=None, runs=[], overlap="skip", at=NOW)
        assert await one(store, last, Done) == Done(0)
        [found] = await store.schedules()
        assert (found.next, found.last_run) == (None, None)
        assert await store.schedules(NOW + 1000 * SECOND) == []

    async def test_ids_that_are_taken_are_left_out(self, store: Store) -> None:
        """G2: a tick whose worker died after the start does not start it twice."""
        await store.apply([schedule(), StartRun(run=new_run("daily-0.1"))])
        assert await one(store, tick(runs=3), Done) == Done(2, ("daily-0", "daily-0.2"))

    async def test_a_run_whose_unique_key_is_held_is_left_out(self, store: Store) -> None:
        """S0-17."""
        holder = await optioned(store, unique_key="k")
        run = new_run("daily-0", options=RunOptions(unique_key="k"))
        await one(store, schedule(), Done)
        operation = Tick(schedule="daily", expected=NOW, next=NOW + SECOND, runs=[run], overlap="allow", at=NOW)
        assert await one(store, operation, Done) == Done(0)
        assert (await row(store, holder.id)).status is Status.RUNNING

    async def test_ticks_overlap_as_they_are_told(self, store: Store) -> None:
        """S0-54: allow starts another; skip starts none while the last run is open; cancel asks the last to stop."""
        await store.apply([schedule(), tick(0)])
        await started(store)
        [first] = await claim(store)
        assert await one(store, tick(1, "skip"), Done) == Done(0)
        assert (await store.schedules())[0].next == NOW + 2 * SECOND
        assert (await store.schedules())[0].last_run == "daily-0"
        assert await one(store, tick(2, "allow"), Done) == Done(1, ("daily-2",))
        [second] = await claim(store, now=NOW + 9 * SECOND)
        cancel = RequestCancel(target="", at=NOW + 3 * SECOND)
        assert await one(store, tick(3, "cancel", cancel=cancel), Done) == Done(1, ("daily-3",))
        assert (await row(store, second.id)).status is Status.CANCELLING
        assert [told.kind for told in await unread(store, second.key)] == ["cancel"]
        assert (await row(store, first.id)).status is Status.RUNNING

    async def test_nothing_overlaps_a_run_that_has_ended(self, store: Store) -> None:
        """S0-54: nor one that is gone."""
        await store.apply([schedule(), tick(0)])
        await started(store)
        [first] = await claim(store)
        await one(store, turn(first.key, first.epoch, end=ended()), Committed)
        assert await one(store, tick(1, "skip"), Done) == Done(1, ("daily-1",))
        await end(store, await row(store, (await claim(store, now=NOW + 9 * SECOND))[0].id))
        purge = Purge(what="completed", before=NOW + 99 * SECOND, at=NOW)
        await one(store, purge, Done)
        cancel = RequestCancel(target="", at=NOW)
        assert await one(store, tick(2, "cancel", cancel=cancel), Done) == Done(1, ("daily-2",))

    async def test_a_run_that_never_began_is_cancelled_by_the_tick_that_overlaps_it(self, store: Store) -> None:
        await store.apply([schedule(), tick(0), tick(1, "cancel", cancel=RequestCancel(target="", at=NOW + SECOND))])
        assert (await row(store, "daily-0")).status is Status.CANCELLED
        assert (await row(store, "daily-1")).status is Status.PENDING
        assert (await store.counts()).runs == {"cancelled": 1, "pending": 1}
