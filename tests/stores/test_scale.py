"""What there is makes nothing slower: the hot paths of the store beside many finished and sleeping runs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median_low
from typing import Any, TypeVar

import apsw
import apsw.ext
import pytest
from msgspec.structs import replace
from tests.support.sqlite_cases import opened

from holdfast.contract.operations import Published, SendMessage, Started
from holdfast.contract.rows import RunFilter, Status
from holdfast.contract.turns import EventRule, Lane, RunOptions, StartRun
from holdfast.stores.sql.files import statements
from holdfast.stores.sqlite.statements import MANY, SQL
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    claim,
    ended,
    event,
    extra,
    new_run,
    parked,
    turn,
    wait,
)

T = TypeVar("T")

FILL = """
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :runs)
INSERT INTO runs (key, id, workflow, version, status, wait, due, epoch, owner, generation, inbox, claims, lost, seed,
                  digest, created, updated, ended, priority, actor, tenant, reopens, side_rows, cancel_with_parent)
SELECT n, 'old-' || n, iif(n % 50, 'order', 'rare'), '1', iif(n > :open, 'completed', 'suspended'),
       iif(n > :open, '', 'message'), iif(n <= :open AND n % 2, :later + n, NULL), 1,
       iif(n <= :open AND n % 4 = 0, 'w', NULL), 0, 0, 0, '', n, n, :now, :now, iif(n > :open, :now + n, NULL),
       n % 3, 'somebody', 'acme', 0, 0, 0
