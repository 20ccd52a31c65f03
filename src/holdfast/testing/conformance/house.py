"""Looking at what is beside runs: queues, events, names, the audit trail from its end, dead letters by their cause."""

from __future__ import annotations

import json

import msgspec

from holdfast.contract.heads import CarriedStep, WorkerAbout, WorkerLoad
from holdfast.contract.house import AuditFilter, EventNameRow, EventWaiterRow, QueueRow
from holdfast.contract.operations import Acknowledge, Committed, SetAttributes
from holdfast.contract.rows import Status
from holdfast.contract.store import Store
from holdfast.contract.turns import Audit, NewLetter
from holdfast.testing.conformance.samples import LEASE, NOW, SECOND, end, extra, one, queued, started, waiting
from holdfast.testing.conformance.tasks import a_task, handed_out, take

MINUTE = 60 * SECOND


async def acted(store: Store, actor: str, action: str, *, at: int, target: str = "order-1") -> None:
    """Let a person do something that is audited."""
    audit = Audit(actor=actor, action=action, detail="{}")
    await store.apply([SetAttributes(target=target, attributes={"size": "1"}, at=at, audit=audit)])


class HouseConformance:
    """What faces show beside runs."""

    async def test_queues_tell_how_many_wait_how_many_were_taken_and_since_when(self, store: Store) -> None:
        assert await store.queues() == []
        await handed_out(store, a_task("a0", priority=3), a_task("a1", activity="render"), at=NOW + 9 * SECOND)
        await handed_out(store, a_task("a0", priority=-2), a_task("a1", queue="mail", activity="send"), at=NOW)
        await handed_out(store, a_task("a0"), at=NOW + 5 * SECOND)
        assert await store.queues() == [
            QueueRow("gpu", "render", 1, 0, NOW + 9 * SECOND),
            QueueRow("gpu", "train", 3, 0, NOW),
            QueueRow("mail", "send", 1, 0, NOW),
        ]
        assert len(await take(store, limit=2)) == 2
        assert len(await take(store, queues=("mail",), names=("send",))) == 1
        assert [(row.queue, row.waiting, row.taken, row.oldest) for row in await store.queues()] == [
            ("gpu", 1, 0, NOW + 9 * SECOND),
            ("gpu", 1, 2, NOW),
            ("mail", 0, 1, None),
        ]

    async def test_event_names_tell_what_is_queued_and_who_waits(self, store: Store) -> None:
        assert await store.event_names() == []
        await queued(store, "1", name="stock", at=NOW + SECOND)
        await queued(store, "2", name="stock", at=NOW)
        second = await waiting(store, "paid", since=NOW + 2 * SECOND)
        first = await waiting(store, "paid", "refunded", since=NOW + SECOND)
        assert await store.event_names() == [
            EventNameRow("paid", 0, None, 2, NOW + SECOND),
            EventNameRow("refunded", 0, None, 1, NOW + SECOND),
            EventNameRow("stock", 2, NOW, 0, None),
        ]
        assert [row.payload for row in await store.events("stock")] == ["1", "2"]
        assert await store.event_waiters("paid") == [
            EventWaiterRow(first.id, "a0", NOW + SECOND),
            EventWaiterRow(second.id, "a0", NOW + 2 * SECOND),
        ]
        assert [row.run for row in await store.event_waiters("paid", limit=1)] == [first.id]
        assert await store.event_waiters("stock") == []

    async def test_names_and_values_are_found_by_their_beginning(self, store: Store) -> None:
        for number, workflow in enumerate(("order", "order", "other", "report")):
            run = await started(store, owner=None, workflow=workflow)
            attributes: dict[str, str | None] = {"customer": json.dumps(f"c-{number}"), "size": str(number % 2)}
            await store.apply([SetAttributes(target=run.id, attributes=attributes, at=NOW)])
        assert await store.workflow_names() == ["order", "other", "report"]
        assert await store.workflow_names("o", limit=1) == ["order"]
        assert await store.workflow_names("x") == []
        assert await store.attribute_names() == ["customer", "size"]
        assert await store.attribute_names("cu") == ["customer"]
        assert await store.attribute_values("size") == ["0", "1"]
        assert await store.attribute_values("customer", '"c-', limit=2) == ['"c-0"', '"c-1"']
        assert await store.attribute_values("nothing") == []

    async def test_the_audit_trail_is_read_from_its_end_by_actor_action_target_and_time(self, store: Store) -> None:
        """S0-59: what was done last comes first."""
        assert (await store.acts(AuditFilter())).rows == []
        for name in ("order-1", "order-2"):
            await started(store, name, owner=None)
        for number in range(6):
            await acted(store, "kim" if number % 2 else "lena", "pause", at=NOW + number * 30 * MINUTE)
        await acted(store, "kim", "cancel", at=NOW + 180 * MINUTE, target="order-2")

        async def found(**which: object) -> list[int]:
            numbers: list[int] = []
            before: int | None = None
            while True:
                page = await store.acts(AuditFilter(**which, limit=2, before=before))  # type: ignore[arg-type]
                assert not page.partial
                numbers += [row.n for row in page.rows]
                before = page.next
                if before is None:
                    return numbers

        assert await found() == [7, 6, 5, 4, 3, 2, 1]
        assert await found(actor="kim") == [7, 6, 4, 2]
        assert await found(actor="kim", action="pause") == [6, 4, 2]
        assert await found(target="order-2") == [7]
        assert await found(target="order-1", actor="lena") == [5, 3, 1]
        assert await found(at_from=NOW + 60 * MINUTE, at_until=NOW + 120 * MINUTE) == [4, 3]
        assert await found(at_from=NOW + 500 * MINUTE) == await found(at_until=NOW) == []

    async def test_dead_letters_are_grouped_by_their_cause(self, store: Store) -> None:
        errors = [
            ("l1", "charge", {"type": "Declined", "message": "one"}),
            ("l2", "charge", {"type": "Declined", "message": "two"}),
            ("l3", "pack", {"type": "holdfast.errors.StepFailed", "message": "Broken: box"}),
            ("l4", "charge", {"type": "Declined", "message": "seen"}),
        ]
        for number, (name, step, error) in enumerate(errors):
            run = await started(store)
            letter = NewLetter(id=name, step=step, attempts=1, error=json.dumps(error))
            await one(store, extra(run.key, at=NOW + number, letters=[letter]), Committed)
        await store.apply([Acknowledge(letter="l4", at=NOW)])
        found = [
            (row.workflow, row.step, row.error_type, row.message, row.count, row.first, row.last, row.newest)
            for row in await store.letter_groups()
        ]
        assert found == [
            ("order", "charge", "Declined", "", 2, NOW, NOW + 1, "l2"),
            ("order", "pack", "holdfast.errors.StepFailed", "Broken: box", 1, NOW + 2, NOW + 2, "l3"),
        ]

    async def test_a_worker_tells_what_it_serves_and_what_it_carries(self, store: Store) -> None:
        about = WorkerAbout(holdfast="1.2", queues=["default", "gpu"], workflows={"order": "2"}, max_steps=7)
        await store.join("w", LEASE, json_of(about))
        await store.join("v", LEASE)
        await store.join("u", LEASE, '{"queues":"of another version"}')
        load = WorkerLoad(steps=1, runs=3, bodies=[CarriedStep(run="order-1", step="pack", attempt=2, since=NOW)])
        assert store.renew("w", json_of(load))
        told = {row.id: (row.about, row.load) for row in await store.workers()}
        assert told["v"] == told["u"] == (WorkerAbout(), WorkerLoad())
        assert told["w"][0] == about
        assert told["w"][1] in (load, WorkerLoad())  # in memory no lease is renewed
        assert store.renew("w")

    async def test_runs_that_have_ended_are_counted_by_status(self, store: Store) -> None:
        assert await store.ended_counts() == {}
        for status in (Status.COMPLETED, Status.COMPLETED, Status.FAILED):
            await end(store, await started(store), status)
        await started(store)
        assert await store.ended_counts() == {"completed": 2, "failed": 1}


def json_of(record: WorkerAbout | WorkerLoad) -> str:
    """Return what a worker tells as it is stored."""
    return msgspec.json.encode(record).decode()
