"""Searches that end at their budget: whatever drives them, following pages find every run once, and no other."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.contract.heads import HeadFilter
from holdfast.contract.operations import SetAttributes
from holdfast.contract.rows import Status
from holdfast.contract.store import Store
from holdfast.contract.turns import RunOptions, StartRun
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql import heads
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance import LEASE, NOW, SECOND, ended, new_run, turn
from holdfast.transfer import export_runs, import_runs

BUDGET = 40
RUNS = 150


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("empty_database")) if request.param == "postgres" else ":memory:"


@pytest.fixture
async def store(address: str) -> AsyncIterator[Store]:
    store: Store = SQLiteStore(address) if address == ":memory:" else PostgresStore(address)
    await store.open()
    yield store
    await store.close()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few runs be what a million is otherwise."""
    for name, value in {
        "_PROBE": 11,
        "_SORTED": 31,
        "_FIRST_PIECE": 5,
        "_LARGEST_PIECE": 20,
        "SCAN_BUDGET": BUDGET,
    }.items():
        monkeypatch.setattr(heads, name, value)


async def fill(store: Store, dice: random.Random) -> dict[str, dict[str, Any]]:
    """Start runs of all kinds and return what each is."""
    known: dict[str, dict[str, Any]] = {}
    await store.join("w", LEASE)
    operations: list[Any] = []
    for number in range(RUNS):
        run_id = f"{dice.choice('ab')}-{number}"
        known[run_id] = {
            "workflows": dice.choice(["order", "order", "order", "report"]),
            "actor": dice.choice([None, "kim"]),
            "tenant": dice.choice(["acme", "acme", "zoo"]),
            "statuses": dice.choice([Status.COMPLETED, Status.COMPLETED, Status.FAILED, Status.RUNNING]),
            "attributes": {"size": str(dice.randrange(3))},
            "created": NOW + number * SECOND,
        }
        one = known[run_id]
        options = RunOptions(actor=one["actor"], tenant=one["tenant"], attributes=one["attributes"])
        run = new_run(run_id, workflow=one["workflows"], at=one["created"], owner="w", options=options)
        end = None if one["statuses"] is Status.RUNNING else ended(one["statuses"])
        operations.append(StartRun(run=run, turn=turn(0, end=end) if end is not None else None))
    await store.apply(operations)
    return known


def matches(run_id: str, one: dict[str, Any], wanted: dict[str, Any]) -> bool:
    tests = {
        "statuses": lambda value: one["statuses"] in value,
        "workflows": lambda value: one["workflows"] in value,
        "actor": lambda value: one["actor"] == value,
        "tenant": lambda value: one["tenant"] == value,
        "attributes": lambda value: one["attributes"] == value,
        "id_prefix": run_id.startswith,
        "created_from": lambda value: one["created"] >= value,
        "created_until": lambda value: one["created"] < value,
    }
    return all(tests[name](value) for name, value in wanted.items())


CONDITIONS: list[dict[str, Any]] = [
    {"statuses": (Status.FAILED,)},
    {"statuses": (Status.FAILED, Status.RUNNING)},
    {"statuses": (Status.COMPLETED,)},
    {"workflows": ("report",)},
    {"actor": "kim"},
    {"tenant": "zoo"},
    {"attributes": {"size": "1"}},
    {"id_prefix": "a-1"},
    {"id_prefix": "a-14"},
    {"id_prefix": "b"},
    {"created_from": NOW + 40 * SECOND, "created_until": NOW + 60 * SECOND},
]


@pytest.mark.parametrize("limit", ["rows", "time"])
async def test_pages_that_end_at_the_budget_go_on_and_find_every_run_once(store, limit, monkeypatch):
    """A search that took long ends early in the same way, but not before it has looked at some rows."""
    if limit == "time":
        for name, value in {"SCAN_BUDGET": 10_000, "_UNHURRIED": 10, "_SEARCH_FOR": -1, "_COUNT_FOR": -1}.items():
            monkeypatch.setattr(heads, name, value)
    known = await fill(store, random.Random(7))
    partial = 0
    for first, second in [*pairwise(CONDITIONS), ({}, {}), *((each, {}) for each in CONDITIONS)]:
        wanted = {**first, **second}
        expected = [run_id for run_id in reversed(known) if matches(run_id, known[run_id], wanted)]
        found: list[str] = []
        before: int | None = None
        while True:
            page = await store.heads(HeadFilter(**wanted, limit=4, before=before))
            found += [head.id for head in page.heads]
            assert page.scanned <= BUDGET or limit == "time"
            partial += page.partial
            assert page.partial == (len(page.heads) < 4 and page.next is not None)
            assert page.searched_to is not None or not page.partial
            before = page.next
            if before is None:
                break
        assert found == expected, wanted
        counted = await store.count(HeadFilter(**wanted))
        assert counted.n == len(expected) if counted.exact else counted.n <= len(expected)
    assert partial  # otherwise this has shown nothing


