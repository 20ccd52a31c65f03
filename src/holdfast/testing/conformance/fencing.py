"""Who may write to a run, and that no operation changes one that has ended."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

from holdfast.clock import Instant
from holdfast.contract.limits import (
    CorrectPlaces,
    GrantTurns,
    LeaveLimits,
    LimitSpec,
    PauseLimit,
    PutLimit,
    TakeTasks,
    TasksTaken,
)
from holdfast.contract.operations import (
    Acknowledge,
    Beat,
    BeatTask,
    Committed,
    Delivered,
    Done,
    DropSchedule,
    Existing,
    Fenced,
    FinishTask,
    KeepResult,
    Nudge,
    Operation,
    Outcome,
    Pause,
    PauseSchedule,
    PauseWork,
    Published,
    Purge,
    PutOnRecord,
    PutSchedule,
    Refused,
    Reopen,
    ReplayEvent,
    RequestCancel,
    SetAttributes,
    Terminate,
    Tick,
    Unblock,
    Unpause,
)
from holdfast.contract.rows import Counts, Status
from holdfast.contract.store import Store
from holdfast.contract.tokens import WriteToken
from holdfast.contract.turns import (
    Audit,
    Evidence,
    LeaveKey,
    NewLetter,
    Renewal,
    Reply,
    StartChild,
    StartRun,
    State,
    TakeKey,
    TurnEffects,
)
from holdfast.testing.conformance.moving import steps_of_a_move
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    TERMINAL,
    TO_ALL,
    TO_ONE,
    a_send,
    claim,
    end,
    ended,
    entry,
    event,
    message,
    new_run,
    one,
    parked,
    row,
    started,
    turn,
    unread,
    wait,
)

_LIMITS: list[Operation] = [
    PutLimit(name="api", spec=LimitSpec(), at=NOW, now=0),
    PauseLimit(name="api", paused=False, at=NOW, now=0),
    LeaveLimits(leaves=[], at=NOW),
    CorrectPlaces(worker="w", places=[], at=NOW, now=0),
    GrantTurns(at=NOW, now=0),
    TakeTasks(worker="w", limit="api", room=1, queues=["q"], activities=["a"], at=NOW, now=0),
]


class FencingConformance:
    """Who may write."""

    async def test_an_old_epoch_writes_nothing(self, store: Store) -> None:
        """G5, B24: a writer whose run was taken is refused: no entry, no message, no child, no state, no trim."""
        run = await started(store)
        other = await started(store, owner=None, at=NOW + 90 * SECOND)
        await one(store, turn(run.key, entries=[entry("a0", 1)], state=parked(NOW, released=True)), Committed)
        await one(store, message(run.id), Delivered)
        [taken] = await claim(store)
        assert taken.epoch > 1
        before, neighbour = await row(store, run.id), await row(store, other.id)
        child = StartChild(run=new_run("fenced-child"), location="a2", seq=3, taken="")
        attempts: list[dict[str, Any]] = [
            {"entries": [entry("a1", 2)]},
            {"consumed": [1]},
            {"trims": [("", "z")]},
            {"sends": [a_send(other.id)]},
            {"children": [child]},
            {"state": parked()},
            {"end": ended()},
            {"renewal": Renewal(input="2", generation=1)},
            {"reset_claims": True},
            {"effects": _everything()},
        ]
        everything = {name: value for attempt in attempts for name, value in attempt.items()}
        for attempt in [*attempts, everything]:
            assert await one(store, turn(run.key, 1, **attempt), Fenced) == Fenced(run.key)
        assert await store.apply([turn(run.key, 1, **attempt) for attempt in attempts]) == [Fenced(run.key)] * 10
        assert await row(store, run.id) == before
        assert await row(store, other.id) == neighbour
        assert await store.get("fenced-child") is None
        assert await store.history(run.key) == [entry("a0", 1)]
        assert len(await unread(store, run.key, 0)) == 1
        assert await store.counts() == Counts(runs={"running": 1, "pending": 1}, letters=[], events={})
        assert (await store.replies(["q"]), await store.evidence(run.id)) == ({}, [])

    async def test_a_future_epoch_or_a_run_that_is_not_there_is_fenced(self, store: Store) -> None:
        run = await started(store)
        assert await one(store, turn(run.key, 2, entries=[entry("a0", 1)]), Fenced) == Fenced(run.key)
        assert await one(store, turn(10**12, 1, entries=[entry("a0", 1)]), Fenced) == Fenced(10**12)

    async def test_a_refused_turn_spoils_no_other_of_the_batch(self, store: Store) -> None:
        runs = [await started(store) for _ in range(6)]
        turns = [turn(run.key, 1 + n % 2, entries=[entry("a0", 1)], state=parked()) for n, run in enumerate(runs)]
        outcomes = await store.apply(turns)
        assert [type(outcome) for outcome in outcomes] == [Committed, Fenced] * 3
        for n, run in enumerate(runs):
            assert len(await store.history(run.key)) == 1 - n % 2
            assert ((await row(store, run.id)).status == Status.SUSPENDED) == (n % 2 == 0)

    async def test_only_one_of_two_claims_gets_a_run(self, store: Store) -> None:
        """S2-28: a run is claimed atomically."""
        await store.join("w", LEASE)
        await store.join("v", LEASE)
        runs = [await started(store, owner=None) for _ in range(20)]
        both = await asyncio.gather(claim(store, "w", limit=15), claim(store, "v", limit=15))
        assert sorted(taken.key for half in both for taken in half) == [run.key for run in runs]


class TerminalConformance:
    """Terminal is final."""

    async def test_no_operation_changes_a_run_that_has_ended(self, store: Store) -> None:
        """G6, S2-30, B8: status, output and error stay, by every operation of the contract but Reopen."""
        for status in TERMINAL:
            run = await started(store)
            await one(
                store, turn(run.key, entries=[entry("a0", 1)], end=ended(status, output='"o"', error='"e"')), Committed
            )
            before = await row(store, run.id)
            assert (before.status, before.output, before.error) == (status, '"o"', '"e"')
            assert (before.ended, before.owner, before.due, before.wait) == (NOW, None, None, "")
            audit = Audit(actor="somebody", action="tries")
            operations: list[tuple[Operation, type[Outcome]]] = [
                (turn(run.key, entries=[entry("a1", 2)]), Fenced),
                (turn(run.key, state=State(status=Status.RUNNING, seen=0)), Fenced),
                (turn(run.key, end=ended(Status.FAILED, error="x")), Fenced),
                (turn(run.key, renewal=Renewal(input="", generation=1)), Fenced),
                (StartRun(run=new_run(run.id, owner="w")), Existing),
                (message(run.id), Refused),
                (RequestCancel(target=run.id, at=NOW), Refused),
                (Unblock(at=NOW, target=run.id), Done),
                (Unblock(at=NOW, workflow="order", fingerprint="other"), Done),
                (message(run.id, deduplicate=True), Refused),
                (message(run.id, dead_letter=True), Delivered),
                (RequestCancel(target=run.id, at=NOW, compensate=True, audit=audit), Refused),
                (Terminate(target=run.id, end=ended(Status.FAILED), audit=audit), Refused),
                (Pause(target=run.id, at=NOW, until=NOW + SECOND), Refused),
                *((each(target=run.id, at=NOW), Refused) for each in (Unpause, Nudge)),
                (Reopen(target=run.id, epoch=run.epoch + 1, cut=1, at=NOW), Refused),
                (SetAttributes(target=run.id, attributes={}, at=NOW), Done),
                *steps_of_a_move(before),
                *((event(rule=rule), Published) for rule in (TO_ONE, TO_ALL)),
                *((each, Done) for each in (Acknowledge(letter="none", at=NOW), _shown(run.id))),
                (ReplayEvent(letter="none", at=NOW, target=run.id), Refused),
                (KeepResult(run=run.key, leave=LeaveKey(activity="a", key="k", result="1")), Fenced),
                (Beat(key=run.key, epoch=1, location="a0", at=NOW, detail=""), Fenced),
                (FinishTask(run=run.key, location="a0", attempt=1, worker="w", payload="1", at=NOW), Fenced),
                (BeatTask(run=run.key, location="a0", attempt=1, worker="w", detail="", at=NOW), Fenced),
                (_schedule(NOW), Done),
                (PauseSchedule(id="s", paused=False, next=NOW, at=NOW), Done),
                (_tick(run.id, NOW), Done),
                (DropSchedule(id="s", at=NOW), Done),
                *((each, Done) for each in (PauseWork(kind="queue", name="q", at=NOW), WriteToken(id="t", at=NOW))),
                *((Purge(what=what, before=NOW, at=NOW), Done) for what in ("work", "event", "queued", "keys", "ids")),
                *((each, TasksTaken if isinstance(each, TakeTasks) else Done) for each in _LIMITS),
                *((Purge(what=other, before=NOW, at=NOW), Done) for other in TERMINAL),
            ]
            assert {type(operation) for operation, _ in operations} == set(get_args(Operation))
            for operation, expected in operations:
                await one(store, operation, expected)
            outcomes = await store.apply([operation for operation, _ in operations])
            assert [type(outcome) for outcome in outcomes] == [expected for _, expected in operations]
            assert await claim(store, now=NOW + 1000 * SECOND) == []
            await store.leave("w")
            await store.take_over(NOW)
            assert await row(store, run.id) == before
            assert await store.history(run.key) == [entry("a0", 1)]
            assert await unread(store, run.key) == []
            assert await one(store, Reopen(target=run.id, epoch=1, cut=1, at=NOW), Done) == Done(1)
            assert (await row(store, run.id)).status is Status.PENDING
            await one(store, Terminate(target=run.id, end=ended()), Done)

    async def test_an_ended_run_refuses_with_its_status(self, store: Store) -> None:
        """S2-11: an unknown target and an ended one are told apart."""
        for status in TERMINAL:
            run = await started(store)
            await end(store, run, status)
            assert await one(store, message(run.id), Refused) == Refused(status)
            assert await one(store, RequestCancel(target=run.id, at=NOW), Refused) == Refused(status)
        assert await one(store, message("nobody"), Refused) == Refused(None)
        assert await one(store, RequestCancel(target="nobody", at=NOW), Refused) == Refused(None)

    async def test_the_end_empties_the_inbox(self, store: Store) -> None:
        run = await started(store)
        await store.apply([message(run.id) for _ in range(5)])
        await end(store, run)
        assert await unread(store, run.key, 0) == []

    async def test_two_ends_in_a_batch_give_one(self, store: Store) -> None:
        run = await started(store)
        outcomes = await store.apply([turn(run.key, end=ended()), turn(run.key, end=ended(Status.FAILED))])
        assert outcomes == [Committed(run.key), Fenced(run.key)]
        assert (await row(store, run.id)).status == Status.COMPLETED


def _everything() -> TurnEffects:
    key = TakeKey(activity="a", key="k", digest=1, location="a0")
    return TurnEffects(
        waits=[wait()],
        unwaits=["a9"],
        returns=[1],
        publishes=[event(location="a0", seq=1)],
        attributes={"a": "1"},
        evidence=[Evidence(id="e", kind="k", data="1", at=NOW)],
        replies=[Reply(message="q", payload="1")],
        letters=[NewLetter(id="l", step="s", attempts=1, error="e")],
        takes=[key],
        leaves=[LeaveKey(activity="a", key="k")],
    )


def _shown(run: str) -> PutOnRecord:
    return PutOnRecord(target=run, at=NOW, audit=Audit(actor="ann", action="reveal"))


def _schedule(next: Instant) -> PutSchedule:
    return PutSchedule(id="s", workflow="order", spec="", input="", next=next, paused=False, at=NOW)


def _tick(id: str, expected: Instant) -> Tick:
    cancel = RequestCancel(target=id, at=NOW)
    run = new_run(id)
    return Tick(schedule="s", expected=expected, next=None, runs=[run], overlap="cancel", at=NOW, cancel=cancel)
