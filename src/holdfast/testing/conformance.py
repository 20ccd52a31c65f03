"""The store contract as tests: what every store must do, whoever wrote it.

A test module makes one class from `StoreConformance` and gives it two fixtures:

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def store(self): ...      # an open store on an empty database, closed afterwards

        @pytest.fixture
        async def another(self): ...    # a function that opens one more store on the same database, or a skip

The classes it is made of can be used one by one while a store is being written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

from holdfast.clock import Instant
from holdfast.errors import StoreClosed
from holdfast.records import (
    Claim,
    Committed,
    CommitTurn,
    Delivered,
    End,
    EntryRow,
    Existing,
    Fenced,
    Message,
    NewRun,
    Operation,
    Outcome,
    Parent,
    Refused,
    Renewal,
    RequestCancel,
    RunFilter,
    RunRow,
    Send,
    SendMessage,
    StartChild,
    Started,
    StartRun,
    State,
    Status,
    Unblock,
    Unblocked,
)
from holdfast.stores.base import Store

Another = Callable[[], Awaitable[Store]]
OutcomeT = TypeVar("OutcomeT", bound=Outcome)

NOW: Instant = 1_700_000_000_000_000
LEASE = timedelta(minutes=1)
SECOND = 1_000_000
TERMINAL = [Status.COMPLETED, Status.FAILED, Status.CANCELLED]

_numbers = count(1)


def new_run(id: str = "", *, at: Instant = NOW, **fields: object) -> NewRun:
    """Return a run to insert, with an id of its own unless one is given."""
    values: dict[str, object] = {"workflow": "order", "version": "1", "input": "{}", "digest": 7, "seed": 1, **fields}
    return NewRun(id=id or f"run-{next(_numbers)}", at=at, **values)  # type: ignore[arg-type]  # fields of NewRun


def entry(location: str, seq: int, data: str = "{}") -> EntryRow:
    """Return a fact."""
    return EntryRow(location, seq, 1, NOW, data)


def turn(key: int, epoch: int = 1, *, at: Instant = NOW, **fields: object) -> CommitTurn:
    """Return a turn of a run."""
    return CommitTurn(key=key, epoch=epoch, at=at, **fields)  # type: ignore[arg-type]  # fields of CommitTurn


def parked(due: Instant | None = None, *, seen: int = 0, released: bool = False) -> State:
    """Return the state of a run that waits."""
    return State(status=Status.SUSPENDED, seen=seen, wait="message", due=due, released=released)


def ended(status: Status = Status.COMPLETED, **fields: object) -> End:
    """Return an end."""
    return End(status=status, at=NOW, **fields)  # type: ignore[arg-type]  # fields of End


def message(target: str, payload: str = "1", *, at: Instant = NOW) -> SendMessage:
    """Return a message from outside."""
    return SendMessage(target=target, name="news", id=f"m{next(_numbers)}", payload=payload, at=at)


def a_send(target: str, location: str = "a0", seq: int = 1) -> Send:
    """Return a message that a turn sends."""
    return Send(
        target=target, name="news", id="", payload="1", at=NOW, location=location, seq=seq,
        missing='"missing"', ended='"ended"',
    )  # fmt: skip


async def one(store: Store, operation: Operation, expected: type[OutcomeT]) -> OutcomeT:
    """Apply one operation and return its outcome, which must be of the kind expected."""
    [outcome] = await store.apply([operation])
    assert isinstance(outcome, expected), outcome
    return outcome


async def started(store: Store, id: str = "", *, owner: str | None = "w", at: Instant = NOW) -> RunRow:
    """Start a run that worker `w` (announced here) is running with epoch 1, or a pending one."""
    if owner:
        await store.join(owner, LEASE)
    run = new_run(id, owner=owner, at=at)
    await one(store, StartRun(run=run), Started)
    return await row(store, run.id)


async def row(store: Store, id: str) -> RunRow:
    """Return a run that must be there."""
    found = await store.get(id)
    assert found is not None
    return found


async def claim(store: Store, worker: str = "w", *, now: Instant = NOW, limit: int = 100) -> list[Claim]:
    """Claim runs of the workflow `order`."""
    return await store.claim(worker, now, limit, ["order"], '"poison"')


async def end(store: Store, run: RunRow, status: Status = Status.COMPLETED) -> None:
    """End a run as its owner would."""
    await one(store, turn(run.key, run.epoch, end=ended(status, output='"result"')), Committed)


class StartConformance:
    """Starting runs."""

    async def test_a_started_run_without_owner_is_pending_and_due_at_once(self, store: Store) -> None:
        run = new_run(input='{"n":1}', version="3")
        outcome = await one(store, StartRun(run=run), Started)
        found = await row(store, run.id)
        assert outcome == Started(found.key)
        assert (found.status, found.owner, found.due) == (Status.PENDING, None, NOW)
        assert (found.workflow, found.version, found.input) == ("order", "3", '{"n":1}')
        assert (found.output, found.error, found.parent, found.ended) == (None, None, None, None)
        assert (found.created, found.updated, found.generation, found.inbox, found.claims) == (NOW, NOW, 0, 0, 0)

    async def test_a_run_started_with_an_owner_is_running_with_epoch_1(self, store: Store) -> None:
        run = await started(store)
        assert (run.status, run.owner, run.epoch, run.due) == (Status.RUNNING, "w", 1, None)
        assert await claim(store) == []

    async def test_a_start_with_a_taken_id_writes_nothing_and_tells_what_is_there(self, store: Store) -> None:
        """G2: two starts with one id give one run, and the second learns its digest."""
        run = await started(store)
        again = StartRun(run=new_run(run.id, workflow="other", digest=8), turn=turn(0, entries=[entry("a0", 1)]))
        assert await one(store, again, Existing) == Existing(run.key, "order", 7, Status.RUNNING)
        assert await store.history(run.key) == []
        assert await row(store, run.id) == run

    async def test_two_starts_of_one_id_in_a_batch_give_one_run(self, store: Store) -> None:
        first, second = new_run("same"), new_run("same", digest=9)
        outcomes = await store.apply([StartRun(run=first), StartRun(run=second)])
        key = (await row(store, "same")).key
        assert outcomes == [Started(key), Existing(key, "order", 7, Status.PENDING)]

    async def test_the_first_turn_is_applied_with_the_start(self, store: Store) -> None:
        await store.join("w", LEASE)
        first = turn(0, 0, entries=[entry("a0", 1)], state=parked(NOW + SECOND))
        run = new_run(owner="w")
        outcome = await one(store, StartRun(run=run, turn=first), Started)
        found = await row(store, run.id)
        assert outcome.committed == Committed(found.key)
        assert (found.status, found.due, found.epoch, found.owner) == (Status.SUSPENDED, NOW + SECOND, 1, "w")
        assert await store.history(found.key) == [entry("a0", 1)]

    async def test_a_start_by_a_worker_declared_dead_is_left_for_others(self, store: Store) -> None:
        """G1: an acknowledged start is never left with an owner that nobody will take it from."""
        run = new_run(owner="never-joined")
        await one(store, StartRun(run=run, turn=turn(0, 0, entries=[entry("a0", 1)])), Started)
        await store.join("w", LEASE)
        assert [taken.id for taken in await claim(store)] == [run.id]

    async def test_payloads_come_back_as_they_were(self, store: Store) -> None:
        payload = (
            '{"nul":"\\u0000","text":"\u00e9\u4e2d\U0001f600\u2028","raw":"\x00\x7f","long":"' + "x" * 300_000 + '"}'
        )
        await store.join("w", LEASE)
        first = turn(0, entries=[entry("a0", 1, payload)])
        others = [StartRun(run=new_run(owner="w")) for _ in range(5)]
        run = new_run(input=payload, digest=2**63 - 1, seed=-(2**63), owner="w")
        [outcome, *_] = await store.apply([StartRun(run=run, turn=first), *others])
        assert isinstance(outcome, Started)
        key = outcome.key
        await store.apply([message(run.id, payload), message(run.id, payload)])
        [history] = await store.load([key])
        assert [fact.data for fact in history.entries] == [payload]
        assert [sent.payload for sent in history.messages] == [payload, payload]
        assert (await row(store, run.id)).input == payload
        again = await one(store, StartRun(run=new_run(run.id)), Existing)
        assert again.digest == 2**63 - 1
        await one(store, turn(key, end=ended(output=payload, error=payload)), Committed)
        found = await row(store, run.id)
        assert (found.output, found.error) == (payload, payload)


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
        ]
        everything = {name: value for attempt in attempts for name, value in attempt.items()}
        for attempt in [*attempts, everything]:
            assert await one(store, turn(run.key, 1, **attempt), Fenced) == Fenced(run.key)
        assert await store.apply([turn(run.key, 1, **attempt) for attempt in attempts]) == [Fenced(run.key)] * 9
        assert await row(store, run.id) == before
        assert await row(store, other.id) == neighbour
        assert await store.get("fenced-child") is None
        assert await store.history(run.key) == [entry("a0", 1)]
        assert len(await store.inbox(run.key, 0)) == 1

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
        """G6, S2-30: status, output and error stay, by every operation of the contract."""
        for status in TERMINAL:
            run = await started(store)
            await one(
                store, turn(run.key, entries=[entry("a0", 1)], end=ended(status, output='"o"', error='"e"')), Committed
            )
            before = await row(store, run.id)
            assert (before.status, before.output, before.error) == (status, '"o"', '"e"')
            assert (before.ended, before.owner, before.due, before.wait) == (NOW, None, None, "")
            operations: list[tuple[Operation, type[Outcome]]] = [
                (turn(run.key, entries=[entry("a1", 2)]), Fenced),
                (turn(run.key, state=State(status=Status.RUNNING, seen=0)), Fenced),
                (turn(run.key, end=ended(Status.FAILED, error="x")), Fenced),
                (turn(run.key, renewal=Renewal(input="", generation=1)), Fenced),
                (StartRun(run=new_run(run.id, owner="w")), Existing),
                (message(run.id), Refused),
                (RequestCancel(target=run.id, at=NOW), Refused),
                (Unblock(at=NOW, target=run.id), Unblocked),
                (Unblock(at=NOW, workflow="order", fingerprint="other"), Unblocked),
            ]
            for operation, expected in operations:
                await one(store, operation, expected)
            outcomes = await store.apply([operation for operation, _ in operations])
            assert [type(outcome) for outcome in outcomes] == [expected for _, expected in operations]
            assert await claim(store, now=NOW + 1000 * SECOND) == []
            await store.leave("w")
            await store.take_over(NOW)
            assert await row(store, run.id) == before
            assert await store.history(run.key) == [entry("a0", 1)]

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
        assert await store.inbox(run.key, 0) == []

    async def test_two_ends_in_a_batch_give_one(self, store: Store) -> None:
        run = await started(store)
        outcomes = await store.apply([turn(run.key, end=ended()), turn(run.key, end=ended(Status.FAILED))])
        assert outcomes == [Committed(run.key), Fenced(run.key)]
        assert (await row(store, run.id)).status == Status.COMPLETED


class InboxConformance:
    """Messages: none lost, none out of order."""

    async def test_a_message_sent_before_a_run_parks_is_seen_by_it(self, store: Store) -> None:
        """B12, S2-30: check and suspend are one atomic operation."""
        run = await started(store)
        sent = await one(store, message(run.id, '"early"'), Delivered)
        assert sent == Delivered(run.key, 1, "w")
        outcome = await one(store, turn(run.key, at=NOW + 5, state=parked(NOW + SECOND)), Committed)
        assert [(late.n, late.kind, late.name, late.payload, late.at) for late in outcome.messages] == [
            (1, "message", "news", '"early"', NOW)
        ]
        found = await row(store, run.id)
        assert found.due is not None
        assert found.due <= NOW + 5
        assert await store.due("w", NOW + 5) == [run.key]

    async def test_a_message_sent_after_a_run_parked_wakes_it(self, store: Store) -> None:
        """B12: due at once, for its owner if it has one and for anybody if not."""
        for released in (False, True):
            run = await started(store)
            outcome = await one(store, turn(run.key, state=parked(NOW + 9 * SECOND, released=released)), Committed)
            assert outcome == Committed(run.key)
            assert run.key not in await store.due("w", NOW)
            sent = await one(store, message(run.id), Delivered)
            assert sent.owner == (None if released else "w")
            assert (await row(store, run.id)).due == NOW
            assert (run.key in await store.due("w", NOW)) is not released
            assert [taken.key for taken in await claim(store)] == ([run.key] if released else [])

    async def test_a_run_that_has_seen_everything_parks_as_it_asked(self, store: Store) -> None:
        run = await started(store)
        await store.apply([message(run.id), message(run.id)])
        outcome = await one(store, turn(run.key, consumed=[1], state=parked(NOW + SECOND, seen=2)), Committed)
        assert outcome.messages == ()
        assert (await row(store, run.id)).due == NOW + SECOND
        assert [left.n for left in await store.inbox(run.key, 0)] == [2]

    async def test_operations_of_a_batch_take_effect_in_order(self, store: Store) -> None:
        first, second = await started(store), await started(store)
        outcomes = await store.apply(
            [
                message(first.id, '"before"'),
                turn(first.key, state=parked()),
                turn(second.key, state=parked()),
                message(second.id, '"after"'),
            ]
        )
        assert isinstance(outcomes[1], Committed)
        assert isinstance(outcomes[2], Committed)
        assert [late.payload for late in outcomes[1].messages] == ['"before"']
        assert outcomes[2].messages == ()
        assert [outcomes[0], outcomes[3]] == [Delivered(first.key, 1, "w"), Delivered(second.key, 1, "w")]
        assert (await row(store, second.id)).due == NOW

    async def test_a_turn_that_ends_a_run_refuses_what_comes_after_it_in_the_batch(self, store: Store) -> None:
        run, other = await started(store), await started(store)
        outcomes = await store.apply(
            [
                message(run.id),
                turn(run.key, end=ended()),
                message(run.id),
                turn(other.key, entries=[entry("a0", 1)], sends=[a_send(run.id)]),
            ]
        )
        assert outcomes[2] == Refused(Status.COMPLETED)
        assert outcomes[3] == Committed(other.key, (), {"a0": "ended"})
        assert await store.inbox(run.key, 0) == []

    async def test_many_messages_keep_their_order(self, store: Store) -> None:
        """S1-18, B13: first in, first out, also beyond what one byte counts."""
        run = await started(store)
        for start in range(0, 300, 50):
            await store.apply([message(run.id, str(n)) for n in range(start, start + 50)])
        for n in range(300, 310):
            await store.apply([message(run.id, str(n))])
        found = await store.inbox(run.key, 0)
        assert [sent.n for sent in found] == [*range(1, 311)]
        assert [sent.payload for sent in found] == [str(n) for n in range(310)]
        assert [sent.n for sent in await store.inbox(run.key, 255)] == [*range(256, 311)]
        [history] = await store.load([run.key])
        assert (history.messages, history.seen) == (found, 310)

    async def test_numbers_are_not_used_again_after_a_message_was_consumed(self, store: Store) -> None:
        run = await started(store)
        await one(store, message(run.id), Delivered)
        await one(store, turn(run.key, consumed=[1]), Committed)
        assert (await one(store, message(run.id), Delivered)).n == 2
        assert [left.n for left in await store.inbox(run.key, 0)] == [2]

    async def test_a_cancel_request_makes_a_run_cancelling_and_tells_it_once(self, store: Store) -> None:
        """B7: cancelling is committed, also for a run that nobody holds."""
        for owner in ("w", None):
            run = await started(store, owner=owner)
            first = await one(store, RequestCancel(target=run.id, at=NOW), Delivered)
            again = await store.apply([RequestCancel(target=run.id, at=NOW + 1), RequestCancel(target=run.id, at=NOW)])
            assert first == again[0] == again[1] == Delivered(run.key, 1, owner)
            found = await row(store, run.id)
            assert (found.status, found.due, found.inbox) == (Status.CANCELLING, NOW, 1)
            assert [told.kind for told in await store.inbox(run.key, 0)] == ["cancel"]
        [taken] = await claim(store)
        assert (taken.key, taken.status) == (run.key, Status.CANCELLING)

    async def test_a_cancel_request_is_not_undone_by_a_turn_that_has_not_seen_it(self, store: Store) -> None:
        run = await started(store)
        await one(store, RequestCancel(target=run.id, at=NOW), Delivered)
        outcome = await one(store, turn(run.key, state=parked(NOW + SECOND)), Committed)
        assert [told.kind for told in outcome.messages] == ["cancel"]
        assert (await row(store, run.id)).status == Status.CANCELLING


class TurnConformance:
    """What one turn writes."""

    async def test_a_turn_of_facts_alone_leaves_the_run_as_it_is(self, store: Store) -> None:
        run = await started(store)
        outcome = await one(store, turn(run.key, at=NOW + 5, entries=[entry("a1", 2), entry("a0", 1)]), Committed)
        assert outcome == Committed(run.key)
        assert await row(store, run.id) == run
        assert await store.history(run.key) == [entry("a0", 1), entry("a1", 2)]

    async def test_facts_come_back_in_order_of_seq(self, store: Store) -> None:
        """S4-1: what was committed is what a restart continues from."""
        run, other = await started(store), await started(store)
        locations = [f"a0/~{'abc'[len(str(n)) - 1]}{n}" for n in range(120)]
        facts = [entry(location, seq) for seq, location in enumerate(reversed(locations))]
        for start in range(0, 120, 40):
            chunk = facts[start : start + 40]
            await store.apply([turn(run.key, entries=chunk), turn(other.key, entries=chunk[:1])])
        assert await store.history(run.key) == facts
        histories = await store.load([other.key, run.key])
        assert [history.key for history in histories] == [other.key, run.key]
        assert histories[1].entries == facts
        assert len(histories[0].entries) == 3

    async def test_a_trim_removes_a_range_of_iterations_and_nothing_else(self, store: Store) -> None:
        """S1-29: iterations 0-9 go; 10-19, the loop's siblings and other runs stay."""
        run, other = await started(store), await started(store)
        gone = [f"a0/~a{n}/a1" for n in range(10)] + ["a0/~a3", "a0/~a9/a1/~c100"]
        kept = [f"a0/~b{n}/a1" for n in range(10, 20)] + ["a0", "a0#a2/~a0", "a0/a1", "a00/~a1", "a1/~a3/a1", "b10/~a1"]
        facts = [entry(location, seq) for seq, location in enumerate(sorted(gone + kept))]
        for target in (run, other):
            await one(store, turn(target.key, entries=facts), Committed)
        await one(store, turn(run.key, trims=[("a0/~a0", "a0/~b10")]), Committed)
        assert [fact.location for fact in await store.history(run.key)] == sorted(kept)
        assert len(await store.history(other.key)) == len(facts)

    async def test_a_trim_comes_before_the_facts_of_its_turn(self, store: Store) -> None:
        runs = [await started(store) for _ in range(4)]
        for run in runs:
            await one(store, turn(run.key, entries=[entry("a0/~a0", 1), entry("a1", 2)]), Committed)
        trims = [("a0/~a0", "a0/~a1")]
        await store.apply([turn(run.key, trims=trims, entries=[entry("a0/~a0", 3)]) for run in runs])
        for run in runs:
            assert await store.history(run.key) == [entry("a1", 2), entry("a0/~a0", 3)]

    async def test_a_trim_removes_what_an_earlier_turn_of_the_batch_wrote(self, store: Store) -> None:
        run = await started(store)
        first = turn(run.key, entries=[entry("a0/~a0", 1), entry("a1", 2)])
        await store.apply([first, turn(run.key, trims=[("a0/", "a00")], entries=[entry("a2", 3)])])
        assert [fact.location for fact in await store.history(run.key)] == ["a1", "a2"]

    async def test_a_renewal_forgets_the_history_and_keeps_the_rest(self, store: Store) -> None:
        """S2-32: same id, history cleared, new input."""
        run = await started(store)
        await one(store, turn(run.key, entries=[entry("a0", 1), entry("a1", 2)]), Committed)
        await one(store, message(run.id), Delivered)
        renewal = Renewal(input='"next"', generation=1)
        await one(store, turn(run.key, at=NOW + 5, renewal=renewal, entries=[entry("a0", 3)]), Committed)
        found = await row(store, run.id)
        assert (found.input, found.generation, found.updated) == ('"next"', 1, NOW + 5)
        assert (found.key, found.owner, found.epoch, found.inbox) == (run.key, "w", 1, 1)
        assert await store.history(run.key) == [entry("a0", 3)]
        assert len(await store.inbox(run.key, 0)) == 1

    async def test_a_released_run_has_no_owner(self, store: Store) -> None:
        run = await started(store)
        await one(store, turn(run.key, state=parked(NOW + SECOND, released=True)), Committed)
        found = await row(store, run.id)
        assert (found.status, found.wait, found.owner, found.due) == (Status.SUSPENDED, "message", None, NOW + SECOND)
        assert await store.next_due() == NOW + SECOND
        assert await claim(store, now=NOW + SECOND - 1) == []
        assert [taken.key for taken in await claim(store, now=NOW + SECOND)] == [run.key]

    async def test_a_send_is_delivered_or_told_in_the_senders_fact(self, store: Store) -> None:
        sender, target, over = await started(store), await started(store), await started(store)
        await end(store, over)
        facts = [entry("a0", 1), entry("a1", 2), entry("a2", 3)]
        sends = [a_send(target.id, "a0", 1), a_send("nobody", "a1", 2), a_send(over.id, "a2", 3)]
        outcome = await one(store, turn(sender.key, entries=facts, sends=sends), Committed)
        assert outcome.refused == {"a1": "missing", "a2": "ended"}
        assert [fact.data for fact in await store.history(sender.key)] == ["{}", '"missing"', '"ended"']
        assert [sent.payload for sent in await store.inbox(target.key, 0)] == ["1"]
        assert (await row(store, target.id)).due == NOW

    async def test_a_child_starts_pending_and_unowned_or_is_refused_as_taken(self, store: Store) -> None:
        """S2-24: starting a child is one commit with the parent's turn."""
        run = await started(store)
        names = [f"child-of-{run.id}", run.id]
        children = [
            StartChild(
                run=new_run(name, owner="w", parent=Parent(run.key, run.id, f"a{n}")),
                location=f"a{n}", seq=n, taken='"taken"',
            )
            for n, name in enumerate(names)
        ]  # fmt: skip
        facts = [entry("a0", 0), entry("a1", 1)]
        outcome = await one(store, turn(run.key, entries=facts, children=children), Committed)
        assert outcome.refused == {"a1": "taken"}
        assert [fact.data for fact in await store.history(run.key)] == ["{}", '"taken"']
        child = await row(store, names[0])
        assert (child.status, child.owner, child.due, child.parent) == (Status.PENDING, None, NOW, run.id)
        assert await store.runs(RunFilter(parent=run.id)) == [child]
        assert [taken.id for taken in await claim(store)] == [child.id]

    async def test_the_end_of_a_child_is_told_to_its_parent_in_the_same_commit(self, store: Store) -> None:
        """S2-22: with the child's end its result is in the parent's inbox and the parent is due."""
        await store.join("w", LEASE)
        parent = new_run(owner="w")
        child = new_run(parent=Parent(0, parent.id, "a0"))
        first = turn(0, children=[StartChild(run=child, location="a0", seq=1, taken="")], state=parked())
        outcome = await one(store, StartRun(run=parent, turn=first), Started)
        [taken] = await claim(store)
        assert (taken.id, taken.parent) == (child.id, parent.id)
        await one(store, turn(taken.key, taken.epoch, end=ended(payload='"done"')), Committed)
        [told] = await store.inbox(outcome.key, 0)
        assert (told.n, told.kind, told.name, told.payload) == (1, "child", child.id, '"done"')
        assert await store.due("w", NOW) == [outcome.key]

    async def test_children_that_end_in_one_batch_are_all_told(self, store: Store) -> None:
        run = await started(store)
        ids = [f"{run.id}-{n}" for n in range(5)]
        children = [
            StartChild(run=new_run(id, parent=Parent(run.key, run.id, "a0")), location="a0", seq=n, taken="")
            for n, id in enumerate(ids)
        ]
        await one(store, turn(run.key, children=children), Committed)
        taken = await claim(store)
        await store.apply([turn(child.key, child.epoch, end=ended(payload=child.id)) for child in taken])
        assert [(told.n, told.payload) for told in await store.inbox(run.key, 0)] == [*enumerate(ids, 1)]

    async def test_an_ended_parent_is_not_told(self, store: Store) -> None:
        run = await started(store)
        child = new_run(parent=Parent(run.key, run.id, "a0"))
        start = StartChild(run=child, location="a0", seq=1, taken="")
        await one(store, turn(run.key, children=[start], end=ended()), Committed)
        before = await row(store, run.id)
        [taken] = await claim(store)
        await one(store, turn(taken.key, taken.epoch, end=ended()), Committed)
        assert await row(store, run.id) == before
        assert await store.inbox(run.key, 0) == []