FROM numbers;
INSERT INTO inputs (run, input) SELECT key, '{}' FROM runs;
INSERT INTO results (run, output) SELECT key, '"done"' FROM runs WHERE ended IS NOT NULL;
INSERT INTO entries (run, location, seq, kind, at, data) SELECT key, 'a0', 1, 1, created, '[1]' FROM runs;
INSERT INTO attributes (name, value, run) SELECT 'common', '1', key FROM runs;
INSERT INTO attributes (name, value, run) SELECT 'batch', CAST(key / 20 AS TEXT), key FROM runs;
INSERT INTO event_waiters (run, location, name, since)
SELECT key, 'a0', 'news', created + key FROM runs WHERE ended IS NULL;
INSERT INTO message_ids (run, id, at) SELECT key, 'm', created FROM runs;
INSERT INTO dead_letters (id, kind, run, workflow, step, name, attempts, payload, target_status, at, outcome)
SELECT printf('%09d', key), 'work', id, workflow, 's', '', 1, '', '', created, '' FROM runs WHERE key % 10 = 0;
INSERT INTO events (name, id, payload, at)
SELECT 'unread-' || (key % 7), 'e', '1', created FROM runs WHERE key % 20 = 0;
INSERT INTO event_queues (name, pending) SELECT name, count(*) FROM events GROUP BY name;
"""


async def filled(path: Path, finished: int, sleeping: int) -> SQLiteStore:
    """Return a store with so many runs, each with what a run has."""
    store = await opened(path, durability="process")
    await store.join("w", LEASE)
    values = {"runs": finished + sleeping, "open": sleeping, "now": NOW - 1000 * SECOND, "later": NOW + 1000 * SECOND}
    writer = store._connections.writer
    with writer:
        for statement in FILL.split(";\n"):
            if statement.strip():
                writer.execute(statement, {name: values[name] for name in values if f":{name}" in statement})
    writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return store


class Load:
    """The operations that must not grow with what there is; each once, on runs of its own."""

    def __init__(self, store: SQLiteStore, sleeping: int) -> None:
        self.store = store
        self._sleeping = sleeping
        self._numbers = count(1)
        self.steps = 0
        self.measured = True

    async def start(self) -> None:
        await self.store.apply([StartRun(run=new_run(owner="w"))])

    async def send(self) -> None:
        target = f"old-{1 + next(self._numbers) * 37 % self._sleeping}"
        await self.store.apply([SendMessage(target=target, name="n", id="", payload="1", at=NOW)])

    async def send_once(self) -> None:
        n = next(self._numbers)
        target = f"old-{1 + n * 37 % self._sleeping}"
        message = SendMessage(
            target=target, name="n", id=f"once-{n}", payload="1", at=NOW, deduplicate=True, max_pending=3
        )
        await self.store.apply([message])

    async def publish(self) -> None:
        assert await self.store.apply([event()]) == [Published(1)]

    async def publish_unheard(self) -> None:
        assert await self.store.apply([event(name=f"unheard-{next(self._numbers)}")]) == [Published(0)]

    async def publish_expiring(self) -> None:
        rule = EventRule(expired=NOW - 5000 * SECOND, max_pending=10**6)
        assert await self.store.apply([event(name="unread-1", rule=rule)]) == [Published(0)]

    async def wait_for_the_new(self) -> None:
        await self._wait("unread-2", EventRule(not_before=NOW + 1))

    async def wait_for_event(self) -> None:
        await self._wait(f"lonely-{next(self._numbers)}", EventRule())

    async def _wait(self, name: str, rule: EventRule) -> None:
        [outcome] = await self.store.apply([StartRun(run=new_run(owner="w"))])
        assert isinstance(outcome, Started)
        turn = extra(outcome.key, state=parked(NOW + 9000 * SECOND), waits=[wait("a1", name, rule=rule)])
        await self._measure(self.store.apply([turn]))

    async def claim(self) -> None:
        await self.store.apply([StartRun(run=new_run(at=NOW - 1))])
        assert len(await self._measure(claim(self.store, limit=1))) == 1

    async def _measure(self, call: Awaitable[T]) -> T:
        """Count only this, of all an operation does."""
        self.steps, self.measured = 0, True
        result = await call
        self.measured = False
        return result

    async def claim_of_backlog(self) -> None:
        """Claim of what a day's backlog left over: runs that are due, of several priorities."""
        assert len(await self.store.claim("w", NOW + 9999 * SECOND, 1, ["order"])) == 1

    async def claim_nothing(self) -> None:
        assert await claim(self.store, now=NOW - 500 * SECOND) == []

    async def next_due(self) -> None:
        assert await self.store.next_due(["order"]) is not None

    async def due(self) -> None:
        await self.store.due("w", NOW - 500 * SECOND)

    async def list_newest(self) -> None:
        await self._list()

    async def list_completed(self) -> None:
        await self._list(status=Status.COMPLETED)

    async def list_sleeping(self) -> None:
        await self._list(status=Status.SUSPENDED)

    async def list_running(self) -> None:
        await self.store.runs(RunFilter(limit=20, status=Status.RUNNING))

    async def list_workflow(self) -> None:
        await self._list(workflow="order")

    async def list_workflow_and_status(self) -> None:
        await self._list(workflow="order", status=Status.SUSPENDED)

    async def list_attribute(self) -> None:
        await self._list(attributes={"common": "1"})

    async def list_rare_attribute(self) -> None:
        assert await self.store.runs(RunFilter(limit=20, attributes={"batch": "1"}))

    async def list_actor(self) -> None:
        await self._list(actor="somebody")

    async def list_page(self) -> None:
        await self._list(before=60)

    async def _list(self, **which: object) -> None:
        assert len(await self.store.runs(RunFilter(limit=20, **which))) == 20  # type: ignore[arg-type]


OPERATIONS = [name for name in vars(Load) if not name.startswith("_")]


@pytest.fixture
async def loads(tmp_path: Path) -> AsyncIterator[tuple[Load, Load]]:
    """A store with a hundred runs of each kind, and one with very many."""
    few, many = await filled(tmp_path / "few.db", 100, 100), await filled(tmp_path / "many.db", 100_000, 10_000)
    yield Load(few, 100), Load(many, 10_000)
    for store in (few, many):
        await store.close()


async def test_nothing_does_more_work_beside_many_runs(loads: tuple[Load, Load]) -> None:
    """S4-6: sending, publishing, claiming, listing and starting cost what they cost with a hundred runs.

    Counted in steps of SQLite's virtual machine, which are the same on every machine, however busy.
    """
    more = {}
    for name in OPERATIONS:
        few, many = [await steps_of(load, name) for load in loads]
        if many > few * 1.5:
            more[name] = (few, many)
    assert more == {}


