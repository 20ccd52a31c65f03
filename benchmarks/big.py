"""A database as large as they get, and what faces ask of it: every question within its budget of rows.

    python benchmarks/big.py sqlite:///big.db              # a million runs; the file must not be there yet
    python benchmarks/big.py postgresql://... --runs 100000
    python benchmarks/big.py postgres                      # on a server of its own, started and ended
    python benchmarks/big.py sqlite:///big.db --keep       # ask again what was made before

It ends with 1 if a question read more rows than it may, by the store's own count; on PostgreSQL also if the server
counted far more than the store. Times are shown, and judge nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import combinations
from statistics import median, quantiles
from typing import Any

import apsw
import psycopg

from holdfast.contract.heads import SCAN_BUDGET, HeadFilter
from holdfast.contract.rows import Status
from holdfast.errors import BadFilter
from holdfast.looking import LocalDesk
from holdfast.looking.query import parse
from holdfast.stores import open_store
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql import heads as searching
from holdfast.stores.sql.store import SQLStore
from holdfast.stores.sqlite.store import SQLiteStore

RUNS = 1_000_000
BEGAN = 1_700_000_000_000_000
DAY = 24 * 3600 * 1_000_000
DAYS = 30
TIMES = 20

_NUMBERS = """(WITH RECURSIVE counted (n) AS (
SELECT CAST(:first AS BIGINT) UNION ALL SELECT n + 1 FROM counted WHERE n < :last) SELECT n FROM counted) AS numbers"""
# Of a thousand runs 28 are open and 22 have failed.
_STATUS = """CASE WHEN n % 1000 < 20 THEN 'suspended' WHEN n % 1000 < 23 THEN 'pending'
WHEN n % 1000 < 24 THEN 'running' WHEN n % 1000 < 27 THEN 'paused' WHEN n % 1000 < 28 THEN 'blocked'
WHEN n % 1000 < 50 THEN 'failed' ELSE 'completed' END"""
FILL = (
    f"""INSERT INTO runs (key, id, workflow, version, status, wait, due, epoch, owner, generation, inbox, claims, lost,
    seed, digest, created, updated, ended, priority, actor, tenant, reopens, side_rows, cancel_with_parent)
SELECT n, 'order-' || CAST(n AS TEXT), CASE WHEN n % 5000 = 7 THEN 'rare' ELSE 'flow-' || CAST(n % 8 AS TEXT) END, '1',
    {_STATUS}, CASE WHEN n % 1000 < 20 THEN 'message approved' ELSE '' END,
    NULL, 1, NULL, 0, 0, 0, '', n, n, {BEGAN} + n * :apart, {BEGAN} + n * :apart,
    CASE WHEN n % 1000 >= 28 THEN {BEGAN} + n * :apart + 1000000 END, 0, 'actor-' || CAST(n % 50 AS TEXT),
    CASE WHEN n % 5 = 0 THEN 'acme' ELSE 'zoo' END, 0, 0, 0
FROM {_NUMBERS}""",
    f"INSERT INTO inputs (run, input) SELECT n, '{{}}' FROM {_NUMBERS}",
    f"INSERT INTO results (run, output) SELECT n, '\"done\"' FROM {_NUMBERS} WHERE n % 1000 >= 50",
    f"""INSERT INTO results (run, error, failed_step)
