"""Idempotency keys: one step at a time, whichever run it belongs to, and its result for those who come later."""

from __future__ import annotations

from holdfast.contract.operations import (
    Beat,
    Committed,
    Delivered,
    Done,
    Fenced,
    KeepResult,
    KeyAnswer,
    Pause,
    Purge,
    RequestCancel,
    Terminate,
)
from holdfast.contract.rows import RunRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import LeaveKey, State, TakeKey
from holdfast.testing.conformance.samples import (
    NOW,
    SECOND,
    TERMINAL,
    end,
    ended,
    extra,
    one,
    parked,
    row,
    started,
    turn,
    unread,
)

TAKEN, HELD, CONFLICT = KeyAnswer("taken"), KeyAnswer("held"), KeyAnswer("conflict")


def take(location: str = "a0", *, digest: int = 5, activity: str = "charge") -> TakeKey:
    """Return the taking of a key."""
    return TakeKey(activity=activity, key="k", digest=digest, location=location)


def leave(result: str | None = None, expires: int = NOW + SECOND) -> LeaveKey:
    """Return the giving up of a key."""
    return LeaveKey(activity="charge", key="k", result=result, expires=expires)


async def ask(store: Store, run: RunRow, location: str = "a0", *, at: int = NOW, **fields: object) -> KeyAnswer:
    """Take the key for a step and return the answer."""
    taking = take(location, **fields)  # type: ignore[arg-type]  # digest and activity
    outcome = await one(store, extra(run.key, run.epoch, at=at, takes=[taking]), Committed)
    return outcome.keys[location]


async def told(store: Store, run: RunRow) -> list[tuple[str, str]]:
    """Return for which steps a run was told that a key may be free."""
    return [(found.name, found.id) for found in await unread(store, run.key) if found.kind == "key_freed"]


