"""Handing runs to workers."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from holdfast.contract.operations import Committed, Delivered, Done, Started, Unblock
from holdfast.contract.rows import Claim, RunFilter, Status
from holdfast.contract.store import POISON_ERROR, Store
from holdfast.contract.turns import StartRun, State
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    Another,
    claim,
    message,
    new_run,
    one,
    parked,
    row,
    started,
    turn,
)


class ClaimConformance:
    """Handing runs to workers."""

    async def test_claims_take_the_most_overdue_first_up_to_the_limit(self, store: Store) -> None:
        await store.join("w", LEASE)
        runs = [await started(store, owner=None, at=NOW + offset) for offset in (50, 10, 40, 20, 30)]
        assert await store.next_due() == NOW + 10
        taken = await claim(store, now=NOW + 45, limit=3)
        assert [one.created for one in taken] == [NOW + 10, NOW + 20, NOW + 30]
        assert taken[0] == Claim(
            key=runs[1].key, id=runs[1].id, epoch=1, workflow="order", version="1", input="{}", seed=1, generation=0,
            status=Status.RUNNING, lost="", claims=1, created=NOW + 10, parent=None, due=NOW + 10,
        )  # fmt: skip
        found = await row(store, runs[1].id)
        assert (found.status, found.owner, found.due, found.claims) == (Status.RUNNING, "w", None, 1)
        assert [one.created for one in await claim(store, now=NOW + 45)] == [NOW + 40]
        assert await claim(store, now=NOW + 45) == []

    async def test_a_workflow_nobody_asked_for_is_not_claimed_and_holds_up_nobody(self, store: Store) -> None:
        await store.join("w", LEASE)
        for n in range(10):
            await one(store, StartRun(run=new_run(workflow="unknown", at=NOW - n)), Started)
        run = await started(store, owner=None)
        assert [taken.id for taken in await claim(store, limit=5)] == [run.id]
        [unknown, *_] = await store.runs(RunFilter(workflow="unknown"))
        assert (unknown.status, unknown.owner) == (Status.PENDING, None)
        assert await store.next_due() == NOW - 9
        assert await store.next_due(["order"]) is None

    async def test_a_worker_that_was_not_announced_claims_nothing(self, store: Store) -> None:
        await started(store, owner=None)
        assert await claim(store, "stranger") == []

    async def _lose(self, store: Store, taken: Claim) -> None:
        state = State(status=Status.PENDING, seen=0, due=NOW, released=True)
        await one(store, turn(taken.key, taken.epoch, state=state), Committed)

    async def test_suspects_are_taken_after_all_others_and_one_at_a_time(self, store: Store) -> None:
        """B1: a run that was claimed and made no progress cannot take innocent ones down with it."""
        for n in range(3):
            await started(store, owner=None, at=NOW + n)
        await store.join("w", LEASE)
        suspects = await claim(store, now=NOW + 5)
        for suspect in suspects:
            await self._lose(store, suspect)
        fresh = await started(store, owner=None, at=NOW + 4)
        assert [taken.id for taken in await claim(store, now=NOW + 5)] == [fresh.id]
        [first] = await claim(store, now=NOW + 5)
        assert (first.key, first.claims) == (suspects[0].key, 2)
        assert await claim(store, now=NOW + 5) == []
        await one(store, turn(first.key, first.epoch, trial=True), Committed)
        assert await claim(store, now=NOW + 5) == []
        await one(store, turn(first.key, first.epoch, reset_claims=True), Committed)
        assert (await row(store, first.id)).claims == 0
        [second] = await claim(store, now=NOW + 5)
        assert second.key == suspects[1].key

    async def test_a_run_driven_alone_three_times_without_progress_is_blocked(self, store: Store) -> None:
        """B1: only a worker that was lost after it said that it drives the run counts."""
        run = await started(store, owner=None)
        await store.join("w", LEASE)
        [taken] = await claim(store)
        assert (taken.claims, taken.epoch) == (1, 1)
        await one(store, turn(taken.key, taken.epoch, trial=True), Committed)
        await self._lose(store, taken)
        for number in (2, 4, 6):
            for _ in range(3):
                [taken] = await claim(store)
                assert taken.claims == number, "taken, but not driven, it keeps its number"
                await self._lose(store, taken)
            [taken] = await claim(store)
            for _ in range(2):
                await one(store, turn(taken.key, taken.epoch, trial=True), Committed)
                assert (await row(store, run.id)).claims == number + 1
            await self._lose(store, taken)
        assert await claim(store) == []
        found = await row(store, run.id)
        assert (found.status, found.error, found.due, found.owner) == (Status.BLOCKED, POISON_ERROR, None, None)
        assert await claim(store, now=NOW + 1000 * SECOND) == []
        assert await one(store, Unblock(at=NOW, target=run.id), Done) == Done(1)
        [again] = await claim(store)
        assert (again.key, again.claims) == (run.key, 1)

    async def _hang(self, another: Another, store: Store, *, trial: bool) -> Claim | None:
        """Let a worker take the run, hang beyond its lease, and be declared dead."""
        hung = await another()
        await hung.join("h", timedelta(milliseconds=50))
        found = await claim(hung, "h")
        for taken in found:
            if trial:
                await one(hung, turn(taken.key, taken.epoch, trial=True), Committed)
        await asyncio.sleep(0.1)
        assert [dead.worker for dead in await store.take_over(NOW)] == ["h"]
        await hung.leave("h")
        await hung.close()
        return found[0] if found else None

    async def test_a_run_whose_workers_hung_before_it_was_driven_alone_is_not_blocked(
        self, store: Store, another: Another
    ) -> None:
        """B1, B24: neither a lapse nor a hand-back counts against a run; one that hangs alone is blocked."""
        run = await started(store, owner=None)
        for _ in range(5):
            assert await self._hang(another, store, trial=False) is not None
            assert (await row(store, run.id)).status in (Status.PENDING, Status.RUNNING)
        await store.join("v", LEASE)
        [taken] = await claim(store, "v")
        await one(store, turn(taken.key, taken.epoch, trial=True), Committed)
        await store.leave("v")
        assert (await row(store, run.id)).claims == 0
        assert await self._hang(another, store, trial=False) is not None
        for _ in range(3):
            assert await self._hang(another, store, trial=True) is not None
        assert await self._hang(another, store, trial=True) is None
        assert (await row(store, run.id)).status is Status.BLOCKED

    async def test_blocked_runs_are_released_by_another_fingerprint_or_by_name(self, store: Store) -> None:
        async def blocked(fingerprint: str, workflow: str = "order") -> str:
            run = new_run(workflow=workflow, owner="w")
            state = State(status=Status.BLOCKED, seen=0, released=True, error='"why"', fingerprint=fingerprint)
            await one(store, StartRun(run=run, turn=turn(0, state=state)), Started)
            return run.id

        await store.join("w", LEASE)
        old, same, other = await blocked("old"), await blocked("same"), await blocked("old", "other")
        assert (await row(store, old)).error == '"why"'
        await one(store, message(old), Delivered)
        assert await claim(store, now=NOW + 1000 * SECOND) == []
        outcome = await one(store, Unblock(at=NOW + 5, workflow="order", fingerprint="same"), Done)
        assert outcome == Done(1)
        found = await row(store, old)
        assert (found.status, found.due, found.claims, found.error) == (Status.PENDING, NOW + 5, 0, None)
        assert {(await row(store, id)).status for id in (same, other)} == {Status.BLOCKED}
        outcomes = await store.apply([Unblock(at=NOW, target=same), Unblock(at=NOW, target=same), message(same)])
        assert outcomes[:2] == [Done(1), Done(0)]
        assert (await row(store, same)).status == Status.PENDING

    async def test_next_due_is_nothing_when_nobody_may_claim_anything(self, store: Store) -> None:
        assert await store.next_due() is None
        run = await started(store)
        await one(store, turn(run.key, state=parked(NOW)), Committed)
        assert await store.next_due() is None
