"""Messages: none lost, none out of order."""

from __future__ import annotations

from holdfast.contract.operations import (
    Committed,
    Delivered,
    Fenced,
    InboxMoved,
    Operation,
    Pause,
    Refused,
    RequestCancel,
    Unpause,
)
from holdfast.contract.rows import InboxKind, Message, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import Reply
from holdfast.testing.conformance.samples import (
    NOW,
    SECOND,
    a_send,
    claim,
    end,
    ended,
    entry,
    extra,
    message,
    one,
    optioned,
    parked,
    row,
    started,
    turn,
    unread,
)


class InboxConformance:
    """Messages: none lost, none out of order."""

    async def test_a_message_sent_before_a_run_parks_is_seen_by_it(self, store: Store) -> None:
        """B12, S2-30: check and suspend are one atomic operation."""
        run = await started(store)
        early = message(run.id, '"early"')
        assert await one(store, early, Delivered) == Delivered(run.key, "w", early.row(1))
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
        assert [left.n for left in await unread(store, run.key, 0)] == [2]

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
        assert [(each.key, each.n) for each in outcomes if isinstance(each, Delivered)] == [
            (first.key, 1), (second.key, 1),
        ]  # fmt: skip
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
        assert outcomes[3] == Committed(other.key, (), {"a0": "completed"})
        assert await unread(store, run.key, 0) == []

    async def test_many_messages_keep_their_order(self, store: Store) -> None:
        """S1-18, B13: first in, first out, also beyond what one byte counts."""
        run = await started(store)
        for start in range(0, 300, 50):
            await store.apply([message(run.id, str(n)) for n in range(start, start + 50)])
        for n in range(300, 310):
            await store.apply([message(run.id, str(n))])
        found = await unread(store, run.key, 0)
        assert [sent.n for sent in found] == [*range(1, 311)]
        assert [sent.payload for sent in found] == [str(n) for n in range(310)]
        assert [sent.n for sent in await unread(store, run.key, 255)] == [*range(256, 311)]
        [history] = await store.load([run.key])
        assert (history.messages, history.seen) == (found, 310)

    async def test_numbers_are_not_used_again_after_a_message_was_consumed(self, store: Store) -> None:
        run = await started(store)
        await one(store, message(run.id), Delivered)
        await one(store, turn(run.key, consumed=[1]), Committed)
        assert (await one(store, message(run.id), Delivered)).n == 2
        assert [left.n for left in await unread(store, run.key, 0)] == [2]

    async def test_a_cancel_request_makes_a_run_cancelling_and_tells_it_once(self, store: Store) -> None:
        """B7: cancelling is committed, also for a run that nobody holds."""
        for released in (False, True):
            run = await started(store)
            if released:
                await one(store, turn(run.key, state=parked(released=True)), Committed)
            first = await one(store, RequestCancel(target=run.id, at=NOW), Delivered)
            again = await store.apply([RequestCancel(target=run.id, at=NOW + 1), RequestCancel(target=run.id, at=NOW)])
            owner = None if released else "w"
            assert first == Delivered(run.key, owner, Message(1, InboxKind.CANCEL, "", "", "", NOW))
            assert again == [Delivered(run.key, owner)] * 2
            found = await row(store, run.id)
            assert (found.status, found.due, found.inbox) == (Status.CANCELLING, NOW, 1)
            assert [told.kind for told in await unread(store, run.key, 0)] == ["cancel"]
        [taken] = await claim(store)
        assert (taken.key, taken.status) == (run.key, Status.CANCELLING)

    async def test_a_run_that_nobody_ever_claimed_is_cancelled_at_once(self, store: Store) -> None:
        """S0-35: a cancel is immediate for what has not begun; there is no code to tell."""
        run = await started(store, owner=None)
        await one(store, RequestCancel(target=run.id, at=NOW), Delivered)
        found = await row(store, run.id)
        assert (found.status, found.due, found.ended) == (Status.CANCELLED, None, NOW)
        assert await claim(store) == []

    async def test_a_cancel_request_is_not_undone_by_a_turn_that_has_not_seen_it(self, store: Store) -> None:
        run = await started(store)
        await one(store, RequestCancel(target=run.id, at=NOW), Delivered)
        outcome = await one(store, turn(run.key, state=parked(NOW + SECOND)), Committed)
        assert [told.kind for told in outcome.messages] == ["cancel"]
        assert (await row(store, run.id)).status == Status.CANCELLING

    async def test_what_is_delivered_is_the_row_that_the_inbox_has(self, store: Store) -> None:
        """G7: a worker hands it to a run in memory without reading it again."""
        run = await started(store)
        operations: list[Operation] = [
            message(run.id, '"hello"'),
            Pause(target=run.id, at=NOW, until=NOW + SECOND),
            Unpause(target=run.id, at=NOW + 1),
            RequestCancel(target=run.id, at=NOW + 2),
            RequestCancel(target=run.id, at=NOW + 3, compensate=True),
        ]
        for n, operation in enumerate(operations, 1):
            outcome = await one(store, operation, Delivered)
            assert outcome.n == n
            assert outcome.row == (await unread(store, run.key))[-1]


