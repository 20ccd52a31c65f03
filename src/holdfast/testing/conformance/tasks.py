"""Attempts of steps in queues."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from holdfast.contract.operations import BeatTask, Committed, Delivered, Fenced, FinishTask, Pause, Terminate, Unpause
from holdfast.contract.rows import InboxKind, Message, RunRow, Status, Task
from holdfast.contract.store import Store
from holdfast.contract.turns import NewTask, Renewal, TakeKey
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    TERMINAL,
    Another,
    claim,
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


def a_task(
    location: str = "a0",
    attempt: int = 1,
    *,
    queue: str = "gpu",
    activity: str = "train",
    payload: str = "1",
    priority: int = 0,
) -> NewTask:
    """Return an attempt that waits in a queue."""
    return NewTask(
        location=location, attempt=attempt, queue=queue, activity=activity, payload=payload, priority=priority
    )


def finish(run: RunRow, location: str = "a0", attempt: int = 1, worker: str = "v", payload: str = "2") -> FinishTask:
    """Return the end of an attempt."""
    return FinishTask(run=run.key, location=location, attempt=attempt, worker=worker, payload=payload, at=NOW)


def beat(run: RunRow, location: str = "a0", attempt: int = 1, worker: str = "v") -> BeatTask:
    """Return progress of an attempt."""
    return BeatTask(run=run.key, location=location, attempt=attempt, worker=worker, at=NOW, detail='"half"')


async def take(
    store: Store,
    worker: str = "v",
    limit: int = 9,
    queues: tuple[str, ...] = ("gpu",),
    names: tuple[str, ...] = ("train",),
) -> list[Task]:
    """Take attempts from queues."""
    return await store.claim_tasks(worker, NOW, limit, queues, names)


async def handed_out(store: Store, *tasks: NewTask, at: int = NOW) -> RunRow:
    """Start a run of worker `w` that is parked with attempts in queues; worker `v` is announced, too."""
    run = await started(store, at=at)
    await store.join("v", LEASE)
    await one(store, extra(run.key, at=at, state=parked(), tasks=list(tasks or (a_task(),))), Committed)
    return await row(store, run.id)


class TaskConformance:
    """Attempts of steps that wait in queues for whichever worker serves them."""

    async def test_an_attempt_is_taken_with_all_that_is_known_of_it(self, store: Store) -> None:
        run = await handed_out(store, a_task(payload='{"x":[1,"é"]}'))
        [task] = await take(store)
        assert task == Task(
            run=run.key, run_id=run.id, workflow="order", location="a0", attempt=1, queue="gpu", activity="train",
            payload='{"x":[1,"é"]}',
        )  # fmt: skip
        assert await take(store) == []
        assert await store.held_tasks("v") == [(run.key, "a0", 1)]
        assert await store.held_tasks("w") == []
        [history] = await store.load([run.key])
        assert history.tasks == {"a0": 1}

    async def test_it_is_told_which_worker_took_an_attempt_of_a_run_from_a_queue(self, store: Store) -> None:
        run = await handed_out(store, a_task("a0"), a_task("a1"), a_task("a2", queue="cpu"))
        assert await store.takers([(run.key, "gpu")]) == await store.takers([]) == {}
        await take(store, limit=1)
        assert await store.takers([(run.key, "cpu"), (run.key, "gpu")]) == {(run.key, "gpu"): "v"}

    async def test_only_named_activities_of_named_queues_are_taken(self, store: Store) -> None:
        await handed_out(store, a_task("a0"), a_task("a1", queue="cpu"), a_task("a2", activity="mail"))
        assert await take(store, names=()) == []
        assert await take(store, queues=()) == []
        assert [task.location for task in await take(store, queues=("cpu", "other"), names=("mail", "train"))] == ["a1"]
        assert [task.location for task in await take(store, names=("mail", "none"))] == ["a2"]
        assert [task.location for task in await take(store, queues=("gpu", "cpu"))] == ["a0"]

    async def test_the_most_urgent_come_first_and_among_equals_the_oldest(self, store: Store) -> None:
        """B22: whichever runs, queues and activities they are of."""
        await handed_out(store, a_task("a0"), a_task("a1", priority=-5), at=NOW + 2)
        await handed_out(store, a_task("a2"), a_task("a3", priority=7, activity="mail"), at=NOW + 1)
        await handed_out(store, a_task("a4", queue="cpu"), a_task("a5", priority=7), at=NOW)
        both = {"queues": ("gpu", "cpu"), "names": ("train", "mail")}
        order = [task.location for task in await take(store, limit=2, **both)]  # type: ignore[arg-type]
        order += [task.location for task in await take(store, limit=9, **both)]  # type: ignore[arg-type]
        assert order == ["a5", "a3", "a4", "a2", "a0", "a1"]

    async def test_a_worker_that_is_not_alive_takes_nothing(self, store: Store) -> None:
        await handed_out(store)
        assert await take(store, "stranger") == []
        await store.leave("v")
        assert await take(store, "v") == []
        assert len(await take(store, "w")) == 1

    async def test_one_attempt_goes_to_one_of_two_stores_that_race_for_it(self, store: Store, another: Another) -> None:
        """G5 S2-28: twenty attempts, two workers, several rounds."""
        other = await another()
        await handed_out(
            store, *(a_task(f"a{number}") for number in range(9)), *(a_task(f"b{n}") for n in range(10, 21))
        )
        await other.join("u", LEASE)
        taken = await asyncio.gather(
            *(take(each, name, 3) for _ in range(5) for each, name in ((store, "v"), (other, "u")))
        )
        places = [task.location for tasks in taken for task in tasks]
        assert len(places) == len(set(places)) == 20
        assert sorted(
            location for _, location, _ in await store.held_tasks("v") + await store.held_tasks("u")
        ) == sorted(places)

    async def test_the_end_of_an_attempt_reaches_its_run(self, store: Store) -> None:
        """G3 S2-28: a row in its inbox, which makes it due, in place of the task."""
        run = await handed_out(store)
        await take(store)
        told = Message(1, InboxKind.TASK_ENDED, "a0", "1", "2", NOW)
        assert await one(store, finish(run), Delivered) == Delivered(run.key, "w", told)
        assert await unread(store, run.key) == [told]
        assert (await row(store, run.id)).due == NOW
        assert await store.held_tasks("v") == []
        assert (await store.load([run.key]))[0].tasks == {}
        await one(store, finish(run), Fenced)
        assert len(await unread(store, run.key)) == 1

    async def test_only_the_worker_that_has_an_attempt_may_end_it(self, store: Store) -> None:
        """G5: not somebody else, not under another number, not before it was taken."""
        run = await handed_out(store)
        await one(store, finish(run), Fenced)
        await one(store, beat(run), Fenced)
        await take(store)
        for wrong in (finish(run, worker="w"), finish(run, attempt=2), finish(run, "a1"), beat(run, worker="w")):
            await one(store, wrong, Fenced)
        assert await unread(store, run.key) == []
        await one(store, beat(run), Committed)
        assert await store.beats(run.key) == {"a0": (NOW, '"half"')}
        await one(store, finish(run), Delivered)

    async def test_a_new_attempt_replaces_the_one_at_its_place(self, store: Store) -> None:
        """G4 B1: what the old one still says is refused, and anybody may take the new one."""
        run = await handed_out(store)
        await take(store)
        await one(store, extra(run.key, tasks=[a_task(attempt=2, payload="again")]), Committed)
        assert await store.held_tasks("v") == []
        await one(store, finish(run), Fenced)
        [task] = await take(store, "w")
        assert (task.attempt, task.payload) == (2, "again")
        await one(store, finish(run, attempt=2, worker="w"), Delivered)

    async def test_an_attempt_that_was_given_up_is_gone(self, store: Store) -> None:
        """B7 S1-26: taken or not; its neighbours stay."""
        run = await handed_out(store, a_task("a0"), a_task("a1"), a_task("a2"))
        await take(store, limit=1)
        await one(store, extra(run.key, untasks=["a0", "a1"]), Committed)
        assert await store.held_tasks("v") == []
        await one(store, finish(run), Fenced)
        assert [task.location for task in await take(store)] == ["a2"]

    async def test_what_came_of_an_attempt_that_is_given_up_is_forgotten(self, store: Store) -> None:
        """G3: a new life of the run has the same places, and must not take it for its own."""
        run = await handed_out(store, a_task("a0"), a_task("a1"))
        await take(store)
        await store.apply([finish(run), finish(run, "a1")])
        renewal = Renewal(input="{}", generation=1)
        await store.apply([extra(run.key, state=None, untasks=["a0"]), turn(run.key, renewal=renewal)])
        assert [found.name for found in await unread(store, run.key)] == ["a1"]

    async def test_the_attempts_of_a_run_that_ended_are_gone(self, store: Store) -> None:
        """G6 B7"""
        for status in TERMINAL:
            run = await handed_out(store, a_task("a0"), a_task("a1"))
            await take(store, limit=1)
            await end(store, run, status)
            await one(store, finish(run), Fenced)
            await one(store, beat(run), Fenced)
            assert await take(store) == []
            assert await store.held_tasks("v") == []
            assert await unread(store, run.key) == []
        run = await handed_out(store)
        await take(store)
        await store.apply([Terminate(target=run.id, end=ended(Status.CANCELLED))])
        await one(store, finish(run), Fenced)

    async def test_a_turn_of_an_old_epoch_hands_out_and_withdraws_nothing(self, store: Store) -> None:
        """G5"""
        run = await handed_out(store)
        await one(store, extra(run.key, 7, tasks=[a_task("a1")], untasks=["a0"]), Fenced)
        assert [task.location for task in await take(store)] == ["a0"]

    async def test_an_attempt_whose_step_did_not_get_its_key_is_left_out(self, store: Store) -> None:
        """S4-28: it is somebody else's, or has been done."""
        run, other = await handed_out(store), await handed_out(store)
        key = TakeKey(activity="train", key="k", digest=1, location="b1")
        mine = await one(store, extra(run.key, takes=[key], tasks=[a_task("b1")]), Committed)
        assert mine.keys["b1"].outcome == "taken"
        theirs = await one(store, extra(other.key, takes=[key], tasks=[a_task("b1"), a_task("b2")]), Committed)
        assert theirs.keys["b1"].outcome == "held"
        taken = {(task.run, task.location) for task in await take(store)}
        assert taken == {(run.key, "a0"), (run.key, "b1"), (other.key, "a0"), (other.key, "b2")}

    async def test_the_attempts_of_a_paused_run_wait(self, store: Store) -> None:
        """B25: but one that was taken may end, which does not wake the run."""
        run = await handed_out(store, a_task("a0"), a_task("a1"))
        await take(store, limit=1)
        await one(store, turn(run.key, state=parked(released=True)), Committed)
        await store.apply([Pause(target=run.id, at=NOW)])
        assert await take(store) == []
        await one(store, finish(run), Delivered)
        found = await row(store, run.id)
        assert (found.status, found.due) == (Status.PAUSED, None)
        await store.apply([Unpause(target=run.id, at=NOW)])
        assert [task.location for task in await take(store)] == ["a1"]

    async def test_an_attempt_outlives_the_owner_of_its_run(self, store: Store) -> None:
        """S2-28 B24: the run is claimed by another, the attempt stays with its worker."""
        run = await handed_out(store)
        await take(store)
        await one(store, turn(run.key, state=parked(NOW)), Committed)
        await store.leave("w")
        await store.join("u", LEASE)
        [taken] = await claim(store, "u")
        assert taken.key == run.key
        assert (await one(store, finish(run), Delivered)).owner == "u"

    async def test_a_worker_that_leaves_hands_its_attempts_back(self, store: Store) -> None:
        """S3-24 G4: each run is told; what nobody had taken stays in its queue."""
        run, other = await handed_out(store, a_task("a0"), a_task("a1")), await handed_out(store)
        await take(store, limit=3)
        await store.apply([extra(other.key, tasks=[a_task("a5")])])
        await store.leave("v")
        for each, places in ((run, ["a0", "a1"]), (other, ["a0"])):
            found = await unread(store, each.key)
            assert [(row.kind, row.name, row.id) for row in found] == [("task_ended", place, "1") for place in places]
            assert {row.payload for row in found} == {'{"lost":"handed back"}'}
            assert (await row(store, each.id)).due is not None
        await one(store, finish(run), Fenced)
        assert [task.location for task in await take(store, "w")] == ["a5"]

    async def test_the_runs_of_a_dead_worker_s_attempts_are_told(self, store: Store, another: Another) -> None:
        """B1 B24 S2-28: how it was lost, once; a worker that hung is refused afterwards."""
        run = await handed_out(store)
        dying = await another()
        await dying.join("d", timedelta(milliseconds=50))
        assert len(await take(dying, "d")) == 1
        await asyncio.sleep(0.1)
        assert len(await store.take_over(NOW + SECOND)) == 1
        [told] = await unread(store, run.key)
        assert (told.kind, told.name, told.id, told.payload) == ("task_ended", "a0", "1", '{"lost":"lapse"}')
        await one(dying, finish(run, worker="d"), Fenced)
        await one(dying, beat(run, worker="d"), Fenced)
        assert await take(dying, "d") == []
        assert await store.held_tasks("d") == []
        assert await store.take_over(NOW + 2 * SECOND) == []
        assert len(await unread(store, run.key)) == 1
