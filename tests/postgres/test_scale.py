"""Claiming takes as long with a million runs stored as with a thousand."""

from __future__ import annotations

import statistics
import time
from datetime import timedelta

import psycopg
import pytest

from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.conformance import NOW

KNOWN = [f"w{number}" for number in range(5)]
_FILL = """
INSERT INTO "{schema}".runs (key, id, workflow, version, status, wait, due, epoch, owner, generation, inbox, claims,
                             lost, seed, digest, created, updated, ended, reopens, side_rows, priority,
                             cancel_with_parent)
SELECT n, 'r' || n, CASE WHEN n % 7 = 0 THEN 'unknown' ELSE 'w' || (n % 5) END, '1',
       CASE WHEN n % 10 < 8 THEN 'completed' WHEN n % 10 = 8 THEN 'suspended' ELSE 'pending' END, '',
       CASE WHEN n % 10 < 8 THEN NULL WHEN n % 7 = 0 THEN {now} - n ELSE {now} + n END,
       1, NULL, 0, 0, 0, '', 1, 1, {now}, {now}, CASE WHEN n % 10 < 8 THEN {now} END, 0, 0, 0, 0
FROM generate_series({first}::bigint, {last}::bigint) AS n;
INSERT INTO "{schema}".inputs SELECT n, '{{}}' FROM generate_series({first}::bigint, {last}::bigint) AS n;
"""
_DUE = """
INSERT INTO "{schema}".runs (key, id, workflow, version, status, wait, due, epoch, owner, generation, inbox, claims,
                             lost, seed, digest, created, updated, reopens, side_rows, priority,
                             cancel_with_parent)
SELECT n, 'x' || n, 'w' || (n % 5), '1', 'pending', '', {now} - 5, 0, NULL, 0, 0, 0, '', 1, 1, {now}, {now}, 0, 0, 0, 0
FROM generate_series({first}::bigint, {last}::bigint) AS n;
INSERT INTO "{schema}".inputs SELECT n, '{{}}' FROM generate_series({first}::bigint, {last}::bigint) AS n;
"""


async def claiming(store: PostgresStore, side: psycopg.Connection, first: int) -> float:
    """Return how many seconds a claim of twenty takes, of many the median."""
    took = []
    for number in range(50):
        begin = first + number * 20
        side.execute(_DUE.format(schema=store.schema, now=NOW, first=begin, last=begin + 19).encode())
        began = time.perf_counter()
        claims = await store.claim("w", NOW, 20, KNOWN)
        took.append(time.perf_counter() - began)
        assert len(claims) == 20
        assert [claim.workflow for claim in claims[:5]] == KNOWN, "they take turns"
    return statistics.median(took)


@pytest.mark.speed
@pytest.mark.parametrize("most", [30_000, pytest.param(1_000_000, marks=pytest.mark.slow)], ids=["small", "full"])
async def test_claims_take_no_longer_when_many_runs_are_stored(database: str, most: int) -> None:
    """S4-6: finished ones, sleeping ones, and a backlog of a workflow that this worker does not know."""
    store = PostgresStore(database)
    await store.open()
    await store.join("w", timedelta(minutes=10))
    with psycopg.connect(store._connections.conninfo, autocommit=True) as side:
        side.execute(_FILL.format(schema=store.schema, now=NOW, first=1, last=1000).encode())
        side.execute("VACUUM ANALYZE")
        few = await claiming(store, side, 10**9)
        side.execute(_FILL.format(schema=store.schema, now=NOW, first=1001, last=most).encode())
        side.execute("VACUUM ANALYZE")
        many = min([await claiming(store, side, 2 * 10**9), await claiming(store, side, 3 * 10**9)])
    await store.close()
    assert many < few * 1.5, (few, many)
