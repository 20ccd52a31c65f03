"""Limits of attempts in queues: the place is taken with the task and given back with its end; others are in line."""

from __future__ import annotations

import asyncio

from holdfast.contract.limits import GRANTED_FOR, GrantTurns, LimitAnswer, PauseLimit, TakeTasks, TasksTaken
from holdfast.contract.operations import (
    Committed,
    Delivered,
    Done,
    Fenced,
    FinishTask,
    Pause,
    PauseWork,
    Terminate,
    Unpause,
)
from holdfast.contract.rows import RunRow
from holdfast.contract.store import Store
from holdfast.contract.turns import LeaveLimit, NewTask
from holdfast.testing.conformance.limits import (
    ENTERED,
    NOW_TURN,
    WAITS,
    T,
    ask,
    declare,
    give_back,
    leave,
    turns,
    used,
)
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    Another,
    ended,
    extra,
    one,
    parked,
    row,
    started,
    turn,
)

QUEUES, NAMES = ["gpu"], ["train"]


async def handed_out(
    store: Store, location: str = "a0", *, key: str = "", priority: int = 0, at: int = NOW, workflow: str = "order"
) -> RunRow:
    """Start a run of worker `w` that is parked with an attempt in a queue; worker `v` is announced, too."""
    run = await started(store, at=at, workflow=workflow)
    await store.join("v", LEASE)
    task = NewTask(
        location=location, attempt=1, queue="gpu", activity="train", payload="1", priority=priority, limit_key=key
    )
    await one(store, extra(run.key, at=at, state=parked(), tasks=[task]), Committed)
    return await row(store, run.id)


async def take(
    store: Store, room: int = 9, *, worker: str = "v", now: int = T, at_once: int | None = None, oldest: bool = False
) -> TasksTaken:
    """Take attempts from the queue, each with its place."""
    return await one(
        store,
        TakeTasks(
            worker=worker,
            limit="api",
            room=room,
            queues=QUEUES,
            activities=NAMES,
            at=NOW,
            now=now,
            at_once={} if at_once is None else {"gpu": at_once},
            oldest=oldest,
        ),
        TasksTaken,
    )


def runs_of(taken: TasksTaken) -> list[int]:
    """Return the runs of the attempts that were taken, in order."""
    return [each.task.run for each in taken.tasks]


def finish(run: RunRow, location: str = "a0", left: LeaveLimit | None = None) -> FinishTask:
    """Return the end of an attempt of worker `v`, which leaves the limit."""
    leaving = left if left is not None else leave(worker="v")
    return FinishTask(run=run.key, location=location, attempt=1, worker="v", payload="2", at=NOW, leave=leaving)