FILL_LANES = """
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :runs)
INSERT INTO runs (key, id, workflow, version, status, wait, epoch, generation, inbox, claims, lost, seed, digest,
                  created, updated, priority, reopens, side_rows, cancel_with_parent, place)
SELECT n, 'waits-' || n, 'order', '1', 'pending', 'place', 0, 0, 0, 0, '', n, n, :now, :now, 0, 0, 0, 0, 1 FROM numbers;
INSERT INTO inputs (run, input) SELECT key, '{}' FROM runs;
INSERT INTO run_places (run, workflow, lane, held, priority, since)
SELECT key, 'order', 'key-' || (key % :keys), 0, 0, created FROM runs;
INSERT INTO lanes (workflow, lane, priority, number)
SELECT 'order', lane, 0, min(run) FROM run_places GROUP BY lane
"""


async def with_lanes(path: Path, runs: int, keys: int) -> Load:
    """Return a store with so many runs that wait under so many keys."""
    store = await opened(path, durability="process")
    await store.join("w", LEASE)
    writer, values = store._connections.writer, {"runs": runs, "keys": keys, "now": NOW}
    with writer:
        for statement in FILL_LANES.split(";\n"):
            writer.execute(statement, {name: values[name] for name in values if f":{name}" in statement})
    return Load(store, 1)


async def test_a_turn_costs_the_same_however_many_runs_and_keys_wait(tmp_path: Path) -> None:
    """S4-6: a run is taken, a run is started, and the end of one lets its lane join the line."""
    small, large = await with_lanes(tmp_path / "s.db", 100, 10), await with_lanes(tmp_path / "l.db", 20_000, 2_000)
    lane = Lane(key="key-1", at_once=1)
    figures: dict[str, list[int]] = {"take": [], "enter": [], "end": []}
    for load in (small, large):
        store, connections = load.store, load.store._connections
        for what, steps in figures.items():
            counts = []
            for n in range(9):
                load.steps = 0
                if what == "end":
                    [claim] = await store.claim_waiting("w", NOW, 1, {"order": lane})
                with counting(load, [connections.reader, connections.writer]):
                    if what == "take":
                        assert len(await store.claim_waiting("w", NOW, 1, {"order": lane})) == 1
                    elif what == "enter":
                        run = new_run(f"new-{n}", options=RunOptions(lane=replace(lane, key=f"other-{n}")))
                        await store.apply([StartRun(run=run)])
                    else:
                        await store.apply([turn(claim.key, claim.epoch, end=ended())])
                counts.append(load.steps)
            steps.append(median_low(counts))
        await store.close()
    assert {what: steps for what, steps in figures.items() if steps[1] > steps[0] * 1.5} == {}


async def steps_of(load: Load, name: str) -> int:
    """Return how many steps one operation takes, of several the median."""
    return median_low([await counted(load, name) for _ in range(9)])


async def counted(load: Load, name: str) -> int:
    connections = load.store._connections
    load.steps = 0
    with counting(load, [connections.reader, connections.writer]):
        await getattr(load, name)()
    load.measured = True
    assert load.steps > 0
    return load.steps


@contextmanager
def counting(load: Load, connections: list[apsw.Connection]) -> Iterator[None]:
    def note(event: dict[str, Any]) -> None:
        if load.measured:
            load.steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    for db in connections:
        db.trace_v2(apsw.SQLITE_TRACE_PROFILE, note)
    try:
        yield
    finally:
        for db in connections:
            db.trace_v2(0, None)


