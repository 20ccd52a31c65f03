"""The lease of a worker: renewed from a thread that outlives neither its event loop nor its worker."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.waiting import soon

from holdfast import Context, Engine, workflow
from holdfast.contract.store import Store
from holdfast.engine.worker import lease
from holdfast.engine.worker.lease import LeaseKeeper
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing import Faults

SHORT = timedelta(milliseconds=300)


@workflow
async def waiting(ctx: Context) -> str:
    return await ctx.receive("go", str)


def lease_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast lease"]


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("database") if request.param == "postgres" else f"sqlite:///{tmp_path / 'shop.db'}"


@pytest.mark.leaves("task")
def test_a_worker_whose_event_loop_was_closed_hands_back_and_stops(
    address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B24 Its runs are free at once, not when the lease lapses, and it says so once."""

    async def forget_to_stop() -> None:
        engine = Engine(address, workflows=[waiting], lease=timedelta(seconds=3))
        await engine.open()
        await engine.start(waiting, id="order")

    async def claimed_at_once() -> str:
        async with Engine(address, workflows=[waiting], lease=timedelta(hours=1)) as engine:
            await engine.get("order").send("go", "gone")
            return await engine.get("order").result()

    caplog.set_level(logging.WARNING)
    before = {*threading.enumerate()}
    asyncio.run(forget_to_stop())
    assert lease_threads()
    assert soon(lambda: not {*threading.enumerate()} - before), {*threading.enumerate()} - before
    [said] = [record.getMessage() for record in caplog.records if record.name.startswith("holdfast")]
    assert "event loop was closed" in said
    assert "stop" in said
    assert list(tmp_path.glob("*-worker-*")) == []
    assert asyncio.run(claimed_at_once()) == "gone"


def test_a_loop_that_was_closed_is_told_of_no_lapse(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The store cannot be reached either: the keeper stops all the same, and says why it could not hand back."""
    told: list[str] = []

    async def keep() -> Store:
        store = SQLiteStore(tmp_path / "shop.db")
        await store.open()
        await store.join("w", SHORT)
        LeaseKeeper(store, "w", SHORT, lambda: told.append("lapsed")).start()
        await store.close()
        return store

    asyncio.run(keep())
    assert soon(lambda: not lease_threads())
    assert told == []
    assert [message for message in caplog.messages if "could not hand back" in message]


async def test_a_loop_that_is_blocked_for_long_is_complained_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B24 The lease is left to lapse; when the loop is back it is renewed, or the worker hears that it was lost."""
    monkeypatch.setattr("holdfast.engine.worker.lease._BLOCKED_FOR_GOOD", -1.0)
    store = SQLiteStore(tmp_path / "shop.db")
    renewed = Faults(store).watch("renew")
    await store.open()
    await store.join("w", SHORT)
    keeper = LeaseKeeper(store, "w", SHORT / 100, lambda: None)
    keeper.start()
    await asyncio.to_thread(soon, lambda: bool(caplog.messages))
    await asyncio.sleep(0.05)
    assert [message for message in caplog.messages if "blocked" in message] == caplog.messages[:1] == caplog.messages
    assert renewed == []
    monkeypatch.setattr("holdfast.engine.worker.lease._BLOCKED_FOR_GOOD", 3600.0)
    assert await asyncio.to_thread(soon, lambda: bool(renewed))
    keeper.stop()
    await store.close()


async def test_a_renewal_is_told_once_so_that_a_worker_does_not_take_its_own_for_work_of_others(tmp_path: Path) -> None:
    """Its commit is seen like one of another process, and would have an idle worker look around more often."""
    store = SQLiteStore(tmp_path / "shop.db")
    await store.open()
    await store.join("w", SHORT)
    keeper = LeaseKeeper(store, "w", SHORT / 100, lambda: None)
    assert not keeper.was_renewed()
    keeper.start()
    assert await asyncio.to_thread(soon, keeper.was_renewed)
    keeper.stop()
    keeper.was_renewed()
    assert not keeper.was_renewed()
    await store.close()


def hog_the_loop(caplog: pytest.LogCaptureFixture, named: int) -> bool:
    """Keep the event loop from making a round until it has been named so often."""
    return soon(lambda: len(caplog.records) == named)


async def test_what_blocks_the_event_loop_is_named_once_with_its_stack(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B24 After two seconds, at WARNING; a loop that is busy but makes its rounds is not complained of."""
    monkeypatch.setattr("holdfast.engine.worker.lease._NAMED_AFTER", 0.5)
    monkeypatch.setattr("holdfast.engine.worker.lease._LOOK_EVERY", 0.02)
    async with Engine(str(tmp_path / "shop.db"), workflows=[waiting]):
        await asyncio.sleep(0.1)
        assert caplog.messages == []
        for blocked in (1, 2):
            assert hog_the_loop(caplog, blocked)
            await asyncio.sleep(0.1)
            assert len(caplog.records) == blocked
    for record in caplog.records:
        assert record.levelno == logging.WARNING
        assert "hog_the_loop" in record.getMessage()
        assert "\n  File" in record.getMessage()
        assert "blocked" in record.getMessage()


def test_the_event_loop_is_named_after_two_seconds() -> None:
    """B24 Long before its runs are left to other workers."""
    assert lease._NAMED_AFTER == 2.0
    assert lease._LOOK_EVERY <= 0.5
    assert lease._BLOCKED_FOR_GOOD == 60.0
