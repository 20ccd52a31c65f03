"""Runs that go on in another runtime: at most one side acts at any moment, and nothing that was sent is lost."""

from __future__ import annotations

import msgspec

from holdfast.contract.moves import (
    ArriveRuns,
    Arriving,
    ExpectRuns,
    FinishMove,
    ForgetArrival,
    GiveUpMove,
    Leaving,
    MarkMoving,
    MoveRow,
)
from holdfast.contract.operations import (
    Committed,
    Delivered,
    Done,
    Existing,
    Fenced,
    Nudge,
    Operation,
    Outcome,
    Pause,
    Published,
    Purge,
    Refused,
    Reopen,
    RequestCancel,
    SetAttributes,
    Terminate,
    Unpause,
)
from holdfast.contract.rows import InboxKind, Message, RunRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import Audit, NewRun, NewTask, Parent, RunOptions, StartChild, StartRun, State, TakeKey
from holdfast.testing.conformance.samples import (
    NOW,
    SECOND,
    a_send,
    claim,
    ended,
    entry,
    event,
    extra,
    message,
    new_run,
    one,
    optioned,
    row,
    started,
    turn,
    unread,
    wait,
)

ADDRESS = "temporal://host:7233/default"
MINE, OTHER = "mine", "other"
MOVED = Refused(Status.MOVED)
AUDIT = Audit(actor="ada", action="move")


def at_rest(*, seen: int = 0, due: int | None = None) -> State:
    """Return the state in which a worker gives a paused run up."""
    return State(status=Status.PAUSED, seen=seen, due=due, released=True)


def mark(*runs: RunRow, token: str = MINE, paused: bool = False, until: int | None = None, at: int = NOW) -> MarkMoving:
    """Return the first step of a move, of runs as they were seen."""
    leaving = [Leaving(id=run.id, epoch=run.epoch, paused=paused, until=until) for run in runs]
    return MarkMoving(target=runs[0].id, token=token, at=at, runs=leaving, address=ADDRESS, audit=AUDIT)


def finish(run: RunRow, seen: int = 0, token: str = MINE) -> FinishMove:
    """Return the last step of a move."""
    return FinishMove(target=run.id, token=token, at=NOW + 9, seen=seen)


def give_up(run: RunRow, token: str = MINE) -> GiveUpMove:
    """Return what takes a move back."""
    return GiveUpMove(target=run.id, token=token, at=NOW + 9)


def expect(*runs: NewRun) -> ExpectRuns:
    """Return the first step of a move from elsewhere."""
    return ExpectRuns(target=runs[0].id, token=MINE, at=NOW, runs=[*runs], address=ADDRESS, audit=AUDIT)


def arrive(run: NewRun, **fields: object) -> ArriveRuns:
    """Return the last step of one."""
    values: dict[str, object] = {"rows": [], "inbox": [], "seen": [], "status": Status.PENDING, **fields}
    coming = Arriving(id=run.id, input=run.input, **values)  # type: ignore[arg-type]  # fields of Arriving
    return ArriveRuns(target=run.id, token=MINE, at=NOW + 9, runs=[coming], audit=AUDIT)


def steps_of_a_move(run: RunRow) -> list[tuple[Operation, type[Outcome]]]:
    """Return every step of a move, and what comes of it where a run has ended."""
    again = new_run(run.id)
    return [
        (mark(run), Refused),
        (finish(run), Refused),
        (give_up(run), Done),
        (expect(again), Refused),
        (arrive(again), Done),
        (ForgetArrival(target=run.id, token=MINE, at=NOW), Done),
    ]


async def resting(store: Store, **options: object) -> RunRow:
    """Start a run that was driven by worker w and is paused."""
    run = await optioned(store, **options)  # type: ignore[arg-type]  # fields of RunOptions
    await one(store, turn(run.key, entries=[entry("a0", 1)], state=at_rest()), Committed)
    return await row(store, run.id)


