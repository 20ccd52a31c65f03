"""Acting on many while the process that acts is killed: the same act finishes what was begun."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

from holdfast import Context, Engine, workflow
from holdfast.looking import LocalDesk
from holdfast.looking.acts import Options

SCRIPT = ROOT / "tests" / "support" / "scripts" / "killed_bulk.py"
RUNS = 35


@workflow
async def approval(ctx: Context) -> None:
    await ctx.receive("approved")


async def test_an_act_on_many_that_was_killed_is_finished_by_the_same_again(tmp_path: Path) -> None:
    """G2: each run is acted on once, and audited once."""
    address = f"sqlite:///{tmp_path / 'shop.db'}"
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
