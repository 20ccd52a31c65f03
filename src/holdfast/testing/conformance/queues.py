"""Events that wait for one run, and events that every run gets."""

from __future__ import annotations

from holdfast.contract.operations import Committed, Delivered, Done, Published, Refused, Reopen
from holdfast.contract.rows import Status
from holdfast.contract.store import Store
from holdfast.contract.turns import EventRule
from holdfast.testing.conformance.samples import (
    NOW,
    TO_ALL,
    claim,
    end,
    event,
    extra,
    given,
    message,
    one,
    parked,
    queued,
    row,
    started,
    wait,
    waiting,
)


class QueueConformance:
    """Events that wait for one run."""

    async def test_a_full_queue_refuses_and_writes_nothing(self, store: Store) -> None:
        """B23, S2-17: counted per name; who waits is served all the same."""
        rule = EventRule(max_pending=2)
        await queued(store, "1", "2", rule=rule)
        refused = event("3", rule=rule, id="again", deduplicate=True)
        assert await one(store, refused, Refused) == Refused(None, "full")
        await queued(store, "1", name="other", rule=rule)
        assert (await store.counts()).events == {"news": 2, "other": 1}
        await waiting(store)
        await waiting(store)
        assert await one(store, refused, Published) == Published(0)
        run = await waiting(store)
        assert await given(store, run) == [("event", "3")]
        await waiting(store)
        assert await store.apply([event("5", rule=rule), event("6", rule=rule)]) == [Published(1), Published(0)]

    async def test_an_id_published_before_is_a_duplicate(self, store: Store) -> None:
        """G8: also in the same batch, after it was taken, and when the queue is full by now."""
        rule = EventRule(max_pending=1)
        same = event("1", id="one", deduplicate=True, rule=rule)
        assert await store.apply([same, same]) == [Published(0), Published(0, duplicate=True)]
        assert await one(store, same, Published) == Published(0, duplicate=True)
        run = await waiting(store)
        assert await given(store, run) == [("event", "1")]
        await waiting(store)
        assert await one(store, same, Published) == Published(0, duplicate=True)
        assert (await store.counts()).events == {}
        twice = event("2", id="two")
        assert await store.apply([twice, twice]) == [Published(1), Published(0)]

    async def test_a_waiter_is_given_nothing_older_than_its_rule_allows(self, store: Store) -> None:
        """B29, S2-15, S2-43: the rule is the waiter's, not the event's; what is refused to one stays for another."""
        await queued(store, '"old"')
        await queued(store, '"new"', at=NOW + 2)
        assert await given(store, await waiting(store, rule=EventRule(not_before=NOW + 3))) == []
        await store.apply([event("0", at=NOW + 2)])
        assert await given(store, await waiting(store, rule=EventRule(not_before=NOW + 2))) == [("event", '"new"')]
        assert await given(store, await waiting(store)) == [("event", '"old"')]

    async def test_expired_events_are_gone(self, store: Store) -> None:
        """S2-15: they are not delivered, and make room in their queue."""
        await queued(store, '"old"', rule=EventRule(max_pending=1))
        assert await given(store, await waiting(store, rule=EventRule(expired=NOW + 1))) == []
        await store.apply([event("0", at=NOW + 1)])
        await queued(store, '"new"', at=NOW + 2, rule=EventRule(expired=NOW + 1, max_pending=1))
        assert (await store.counts()).events == {"news": 1}
        assert await given(store, await waiting(store)) == [("event", '"new"')]

    async def test_queued_events_keep_their_order(self, store: Store) -> None:
        payloads = [str(n) for n in range(60)]
        await store.apply([event(payload) for payload in payloads[:30]])
        await queued(store, *payloads[30:])
        runs = [await started(store) for _ in range(60)]
        await store.apply([extra(run.key, state=parked(), waits=[wait()]) for run in runs])
        assert [await given(store, run) for run in runs] == [[("event", payload)] for payload in payloads]
        assert (await store.counts()).events == {}


