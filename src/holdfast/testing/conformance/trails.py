"""Trails that only grow: what people did, and what runs want on record."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.chains import broken_link
from holdfast.contract.operations import (
    Acknowledge,
    Committed,
    Done,
    DropSchedule,
    Fenced,
    KeyHeld,
    Operation,
    Pause,
    PauseSchedule,
    Purge,
    PutOnRecord,
    PutSchedule,
    Refused,
    Reopen,
    RequestCancel,
    SetAttributes,
    Terminate,
    Unblock,
    Unpause,
)
from holdfast.contract.rows import AuditRow, EvidenceRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import Audit, Evidence, NewLetter, State
from holdfast.testing.conformance.samples import (
    NOW,
    SECOND,
    end,
    ended,
    event,
    extra,
    message,
    one,
    optioned,
    row,
    started,
    turn,
)

Link = AuditRow | EvidenceRow

BY_ANN = Audit(actor="ann", action="did", detail='{"why":"x"}')


def tamperings(rows: Sequence[Link]) -> list[tuple[str, list[Link]]]:
    """Return the rows with each field of each row changed, each row taken out, added twice or moved."""
    found: list[tuple[str, list[Link]]] = []
    for place, original in enumerate(rows):
        before, after = [*rows[:place]], [*rows[place + 1 :]]
        for field in original.__struct_fields__:
            value = getattr(original, field)
            forged = msgspec.structs.replace(original, **{field: value + 1 if isinstance(value, int) else value + "0"})
            found.append((f"{field} of {place}", [*before, forged, *after]))
        found.append((f"{place} twice", [*before, original, original, *after]))
        if after:
            found.append((f"{place} missing", before + after))
            found.append((f"{place} moved", [*before, after[0], original, *after[1:]]))
    return found


class TrailConformance:
    """Audit and evidence."""

    async def test_what_a_person_sends_or_publishes_is_on_record_once(self, store: Store) -> None:
        run = await started(store, owner=None)
        sent = message(run.id, id="m1", deduplicate=True, audit=BY_ANN)
        await store.apply([sent, sent, message("nobody", audit=BY_ANN), message(run.id)])
        published = event(id="e1", deduplicate=True, audit=BY_ANN)
        await store.apply([published, published, event()])
        assert [(row.actor, row.target) for row in await store.audit()] == [("ann", run.id), ("ann", "news")]

    async def test_whatever_somebody_does_is_recorded_with_it(self, store: Store) -> None:
        """S0-59, B8: every operation that carries an audit, in the same transaction; chained from the first."""
        run, other, paused = await started(store), await started(store), await started(store)
        await one(store, extra(run.key, letters=[NewLetter(id="l", step="s", attempts=1, error="e")]), Committed)
        blocked = await started(store)
        state = State(status=Status.BLOCKED, seen=0, released=True, fingerprint="old")
        await one(store, turn(blocked.key, state=state), Committed)
        operations: list[tuple[Operation, str]] = [
            (Acknowledge(letter="l", at=NOW, audit=BY_ANN), "l"),
            (SetAttributes(target=run.id, attributes={"a": "1"}, at=NOW, audit=BY_ANN), run.id),
            (Pause(target=paused.id, at=NOW, audit=BY_ANN), paused.id),
            (Unpause(target=paused.id, at=NOW, audit=BY_ANN), paused.id),
            (RequestCancel(target=other.id, at=NOW, audit=BY_ANN), other.id),
            (Terminate(target=run.id, end=ended(), audit=BY_ANN), run.id),
            (Reopen(target=run.id, epoch=1, cut=1, at=NOW, audit=BY_ANN), run.id),
            (Unblock(workflow="order", fingerprint="new", at=NOW, audit=BY_ANN), "order"),
            (
                PutSchedule(id="s", workflow="w", spec="", input="", next=None, paused=False, at=NOW, audit=BY_ANN),
                "s",
            ),
            (PauseSchedule(id="s", paused=True, next=None, at=NOW, audit=BY_ANN), "s"),
            (DropSchedule(id="s", at=NOW, audit=BY_ANN), "s"),
            (PutOnRecord(target=run.id, at=NOW, audit=BY_ANN), run.id),
        ]
        half = len(operations) // 2
        await store.apply([operation for operation, _ in operations[:half]])
        for operation, _ in operations[half:]:
            await store.apply([operation])
        rows = await store.audit()
        assert [found.target for found in rows] == [target for _, target in operations]
        assert {(found.at, found.actor, found.action, found.detail) for found in rows} == {
            (NOW, "ann", "did", '{"why":"x"}')
        }
        assert [found.n for found in rows] == [*range(1, len(rows) + 1)]
        assert rows[0].previous == ""
        assert broken_link(rows) is None

    async def test_what_took_no_effect_is_not_recorded(self, store: Store) -> None:
        """Whatever is refused, or finds nothing to do."""
        run = await started(store)
        await end(store, run)
        over = await row(store, run.id)
        holder = await optioned(store, unique_key="k")
        outcomes = await store.apply(
            [
                Pause(target=run.id, at=NOW, audit=BY_ANN),
                Unpause(target=run.id, at=NOW, audit=BY_ANN),
                RequestCancel(target="nobody", at=NOW, audit=BY_ANN),
                Terminate(target=run.id, end=ended(), audit=BY_ANN),
                Reopen(target=run.id, epoch=over.epoch + 1, cut=1, at=NOW, audit=BY_ANN),
                SetAttributes(target="nobody", attributes={}, at=NOW, audit=BY_ANN),
                PutOnRecord(target="nobody", at=NOW, audit=BY_ANN),
                DropSchedule(id="nothing", at=NOW, audit=BY_ANN),
                Acknowledge(letter="nothing", at=NOW, audit=BY_ANN),
                Unblock(target=run.id, at=NOW, audit=BY_ANN),
                Purge(what="failed", before=NOW, at=NOW, audit=BY_ANN),
            ]
        )
        assert {type(outcome) for outcome in outcomes} == {Refused, Done}
        assert all(outcome == Done(0) for outcome in outcomes if isinstance(outcome, Done))
        await end(store, holder)
        second = await optioned(store, unique_key="k")
        again = Reopen(target=holder.id, epoch=holder.epoch, cut=1, at=NOW, audit=BY_ANN)
        assert await one(store, again, KeyHeld) == KeyHeld(second.key, second.id)
        assert await store.audit() == []

    async def test_a_purge_is_recorded(self, store: Store) -> None:
        """S0-59."""
        run = await started(store)
        await end(store, run)
        await one(store, Purge(what="completed", before=NOW + 1, at=NOW, audit=BY_ANN), Done)
        assert [found.target for found in await store.audit()] == ["completed"]

    async def test_the_audit_trail_is_read_by_target_and_in_pages(self, store: Store) -> None:
        runs = [await started(store) for _ in range(2)]
        for n in range(6):
            change = SetAttributes(target=runs[n % 2].id, attributes={"n": str(n)}, at=NOW + n, audit=BY_ANN)
            await one(store, change, Done)
        assert [found.n for found in await store.audit(limit=4)] == [1, 2, 3, 4]
        page = await store.audit(after=4)
        assert [found.n for found in page] == [5, 6]
        assert broken_link(page, (await store.audit(limit=4))[-1].hash, 4) is None
        assert [found.n for found in await store.audit(runs[1].id)] == [2, 4, 6]
        assert [found.n for found in await store.audit(runs[1].id, after=2, limit=1)] == [4]
        assert await store.audit("nobody") == []

    async def test_every_tampering_with_the_audit_trail_is_found(self, store: Store) -> None:
        """Each field changed, each row removed, repeated or moved; of the last row, every field."""
        run = await started(store)
        for n in range(4):
            await one(store, SetAttributes(target=run.id, attributes={}, at=NOW + n, audit=BY_ANN), Done)
        rows = await store.audit()
        assert broken_link(rows) is None
        for what, forged in tamperings(rows):
            assert broken_link(forged) is not None, what

    async def test_evidence_is_chained_per_run(self, store: Store) -> None:
        """In the order of turns, whoever else is in the batch; a fenced turn adds nothing."""
        runs = [await started(store) for _ in range(2)]

        def items(name: str, number: int = 2) -> list[Evidence]:
            return [Evidence(id=f"{name}-{n}", kind="seen", data=f'"{n}"', at=NOW) for n in range(number)]

        batch = [extra(run.key, evidence=items(f"{turn_number}")) for turn_number in (1, 2) for run in runs]
        await store.apply(batch)
        await one(store, extra(runs[0].key, evidence=items("3", 1)), Committed)
        await one(store, extra(runs[0].key, 9, evidence=items("late")), Fenced)
        rows = await store.evidence(runs[0].id)
        assert [found.id for found in rows] == ["1-0", "1-1", "2-0", "2-1", "3-0"]
        assert (rows[1].run, rows[1].n, rows[1].kind, rows[1].data, rows[1].at) == (runs[0].id, 2, "seen", '"1"', NOW)
        assert len(await store.evidence(runs[1].id)) == 4
        assert [found.n for found in await store.evidence(runs[0].id, after=1, limit=2)] == [2, 3]
        assert broken_link(rows) is None
        assert broken_link(await store.evidence(runs[1].id)) is None
        for what, forged in tamperings(rows):
            assert broken_link(forged) is not None, what
        assert broken_link([*await store.evidence(runs[1].id), *rows]) is not None

    async def test_evidence_outlives_its_run(self, store: Store) -> None:
        run = await started(store)
        await one(store, extra(run.key, evidence=[Evidence(id="e", kind="k", data="1", at=NOW)]), Committed)
        await end(store, run)
        await one(store, Purge(what="completed", before=NOW + SECOND, at=NOW), Done)
        assert [found.id for found in await store.evidence(run.id)] == ["e"]
