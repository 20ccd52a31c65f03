"""Letting a run begin nothing more, until it is resumed or until an instant."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from holdfast.contract.operations import (
    Committed,
    Delivered,
    Done,
    Fenced,
    Pause,
    Published,
    Refused,
    RequestCancel,
    Started,
    Unpause,
)
from holdfast.contract.rows import RunRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import StartRun, State
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    TERMINAL,
    Another,
    claim,
    end,
    entry,
    event,
    message,
    new_run,
    one,
    optioned,
    parked,
    row,
    started,
    turn,
    unread,
    waiting,
)


def paused(*, seen: int = 0, due: int | None = None) -> State:
    """Return the state in which a worker gives a paused run up."""
    return State(status=Status.PAUSED, seen=seen, due=due, released=True)


async def kinds(store: Store, run: RunRow) -> list[tuple[str, str]]:
    """Return kind and payload of the rows a run has not read."""
    return [(found.kind, found.payload) for found in await unread(store, run.key)]


class PauseConformance:
    """Pausing and going on."""

    async def test_a_run_that_nobody_drives_is_paused_at_once(self, store: Store) -> None:
        """B25, S4-25: neither messages nor events nor timers wake it; they are there when it goes on."""
        pending, asleep = await started(store, owner=None), await started(store)
        await one(store, turn(asleep.key, state=parked(NOW + SECOND, released=True)), Committed)
        for run in (pending, asleep):
            assert await one(store, Pause(target=run.id, at=NOW), Done) == Done(1)
            await one(store, message(run.id), Delivered)
            found = await row(store, run.id)
            assert (found.status, found.due, found.owner, found.wait) == (Status.PAUSED, None, None, "")
        assert await claim(store, now=NOW + 1000 * SECOND) == []
        assert await store.next_due() is None
        for run in (pending, asleep):
            assert await one(store, Unpause(target=run.id, at=NOW + 5), Done) == Done(1)
            found = await row(store, run.id)
            assert (found.status, found.due) == (Status.PENDING, NOW + 5)
        taken = await claim(store, now=NOW + 5)
        assert {one_run.key for one_run in taken} == {pending.key, asleep.key}
        assert all(len(history.messages) == 1 for history in await store.load([pending.key, asleep.key]))

    async def test_a_driven_run_is_told_and_its_worker_gives_it_up(self, store: Store) -> None:
        """B25: what is under way may finish and is recorded."""
        run = await started(store)
        assert (await one(store, Pause(target=run.id, at=NOW + 5), Delivered)).owner == "w"
        found = await row(store, run.id)
        assert (found.status, found.owner, found.epoch) == (Status.PAUSED, "w", 1)
        assert await store.due("w", NOW + 5) == [run.key]
        assert await kinds(store, run) == [("pause", "")]
        await one(store, turn(run.key, entries=[entry("a0", 1)]), Committed)
        outcome = await one(store, turn(run.key, consumed=[1], state=paused(seen=1)), Committed)
        assert outcome == Committed(run.key)
        await one(store, message(run.id), Delivered)
        found = await row(store, run.id)
        assert (found.status, found.owner, found.due) == (Status.PAUSED, None, None)
        assert await store.history(run.key) == [entry("a0", 1)]

    async def test_a_pause_ends_by_itself_at_its_time(self, store: Store) -> None:
        """S4-30, B25: the runnable index includes a timed pause."""
        until = NOW + 9 * SECOND
        run, driven = await started(store, owner=None), await started(store)
        await store.apply([Pause(target=target.id, at=NOW, until=until) for target in (run, driven)])
        assert await kinds(store, driven) == [("pause", str(until))]
        await one(store, turn(driven.key, consumed=[1], state=paused(seen=1, due=until)), Committed)
        assert await store.next_due() == until
        assert await claim(store, now=until - 1) == []
        assert {taken.key for taken in await claim(store, now=until)} == {run.key, driven.key}

    async def test_a_second_pause_replaces_the_first(self, store: Store) -> None:
        """S4-30: of a paused run, and of one whose worker has only seen the first."""
        run, driven = await started(store, owner=None), await started(store)
        for until in (None, NOW + SECOND):
            await store.apply([Pause(target=target.id, at=NOW, until=until) for target in (run, driven)])
        assert (await row(store, run.id)).due == NOW + SECOND
        outcome = await one(store, turn(driven.key, consumed=[1], state=paused(seen=1)), Committed)
        assert [(found.kind, found.payload) for found in outcome.messages] == [("pause", str(NOW + SECOND))]
        found = await row(store, driven.id)
        assert (found.status, found.due) == (Status.PAUSED, NOW)

    async def test_a_pause_is_not_undone_by_a_turn_that_has_not_seen_it(self, store: Store) -> None:
        """B25: as with a cancel request; and it can be taken back before the worker has seen it."""
        for released in (False, True):
            run = await started(store)
            await one(store, Pause(target=run.id, at=NOW), Delivered)
            late = turn(run.key, state=parked(NOW + SECOND, released=released))
            assert [told.kind for told in (await one(store, late, Committed)).messages] == ["pause"]
            found = await row(store, run.id)
            assert (found.status, found.due) == (Status.PAUSED, NOW)
            await one(store, Unpause(target=run.id, at=NOW), Delivered)
            assert (await row(store, run.id)).status in (Status.RUNNING, Status.PENDING)

    async def test_a_turn_that_has_not_seen_the_resuming_does_not_stay_paused(self, store: Store) -> None:
        """B25: pause and resume overtake the worker, which gives the run up for the first."""
        run = await started(store)
        await one(store, Pause(target=run.id, at=NOW), Delivered)
        assert (await one(store, Unpause(target=run.id, at=NOW + 1), Delivered)).owner == "w"
        assert await kinds(store, run) == [("pause", ""), ("resume", "")]
        assert (await row(store, run.id)).status is Status.RUNNING
        await one(store, turn(run.key, at=NOW + 2, consumed=[1], state=paused(seen=1)), Committed)
        found = await row(store, run.id)
        assert (found.status, found.due) == (Status.PENDING, NOW + 2)
        assert [taken.key for taken in await claim(store, now=NOW + 2)] == [run.key]

    async def test_a_turn_that_has_seen_neither_goes_on(self, store: Store) -> None:
        run = await started(store)
        await store.apply([Pause(target=run.id, at=NOW), Unpause(target=run.id, at=NOW)])
        await one(store, turn(run.key, state=parked(NOW + SECOND)), Committed)
        found = await row(store, run.id)
        assert (found.status, found.due) == (Status.SUSPENDED, NOW)

    async def test_a_paused_run_can_be_cancelled(self, store: Store) -> None:
        """B25: it is due at once; also by the turn that parks it as paused and has not seen the request."""
        run, driven, never = await started(store), await started(store), await started(store, owner=None)
        await one(store, turn(run.key, state=parked(released=True)), Committed)
        await store.apply([Pause(target=target.id, at=NOW) for target in (run, driven, never)])
        await store.apply([RequestCancel(target=target.id, at=NOW) for target in (run, driven, never)])
        await one(store, turn(driven.key, consumed=[1], state=paused(seen=1)), Committed)
        for target in (run, driven):
            found = await row(store, target.id)
            assert (found.status, found.due) == (Status.CANCELLING, NOW)
        assert (await row(store, never.id)).status is Status.CANCELLED
        taken = await claim(store)
        assert {(one_run.key, one_run.status) for one_run in taken} == {
            (run.key, Status.CANCELLING), (driven.key, Status.CANCELLING),
        }  # fmt: skip

    async def test_what_cannot_be_paused_or_resumed_is_refused_with_its_status(self, store: Store) -> None:
        """S4-25: explicit states."""
        for status in (*TERMINAL, Status.CANCELLING, Status.BLOCKED):
            run = await started(store)
            if status.is_terminal:
                await end(store, run, status)
            else:
                await one(store, turn(run.key, state=State(status=status, seen=0)), Committed)
            before = await row(store, run.id)
            assert await one(store, Pause(target=run.id, at=NOW + 9), Refused) == Refused(status)
            assert await one(store, Unpause(target=run.id, at=NOW + 9), Refused) == Refused(status)
            assert await row(store, run.id) == before
        run = await started(store)
        assert await one(store, Unpause(target=run.id, at=NOW), Refused) == Refused(Status.RUNNING)
        for operation in (Pause(target="nobody", at=NOW), Unpause(target="nobody", at=NOW)):
            assert await one(store, operation, Refused) == Refused(None)

    async def test_a_paused_run_is_given_events_to_find_later(self, store: Store) -> None:
        """B25: events queue."""
        run = await waiting(store)
        await store.apply([turn(run.key, state=parked(released=True)), Pause(target=run.id, at=NOW)])
        assert await one(store, event("1"), Published) == Published(1)
        assert (await row(store, run.id)).due is None
        await one(store, Unpause(target=run.id, at=NOW), Done)
        [taken] = await claim(store)
        [history] = await store.load([taken.key])
        assert [found.kind for found in history.messages] == ["event"]

    async def test_a_delayed_run_that_was_paused_does_not_begin_before_its_time(self, store: Store) -> None:
        """S0-41: neither by resuming it nor by the end of a timed pause."""
        begins = NOW + 9 * SECOND
        resumed, timed = [await optioned(store, owner=None, begins=begins) for _ in range(2)]
        await store.apply(
            [Pause(target=resumed.id, at=NOW), Pause(target=timed.id, at=NOW, until=NOW + SECOND),
             Unpause(target=resumed.id, at=NOW + 1)]
        )  # fmt: skip
        assert [(await row(store, run.id)).due for run in (resumed, timed)] == [begins, begins]

    async def test_a_pause_survives_the_death_of_the_worker_that_was_told(self, store: Store, another: Another) -> None:
        """B25: whoever takes the run over finds the request."""
        dying = await another()
        await dying.join("d", timedelta(milliseconds=50))
        run = new_run(owner="d")
        await one(dying, StartRun(run=run), Started)
        await one(store, Pause(target=run.id, at=NOW), Delivered)
        await dying.close()
        await asyncio.sleep(0.1)
        assert len(await store.take_over(NOW)) == 1
        await store.join("w", LEASE)
        [taken] = await claim(store)
        assert taken.id == run.id
        [history] = await store.load([taken.key])
        assert [found.kind for found in history.messages] == ["pause"]
        await one(store, turn(taken.key, 1, entries=[entry("a0", 1)]), Fenced)

    async def test_a_parked_run_of_a_dead_worker_is_paused_at_once(self, store: Store, another: Another) -> None:
        """B25, G5: nobody has to be told; its late write is refused."""
        dying = await another()
        await dying.join("d", timedelta(milliseconds=50))
        run = new_run(owner="d")
        await one(dying, StartRun(run=run, turn=turn(0, state=parked(NOW + SECOND))), Started)
        await dying.close()
        await asyncio.sleep(0.1)
        assert len(await store.take_over(NOW)) == 1
        assert await one(store, Pause(target=run.id, at=NOW), Done) == Done(1)
        found = await row(store, run.id)
        assert (found.status, found.owner, found.due) == (Status.PAUSED, None, None)
        await one(store, turn(found.key, 1, entries=[entry("a0", 1)]), Fenced)
        await store.join("w", LEASE)
        assert await claim(store, now=NOW + 9 * SECOND) == []

    async def test_a_later_pause_overtakes_one_that_nobody_has_taken(self, store: Store) -> None:
        """B25, S4-30: the end of the last one counts, whoever was told of the first."""
        run = await started(store)
        await one(store, Pause(target=run.id, at=NOW), Delivered)
        await store.leave("w")
        await one(store, Pause(target=run.id, at=NOW + 1, until=NOW + SECOND), Done)
        await store.join("w", LEASE)
        [taken] = await claim(store, now=NOW + 2 * SECOND)
        [history] = await store.load([taken.key])
        assert (taken.id, taken.paused, history.messages) == (run.id, True, [])