async def moving(store: Store, **options: object) -> RunRow:
    """Start a run that is on its way elsewhere."""
    run = await resting(store, **options)
    await one(store, mark(run), Done)
    return await row(store, run.id)


async def moved(store: Store) -> RunRow:
    """Start a run that goes on elsewhere."""
    run = await moving(store)
    await one(store, finish(run), Done)
    return await row(store, run.id)


async def child_at_rest(store: Store, parent: RunRow) -> RunRow:
    """Start a child of a run that a worker has, and pause it before it begins."""
    child = new_run(f"{parent.id}.child", parent=Parent(parent.key, parent.id, "a0"))
    start = StartChild(run=child, location="a0", seq=1, taken="")
    await one(store, turn(parent.key, parent.epoch, children=[start]), Committed)
    await one(store, Pause(target=child.id, at=NOW), Done)
    return await row(store, child.id)


class MoveConformance:
    """Taking runs from their workers."""

    async def test_a_run_that_is_marked_acts_here_no_more(self, store: Store) -> None:
        """S3-16: one commit takes its worker's epoch, its owner and its due time, and notes token and address."""
        run = await resting(store)
        assert await one(store, mark(run, paused=True, until=NOW + SECOND), Done) == Done(1, (run.id,))
        found = await row(store, run.id)
        assert (found.status, found.epoch, found.owner, found.due) == (Status.MOVING, run.epoch + 1, None, None)
        assert found.wait == ADDRESS
        noted = MoveRow(token=MINE, address=ADDRESS, inbox=0, paused=True, until=NOW + SECOND, at=NOW)
        assert (await store.departure(run.key)).move == noted
        assert await one(store, turn(run.key, run.epoch, entries=[entry("a1", 2)]), Fenced) == Fenced(run.key)
        assert await claim(store, now=NOW + 9 * SECOND) == []
        assert [(act.actor, act.action) for act in await store.audit(run.id)] == [("ada", "move")]

    async def test_only_a_run_that_is_as_it_was_seen_is_marked(self, store: Store) -> None:
        """S3-16: one that a worker has, that went on meanwhile or that has ended stays what it is."""
        driven = await started(store)
        assert await one(store, mark(driven), Refused) == Refused(Status.RUNNING, "moved")
        run = await resting(store)
        await one(store, Unpause(target=run.id, at=NOW), Done)
        assert await one(store, mark(run), Refused) == Refused(Status.PENDING, "moved")
        [taken] = await claim(store)
        await one(store, turn(run.key, taken.epoch, state=at_rest()), Committed)
        assert await one(store, mark(run), Refused) == Refused(Status.PAUSED, "moved")
        again = await row(store, run.id)
        await one(store, mark(again), Done)
        assert await one(store, mark(again, token=OTHER), Refused) == Refused(Status.MOVING, "moved")
        over = await started(store)
        await one(store, turn(over.key, end=ended()), Committed)
        assert await one(store, mark(over), Refused) == Refused(Status.COMPLETED, "moved")
        missing = MarkMoving(target="x", token=MINE, at=NOW, runs=[Leaving(id="x", epoch=1)], address=ADDRESS)
        assert await one(store, missing, Refused) == Refused(None, "moved")

    async def test_a_blocked_run_may_go(self, store: Store) -> None:
        """S3-16: its history is intact, and it is tried where it arrives."""
        run = await started(store)
        state = State(status=Status.BLOCKED, seen=0, released=True, error='{"type":"x","message":"y"}')
        await one(store, turn(run.key, state=state), Committed)
        await one(store, mark(await row(store, run.id)), Done)
        assert (await row(store, run.id)).status is Status.MOVING

    async def test_a_family_goes_whole_or_not_at_all(self, store: Store) -> None:
        """S3-16: neither an open parent nor an open child stays behind; those that have ended do."""
        parent = await started(store)
        over = new_run(f"{parent.id}.over", parent=Parent(parent.key, parent.id, "a1"))
        start = StartChild(run=over, location="a1", seq=1, taken="")
        await one(store, turn(parent.key, children=[start]), Committed)
        await one(store, RequestCancel(target=over.id, at=NOW), Delivered)
        child = await child_at_rest(store, parent)
        await one(store, turn(parent.key, state=at_rest(seen=1)), Committed)
        parent = await row(store, parent.id)
        assert (await store.departure(parent.key)).children == {child.id: False}
        for alone in (parent, child):
            assert (await one(store, mark(alone), Refused)).reason == "moved"
            assert (await row(store, alone.id)).status is Status.PAUSED
        assert await one(store, mark(parent, child), Done) == Done(2, (parent.id, child.id))
        assert {(await row(store, id)).status for id in (parent.id, child.id)} == {Status.MOVING}
        assert [act.action for act in await store.audit(child.id)] == ["move"]

    async def test_a_run_with_an_attempt_in_a_queue_stays(self, store: Store) -> None:
        """S3-16: what another worker is doing, or has done and the run has not heard of, would be lost."""
        run = await started(store)
        task = NewTask(location="a0", attempt=1, queue="gpu", activity="train", payload="1")
        await one(store, extra(run.key, tasks=[task], state=at_rest()), Committed)
        run = await row(store, run.id)
        assert (await store.departure(run.key)).tasks == {"a0": 1}
        assert (await one(store, mark(run), Refused)).reason == "moved"

    async def test_a_moving_run_waits_for_no_event_and_holds_no_key(self, store: Store) -> None:
        """S3-16: what is published goes to runs that are here."""
        run = await started(store)
        taken = TakeKey(activity="charge", key="k", digest=1, location="a1")
        await one(store, extra(run.key, takes=[taken], waits=[wait("a0", "news")]), Committed)
        other = await started(store)
        await one(store, extra(other.key, takes=[msgspec.structs.replace(taken, location="a0")]), Committed)
        assert (await store.departure(other.key)).keys == [("charge", "k")]
        departure = await store.departure(run.key)
        assert (departure.keys, departure.waited) == ([], {"news": 0})
        await one(store, turn(run.key, state=at_rest()), Committed)
        await one(store, mark(await row(store, run.id)), Done)
        assert await one(store, event(), Published) == Published(0)
        departure = await store.departure(run.key)
        assert (departure.keys, departure.waited) == ([], {})
        answer = await one(store, extra(other.key, takes=[msgspec.structs.replace(taken, location="a0")]), Committed)
        assert answer.keys["a0"].outcome == "taken"

    async def test_what_is_sent_meanwhile_is_kept_and_wakes_no_worker(self, store: Store) -> None:
        """S3-16: messages from outside, from other runs, and a cancel; a second message with an id is a duplicate."""
        run = await moving(store)
        await one(store, message(run.id, '"one"', id="m", deduplicate=True), Delivered)
        assert (await one(store, message(run.id, '"one"', id="m", deduplicate=True), Delivered)).duplicate
        other = await started(store)
        await one(store, turn(other.key, sends=[a_send(run.id)]), Committed)
        await one(store, RequestCancel(target=run.id, at=NOW, compensate=True), Delivered)
        rows = await unread(store, run.key)
        assert [(each.kind, each.payload) for each in rows] == [
            (InboxKind.MESSAGE, '"one"'),
            (InboxKind.MESSAGE, "1"),
            (InboxKind.CANCEL, '{"compensate":true}'),
        ]
        found = await row(store, run.id)
        assert (found.status, found.due) == (Status.MOVING, None)
        assert await claim(store, now=NOW + 9 * SECOND) == []
        assert (await store.departure(run.key)).seen == ["m"]

    async def test_no_other_act_is_done_to_a_moving_run(self, store: Store) -> None:
        """S3-16: it may be acting elsewhere already."""
        run = await moving(store)
        acts: list[Operation] = [
            Terminate(target=run.id, end=ended(Status.CANCELLED)),
            Pause(target=run.id, at=NOW),
            Unpause(target=run.id, at=NOW),
            SetAttributes(target=run.id, attributes={"a": "1"}, at=NOW),
        ]
        for act in acts:
            assert await one(store, act, Refused) == Refused(Status.MOVING)
        assert (await one(store, Nudge(target=run.id, at=NOW), Refused)).status is Status.MOVING