class LimitedTaskConformance:
    """Attempts in queues whose activity names a limit."""

    async def test_a_task_is_taken_with_its_place_and_gives_it_back_with_its_end(self, store: Store) -> None:
        """S4-19"""
        await declare(store, at_once=2)
        run = await handed_out(store, key="acme")
        taken = await take(store)
        [each] = taken.tasks
        assert (each.task.run, each.task.run_id, each.task.location, each.task.attempt) == (run.key, run.id, "a0", 1)
        assert (each.key, each.answer) == ("acme", ENTERED)
        assert await used(store) == (1, 0, 0)
        assert await store.held_tasks("v") == [(run.key, "a0", 1)]
        await one(store, finish(run, left=leave(key="acme", worker="v")), Delivered)
        assert await used(store) == (0, 0, 0)
        assert await store.limit_keys("api", 9) == []

    async def test_a_limit_that_was_never_declared_is_unknown_and_the_task_is_taken_to_say_so(
        self, store: Store
    ) -> None:
        """S4-19"""
        await handed_out(store)
        assert [each.answer for each in (await take(store)).tasks] == [LimitAnswer("unknown")]

    async def test_no_more_are_taken_than_there_are_places_and_the_others_are_in_line(self, store: Store) -> None:
        """S4-19 In line no worker takes them, with or without a limit."""
        await declare(store, at_once=1)
        first, second, third = [await handed_out(store, at=NOW + n) for n in range(3)]
        assert runs_of(await take(store)) == [first.key]
        assert await used(store) == (1, 0, 2)
        assert [(row.waiting, row.taken, row.oldest) for row in await store.queues()] == [(2, 1, NOW + 1)]
        assert await store.limited_tasks("api", QUEUES, NAMES) == (False, None)
        assert await take(store) == TasksTaken()
        assert await store.claim_tasks("v", NOW, 9, QUEUES, NAMES) == []
        await one(store, finish(first), Delivered)
        assert await used(store) == (0, 1, 1)
        assert await store.limited_tasks("api", QUEUES, NAMES) == (True, None)
        assert runs_of(await take(store)) == [second.key]
        assert await used(store) == (1, 0, 1)
        await one(store, finish(second), Delivered)
        assert runs_of(await take(store)) == [third.key]

    async def test_steps_and_tasks_are_in_one_line(self, store: Store) -> None:
        """S4-19 B22 By priority, then as they came."""
        await declare(store, at_once=1)
        step = await started(store)
        assert await ask(store, step) == ENTERED
        low = await handed_out(store, at=NOW)
        assert (await take(store)).tasks == ()
        other = await started(store)
        await ask(store, other)
        high = await handed_out(store, priority=5, at=NOW + 9)
        assert (await take(store)).tasks == ()
        await give_back(store, step)
        assert runs_of(await take(store)) == [high.key]
        await one(store, finish(high), Delivered)
        assert runs_of(await take(store)) == [low.key]
        await one(store, finish(low), Delivered)
        assert await turns(store, other) == [("a0", "api", "")]
        assert await used(store) == (0, 1, 0)

    async def test_a_key_that_is_full_keeps_no_other_waiting(self, store: Store) -> None:
        """S4-19"""
        await declare(store, per_key_at_once=1)
        a, more, b = [await handed_out(store, key=key, at=NOW + n) for n, key in enumerate(["a", "a", "b"])]
        assert runs_of(await take(store, 1)) == [a.key]
        assert runs_of(await take(store, 1)) == [b.key]
        await one(store, finish(a, left=leave(key="a", worker="v")), Delivered)
        assert runs_of(await take(store)) == [more.key]

    async def test_many_in_line_do_not_make_one_claim_long(self, store: Store) -> None:
        """S4-19 After a hundred it is told that there may be more."""
        await declare(store, per_key_at_once=1)
        run = await started(store)
        await store.join("v", LEASE)
        tasks = [
            NewTask(location=f"a{n}", attempt=1, queue="gpu", activity="train", payload="", limit_key="a")
            for n in range(120)
        ]
        await one(store, extra(run.key, state=parked(), tasks=tasks), Committed)
        assert len((await take(store, 1)).tasks) == 1
        taken = await take(store, 1)
        assert (taken.tasks, taken.more) == ((), True)
        assert (await take(store, 1)).more is False
        assert await used(store) == (1, 0, 119)

    async def test_a_rate_says_from_when_on_the_first_in_line_may_be_taken(self, store: Store) -> None:
        """S4-19"""
        await declare(store, rate=1, per=10 * SECOND)
        first, second, third = [await handed_out(store, at=NOW + n) for n in range(3)]
        taken = await take(store)
        assert (runs_of(taken), taken.turn) == ([first.key], T + 10 * SECOND)
        await one(store, finish(first), Delivered)
        early = await take(store, now=T + 9 * SECOND)
        assert (early.tasks, early.turn) == ((), T + 10 * SECOND)
        assert await store.limited_tasks("api", QUEUES, NAMES) == (False, T + 10 * SECOND)
        taken = await take(store, now=T + 10 * SECOND)
        assert (runs_of(taken), taken.turn) == ([second.key], T + 20 * SECOND)
        assert runs_of(await take(store, now=T + 20 * SECOND)) == [third.key]

    async def test_what_a_service_says_holds_tasks_back(self, store: Store) -> None:
        """S4-19"""
        await declare(store, at_once=5)
        first = await handed_out(store)
        await take(store)
        held = leave(worker="v", hold=60 * SECOND)
        await one(store, finish(first, left=held), Delivered)
        second = await handed_out(store)
        taken = await take(store, now=T + SECOND)
        assert (taken.tasks, taken.turn) == ((), T + 60 * SECOND)
        assert runs_of(await take(store, now=T + 60 * SECOND)) == [second.key]

    async def test_one_task_probes_while_the_others_wait(self, store: Store) -> None:
        """S4-19"""
        await declare(store, trip_after=1, cool_down=10 * SECOND)
        first, second, third = [await handed_out(store, at=NOW + n) for n in range(3)]
        assert runs_of(await take(store, 1)) == [first.key]
        await one(store, finish(first, left=leave(worker="v", verdict="failed")), Delivered)
        taken = await take(store, now=T + SECOND)
        assert (taken.tasks, taken.turn) == ((), T + 10 * SECOND)
        [probe] = (await take(store, now=T + 10 * SECOND)).tasks
        assert (probe.task.run, probe.answer.probe) == (second.key, True)
        assert (await take(store, now=T + 11 * SECOND)).tasks == ()
        ok = leave(worker="v", verdict="ok", probe=True, now=T + 12 * SECOND)
        await one(store, finish(second, left=ok), Delivered)
        assert runs_of(await take(store, now=T + 12 * SECOND)) == [third.key]

    async def test_a_pause_of_the_limit_holds_tasks_back(self, store: Store) -> None:
        """S4-19"""
        await declare(store, at_once=1)
        await one(store, PauseLimit(name="api", paused=True, at=NOW, now=T), Done)
        run = await handed_out(store)
        assert (await take(store)).tasks == ()
        await one(store, PauseLimit(name="api", paused=False, at=NOW, now=T), Done)
        assert runs_of(await take(store)) == [run.key]

    async def test_a_turn_that_no_worker_takes_goes_to_the_next(self, store: Store) -> None:
        """S4-19 The one that had it is not in line any more: it asks again, at the back."""
        await declare(store, at_once=1)
        first, second, third = [await handed_out(store, at=NOW + n) for n in range(3)]
        await take(store)
        await one(store, finish(first), Delivered)
        after = T + GRANTED_FOR + 1
        assert await store.limits_to_see_to(after)
        await one(store, GrantTurns(at=NOW, now=after), Done)
        assert await used(store) == (0, 1, 0)
        taken = await take(store, now=after)
        assert runs_of(taken) == [third.key]
        assert await used(store) == (1, 0, 1)
        await one(store, finish(third), Delivered)
        assert runs_of(await take(store, now=after)) == [second.key]

    async def test_turns_of_what_is_paused_go_to_the_next_at_once(self, store: Store) -> None:
        """S4-19 That of a step of a workflow, and that of an attempt in a queue; both ask again when they go on."""
        await declare(store, at_once=1)
        first = await handed_out(store)
        await take(store)
        paused = await started(store, workflow="bank")
        assert await ask(store, paused) == WAITS
        queued = await handed_out(store, at=NOW + 1)
        await take(store)
        last = await started(store, workflow="shop")
        assert await ask(store, last) == WAITS
        await one(store, finish(first), Delivered)
        assert await turns(store, paused) == [NOW_TURN]
        what = [("queue", "gpu"), ("workflow", "bank")]
        assert not await store.limits_to_see_to(T, [("workflow", "shop")])
        assert await store.limits_to_see_to(T, what)
        await one(store, GrantTurns(at=NOW, now=T, paused=what), Done)
        assert (await turns(store, last), await used(store)) == ([NOW_TURN], (0, 1, 0))
        assert not await store.limits_to_see_to(T, what)
        assert await ask(store, paused) == WAITS
        assert await ask(store, last) == ENTERED
        await give_back(store, last)
        assert await ask(store, paused) == ENTERED
        await give_back(store, paused)
        assert runs_of(await take(store)) == [queued.key]

    async def test_attempts_of_a_paused_workflow_stay_in_their_queue(self, store: Store) -> None:
        """Those of others are taken; with and without a limit, by priority and oldest first."""
        await declare(store, at_once=9)
        paused, other = await handed_out(store, at=NOW, workflow="bank"), await handed_out(store, at=NOW + 1)
        await one(store, PauseWork(kind="workflow", name="bank", at=NOW), Done)
        for oldest in (False, True):
            assert runs_of(await take(store, oldest=oldest)) == ([] if oldest else [other.key])
            assert await store.claim_tasks("v", NOW, 9, QUEUES, NAMES, oldest=oldest) == []
        await one(store, PauseWork(kind="workflow", name="bank", at=NOW, paused=False), Done)
        assert [task.run for task in await store.claim_tasks("v", NOW, 9, QUEUES, NAMES)] == [paused.key]

    async def test_the_places_of_tasks_go_with_their_worker(self, store: Store) -> None:
        """S4-19 G4 The attempt is told as lost, and the next in line may begin."""
        await declare(store, at_once=1)
        first, second = [await handed_out(store, at=NOW + n) for n in range(2)]
        await take(store)
        await store.leave("v")
        assert await used(store) == (0, 1, 0)
        assert runs_of(await take(store, worker="w")) == [second.key]
        assert await one(store, finish(first), Fenced) == Fenced(first.key)
        assert await used(store) == (1, 0, 0)

    async def test_what_waits_tells_how_its_limit_stands(self, store: Store) -> None:
        """S2-39"""
        await declare(store, at_once=1, rate=5, per=10 * SECOND)
        first, second = [await handed_out(store, key="a", at=NOW + n) for n in range(2)]
        await take(store)
        assert await store.limit_waits(first.key) == []
        [wait] = await store.limit_waits(second.key)
        assert (wait.location, wait.limit, wait.key, wait.since, wait.granted) == ("a0", "api", "a", T, None)
        assert (wait.paused, wait.held_until, wait.open_until, '"rate":5' in wait.spec) == (False, 0, None, True)
        await one(store, PauseLimit(name="api", paused=True, at=NOW, now=T), Done)
        [wait] = await store.limit_waits(second.key)
        assert wait.paused
        assert await store.admission(second.key) is None

    async def test_a_worker_that_is_not_alive_takes_nothing(self, store: Store) -> None:
        await declare(store, at_once=1)
        await handed_out(store)
        assert (await take(store, worker="stranger")).tasks == ()
        assert await used(store) == (0, 0, 0)

    async def test_an_end_that_is_refused_gives_nothing_back(self, store: Store) -> None:
        """G5 What it had is given back by an operation of its own, or with its worker."""
        await declare(store, at_once=1)
        run = await handed_out(store)
        await take(store)
        await one(store, extra(run.key, untasks=["a0"]), Committed)
        await one(store, finish(run), Fenced)
        assert await used(store) == (1, 0, 0)

    async def test_a_task_in_line_goes_with_its_step_and_its_run(self, store: Store) -> None:
        """S4-19 B7"""
        await declare(store, at_once=1)
        first, given_up, ends, last = [await handed_out(store, at=NOW + n) for n in range(4)]
        assert runs_of(await take(store)) == [first.key]
        assert await used(store) == (1, 0, 3)
        await one(store, extra(given_up.key, untasks=["a0"]), Committed)
        assert await used(store) == (1, 0, 2)
        await one(store, Terminate(target=ends.id, end=ended()), Done)
        assert await used(store) == (1, 0, 1)
        await one(store, finish(first), Delivered)
        assert runs_of(await take(store)) == [last.key]

    async def test_a_paused_run_leaves_the_line_and_asks_again_when_it_goes_on(self, store: Store) -> None:
        """S4-19 B25"""
        await declare(store, at_once=1)
        first, second = [await handed_out(store, at=NOW + n) for n in range(2)]
        await take(store)
        await one(store, turn(second.key, state=parked(released=True)), Committed)
        await one(store, Pause(target=second.id, at=NOW), Done)
        assert await used(store) == (1, 0, 0)
        await one(store, finish(first), Delivered)
        assert (await take(store)).tasks == ()
        await one(store, Unpause(target=second.id, at=NOW), Done)
        assert runs_of(await take(store)) == [second.key]

    async def test_an_attempt_that_is_put_in_the_place_of_one_in_line_takes_its_place_there(self, store: Store) -> None:
        """S4-19"""
        await declare(store, at_once=1)
        first, second = [await handed_out(store, at=NOW + n) for n in range(2)]
        await take(store)
        again = NewTask(location="a0", attempt=2, queue="gpu", activity="train", payload="", limit_key="")
        await one(store, extra(second.key, tasks=[again]), Committed)
        assert (await take(store)).tasks == ()
        assert await used(store) == (1, 0, 1)
        await one(store, finish(first), Delivered)
        assert [(each.task.run, each.task.attempt) for each in (await take(store)).tasks] == [(second.key, 2)]

    async def test_the_places_of_the_queue_hold_as_well(self, store: Store) -> None:
        """S4-19 What is in line is not counted as running."""
        await declare(store, at_once=1)
        runs = [await handed_out(store, at=NOW + n) for n in range(3)]
        assert runs_of(await take(store, at_once=2)) == [runs[0].key]
        await one(store, finish(runs[0]), Delivered)
        assert runs_of(await take(store, at_once=1)) == [runs[1].key]
        assert (await take(store, at_once=1)).tasks == ()

    async def test_the_oldest_first_whatever_their_priority(self, store: Store) -> None:
        await declare(store, at_once=9)
        old = await handed_out(store, at=NOW)
        urgent = await handed_out(store, priority=9, at=NOW + 1)
        assert runs_of(await take(store, 1, oldest=True)) == [old.key]
        assert runs_of(await take(store, 1)) == [urgent.key]

    async def test_two_stores_that_race_never_take_more_than_there_are_places(
        self, store: Store, another: Another
    ) -> None:
        """S4-19 G5"""
        await declare(store, at_once=3)
        other = await another()
        runs = {(run := await handed_out(store, at=NOW + n)).key: run for n in range(8)}
        await other.join("u", LEASE)
        done: list[int] = []
        while len(done) < len(runs):
            one_of, two_of = await asyncio.gather(take(store, 3), take(other, 3, worker="u"))
            both = [(key, "v") for key in runs_of(one_of)] + [(key, "u") for key in runs_of(two_of)]
            assert 0 < len(both) <= 3
            for key, worker in both:
                left = leave(worker=worker)
                end = FinishTask(run=key, location="a0", attempt=1, worker=worker, payload="", at=NOW, leave=left)
                await one(store, end, Delivered)
            done += [key for key, _ in both]
        assert sorted(done) == sorted(runs)
        assert await used(store) == (0, 0, 0)