class ClaimConformance:
    """Handing runs to workers."""

    async def test_claims_take_the_most_overdue_first_up_to_the_limit(self, store: Store) -> None:
        await store.join("w", LEASE)
        runs = [await started(store, owner=None, at=NOW + offset) for offset in (50, 10, 40, 20, 30)]
        assert await store.next_due() == NOW + 10
        taken = await claim(store, now=NOW + 45, limit=3)
        assert [one.created for one in taken] == [NOW + 10, NOW + 20, NOW + 30]
        assert taken[0] == Claim(
            key=runs[1].key, id=runs[1].id, epoch=1, workflow="order", version="1", input="{}", seed=1, generation=0,
            status=Status.RUNNING, lost="", claims=1, created=NOW + 10, parent=None,
        )  # fmt: skip
        found = await row(store, runs[1].id)
        assert (found.status, found.owner, found.due, found.claims) == (Status.RUNNING, "w", None, 1)
        assert [one.created for one in await claim(store, now=NOW + 45)] == [NOW + 40]
        assert await claim(store, now=NOW + 45) == []

    async def test_a_workflow_nobody_asked_for_is_not_claimed_and_holds_up_nobody(self, store: Store) -> None:
        await store.join("w", LEASE)
        for n in range(10):
            await one(store, StartRun(run=new_run(workflow="unknown", at=NOW - n)), Started)
        run = await started(store, owner=None)
        assert [taken.id for taken in await claim(store, limit=5)] == [run.id]
        [unknown, *_] = await store.runs(RunFilter(workflow="unknown"))
        assert (unknown.status, unknown.owner) == (Status.PENDING, None)
        assert await store.next_due() == NOW - 9
        assert await store.next_due(["order"]) is None

    async def test_a_worker_that_was_not_announced_claims_nothing(self, store: Store) -> None:
        await started(store, owner=None)
        assert await claim(store, "stranger") == []

    async def _lose(self, store: Store, taken: Claim) -> None:
        state = State(status=Status.PENDING, seen=0, due=NOW, released=True)
        await one(store, turn(taken.key, taken.epoch, state=state), Committed)

    async def test_suspects_are_taken_after_all_others_and_one_at_a_time(self, store: Store) -> None:
        """B1: a run that was claimed and made no progress cannot take innocent ones down with it."""
        for n in range(3):
            await started(store, owner=None, at=NOW + n)
        await store.join("w", LEASE)
        suspects = await claim(store, now=NOW + 5)
        for suspect in suspects:
            await self._lose(store, suspect)
        fresh = await started(store, owner=None, at=NOW + 4)
        assert [taken.id for taken in await claim(store, now=NOW + 5)] == [fresh.id]
        [first] = await claim(store, now=NOW + 5)
        assert (first.key, first.claims) == (suspects[0].key, 2)
        assert await claim(store, now=NOW + 5) == []
        await one(store, turn(first.key, first.epoch, reset_claims=True), Committed)
        assert (await row(store, first.id)).claims == 0
        [second] = await claim(store, now=NOW + 5)
        assert second.key == suspects[1].key

    async def test_a_run_claimed_three_times_without_progress_is_blocked(self, store: Store) -> None:
        run = await started(store, owner=None)
        await store.join("w", LEASE)
        for number in (1, 2, 3):
            [taken] = await claim(store)
            assert (taken.claims, taken.epoch) == (number, number)
            await self._lose(store, taken)
        assert await claim(store) == []
        found = await row(store, run.id)
        assert (found.status, found.error, found.due, found.owner) == (Status.BLOCKED, '"poison"', None, None)
        assert await claim(store, now=NOW + 1000 * SECOND) == []
        assert await one(store, Unblock(at=NOW, target=run.id), Unblocked) == Unblocked(1)
        [again] = await claim(store)
        assert (again.key, again.claims) == (run.key, 1)

    async def test_blocked_runs_are_released_by_another_fingerprint_or_by_name(self, store: Store) -> None:
        async def blocked(fingerprint: str, workflow: str = "order") -> str:
            run = new_run(workflow=workflow, owner="w")
            state = State(status=Status.BLOCKED, seen=0, released=True, error='"why"', fingerprint=fingerprint)
            await one(store, StartRun(run=run, turn=turn(0, state=state)), Started)
            return run.id

        await store.join("w", LEASE)
        old, same, other = await blocked("old"), await blocked("same"), await blocked("old", "other")
        assert (await row(store, old)).error == '"why"'
        await one(store, message(old), Delivered)
        assert await claim(store, now=NOW + 1000 * SECOND) == []
        outcome = await one(store, Unblock(at=NOW + 5, workflow="order", fingerprint="same"), Unblocked)
        assert outcome == Unblocked(1)
        found = await row(store, old)
        assert (found.status, found.due, found.claims, found.error) == (Status.PENDING, NOW + 5, 0, None)
        assert {(await row(store, id)).status for id in (same, other)} == {Status.BLOCKED}
        outcomes = await store.apply([Unblock(at=NOW, target=same), Unblock(at=NOW, target=same), message(same)])
        assert outcomes[:2] == [Unblocked(1), Unblocked(0)]
        assert (await row(store, same)).status == Status.PENDING

    async def test_next_due_is_nothing_when_nobody_may_claim_anything(self, store: Store) -> None:
        assert await store.next_due() is None
        run = await started(store)
        await one(store, turn(run.key, state=parked(NOW)), Committed)
        assert await store.next_due() is None


