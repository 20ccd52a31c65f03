"""Starting runs."""

from __future__ import annotations

from holdfast.contract.operations import Committed, Existing, Started
from holdfast.contract.rows import Status
from holdfast.contract.store import Store
from holdfast.contract.turns import StartRun
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    claim,
    ended,
    entry,
    message,
    new_run,
    one,
    parked,
    row,
    started,
    turn,
)


class StartConformance:
    """Starting runs."""

    async def test_a_started_run_without_owner_is_pending_and_due_at_once(self, store: Store) -> None:
        run = new_run(input='{"n":1}', version="3")
        outcome = await one(store, StartRun(run=run), Started)
        found = await row(store, run.id)
        assert outcome == Started(found.key)
        assert (found.status, found.owner, found.due) == (Status.PENDING, None, NOW)
        assert (found.workflow, found.version, found.input) == ("order", "3", '{"n":1}')
        assert (found.output, found.error, found.parent, found.ended) == (None, None, None, None)
        assert (found.created, found.updated, found.generation, found.inbox, found.claims) == (NOW, NOW, 0, 0, 0)

    async def test_a_run_started_with_an_owner_is_running_with_epoch_1(self, store: Store) -> None:
        run = await started(store)
        assert (run.status, run.owner, run.epoch, run.due) == (Status.RUNNING, "w", 1, None)
        assert await claim(store) == []

    async def test_a_start_with_a_taken_id_writes_nothing_and_tells_what_is_there(self, store: Store) -> None:
        """G2: two starts with one id give one run, and the second learns its digest."""
        run = await started(store)
        again = StartRun(run=new_run(run.id, workflow="other", digest=8), turn=turn(0, entries=[entry("a0", 1)]))
        assert await one(store, again, Existing) == Existing(run.key, "order", 7, Status.RUNNING)
        assert await store.history(run.key) == []
        assert await row(store, run.id) == run

    async def test_two_starts_of_one_id_in_a_batch_give_one_run(self, store: Store) -> None:
        first, second = new_run("same"), new_run("same", digest=9)
        outcomes = await store.apply([StartRun(run=first), StartRun(run=second)])
        key = (await row(store, "same")).key
        assert outcomes == [Started(key), Existing(key, "order", 7, Status.PENDING)]

    async def test_the_first_turn_is_applied_with_the_start(self, store: Store) -> None:
        await store.join("w", LEASE)
        first = turn(0, 0, entries=[entry("a0", 1)], state=parked(NOW + SECOND))
        run = new_run(owner="w")
        outcome = await one(store, StartRun(run=run, turn=first), Started)
        found = await row(store, run.id)
        assert outcome.committed == Committed(found.key)
        assert (found.status, found.due, found.epoch, found.owner) == (Status.SUSPENDED, NOW + SECOND, 1, "w")
        assert await store.history(found.key) == [entry("a0", 1)]

    async def test_a_start_by_a_worker_declared_dead_is_left_for_others(self, store: Store) -> None:
        """G1: an acknowledged start is never left with an owner that nobody will take it from."""
        run = new_run(owner="never-joined")
        await one(store, StartRun(run=run, turn=turn(0, 0, entries=[entry("a0", 1)])), Started)
        await store.join("w", LEASE)
        assert [taken.id for taken in await claim(store)] == [run.id]

    async def test_payloads_come_back_as_they_were(self, store: Store) -> None:
        payload = '{"nul":"\\u0000","text":"\u00e9\u4e2d\U0001f600\u2028","raw":"\x7f","long":"' + "x" * 300_000 + '"}'
        await store.join("w", LEASE)
        first = turn(0, entries=[entry("a0", 1, payload)])
        others = [StartRun(run=new_run(owner="w")) for _ in range(5)]
        run = new_run(input=payload, digest=2**63 - 1, seed=-(2**63), owner="w")
        [outcome, *_] = await store.apply([StartRun(run=run, turn=first), *others])
        assert isinstance(outcome, Started)
        key = outcome.key
        await store.apply([message(run.id, payload), message(run.id, payload)])
        [history] = await store.load([key])
        assert [fact.data for fact in history.entries] == [payload]
        assert [sent.payload for sent in history.messages] == [payload, payload]
        assert (await row(store, run.id)).input == payload
        again = await one(store, StartRun(run=new_run(run.id)), Existing)
        assert again.digest == 2**63 - 1
        await one(store, turn(key, end=ended(output=payload, error=payload)), Committed)
        found = await row(store, run.id)
        assert (found.output, found.error) == (payload, payload)
