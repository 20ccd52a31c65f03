"""`holdfast bench`: how many steps this machine runs in a second, on a database that is deleted afterwards."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast import Context, Engine, activity, workflow  # at hand where annotations are looked up
from holdfast.cli.database import json_option
from holdfast.cli.output import emit, say
from holdfast.cli.progress import ProgressLine


class BenchView(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, in seconds, and how many a second."""

    runs: int
    steps: int
    """Of each run."""
    seconds: float
    steps_per_second: float
    start_median: float
    """How long it took until a start was durable, one after another."""
    bytes_per_step: float


@click.command("bench", short_help="Measure what this machine does in a second.")
@click.option("--runs", default=200, show_default=True, type=click.IntRange(1, 100_000), help="How many runs.")
@click.option("--steps", default=10, show_default=True, type=click.IntRange(1, 1_000), help="How many steps of each.")
@click.option("--dir", "folder", type=click.Path(file_okay=False, exists=True), help="Where; the disk matters.")
@json_option
def bench_command(runs: int, steps: int, folder: str | None, as_json: bool) -> None:
    """Measure what this machine does in a second: runs of empty steps on a new SQLite file, deleted afterwards.

    \b
    Example: holdfast bench --runs 50
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=folder) as place:
        view = asyncio.run(_measured(Path(place) / "bench.db", runs, steps))
    if as_json:
        emit("holdfast.bench/1", view)
        return
    say(f"{view.steps_per_second:,.0f} steps a second: {runs:,} runs of {steps:,} steps in {view.seconds:.1f} s")
    say(f"{view.start_median * 1000:.1f} ms until a start is durable (median), one after another")
    say(f"{view.bytes_per_step:,.0f} bytes a step on disk")


async def _measured(file: Path, runs: int, steps: int) -> BenchView:
    @activity
    async def empty(number: int) -> int:
        return number

    @workflow
    async def bench(ctx: Context) -> None:
        for number in range(steps):
            await ctx.step(empty, number)

    async with Engine(f"sqlite:///{file}", workflows=[bench]) as engine:
        starts: list[float] = []
        for _ in range(min(runs, 20)):
            began = time.perf_counter()
            run = await engine.start(bench)
            starts.append(time.perf_counter() - began)
            await run.result()
        before, progress = _size(file), ProgressLine("running", runs, "runs")
        began, done = time.perf_counter(), 0

        async def one() -> None:
            nonlocal done
            await engine.execute(bench)
            done += 1
            progress.show(done)

        waiting: list[Any] = [one() for _ in range(runs)]
        await asyncio.gather(*waiting)
        seconds = time.perf_counter() - began
        progress.end()
    return BenchView(
        runs=runs,
        steps=steps,
        seconds=seconds,
        steps_per_second=runs * steps / seconds,
        start_median=statistics.median(starts),
        bytes_per_step=max(_size(file) - before, 0) / (runs * steps),
    )


def _size(file: Path) -> int:
    return file.stat().st_size
