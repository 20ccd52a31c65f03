"""Runs whose end is decided while their hooks are called: their unique key is free, and nothing stops them any more."""

from __future__ import annotations

from holdfast.contract.operations import (
    Committed,
    Delivered,
    Done,
    KeyHeld,
    Pause,
    Refused,
    RequestCancel,
    Started,
    Terminate,
)
from holdfast.contract.rows import UNDECIDED, LetterFilter, RunRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import NewLetter, RunOptions, StartRun, State
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    TERMINAL,
    claim,
    ended,
    new_run,
    one,
    optioned,
    row,
    started,
    turn,
)
from holdfast.testing.conformance.uniqueness import keyed


async def decided(store: Store, how: Status = Status.COMPLETED, *, released: bool = False) -> RunRow:
    """Return a run with unique key k whose end is decided."""
    run = await optioned(store, unique_key="k")
    state = State(status=Status.RUNNING, seen=0, wait="callback", conclusion=how, released=released, due=NOW)
    await one(store, turn(run.key, state=state), Committed)
    return await row(store, run.id)


class ConclusionConformance:
    """Runs whose end is decided."""

    async def test_a_run_whose_end_is_decided_has_given_its_unique_key_back(self, store: Store) -> None:
        """B35, S0-18: for good, whatever it writes after that; it has not ended."""
        for how in TERMINAL:
            run = await decided(store, how)
            assert (run.status, run.ended, run.conclusion) == (Status.RUNNING, None, how)
            other = await one(store, keyed(f"other-{how}"), Started)
            assert await one(store, keyed(), KeyHeld) == KeyHeld(other.key, f"other-{how}")
            parked = State(status=Status.RUNNING, seen=0, wait="callback", due=NOW + SECOND)
            await one(store, turn(run.key, state=parked), Committed)
            assert (await row(store, run.id)).conclusion == how
            await one(store, turn(run.key, end=ended(how)), Committed)
            assert (await row(store, run.id)).conclusion is None
            await one(store, Terminate(target=f"other-{how}", end=ended()), Done)

    async def test_the_key_is_free_for_a_start_of_the_same_batch(self, store: Store) -> None:
        """B35: and only for the first."""
        run = await optioned(store, unique_key="k")
        state = State(status=Status.RUNNING, seen=0, conclusion=Status.FAILED)
        outcomes = await store.apply([keyed("early"), turn(run.key, state=state), keyed("second"), keyed("third")])
        assert [type(outcome) for outcome in outcomes] == [KeyHeld, Committed, Started, KeyHeld]

    async def test_nothing_asks_a_run_to_stop_whose_end_is_decided(self, store: Store) -> None:
        """B35: it is ending already; what it was asked before that is not lost."""
        run = await decided(store)
        assert await one(store, RequestCancel(target=run.id, at=NOW), Refused) == Refused(Status.RUNNING)
        assert await one(store, Pause(target=run.id, at=NOW), Refused) == Refused(Status.RUNNING)
        assert await row(store, run.id) == run

    async def test_a_run_is_terminated_only_as_it_was_decided(self, store: Store) -> None:
        """B35: by a caller that knows; with the letters of what is not done any more."""
        letter = NewLetter(id="l", step="end#0/on_failed", attempts=2, error='"terminated"')
        for known, run in ((None, await decided(store, Status.FAILED)), (Status.FAILED, await started(store))):
            ending = Terminate(target=run.id, end=ended(Status.CANCELLED), decided=known, letters=[letter])
            assert (await one(store, ending, Refused)).reason == "decided"
            assert (await row(store, run.id)).ended is None
            ending = Terminate(
                target=run.id, end=ended(), decided=None if known else Status.FAILED, letters=[] if known else [letter]
            )
            await one(store, ending, Done)
        [found] = await store.letters(LetterFilter())
        assert (found.id, found.step, found.attempts) == ("l", "end#0/on_failed", 2)

    async def test_a_run_that_gave_up_its_worker_is_claimed_when_it_is_due(self, store: Store) -> None:
        """B35: to call its hooks, as they were left."""
        run = await decided(store, Status.CANCELLED, released=True)
        [taken] = await claim(store)
        assert taken.key == run.key
        assert (await row(store, run.id)).conclusion == Status.CANCELLED

    async def test_a_run_with_hooks_that_never_began_is_cancelled_by_a_worker(self, store: Store) -> None:
        """B35, B7: it is due at once, whenever it was to begin."""
        run = await started(store, owner=None, hooked=True)
        assert run.conclusion == UNDECIDED
        await one(store, RequestCancel(target=run.id, at=NOW), Delivered)
        assert (await row(store, run.id)).status is Status.CANCELLING
        await store.join("w", LEASE)
        [taken] = await claim(store)
        assert (taken.key, taken.epoch) == (run.key, 1)

    async def test_a_delayed_run_with_hooks_is_cancelled_before_it_was_to_begin(self, store: Store) -> None:
        """B35, B7."""
        later = new_run("late", hooked=True, options=RunOptions(begins=NOW + 9 * SECOND))
        await one(store, StartRun(run=later), Started)
        await one(store, RequestCancel(target="late", at=NOW), Delivered)
        assert (await row(store, "late")).due == NOW
