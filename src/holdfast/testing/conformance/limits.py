"""Limits that workers share: places by worker, steps in line, turns through inboxes, rates, and what a death leaves."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clock import to_datetime
from holdfast.contract.limits import (
    CorrectPlaces,
    GrantTurns,
    HeldPlaces,
    LeaveLimits,
    LimitAnswer,
    LimitSpec,
    PauseLimit,
    PutLimit,
)
from holdfast.contract.operations import Committed, Done, Fenced, KeyAnswer, Pause, Refused, Terminate
from holdfast.contract.rows import RunRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import Audit, EnterLimit, LeaveLimit, State, TakeKey
from holdfast.testing.clock import JumpingClock
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    end,
    ended,
    extra,
    one,
    parked,
    started,
    turn,
    unread,
)

ENTERED, WAITS = LimitAnswer("entered"), LimitAnswer("waits")
T = 5_000 * SECOND
"""A time of the lease's clock."""


def enter(
    location: str = "a0", *, key: str = "", worker: str = "w", now: int = T, priority: int = 0, counted: int = 0
) -> EnterLimit:
    """Return the entering of the limit `api`."""
    return EnterLimit(
        limit="api", key=key, location=location, worker=worker, now=now, priority=priority, counted=counted
    )


def leave(*, key: str = "", worker: str = "w", now: int = T, **fields: object) -> LeaveLimit:
    """Return the leaving of the limit `api`."""
    return LeaveLimit(limit="api", key=key, worker=worker, now=now, **fields)  # type: ignore[arg-type]  # its fields


async def declare(store: Store, **numbers: object) -> None:
    """Declare the limit `api`."""
    spec = LimitSpec(**numbers)  # type: ignore[arg-type]  # fields of LimitSpec
    await one(store, PutLimit(name="api", spec=spec, at=NOW, now=T), Done)


async def ask(store: Store, run: RunRow, location: str = "a0", **fields: object) -> LimitAnswer:
    """Let a step enter the limit and return the answer."""
    entering = enter(location, **fields)  # type: ignore[arg-type]  # fields of EnterLimit
    return (await one(store, extra(run.key, run.epoch, enters=[entering]), Committed)).limits[location]


async def give_back(store: Store, run: RunRow, **fields: object) -> Committed:
    """Let a step of a run leave the limit."""
    return await one(store, extra(run.key, run.epoch, exits=[leave(**fields)]), Committed)  # type: ignore[arg-type]


async def turns(store: Store, run: RunRow) -> list[tuple[str, str, str]]:
    """Return which turns a run was given: location, limit, from when on."""
    return [
        (found.name, found.id, found.payload) for found in await unread(store, run.key) if found.kind == "limit_turn"
    ]


async def used(store: Store) -> tuple[int, int, int]:
    """Return how many places of the limit are used, are granted, and for how many steps wait."""
    [row] = [row for row in await store.limits() if row.name == "api"]
    return row.used, row.granted, row.waiting


async def some(store: Store, count: int) -> Sequence[RunRow]:
    """Start runs that worker `w` has."""
    return [await started(store) for _ in range(count)]


NOW_TURN = ("a0", "api", "")


