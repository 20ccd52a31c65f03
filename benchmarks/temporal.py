"""Steps per second on a Temporal server, beside the same workflow written for Temporal by hand.

    python benchmarks/temporal.py [PAIRS [RUNS [STEPS]]]

Each measurement has a fresh development server; the two ways take turns, and the median of each is shown.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import PollerBehaviorAutoscaling, UnsandboxedWorkflowRunner, Worker

import holdfast
from holdfast import Context
from holdfast.temporal import TemporalEngine

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.temporal.server import temporal_server


async def add(a: int, b: int) -> int:
    return a + b


@holdfast.workflow
async def count(ctx: Context, times: int) -> int:
    number = 0
    for _ in range(times):
        number = await ctx.step(add, number, 1)
    return number


@activity.defn(name="add")
async def add_by_hand(a: int, b: int) -> int:
    return a + b


@workflow.defn
class CountByHand:
    """The same, for Temporal."""

    @workflow.run
    async def run(self, times: int) -> int:
        number = 0
        for _ in range(times):
            number = await workflow.execute_activity(
                add_by_hand, args=[number, 1], start_to_close_timeout=timedelta(hours=1)
            )
        return number


async def ours(address: str, runs: int, steps: int) -> tuple[float, float, float]:
    async with TemporalEngine(address, workflows=[count], stop_grace=timedelta(seconds=1)) as engine:
        assert await engine.execute(count, 1) == 1
        began = time.perf_counter()
        results = await asyncio.gather(*(engine.execute(count, steps) for _ in range(runs)))
        took = time.perf_counter() - began
        assert results == [steps] * runs
        run = await engine.start(count, steps)
        await run.result()
        client = await Client.connect(engine.address.target)
        events = [event async for event in client.get_workflow_handle(run.id).fetch_history_events()]
    return runs * steps / took, len(events) / steps, sum(event.ByteSize() for event in events) / steps


async def by_hand(address: str, runs: int, steps: int) -> tuple[float, float, float]:
    client = await Client.connect(address.removeprefix("temporal://").partition("/")[0])
    worker = Worker(
        client,
        task_queue="hand",
        workflows=[CountByHand],
        activities=[add_by_hand],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_workflow_tasks=200,
        max_concurrent_activities=1_000,
        workflow_task_poller_behavior=PollerBehaviorAutoscaling(),
        activity_task_poller_behavior=PollerBehaviorAutoscaling(),
    )

    async def one(name: str) -> int:
        return await client.execute_workflow(
            CountByHand.run, steps, id=name, task_queue="hand", request_eager_start=True
        )

    async with worker:
        await one("first")
        began = time.perf_counter()
        await asyncio.gather(*(one(f"run-{n}") for n in range(runs)))
        took = time.perf_counter() - began
        events = [event async for event in client.get_workflow_handle("first").fetch_history_events()]
    return runs * steps / took, len(events) / steps, sum(event.ByteSize() for event in events) / steps


def main(pairs: int = 5, runs: int = 100, steps: int = 10) -> None:
    measured: dict[str, list[tuple[float, float, float]]] = {"holdfast": [], "by hand": []}
    ways = [("holdfast", ours), ("by hand", by_hand)]
    for _ in range(pairs):
        for name, measure in ways:
            with temporal_server() as address:
                measured[name].append(asyncio.run(measure(address, runs, steps)))
        ways.reverse()  # each is the first of a pair as often as the other
    medians = {name: statistics.median(speed for speed, _, _ in figures) for name, figures in measured.items()}
    for name, figures in measured.items():
        speeds = ", ".join(f"{speed:.0f}" for speed, _, _ in figures)
        _, events, size = figures[0]
        print(f"{name:9} {medians[name]:.0f} steps/s ({speeds}), {events:.2f} events and {size:.0f} bytes a step")
    each = ", ".join(f"{one[0] / other[0]:.0%}" for one, other in zip(*measured.values(), strict=True))
    print(f"holdfast has {medians['holdfast'] / medians['by hand']:.0%} of the speed by hand ({each})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
