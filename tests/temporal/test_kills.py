"""Kill -9 of the worker at every event of a run: no recorded step again, no message lost or taken twice."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from datetime import timedelta

import pytest
from tests.support.paths import ROOT
from tests.support.waiting import eventually
from tests.temporal import flows

from holdfast import RunFailed
from holdfast.temporal import TemporalEngine

pytestmark = [pytest.mark.temporal, pytest.mark.leaves("process")]  # the server that the tests of the file share
SCRIPT = ROOT / "tests" / "temporal" / "worker.py"


def begun(address: str, folder) -> subprocess.Popen[bytes]:
    """Start a worker in a process of its own."""
    environment = {**os.environ, "HOLDFAST_TEST_NOTES": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, str(SCRIPT), address], env=environment)


@pytest.mark.parametrize("fail", [False, True])
async def test_a_run_whose_worker_is_killed_at_every_event_does_nothing_recorded_again(server, tmp_path, fail):
    """G1"""
    options = {
        "run_workflows": False,
        "workflows": flows.EVERY,
        "lease": timedelta(seconds=2),
        "call_patience": timedelta(minutes=1),
    }
    async with TemporalEngine(server, workflows=flows.EVERY, run_workflows=False, **options) as client:
        run = await client.start(flows.everything, fail)
        handle = client._client.handle(run.id)
        await run.send("word", "said", id="once")
        seen = kills = 0
        while (await handle.describe()).status == 1:
            worker = begun(server, tmp_path)
            try:
                async with asyncio.timeout(120):
                    while True:
                        described = await handle.describe()
                        if described.history_length > seen or described.status != 1:
                            break
                        await asyncio.sleep(0.01)
                seen, kills = (await handle.describe()).history_length, kills + 1
            finally:
                worker.kill()
                worker.wait()
        assert kills > 5
        worker = begun(server, tmp_path)
        try:
            if fail:
                with pytest.raises(RunFailed):
                    await run.result()
            else:
                assert await run.result() == ["first", "2", "101", "said"]
            made = await eventually(lambda: run.steps())
        finally:
            worker.kill()
            worker.wait()
    ran = Counter((tmp_path / "notes").read_text().split())
    # A body may run again only if it was lost before its end was recorded: never more often than its attempts.
    for step in made:
        assert step.attempts <= kills + 1
    assert ran["first"] >= 1
