"""Messages: none lost, none out of order."""

from __future__ import annotations

from holdfast.records import (
    Committed,
    Delivered,
    Refused,
    RequestCancel,
    Status,
)
from holdfast.stores.base import Store
from holdfast.testing.conformance.samples import (
    NOW,
    SECOND,
    a_send,
    claim,
    ended,
    entry,
    message,
    one,
    parked,
    row,
    started,
    turn,
)


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
        assert outcomes[3] == Committed(other.key, (), {"a0": "completed"})
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
