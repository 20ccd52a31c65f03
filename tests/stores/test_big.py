"""What faces ask of a large database, at a smaller size: each question reads no more rows than it may."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.paths import ROOT
from tests.support.sqlite_cases import opened

from holdfast.contract.heads import HeadFilter
from holdfast.errors import BadFilter
from holdfast.looking import LocalDesk, local
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql import heads
from holdfast.stores.sql.store import SQLStore
from holdfast.stores.sqlite.store import SQLiteStore

FEW, MANY = 4_000, 20_000
BUDGET = 600
OVERDUE = HeadFilter(due_until=1_000)
SLEEPING = (
    "UPDATE runs SET due = CASE WHEN key = 20 THEN 1 ELSE 1000 + key END WHERE status IN ('pending', 'suspended')"
)
LOOK_AT_ALL = ("two broad conditions that nothing meets", "broad conditions, no index", "count of all")
"""Questions that read as much as the budget allows, which is more than there is here."""


@pytest.fixture
def big(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("big")


@contextmanager
def counting(store: SQLiteStore) -> Iterator[list[int]]:
    """Count the steps of the virtual machine that reads."""
    counted: list[int] = []
    store._connections.reader.trace_v2(
        apsw.SQLITE_TRACE_PROFILE,
        lambda event: counted.append(event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]),
    )
    try:
        yield counted
    finally:
        store._connections.reader.trace_v2(0, None)


async def steps(big: Any, path: Path, runs: int) -> dict[str, int]:
    """Return how much each question reads where there are so many runs."""
    store = await opened(path, durability="process")
    try:
        big.fill(store, runs)
        found: dict[str, int] = {}
        for name, (most, ask) in big.questions(runs).items():
            with counting(store) as counted:
                assert await ask(store) <= most, name
            found[name] = sum(counted)
        for name, look in {"workflows": store.workflow_names, "attributes": store.attribute_names}.items():
            with counting(store) as counted:
                assert await look()
            found[name] = sum(counted)
        return found
    finally:
        await store.close()


async def test_no_question_reads_more_where_there_is_more(big, tmp_path):
    """S4-6 On SQLite, in steps of its virtual machine."""
    few, many = await steps(big, tmp_path / "few.db", FEW), await steps(big, tmp_path / "many.db", MANY)
    assert min(few.values()) > 0
    # Five times the runs: what is found by one more probe, or among a thousand more at most, may cost that.
    grown = {name: (few[name], many[name]) for name in few if many[name] > 1.5 * few[name] + 40_000}
    assert [name for name in grown if name not in LOOK_AT_ALL] == [], grown


async def test_no_question_to_a_server_looks_at_more_rows_than_it_may(big, empty_database):
    store = PostgresStore(empty_database)
    await store.open()
    try:
        big.fill(store, FEW)
        for name, (most, ask) in big.questions(FEW).items():
            assert await ask(store) <= most, name
        assert len(await store.workflow_names()) == 9
        assert await store.attribute_values("region") == ["0", "1", "2"]
        assert sum((await store.ended_counts()).values()) == FEW * 972 // 1000
    finally:
        await store.close()


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few thousand runs be what a million is otherwise."""
    for module, name, value in (
        (heads, "SCAN_BUDGET", BUDGET), (local, "SCAN_BUDGET", BUDGET), (heads, "_PROBE", 101), (heads, "_SORTED", 301),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


def asked_at_random(big: Any, store: SQLStore, runner: asyncio.Runner, steps: list[int] | None = None) -> int:
    """Ask a desk by each word, by any two, and by two hundred filters at random; return how many it answered."""
    desk, asked, partial = LocalDesk(store), 0, 0

    async def ask(text: str) -> None:
        nonlocal asked, partial
        before, worked = store.looked_at, len(steps or ())
        try:
            page = await desk.heads(text, limit=5)
        except BadFilter:
            return  # they exclude each other
        looked = store.looked_at - before
        assert looked <= BUDGET, text
        assert all(head.why.sentence for head in page.items)
        if steps is not None:
            # What the store counts is what is read: a row takes some tens of steps, and a page's sentences are bounded.
            assert sum(steps[worked:]) <= 60 * looked + 60_000, text
        before = store.looked_at
        counted = await desk.count(text)
        assert store.looked_at - before <= BUDGET, text
        assert counted.n >= len(page.items) or "attention" in text, text
        asked, partial = asked + 1, partial + page.partial

    @settings(max_examples=200)
    @given(st.lists(st.sampled_from(big.FILTERS), min_size=3, max_size=5, unique=True))
    def at_random(words: list[str]) -> None:
        runner.run(ask(" ".join(words)))

    for text in big.filters(0):
        runner.run(ask(text))
    at_random()
    assert partial
    return asked


def test_no_filter_looks_at_more_rows_than_the_budget_allows(big, tmp_path, monkeypatch):
    """FACES 10, line 1: each of the filter language, any two of them, and 200 at random, with sentences and counts."""
    small(monkeypatch)
    with asyncio.Runner() as runner:
        store = runner.run(opened(tmp_path / "big.db", durability="process"))
        try:
            big.fill(store, FEW)
            with counting(store) as steps:
                assert asked_at_random(big, store, runner, steps) > 400
        finally:
            runner.run(store.close())


@pytest.mark.slow
def test_no_filter_lets_a_server_look_at_more_rows_than_the_budget_allows(big, empty_database, monkeypatch):
    small(monkeypatch)
    with asyncio.Runner() as runner:
        store = PostgresStore(empty_database)
        runner.run(store.open())
        try:
            big.fill(store, FEW)
            assert asked_at_random(big, store, runner) > 400
        finally:
            runner.run(store.close())


async def test_a_run_that_is_overdue_is_found_however_many_ended_after_it(big, tmp_path, monkeypatch):
    """What is due, or waits, is open: the search goes down the open runs and not down all."""
    small(monkeypatch)
    store = await opened(tmp_path / "big.db", durability="process")
    try:
        big.fill(store, FEW)
        with apsw.Connection(store.path) as side:
            side.execute("UPDATE runs SET due = 1, wait = 'retry' WHERE key = 20")
        side.close()
        desk = LocalDesk(store)
        for text in ("is:overdue", "is:attention", "waiting:retry"):
            page = await desk.heads(text)
            assert "order-20" in [head.id for head in page.items], text
            assert not page.partial
    finally:
        await store.close()


async def test_what_sleeps_is_not_looked_at_for_what_is_overdue(big, tmp_path):
    store = await opened(tmp_path / "big.db", durability="process")
    try:
        big.fill(store, FEW)
        with apsw.Connection(store.path) as side:
            side.execute(SLEEPING)
        side.close()
        with counting(store) as counted:
            page = await store.heads(OVERDUE)
        assert ([head.key for head in page.heads], page.scanned) == ([20], 3)
        assert sum(counted) < 1_000
    finally:
        await store.close()


async def test_a_server_does_not_look_at_what_sleeps_for_what_is_overdue(big, empty_database):
    store = PostgresStore(empty_database)
    await store.open()
    try:
        big.fill(store, FEW)
        with psycopg.connect(store._connections.conninfo) as side:
            side.execute(f'SET search_path TO "{store.schema}"'.encode())
            side.execute(SLEEPING)
            side.commit()
            side.autocommit = True
            side.execute("VACUUM ANALYZE runs")  # what an index still has of rows that were changed is read, too
        read, counted = await big.read_by_server(store, OVERDUE)
        assert counted == 3
        assert read < 60, "jumps from one workflow to the next: one row of eight each"
    finally:
        await store.close()