class KeyConformance:
    """Idempotency keys."""

    async def test_a_key_is_taken_by_one_step_and_held_for_all_others(self, store: Store) -> None:
        """B14: single flight; taking it again at the same place (a retry, a replay) is the holder's right."""
        first, second = await started(store), await started(store)
        assert await ask(store, first) == TAKEN
        assert await ask(store, first) == TAKEN
        assert await ask(store, second) == HELD
        assert await ask(store, first, "a1") == HELD
        assert await ask(store, second, "a2", activity="refund") == TAKEN

    async def test_of_two_takers_in_a_batch_the_first_has_it(self, store: Store) -> None:
        runs = [await started(store) for _ in range(3)]
        outcomes = await store.apply([extra(run.key, takes=[take()]) for run in runs])
        assert [outcome.keys["a0"] for outcome in outcomes if isinstance(outcome, Committed)] == [TAKEN, HELD, HELD]

    async def test_a_result_is_hit_until_it_expires(self, store: Store) -> None:
        """B14: the time to live runs from success."""
        first, second = await started(store), await started(store)
        await ask(store, first)
        await one(store, extra(first.key, leaves=[leave('"paid"')]), Committed)
        assert await ask(store, second) == KeyAnswer("hit", '"paid"')
        assert await ask(store, first, "a9", at=NOW + SECOND - 1) == KeyAnswer("hit", '"paid"')
        assert await ask(store, second, at=NOW + SECOND) == TAKEN

    async def test_another_digest_is_a_conflict(self, store: Store) -> None:
        """B14: the same key with other arguments, while it is held and while its result is kept."""
        first, second = await started(store), await started(store)
        await ask(store, first)
        assert await ask(store, second, digest=6) == CONFLICT
        await one(store, extra(first.key, leaves=[leave('"paid"')]), Committed)
        assert await ask(store, second, digest=6) == CONFLICT
        assert await ask(store, second, digest=6, at=NOW + SECOND) == TAKEN

    async def test_every_waiter_is_woken_once_by_the_commit_that_frees_a_key(self, store: Store) -> None:
        """B14: with a result or without one; who waits later is told later."""
        for result in (None, '"paid"'):
            holder, *others = [await started(store) for _ in range(4)]
            await ask(store, holder)
            for other in others:
                assert await ask(store, other) == HELD
                assert await ask(store, other) == HELD
                await one(store, turn(other.key, state=parked()), Committed)
            outcome = await one(store, extra(holder.key, at=NOW + 5, leaves=[leave(result)]), Committed)
            assert outcome.woke_others
            assert [await told(store, other) for other in others] == [[("a0", "k")]] * 3
            assert set(await store.due("w", NOW + 5)) >= {other.key for other in others}
            answers = [await ask(store, other) for other in others]
            assert answers == ([TAKEN, HELD, HELD] if result is None else [KeyAnswer("hit", result)] * 3)
            assert [await told(store, other) for other in others] == [[("a0", "k")]] * 3
            await store.apply([turn(run.key, end=ended()) for run in (holder, *others)])
            await one(store, Purge(what="keys", before=NOW + 10 * SECOND, at=NOW), Done)

    async def test_a_held_key_is_freed_by_every_end_of_its_holder(self, store: Store) -> None:
        """B14: failure and cancellation free it, and terminating; and a success that left no result."""
        for status in (*TERMINAL, None):
            holder, other = await started(store), await started(store)
            await ask(store, holder)
            await ask(store, other)
            if status is None:
                await one(store, Terminate(target=holder.id, end=ended(Status.FAILED)), Done)
            else:
                await end(store, holder, status)
            assert await told(store, other) == [("a0", "k")]
            assert await ask(store, other) == TAKEN
            await end(store, other)

    async def test_a_held_key_is_freed_when_its_holder_goes_no_further(self, store: Store) -> None:
        """B14: blocked or paused runs hold nobody up."""
        for status in (Status.BLOCKED, Status.PAUSED):
            holder, other = await started(store), await started(store)
            await ask(store, holder)
            await ask(store, other)
            await one(store, turn(holder.key, state=State(status=status, seen=0, released=True)), Committed)
            assert await told(store, other) == [("a0", "k")]
            assert await ask(store, other) == TAKEN
            await end(store, other)

    async def test_a_run_that_nobody_drives_frees_its_keys_when_it_is_paused(self, store: Store) -> None:
        holder, other = await started(store), await started(store)
        await ask(store, holder)
        await ask(store, other)
        await one(store, turn(holder.key, state=parked(released=True)), Committed)
        await one(store, Pause(target=holder.id, at=NOW), Done)
        assert await told(store, other) == [("a0", "k")]
        assert await ask(store, other) == TAKEN

    async def test_a_run_that_is_asked_to_stop_holds_its_key_until_it_has(self, store: Store) -> None:
        """B14: its step may be under way."""
        holder, other = await started(store), await started(store)
        await ask(store, holder)
        await ask(store, other)
        await one(store, RequestCancel(target=holder.id, at=NOW), Delivered)
        assert await ask(store, other) == HELD
        await end(store, holder, Status.CANCELLED)
        assert await ask(store, other) == TAKEN

    async def test_a_waiter_that_goes_away_is_not_told(self, store: Store) -> None:
        """B14: ended, blocked or paused meanwhile; it asks again when it goes on."""
        holder, gone, paused, other = [await started(store) for _ in range(4)]
        await ask(store, holder)
        for run in (gone, paused, other):
            await ask(store, run)
        await end(store, gone)
        await one(store, turn(paused.key, state=State(status=Status.PAUSED, seen=0, released=True)), Committed)
        await one(store, extra(holder.key, leaves=[leave()]), Committed)
        assert [await told(store, run) for run in (gone, paused, other)] == [[], [], [("a0", "k")]]

    async def test_only_the_holder_gives_a_key_up(self, store: Store) -> None:
        holder, other = await started(store), await started(store)
        await ask(store, holder)
        await one(store, extra(other.key, leaves=[leave('"mine"')]), Committed)
        assert await ask(store, other) == HELD
        await one(store, extra(holder.key, leaves=[leave('"paid"')]), Committed)
        await store.apply([extra(run.key, leaves=[leave()]) for run in (holder, other)])
        await end(store, holder)
        assert await ask(store, other) == KeyAnswer("hit", '"paid"')

    async def test_a_key_given_up_and_taken_in_one_turn_is_free_in_between(self, store: Store) -> None:
        run = await started(store)
        await ask(store, run)
        both = extra(run.key, leaves=[leave()], takes=[take("a1", digest=9)])
        assert (await one(store, both, Committed)).keys == {"a1": TAKEN}

    async def test_a_late_result_is_kept_while_the_key_is_still_the_runs(self, store: Store) -> None:
        """B14: it serves the next attempt, and whoever waits."""
        holder, other = await started(store), await started(store)
        await ask(store, holder)
        await ask(store, other)
        assert await one(store, KeepResult(run=holder.key, leave=leave('"late"')), Committed) == Committed(holder.key)
        assert await told(store, other) == [("a0", "k")]
        assert await ask(store, holder) == await ask(store, other) == KeyAnswer("hit", '"late"')

    async def test_a_late_result_is_not_kept_when_the_key_is_anothers(self, store: Store) -> None:
        holder, other = await started(store), await started(store)
        await ask(store, holder)
        await one(store, extra(holder.key, leaves=[leave()]), Committed)
        await ask(store, other)
        await one(store, KeepResult(run=holder.key, leave=leave('"late"')), Committed)
        assert await ask(store, holder) == HELD
        await end(store, holder)
        assert await one(store, KeepResult(run=holder.key, leave=leave('"x"')), Fenced) == Fenced(holder.key)
        assert await one(store, KeepResult(run=10**9, leave=leave('"x"')), Fenced) == Fenced(10**9)

    async def test_a_fenced_turn_takes_and_leaves_nothing(self, store: Store) -> None:
        run, other = await started(store), await started(store)
        await one(store, extra(run.key, 9, takes=[take()]), Fenced)
        assert await ask(store, other) == TAKEN
        await one(store, extra(other.key, 9, leaves=[leave()]), Fenced)
        assert await ask(store, run) == HELD

    async def test_beats_are_kept_while_a_run_is_open(self, store: Store) -> None:
        """S4-29: the last one of each step; fenced like a turn."""
        run = await started(store)
        beats = [Beat(key=run.key, epoch=1, location=f"a{n % 2}", at=NOW + n, detail=str(n)) for n in range(3)]
        assert await store.apply(beats) == [Committed(run.key)] * 3
        assert await store.beats(run.key) == {"a0": (NOW + 2, "2"), "a1": (NOW + 1, "1")}
        late = Beat(key=run.key, epoch=9, location="a0", at=NOW + 9, detail="late")
        assert await one(store, late, Fenced) == Fenced(run.key)
        assert (await row(store, run.id)).updated == NOW
        outcomes = await store.apply([beats[0], turn(run.key, end=ended()), beats[1]])
        assert outcomes == [Committed(run.key), Committed(run.key), Fenced(run.key)]
        assert await store.beats(run.key) == {}
