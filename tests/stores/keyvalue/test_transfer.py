"""Runs move between SQL databases and key spaces, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.key_spaces import OddDriver
from tests.support.transfer_cases import House, contents, furnish

from holdfast.clock import to_datetime
from holdfast.errors import StoreError
from holdfast.stores import open_store
from holdfast.stores.keyvalue import KeyValueStore
from holdfast.testing import JumpingClock
from holdfast.testing.invariants import violations
from holdfast.transfer import export_runs, import_runs


async def moved(old: House, new: House, file: Path) -> None:
    for house, move in ((old, export_runs), (new, None)):
        store = open_store(house.database)
        await store.open()
        try:
            if move is not None:
                await export_runs(store, file, clock=old.clock)
            else:
                await import_runs(file, store, clock=new.clock)
                assert await violations(store) == []
        finally:
            await store.close()


async def test_everything_arrives_in_a_key_space_and_in_sqlite_again_as_it_was(tmp_path):
    """S0-48, G1: from SQLite to a directory, and from there to SQLite; what is imported is compared row by row."""
    first = House(f"sqlite:///{tmp_path / 'first.db'}", JumpingClock())
    await furnish(first)
    houses = [first]
    for address in (f"kv+dir:///{tmp_path / 'keys'}", f"sqlite:///{tmp_path / 'last.db'}"):
        old = houses[-1]
        new = House(address, JumpingClock(to_datetime(old.clock.now())))
        await moved(old, new, tmp_path / f"{len(houses)}.holdfast")
        houses.append(new)
    found = [rows(house) for house in houses]
    assert found[0]["runs"]
    assert found[1] == found[0]
    assert found[2] == found[0]


def rows(house: House) -> dict[str, Any]:
    """Return what is the same wherever it is: all but epochs, which move, and records of imports."""
    found: dict[str, Any] = dict(contents(house.database))
    found["runs"] = sorted(([item for item in row if item[0] != "epoch"] for row in found["runs"]), key=str)
    found["audit"] = [row for row in found["audit"] if dict(row)["action"] != "import"]
    return found


class SmallBatches(OddDriver):
    max_batch = 64


async def test_an_import_that_is_larger_than_a_batch_is_whole_or_not_there(tmp_path):
    """S0-48, G1: also when the driver fails in the middle of it."""
    house, file = House(f"sqlite:///{tmp_path / 'first.db'}", JumpingClock()), tmp_path / "all.holdfast"
    await furnish(house)
    store = open_store(house.database)
    await store.open()
    report = await export_runs(store, file, clock=house.clock)
    await store.close()
    driver = SmallBatches()
    for after in (3, 0):
        keys = KeyValueStore(driver)
        await keys.open()
        if after:
            driver.do("fail", after=after)
            with pytest.raises(StoreError):
                await import_runs(file, keys, clock=house.clock)
            assert (await keys.counts()).runs == {}
        else:
            assert (await import_runs(file, keys, clock=house.clock)).runs == report.runs
        await keys.close()
    keys = KeyValueStore(driver)
    await keys.open()
    assert sum((await keys.counts()).runs.values()) == report.runs
    assert await violations(keys) == []
    await keys.close()