class LimitConformance:
    """Limits that workers share."""

    async def test_a_limit_that_was_never_declared_is_unknown(self, store: Store) -> None:
        """S4-19"""
        assert await ask(store, await started(store)) == LimitAnswer("unknown")

    async def test_as_many_enter_as_there_are_places_and_the_others_wait_in_line(self, store: Store) -> None:
        """S4-19 Also within one batch."""
        await declare(store, at_once=2)
        runs = await some(store, 4)
        outcomes = await store.apply([extra(run.key, enters=[enter()]) for run in runs])
        answers = [outcome.limits["a0"] for outcome in outcomes if isinstance(outcome, Committed)]
        assert answers == [ENTERED, ENTERED, WAITS, WAITS]
        assert await used(store) == (2, 0, 2)

    async def test_the_commit_that_frees_a_place_grants_it_to_the_first_in_line_and_to_no_other(
        self, store: Store
    ) -> None:
        """S4-19 No herd: one row in one inbox, and the place is reserved until its step begins."""
        await declare(store, at_once=1)
        first, second, third = await some(store, 3)
        await ask(store, first)
        for run in (second, third):
            assert await ask(store, run) == WAITS
            await one(store, turn(run.key, state=parked()), Committed)
        assert (await give_back(store, first)).woke_others
        assert [await turns(store, run) for run in (first, second, third)] == [[], [NOW_TURN], []]
        assert second.key in await store.due("w", NOW)
        assert await used(store) == (0, 1, 1)
        assert await ask(store, first, "a1") == WAITS
        assert await ask(store, second) == ENTERED
        assert await used(store) == (1, 0, 2)

    async def test_a_step_that_leaves_and_enters_again_comes_after_those_that_wait(self, store: Store) -> None:
        """S4-19"""
        await declare(store, at_once=1)
        first, second = await some(store, 2)
        await ask(store, first)
        await ask(store, second)
        both = await one(store, extra(first.key, exits=[leave()], enters=[enter("a1")]), Committed)
        assert both.limits == {"a1": WAITS}
        assert await turns(store, second) == [NOW_TURN]
        await ask(store, second)
        await give_back(store, second)
        assert await turns(store, first) == [("a1", "api", "")]

    async def test_a_step_that_leaves_and_enters_again_alone_keeps_its_place(self, store: Store) -> None:
        await declare(store, at_once=1)
        run = await started(store)
        await ask(store, run)
        both = await one(store, extra(run.key, exits=[leave()], enters=[enter("a1")]), Committed)
        assert both.limits == {"a1": ENTERED}
        assert await used(store) == (1, 0, 0)

    async def test_priority_comes_before_the_order_in_which_steps_came(self, store: Store) -> None:
        """S0-24 B22"""
        await declare(store, at_once=1)
        holder, *others = await some(store, 4)
        await ask(store, holder)
        for run, priority in zip(others, (0, 5, 5), strict=True):
            await ask(store, run, priority=priority)
        order = []
        for _ in others:
            await give_back(store, holder)
            [holder] = [run for run in others if run not in order and await turns(store, run)]
            order.append(holder)
            assert await ask(store, holder) == ENTERED
        assert order == [others[1], others[2], others[0]]

    async def test_asking_again_while_waiting_changes_nothing(self, store: Store) -> None:
        """A run that was claimed again asks for what it waits for already."""
        await declare(store, at_once=1)
        first, second = await some(store, 2)
        await ask(store, first)
        assert [await ask(store, second) for _ in range(3)] == [WAITS] * 3
        assert await used(store) == (1, 0, 1)
        [history] = await store.load([second.key])
        assert history.limits == {"a0": None}

    async def test_a_claimed_run_is_told_which_of_its_steps_wait_and_which_have_their_turn(self, store: Store) -> None:
        await declare(store, at_once=1)
        first, second = await some(store, 2)
        await ask(store, first)
        await ask(store, second)
        await give_back(store, first)
        [history] = await store.load([second.key])
        assert history.limits == {"a0": T}

    async def test_a_turn_that_is_not_used_in_ten_seconds_goes_to_the_next(self, store: Store) -> None:
        """S4-19 One that comes too late asks again, behind the others."""
        await declare(store, at_once=1)
        first, late, third = await some(store, 3)
        for run in (first, late, third):
            await ask(store, run)
        await give_back(store, first)
        soon, after = T + 10 * SECOND, T + 11 * SECOND
        assert not await store.limits_to_see_to(soon)
        await one(store, GrantTurns(at=NOW, now=soon), Done)
        assert await turns(store, third) == []
        assert await store.limits_to_see_to(after)
        await one(store, GrantTurns(at=NOW, now=after), Done)
        assert await turns(store, third) == [NOW_TURN]
        assert await ask(store, late, now=after) == WAITS
        assert await ask(store, third, now=after) == ENTERED
        await give_back(store, third, now=after)
        assert len(await turns(store, late)) == 2

    async def test_waiters_go_with_the_end_the_pause_and_the_block_of_their_run(self, store: Store) -> None:
        """S4-19 B7 B25 What was granted to one goes to the next."""
        for way in ("end", "terminate", "pause", "block", "withdraw", "operator"):
            await declare(store, at_once=1)
            holder, gone, following = await some(store, 3)
            for run in (holder, gone, following):
                await ask(store, run)
            await give_back(store, holder)
            assert await turns(store, gone) == [NOW_TURN]
            if way == "end":
                await end(store, gone)
            elif way == "terminate":
                await one(store, Terminate(target=gone.id, end=ended(Status.FAILED)), Done)
            elif way == "withdraw":
                await one(store, extra(gone.key, unlimits=[("a0", T)]), Committed)
            elif way == "operator":
                await one(store, turn(gone.key, state=parked(released=True)), Committed)
                await one(store, Pause(target=gone.id, at=NOW), Done)
            else:
                status = Status.PAUSED if way == "pause" else Status.BLOCKED
                await one(store, turn(gone.key, state=State(status=status, seen=9, released=True)), Committed)
            assert await turns(store, following) == [NOW_TURN], way
            assert await ask(store, following) == ENTERED
            await give_back(store, following)
            assert await used(store) == (0, 0, 0), way

    async def test_a_fenced_turn_enters_and_leaves_nothing(self, store: Store) -> None:
        await declare(store, at_once=1)
        run = await started(store)
        await one(store, extra(run.key, 9, enters=[enter()]), Fenced)
        assert await used(store) == (0, 0, 0)
        await ask(store, run)
        await one(store, extra(run.key, 9, exits=[leave()]), Fenced)
        assert await used(store) == (1, 0, 0)

    async def test_the_places_of_a_worker_go_when_it_leaves(self, store: Store) -> None:
        """S4-19 They are granted in that very transaction."""
        await declare(store, at_once=1)
        first, second = await started(store, owner="other"), await started(store)
        await ask(store, first, worker="other")
        await ask(store, second)
        await store.leave("other")
        assert await turns(store, second) == [NOW_TURN]
        assert await used(store) == (0, 1, 0)
        await one(store, LeaveLimits(leaves=[leave(worker="other")], at=NOW), Done)
        assert await used(store) == (0, 1, 0), "what it still says of them changes nothing"

    async def test_places_are_given_back_by_an_operation_of_their_own(self, store: Store) -> None:
        """A thread that was given up has its place until it returns; its run may be gone by then."""
        await declare(store, at_once=1)
        first, second = await some(store, 2)
        await ask(store, first)
        await ask(store, second)
        await end(store, first)
        assert await turns(store, second) == []
        await one(store, LeaveLimits(leaves=[leave()], at=NOW), Done)
        assert await turns(store, second) == [NOW_TURN]

    async def test_a_worker_corrects_what_is_counted_for_it(self, store: Store) -> None:
        """S4-19 Never below what it surely has, never above what it may have."""
        await declare(store, at_once=3)
        runs = await some(store, 4)
        for run in runs:
            await ask(store, run)
        right = CorrectPlaces(worker="w", places=[HeldPlaces("api", "", 2, 3)], at=NOW, now=T)
        assert await one(store, right, Done) == Done(0)
        fewer = CorrectPlaces(worker="w", places=[HeldPlaces("api", "", 1, 2)], at=NOW, now=T)
        assert await one(store, fewer, Done) == Done(1)
        assert await turns(store, runs[3]) == [NOW_TURN]
        assert await one(store, CorrectPlaces(worker="w", places=[], at=NOW, now=T), Done) == Done(2)
        assert await used(store) == (0, 1, 0)

    async def test_a_step_that_does_not_get_its_key_does_not_enter(self, store: Store) -> None:
        """B14 And one that must wait for the limit does not keep the key."""
        await declare(store, at_once=1)
        first, second, third = await some(store, 3)
        key = TakeKey(activity="charge", key="k", digest=5, location="a0")
        both = await one(store, extra(first.key, takes=[key], enters=[enter()]), Committed)
        assert (both.keys["a0"], both.limits["a0"]) == (KeyAnswer("taken"), ENTERED)
        held = await one(store, extra(second.key, takes=[key], enters=[enter()]), Committed)
        assert (held.keys["a0"], held.limits) == (KeyAnswer("held"), {})
        other = TakeKey(activity="charge", key="other", digest=5, location="a0")
        waits = await one(store, extra(third.key, takes=[other], enters=[enter()]), Committed)
        assert waits.limits == {"a0": WAITS}
        free = await one(
            store,
            extra(second.key, takes=[TakeKey(activity="charge", key="other", digest=5, location="a1")]),
            Committed,
        )
        assert free.keys["a1"] == KeyAnswer("taken")

    async def test_a_paused_limit_lets_nothing_begin_from_that_commit_on(self, store: Store) -> None:
        """S4-19 Nor what was granted before; it is on record."""
        await declare(store, at_once=1)
        first, second, third = await some(store, 3)
        await ask(store, first)
        await ask(store, second)
        await give_back(store, first)
        stop = PauseLimit(name="api", paused=True, at=NOW, now=T, audit=Audit(actor="ann", action="pause limit"))
        assert await one(store, stop, Done) == Done(1)
        assert await one(store, stop, Done) == Done(0)
        assert [await ask(store, second), await ask(store, third)] == [WAITS, WAITS]
        go = PauseLimit(name="api", paused=False, at=NOW, now=T, audit=Audit(actor="ann", action="resume limit"))
        assert await one(store, go, Done) == Done(1)
        assert await ask(store, second) == ENTERED
        assert [row.action for row in await store.audit("api")] == ["pause limit", "resume limit"]
        assert await one(store, PauseLimit(name="nothing", paused=True, at=NOW, now=T), Refused) == Refused(None)

    async def test_other_numbers_hold_at_once_and_interrupt_nothing(self, store: Store) -> None:
        """S4-19 The last word counts; an operator's numbers come before it until they are cleared."""
        await declare(store, at_once=1)
        runs = await some(store, 4)
        for run in runs:
            await ask(store, run)
        await declare(store, at_once=3)
        assert [len(await turns(store, run)) for run in runs] == [0, 1, 1, 0]
        for run in runs[1:3]:
            assert await ask(store, run) == ENTERED
        override = PutLimit(name="api", spec=LimitSpec(at_once=2), at=NOW, now=T, override=True)
        assert await one(store, override, Done) == Done(1, ids=("",))
        await declare(store, at_once=4)
        for run in runs[:2]:
            await give_back(store, run)
        assert await turns(store, runs[3]) == [NOW_TURN]
        assert await used(store) == (1, 1, 0)
        cleared = PutLimit(name="api", spec=None, at=NOW, now=T, override=True)
        assert await one(store, cleared, Done) == Done(1, ids=('{"at_once":2}',))
        [row] = await store.limits()
        assert (row.spec, row.override) == ('{"at_once":4}', None)

    async def test_other_numbers_hold_for_one_that_was_told_a_later_time(self, store: Store) -> None:
        """S4-19 It is told again, and so is one that a boot before this one told."""
        await declare(store, rate=1, per=3600 * SECOND)
        first, second = await some(store, 2)
        await ask(store, first)
        await ask(store, second)
        await declare(store, rate=9, per=3600 * SECOND)
        assert await turns(store, second) == [("a0", "api", str(NOW + 3600 * SECOND)), NOW_TURN]
        assert await ask(store, second) == ENTERED
        assert await used(store) == (2, 0, 0)

    async def test_one_that_another_boot_told_its_time_is_told_again_when_an_engine_is_opened(
        self, store: Store
    ) -> None:
        """S4-19"""
        numbers = LimitSpec(rate=1, per=10 * SECOND)
        await one(store, PutLimit(name="api", spec=numbers, at=NOW, now=T), Done)
        first, second = await some(store, 2)
        await ask(store, first)
        await ask(store, second)
        await one(store, PutLimit(name="api", spec=numbers, at=NOW, now=5 * SECOND), Done)
        assert await turns(store, second) == [("a0", "api", str(NOW + 10 * SECOND))] * 2
        assert await ask(store, second, now=14 * SECOND) == WAITS
        assert await ask(store, second, now=15 * SECOND) == ENTERED

    async def test_a_worker_that_opens_alone_moves_to_its_boot_what_another_said(self, store: Store) -> None:
        """S4-19 What lies less than a minute ahead may be of a commit that is late, unless no other worker is alive."""
        await declare(store, rate=1, per=10 * SECOND)
        first, second = await some(store, 2)
        await ask(store, first)
        await ask(store, second)
        told, now = ("a0", "api", str(NOW + 10 * SECOND)), T - 30 * SECOND
        await store.join("alive", LEASE)
        await one(store, GrantTurns(at=NOW, now=now, opens="w"), Done)
        assert await turns(store, second) == [told]
        await store.leave("alive")
        await one(store, GrantTurns(at=NOW, now=now, opens="w"), Done)
        assert await turns(store, second) == [told, told]
        assert await ask(store, second, now=now + 9 * SECOND) == WAITS
        assert await ask(store, second, now=now + 10 * SECOND) == ENTERED

    async def test_what_lies_ahead_of_a_clock_that_all_workers_read_was_said_in_another_boot(
        self, store: Store
    ) -> None:
        """S4-19 Others may be alive: it is read when the commit is made, whenever that was asked for."""
        await declare(store, rate=1, per=10 * SECOND)
        first, second = await some(store, 2)
        await ask(store, first)
        await ask(store, second)
        await store.join("alive", LEASE)
        clock = JumpingClock(to_datetime(T + SECOND))
        await one(store, GrantTurns(at=NOW, now=T - SECOND, opens="w", clock=clock), Done)
        told = ("a0", "api", str(NOW + 10 * SECOND))
        assert await turns(store, second) == [told]
        clock = JumpingClock(to_datetime(T - 30 * SECOND))
        await one(store, GrantTurns(at=NOW, now=T, opens="w", clock=clock), Done)
        assert await turns(store, second) == [told, told]
        assert await ask(store, second, now=T - 20 * SECOND) == ENTERED

    async def test_a_circuit_that_is_taken_away_lets_all_begin(self, store: Store) -> None:
        """S4-19 Not one at a time for ever."""
        await declare(store, trip_after=1, cool_down=30 * SECOND)
        runs = await some(store, 4)
        await ask(store, runs[0])
        await give_back(store, runs[0], verdict="failed")
        assert await ask(store, runs[1]) == WAITS
        await declare(store, at_once=9)
        assert await turns(store, runs[1]) == [("a0", "api", str(NOW + 30 * SECOND)), NOW_TURN]
        assert [await ask(store, run) for run in runs[1:]] == [ENTERED] * 3

    async def test_a_key_has_its_own_share_of_the_places(self, store: Store) -> None:
        """S4-19 The next in line whose key has room is granted; a key costs a row while it is in use."""
        await declare(store, at_once=3, per_key_at_once=1)
        a, another_a, b, c = await some(store, 4)
        assert await ask(store, a, key="a") == ENTERED
        assert await ask(store, another_a, key="a") == WAITS
        assert await ask(store, b, key="b") == ENTERED
        assert await ask(store, c, key="c") == ENTERED
        await give_back(store, b, key="b")
        assert await turns(store, another_a) == []
        await give_back(store, a, key="a")
        assert await turns(store, another_a) == [NOW_TURN]
        await ask(store, another_a, key="a")
        assert {(row.key, row.used) for row in await store.limit_keys("api")} == {("a", 1), ("c", 1)}
        await give_back(store, another_a, key="a")
        await give_back(store, c, key="c")
        assert await store.limit_keys("api") == []

    async def test_at_most_rate_begin_in_any_time_of_that_length(self, store: Store) -> None:
        """S4-19 Only the head of the line is told from when on it may begin; when it has begun, the next is."""
        await declare(store, rate=2, per=10 * SECOND)
        runs = await some(store, 5)
        assert [await ask(store, run) for run in runs] == [ENTERED, ENTERED, WAITS, WAITS, WAITS]
        due = str(NOW + 10 * SECOND)
        assert [await turns(store, run) for run in runs] == [[], [], [("a0", "api", due)], [], []]
        assert await ask(store, runs[2], now=T + 9 * SECOND) == WAITS
        assert await ask(store, runs[2], now=T + 10 * SECOND) == ENTERED
        assert [len(await turns(store, run)) for run in runs] == [0, 0, 2, 1, 1]
        assert await ask(store, runs[3], now=T + 10 * SECOND) == ENTERED
        assert await ask(store, runs[4], now=T + 10 * SECOND) == WAITS

    async def test_a_begin_has_spent_its_token_whatever_became_of_it(self, store: Store) -> None:
        """S4-19 Also if its worker is gone."""
        await declare(store, rate=1, per=10 * SECOND)
        first, second = await started(store, owner="other"), await started(store)
        assert await ask(store, first, worker="other") == ENTERED
        await store.leave("other")
        assert await ask(store, second, now=T + SECOND) == WAITS

    async def test_with_a_burst_begins_are_spread_and_some_come_at_once(self, store: Store) -> None:
        """S4-19 GCRA: at most rate + burst - 1 in any time of that length."""
        await declare(store, rate=10, per=10 * SECOND, burst=2)
        runs = await some(store, 4)
        assert [await ask(store, run) for run in runs] == [ENTERED, ENTERED, WAITS, WAITS]
        assert await turns(store, runs[2]) == [("a0", "api", str(NOW + SECOND))]
        assert await ask(store, runs[2], now=T + SECOND) == ENTERED
        assert await ask(store, runs[3], now=T + SECOND) == WAITS

    async def test_what_was_counted_before_a_reboot_is_as_far_away_as_it_was(self, store: Store) -> None:
        """S4-19 The time since boot begins again at zero."""
        await declare(store, rate=1, per=10 * SECOND)
        first, second = await some(store, 2)
        await ask(store, first)
        assert await ask(store, second, now=5 * SECOND) == WAITS
        assert await turns(store, second) == [("a0", "api", str(NOW + 10 * SECOND))]

    async def test_what_a_service_said_holds_back_its_limit_and_key(self, store: Store) -> None:
        """S4-19 Everything under them, for as long as it said; other keys go on."""
        await declare(store, at_once=2)
        first, second, other = await some(store, 3)
        await ask(store, first, key="a")
        await give_back(store, first, key="a", hold=60 * SECOND)
        assert await ask(store, second, key="a", now=T + SECOND) == WAITS
        assert await turns(store, second) == [("a0", "api", str(NOW + 59 * SECOND))]
        assert await ask(store, other, key="b", now=T + SECOND) == ENTERED
        assert await ask(store, second, key="a", now=T + 60 * SECOND) == ENTERED

    async def test_after_failures_in_a_row_one_attempt_tries_while_the_others_wait(self, store: Store) -> None:
        """S4-19 A success in between begins the row again; a try that fails holds all back once more."""
        await declare(store, trip_after=2, cool_down=30 * SECOND)
        first, second, third = await some(store, 3)
        for verdict in ("failed", "ok", "failed", "", "failed"):
            assert await ask(store, first) == ENTERED
            await give_back(store, first, verdict=verdict)
        assert await ask(store, second, now=T + SECOND) == WAITS
        assert await turns(store, second) == [("a0", "api", str(NOW + 29 * SECOND))]
        later = T + 30 * SECOND
        assert await ask(store, second, now=later) == LimitAnswer("entered", probe=True)
        assert await ask(store, third, now=later) == WAITS
        await give_back(store, second, now=later, verdict="failed", probe=True)
        again = later + 30 * SECOND
        assert await ask(store, third, now=again - 1) == WAITS
        assert await ask(store, third, now=again) == LimitAnswer("entered", probe=True)
        await give_back(store, third, now=again, verdict="ok", probe=True)
        assert [await ask(store, run, now=again) for run in (first, second)] == [ENTERED, ENTERED]

    async def test_a_try_whose_worker_dies_frees_the_try(self, store: Store) -> None:
        """S4-19"""
        await declare(store, trip_after=1, cool_down=SECOND)
        first, second = await started(store, owner="other"), await started(store)
        await ask(store, first, worker="other")
        await give_back(store, first, worker="other", verdict="failed")
        assert await ask(store, first, worker="other", now=T + SECOND) == LimitAnswer("entered", probe=True)
        assert await ask(store, second, now=T + SECOND) == WAITS
        await store.leave("other")
        await one(store, GrantTurns(at=NOW, now=T + SECOND), Done)
        assert await turns(store, second) == [NOW_TURN]
        assert await ask(store, second, now=T + SECOND) == LimitAnswer("entered", probe=True)