class MessageConformance:
    """Messages that are remembered, counted and answered."""

    async def test_a_message_sent_twice_under_one_id_is_delivered_once(self, store: Store) -> None:
        """S2-17: per run, also in one batch and after it was read; without asking, ids are only names."""
        run, other = await started(store), await started(store)
        same = message(run.id, id="same", deduplicate=True)
        duplicate = Delivered(run.key, "w", duplicate=True)
        assert await store.apply([same, same]) == [Delivered(run.key, "w", same.row(1)), duplicate]
        await one(store, turn(run.key, consumed=[1]), Committed)
        assert await one(store, same, Delivered) == duplicate
        assert await unread(store, run.key) == []
        assert (await one(store, message(other.id, id="same", deduplicate=True), Delivered)).n == 1
        await store.apply([message(other.id, id="same"), message(other.id, id="same")])
        assert len(await unread(store, other.key)) == 3

    async def test_a_full_inbox_refuses_by_name(self, store: Store) -> None:
        """B23: unread messages of that name count, and nothing else."""
        run = await started(store)
        first, second = [message(run.id, max_pending=2, id=id, deduplicate=True) for id in ("a", "b")]
        third = message(run.id, max_pending=2, id="c", deduplicate=True)
        full = Refused(Status.RUNNING, "full")
        assert (await store.apply([first, second, third]))[2] == full
        assert await one(store, third, Refused) == full
        assert (await one(store, second, Delivered)).duplicate, "it was accepted before the inbox was full"
        assert (await one(store, message(run.id, name="other", max_pending=2), Delivered)).n == 3
        assert await one(store, message(run.id, max_pending=2), Refused) == full
        await one(store, turn(run.key, consumed=[1]), Committed)
        assert await one(store, third, Delivered) == Delivered(run.key, "w", third.row(4))
        assert await one(store, message(run.id, max_pending=2), Refused) == full

    async def test_a_turn_that_sends_to_a_full_inbox_learns_it_from_its_own_fact(self, store: Store) -> None:
        """B23: so that the refusal survives a crash."""
        run, other = await started(store), await started(store)
        sends = [a_send(other.id, f"a{n}", n, max_pending=2) for n in (1, 2, 3)]
        outcome = await one(
            store, turn(run.key, entries=[entry(f"a{n}", n) for n in (1, 2, 3)], sends=sends), Committed
        )
        assert outcome.refused == {"a3": "full"}
        assert [fact.data for fact in await store.history(run.key)] == ["{}", "{}", '"full"']
        assert len(await unread(store, other.key)) == 2

    async def test_a_message_is_put_and_taken_in_one_batch(self, store: Store) -> None:
        """G7: the run had it in memory before; nothing of it is left in the inbox."""
        run = await started(store)
        for n in (1, 2):
            taking = turn(run.key, entries=[entry("a0", n)], consumed=[n], state=parked(seen=n), inbox=n)
            sending = message(run.id)
            sent, taken = await store.apply([sending, taking])
            assert sent == Delivered(run.key, "w", sending.row(n))
            assert taken == Committed(run.key)
        assert await unread(store, run.key) == []
        assert (await row(store, run.id)).due is None
        assert len(await store.history(run.key)) == 2

    async def test_a_turn_that_took_a_message_which_is_not_the_next_is_refused(self, store: Store) -> None:
        """G7 G3: somebody else's came first; nothing of it is written."""
        run = await started(store)
        await one(store, message(run.id, '"theirs"'), Delivered)
        taking = turn(run.key, entries=[entry("a0", 1)], consumed=[1], state=parked(seen=1), inbox=1)
        outcomes = await store.apply([message(run.id, '"ours"'), taking, message(run.id, '"later"')])
        assert outcomes[1] == InboxMoved(run.key)
        assert [late.payload for late in await unread(store, run.key)] == ['"theirs"', '"ours"', '"later"']
        assert await store.history(run.key) == []
        await one(store, turn(run.key, entries=[entry("a0", 1)]), Committed)

    async def test_the_first_reply_to_a_request_stays(self, store: Store) -> None:
        run, other = await started(store), await started(store)
        await one(store, extra(run.key, replies=[Reply(message="q1", payload="1")]), Committed)
        replies = [Reply(message="q1", payload="2"), Reply(message="q2", payload="3")]
        await store.apply(
            [extra(other.key, replies=replies), extra(run.key, 9, replies=[Reply(message="q3", payload="4")])]
        )
        assert await store.replies(["q1", "q2", "q3"]) == {"q1": "1", "q2": "3"}
        assert await store.replies([]) == {}
        await one(store, extra(run.key, 9, replies=[Reply(message="q4", payload="4")]), Fenced)
        await end(store, run)
        assert await store.replies(["q1", "q4"]) == {"q1": "1"}

    async def test_a_message_does_not_begin_a_run_before_its_time(self, store: Store) -> None:
        """S0-41: a delayed start is not brought forward by what is sent meanwhile."""
        run = await optioned(store, owner=None, begins=NOW + SECOND)
        await store.apply([message(run.id), message(run.id)])
        assert (await row(store, run.id)).due == NOW + SECOND
        assert await claim(store, now=NOW + SECOND - 1) == []
        await started(store)
        [taken] = await claim(store, now=NOW + SECOND)
        assert (taken.key, taken.begins) == (run.key, NOW + SECOND)
        [history] = await store.load([run.key])
        assert len(history.messages) == 2
