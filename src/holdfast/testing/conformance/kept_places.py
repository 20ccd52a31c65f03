"""Places that a busy worker keeps for its next attempts while a limit is far from full."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.contract.limits import LimitAnswer, PauseLimit
from holdfast.contract.operations import Committed, Done
from holdfast.contract.rows import RunRow
from holdfast.contract.store import Store
from holdfast.contract.turns import Audit
from holdfast.testing.conformance.limits import (
    ENTERED,
    NOW_TURN,
    WAITS,
    T,
    ask,
    declare,
    enter,
    give_back,
    leave,
    some,
    turns,
    used,
)
from holdfast.testing.conformance.samples import LEASE, NOW, SECOND, extra, one

KEEP = LimitAnswer("entered", keep=True)


async def busy(store: Store, count: int = 4, worker: str = "w") -> Sequence[RunRow]:
    """Let steps of so many runs enter the limit for one worker; return the runs and one more."""
    runs = await some(store, count + 1)
    for run in runs[:count]:
        assert (await ask(store, run, worker=worker)).outcome == "entered"
    return runs


class KeptPlaceConformance:
    """Places that workers keep."""

    async def test_a_worker_that_is_busy_under_a_limit_that_is_half_empty_may_keep_places(self, store: Store) -> None:
        """S4-19 Not one that has a few, nor one of a limit of which more than half is used."""
        await declare(store, at_once=10)
        runs = await some(store, 6)
        assert [await ask(store, run) for run in runs] == [ENTERED, ENTERED, ENTERED, KEEP, KEEP, ENTERED]

    async def test_a_worker_may_keep_no_place_under_a_rate_or_a_circuit(self, store: Store) -> None:
        """S4-19 What begins, and how it ends, is to be known to the store."""
        await declare(store, rate=100, per=SECOND)
        runs = await some(store, 6)
        assert [await ask(store, run) for run in runs] == [ENTERED] * 6
        await declare(store, trip_after=3)
        assert await ask(store, runs[0], "a1") == ENTERED

    async def test_an_attempt_that_has_a_kept_place_changes_nothing_that_is_counted(self, store: Store) -> None:
        """S4-19"""
        await declare(store, at_once=10)
        *_, last = await busy(store)
        assert await ask(store, last, counted=4) == KEEP
        assert await used(store) == (4, 0, 0)

    async def test_a_kept_place_of_which_a_step_waits_goes_to_that_step(self, store: Store) -> None:
        """S4-19 The attempt that was to have it waits behind it."""
        await declare(store, at_once=8)
        *_, last = await busy(store)
        first, second = await some(store, 2)
        for _ in range(4):
            await ask(store, last, worker="other")
        assert await ask(store, first, worker="other") == WAITS
        assert await ask(store, second, counted=4) == WAITS
        assert await turns(store, first) == [NOW_TURN]
        assert await used(store) == (7, 1, 1)

    async def test_a_kept_place_begins_nothing_under_a_limit_that_is_paused(self, store: Store) -> None:
        """S4-19 A pause is in force from its commit."""
        await declare(store, at_once=10)
        *_, last = await busy(store)
        audit = Audit(actor="ann", action="pause limit")
        await one(store, PauseLimit(name="api", paused=True, at=NOW, now=T, audit=audit), Done)
        assert await ask(store, last, counted=4) == WAITS
        assert await used(store) == (3, 0, 1)

    async def test_a_kept_place_begins_nothing_under_a_key_that_is_held_back(self, store: Store) -> None:
        """S4-19 RetryAfter of one step holds back all."""
        await declare(store, at_once=10)
        runs = await busy(store, 5)
        await give_back(store, runs[0], hold=SECOND)
        assert await ask(store, runs[-1], counted=4) == WAITS

    async def test_a_kept_place_begins_nothing_above_numbers_that_were_lowered(self, store: Store) -> None:
        """S4-19"""
        await declare(store, at_once=10)
        *_, last = await busy(store)
        await declare(store, at_once=3)
        assert await ask(store, last, counted=4) == WAITS
        assert await used(store) == (3, 0, 1)

    async def test_a_kept_place_of_a_worker_that_was_declared_dead_is_none(self, store: Store) -> None:
        """S4-19 What was counted for it is gone: it asks as any other."""
        await declare(store, at_once=10)
        await store.join("hung", LEASE)
        *_, last = await busy(store, worker="hung")
        await store.leave("hung")
        assert await used(store) == (0, 0, 0)
        assert await ask(store, last, worker="hung", counted=4) == ENTERED
        assert await used(store) == (1, 0, 0)

    async def test_kept_places_and_others_may_be_used_in_one_batch(self, store: Store) -> None:
        """S4-19 In the order of the batch, and in one turn too."""
        await declare(store, at_once=10)
        runs = await busy(store)
        outcomes = await store.apply(
            [
                extra(runs[4].key, enters=[enter("a0", counted=4), enter("a1")]),
                extra(runs[0].key, exits=[leave()], enters=[enter("a1")]),
            ]
        )
        assert [each.limits for each in outcomes if isinstance(each, Committed)] == [
            {"a0": KEEP, "a1": KEEP},
            {"a1": KEEP},
        ]
        assert await used(store) == (5, 0, 0)
