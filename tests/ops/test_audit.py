"""The audit trail: what is on record, and that nobody can change it unnoticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import apsw
import pytest
from tests.support.ops_cases import BEGIN, PlainPort, plain_port
from tests.support.sqlite_cases import opened

from holdfast.contract.operations import Purge, SetAttributes
from holdfast.contract.rows import Status
from holdfast.contract.turns import Audit, CommitTurn, Evidence, TurnEffects
from holdfast.errors import BadInput, InvalidId
from holdfast.ops import audit as module
from holdfast.ops.audit import AuditTrail, Verdict

HOSTILE = 'quote " backslash \\ newline \n bell \x07 delete \x7f euro \u20ac line \u2028 face \U0001f600 slash /'


async def act(port: PlainPort, target: str, action: str = "describe", detail: str = "", actor: str = "kim") -> None:
    audit = Audit(actor=actor, action=action, detail=detail)
    port.clock.advance(timedelta(seconds=1))
    await port.apply(SetAttributes(target=target, attributes={"a": "1"}, at=port.clock.now(), audit=audit))


async def add_evidence(port: PlainPort, run_id: str, *data: str) -> None:
    row = await port.row(run_id)
    items = [Evidence(id=f"e{n}", kind="decision", data=each, at=port.clock.now()) for n, each in enumerate(data)]
    await port.apply(CommitTurn(key=row.key, epoch=row.epoch, at=port.clock.now(), effects=TurnEffects(evidence=items)))


@pytest.fixture
async def port() -> AsyncIterator[PlainPort]:
    async with plain_port() as port:
        await port.run("r1")
        await port.run("r2")
        yield port


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAGE", 3)


async def test_the_record_says_who_did_what_to_what_and_when(port: PlainPort) -> None:
    """S3-19"""
    await act(port, "r1", "describe", '{"note":"late"}')
    await act(port, "r2", "inspect", "in words", actor="lee")
    trail = AuditTrail(port)
    first, second = await trail.records()
    assert (first.n, first.actor, first.action, first.target) == (1, "kim", "describe", "r1")
    assert first.detail == {"note": "late"}
    assert first.at == BEGIN + timedelta(seconds=1)
    assert second.detail == "in words"
    assert await trail.records(target="r2") == [second]
    assert await trail.records(limit=1, after=1) == [second]
    await act(port, "r1")
    assert (await trail.records(target="r1", after=1))[0].detail is None


async def test_a_page_of_no_size_is_refused(port: PlainPort) -> None:
    """S3-19"""
    for limit in (0, 1001):
        with pytest.raises(BadInput, match="limit"):
            await AuditTrail(port).records(limit=limit)


async def test_a_run_s_evidence_is_read_in_order_and_outlives_the_run(port: PlainPort) -> None:
    """S3-19, S3-21"""
    await add_evidence(port, "r1", '{"score":1}', "[2]", "3", '"four"')
    await add_evidence(port, "r2", "5")
    await port.end("r1")
    port.clock.advance(timedelta(days=1))
    await port.apply(Purge(what=Status.COMPLETED, before=port.clock.now(), at=port.clock.now()))
    assert await port.store.get("r1") is None
    records = await AuditTrail(port).evidence("r1")
    assert [(record.run_id, record.n, record.id, record.kind) for record in records] == [
        ("r1", n, f"e{n - 1}", "decision") for n in (1, 2, 3, 4)
    ]
    assert [record.data for record in records] == [{"score": 1}, [2], 3, "four"]
    assert records[0].at == BEGIN
    assert (await AuditTrail(port).verify_evidence("r1")).checked == 4
    assert await AuditTrail(port).evidence("nobody") == []
    with pytest.raises(InvalidId):
        await AuditTrail(port).evidence("no/such")


@pytest.mark.parametrize("rows", [0, 1, 3, 6, 7])
async def test_an_intact_chain_is_found_intact_however_many_pages_it_has(port: PlainPort, rows: int) -> None:
    """S3-19"""
    for number in range(rows):
        await act(port, "r1", detail=json.dumps(number))
    await add_evidence(port, "r1", *map(str, range(rows)))
    trail = AuditTrail(port)
    last = (await port.store.audit())[-1].hash if rows else ""
    assert await trail.verify() == Verdict(ok=True, checked=rows, last=last)
    assert (await trail.verify_evidence("r1")).checked == rows
    assert await trail.verify_evidence("r2") == Verdict(ok=True, checked=0)


FORGERIES = {
    "a word changed": ("UPDATE audit SET actor = 'lee' WHERE n = 5", 4, 5),
    "a row gone": ("DELETE FROM audit WHERE n = 4", 3, 5),
    "the first gone": ("DELETE FROM audit WHERE n = 1", 0, 2),
    "a row with a hash of its own": ("UPDATE audit SET hash = 'f' || substr(hash, 2), detail = 'x' WHERE n = 2", 1, 2),
    "two exchanged": ("UPDATE audit SET n = CASE n WHEN 2 THEN -3 WHEN 3 THEN 2 ELSE n END WHERE n IN (2, 3)", 1, 2),
    "a time changed": ("UPDATE audit SET at = at + 1 WHERE n = 7", 6, 7),
}


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_row_changed_behind_our_back_is_found(path: Path, forgery: str) -> None:
    """S3-19"""
    store = await opened(path, durability="process")
    try:
        port = PlainPort(store)
        await port.run("r1")
        for number in range(7):
            await act(port, "r1", detail=json.dumps(number))
        await add_evidence(port, "r1", "1", "2", "3", "4", "5")
        change, intact, found_at = FORGERIES[forgery]
        with apsw.Connection(str(path)) as db:
            db.execute(change)
            db.execute("UPDATE evidence SET data = '9' WHERE n = 4")
        db.close()
        verdict = await AuditTrail(port).verify()
        assert (verdict.ok, verdict.checked, verdict.broken_at) == (False, intact, found_at)
        evidence = await AuditTrail(port).verify_evidence("r1")
        assert (evidence.ok, evidence.checked, evidence.broken_at) == (False, 3, 4)
    finally:
        await store.close()


async def test_rows_cut_off_the_end_show_in_the_last_hash(path: Path) -> None:
    """S3-19"""
    store = await opened(path, durability="process")
    try:
        port = PlainPort(store)
        await port.run("r1")
        for _ in range(3):
            await act(port, "r1")
        kept_elsewhere = (await AuditTrail(port).verify()).last
        with apsw.Connection(str(path)) as db:
            db.execute("DELETE FROM audit WHERE n = 3")
        db.close()
        assert kept_elsewhere not in [row.hash for row in await store.audit()]
        assert (await AuditTrail(port).verify()).last != kept_elsewhere
    finally:
        await store.close()


async def test_an_export_can_be_checked_by_a_program_that_has_only_the_rule(port: PlainPort) -> None:
    """S3-19: with nothing of ours, by what the module's docstring says."""
    for number in range(5):
        await act(port, "r1", action=f"act {number}", detail=HOSTILE, actor="j\u00f6rg")
    await add_evidence(port, "r1", json.dumps(HOSTILE), "2", "3", "4")
    trail = AuditTrail(port)
    fields = {None: ("n", "at", "actor", "action", "target", "detail"), "r1": ("run", "n", "id", "kind", "data", "at")}
    for run_id, names in fields.items():
        lines = [line async for line in trail.export(run_id)]
        assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
        rows = [json.loads(line) for line in lines]
        assert [row["n"] for row in rows] == list(range(1, len(rows) + 1))
        previous = ""
        for row in rows:
            assert row["previous"] == previous
            text = json.dumps([previous, *(row[name] for name in names)], ensure_ascii=False, separators=(",", ":"))
            previous = hashlib.sha256(text.encode()).hexdigest()
            assert row["hash"] == previous
    assert len(rows) == 4
