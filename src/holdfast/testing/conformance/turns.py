"""What one turn writes."""

from __future__ import annotations

from holdfast.contract.operations import Committed, Delivered, Fenced, Started
from holdfast.contract.rows import RunFilter, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import Parent, Renewal, StartChild, StartRun, TurnEffects
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    a_send,
    claim,
    end,
    ended,
    entry,
    message,
    new_run,
    one,
    parked,
    row,
    started,
    turn,
    unread,
)


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
        assert len(await unread(store, run.key, 0)) == 1

    async def test_a_turn_may_say_which_version_runs(self, store: Store) -> None:
        """For runs that were started by somebody who did not know."""
        runs = [await started(store, version="") for _ in range(2)]
        await one(store, turn(runs[0].key, effects=TurnEffects(version="7")), Committed)
        await one(store, turn(runs[1].key, 9, effects=TurnEffects(version="7")), Fenced)
        assert [(await row(store, run.id)).version for run in runs] == ["7", ""]

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
        assert outcome.refused == {"a1": "missing", "a2": "completed"}
        assert [fact.data for fact in await store.history(sender.key)] == ["{}", '"missing"', '"completed"']
        assert [sent.payload for sent in await unread(store, target.key, 0)] == ["1"]
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
        [told] = await unread(store, outcome.key, 0)
        assert (told.n, told.kind, told.name, told.payload) == (1, "child_ended", child.id, '"done"')
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
        assert [(told.n, told.payload) for told in await unread(store, run.key, 0)] == [*enumerate(ids, 1)]

    async def test_an_ended_parent_is_not_told(self, store: Store) -> None:
        run = await started(store)
        child = new_run(parent=Parent(run.key, run.id, "a0"))
        start = StartChild(run=child, location="a0", seq=1, taken="")
        await one(store, turn(run.key, children=[start], end=ended()), Committed)
        before = await row(store, run.id)
        [taken] = await claim(store)
        await one(store, turn(taken.key, taken.epoch, end=ended()), Committed)
        assert await row(store, run.id) == before
        assert await unread(store, run.key, 0) == []
