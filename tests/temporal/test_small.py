"""The runtime on Temporal, in one short test on a real server; `make temporal` runs all of them."""

from __future__ import annotations

import pytest
from tests.temporal import server
from tests.temporal.server import missing

if missing():
    pytest.skip(missing(), allow_module_level=True)

from datetime import timedelta

from tests.temporal import flows

from holdfast import RunCancelled, RunFailed
from holdfast.errors import NoSuchRun, RunConflict, RunTerminal, UnknownQuery
from holdfast.temporal import TemporalEngine


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
