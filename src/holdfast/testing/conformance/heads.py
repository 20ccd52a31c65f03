"""Looking at many runs: heads without payloads, filters, pages that go on, counts that stop, and histories in parts."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from holdfast.contract.heads import HeadFilter, RunHead
from holdfast.contract.house import EventQueueRow, KeyHolder
from holdfast.contract.operations import Committed, Delivered, Done, Published, Purge, SetAttributes
from holdfast.contract.rows import RunRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import Audit, NewLetter, State, TakeKey
from holdfast.contract.waits import WaitNote, write_wait
from holdfast.errors import ReadOnly
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    Another,
    end,
    ended,
    entry,
    event,
    extra,
    message,
    one,
    optioned,
    parked,
    row,
    started,
    turn,
    waiting,
)

FAILURE = json.dumps({"type": "shop.CardDeclined", "message": "x" * 1_000})


class HeadConformance:
    """Searching."""

    async def test_a_head_has_no_payload_and_the_beginning_of_its_error(self, store: Store) -> None:
        run = await started(store, input=json.dumps("y" * 100_000))
        failed = ended(Status.FAILED, output=None, error=FAILURE, failed_step="charge")
        await one(store, turn(run.key, end=failed), Committed)
        [head] = (await store.heads(HeadFilter())).heads
        assert (head.id, head.status, head.key) == (run.id, Status.FAILED, run.key)
        assert (head.error_type, head.error_message, head.failed_step) == ("shop.CardDeclined", "x" * 300, "charge")
        assert "yyyy" not in str(head)
        assert await store.heads_of([run.id, "none"]) == {run.id: head}
        assert await store.heads_of([]) == {}

    async def test_pages_of_heads_follow_each_other_and_miss_nothing(self, store: Store) -> None:
        runs = [await started(store, owner=None) for _ in range(7)]
        found: list[str] = []
        before: int | None = None
        while True:
            page = await store.heads(HeadFilter(limit=3, before=before))
            found += [head.id for head in page.heads]
            assert not page.partial
            before = page.next
            if before is None:
                break
        assert found == [run.id for run in reversed(runs)]

    async def test_every_condition_finds_its_runs_alone_and_with_others(self, store: Store) -> None:
        await store.join("w", LEASE)
        plain = await started(store, "plain-1", owner=None, workflow="order")
        await started(store, "plain-2", owner=None, workflow="report", version="2", at=NOW + 10 * SECOND)
        kim = await optioned(store, owner=None, actor="kim", tenant="acme", unique_key="u")
        child = await started(store, "child-1")
        await one(
            store,
            turn(child.key, state=State(status=Status.SUSPENDED, seen=0, wait="message approved; timer")),
            Committed,
        )
        noted = write_wait("retry", [WaitNote(kind="retry", step="pack", error="Busy")])
        again = await started(store, "again-1", workflow="report")
        await one(store, turn(again.key, state=State(status=Status.SUSPENDED, seen=0, wait=noted)), Committed)
        done = await started(store, "done-1")
        await end(store, done)
        for run in (plain, kim):
            await store.apply([SetAttributes(target=run.id, attributes={"customer": '"c-1"'}, at=NOW)])
        await store.apply([SetAttributes(target=kim.id, attributes={"size": "3"}, at=NOW)])

        async def found(**conditions: object) -> list[str]:
            which = HeadFilter(**conditions)  # type: ignore[arg-type]  # its fields
            heads = (await store.heads(which)).heads
            assert (await store.count(which))[:2] == (len(heads), True)
            return [head.id for head in heads]

        assert await found(statuses=(Status.COMPLETED,)) == ["done-1"]
        assert await found(statuses=(Status.COMPLETED, Status.SUSPENDED)) == ["done-1", "again-1", "child-1"]
        assert await found(workflows=("report",)) == ["again-1", "plain-2"]
        assert await found(workflows=("report", "order"), version="2") == ["plain-2"]
        assert await found(not_workflows=("order",)) == ["again-1", "plain-2"]
        assert await found(id_prefix="plain-") == ["plain-2", "plain-1"]
        assert await found(id_prefix="plain-", statuses=(Status.PENDING,), workflows=("order",)) == ["plain-1"]
        assert await found(actor="kim") == await found(tenant="acme") == await found(unique_key="u") == [kim.id]
        assert await found(attributes={"customer": '"c-1"'}) == [kim.id, "plain-1"]
        assert await found(attributes={"customer": '"c-1"', "size": "3"}) == [kim.id]
        assert await found(attributes={"customer": '"c-1"'}, statuses=(Status.PENDING,), actor="kim") == [kim.id]
        assert await found(waiting="message approved") == ["child-1"]
        assert await found(waiting="message a", workflows=("order",)) == ["child-1"]
        assert await found(waiting="step pack") == await found(waiting="retry") == ["again-1"]
        assert await found(waiting="step pac") == []
        assert await found(created_from=NOW + SECOND) == ["plain-2"]
        assert await found(created_from=NOW + SECOND, created_until=NOW + 10 * SECOND) == []
        assert await found(ended_from=NOW, ended_until=NOW + 1) == ["done-1"]
        assert await found(ended_until=NOW) == []
        assert await found(quiet_since=NOW) == []
        assert await found(due_until=NOW, workflows=("order",)) == [kim.id, "plain-1"]
        assert await found(parent="none") == await found(owners=("none",)) == []
        assert await found(owners=("w", "v")) == await found(owners=("w",), statuses=(Status.SUSPENDED,))
        assert await found(owners=("w",), statuses=(Status.SUSPENDED,)) == ["again-1", "child-1"]
        assert len(await found()) == 6

    async def test_runs_that_want_a_worker_are_found_wherever_they_stand(self, store: Store) -> None:
        """Of any workflow, priority and age, those that a worker has or has lost among them, and none that sleeps."""
        wanted = {
            (await optioned(store, owner=None, priority=priority, unique_key=f"{priority}")).id
            for priority in (-5, 0, 7)
        }
        wanted |= {(await started(store, owner=None, workflow=name, at=NOW - SECOND)).id for name in ("a", "b")}
        for worker in ("w", "v"):
            for due in (NOW, NOW + 1, None):
                run = await started(store, owner=worker)
                await one(store, turn(run.key, state=parked(due)), Committed)
                wanted |= {run.id} if due == NOW else set()
        late = await started(store, owner=None, at=NOW + 1)
        await end(store, await started(store))
        other = await started(store, workflow="lost")
        for _ in range(2):  # workers have it, and lose it
            back = State(status=Status.PENDING, seen=0, due=NOW, released=True)
            await one(store, turn(other.key, (await row(store, other.id)).epoch, trial=True, state=back), Committed)
            [taken] = await store.claim("w", NOW, 1, ["lost"])
        await one(store, turn(other.key, taken.epoch, state=back), Committed)
        assert (await row(store, other.id)).claims > 0
        wanted.add(other.id)

        async def found(until: int = NOW, **conditions: object) -> set[str]:
            which = HeadFilter(due_until=until, **conditions)  # type: ignore[arg-type]  # its fields
            return {head.id for head in (await store.heads(which)).heads}

        assert await found() == wanted
        assert await found(statuses=(Status.PENDING, Status.SUSPENDED)) == wanted
        assert await found(workflows=("a", "lost")) == await found(workflows=("lost",)) | await found(workflows=("a",))
        assert await found(id_prefix=other.id, workflows=("lost",)) == {other.id}
        assert await found(NOW - SECOND) == await found(created_until=NOW) == await found(workflows=("a", "b"))
        assert len(await found(NOW + 1)) == len(wanted) + 3
        assert late.id in await found(NOW + 1)

    async def test_when_the_newest_runs_that_meet_conditions_ended_is_told(self, store: Store) -> None:
        for number in range(5):
            run = await started(store)
            region = SetAttributes(target=run.id, attributes={"region": '"a"' if number % 2 else '"b"'}, at=NOW)
            await store.apply([region])
            end_of = ended(Status.FAILED, output=None, error=FAILURE) if number < 3 else ended()
            await one(store, turn(run.key, end=msgspec.structs.replace(end_of, at=NOW + number * SECOND)), Committed)
        await started(store)
        done, lost = str(Status.COMPLETED), str(Status.FAILED)
        every = [(NOW + number * SECOND, lost if number < 3 else done) for number in (4, 3, 2, 1, 0)]
        page = await store.ends(HeadFilter())
        assert (page.ends, page.exact) == (every, True)
        assert (await store.ends(HeadFilter(statuses=(Status.FAILED,)))).ends == every[2:]
        assert (await store.ends(HeadFilter(attributes={"region": '"a"'}))).ends == [every[1], every[3]]
        span = HeadFilter(ended_from=NOW + SECOND, ended_until=NOW + 3 * SECOND)
        assert (await store.ends(span)).ends == every[2:4]
        few = await store.ends(HeadFilter(statuses=(Status.FAILED,)), most=1)
        assert (few.ends[0], few.exact) == (every[2], False)

    async def test_a_count_stops_where_it_is_told_to(self, store: Store) -> None:
        for _ in range(5):
            await started(store, owner=None)
        assert (await store.count(HeadFilter(), most=5))[:2] == (5, True)
        assert (await store.count(HeadFilter(), most=4))[:2] == (4, False)
        assert (await store.count(HeadFilter(workflows=("order",)), most=4))[:2] == (4, False)
        assert (await store.count(HeadFilter(workflows=("none",))))[:2] == (0, True)

    async def test_a_history_is_read_in_parts(self, store: Store) -> None:
        run = await started(store)
        facts = [entry(f"a{number}", number) for number in range(1, 8)]
        await one(store, turn(run.key, entries=facts), Committed)
        assert await store.history(run.key) == facts
        assert await store.history(run.key, after=5) == facts[5:]
        assert await store.history(run.key, after=2, limit=3) == facts[2:5]
        assert await store.history(run.key, after=2, limit=3, newest=True) == facts[4:]
        assert await store.history(run.key, after=7) == []
        assert await store.facts_of_kind(run.key, facts[0].kind, before=4) == facts[:3]
        assert await store.facts_of_kind(run.key, facts[0].kind + 1, before=4) == []

    async def test_what_sentences_need_is_asked_for_many_runs_at_once(self, store: Store) -> None:
        paused = await waiting(store, "news", since=NOW - 5 * SECOND)
        holder = await started(store)
        key = TakeKey(activity="pay", key="acct-17", digest=1, location="a0")
        await one(store, extra(holder.key, takes=[key]), Committed)
        for actor, action in (("kim", "pause"), ("lena", "resume"), ("mia", "set attributes")):
            audit = Audit(actor=actor, action=action, detail="")
            await store.apply([SetAttributes(target=paused.id, attributes={}, at=NOW, audit=audit)])
        acts = await store.last_acts([paused.id, holder.id], ["pause", "resume"])
        assert {target: act.actor for target, act in acts.items()} == {paused.id: "lena"}
        assert (await store.last_acts([paused.id], ["pause"]))[paused.id].actor == "kim"
        held = {("pay", "acct-17"): KeyHolder(holder.id, NOW)}
        assert await store.key_holders([("pay", "acct-17"), ("pay", "none")]) == held
        assert await store.waiting_since([paused.key, holder.key]) == {paused.key: NOW - 5 * SECOND}
        await one(store, event(name="stock"), Published)
        assert await store.event_queues(["stock", "none"]) == {"stock": EventQueueRow(1, None, None)}
        assert not await store.event_queues([])
        for name in ("aproved", "aproved", "other"):
            await one(store, message(holder.id, name=name), Delivered)
        assert await store.unread_names([paused.key, holder.key]) == {holder.key: ("aproved", "other")}
        letters = [NewLetter(id=f"l{n}", step=step, attempts=n, error="") for n, step in enumerate(["a", "b", "b"], 1)]
        await one(store, extra(holder.key, letters=letters), Committed)
        steps = [(holder.id, "a"), (holder.id, "b"), (holder.id, "c"), (paused.id, "a")]
        assert await store.attempts_given_up(steps) == {(holder.id, "a"): 1, (holder.id, "b"): 3}
        assert not await store.admissions([paused.key])
        assert not await store.admissions([])
        assert not await store.last_acts([], ["pause"])
        assert not await store.unread_names([])
        assert not await store.attempts_given_up([])
        assert not await store.key_holders([])
        assert not await store.waiting_since([])

    async def test_a_key_is_held_since_its_step_took_it_first(self, store: Store) -> None:
        holder = await started(store)
        key = TakeKey(activity="pay", key="acct-17", digest=1, location="a0")
        for at in (NOW, NOW + 9 * SECOND):
            await one(store, extra(holder.key, at=at, takes=[key]), Committed)
        assert await store.key_holders([("pay", "acct-17")]) == {("pay", "acct-17"): KeyHolder(holder.id, NOW)}

    async def test_which_run_was_given_the_last_event_of_a_name_is_known_until_it_is_purged(self, store: Store) -> None:
        first = await waiting(store, "stock", since=NOW - 2 * SECOND)
        second = await waiting(store, "stock", since=NOW - SECOND)
        for run, at in ((first, NOW), (second, NOW + SECOND)):
            await one(store, event(name="stock", at=at), Published)
            assert await store.event_queues(["stock"]) == {"stock": EventQueueRow(0, run.id, at)}
        await one(store, event(name="stock", at=NOW + 2 * SECOND), Published)
        assert await store.event_queues(["stock"]) == {"stock": EventQueueRow(1, second.id, NOW + SECOND)}
        third = await waiting(store, "stock", since=NOW + 3 * SECOND)
        found = await store.event_queues(["stock"])
        assert (found["stock"].pending, found["stock"].taker) == (0, third.id), "what was queued counts, too"
        await one(store, turn(third.key, end=ended()), Committed)
        await one(store, Purge(what=Status.COMPLETED, before=NOW + 1, limit=10, at=NOW), Done)
        assert (await store.event_queues(["stock"]))["stock"].taker is None

    async def test_workers_are_listed_with_their_state(self, store: Store) -> None:
        await store.join("v", LEASE)
        await store.join("w", LEASE)
        await store.leave("v")
        [worker] = await store.workers()
        assert (worker.id, worker.state, worker.lease) == ("w", "alive", 60 * SECOND)
        assert abs(worker.heard - store.clock.now()) < 60 * SECOND

    async def test_a_store_opened_to_look_reads_and_cannot_write(self, another: Another) -> None:
        store = await another()
        run = await started(store, owner=None)
        beside = await another()
        await beside.close()
        await beside.open(look_only=True)
        assert ids((await beside.heads(HeadFilter())).heads) == [run.id]
        assert await beside.get(run.id) is not None
        later = await started(store, owner=None)
        assert ids((await beside.heads(HeadFilter())).heads) == [later.id, run.id]
        for call in (
            lambda: beside.apply([message(run.id)]),
            lambda: beside.join("v", LEASE),
            lambda: beside.claim("w", NOW, 10, ["order"]),
            lambda: beside.take_over(NOW),
        ):
            try:
                result = await call()
            except ReadOnly:
                continue
            assert result == [], "what was opened to look has written"


def ids(runs: Sequence[RunRow | RunHead]) -> list[str]:
    """Return the ids of runs."""
    return [run.id for run in runs]
