"""What faces ask of a large database, at a smaller size: each question reads no more rows than it may."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support.paths import ROOT
from tests.support.sqlite_cases import opened

from holdfast.errors import BadFilter
from holdfast.looking import LocalDesk
from holdfast.looking.query import parse
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql import heads
from holdfast.stores.sqlite.store import SQLiteStore

FEW, MANY = 4_000, 20_000
BUDGET = 1_500
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


WORDS = [
    "status:failed", "status:blocked", "status:completed", "is:open", "is:ended", "workflow:flow-1", "workflow:rare",
    "workflow:flow-2,flow-3", "-workflow:flow-1", "tenant:acme", "actor:actor-7", "customer=77", "region=1",
    "id:order-7*", "id:order-1234*", "created:..2023-11-20", "created:2023-11-20..2023-11-22", "created:2023-12-01..",
    "version:9", "ended:..2023-11-18", "quiet:2023-11-25", 'waiting:"message approved"', "parent:none", "key:none",
]  # fmt: skip


async def test_random_filters_look_at_no_more_rows_than_the_budget_allows(big, tmp_path, monkeypatch):
    """Each of the filter language, any two of them, and more; a page with why each run is where it is."""
    monkeypatch.setattr(heads, "SCAN_BUDGET", BUDGET)
    store = await opened(tmp_path / "big.db", durability="process")
    try:
        big.fill(store, FEW)
        desk, dice = LocalDesk(store), random.Random(11)
        several = [dice.sample(WORDS, dice.randrange(3, 5)) for _ in range(100)]
        asked = partial_pages = 0
        for words in [*([word] for word in WORDS), *map(list, combinations(WORDS, 2)), *several]:
            try:
                which = parse(" ".join(words), store.clock.now()).which
            except BadFilter:
                continue  # they exclude each other
            page = await store.heads(which)
            assert page.scanned <= BUDGET, words
            asked += 1
            partial_pages += page.partial
            if asked % 10 == 0:
                shown = await desk.heads(" ".join(words))
                assert [head.id for head in shown.items] == [head.id for head in page.heads]
                assert all(head.why.sentence for head in shown.items)
        assert asked > 200
        assert partial_pages
    finally:
        await store.close()
