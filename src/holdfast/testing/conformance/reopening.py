"""Letting an ended run go on from an earlier point of its history."""

from __future__ import annotations

from holdfast.contract.operations import Committed, Done, Fenced, KeyHeld, Refused, Reopen, RequestCancel
from holdfast.contract.rows import LetterFilter, Message, RunRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import NewLetter, RunOptions
from holdfast.testing.conformance.operators import child_of
from holdfast.testing.conformance.samples import (
    NOW,
    SECOND,
    TERMINAL,
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

LATER = NOW + 60 * SECOND


def reopen(run: RunRow, cut: int = 1, **fields: object) -> Reopen:
    """Return the reopening of a run as it is."""
    return Reopen(target=run.id, epoch=run.epoch, cut=cut, at=LATER, **fields)  # type: ignore[arg-type]  # its fields


async def over(store: Store, status: Status = Status.FAILED, facts: int = 4, **options: object) -> RunRow:
    """Return a run with some facts that has ended."""
    run = await started(store, options=RunOptions(**options))  # type: ignore[arg-type]  # its fields
    await one(store, turn(run.key, entries=[entry(f"a{n}", n) for n in range(1, facts + 1)]), Committed)
    await one(store, turn(run.key, end=ended(status, output='"o"', error='"e"', compensation='"c"')), Committed)
    return await row(store, run.id)


class ReopenConformance:
    """Only these verbs change what has ended."""

    async def test_an_ended_run_goes_on_from_the_cut(self, store: Store) -> None:
        """B8: facts before the cut stay, the rest is archived, new ones are appended; result and end are gone."""
        for status in TERMINAL:
            run = await over(store, status)
            operation = reopen(run, 3, entries=[entry("a3", 3, '"again"')])
            assert await one(store, operation, Done) == Done(1)
            found = await row(store, run.id)
            assert (found.status, found.due, found.owner, found.ended) == (Status.PENDING, LATER, None, None)
            assert (found.output, found.error, found.compensation, found.claims) == (None, None, None, 0)
            assert (found.epoch, found.reopens) == (run.epoch + 1, 1)
            assert await store.history(run.key) == [entry("a1", 1), entry("a2", 2), entry("a3", 3, '"again"')]
            assert await store.history(run.key, archived=True) == [entry("a3", 3), entry("a4", 4)]
            [taken] = await claim(store, now=LATER)
            assert (taken.key, taken.reopens, taken.claims) == (run.key, 1, 1)
            await end(store, await row(store, run.id))

    async def test_each_reopening_archives_what_it_cuts(self, store: Store) -> None:
        """B8: under the generation it belonged to, in order."""
        run = await over(store)
        for n in range(3):
            await one(store, reopen(await row(store, run.id), 2, entries=[entry("a2", 2, str(n))]), Done)
            [taken] = await claim(store, now=LATER)
            await end(store, await row(store, taken.id), Status.FAILED)
        facts = [(fact.seq, fact.data) for fact in await store.history(run.key, archived=True)]
        assert facts == [(2, "{}"), (3, "{}"), (4, "{}"), (2, "0"), (2, "1")]
        assert (await row(store, run.id)).reopens == 3

    async def test_whoever_had_the_run_before_cannot_write_to_its_new_life(self, store: Store) -> None:
        """B8, G5: the epoch moves, before anybody claims it and after."""
        run = await over(store)
        await one(store, reopen(run), Done)
        for _ in range(2):
            for epoch in (run.epoch, 0):
                await one(store, turn(run.key, epoch, entries=[entry("a9", 9)]), Fenced)
                await one(store, turn(run.key, epoch, end=ended()), Fenced)
            await claim(store, now=LATER)
        assert await store.history(run.key) == []

    async def test_a_run_that_is_not_what_was_decided_on_is_left_alone(self, store: Store) -> None:
        """B8: open, reopened by somebody else meanwhile, or not there."""
        run, running = await over(store), await started(store)
        both = await store.apply([reopen(run), reopen(run)])
        assert both == [Done(1), Refused(Status.PENDING, "moved")]
        assert await one(store, reopen(running), Refused) == Refused(Status.RUNNING, "moved")
        [taken] = await claim(store, now=LATER)
        await end(store, await row(store, taken.id))
        assert await one(store, reopen(run), Refused) == Refused(Status.COMPLETED, "moved")
        nobody = Reopen(target="nobody", epoch=1, cut=1, at=NOW)
        assert await one(store, nobody, Refused) == Refused(None, "moved")
        assert await store.history(running.key, archived=True) == []

    async def test_messages_that_were_cut_away_are_queued_again(self, store: Store) -> None:
        """B8: before what is sent from now on, with new numbers."""
        run = await started(store)
        await store.apply([message(run.id), message(run.id), turn(run.key, consumed=[1, 2])])
        await end(store, run, Status.FAILED)
        again = [Message(0, "message", "news", "m1", '"a"', NOW), Message(0, "event", "news", "e1", '"b"', NOW)]
        await store.apply([reopen(await row(store, run.id), messages=again), message(run.id, '"c"')])
        found = [(told.n, told.kind, told.id, told.payload) for told in await unread(store, run.key)]
        assert found[:2] == [(3, "message", "m1", '"a"'), (4, "event", "e1", '"b"')]
        assert [n for n, *_ in found] == [3, 4, 5]

    async def test_the_deadline_moves(self, store: Store) -> None:
        run = await over(store, timeout=5 * SECOND)
        assert run.deadline == NOW + 5 * SECOND
        await one(store, reopen(run), Done)
        assert (await row(store, run.id)).deadline == LATER + 5 * SECOND
        [taken] = await claim(store, now=LATER)
        assert taken.deadline == LATER + 5 * SECOND

    async def test_the_unique_key_is_taken_again_or_nothing_changes(self, store: Store) -> None:
        """B8, S0-17."""
        run = await over(store, unique_key="k")
        holder = await optioned(store, owner=None, unique_key="k")
        before = await row(store, run.id)
        assert await one(store, reopen(run), KeyHeld) == KeyHeld(holder.key, holder.id)
        assert await row(store, run.id) == before
        assert len(await store.history(run.key)) == 4
        outcomes = await store.apply([RequestCancel(target=holder.id, at=NOW), reopen(run), reopen(holder)])
        assert outcomes[1:] == [Done(1), KeyHeld(run.key, run.id)]
        assert await one(store, reopen(holder), KeyHeld) == KeyHeld(run.key, run.id)

    async def test_children_are_reopened_with_their_parent(self, store: Store) -> None:
        """B8: all or none."""
        run, first, second = await self._family(store)
        children = [reopen(first, 2), reopen(second)]
        await one(store, reopen(run, 1, children=children), Done)
        assert {(await row(store, found.id)).status for found in (run, first, second)} == {Status.PENDING}
        assert len(await claim(store, now=LATER)) == 3

    async def test_if_one_child_cannot_be_reopened_nothing_is(self, store: Store) -> None:
        """B8: it moved, or its unique key is held, also by another of them."""
        run, first, second = await self._family(store)
        stranger = await over(store, unique_key="k")
        twin = await over(store, unique_key="k")
        moved = Reopen(target=second.id, epoch=99, cut=1, at=LATER)
        before = [await row(store, found.id) for found in (run, first, second, stranger, twin)]
        assert await one(store, reopen(run, children=[reopen(first), moved]), Refused) == Refused(
            Status.FAILED, "moved"
        )
        twins = [reopen(first, children=[reopen(stranger)]), reopen(twin)]
        assert await one(store, reopen(run, children=twins), KeyHeld) == KeyHeld(stranger.key, stranger.id)
        twice = reopen(run, children=[reopen(first), reopen(first)])
        assert await one(store, twice, Refused) == Refused(Status.FAILED, "moved")
        assert [await row(store, found.id) for found in (run, first, second, stranger, twin)] == before

    async def _family(self, store: Store) -> tuple[RunRow, RunRow, RunRow]:
        run = await started(store)
        children = [await child_of(store, run, name) for name in ("first", "second")]
        for found in (*children, run):
            await end(store, found, Status.FAILED)
        first, second = [await row(store, child.id) for child in children]
        return await row(store, run.id), first, second

    async def test_a_child_that_ends_again_tells_its_parent_again(self, store: Store) -> None:
        run = await started(store)
        child = await child_of(store, run, "child")
        await end(store, child, Status.FAILED)
        await one(store, reopen(await row(store, child.id)), Done)
        [taken] = await claim(store, now=LATER)
        await end(store, await row(store, taken.id))
        assert [told.kind for told in await unread(store, run.key)] == ["child_ended", "child_ended"]

    async def test_the_letters_of_a_reopened_run_tell_what_became_of_it(self, store: Store) -> None:
        """B9, S0-38: replayed, then how it ended; a new failure has a letter of its own."""
        for status in TERMINAL:
            run = await started(store)
            letter = NewLetter(id=f"{run.id}-1", step="s", attempts=3, error="e")
            await one(store, extra(run.key, letters=[letter]), Committed)
            await end(store, run, Status.FAILED)
            await one(store, reopen(await row(store, run.id)), Done)
            [found] = await store.letters(LetterFilter(id=letter.id))
            assert (found.outcome, found.acknowledged) == ("replayed", LATER)
            [taken] = await claim(store, now=LATER)
            second = NewLetter(id=f"{run.id}-2", step="s", attempts=3, error="e")
            await one(store, extra(taken.key, taken.epoch, letters=[second]), Committed)
            await end(store, await row(store, run.id), status)
            outcomes = [found.outcome for found in await store.letters(LetterFilter(run=run.id))]
            assert outcomes == ["", status]

    async def test_a_reopened_run_ends_and_parks_like_any_other(self, store: Store) -> None:
        run = await over(store)
        await one(store, reopen(run), Done)
        [taken] = await claim(store, now=LATER)
        await one(store, turn(taken.key, taken.epoch, at=LATER, state=parked(LATER + SECOND)), Committed)
        await one(store, turn(taken.key, taken.epoch, at=LATER, end=ended(output="1")), Committed)
        found = await row(store, run.id)
        assert (found.status, found.output, found.error) == (Status.COMPLETED, "1", None)
