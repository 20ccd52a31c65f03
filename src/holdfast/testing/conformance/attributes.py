"""What is said of runs when they are started and later: attributes, priority, delays; and finding them by it."""

from __future__ import annotations

from holdfast.contract.operations import Committed, Done, Fenced, Refused, SetAttributes, Started
from holdfast.contract.rows import RunFilter, RunRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import RunOptions, StartRun
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    TERMINAL,
    claim,
    end,
    extra,
    new_run,
    one,
    optioned,
    parked,
    row,
    started,
    turn,
)


async def found(store: Store, **which: object) -> list[str]:
    """Return the ids of the runs a filter finds."""
    return [run.id for run in await store.runs(RunFilter(**which))]  # type: ignore[arg-type]  # its fields


class AttributeConformance:
    """Options of a start, and what can be changed of them."""

    async def test_what_is_said_at_the_start_can_be_looked_up(self, store: Store) -> None:
        """S0-53."""
        run = await optioned(
            store, begins=NOW + 3, timeout=5, priority=-7, unique_key="k", actor="ann", tenant="acme",
            attributes={"move": '"m1"', "n": "5"},
        )  # fmt: skip
        assert (run.begins, run.deadline, run.priority) == (NOW + 3, NOW + 8, -7)
        assert (run.unique_key, run.actor, run.tenant) == ("k", "ann", "acme")
        assert run.attributes == '{"move":"m1","n":5}'
        assert (run.reopens, run.compensation) == (0, None)
        plain = await started(store)
        assert (plain.begins, plain.deadline, plain.priority, plain.attributes) == (None, None, 0, "{}")
        assert (await optioned(store, timeout=5)).deadline == NOW + 5

    async def test_runs_are_found_by_attributes_actor_tenant_and_key(self, store: Store) -> None:
        """S0-53: every attribute asked for must be equal; newest first, in pages."""
        first = await optioned(store, attributes={"move": '"m1"', "n": "5"}, actor="ann", tenant="acme")
        second = await optioned(store, attributes={"move": '"m1"', "n": "6"}, actor="bob", unique_key="k")
        third = await optioned(store, attributes={"move": '"m2"', "n": "5"}, actor="ann", tenant="other")
        assert await found(store, attributes={"move": '"m1"'}) == [second.id, first.id]
        assert await found(store, attributes={"move": '"m1"'}, limit=1) == [second.id]
        assert await found(store, attributes={"move": '"m1"'}, before=second.key) == [first.id]
        assert await found(store, attributes={"move": '"m1"', "n": "5"}) == [first.id]
        assert await found(store, attributes={"n": "5"}, tenant="other") == [third.id]
        assert await found(store, attributes={"n": "5"}, status=Status.COMPLETED) == []
        assert await found(store, attributes={"n": "5"}, status=Status.RUNNING) == [third.id, first.id]
        assert await found(store, attributes={"n": '"5"'}) == []
        assert await found(store, actor="ann") == [third.id, first.id]
        assert await found(store, tenant="acme", actor="ann") == [first.id]
        assert await found(store, unique_key="k") == [second.id]
        assert await found(store, unique_key="k", workflow="other") == []

    async def test_runs_are_found_by_when_they_were_created(self, store: Store) -> None:
        runs = [await started(store, at=NOW + n) for n in range(4)]
        ids = [run.id for run in runs]
        assert await found(store, created_from=NOW + 1, created_until=NOW + 3) == [ids[2], ids[1]]
        assert await found(store, created_from=NOW + 3) == [ids[3]]

    async def test_attributes_are_set_and_removed_by_turns_and_by_people(self, store: Store) -> None:
        """S0-53: also of a run that has ended."""
        run = await optioned(store, attributes={"a": "1", "b": "2"})
        await one(store, extra(run.key, attributes={"a": "3", "b": None, "c": '"x"'}), Committed)
        assert (await row(store, run.id)).attributes == '{"a":3,"c":"x"}'
        assert await found(store, attributes={"a": "1"}) == []
        await one(store, extra(run.key, 9, attributes={"a": "4"}), Fenced)
        for status in TERMINAL:
            over = await started(store)
            await end(store, over, status)
            before = await row(store, over.id)
            change = SetAttributes(target=over.id, attributes={"seen": "true", "gone": None}, at=NOW + 5)
            assert await one(store, change, Done) == Done(1)
            after = await row(store, over.id)
            assert after.attributes == '{"seen":true}'
            assert (after.status, after.output, after.ended) == (before.status, before.output, before.ended)
        assert await one(store, SetAttributes(target="nobody", attributes={}, at=NOW), Refused) == Refused(None)

    async def test_attributes_set_in_a_batch_end_as_the_last_one_says(self, store: Store) -> None:
        run = new_run(owner="w", options=RunOptions(attributes={"a": "0"}))
        await store.join("w", LEASE)
        changes = [SetAttributes(target=run.id, attributes={"a": str(n), "b": str(n)}, at=NOW) for n in range(5)]
        await store.apply([StartRun(run=run), *changes])
        assert (await row(store, run.id)).attributes == '{"a":4,"b":4}'
        assert await found(store, attributes={"a": "0"}) == []

    async def test_a_delayed_run_is_claimed_when_it_may_begin(self, store: Store) -> None:
        """S0-41: not a moment before."""
        run = await optioned(store, owner=None, begins=NOW + SECOND)
        assert (run.status, run.due) == (Status.PENDING, NOW + SECOND)
        await store.join("w", LEASE)
        assert await store.next_due() == NOW + SECOND
        assert await claim(store, now=NOW + SECOND - 1) == []
        assert [taken.key for taken in await claim(store, now=NOW + SECOND)] == [run.key]

    async def test_claims_go_by_priority_then_time_then_key(self, store: Store) -> None:
        """B22, S0-24, S0-41: higher first, across workflows; a later one that is not due is nobody's business."""
        wanted: list[tuple[int, RunRow]] = []
        for order, (priority, at) in enumerate([(0, 5), (9, 7), (-3, 0), (9, 2), (0, 5), (0, 1), (99, 5000)]):
            options = RunOptions(priority=priority, begins=NOW + at)
            run = new_run(options=options, workflow="order" if order % 2 else "other")
            await one(store, StartRun(run=run), Started)
            wanted.append((priority, await row(store, run.id)))
        await store.join("w", LEASE)
        due = sorted(wanted[:-1], key=lambda item: (-item[0], item[1].due, item[1].key))
        taken = []
        while claims := await store.claim("w", NOW + 10, 2, ["order", "other"]):
            taken += [claimed.key for claimed in claims]
        assert taken == [run.key for _, run in due]
        assert await store.next_due() == NOW + 5000

    async def test_a_workers_own_due_runs_come_by_priority_too(self, store: Store) -> None:
        """B22."""
        runs = [await optioned(store, priority=priority) for priority in (0, 5, -5)]
        for n, run in enumerate(runs):
            await one(store, turn(run.key, state=parked(NOW + n)), Committed)
        assert await store.due("w", NOW + 9) == [runs[1].key, runs[0].key, runs[2].key]
        assert await store.due("w", NOW) == [runs[0].key]
