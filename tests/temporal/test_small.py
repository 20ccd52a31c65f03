"""The runtime on Temporal, in two short tests on a real server; `make temporal` runs all of them."""

from __future__ import annotations

import pytest
from tests.support.waiting import eventually
from tests.temporal import server
from tests.temporal.server import missing

if missing():
    pytest.skip(missing(), allow_module_level=True)

from datetime import timedelta

from tests.temporal import flows, moving_flows

from holdfast import Engine, RunCancelled, RunFailed
from holdfast.errors import Moved, NoSuchRun, RunConflict, RunTerminal, UnknownQuery
from holdfast.moving.mover import Mover
from holdfast.stores import open_store
from holdfast.temporal import TemporalEngine
from holdfast.temporal.client.target import MoveTarget


async def test_the_same_definitions_run_on_a_real_server():
    """S3-16"""
    with server.temporal_server() as address:
        options = {
            "lease": timedelta(minutes=1),
            "call_patience": timedelta(minutes=1),
            "stop_grace": timedelta(milliseconds=100),
        }
        async with TemporalEngine(address, workflows=flows.EVERY, **options) as engine:
            run = await engine.start(flows.talk, id="talk")
            assert await engine.execute(flows.parent) == [101, "ChildFailed", True, 103]

            async def timed_out() -> bool:
                return bool(await run.query("got") == 1)

            await eventually(timed_out)
            await run.send("x", 5)
            await run.send("b", "early")
            assert await run.ask("ask", 41) == 42
            assert await run.result() == ["none", 5, ["b", "early"]]
            assert (await engine.start(flows.talk, id="talk")).id == "talk"
            with pytest.raises(RunConflict):
                await engine.start(flows.kid, 1, id="talk")
            with pytest.raises(RunTerminal):
                await run.send("x", 6)
            with pytest.raises(UnknownQuery, match="it answers: 'got'"):
                await run.query("nothing")
            with pytest.raises(NoSuchRun):
                await engine.get("nobody").status()
            failing = await engine.start(flows.saga, True)
            with pytest.raises(RunFailed) as failed:
                await failing.result()
            assert isinstance(failed.value.__cause__, ValueError)
            cancelled = await engine.start(flows.cleaning)
            await cancelled.cancel()
            with pytest.raises(RunCancelled):
                await cancelled.result()


async def test_a_run_of_a_database_goes_on_there(tmp_path):
    """S3-16: moved in the middle of its code; what was sent before and after arrives."""
    database = f"sqlite:///{tmp_path}/old.db"
    with server.temporal_server() as address:
        async with Engine(database, workflows=moving_flows.EVERY) as old:
            run = await old.start(moving_flows.counter, 2, id="count")
            await run.send("n", 1)

            async def waits() -> bool:
                return len(await old.store.history(1)) > 3

            await eventually(waits)
            store = open_store(database, "process")
            await store.open()
            report = await Mover(store, await MoveTarget.connect(address), by="ada").move()
            await store.close()
            assert (report.moved, report.left) == (["count"], {})
            with pytest.raises(Moved):
                await run.send("n", 2)
        options = {"lease": timedelta(minutes=1), "stop_grace": timedelta(milliseconds=100)}
        async with TemporalEngine(address, workflows=moving_flows.EVERY, **options) as engine:
            moved = engine.get("count", moving_flows.counter)
            await moved.send("n", 2)
            assert await moved.result() == [1, 2]
