"""Turns cost the same however many steps, runs and keys wait: counted in what a database reads, not in time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from tests.support.sqlite_cases import opened
from tests.support.waiting import eventually

from holdfast.contract.limits import LeaveLimits, LimitAnswer
from holdfast.contract.operations import Committed
from holdfast.contract.turns import EnterLimit, Lane, LeaveLimit
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql.store import SQLStore
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance.samples import LEASE, NOW, SECOND, extra

FEW = (100, 10)
MANY = [(10_000, 1_000), pytest.param((100_000, 10_000), marks=pytest.mark.slow)]
"""How many wait, under how many keys."""
TIMES = 9
T = 5_000 * SECOND

RUNS = f"""
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :runs)
INSERT INTO runs (key, id, workflow, version, status, wait, epoch, owner, generation, inbox, claims, lost, seed, digest,
    created, updated, priority, reopens, side_rows, cancel_with_parent, place)
SELECT n, 'waits-' || n, 'order', '1', :status, '', :epoch, :owner, 0, 0, 0, '', n, n, {NOW}, {NOW}, 0, 0, :epoch, 0,
    :place FROM numbers;
INSERT INTO inputs (run, input) SELECT key, '{{}}' FROM runs;
"""
LIMITS = f"""
INSERT INTO limits (name, spec, paused, used, granted, waiting, last, stale, updated)
VALUES ('api', '{{"at_once":1}}', 0, 1, 0, :runs, :runs, 0, {NOW});
INSERT INTO limit_counts (name, key, worker, used) VALUES ('api', 'holder', 'w', 1);
INSERT INTO limit_keys (name, key, used, granted, waiting, ready, begins, held_until, failures, probe, idle, at)
VALUES ('api', 'holder', 1, 0, 0, 0, '', 0, 0, '', 0, 0);
INSERT INTO limit_waiters (run, location, name, key, priority, n, since, place)
SELECT key, 'a0', 'api', 'key-' || (key % :keys), 0, key, {T}, 0 FROM runs;
INSERT INTO limit_keys (name, key, used, granted, waiting, ready, head_priority, head, begins, held_until, failures,
    probe, idle, at)