class MovedConformance:
    """Tombstones, and moves that are taken back."""

    async def test_a_tombstone_is_left_once_all_that_was_sent_has_been_forwarded(self, store: Store) -> None:
        """S3-16: a message that came in between is not passed over."""
        run = await moving(store)
        await one(store, message(run.id), Delivered)
        assert await one(store, finish(run), Refused) == Refused(Status.MOVING, "inbox")
        assert await one(store, finish(run, 1, token=OTHER), Refused) == Refused(Status.MOVING, "moved")
        assert await one(store, finish(run, 1), Done) == Done(1)
        assert await one(store, finish(run, 1), Done) == Done(0)
        found = await row(store, run.id)
        assert (found.status, found.ended, found.wait) == (Status.MOVED, NOW + 9, ADDRESS)
        assert await unread(store, run.key) == []
        assert await claim(store, now=NOW + 9 * SECOND) == []
        assert [fact.location for fact in await store.history(run.key)] == ["a0"]

    async def test_a_tombstone_takes_nothing_and_keeps_its_id(self, store: Store) -> None:
        """S3-16: every act is refused as moved, also those on runs that have ended."""
        run = await moved(store)
        acts: list[Operation] = [
            message(run.id),
            RequestCancel(target=run.id, at=NOW),
            Terminate(target=run.id, end=ended(Status.CANCELLED)),
            Pause(target=run.id, at=NOW),
            Unpause(target=run.id, at=NOW),
            SetAttributes(target=run.id, attributes={"a": "1"}, at=NOW),
        ]
        for act in acts:
            assert await one(store, act, Refused) == MOVED
        reopened = Reopen(target=run.id, epoch=run.epoch, cut=1, at=NOW)
        assert await one(store, reopened, Refused) == Refused(Status.MOVED, "moved")
        [existing] = await store.apply([StartRun(run=new_run(run.id))])
        assert getattr(existing, "status", None) is Status.MOVED
        other = await started(store)
        sent = await one(store, turn(other.key, entries=[entry("a0", 1)], sends=[a_send(run.id)]), Committed)
        assert sent.refused == {"a0": f"moved {ADDRESS}"}

    async def test_a_unique_key_is_held_until_the_run_has_gone(self, store: Store) -> None:
        """S3-16: two runs with one key would both act otherwise."""
        run = await moving(store, unique_key="k")
        another = new_run(options=RunOptions(unique_key="k"))
        [held] = await store.apply([StartRun(run=another)])
        assert getattr(held, "id", "") == run.id
        await one(store, finish(run), Done)
        [began] = await store.apply([StartRun(run=another)])
        assert getattr(began, "id", None) is None

    async def test_a_move_that_is_given_up_lets_the_run_go_on_here(self, store: Store) -> None:
        """S3-16: at once, at the next epoch, with what was sent to it meanwhile."""
        run = await moving(store)
        await one(store, message(run.id), Delivered)
        assert await one(store, give_up(run, token=OTHER), Done) == Done(0)
        assert await one(store, give_up(run), Done) == Done(1)
        assert await one(store, give_up(run), Done) == Done(0)
        assert (await one(store, finish(run, 1), Refused)).reason == "moved"
        [taken] = await claim(store, now=NOW + 9)
        assert (taken.id, taken.epoch) == (run.id, run.epoch + 2)
        assert [each.kind for each in await unread(store, run.key)] == [InboxKind.MESSAGE]

    async def test_a_paused_run_whose_move_is_given_up_stays_paused(self, store: Store) -> None:
        """S3-16: until when it was, unless it was cancelled meanwhile."""
        kept, stopped = await resting(store), await resting(store)
        for run in (kept, stopped):
            await one(store, mark(run, paused=True, until=NOW + SECOND), Done)
        await one(store, RequestCancel(target=stopped.id, at=NOW), Delivered)
        for run in (kept, stopped):
            await one(store, give_up(run), Done)
        assert ((found := await row(store, kept.id)).status, found.due) == (Status.PAUSED, NOW + SECOND)
        assert (await row(store, stopped.id)).status is Status.CANCELLING

    async def test_tombstones_are_purged_by_age_like_ended_runs(self, store: Store) -> None:
        """S3-16, B28: with their moves; a run that is moving never is."""
        run, going = await moved(store), await moving(store)
        purge = Purge(what=Status.MOVED, before=NOW + SECOND, at=NOW + SECOND, keep_ids=NOW + 9 * SECOND)
        assert (await one(store, purge, Done)).ids == (run.id,)
        assert await store.get(run.id) is None
        assert (await row(store, going.id)).status is Status.MOVING
        assert (await store.departure(going.key)).move is not None

    async def test_a_run_that_comes_has_its_id_and_its_mail_before_it_arrives(self, store: Store) -> None:
        """S3-16: expected once for each token, and arrived once; what was sent here comes behind what it brings."""
        new = new_run("comes")
        expected = expect(new)
        assert await one(store, expected, Done) == Done(1, (new.id,))
        assert await one(store, expected, Done) == Done(0)
        assert await one(store, msgspec.structs.replace(expected, token=OTHER), Refused) == Refused(
            Status.MOVING, "taken"
        )
        assert getattr(await one(store, StartRun(run=new), Existing), "status", None) is Status.MOVING
        await one(store, message(new.id, id="here", deduplicate=True), Delivered)
        found = await row(store, new.id)
        assert (found.status, found.owner, found.due, found.wait) == (Status.MOVING, None, None, f"from {ADDRESS}")
        assert await one(store, Pause(target=new.id, at=NOW), Refused) == Refused(Status.MOVING)
        there = Message(1, InboxKind.MESSAGE, "go", "there", "1", NOW)
        arrives = arrive(new, rows=[entry("a0", 1)], inbox=[there], seen=["there"])
        refused = msgspec.structs.replace(arrives, token=OTHER)
        assert await one(store, refused, Done) == Done(0)
        assert await one(store, arrives, Done) == Done(1, (new.id,))
        assert await one(store, arrives, Done) == Done(0)
        arrived = await row(store, new.id)
        assert (arrived.status, arrived.due, arrived.epoch > found.epoch) == (Status.PENDING, NOW + 9, True)
        assert [each.id for each in await unread(store, arrived.key)] == ["there", "here"]
        assert await store.history(arrived.key) == [entry("a0", 1)]
        again = await one(store, message(new.id, id="there", deduplicate=True), Delivered)
        assert again.duplicate

    async def test_a_tombstone_gives_way_to_the_run_that_left_it_and_to_no_other(self, store: Store) -> None:
        """S3-16: its history is that of the run; one that ended where it was is a tombstone again."""
        run = await moved(store)
        new = new_run(run.id)
        elsewhere = msgspec.structs.replace(expect(new), address="temporal://other:7233/default")
        assert await one(store, elsewhere, Refused) == Refused(Status.MOVED, "taken")
        await one(store, expect(new), Done)
        assert await one(store, ForgetArrival(target=run.id, token=OTHER, at=NOW), Done) == Done(0)
        assert await one(store, ForgetArrival(target=run.id, token=MINE, at=NOW), Done) == Done(1)
        found = await row(store, run.id)
        assert (found.status, found.wait) == (Status.MOVED, ADDRESS)
        await one(store, expect(new), Done)
        await one(store, arrive(new, rows=[entry("b0", 1), entry("b1", 2)]), Done)
        back = await row(store, run.id)
        assert (back.key, back.status, back.epoch > found.epoch) == (run.key, Status.PENDING, True)
        assert await store.history(run.key) == [entry("b0", 1), entry("b1", 2)]
        fresh = new_run("fresh")
        await one(store, expect(fresh), Done)
        await one(store, ForgetArrival(target=fresh.id, token=MINE, at=NOW), Done)
        assert await store.get(fresh.id) is None