class WorkerConformance:
    """Workers that stop, die or hang."""

    async def test_a_worker_that_leaves_hands_back_its_runs(self, store: Store) -> None:
        running, waiting = await started(store), await started(store)
        await one(store, turn(waiting.key, state=parked(NOW + 9 * SECOND)), Committed)
        await store.leave("w")
        found = await row(store, waiting.id)
        assert (found.status, found.owner, found.due) == (Status.SUSPENDED, None, NOW + 9 * SECOND)
        await store.join("v", LEASE)
        [taken] = await claim(store, "v")
        assert (taken.key, taken.lost) == (running.key, "")
        assert taken.epoch > 1
        assert store.renew("w") is False
        await one(store, turn(running.key, 1, entries=[entry("a0", 1)]), Fenced)

    async def test_a_worker_that_renews_its_lease_is_not_declared_dead(self, store: Store, another: Another) -> None:
        run = await started(store)
        other = await another()
        assert await asyncio.to_thread(store.renew, "w") is True
        assert await other.take_over(NOW) == 0
        assert (await row(other, run.id)).owner == "w"

    async def test_what_a_dead_worker_was_running_is_taken_over(self, store: Store, another: Another) -> None:
        """B24, S2-28: only what the dead worker held, marked as lost, with a higher epoch."""
        dying = await another()
        lease = timedelta(milliseconds=50)
        await dying.join("d", lease)
        runs = [new_run(owner="d") for _ in range(3)]
        keys = []
        for run in runs:
            keys.append((await one(dying, StartRun(run=run), Started)).key)
        await one(dying, turn(keys[1], state=parked(NOW + 9 * SECOND)), Committed)
        await one(dying, turn(keys[2], state=parked(NOW - SECOND)), Committed)
        alive = await started(store)
        await dying.close()
        await asyncio.sleep(0.1)
        assert await store.take_over(NOW) == 1
        assert await store.take_over(NOW) == 0
        found = [await row(store, run.id) for run in runs]
        assert (found[0].owner, found[0].due) == (None, NOW)
        assert (found[1].owner, found[1].due, found[1].epoch) == ("d", NOW + 9 * SECOND, 1)
        assert (await row(store, alive.id)).owner == "w"
        taken = {one.key: one.lost for one in await claim(store)}
        assert set(taken) == {keys[0], keys[2]}
        assert taken[keys[0]] in ("crash", "lapse")
        assert taken[keys[2]] == ""
        await one(store, turn(keys[0], 1, entries=[entry("a0", 1)]), Fenced)
        assert await store.next_due() == NOW + 9 * SECOND
        assert [one.key for one in await claim(store, now=NOW + 9 * SECOND)] == [keys[1]]

    async def test_a_hung_worker_loses_its_runs_when_its_lease_lapses(self, store: Store, another: Another) -> None:
        """G5, B24: its lease lapsed, so its next renewal and its late writes are refused."""
        hung = await another()
        await hung.join("h", timedelta(milliseconds=50))
        first, parks = new_run(owner="h"), new_run(owner="h")
        key = (await one(hung, StartRun(run=first), Started)).key
        sleeping = (await one(hung, StartRun(run=parks, turn=turn(0, state=parked(NOW))), Started)).key
        await store.join("w", LEASE)
        assert await store.take_over(NOW) == 0
        await asyncio.sleep(0.1)
        assert await store.take_over(NOW) == 1
        assert await asyncio.to_thread(hung.renew, "h") is False
        await one(hung, turn(key, entries=[entry("a0", 1)]), Fenced)
        await one(hung, turn(sleeping, state=State(status=Status.RUNNING, seen=0)), Committed)
        assert {one.key: one.lost for one in await claim(store)} == {key: "lapse", sleeping: "lapse"}
        late = new_run(owner="h")
        await one(hung, StartRun(run=late), Started)
        assert [one.id for one in await claim(store)] == [late.id]
        await started(store, owner=None)
        assert await claim(hung, "h") == []

    async def test_commits_of_another_store_are_noticed_but_not_own_ones(self, store: Store, another: Another) -> None:
        other = await another()
        store.changed()
        assert store.changed() is False
        run = await started(store, owner=None)
        await store.apply([message(run.id) for _ in range(5)])
        store.changed()
        assert store.changed() is False
        await one(other, message(run.id), Delivered)
        assert store.changed() is True
        assert store.changed() is False
        assert len(await store.inbox(run.key, 0)) == 6


