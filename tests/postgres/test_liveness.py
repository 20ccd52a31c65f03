"""Workers that are alive, hang or died by the server's clock."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
from tests.support.postgres_cases import Open
from tests.support.waiting import eventually

from holdfast.contract.operations import (
    Started,
)
from holdfast.contract.turns import StartRun
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    new_run,
    one,
)


async def test_who_hangs_is_not_taken_for_dead_because_of_a_time_zone(another: Open) -> None:
    """G4: a worker that hung beyond its lease never convicts a step; begun is compared as text."""
    here = await another("&options=-c%20TimeZone%3DAsia/Tokyo")
    there = await another("&options=-c%20TimeZone%3DAmerica/Lima")
    await here.join("w", timedelta(milliseconds=50))
    run = new_run(owner="w")
    await one(here, StartRun(run=run), Started)
    await asyncio.sleep(0.1)
    assert len(await there.take_over(NOW)) == 1
    await there.join("v", LEASE)
    [claimed] = await there.claim("v", NOW, 1, ["order"])
    assert claimed.lost == "lapse"


async def test_the_clock_follows_the_server_without_a_worker(store: PostgresStore) -> None:
    """G9: a client whose clock went wrong, and that renews no lease, is told the time all the same."""
    hour = 3600 * 10**6
    store._clock._offset -= hour
    store._clock._told -= hour
    assert store._clock.stale

    def is_told() -> bool:
        store.changed()
        return not store._clock.stale

    await eventually(is_told)
    assert abs(store.clock.now() - time.time_ns() // 1000) < 10**6


async def test_a_clock_that_was_put_back_keeps_nobody_from_starting_runs(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G9: keys of runs are made of the time; those of a large batch are taken."""
    await store.apply([StartRun(run=new_run()) for _ in range(500)])
    before = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: before() - 3600 * 10**9)
    for _ in range(3):
        assert isinstance(await one(store, StartRun(run=new_run()), Started), Started)
