"""Events by name: who waits, what is queued, and who is given what."""

from __future__ import annotations

from holdfast.contract.operations import Committed, Delivered, Fenced, Published
from holdfast.contract.store import Store
from holdfast.contract.turns import EventRule, Renewal, TurnEffects
from holdfast.testing.conformance.samples import (
    NOW,
    SECOND,
    TO_ALL,
    claim,
    end,
    ended,
    entry,
    event,
    extra,
    given,
    message,
    one,
    parked,
    queued,
    started,
    turn,
    unread,
    wait,
    waiting,
)


class EventConformance:
    """An event that one run is given."""

    async def test_an_event_goes_to_the_run_that_has_waited_longest(self, store: Store) -> None:
        """S2-14, S2-15, B29, G8: waiters are served in order of suspension, each event once; nobody is an error."""
        late, first, second = [await waiting(store, since=NOW + n) for n in (3, 1, 2)]
        published = [await one(store, event(str(n), at=NOW + n), Published) for n in range(4)]
        assert published == [Published(1), Published(1), Published(1), Published(0)]
        assert [await given(store, run) for run in (first, second, late)] == [[("event", str(n))] for n in range(3)]
        assert (await store.counts()).events == {"news": 1}

    async def test_events_that_wait_are_listed_with_their_content(self, store: Store) -> None:
        """Oldest first: those of a name in pages, or the oldest of any name; those that were given are not."""
        await one(store, event('"a"', at=NOW + 1, id="e-1"), Published)
        await one(store, event('"b"', at=NOW + 3, id="e-2"), Published)
        await one(store, event('"c"', at=NOW + 2, id="e-3", name="other"), Published)
        news = await store.events("news")
        assert [(row.name, row.id, row.payload, row.at) for row in news] == [
            ("news", "e-1", '"a"', NOW + 1), ("news", "e-2", '"b"', NOW + 3),
        ]  # fmt: skip
        assert await store.events("news", limit=1) == news[:1]
        assert await store.events("news", after=news[0].n) == news[1:]
        assert [row.id for row in await store.events()] == ["e-1", "e-3", "e-2"]
        assert [row.id for row in await store.events(limit=2)] == ["e-1", "e-3"]
        await waiting(store, since=NOW)
        assert [row.id for row in await store.events("news")] == ["e-2"]
        assert await store.events("nothing") == []

    async def test_an_event_makes_the_run_that_is_given_it_due(self, store: Store) -> None:
        """S2-41: resumed by its owner if it has one, by anybody if not."""
        resident, evicted = await waiting(store), await started(store)
        released = extra(evicted.key, state=parked(released=True), waits=[wait(since=NOW + 1)])
        await one(store, released, Committed)
        sent = event('"a"', at=NOW + 5, id="e-1")
        await store.apply([sent, event('"b"', at=NOW + 5)])
        assert await store.due("w", NOW + 5) == [resident.key]
        assert [taken.key for taken in await claim(store, now=NOW + 5)] == [evicted.key]
        [found] = await unread(store, resident.key)
        assert (found.n, found.kind, found.name, found.id, found.payload, found.at) == (
            1, "event", "news", "e-1", '"a"', NOW + 5,
        )  # fmt: skip

    async def test_a_receive_is_given_what_is_queued_in_the_commit_that_makes_it_wait(self, store: Store) -> None:
        """S2-42, G8: the check and the suspension are one; oldest first, and it does not wait any more."""
        await queued(store, '"a"', '"b"')
        run = await started(store)
        outcome = await one(store, extra(run.key, at=NOW + 5, state=parked(), waits=[wait()]), Committed)
        assert [(found.kind, found.payload, found.at) for found in outcome.messages] == [("event", '"a"', NOW)]
        assert await store.due("w", NOW + 5) == [run.key]
        assert (await store.counts()).events == {"news": 1}
        await queued(store, '"c"')
        assert await given(store, run) == [("event", '"a"')]

    async def test_a_receive_is_given_what_is_queued_also_by_a_turn_that_does_not_park(self, store: Store) -> None:
        """S2-42: another branch of the run may be at work."""
        await queued(store, '"a"')
        run = await started(store)
        outcome = await one(store, extra(run.key, waits=[wait()]), Committed)
        assert [found.payload for found in outcome.messages] == ['"a"']

    async def test_whichever_of_publishing_and_waiting_comes_first_the_event_arrives_once(self, store: Store) -> None:
        """S2-30, S2-42, G8: in one batch, in both orders."""
        before, after = await started(store), await started(store)
        outcomes = await store.apply(
            [
                event('"a"', name="x"), extra(before.key, state=parked(), waits=[wait("a0", "x")]),
                extra(after.key, state=parked(), waits=[wait("a0", "y")]), event('"b"', name="y"),
            ]
        )  # fmt: skip
        assert [outcomes[0], outcomes[3]] == [Published(0), Published(1)]
        assert [await given(store, run) for run in (before, after)] == [[("event", '"a"')], [("event", '"b"')]]
        assert (await store.counts()).events == {}

    async def test_the_runs_own_messages_come_before_events(self, store: Store) -> None:
        """S2-16: an event that is queued when a run begins to wait goes behind the message it has not seen."""
        await queued(store, '"event"')
        run = await started(store)
        await one(store, message(run.id, '"mine"'), Delivered)
        outcome = await one(store, extra(run.key, state=parked(), waits=[wait()]), Committed)
        assert [found.payload for found in outcome.messages] == ['"mine"', '"event"']
        assert (await store.counts()).events == {}

    async def test_a_queued_event_is_not_overtaken_while_its_waiter_has_a_message(self, store: Store) -> None:
        """G8 S2-16: a younger event never reaches the run before an older one that it may have."""
        await queued(store, "1")
        run = await started(store)
        await one(store, message(run.id, '"mine"'), Delivered)
        await one(store, extra(run.key, state=parked(), waits=[wait()]), Committed)
        await one(store, event("2"), Published)
        await one(store, extra(run.key, state=parked(seen=2), waits=[wait(seen=2)]), Committed)
        assert await given(store, run) == [("message", '"mine"'), ("event", "1"), ("event", "2")]

    async def test_two_receives_that_share_a_message_and_a_queued_event_both_end(self, store: Store) -> None:
        """G7 G8: the message ends one of them, and nothing else would ever tell the other of the event."""
        await queued(store, "1")
        run = await started(store)
        await one(store, message(run.id, '"mine"'), Delivered)
        outcome = await one(store, extra(run.key, state=parked(), waits=[wait("a0"), wait("a1")]), Committed)
        assert [found.payload for found in outcome.messages] == ['"mine"', "1"]

    async def test_an_event_that_was_given_back_is_before_those_queued_meanwhile(self, store: Store) -> None:
        """G8: it is as old as it was."""
        run = await waiting(store)
        await one(store, event("1"), Published)
        await queued(store, "2", at=NOW + 1)
        await one(store, extra(run.key, state=parked(seen=1), returns=[1]), Committed)
        assert await given(store, await waiting(store)) == [("event", "1")]
        assert await given(store, await waiting(store)) == [("event", "2")]

    async def test_one_event_ends_the_wait_for_every_name(self, store: Store) -> None:
        run = await waiting(store, "x", "y")
        assert await one(store, event(name="y"), Published) == Published(1)
        await queued(store, "2", name="x")
        assert await given(store, run) == [("event", "1")]

    async def test_a_receive_of_several_names_is_given_the_oldest_of_what_is_queued(self, store: Store) -> None:
        """G8: whichever name comes first in the call."""
        for name, payload in (("y", "1"), ("x", "2"), ("y", "3")):
            await queued(store, payload, name=name)
        assert [await given(store, await waiting(store, "x", "y")) for _ in range(3)] == [
            [("event", payload)] for payload in ("1", "2", "3")
        ]

    async def test_each_receive_of_a_run_waits_by_itself(self, store: Store) -> None:
        run = await started(store)
        await one(store, extra(run.key, state=parked(), waits=[wait("a0"), wait("a1", since=NOW + 1)]), Committed)
        assert await store.apply([event("1"), event("2"), event("3")]) == [Published(1), Published(1), Published(0)]
        assert await given(store, run) == [("event", "1"), ("event", "2")]

    async def test_a_receive_that_waits_no_more_is_given_nothing(self, store: Store) -> None:
        """S2-14: also when the same turn publishes, or gives an event back, under that name."""
        run = await waiting(store)
        await one(store, extra(run.key, unwaits=["a0"]), Committed)
        await queued(store, "1")
        other = await waiting(store, "other")
        own = event("2", name="other", location="a9", seq=1)
        await one(store, extra(other.key, unwaits=["a0"], publishes=[own]), Committed)
        assert await given(store, run) == await given(store, other) == []
        assert (await store.counts()).events == {"news": 1, "other": 1}

    async def test_a_receive_that_waits_again_waits_for_nothing_else(self, store: Store) -> None:
        """Waiting at a place replaces what waited there, in one batch as in two."""
        for together in (False, True):
            run = await started(store)
            turns = [
                extra(run.key, waits=[wait("a0", "x", "y")]),
                extra(run.key, unwaits=["a0"]),
                extra(run.key, waits=[wait("a0", "z")]),
                extra(run.key, waits=[wait("a0", "x")]),
            ]
            for batch in [turns] if together else [[one_turn] for one_turn in turns]:
                await store.apply(batch)
            for name, runs in (("y", 0), ("z", 0), ("x", 1)):
                assert await one(store, event(name=name), Published) == Published(runs)

    async def test_a_receive_given_an_event_at_once_does_not_wait_from_before(self, store: Store) -> None:
        run = await waiting(store)
        await one(store, extra(run.key, unwaits=["a0"]), Committed)
        await queued(store, "1")
        await store.apply([extra(run.key, waits=[wait("a0", "other")]), extra(run.key, waits=[wait("a0", "news")])])
        assert await given(store, run) == [("event", "1")]
        await queued(store, "2", name="other")

    async def test_an_event_given_back_goes_to_somebody_else(self, store: Store) -> None:
        """G8: nothing is lost when a race or a timeout ended the wait; it keeps its id and its age."""
        run, other = await waiting(store), await waiting(store, since=NOW + 1)
        await one(store, event('"a"', id="e-1"), Published)
        later = NOW + 9 * SECOND
        await one(store, extra(run.key, at=later, returns=[1], state=parked(seen=1)), Committed)
        [found] = await unread(store, other.key)
        assert (found.kind, found.id, found.payload, found.at) == ("event", "e-1", '"a"', NOW)
        assert await unread(store, run.key) == []
        await one(store, extra(other.key, at=later, returns=[1]), Committed)
        await one(store, extra(other.key, at=later, returns=[1]), Committed)
        assert (await store.counts()).events == {"news": 1}
        third = await waiting(store)
        assert [(found.id, found.at) for found in await unread(store, third.key)] == [("e-1", NOW)]

    async def test_an_event_is_as_old_as_it_is_however_often_it_was_given_back(self, store: Store) -> None:
        """S2-15: waiting in an inbox makes it no younger, so it expires in time."""
        await queued(store, "1")
        run = await started(store)
        await one(store, extra(run.key, at=NOW + 9 * SECOND, waits=[wait()]), Committed)
        await one(store, extra(run.key, at=NOW + 9 * SECOND, returns=[1]), Committed)
        fresh = EventRule(not_before=NOW + 1)
        assert await given(store, await waiting(store, rule=fresh)) == []

    async def test_an_event_given_back_is_not_given_to_the_same_receive(self, store: Store) -> None:
        run = await started(store)
        await one(store, extra(run.key, state=parked(), waits=[wait("a0"), wait("a1", since=NOW + 1)]), Committed)
        await one(store, event(), Published)
        outcome = await one(store, extra(run.key, returns=[1], unwaits=["a1"], state=parked(seen=1)), Committed)
        assert outcome.messages == ()
        assert (await store.counts()).events == {"news": 1}

    async def test_only_events_are_given_back(self, store: Store) -> None:
        """G7: a message or a copy of what everybody was given is nobody else's."""
        run, other = await waiting(store, rule=TO_ALL), await waiting(store, "elsewhere")
        await one(store, event("1", rule=EventRule(single=False, keep=False)), Published)
        await store.apply([message(run.id, "2"), extra(other.key, waits=[wait("a1")])])
        await one(store, extra(run.key, returns=[1, 2, 77]), Committed)
        assert await given(store, run) == [("notice", "1"), ("message", "2")]
        assert await given(store, other) == []
        assert (await store.counts()).events == {}

    async def test_an_ended_run_is_given_nothing(self, store: Store) -> None:
        """S2-14: terminal runs are skipped, and do not swallow what others wait for."""
        over, run = await waiting(store), await waiting(store, since=NOW + 1)
        both = await store.apply([turn(over.key, end=ended()), event("1")])
        assert both[1] == Published(1)
        assert await given(store, run) == [("event", "1")]
        await end(store, run)
        assert await one(store, event("2", rule=TO_ALL), Published) == Published(0)

    async def test_continuing_as_new_forgets_what_was_waited_for(self, store: Store) -> None:
        run = await waiting(store)
        await one(store, turn(run.key, renewal=Renewal(input="2", generation=1)), Committed)
        await queued(store, "1")
        assert await given(store, run) == []

    async def test_a_fenced_turn_neither_waits_nor_publishes_nor_gives_back(self, store: Store) -> None:
        run = await waiting(store)
        await one(store, event("1"), Published)
        await one(
            store,
            extra(run.key, 7, waits=[wait("a1")], returns=[1], publishes=[event("2", location="a2", seq=1)]),
            Fenced,
        )
        assert await given(store, run) == [("event", "1")]
        await queued(store, "3")
        assert (await store.counts()).events == {"news": 1}

    async def test_a_turn_publishes_and_learns_of_a_full_queue_from_its_own_fact(self, store: Store) -> None:
        """B23: so that the refusal survives a crash."""
        run, other = await started(store), await waiting(store)
        rule = EventRule(max_pending=1)
        facts = [entry(f"a{n}", n) for n in (1, 2, 3)]
        events = [event(str(n), rule=rule, location=f"a{n}", seq=n, refusal='"full"') for n in (1, 2, 3)]
        outcome = await one(store, turn(run.key, entries=facts, effects=TurnEffects(publishes=events)), Committed)
        assert outcome.refused == {"a3": "full"}
        assert outcome.woke_others
        assert [fact.data for fact in await store.history(run.key)] == ["{}", "{}", '"full"']
        assert await given(store, other) == [("event", "1")]
        assert (await store.counts()).events == {"news": 1}

    async def test_a_turn_that_gives_others_nothing_says_so(self, store: Store) -> None:
        run = await started(store)
        outcome = await one(store, extra(run.key, publishes=[event(location="a0", seq=1)]), Committed)
        assert not outcome.woke_others