class ReadConformance:
    """Looking."""

    async def test_runs_are_listed_newest_first_in_pages_by_filter(self, store: Store) -> None:
        runs = [await started(store, owner=None) for _ in range(7)]
        await store.join("w", LEASE)
        done = await claim(store, limit=3)
        for taken in done:
            await one(store, turn(taken.key, taken.epoch, end=ended()), Committed)
        await one(store, StartRun(run=new_run("other-one", workflow="other")), Started)
        newest = await store.runs(RunFilter(limit=3))
        assert [found.id for found in newest] == ["other-one", runs[6].id, runs[5].id]
        assert [found.id for found in await store.runs(RunFilter(limit=2, before=newest[-1].key))] == [
            runs[4].id, runs[3].id,
        ]  # fmt: skip
        completed = await store.runs(RunFilter(status=Status.COMPLETED))
        assert {found.key for found in completed} == {taken.key for taken in done}
        waiting = await store.runs(RunFilter(status=Status.PENDING, workflow="order"))
        assert [found.id for found in waiting] == [run.id for run in reversed(runs[3:])]
        assert await store.runs(RunFilter(parent="nobody")) == []
        assert await store.get("nobody") is None

    async def test_a_big_batch_is_all_there(self, store: Store) -> None:
        await store.join("w", LEASE)
        runs = [new_run(owner="w") for _ in range(500)]
        outcomes = await store.apply([StartRun(run=run, turn=turn(0, entries=[entry("a0", 1)])) for run in runs])
        keys = [outcome.key for outcome in outcomes if isinstance(outcome, Started)]
        assert len(set(keys)) == 500
        await store.apply([turn(key, entries=[entry("a1", 2), entry("a2", 3)]) for key in keys])
        histories = await store.load(keys)
        assert [history.key for history in histories] == keys
        assert all(len(history.entries) == 3 for history in histories)

    async def test_concurrent_batches_are_all_applied(self, store: Store) -> None:
        run = await started(store)
        batches = [store.apply([message(run.id, str(n)) for _ in range(1 + n % 7)]) for n in range(40)]
        outcomes = await asyncio.gather(*batches)
        numbers = [told.n for batch in outcomes for told in batch if isinstance(told, Delivered)]
        assert sorted(numbers) == [*range(1, len(numbers) + 1)]
        assert (await row(store, run.id)).inbox == len(numbers)

    async def test_an_empty_batch_is_harmless(self, store: Store) -> None:
        assert await store.apply([]) == []

    async def test_a_closed_store_refuses_everything_but_another_close(self, store: Store) -> None:
        await store.close()
        await store.close()
        for call in (
            lambda: store.apply([message("x")]), lambda: store.get("x"), lambda: claim(store), lambda: store.load([1]),
            lambda: store.join("w", LEASE), lambda: store.leave("w"), lambda: store.take_over(NOW),
            lambda: store.next_due(), lambda: asyncio.to_thread(store.renew, "w"),
        ):  # fmt: skip
            try:
                await call()
            except StoreClosed:
                continue
            raise AssertionError("a closed store did something")


class StoreConformance(
    StartConformance, FencingConformance, TerminalConformance, InboxConformance, TurnConformance, ClaimConformance,
    WorkerConformance, ReadConformance,
):  # fmt: skip
    """Everything a store must do."""


__all__ = [
    "ClaimConformance",
    "FencingConformance",
    "InboxConformance",
    "Message",
    "ReadConformance",
    "StartConformance",
    "StoreConformance",
    "TerminalConformance",
    "TurnConformance",
    "WorkerConformance",
]