TABLES = [
    "runs", "entries", "inbox", "inputs", "results", "attributes", "archive", "tombstones", "message_ids", "replies",
    "events", "event_queues", "event_waiters", "event_cursors", "idempotency_keys", "idempotency_waiters", "heartbeats",
    "dead_letters", "audit", "evidence", "schedules", "workers", "tagged", "pauses", "run_places", "lanes",
    "lane_begins",
]  # fmt: skip
VERBS = {"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}
WHOLE = re.compile(rf"SCAN ({'|'.join(TABLES)})\b")

BY_DESIGN = {
    "dead_workers": "there are as many workers as processes",
    "live_leases": "the same",
    "other_live_workers": "the same",
    "prune_dead": "the same",
    "age_dead": "the same",
    "recent_deaths": "the same",
    "read_all_events": "oldest first, and no further than the limit",
    "read_schedules": "all of them are asked for",
    "read_pauses": "the same",
    "read_lanes": "counting looks at everything, for people",
    "lane_workflows": "in an index, once a minute",
    "count_runs": "counting looks at everything, in an index",
    "count_letters": "the same",
    "count_events": "one row for each name",
    "queued_event_names": "the same",
    "awaited_event_names": "from one name to the next in an index, counting each up to a number",
    "list_acts": "newest first, between two numbers, as the search of stores/sql/acts.py asks",
    "last_audit": "the last row of a table, from its end",
    "list_runs": "newest first, and no further than the page",
    "list_letters": "the same",
    **dict.fromkeys(
        ("list_heads", "count_heads", "ends_heads"),
        "the runs between two keys, as the search of stores/sql/heads.py asks",
    ),
    **dict.fromkeys(("list_tagged_heads", "count_tagged_heads", "ends_tagged_heads"), "the same"),
    **dict.fromkeys(("probe_runs", "probe_attributes", "reach_runs", "reach_attributes"), "no further than its limit"),
    "read_workers": "there are as many workers as processes",
    "old_letters": "a purge looks at letters, oldest first, until it has its fill",
}


def whole(db: apsw.Connection, sql: str, values: apsw.Bindings) -> list[str]:
    """Return the steps of a plan that read a table from one end to the other."""
    return [step for *_, step in db.execute(f"EXPLAIN QUERY PLAN {sql}", values) if WHOLE.match(str(step))]


async def test_no_statement_reads_a_whole_table_unless_it_is_meant_to(loads: tuple[Load, Load]) -> None:
    """S4-6: every named statement of the store, planned on the large file."""
    db = loads[1].store._connections.reader
    found: dict[str, list[str]] = {}
    for name, text in [*SQL.all().items(), *MANY.all().items()]:
        if name in statements("sql/transfer"):
            continue  # moving house looks at everything there is
        sql = text.replace("{filter}", "TRUE")
        info = apsw.ext.query_info(db, sql)
        names = [str(binding) for binding in info.bindings_names if binding and not binding.isdigit()]
        values: apsw.Bindings = dict.fromkeys(names, 1) if names else ("[]",) * info.bindings_count
        if steps := whole(db, sql, values):
            found[name] = steps
    assert {name: steps for name, steps in found.items() if name not in BY_DESIGN} == {}
    assert set(BY_DESIGN) == set(found)


@contextmanager
def traced(store: SQLiteStore) -> Iterator[list[tuple[str, Any]]]:
    """Collect the statements a store runs, with their values."""
    ran: list[tuple[str, Any]] = []

    def note(cursor: object, sql: str, values: object) -> bool:
        ran.append((sql, values))
        return True

    connections = store._connections
    for db in (connections.reader, connections.writer):
        db.exec_trace = note
    try:
        yield ran
    finally:
        for db in (connections.reader, connections.writer):
            db.exec_trace = None


@pytest.mark.parametrize("inline_limit", [0, 8], ids=["set-based", "row-by-row"])
async def test_what_the_hot_paths_run_reads_no_whole_table(loads: tuple[Load, Load], inline_limit: int) -> None:
    """S4-6: as they run it, each filter of a list as it was put together."""
    load = loads[1]
    load.store._inline_limit = inline_limit
    for name in OPERATIONS:
        with traced(load.store) as ran:
            await getattr(load, name)()
        assert ran
        for sql, values in ran:
            steps = whole(load.store._connections.reader, sql, values) if sql.split()[0] in VERBS else []
            if name == "list_newest" and "LIMIT ?1" in sql:
                assert steps == ["SCAN runs"], "newest first, and no further than the page"
            elif sql != SQL["dead_workers"]:
                assert steps == [], (name, sql)