SELECT 'api', key, 0, 0, count(*), 1, 0, min(n), '', 0, 0, '', 0, 0 FROM limit_waiters GROUP BY key
"""
LANES = """
INSERT INTO run_places (run, workflow, lane, held, priority, since)
SELECT key, 'order', 'key-' || (key % :keys), 0, 0, created FROM runs;
INSERT INTO lanes (workflow, lane, priority, number) SELECT 'order', lane, 0, min(run) FROM run_places GROUP BY lane
"""
STEPS = {"status": "'suspended'", "epoch": "1", "owner": "'w'", "place": "0"}
WAITING = {"status": "'pending'", "epoch": "0", "owner": "NULL", "place": "1"}


def filling(fill: str, runs: int, keys: int) -> Iterator[str]:
    """Return the statements that let so many wait under so many keys."""
    text = RUNS + fill
    for name, value in {**(STEPS if fill is LIMITS else WAITING), "runs": str(runs), "keys": str(keys)}.items():
        text = text.replace(f":{name}", value)
    yield from text.split(";\n")


async def granting(store: SQLStore, keys: int) -> None:
    """Let places be given back, each granted to the next, which begins."""
    key = "holder"
    for n in range(1, TIMES + 1):
        leave = LeaveLimit(limit="api", key=key, worker="w", now=T, places=1)
        await store.apply([LeaveLimits(leaves=[leave], at=NOW)])
        key = f"key-{n % keys}"
        enter = EnterLimit(limit="api", key=key, location="a0", worker="w", now=T, priority=0)
        [outcome] = await store.apply([extra(n, enters=[enter])])
        assert isinstance(outcome, Committed)
        assert outcome.limits == {"a0": LimitAnswer("entered")}


async def taking(store: SQLStore, keys: int) -> None:
    """Let a worker take runs whose turn it is, one by one."""
    taken = [await store.claim_waiting("w", NOW, 1, {"order": Lane(key="")}) for _ in range(TIMES)]
    assert [claim.id for [claim] in taken] == [f"waits-{n}" for n in range(1, TIMES + 1)]


CASES = pytest.mark.parametrize(("fill", "act"), [(LIMITS, granting), (LANES, taking)], ids=["limits", "lanes"])


@CASES
@pytest.mark.parametrize("many", MANY, ids=str)
async def test_the_next_is_found_without_reading_those_behind_it(
    tmp_path: Path, fill: str, act: Any, many: tuple[int, int]
) -> None:
    """S4-6 On SQLite, in steps of its virtual machine."""
    few, more = [await steps(tmp_path / f"{size[0]}.db", fill, act, *size) for size in (FEW, many)]
    assert few > 0
    assert more <= few * 1.5, (few, more)


async def steps(path: Path, fill: str, act: Any, runs: int, keys: int) -> int:
    store = await opened(path, durability="process")
    try:
        await store.join("w", LEASE)
        with store._connections.writer as writer:
            for statement in filling(fill, runs, keys):
                writer.execute(statement)
        with counting(store) as counted:
            await act(store, keys)
        return sum(counted)
    finally:
        await store.close()


@contextmanager
def counting(store: SQLiteStore) -> Iterator[list[int]]:
    """Count the steps of all statements."""
    counted: list[int] = []
    connections = [store._connections.reader, store._connections.writer]
    for db in connections:
        db.trace_v2(
            apsw.SQLITE_TRACE_PROFILE,
            lambda event: counted.append(event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]),
        )
    try:
        yield counted
    finally:
        for db in connections:
            db.trace_v2(0, None)


@pytest.mark.parametrize(
    ("fill", "act", "many"),
    [
        (LIMITS, granting, (10_000, 1_000)),
        pytest.param(LIMITS, granting, (100_000, 10_000), marks=pytest.mark.slow),
        # Tables that are smaller are rather read than searched.
        pytest.param(LANES, taking, (100_000, 10_000), marks=pytest.mark.slow),
    ],
    ids=["limits", "limits of many", "lanes of many"],
)
async def test_the_next_is_found_on_a_server_without_reading_those_behind_it(
    empty_database: str, fill: str, act: Any, many: tuple[int, int]
) -> None:
    """S4-6 On PostgreSQL, in rows and index entries that were read."""
    few, more = [await rows_read(empty_database, fill, act, *size) for size in (FEW, many)]
    assert few > 0
    assert more <= few * 1.5, (few, more)


READ = """
SELECT (SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables WHERE schemaname = %s)
     + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = %s)
"""


LEFT_BY_OTHER_TESTS = """
datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


async def rows_read(address: str, fill: str, act: Any, runs: int, keys: int) -> int:
    store = PostgresStore(address)
    await store.open()
    schema, conninfo = store.schema, store._connections.conninfo
    await store.close()
    tables = "runs, inputs, limits, limit_keys, limit_counts, limit_waiters, run_places, lanes, inbox, workers"
    with psycopg.connect(conninfo, autocommit=True) as side:
        side.execute(f'SET search_path TO "{schema}"')
        side.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {LEFT_BY_OTHER_TESTS}")
        side.execute(f"TRUNCATE {tables}")
        for statement in filling(fill, runs, keys):
            side.execute(statement)
        side.execute(f"ANALYZE {tables}")
    store = PostgresStore(address)
    await store.open()
    await store.join("w", LEASE)
    await store.close()
    before = await settled(conninfo, schema)
    store = PostgresStore(address)
    await store.open()
    await act(store, keys)
    await store.close()  # what its sessions read is counted when they end
    return await settled(conninfo, schema) - before


async def settled(conninfo: str, schema: str) -> int:
    """Return how much was read so far, once every other session of the database has ended and said so."""
    with psycopg.connect(conninfo, autocommit=True) as side:
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        mine = "AND backend_type = 'client backend'"
        await eventually(lambda: side.execute(f"{others} {mine}").fetchall() == [(0,)])
        [(read,)] = side.execute(READ, (schema, schema)).fetchall()
        return int(read)
