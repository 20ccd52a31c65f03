"""Acting on many while the process that acts is killed, or while others write: what was counted is what is done."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.paths import ROOT

from holdfast import Context, Engine, workflow
from holdfast.looking import LocalDesk, bulk
from holdfast.looking.acts import Options

SCRIPT = ROOT / "tests" / "support" / "scripts" / "killed_bulk.py"
WRITER = SCRIPT.with_name("racing_writer.py")
RUNS = 35
RACED = 64
WRITERS = 4


@workflow
async def approval(ctx: Context) -> None:
    await ctx.receive("approved")


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("empty_database"))
    return f"sqlite:///{tmp_path / 'shop.db'}"


async def test_an_act_on_many_that_was_killed_is_finished_by_the_same_again(address: str) -> None:
    """G2: each run is acted on once, and audited once. FACES 10, line 5."""
    async with Engine(address, workflows=[approval], run_workflows=False) as engine:
        for number in range(RUNS):
            await engine.start(approval, id=f"order-{number}")
    killed = subprocess.run([sys.executable, str(SCRIPT), address], capture_output=True, text=True)
    assert (killed.returncode, killed.stdout.split()) == (-signal.SIGKILL, ["10"]), killed.stderr
    async with Engine(address, workflows=[approval], run_workflows=False) as engine:
        desk = LocalDesk(engine.store, engine=engine)
        done = (await desk.count("status:paused")).n
        assert 10 <= done <= 20
        plan = await desk.select("pause", "workflow:approval")
        assert (plan.can, plan.cannot) == (RUNS - done, {"paused": done})
        [progress] = [each async for each in desk.bulk(plan.selection, Options(by="kim"))]
        assert (progress.changed, progress.cannot) == (plan.can, plan.cannot)
        assert (await desk.count("status:paused")).n == RUNS
        acts = [act.target for act in (await desk.audit(action="pause", limit=100)).items]
        assert len(acts) == len(set(acts)) == RUNS


async def test_a_dry_run_says_what_is_done_while_other_processes_write(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FACES 10, line 9: only what cannot be done any more may grow; no run that was started since is touched."""
    monkeypatch.setattr(bulk, "PAGE", 8)
    async with Engine(address, workflows=[approval], run_workflows=False) as engine:
        for number in range(RACED):
            await engine.start(approval, id=f"order-{number}")
        await engine.get("order-63").pause(by="lena")
        desk = LocalDesk(engine.store, engine=engine)
        plan = await desk.select("pause", "workflow:approval")
        assert (plan.matched, plan.can, plan.cannot) == (RACED, RACED - 1, {"paused": 1})
        with ExitStack() as stack:
            command = [sys.executable, str(WRITER), address]
            writers = [
                stack.enter_context(
                    subprocess.Popen(
                        [*command, str(number), str(RACED)],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                        env={**os.environ, "PYTHONPATH": str(ROOT)},
                    )
                )
                for number in range(WRITERS)
            ]  # fmt: skip
            for writer in writers:
                assert writer.stdout is not None
                assert await asyncio.to_thread(writer.stdout.readline) == "ready\n"
            pages = desk.bulk(plan.selection, Options(by="kim"))
            told = [await anext(pages)]
            for writer in writers:
                assert writer.stdin is not None
                writer.stdin.write("go\n")
                writer.stdin.flush()
            told += [each async for each in pages]
            for writer in writers:
                await asyncio.to_thread(writer.wait)
                assert writer.returncode == 0
        done = told[-1]
        assert (done.failed, done.finished) == ({}, True)
        assert done.changed + sum(done.cannot.values()) == plan.matched
        assert done.cannot.pop("paused") == plan.cannot["paused"]
        assert (done.changed + sum(done.cannot.values()), set(done.cannot) <= {"cancelled"}) == (plan.can, True)
        acts = [act.target for act in (await desk.audit(actor="kim", limit=200)).items]
        assert len(acts) == len(set(acts)) == done.changed
        assert not [run_id for run_id in acts if run_id.startswith("late")]
        late = await desk.heads("id:late*", limit=200)
        assert {head.status for head in late.items} == {"pending"}
        assert len(late.items) == RACED // 2