SELECT n, '{{"type":"shop.CardDeclined","message":"insufficient funds"}}', 'charge' FROM {_NUMBERS}
WHERE n % 1000 >= 28 AND n % 1000 < 50""",
    f"INSERT INTO attributes (name, value, run) SELECT 'customer', CAST(n % 20000 AS TEXT), n FROM {_NUMBERS}",
    f"INSERT INTO attributes (name, value, run) SELECT 'region', CAST(n % 3 AS TEXT), n FROM {_NUMBERS}",
)
_AT_ONCE = 100_000

Ask = Callable[[SQLStore], Awaitable[int]]
"""Ask something, and return how many rows of runs were looked at, as the store counted."""


def statements(runs: int) -> list[str]:
    """Return what fills a database with so many runs, alike for every kind."""
    found: list[str] = []
    for first in range(1, runs + 1, _AT_ONCE):
        values = {"first": first, "last": min(first + _AT_ONCE - 1, runs), "apart": DAYS * DAY // runs}
        for text in FILL:
            for name, value in values.items():
                text = text.replace(f":{name}", str(value))
            found.append(text)
    return found


def fill(store: SQLStore, runs: int) -> None:
    """Fill an empty database beside the store that has it open."""
    if isinstance(store, SQLiteStore):
        db = apsw.Connection(store.path)
        db.set_busy_timeout(60_000)
        db.execute("PRAGMA synchronous = OFF; PRAGMA cache_size = -200000; PRAGMA temp_store = MEMORY")
        for text in statements(runs):
            db.execute(text)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()
        return
    assert isinstance(store, PostgresStore)
    with psycopg.connect(store._connections.conninfo, autocommit=True) as side:
        side.execute(f'SET search_path TO "{store.schema}"'.encode())
        side.execute("SET synchronous_commit TO off")
        for text in (*statements(runs), "ANALYZE runs, attributes, results"):
            side.execute(text.encode())


def _page(**conditions: Any) -> Ask:
    async def ask(store: SQLStore) -> int:
        return (await store.heads(HeadFilter(**conditions))).scanned

    return ask


def _counting(**conditions: Any) -> Ask:
    async def ask(store: SQLStore) -> int:
        return (await store.count(HeadFilter(**conditions))).scanned

    return ask


async def _open_by_status(store: SQLStore) -> int:
    return sum([(await store.count(HeadFilter(statuses=(status,)))).scanned for status in searching.OPEN])


def questions(runs: int) -> dict[str, tuple[int, Ask]]:
    """Return what faces ask, each with how many rows of runs it may look at."""
    day = BEGAN + 10 * DAY
    a_day = {"created_from": day, "created_until": day + DAY}
    old = {"created_until": BEGAN + 5 * DAY}
    rare = (Status.BLOCKED,)
    return {
        "newest": (1_000, _page()),
        "by status": (2_000, _page(statuses=(Status.FAILED,))),
        "by workflow": (2_000, _page(workflows=("flow-1",))),
        "by tenant": (2_000, _page(tenant="acme")),
        "by attribute": (2_000, _page(attributes={"customer": "77"})),
        "workflow and rare status": (5_000, _page(workflows=("flow-1",), statuses=rare)),
        "deep page": (1_000, _page(before=runs // 2)),
        "broad attribute and rare status": (5_000, _page(attributes={"region": "1"}, statuses=rare)),
        "broad attribute, workflow, rare status": (
            5_000,
            _page(attributes={"region": "1"}, workflows=("flow-3",), statuses=rare),
        ),
        "one day, 20 days ago": (3_000, _page(**a_day)),
        "failed on one day": (5_000, _page(statuses=(Status.FAILED,), **a_day)),
        "failed, older than 25 days": (5_000, _page(statuses=(Status.FAILED,), **old)),
        "overdue": (SCAN_BUDGET, _page(due_until=BEGAN)),
        "waiting for a message": (5_000, _page(waiting="message approved")),
        "id by prefix": (10_000, _page(id_prefix="order-777")),
        "two broad conditions that nothing meets": (
            SCAN_BUDGET,
            _page(tenant="acme", workflows=("rare",), version="9"),
        ),
        "broad conditions, no index": (SCAN_BUDGET, _page(version="9")),
        "count of failed": (20_000, _counting(statuses=(Status.FAILED,))),
        "count of open, by status": (SCAN_BUDGET, _open_by_status),
        "count of one day": (SCAN_BUDGET, _counting(**a_day)),
        "count of what nothing meets": (SCAN_BUDGET, _counting(tenant="acme", version="9")),
        "count of all": (20_000, _counting()),
    }


FILTERS = (
    "status:failed", "status:blocked", "status:completed", "status:failed,paused", "-status:completed", "is:open",
    "is:ended", "is:overdue", "is:attention", "workflow:flow-1", "workflow:rare", "workflow:flow-2,flow-3",
    "-workflow:flow-1", "tenant:acme", "actor:actor-7", "customer=77", "region=1", "id:order-7*", "id:order-1234*",
    "created:..2023-11-20", "created:2023-11-20..2023-11-22", "created:2023-12-01..", "version:9", "version:1",
    "ended:..2023-11-18", "ended:2023-11-20..2023-11-21", "quiet:2023-11-25", 'waiting:"message approved"',
    'waiting:"step charge"', "parent:none", "key:none", "order-77", "flow-1", "nothing",
)  # fmt: skip
"""Every word of the filter language, with values that few, many or no runs meet."""


def filters(several: int) -> list[str]:
    """Return each word, any two of them, and so many of three or four at random."""
    dice = random.Random(11)
    more = [dice.sample(FILTERS, dice.randrange(3, 5)) for _ in range(several)]
    return [*FILTERS, *map(" ".join, combinations(FILTERS, 2)), *map(" ".join, more)]


async def looked_at(store: SQLStore, work: Awaitable[Any]) -> int:
    """Return how many rows of runs were looked at for something, as the store counted."""
    before = store.looked_at
    await work
    return store.looked_at - before


async def at_random(store: SQLStore, several: int = 200) -> int:
    """Ask a desk by every filter, any two, and several at random: pages of 50 with sentences, and counts."""
    desk = LocalDesk(store)
    over = 0
    asks: dict[str, tuple[int, Callable[[str], Awaitable[Any]]]] = {
        "pages": (100, desk.heads),
        "counts": (50, desk.count),
    }
    for kind, (budget, ask) in asks.items():
        spent: list[tuple[float, str]] = []
        most = 0
        for text in filters(several):
            began = time.perf_counter()
            try:
                rows = await looked_at(store, ask(text))
            except BadFilter:
                continue  # they exclude each other
            spent.append(((time.perf_counter() - began) * 1000, text))
            most, over = max(most, rows), over + (rows > SCAN_BUDGET)
        times = [each for each, _ in spent]
        late, (longest, text) = quantiles(times, n=20)[-1], max(spent)
        slow = f"{sum(each > budget for each in times)} above {budget} ms"
        print(
            f"{len(spent):,} {kind} of filters: median {median(times):.1f} ms, p95 {late:.1f} ms, {slow}; "
            f"at most {most:,} rows; longest {longest:.0f} ms: {text}"
        )
    return over


_TUPLES = """SELECT coalesce(sum(pg_stat_get_xact_tuples_returned(oid)), 0)::bigint FROM pg_class
WHERE relnamespace = %s::regnamespace AND (relname = 'runs' OR oid IN
(SELECT indexrelid FROM pg_index
WHERE indrelid = (%s || '.runs')::regclass OR indrelid = (%s || '.attributes')::regclass))"""


async def read_by_server(store: PostgresStore, which: HeadFilter) -> tuple[int, int]:
    """Return how many rows of runs and attributes a server read for a search, by its statistics and by the store's."""
    read = 0

    async def look_on(look: Any) -> Any:
        async def counted(db: Any) -> Any:
            nonlocal read
            read -= await tuples(db)
            found = await look(db)
            read += await tuples(db)
            return found

        return await store.look(counted, together=True)

    async def tuples(db: Any) -> int:
        schema = f'"{store.schema}"'
        row = await (await db._connection.execute(_TUPLES, (schema, schema, schema))).fetchone()
        return int(row[0])

    page = await searching.search(look_on, which)
    return read, page.scanned


