"""The benchmark: what holdfast does per second, against what its database file could do at most.

    python benchmarks/run.py                 the table, and benchmarks/results/latest.json
    python benchmarks/run.py --profile W1    where the time of one workload goes

Machines differ and are noisy, so every figure is the median of several rounds, and the raw commit rate of the same file
is measured between the workloads of the same round: read the ratio first.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import platform
import pstats
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import apsw
import workloads

HERE = Path(__file__).parent
PAIRS = 3
"""How often in a round the workload that is compared with the raw rate runs, with the raw rate between."""


@dataclass
class Result:
    """One line of the table."""

    workload: str
    what: str
    metric: str
    system: str = "holdfast"
    store: str = "sqlite"
    durability: str = "full"
    value: float = 0.0
    runs: list[float] = field(default_factory=list)
    vs_raw: float | None = None
    ratios: list[float] = field(default_factory=list)

    def add(self, value: float, raw: float | None = None) -> None:
        self.runs.append(round(value, 6))
        self.value = median(self.runs)
        if raw is not None:
            self.ratios.append(value / raw)
            self.vs_raw = round(median(self.ratios), 3)


def measure(rounds: int, scale: float, folder: Path) -> list[Result]:
    """Run every workload in every round, the raw rate before and after those that are compared with it."""
    steps, runs, history, starts = (max(int(n * scale), 10) for n in (1_000, 1_000, 10_000, 500))
    raw = Result("raw", "one row per commit, one thread", "commits_per_second", system="sqlite")
    grown = Result("raw-grown", "the same, the log at its working size", "commits_per_second", system="sqlite")
    one = Result("W1", f"one run of {steps:,} steps", "steps_per_second")
    many = Result("W2", f"{runs:,} runs x 10 steps", "steps_per_second")
    p50 = Result("W3", f"one-step run, start to result, {starts} times", "p50_ms")
    p99 = Result("W3", "the same", "p99_ms")
    again = Result("replay", f"{history:,} steps: open, replay, result", "seconds")
    turn = Result("replay", f"{history:,} steps: the turn alone", "turn_seconds", store="none")
    size = Result("size", "database bytes per step", "bytes_per_step", durability="any")
    for number in range(1, rounds + 1):
        here = folder / str(number)
        here.mkdir()
        print(f"\rround {number} of {rounds} ...", end="", file=sys.stderr, flush=True)
        raw.add(workloads.raw_commits(here, "full", steps))
        grown.add(workloads.raw_commits(here, "full", min(steps, 900), grown=True))
        for _ in range(PAIRS):
            compare(one, raw, workloads.one_run(here, "full", steps), here, steps)
        compare(many, raw, workloads.many_runs(here, "full", runs, 10), here, steps)
        taken = workloads.latencies(here, "full", starts)
        p50.add(taken[len(taken) // 2] * 1_000)
        p99.add(taken[len(taken) * 99 // 100] * 1_000)
        long = here / "long"
        long.mkdir()
        gc.collect()
        prepared = workloads.prepare_replay(long, history)
        size.add(prepared["bytes_per_step"])
        turn.add(prepared["turn_seconds"])
        gc.collect()
        again.add(workloads.replayed(long, "full", history))
    print("\r" + " " * 30 + "\r", end="", file=sys.stderr)
    return [raw, grown, one, many, p50, p99, again, turn, size]


def compare(result: Result, raw: Result, rate: float, folder: Path, commits: int) -> None:
    """Add a rate together with its ratio to the raw rate, measured before it and now after it."""
    before = raw.runs[-1]
    raw.add(workloads.raw_commits(folder, "full", commits))
    result.add(rate, (before + raw.runs[-1]) / 2)


def show(results: list[Result]) -> None:
    """Print the table."""
    print(f"{'workload':<9} {'what':<46} {'metric':<19} {'median':>10} {'of raw':>8}   spread")
    for result in results:
        ratio = f"{result.vs_raw:8.2f}" if result.vs_raw is not None else " " * 8
        spread = f"{_number(min(result.runs))} .. {_number(max(result.runs))}"
        name, value = f"{result.workload:<9} {result.what:<46} {result.metric:<19}", _number(result.value)
        print(f"{name} {value:>10} {ratio}   {spread}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def machine() -> dict[str, Any]:
    """Describe what the figures were measured on."""
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
    }


def profile(workload: str, durability: str, folder: Path, lines: int) -> None:
    """Print who spends the time of one workload: by file, by function, and by function with what it calls."""
    profiler = cProfile.Profile()
    profiler.enable()
    workloads.PROFILED[workload](folder, durability)
    profiler.disable()
    stats = pstats.Stats(profiler)
    by_file: dict[str, float] = {}
    for (file, _, name), (_, _, own, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        where = "/".join(Path(file).parts[-2:]) if file != "~" else name
        by_file[where] = by_file.get(where, 0.0) + own
    total = sum(by_file.values())
    for where, own in sorted(by_file.items(), key=lambda item: -item[1])[:lines]:
        print(f"{own:8.3f} s {own / total:6.1%}  {where}")
    stats.strip_dirs()
    stats.sort_stats("tottime").print_stats(lines)
    stats.sort_stats("cumulative").print_stats(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="make every workload smaller or larger")
    parser.add_argument(
        "--folder", type=Path, default=HERE, help="where the databases go; measure the disk you will use"
    )
    parser.add_argument("--profile", choices=workloads.PROFILED, help="profile one workload instead")
    parser.add_argument("--durability", choices=workloads.DURABILITY, default="full", help="for --profile")
    parser.add_argument("--lines", type=int, default=25, help="for --profile: how many lines")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "latest.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.folder) as folder:
        if options.profile:
            profile(options.profile, options.durability, Path(folder), options.lines)
            return
        results = measure(options.rounds, options.scale, Path(folder))
    show(results)
    rows = [{key: value for key, value in asdict(result).items() if key != "ratios"} for result in results]
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps({"machine": machine(), "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
