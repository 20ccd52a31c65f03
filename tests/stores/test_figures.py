"""Figures that are many: sums are made of a bounded number of rows, found by their key."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.contract.figures import HOUR, MINUTE, FigureFilter
from holdfast.contract.store import Store
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql import figures
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance.figures import DAY, MIDNIGHT, figure


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("empty_database")) if request.param == "postgres" else ":memory:"


@pytest.fixture
async def store(address: str) -> AsyncIterator[Store]:
    store: Store = SQLiteStore(address) if address == ":memory:" else PostgresStore(address)
    await store.open()
    yield store
    await store.close()


async def test_sums_are_made_of_a_bounded_number_of_rows_the_newest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.add_figures(
        [figure(step, at=MIDNIGHT + hour * HOUR) for hour in range(6) for step in ("charge", "ship", "mail")]
    )
    which = FigureFilter(since=MIDNIGHT, until=MIDNIGHT + DAY)
    monkeypatch.setattr(figures, "SCAN_BUDGET", 18)
    page = await store.figures(which)
    assert not page.partial
    assert {row.n for row in page.rows} == {6}
    monkeypatch.setattr(figures, "SCAN_BUDGET", 17)
    page = await store.figures(which)
    assert page.partial
    assert page.since == MIDNIGHT + HOUR
    assert {row.n for row in page.rows} == {5}


async def test_a_slot_of_which_only_a_part_was_looked_at_is_left_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.add_figures([figure("", at=MIDNIGHT + minute * MINUTE) for minute in range(60)])
    monkeypatch.setattr(figures, "SCAN_BUDGET", 25)
    which = FigureFilter(since=MIDNIGHT, until=MIDNIGHT + DAY, by="time", span=MINUTE, slot=10 * MINUTE)
    page = await store.figures(which)
    assert page.partial
    assert page.since == MIDNIGHT + 40 * MINUTE
    assert [row.start for row in page.rows] == [MIDNIGHT + 40 * MINUTE, MIDNIGHT + 50 * MINUTE]
    assert [row.n for row in page.rows] == [10, 10]
