"""Deleting what is old enough, a little at a time."""

from __future__ import annotations

from itertools import count

from msgspec.structs import replace

from holdfast.clock import Instant
from holdfast.contract.operations import (
    Acknowledge,
    Beat,
    Committed,
    Delivered,
    Done,
    Existing,
    Published,
    Purge,
    Started,
)
from holdfast.contract.rows import Counts, LetterFilter, RunFilter, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import LeaveKey, NewLetter, Parent, Reply, RunEnd, StartRun, State, TakeKey, TurnEffects
from holdfast.testing.conformance.keys import ask, leave
from holdfast.testing.conformance.samples import (
    NOW,
    SECOND,
    TERMINAL,
    TO_ALL,
    claim,
    end,
    ended,
    entry,
    event,
    extra,
    message,
    new_run,
    one,
    optioned,
    queued,
    row,
    started,
    turn,
    unread,
    wait,
    waiting,
)

LATER = NOW + 60 * SECOND


def _end(status: Status, at: Instant = LATER) -> RunEnd:
    return RunEnd(status=status, at=at)


class PurgeConformance:
    """Deleting what is old enough."""

    async def test_only_runs_of_that_end_and_that_age_are_purged(self, store: Store) -> None:
        """S0-59: their ids are told, oldest first; the moment itself is not before it."""
        runs = {status: [await started(store) for _ in range(2)] for status in TERMINAL}
        for status, (old, young) in runs.items():
            await one(store, turn(old.key, end=ended(status)), Committed)
            await one(store, turn(young.key, end=_end(status)), Committed)
        for status, (old, young) in runs.items():
            purge = Purge(what=status, before=LATER, at=LATER)
            assert await one(store, purge, Done) == Done(1, (old.id,))
            assert await one(store, purge, Done) == Done(0)
            assert await store.get(old.id) is None
            assert (await row(store, young.id)).status is status

    async def test_an_open_run_is_never_purged(self, store: Store) -> None:
        """S0-59: whatever its status, however old."""
        for status in Status:
            if not status.is_terminal:
                run = await started(store)
                await one(store, turn(run.key, state=State(status=status, seen=0)), Committed)
        for what in (*TERMINAL, "work", "event", "queued", "keys", "ids"):
            assert await one(store, Purge(what=what, before=LATER * 2, at=LATER), Done) == Done(0)
        assert len(await store.runs(RunFilter())) == 8

    async def test_nothing_of_a_purged_run_is_left_but_its_trail(self, store: Store) -> None:
        """S0-59: history, archive, results, attributes, replies, ids of its messages."""
        run = await optioned(store, attributes={"a": "1"}, unique_key="k")
        effects = TurnEffects(
            waits=[wait(rule=TO_ALL)],
            takes=[TakeKey(activity="charge", key="k", digest=1, location="a0")],
            replies=[Reply(message="q", payload="1")],
            attributes={"b": "2"},
        )
        await store.apply(
            [
                turn(run.key, entries=[entry("a0", 1)], effects=effects),
                message(run.id, id="m", deduplicate=True),
                Beat(key=run.key, epoch=1, location="a0", at=NOW, detail=""),
                event("1", rule=TO_ALL),
            ]
        )
        await end(store, run)
        await one(store, Purge(what="completed", before=LATER, at=LATER), Done)
        assert await store.get(run.id) is None
        assert await store.history(run.key) == await store.history(run.key, archived=True) == []
        assert (await store.replies(["q"]), await store.beats(run.key)) == ({}, {})
        assert await store.runs(RunFilter(attributes={"a": "1"})) == []
        assert await unread(store, run.key) == []
        assert [history.entries for history in await store.load([run.key])] == [[]]

    async def test_a_purge_is_as_small_as_it_is_asked_to_be(self, store: Store) -> None:
        """S0-59: the oldest go first, and counting goes on until nothing is left."""
        runs = [await started(store) for _ in range(7)]
        for n, run in enumerate(reversed(runs)):
            await one(store, turn(run.key, end=_end(Status.FAILED, NOW + n)), Committed)
        purge = Purge(what="failed", before=LATER, at=LATER, limit=3)
        purged = [await one(store, purge, Done) for _ in range(4)]
        assert [done.count for done in purged] == [3, 3, 1, 0]
        assert [id for done in purged for id in done.ids] == [run.id for run in reversed(runs)]

    async def test_a_child_goes_on_when_its_parent_was_purged(self, store: Store) -> None:
        parent = await started(store)
        await end(store, parent)
        await one(store, Purge(what="completed", before=LATER, at=LATER), Done)
        orphan = new_run(parent=Parent(parent.key, parent.id, "a0"))
        await one(store, StartRun(run=orphan), Started)
        [taken] = await claim(store)
        await one(store, turn(taken.key, taken.epoch, end=ended(Status.CANCELLED)), Committed)
        assert (await row(store, orphan.id)).status is Status.CANCELLED

    async def test_letters_are_purged_by_kind_age_and_whether_somebody_has_seen_them(self, store: Store) -> None:
        """S0-38, S0-59."""
        run, numbers = await started(store), count()
        for at in (NOW, NOW, LATER):
            letters = [NewLetter(id=f"l{next(numbers)}", step="s", attempts=1, error="e")]
            await one(store, extra(run.key, at=at, letters=letters), Committed)
        await one(store, message(run.id), Delivered)
        await one(store, turn(run.key, end=ended(unread={"news": "dead_letter"})), Committed)
        await one(store, Acknowledge(letter="l1", at=NOW), Done)
        seen = Purge(what="work", before=LATER, at=LATER, acknowledged=True)
        assert await one(store, replace(seen, look=True), Done) == Done(0, ("l1",))
        assert await store.apply([seen, seen]) == [Done(1, ("l1",)), Done(0)]
        assert await one(store, Purge(what="work", before=LATER, at=LATER), Done) == Done(1, ("l0",))
        assert {letter.kind for letter in await store.letters(LetterFilter())} == {"event", "work"}
        assert (await one(store, Purge(what="event", before=LATER, at=LATER), Done)).count == 1
        assert [letter.id for letter in await store.letters(LetterFilter())] == ["l2"]

    async def test_queued_events_are_purged_as_the_policy_of_their_name_says(self, store: Store) -> None:
        """B23, S2-18: oldest first, dropped or kept as dead letters."""
        await queued(store, "1", id="e1")
        await queued(store, "2", id="e2", name="kept", at=NOW - 1)
        await queued(store, "3", id="e3", at=LATER)
        purge = Purge(what="queued", before=LATER, at=LATER, unread={"kept": "dead_letter"})
        assert await one(store, replace(purge, look=True), Done) == Done(0, ("e2", "e1"))
        assert await one(store, purge, Done) == Done(2, ("e2", "e1"))
        assert (await store.counts()).events == {"news": 1}
        [letter] = await store.letters(LetterFilter())
        assert (letter.kind, letter.name, letter.payload, letter.run) == ("event", "kept", "2", "")
        assert (letter.sent, letter.at, letter.target_status) == (NOW - 1, LATER, "")
        assert [found.payload for found in await unread(store, (await waiting(store)).key)] == ["3"]

    async def test_results_under_keys_are_purged_when_they_have_expired(self, store: Store) -> None:
        """B14: never a key that is held."""
        run, holder = await started(store), await started(store)
        await ask(store, run)
        await one(store, extra(run.key, leaves=[leave('"r"', NOW + SECOND)]), Committed)
        await ask(store, holder, activity="held")
        assert await one(store, Purge(what="keys", before=NOW + SECOND, at=NOW), Done) == Done(0)
        assert await one(store, Purge(what="keys", before=NOW + SECOND + 1, at=NOW), Done) == Done(1)
        assert (await ask(store, run, activity="held")).outcome == "held"
        assert (await ask(store, run)).outcome == "taken"
        many = [TakeKey(activity="many", key=str(n), digest=1, location=f"b{n}") for n in range(5)]
        left = [LeaveKey(activity="many", key=str(n), result="1", expires=NOW) for n in range(5)]
        await store.apply([extra(run.key, takes=many), extra(run.key, leaves=left)])
        small = Purge(what="keys", before=LATER, at=LATER, limit=2)
        assert [(await one(store, small, Done)).count for _ in range(4)] == [2, 2, 1, 0]

    async def test_ids_are_forgotten_in_time(self, store: Store) -> None:
        """B16: of purged runs when their tombstones expire, of events when they were published long ago."""
        run = await started(store)
        await end(store, run)
        await one(store, Purge(what="completed", before=LATER, at=NOW, keep_ids=LATER), Done)
        again = event("1", id="e", deduplicate=True)
        await one(store, again, Published)
        assert await one(store, Purge(what="ids", before=NOW, at=LATER), Done) == Done(0)
        assert (await one(store, again, Published)).duplicate
        await one(store, StartRun(run=new_run(run.id)), Existing)
        assert await one(store, Purge(what="ids", before=NOW + 1, at=LATER + 1), Done) == Done(2)
        assert not (await one(store, again, Published)).duplicate
        await one(store, StartRun(run=new_run(run.id)), Started)

    async def test_counts_tell_how_much_there_is(self, store: Store) -> None:
        """S0-45."""
        assert await store.counts() == Counts(runs={}, letters=[], events={})
        for status in (*TERMINAL, Status.COMPLETED):
            await end(store, await started(store), status)
        await started(store, owner=None)
        await queued(store, "1", "2")
        counts = await store.counts()
        assert counts.runs == {"completed": 2, "failed": 1, "cancelled": 1, "pending": 1}
        assert (counts.letters, counts.events) == ([], {"news": 2})
