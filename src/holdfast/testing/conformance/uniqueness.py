"""Unique keys: one open run of a workflow for each; and ids, which are for ever."""

from __future__ import annotations

from holdfast.contract.operations import (
    Committed,
    Done,
    Existing,
    KeyHeld,
    Operation,
    Purge,
    RequestCancel,
    Started,
    Terminate,
    Unblock,
)
from holdfast.contract.rows import RunFilter, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import Parent, RunOptions, StartChild, StartRun, State
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    TERMINAL,
    end,
    ended,
    entry,
    new_run,
    one,
    optioned,
    row,
    started,
    turn,
)

KEY = RunOptions(unique_key="k")


def keyed(id: str = "", key: str = "k", **fields: object) -> StartRun:
    """Return the start of a run with a unique key."""
    return StartRun(run=new_run(id, options=RunOptions(unique_key=key), **fields))  # type: ignore[arg-type]  # its fields


class UniquenessConformance:
    """Unique keys and ids."""

    async def test_a_unique_key_is_held_by_one_open_run_of_a_workflow(self, store: Store) -> None:
        """S0-15, S0-16, S0-17: the second start learns who has it and writes nothing; other workflows do not care."""
        first = await one(store, keyed("first"), Started)
        assert await one(store, keyed("second"), KeyHeld) == KeyHeld(first.key, "first")
        assert await store.get("second") is None
        await one(store, keyed("third", "other"), Started)
        await one(store, keyed("fourth", workflow="other"), Started)
        await one(store, StartRun(run=new_run()), Started)
        await one(store, StartRun(run=new_run()), Started)
        assert (await row(store, "first")).unique_key == "k"

    async def test_the_id_is_looked_at_before_the_key(self, store: Store) -> None:
        """B16: the same start again gives the run itself."""
        first = await one(store, keyed("first"), Started)
        assert await one(store, keyed("first"), Existing) == Existing(first.key, "order", 7, Status.PENDING)

    async def test_a_key_is_held_in_every_open_status(self, store: Store) -> None:
        """S0-17."""
        run = await optioned(store, unique_key="k")
        for status in Status:
            if not status.is_terminal:
                await one(store, turn(run.key, state=State(status=status, seen=0)), Committed)
                assert await one(store, keyed(), KeyHeld) == KeyHeld(run.key, run.id)

    async def test_a_key_is_free_after_every_end(self, store: Store) -> None:
        """S0-17, S0-18: completed, failed, cancelled, terminated, cancelled before it began; and usable again."""
        for status in TERMINAL:
            run = await optioned(store, unique_key="k")
            await end(store, run, status)
        run = await optioned(store, unique_key="k")
        await one(store, Terminate(target=run.id, end=ended(Status.FAILED)), Done)
        run = await optioned(store, owner=None, unique_key="k")
        await store.apply([RequestCancel(target=run.id, at=NOW)])
        assert (await row(store, run.id)).status is Status.CANCELLED
        last = await optioned(store, unique_key="k")
        found = await store.runs(RunFilter(unique_key="k"))
        assert found[0].id == last.id
        assert len(found) == 6

    async def test_starts_and_ends_of_one_batch_take_effect_in_order(self, store: Store) -> None:
        """S0-15, S0-18: many keys, an end and a start, a start and an end."""
        await store.join("w", LEASE)
        outcomes = await store.apply([keyed(f"{n}-{key}", str(key), owner="w") for n in (1, 2) for key in range(20)])
        assert [type(outcome) for outcome in outcomes] == [Started] * 20 + [KeyHeld] * 20
        key = (await row(store, "1-0")).key
        batch: list[Operation] = [
            keyed("a", "0"), turn(key, end=ended()), keyed("b", "0", owner="w"), keyed("c", "0"),
            Terminate(target="b", end=ended()), keyed("d", "0"),
        ]  # fmt: skip
        outcomes = await store.apply(batch)
        assert [type(outcome) for outcome in outcomes] == [KeyHeld, Committed, Started, KeyHeld, Done, Started]
        assert isinstance(outcomes[2], Started)
        assert outcomes[3] == KeyHeld(outcomes[2].key, "b")
        assert (await row(store, "d")).status is Status.PENDING

    async def test_a_batch_that_unblocks_knows_who_ended_since(self, store: Store) -> None:
        """S0-18: what is read again is read again for keys, too."""
        await store.join("w", LEASE)
        blocked = await started(store)
        await one(store, turn(blocked.key, state=State(status=Status.BLOCKED, seen=0, released=True)), Committed)
        outcomes = await store.apply(
            [keyed("a", owner="w"), Unblock(at=NOW, target=blocked.id), Terminate(target="a", end=ended()), keyed("b")]
        )
        assert [type(outcome) for outcome in outcomes] == [Started, Done, Done, Started]

    async def test_a_child_whose_key_is_held_is_refused(self, store: Store) -> None:
        """S0-15: told in the parent's own fact."""
        await one(store, keyed("holder"), Started)
        run = await started(store)
        child = new_run("child", options=KEY, parent=Parent(run.key, run.id, "a0"))
        start = StartChild(run=child, location="a0", seq=1, taken='"taken"')
        outcome = await one(store, turn(run.key, entries=[entry("a0", 1)], children=[start]), Committed)
        assert outcome.refused == {"a0": "taken"}
        assert [fact.data for fact in await store.history(run.key)] == ['"taken"']
        assert await store.get("child") is None

    async def test_the_id_of_a_purged_run_is_still_taken(self, store: Store) -> None:
        """B16: with its workflow and digest, until its tombstone expires."""
        run = await started(store, digest=99)
        await end(store, run)
        await one(store, Purge(what="completed", before=NOW + 1, at=NOW, keep_ids=NOW + SECOND), Done)
        again = StartRun(run=new_run(run.id))
        assert await one(store, again, Existing) == Existing(0, "order", 99, None)
        assert await store.apply([again, again]) == [Existing(0, "order", 99, None)] * 2
        assert await store.get(run.id) is None
        assert await store.purged([run.id, "none"], NOW) == {run.id}
        assert await store.purged([run.id], NOW + SECOND) == await store.purged([], NOW) == frozenset()
        await one(store, StartRun(run=new_run(run.id, at=NOW + SECOND)), Started)
        assert isinstance((await store.apply([again]))[0], Existing)

    async def test_a_batch_that_purges_knows_the_ids_it_buried(self, store: Store) -> None:
        """B16: in one batch as in two."""
        run = await started(store, digest=99)
        await end(store, run)
        purge = Purge(what="completed", before=NOW + 1, at=NOW, keep_ids=NOW + SECOND)
        again = StartRun(run=new_run(run.id))
        outcomes = await store.apply([again, purge, again, again])
        gone = Existing(0, "order", 99, None)
        assert outcomes == [Existing(run.key, "order", 99, Status.COMPLETED), Done(1, (run.id,)), gone, gone]
        forget = Purge(what="ids", before=NOW, at=NOW + 9 * SECOND)
        outcomes = await store.apply([again, forget, again])
        assert [type(outcome) for outcome in outcomes] == [Existing, Done, Started]

    async def test_keys_of_purged_runs_are_not_used_again(self, store: Store) -> None:
        """A number names one run for ever, for messages and entries are kept under it."""
        run = await started(store)
        await end(store, run)
        purge = Purge(what="completed", before=NOW + 1, at=NOW)
        [_, outcome] = await store.apply([purge, StartRun(run=new_run())])
        assert isinstance(outcome, Started)
        assert outcome.key > run.key
