"""What becomes of what a run had not read when it ended."""

from __future__ import annotations

from holdfast.contract.operations import Committed, Delivered, Done, Published, RequestCancel, Terminate
from holdfast.contract.rows import LetterFilter, RunRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import RunEnd
from holdfast.testing.conformance.samples import (
    NOW,
    TERMINAL,
    TO_ALL,
    ended,
    event,
    given,
    message,
    one,
    row,
    started,
    turn,
    unread,
    waiting,
)


class UnreadConformance:
    """Unread messages are discarded, published for others, or kept as dead letters; events go to somebody else."""

    async def test_unread_messages_are_discarded_unless_said_otherwise(self, store: Store) -> None:
        """S2-18, S2-45."""
        for status in TERMINAL:
            run, other = await started(store), await waiting(store)
            await one(store, message(run.id), Delivered)
            await one(store, turn(run.key, end=ended(status, unread={"else": "dead_letter"})), Committed)
            # A run that did not complete keeps them for when it is reopened.
            assert len(await unread(store, run.key)) == (status is not Status.COMPLETED)
            assert await unread(store, other.key) == []
        counts = await store.counts()
        assert (counts.events, counts.letters) == ({}, [])

    async def test_unread_messages_are_published_and_wake_who_waits(self, store: Store) -> None:
        """S2-18, S2-45: in the commit that ends the run, whatever its end; each to one run, the rest is queued."""
        for status in TERMINAL:
            run, other = await started(store), await waiting(store)
            await store.apply([message(run.id, "1", id="m-1"), message(run.id, "2"), message(run.id, "3", name="no")])
            await one(store, turn(run.key, at=NOW + 5, end=_end(status, unread={"news": "republish"})), Committed)
            [found] = await unread(store, other.key)
            assert (found.kind, found.name, found.id, found.payload, found.at) == ("event", "news", "m-1", "1", NOW)
            assert other.key in await store.due("w", NOW + 5)
            late = await waiting(store)
            assert await given(store, late) == [("event", "2")]
            assert (await store.counts()).events == {}

    async def test_unread_messages_are_published_by_the_rule_of_their_name(self, store: Store) -> None:
        """S2-18, S2-43: to everybody, where that is the rule, and whatever the queue's limit: it was accepted once."""
        run = await started(store)
        others = [await waiting(store, rule=TO_ALL) for _ in range(2)]
        await one(store, message(run.id, "1"), Delivered)
        end = ended(unread={"news": "republish"}, rules={"news": TO_ALL})
        await one(store, turn(run.key, end=end), Committed)
        assert [await given(store, other) for other in others] == [[("notice", "1")]] * 2
        assert (await store.counts()).events == {"news": 1}

    async def test_unread_messages_become_dead_letters(self, store: Store) -> None:
        """S2-18, S2-19, B9: with the name, the target, its status and both times."""
        for status in TERMINAL:
            run = await started(store)
            await store.apply([message(run.id, "1", at=NOW - 5), message(run.id, "2")])
            await one(store, turn(run.key, end=_end(status, unread={"news": "dead_letter"})), Committed)
            letters = await store.letters(LetterFilter(run=run.id))
            assert sorted(letter.payload for letter in letters) == ["1", "2"]
            letter = next(letter for letter in letters if letter.payload == "1")
            assert (letter.kind, letter.run, letter.workflow, letter.name) == ("event", run.id, "order", "news")
            assert (letter.target_status, letter.sent, letter.at) == (status, NOW - 5, NOW + 5)
            assert (letter.acknowledged, letter.outcome, letter.step, letter.error) == (None, "", "", None)

    async def test_messages_that_were_read_are_nobodys(self, store: Store) -> None:
        run = await started(store)
        await store.apply([message(run.id, "1"), message(run.id, "2")])
        await one(store, turn(run.key, consumed=[1], end=ended(unread={"news": "dead_letter"})), Committed)
        assert [letter.payload for letter in await store.letters(LetterFilter())] == ["2"]

    async def test_messages_of_the_same_batch_are_unread_too(self, store: Store) -> None:
        run = await started(store)
        ends = turn(run.key, end=ended(unread={"news": "dead_letter"}))
        await store.apply([message(run.id, "1"), message(run.id, "2"), ends])
        assert sorted(letter.payload for letter in await store.letters(LetterFilter())) == ["1", "2"]

    async def test_an_event_that_was_given_but_not_read_goes_to_somebody_else(self, store: Store) -> None:
        """G8: it was for one run, and that run never saw it."""
        for status in TERMINAL:
            run, other = await waiting(store), await waiting(store, since=NOW + 1)
            await one(store, event("1"), Published)
            await one(store, turn(run.key, end=ended(status)), Committed)
            assert await given(store, other) == [("event", "1")]
            await one(store, turn(other.key, end=ended(status)), Committed)
            assert (await store.counts()).events == {"news": 1}
            await waiting(store)

    async def test_a_copy_of_what_everybody_was_given_is_nobody_elses(self, store: Store) -> None:
        run, other = await waiting(store, rule=TO_ALL), await waiting(store, "other")
        await one(store, event("1", rule=TO_ALL), Published)
        end = ended(unread={"news": "dead_letter"})
        await one(store, turn(run.key, end=end), Committed)
        assert await given(store, other) == []
        assert (await store.counts()).events == {"news": 1}
        assert await store.letters(LetterFilter()) == []

    async def test_every_way_to_end_a_run_treats_the_unread_alike(self, store: Store) -> None:
        """S2-18, S2-45: terminated, or cancelled before it began."""
        policy = {"news": "dead_letter", "x": "republish"}

        async def with_messages(owner: str | None) -> RunRow:
            run = await started(store, owner=owner)
            await store.apply([message(run.id, "1"), message(run.id, "2", name="x")])
            return run

        terminated, cancelled = await with_messages("w"), await with_messages(None)
        await one(store, Terminate(target=terminated.id, end=ended(Status.FAILED, unread=policy)), Done)
        await one(store, RequestCancel(target=cancelled.id, at=NOW, unread=policy), Delivered)
        for run, status in ((terminated, Status.FAILED), (cancelled, Status.CANCELLED)):
            assert (await row(store, run.id)).status is status
            [letter] = await store.letters(LetterFilter(run=run.id))
            assert (letter.payload, letter.target_status) == ("1", status)
        assert (await store.counts()).events == {"x": 2}


def _end(status: Status, **fields: object) -> RunEnd:
    return RunEnd(status=status, at=NOW + 5, **fields)  # type: ignore[arg-type]  # fields of RunEnd
