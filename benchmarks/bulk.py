"""Acting on very many runs: how long it takes to pause them, and that what a kill leaves is finished by the same again.

    python benchmarks/bulk.py sqlite:///bulk.db            # 10,000 runs; the file must not be there yet
    python benchmarks/bulk.py postgresql://... --runs 1000
    python benchmarks/bulk.py postgres                     # on a server of its own, started and ended

The runs wait for a message. A process begins to pause them and is killed when half of them are paused; the same act,
by this process, pauses the rest. Then they are resumed and paused once more, without a kill, which is measured. It ends
with 1 if a run was acted on twice, or not at all. Times are shown, and judge nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time

from holdfast import Context, Engine, workflow
from holdfast.looking import LocalDesk
from holdfast.looking.acts import Options
from holdfast.looking.views import BulkProgress

RUNS = 10_000


@workflow
async def approval(ctx: Context) -> None:
    """Wait for a person."""
    await ctx.receive("approved")


async def act(desk: LocalDesk, action: str, die_at: int | None = None) -> BulkProgress:
    """Act on all runs; be killed once so many were acted on."""
    plan = await desk.select(action, "workflow:approval")
    began = told = time.perf_counter()
    worked = time.process_time()
    longest = 0.0
    done = BulkProgress(action=action, changed=0, finished=True)
    async for done in desk.bulk(plan.selection, Options(by="kim", reason="INC-7")):
        longest, told = max(longest, time.perf_counter() - told), time.perf_counter()
        if die_at is not None and done.changed >= die_at:
            os.kill(os.getpid(), signal.SIGKILL)
    spent = time.perf_counter() - began
    print(
        f"{action}: {done.changed:,} of {plan.can:,} in {spent:.1f} s, {done.changed / spent:,.0f} a second, "
        f"{time.process_time() - worked:.1f} s of processor in this process, "
        f"a page at most {longest:.2f} s, cannot {done.cannot}",
        flush=True,
    )
    assert done.changed == plan.can
    return done


async def main(address: str, runs: int, die_at: int | None) -> int:
    """Start the runs, let a process be killed while it pauses them, pause the rest; or be that process."""
    async with Engine(address, workflows=[approval], run_workflows=False, retention=None) as engine:
        desk = LocalDesk(engine.store, engine=engine)
        if die_at is not None:
            await act(desk, "pause", die_at)
            return 2
        for first in range(0, runs, 500):
            ids = range(first, min(first + 500, runs))
            await asyncio.gather(*(engine.start(approval, id=f"order-{number}") for number in ids))
        child = [sys.executable, __file__, address, "--runs", str(runs), "--die-at", str(runs // 2)]
        killed = await asyncio.to_thread(subprocess.run, child, check=False)
        left = await audit(desk)  # a count of runs ends where it takes long
        print(f"killed with {-killed.returncode} when {left:,} were paused")
        rest = await act(desk, "pause")
        audited = await audit(desk)
        await act(desk, "resume")
        again = await act(desk, "pause")
        good = left + rest.changed == again.changed == runs and audited == runs and killed.returncode == -signal.SIGKILL
        print("every run was acted on once" if good else "NOT every run was acted on once")
        return int(not good)


async def audit(desk: LocalDesk) -> int:
    """Return how many different runs the audit trail has as paused, each of them once."""
    targets: list[str] = []
    before: int | None = None
    while True:
        page = await desk.audit(action="pause", limit=200, before=before)
        targets += [act.target for act in page.items]
        before = page.next
        if before is None:
            return len(targets) if len(targets) == len(set(targets)) else -1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Pause very many runs, be killed midway, and finish it.")
    parser.add_argument("address")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--die-at", type=int, help="be killed when so many are paused")
    given = parser.parse_args()
    import environments  # tests import the rest, and have servers of their own

    with environments.address_of(given.address) as address:
        sys.exit(asyncio.run(main(address, given.runs, given.die_at)))
