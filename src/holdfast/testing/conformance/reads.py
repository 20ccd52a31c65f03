"""Looking at runs, and the store as a whole."""

from __future__ import annotations

import asyncio

from holdfast.contract.operations import Committed, Delivered, Started
from holdfast.contract.rows import RunFilter, RunStanding, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import StartRun
from holdfast.errors import StoreClosed
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    claim,
    ended,
    entry,
    message,
    new_run,
    one,
    row,
    started,
    turn,
)


class ReadConformance:
    """Looking."""

    async def test_runs_are_listed_newest_first_in_pages_by_filter(self, store: Store) -> None:
        runs = [await started(store, owner=None) for _ in range(7)]
        await store.join("w", LEASE)
        done = await claim(store, limit=3)
        for taken in done:
            await one(store, turn(taken.key, taken.epoch, end=ended()), Committed)
        await one(store, StartRun(run=new_run("other-one", workflow="other")), Started)
        newest = await store.runs(RunFilter(limit=3))
        assert [found.id for found in newest] == ["other-one", runs[6].id, runs[5].id]
        assert [found.id for found in await store.runs(RunFilter(limit=2, before=newest[-1].key))] == [
            runs[4].id, runs[3].id,
        ]  # fmt: skip
        completed = await store.runs(RunFilter(status=Status.COMPLETED))
        assert {found.key for found in completed} == {taken.key for taken in done}
        waiting = await store.runs(RunFilter(status=Status.PENDING, workflow="order"))
        assert [found.id for found in waiting] == [run.id for run in reversed(runs[3:])]
        assert await store.runs(RunFilter(parent="nobody")) == []
        assert await store.get("nobody") is None

    async def test_where_many_runs_stand_is_one_question(self, store: Store) -> None:
        await store.join("w", LEASE)
        pending, running, done, failed = [await started(store, owner=owner) for owner in (None, "w", "w", "w")]
        await one(store, turn(done.key, end=ended()), Committed)
        await one(store, turn(failed.key, end=ended(Status.FAILED, output=None, error="{}")), Committed)
        found = await store.standings([run.id for run in (failed, done, running, pending)] + ["nobody"])
        assert found == {
            pending.id: RunStanding(Status.PENDING),
            running.id: RunStanding(Status.RUNNING),
            done.id: RunStanding(Status.COMPLETED, ended().output),
            failed.id: RunStanding(Status.FAILED, None, "{}"),
        }
        assert await store.standings([]) == {}

    async def test_a_big_batch_is_all_there(self, store: Store) -> None:
        await store.join("w", LEASE)
        runs = [new_run(owner="w") for _ in range(500)]
        outcomes = await store.apply([StartRun(run=run, turn=turn(0, entries=[entry("a0", 1)])) for run in runs])
        keys = [outcome.key for outcome in outcomes if isinstance(outcome, Started)]
        assert len(set(keys)) == 500
        await store.apply([turn(key, entries=[entry("a1", 2), entry("a2", 3)]) for key in keys])
        histories = await store.load(keys)
        assert [history.key for history in histories] == keys
        assert all(len(history.entries) == 3 for history in histories)

    async def test_concurrent_batches_are_all_applied(self, store: Store) -> None:
        run = await started(store)
        batches = [store.apply([message(run.id, str(n)) for _ in range(1 + n % 7)]) for n in range(40)]
        outcomes = await asyncio.gather(*batches)
        numbers = [told.n for batch in outcomes for told in batch if isinstance(told, Delivered)]
        assert sorted(numbers) == [*range(1, len(numbers) + 1)]
        assert (await row(store, run.id)).inbox == len(numbers)

    async def test_an_empty_batch_is_harmless(self, store: Store) -> None:
        assert await store.apply([]) == []

    async def test_a_closed_store_refuses_everything_but_another_close(self, store: Store) -> None:
        await store.close()
        await store.close()
        for call in (
            lambda: store.apply([message("x")]), lambda: store.get("x"), lambda: claim(store), lambda: store.load([1]),
            lambda: store.join("w", LEASE), lambda: store.leave("w"), lambda: store.take_over(NOW),
            lambda: store.next_due(), lambda: asyncio.to_thread(store.renew, "w"), lambda: store.add_figures([]),
        ):  # fmt: skip
            try:
                await call()
            except StoreClosed:
                continue
            raise AssertionError("a closed store did something")
