"""What holds runs back: pauses of workflows and queues, and lanes in which runs wait for their turn and for a place."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.contract.operations import (
    Committed,
    Delivered,
    Done,
    Existing,
    Pause,
    PauseWork,
    Refused,
    Reopen,
    RequestCancel,
    Started,
    Terminate,
    Unpause,
)
from holdfast.contract.rows import Claim, PausedRow, RunPlace, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import Audit, Lane, RunEnd, RunOptions, StartRun, TurnEffects
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    Another,
    ended,
    message,
    new_run,
    one,
    parked,
    row,
    turn,
)
from holdfast.testing.conformance.tasks import a_task, finish, handed_out

SUPERSEDED = RunEnd(status=Status.CANCELLED, at=NOW, error='{"type":"Superseded","message":"newer"}', payload="null")


class WorkPauseConformance:
    """Pauses of workflows and queues."""

    async def test_a_pause_stands_until_it_is_ended(self, store: Store) -> None:
        """What is paused already stays paused since then, and ending what is not paused does nothing."""
        audit = Audit(actor="ada", action="queue.pause")
        assert await store.paused() == []
        pauses = [
            PauseWork(kind="workflow", name="w", at=NOW),
            PauseWork(kind="queue", name="w", at=NOW + 1, audit=audit),
            PauseWork(kind="queue", name="w", at=NOW + 2, audit=audit),
        ]
        assert [await one(store, pause, Done) for pause in pauses] == [Done(1), Done(1), Done(0)]
        assert await store.paused() == [PausedRow("queue", "w", NOW + 1), PausedRow("workflow", "w", NOW)]
        ends = [PauseWork(kind="workflow", name=name, at=NOW + 3, paused=False) for name in ("other", "w")]
        assert [await one(store, end, Done) for end in ends] == [Done(0), Done(1)]
        assert await store.paused() == [PausedRow("queue", "w", NOW + 1)]
        assert [(row.actor, row.action, row.target) for row in await store.audit()] == [
            ("ada", "queue.pause", "queue w")
        ]


async def enter(store: Store, id: str, lane: Lane, *, at: int = NOW, **options: Any) -> Any:
    """Start a run in a lane and return the outcome."""
    run = msgspec.structs.replace(new_run(id), at=at, owner=None, options=RunOptions(lane=lane, **options))
    [outcome] = await store.apply([StartRun(run=run)])
    return outcome


async def take(store: Store, limit: int, lane: Lane | None = None, *, now: int = NOW, worker: str = "w") -> list[Claim]:
    """Let a worker take runs of the sample workflow from their lanes."""
    await store.join(worker, LEASE)
    return await store.claim_waiting(worker, now, limit, {"order": lane or Lane()})


async def ids(store: Store, limit: int, lane: Lane | None = None, *, now: int = NOW) -> list[str]:
    """Do the same and return which."""
    return [claim.id for claim in await take(store, limit, lane, now=now)]


class LaneConformance:
    """Turns and places."""

    async def test_lanes_take_turns_and_priorities_come_first(self, store: Store) -> None:
        """B22: in a lane the oldest is first."""
        for id in ("a1", "a2", "a3", "b1", "b2", "c1"):
            await enter(store, id, Lane(key=id[0]))
        await enter(store, "a9", Lane(key="a"), priority=5)
        assert await store.next_due() is None
        assert await store.claim("w", NOW, 10, ["order"]) == []
        assert await ids(store, 3) == ["a9", "a1", "b1"]
        assert await ids(store, 2) == ["c1", "a2"]
        await enter(store, "d1", Lane(key="d"))
        assert await ids(store, 10) == ["b2", "a3", "d1"]
        assert await ids(store, 10) == []
        assert await store.lane_workflows() == []

    async def test_a_run_that_is_taken_is_its_workers(self, store: Store) -> None:
        """Until then it waits for a place, is not due, and its time has not begun."""
        assert isinstance(await enter(store, "r", Lane(), timeout=SECOND), Started)
        found = await row(store, "r")
        assert (found.status, found.wait, found.due, found.owner) == (Status.PENDING, "place", None, None)
        assert await store.claim_waiting("nobody", NOW, 5, {found.workflow: Lane()}) == []
        [claim] = await take(store, 5, now=NOW + 5 * SECOND)
        assert (claim.id, claim.epoch, claim.place, claim.deadline) == ("r", 1, RunPlace.HOLDS, NOW + 6 * SECOND)
        found = await row(store, "r")
        assert (found.status, found.wait, found.owner, found.claims) == (Status.RUNNING, "", "w", 1)

    async def test_no_more_hold_a_place_than_may(self, store: Store) -> None:
        """A place is held by a run that is parked, and is free when the run has ended, in whichever way."""
        lane = Lane(at_once=2)
        for n in range(5):
            await enter(store, f"r{n}", lane)
        first, second = await take(store, 9, lane)
        assert await ids(store, 9, lane) == []
        await one(store, turn(first.key, state=parked(NOW + SECOND, released=True), epoch=first.epoch), Committed)
        assert await ids(store, 9, lane) == []
        await one(store, turn(second.key, end=ended(), epoch=second.epoch), Committed)
        assert await ids(store, 9, lane) == ["r2"]
        await one(store, Terminate(target="r0", end=SUPERSEDED), Done)
        assert await ids(store, 9, lane) == ["r3"]
        more = Lane(at_once=3)
        assert await ids(store, 9, more) == []
        assert [claim.id for claim in await store.claim_waiting("w", NOW, 9, {"order": more}, full=True)] == ["r4"]

    async def test_no_more_begin_within_a_time_than_may(self, store: Store) -> None:
        """The next turn says when there is one more."""
        lane = Lane(rate=2, per=SECOND)
        for n in range(5):
            await enter(store, f"r{n}", lane)
        assert await ids(store, 1, lane) == ["r0"]
        assert await ids(store, 9, lane, now=NOW + 10) == ["r1"]
        assert await store.next_called(["order"]) == NOW + SECOND
        assert await ids(store, 9, lane, now=NOW + SECOND - 1) == []
        assert await ids(store, 9, lane, now=NOW + SECOND) == ["r2"]
        assert await ids(store, 9, lane, now=NOW + 9 * SECOND) == ["r3", "r4"]

    async def test_a_clock_that_is_set_back_holds_a_lane_back_for_one_period_only(self, store: Store) -> None:
        lane = Lane(rate=1, per=SECOND)
        await enter(store, "r0", lane)
        await enter(store, "r1", lane)
        assert await ids(store, 9, lane, now=NOW + 1000 * SECOND) == ["r0"]
        await enter(store, "r2", lane)
        assert await ids(store, 9, lane) == []
        assert await ids(store, 9, lane, now=NOW + SECOND) == ["r1"]
        assert await ids(store, 9, lane, now=NOW + 2 * SECOND) == ["r2"]

    async def test_a_run_may_be_refused_or_stop_the_oldest(self, store: Store) -> None:
        """A refused run leaves nothing; one that is there already is returned first."""
        reject = Lane(key="k", at_once=1, on_full="reject")
        assert isinstance(await enter(store, "r0", reject), Started)
        assert await enter(store, "r1", reject) == Refused(None, "full")
        assert await store.get("r1") is None
        assert isinstance(await enter(store, "r0", reject), Existing)
        assert isinstance(await enter(store, "o0", msgspec.structs.replace(reject, key="other")), Started)
        oldest = Lane(key="c", at_once=1, on_full="cancel_oldest", end=SUPERSEDED)
        for n in range(3):
            assert isinstance(await enter(store, f"c{n}", oldest), Started)
        assert [(await row(store, f"c{n}")).status for n in range(3)] == ["cancelled", "cancelled", "pending"]
        assert (await row(store, "c0")).error == SUPERSEDED.error
        taken = {claim.id: claim for claim in await take(store, 9, Lane(at_once=1))}
        assert set(taken) == {"r0", "o0", "c2"}
        assert isinstance(await enter(store, "c3", oldest), Started)
        assert (await row(store, "c2")).status == Status.CANCELLING
        assert await ids(store, 9, Lane(at_once=1)) == []
        await one(store, turn(taken["c2"].key, end=ended(), epoch=taken["c2"].epoch), Committed)
        assert await ids(store, 9, Lane(at_once=1)) == ["c3"]

    async def test_a_window_slides_and_ends_what_waits(self, store: Store) -> None:
        lane = Lane(key="k", window=10, longest=25, end=SUPERSEDED)
        for n in range(4):
            assert isinstance(await enter(store, f"r{n}", lane, at=NOW + 8 * n), Started)
        assert [(await row(store, f"r{n}")).status for n in range(4)] == [*["cancelled"] * 3, "pending"]
        assert await ids(store, 9, lane, now=NOW + 24) == []
        assert await store.next_called(["order"]) == NOW + 25
        assert await ids(store, 9, lane, now=NOW + 25) == ["r3"]
        assert isinstance(await enter(store, "r4", lane, at=NOW + 26), Started)
        assert (await row(store, "r3")).status == Status.RUNNING
        assert await ids(store, 9, lane, now=NOW + 36) == ["r4"]

    async def test_a_run_that_waits_is_left_alone_by_messages_and_pauses(self, store: Store) -> None:
        """B25: a paused one is passed over, a cancelled one ends; a delayed one is not taken before it may begin."""
        for id in ("paused", "sent", "gone"):
            await enter(store, id, Lane())
        await enter(store, "later", Lane(), begins=NOW + SECOND)
        await one(store, message("sent"), Delivered)
        await one(store, Pause(target="paused", at=NOW), Done)
        await one(store, RequestCancel(target="gone", at=NOW), Delivered)
        assert (await row(store, "sent")).due is None
        assert await ids(store, 9) == ["sent"]
        await one(store, Unpause(target="paused", at=NOW + 1), Done)
        assert (await row(store, "paused")).wait == "place"
        assert await ids(store, 9, now=NOW + 1) == ["paused"]
        assert await ids(store, 9, now=NOW + SECOND) == ["later"]

    async def test_a_reopened_run_waits_again(self, store: Store) -> None:
        lane = Lane(at_once=1)
        await enter(store, "r", lane)
        [claim] = await take(store, 1, lane)
        await one(store, turn(claim.key, end=ended(Status.FAILED), epoch=claim.epoch), Committed)
        await enter(store, "next", lane)
        found = await row(store, "r")
        reopen = Reopen(target="r", epoch=found.epoch, cut=0, at=NOW + 1, lane=lane)
        assert await ids(store, 1, lane) == ["next"]
        await one(store, reopen, Done)
        assert (await row(store, "r")).wait == "place"
        assert await ids(store, 1, lane, now=NOW + 1) == []
        await one(store, Terminate(target="next", end=SUPERSEDED), Done)
        assert await ids(store, 1, lane, now=NOW + 1) == ["r"]

    async def test_a_run_that_was_claimed_may_enter_a_lane(self, store: Store) -> None:
        """It was started where its workflow was not known; or it is refused there, and ends."""
        await store.join("w", LEASE)
        for id in ("one", "two"):
            await store.apply([StartRun(run=msgspec.structs.replace(new_run(id), owner=None))])
        lane = Lane(at_once=1, on_full="reject", rejection=SUPERSEDED)
        claims = await store.claim("w", NOW, 9, ["order"])
        for claim in claims:
            state = msgspec.structs.replace(parked(None, released=True), status=Status.PENDING)
            await one(
                store, turn(claim.key, epoch=claim.epoch, state=state, effects=TurnEffects(enter=lane)), Committed
            )
        first, second = (claim.id for claim in claims)
        assert ((await row(store, first)).wait, (await row(store, second)).status) == ("place", Status.CANCELLED)
        assert await ids(store, 9, lane) == [first]

    async def test_two_stores_never_give_a_place_twice(self, store: Store, another: Another) -> None:
        lane = Lane(at_once=3)
        other = await another()
        for n in range(9):
            await enter(store, f"r{n}", lane)
        await other.join("v", LEASE)
        taken = [claim.id for claim in [*await take(store, 2, lane), *await take(other, 9, lane, worker="v")]]
        assert taken == ["r0", "r1", "r2"]


class AgeingConformance:
    """What waits long, and queues with places."""

    async def test_the_most_overdue_may_be_asked_for_whatever_their_priority(self, store: Store) -> None:
        """B22: of runs and of attempts; otherwise priorities are strict."""
        await store.join("w", LEASE)
        for n, priority in enumerate((-1, 5, 5, 0)):
            run = new_run(f"r{n}", at=NOW + n, options=RunOptions(priority=priority))
            await one(store, StartRun(run=run), Started)
        taken = await store.claim("w", NOW + 9, 2, ["order"], oldest=True)
        assert [claim.id for claim in taken] == ["r0", "r1"]
        assert [claim.id for claim in await store.claim("w", NOW + 9, 1, ["order"])] == ["r2"]
        for n, priority in enumerate((-1, 5, 5, 0)):
            await handed_out(store, a_task(payload=str(n), priority=priority), at=NOW + n)
        tasks = await store.claim_tasks("v", NOW, 2, ["gpu"], ["train"], oldest=True)
        assert [task.payload for task in tasks] == ["0", "1"]
        assert [task.payload for task in await store.claim_tasks("v", NOW, 1, ["gpu"], ["train"])] == ["2"]

    async def test_no_more_attempts_are_taken_from_a_queue_than_may_run_at_once(self, store: Store) -> None:
        """A place is free when its attempt has ended, or was lost with its worker."""
        runs = [await handed_out(store, a_task(payload=str(n)), at=NOW + n) for n in range(4)]
        other = await handed_out(store, a_task(queue="cpu", payload="cpu"), at=NOW + 9)
        most = {"gpu": 2}
        taken = await store.claim_tasks("v", NOW, 9, ["gpu", "cpu"], ["train"], at_once=most)
        assert sorted(task.payload for task in taken) == ["0", "1", "cpu"]
        assert await store.claim_tasks("w", NOW, 9, ["gpu"], ["train"], at_once=most) == []
        await one(store, finish(runs[0]), Delivered)
        assert [task.payload for task in await store.claim_tasks("w", NOW, 9, ["gpu"], ["train"], at_once=most)] == [
            "2"
        ]
        await store.leave("v")
        assert len(await store.claim_tasks("w", NOW, 9, ["gpu"], ["train"], at_once=most)) == 1
        assert other.key