async def test_a_thorough_search_is_not_ended_by_time(store, monkeypatch):
    for name, value in {"SCAN_BUDGET": 10_000, "_UNHURRIED": 10, "_SEARCH_FOR": -1}.items():
        monkeypatch.setattr(heads, name, value)
    await fill(store, random.Random(7))
    which = HeadFilter(statuses=(Status.FAILED,), tenant="zoo", workflows=("report",))
    assert (await store.heads(which)).partial
    assert not (await store.heads(msgspec.structs.replace(which, thorough=True))).partial


async def test_a_search_looks_at_no_more_rows_than_it_has_time_for(store, monkeypatch):
    """How long the last rows took tells how many there is time for: a count ends when it is late, not a piece later."""
    now, real = 0.0, heads.ask

    async def slowly(db: Any, what: str, which: Any, piece: Any, limit: int) -> Any:
        nonlocal now
        now += piece.rows
        return await real(db, what, which, piece, limit)

    monkeypatch.setattr(heads, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(heads, "ask", slowly)
    for name, value in {"SCAN_BUDGET": 10_000, "_UNHURRIED": 10, "_COUNT_FOR": 47}.items():
        monkeypatch.setattr(heads, name, value)
    await fill(store, random.Random(7))
    counted = await store.count(HeadFilter(tenant="acme"))
    assert not counted.exact
    assert 47 <= now <= 47 + heads._FIRST_PIECE


async def test_the_condition_that_fewest_runs_meet_drives_the_search(store):
    known = await fill(store, random.Random(3))
    rare = next(iter(known))
    await store.apply([SetAttributes(target=rare, attributes={"customer": '"c-1"'}, at=NOW)])
    page = await store.heads(HeadFilter(attributes={"customer": '"c-1"'}, tenant=known[rare]["tenant"]))
    assert ([head.id for head in page.heads], page.scanned) == ([rare], 3)  # asked which is rarer: 2


HOUR = 3600 * SECOND


async def days(store: Store, first: int, runs: int, prefix: str) -> dict[str, int]:
    """Start runs that were created an hour apart, and return when."""
    created = {f"{prefix}-{number}": NOW + (first + number) * HOUR for number in range(runs)}
    await store.apply([StartRun(run=new_run(run_id, at=at)) for run_id, at in created.items()])
    return created


async def found_between(store: Store, since: int | None, until: int | None) -> tuple[list[str], int]:
    """Return the runs of a span of time, page by page, and how many rows were looked at."""
    ids: list[str] = []
    scanned, before = 0, None
    while True:
        page = await store.heads(HeadFilter(created_from=since, created_until=until, limit=7, before=before))
        ids += [head.id for head in page.heads]
        scanned += page.scanned
        before = page.next
        if before is None:
            return ids, scanned


async def test_a_span_of_time_is_found_without_looking_at_what_lies_before_or_after(store):
    created = await days(store, 0, RUNS, "run")
    newest = [*reversed(created)]
    for first, last in ((100, 103), (0, 2), (148, 200), (60, 60)):
        since, until = NOW + first * HOUR, NOW + last * HOUR
        expected = [run_id for run_id in newest if since <= created[run_id] < until]
        found, scanned = await found_between(store, since, until)
        assert (found, scanned <= 2 * (len(expected) + 2)) == (expected, True), (first, last)
    page = await store.heads(HeadFilter(ended_until=NOW + 2 * HOUR))
    assert (page.heads, page.scanned <= 6, page.partial) == ([], True, False)
    assert (await store.count(HeadFilter(created_from=NOW + 140 * HOUR)))[:2] == (10, True)


async def test_what_an_import_brought_is_found_where_it_is(store, tmp_path):
    """Its keys say that it is new, and its runs are old."""
    beside: dict[str, int] = {}
    for name, first in (("a", 300), ("b", 0)):
        other = SQLiteStore(":memory:")
        await other.open()
        beside |= await days(other, first, 30, name)
        await export_runs(other, tmp_path / f"{name}.export")
        await other.close()
    created = await days(store, 100, 40, "own")
    for name in ("a", "b"):
        await import_runs(tmp_path / f"{name}.export", store, by="kim")
    created |= beside
    created |= await days(store, 400, 20, "later")
    newest = [*reversed(created)]
    dice = random.Random(5)
    spans = [(dice.randrange(430), dice.randrange(430)) for _ in range(40)]
    for first, last in [*map(sorted, spans), (None, 20), (310, None), (0, 1000)]:
        since = NOW + first * HOUR if first is not None else None
        until = NOW + last * HOUR if last is not None else None
        expected = {run for run in newest if (since or 0) <= created[run] < (until or NOW * 2)}
        found, _ = await found_between(store, since, until)
        assert (len(found), set(found)) == (len(expected), expected), (first, last)