async def _server_agrees(store: PostgresStore) -> int:
    """Compare what a server read with what the store counted: a row is found in an index, and then looked at.

    A server may read a span of keys where an index has a part of it; that is a few times as much, and not all there is.
    """
    most, wrong, asked = 0.0, 0, 0
    for text in filters(0):
        try:
            query = parse(text, store.clock.now())
        except BadFilter:
            continue
        if query.word is not None or query.attention:
            continue
        for _ in range(12 if asked < len(FILTERS) else 1):  # a server may plan otherwise what it has seen often
            read, counted = await read_by_server(store, query.which)
        asked += 1
        most = max(most, read / (counted + 1_000))
        if read > 6 * counted + 2_000:
            wrong += 1
            print(f"OVER {text}: the server read {read:,} rows, the store counted {counted:,}")
    print(f"{asked} filters: the server read at most {most:.1f} times what the store counted, and a thousand rows more")
    return wrong


async def main(address: str, runs: int, keep: bool) -> int:
    """Make the database, ask everything, and tell what it cost."""
    store = open_store(address)
    assert isinstance(store, SQLStore)
    await store.open()
    try:
        if not keep:
            began = time.perf_counter()
            await asyncio.to_thread(fill, store, runs)
            print(f"{runs:,} runs made in {time.perf_counter() - began:.0f} s")
        wrong = 0
        for name, (most, ask) in questions(runs).items():
            spent: list[float] = []
            rows = 0
            for _ in range(TIMES):
                began = time.perf_counter()
                rows = await ask(store)
                spent.append((time.perf_counter() - began) * 1000)
            wrong += rows > most
            print(f"{'OVER ' if rows > most else ''}{name:42} {median(spent):8.2f} ms  {rows:7,} of {most:7,} rows")
        names: list[tuple[str, Callable[[], Awaitable[Any]]]] = [
            ("workflow names", store.workflow_names),
            ("attribute names", store.attribute_names),
            ("ended runs by status, every 10 s", store.ended_counts),
        ]
        for name, look in names:
            began = time.perf_counter()
            await look()
            print(f"{name:42} {(time.perf_counter() - began) * 1000:8.2f} ms")
        wrong += await at_random(store)
        if isinstance(store, PostgresStore):
            wrong += await _server_agrees(store)
        return int(wrong > 0)
    finally:
        await store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make a large database and ask it what faces ask.")
    parser.add_argument("address")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--keep", action="store_true", help="the database was made before")
    given = parser.parse_args()
    import environments  # tests import the rest, and have servers of their own

    with environments.address_of(given.address) as address:
        sys.exit(asyncio.run(main(address, given.runs, given.keep)))