class BroadcastConformance:
    """Events that every run gets."""

    async def test_everybody_who_waits_is_given_a_copy_and_whoever_comes_later(self, store: Store) -> None:
        """S2-15, S2-41, B30, G8: once each."""
        runs = [await waiting(store, rule=TO_ALL) for _ in range(3)]
        assert await one(store, event("1", rule=TO_ALL), Published) == Published(3)
        runs.append(await waiting(store, rule=TO_ALL))
        assert [await given(store, run) for run in runs] == [[("notice", "1")]] * 4
        assert (await store.counts()).events == {"news": 1}
        for run in runs:
            again = extra(run.key, state=parked(seen=1), waits=[wait(rule=TO_ALL, seen=1)])
            assert (await one(store, again, Committed)).messages == ()
        assert await one(store, event("2", rule=TO_ALL), Published) == Published(4)
        assert [await given(store, run) for run in runs] == [[("notice", "1"), ("notice", "2")]] * 4

    async def test_a_run_with_two_receives_is_given_one_copy(self, store: Store) -> None:
        """B30: each run sees an event at most once."""
        run = await started(store)
        waits = [wait("a0", rule=TO_ALL), wait("a1", rule=TO_ALL)]
        await one(store, extra(run.key, state=parked(), waits=waits), Committed)
        assert await one(store, event("1", rule=TO_ALL), Published) == Published(1)
        assert await one(store, event("2", rule=TO_ALL), Published) == Published(1)
        assert await given(store, run) == [("notice", "1"), ("notice", "2")]

    async def test_a_latecomer_is_given_each_kept_event_in_order(self, store: Store) -> None:
        """B30: a loop that receives one name takes them one by one, and then waits."""
        await queued(store, "1", "2", "3", rule=TO_ALL)
        run = await started(store)
        for n in range(4):
            await one(store, extra(run.key, state=parked(seen=n), waits=[wait(rule=TO_ALL, seen=n)]), Committed)
        assert await given(store, run) == [("notice", str(n)) for n in (1, 2, 3)]
        assert await one(store, event("4", rule=TO_ALL), Published) == Published(1)
        assert (await store.counts()).events == {"news": 4}

    async def test_a_run_that_was_reopened_is_not_given_what_it_had(self, store: Store) -> None:
        """B30: at most once in all its life."""
        run = await waiting(store, rule=TO_ALL)
        await one(store, event("1", rule=TO_ALL), Published)
        await end(store, run)
        await one(store, Reopen(target=run.id, epoch=run.epoch, cut=1, at=NOW), Done)
        [taken] = await claim(store)
        again = extra(taken.key, taken.epoch, state=parked(seen=1), waits=[wait(rule=TO_ALL, seen=1)])
        assert (await one(store, again, Committed)).messages == ()

    async def test_an_event_that_is_not_kept_is_for_those_who_wait(self, store: Store) -> None:
        """S2-15: and never fills the queue."""
        rule = EventRule(single=False, keep=False, max_pending=0)
        run = await waiting(store, rule=rule)
        assert await store.apply([event("1", rule=rule), event("2", rule=rule)]) == [Published(1), Published(0)]
        assert await given(store, run) == [("notice", "1")]
        assert (await store.counts()).events == {}

    async def test_a_full_queue_refuses_what_would_be_kept(self, store: Store) -> None:
        """B23: nobody is given it then."""
        rule = EventRule(single=False, max_pending=1)
        await queued(store, "1", rule=rule)
        run = await waiting(store, rule=EventRule(single=False, not_before=NOW + 1))
        assert await one(store, event("2", rule=rule), Refused) == Refused(None, "full")
        assert await given(store, run) == []

    async def test_a_large_fan_out_is_one_commit(self, store: Store) -> None:
        """S2-41, G8: everybody or nobody."""
        runs = [await started(store) for _ in range(300)]
        await store.apply([extra(run.key, state=parked(), waits=[wait(rule=TO_ALL)]) for run in runs])
        await end(store, runs[7])
        assert await one(store, event("1", rule=TO_ALL, at=NOW + 5), Published) == Published(299)
        assert len(await store.due("w", NOW + 5)) == 299
        found = await store.inboxes({run.key: 0 for run in runs})
        assert sum(len(rows) for rows in found.values()) == 299
        assert (await row(store, runs[8].id)).status is Status.SUSPENDED

    async def test_the_rule_of_the_moment_decides_and_not_that_of_the_queue(self, store: Store) -> None:
        """S2-43: what was published for one may be taken as a copy, and the other way round."""
        await queued(store, "1")
        first, second = await waiting(store, rule=TO_ALL), await waiting(store)
        assert await given(store, first) == [("notice", "1")]
        assert await given(store, second) == [("event", "1")]
        assert (await store.counts()).events == {}

    async def test_a_message_that_ends_a_wait_does_not_let_older_copies_be_passed_over(self, store: Store) -> None:
        """G8, B30: queued while the run was busy, they are given to it before a younger one is."""
        run = await started(store)
        await queued(store, "1", rule=TO_ALL)
        await one(store, message(run.id, "m"), Delivered)
        waits = [wait("a0", rule=TO_ALL)]
        await one(store, extra(run.key, state=parked(), waits=waits), Committed)
        await one(store, event("2", rule=TO_ALL), Published)
        assert await given(store, await row(store, run.id)) == [("message", "m"), ("notice", "1"), ("notice", "2")]
