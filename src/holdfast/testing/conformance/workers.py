"""Workers that stop, die or hang."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from holdfast.clock import micros
from holdfast.contract.operations import Committed, Delivered, Fenced, Started
from holdfast.contract.rows import Held, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import StartRun, State
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    Another,
    claim,
    entry,
    message,
    new_run,
    one,
    parked,
    row,
    started,
    turn,
    unread,
)


class WorkerConformance:
    """Workers that stop, die or hang."""

    async def test_a_worker_that_leaves_hands_back_its_runs(self, store: Store) -> None:
        running, waiting = await started(store), await started(store)
        await one(store, turn(waiting.key, state=parked(NOW + 9 * SECOND)), Committed)
        await store.leave("w")
        found = await row(store, waiting.id)
        assert (found.status, found.owner, found.due) == (Status.SUSPENDED, None, NOW + 9 * SECOND)
        await store.join("v", LEASE)
        [taken] = await claim(store, "v")
        assert (taken.key, taken.lost) == (running.key, "")
        assert taken.epoch > 1
        assert store.renew("w") is False
        await one(store, turn(running.key, 1, entries=[entry("a0", 1)]), Fenced)

    async def test_a_worker_can_ask_what_it_owns(self, store: Store) -> None:
        running, waiting = await started(store), await started(store)
        await one(store, turn(waiting.key, state=parked(NOW + 9 * SECOND)), Committed)
        expected = {Held(running.key, 1, Status.RUNNING), Held(waiting.key, 1, Status.SUSPENDED)}
        assert set(await store.held("w")) == expected
        assert await store.held("v") == []

    async def test_a_worker_that_renews_its_lease_is_not_declared_dead(self, store: Store, another: Another) -> None:
        run = await started(store)
        other = await another()
        assert await asyncio.to_thread(store.renew, "w") is True
        assert await other.take_over(NOW) == []
        assert (await row(other, run.id)).owner == "w"

    async def test_what_a_dead_worker_was_running_is_taken_over(self, store: Store, another: Another) -> None:
        """B24, S2-28: only what the dead worker held, marked as lost, with a higher epoch."""
        dying = await another()
        lease = timedelta(milliseconds=50)
        await dying.join("d", lease)
        runs = [new_run(owner="d") for _ in range(3)]
        keys = []
        for run in runs:
            keys.append((await one(dying, StartRun(run=run), Started)).key)
        await one(dying, turn(keys[1], state=parked(NOW + 9 * SECOND)), Committed)
        await one(dying, turn(keys[2], state=parked(NOW - SECOND)), Committed)
        alive = await started(store)
        await dying.close()
        await asyncio.sleep(0.1)
        [dead] = await store.take_over(NOW)
        assert (dead.worker, dead.lost in ("crash", "lapse"), dead.runs) == ("d", True, [runs[0].id])
        assert await store.take_over(NOW) == []
        found = [await row(store, run.id) for run in runs]
        assert found[0].owner is None
        assert found[0].due is not None
        assert NOW - 60 * SECOND < found[0].due < NOW - micros(lease), "since the worker was last known to be alive"
        assert (found[1].owner, found[1].due, found[1].epoch) == ("d", NOW + 9 * SECOND, 1)
        assert (await row(store, alive.id)).owner == "w"
        taken = {one.key: one for one in await claim(store)}
        assert set(taken) == {keys[0], keys[2]}
        assert taken[keys[0]].lost == dead.lost
        assert taken[keys[0]].died == (found[0].due if dead.lost == "crash" else None)
        assert (taken[keys[2]].lost, taken[keys[2]].died) == ("", None)
        assert (taken[keys[0]].deaths, taken[keys[2]].deaths) == (int(dead.lost == "crash"), 0)
        await one(store, turn(keys[0], 1, entries=[entry("a0", 1)]), Fenced)
        assert await store.next_due() == NOW + 9 * SECOND
        assert [one.key for one in await claim(store, now=NOW + 9 * SECOND)] == [keys[1]]

    async def test_a_hung_worker_loses_its_runs_when_its_lease_lapses(self, store: Store, another: Another) -> None:
        """G5, B24: its lease lapsed, so its next renewal and its late writes are refused."""
        hung = await another()
        await hung.join("h", timedelta(seconds=2))
        first, parks = new_run(owner="h"), new_run(owner="h")
        key = (await one(hung, StartRun(run=first), Started)).key
        sleeping = (await one(hung, StartRun(run=parks, turn=turn(0, state=parked(NOW))), Started)).key
        await store.join("w", LEASE)
        assert await store.take_over(NOW) == []
        async with asyncio.timeout(60):
            while not (dead := await store.take_over(NOW)):  # noqa: ASYNC110  # nothing tells of a lease that lapses
                await asyncio.sleep(0.05)
        assert [one.worker for one in dead] == ["h"]
        assert await asyncio.to_thread(hung.renew, "h") is False
        await one(hung, turn(key, entries=[entry("a0", 1)]), Fenced)
        await one(hung, turn(sleeping, state=State(status=Status.RUNNING, seen=0)), Committed)
        assert {one.key: one.lost for one in await claim(store)} == {key: "lapse", sleeping: "lapse"}
        late = new_run(owner="h")
        await one(hung, StartRun(run=late), Started)
        assert [one.id for one in await claim(store)] == [late.id]
        await started(store, owner=None)
        assert await claim(hung, "h") == []

    async def test_commits_of_another_store_are_noticed_soon(self, store: Store, another: Another) -> None:
        """What `changed` says once, it does not say again at once."""
        other = await another()
        run = await started(store, owner=None)
        store.changed()
        assert store.changed() is False
        await one(other, message(run.id), Delivered)
        async with asyncio.timeout(5):
            while not store.changed():  # noqa: ASYNC110  # it must not wait by itself
                await asyncio.sleep(0.001)
        assert store.changed() is False
        assert len(await unread(store, run.key, 0)) == 1
