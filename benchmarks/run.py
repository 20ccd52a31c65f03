"""The benchmark: holdfast beside its peers and beside what this machine could do at most, all measured in one run.

    make bench                                       everything, about an hour with the peers
    python benchmarks/run.py --systems holdfast raw  without the peers, about ten minutes
    python benchmarks/run.py --only W1 W2 --rounds 5
    python benchmarks/run.py --profile W2            where the time of one workload goes

Every figure is the median of several rounds, each in a process and a database of its own; rounds take turns, so that a
noisy minute meets every system. Machines differ: read the ratios. The table goes to the terminal, everything to
benchmarks/results/latest.json, and the published part of that to the documents.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import environments
import figures
import profiles
from plan import ALL, NOT_ON, SYSTEMS, TARGETS, WORKLOADS, System, Target

HERE = Path(__file__).parent
TIME_LIMIT = 300
_IDENTITY = ("workload", "system", "store", "durability", "metric")


@dataclass
class Result:
    """One figure: its rounds, and the raw rate that was measured beside each of them, if any."""

    workload: str
    system: str
    store: str
    durability: str
    metric: str
    scale: float
    settings: str
    runs: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        return median(self.runs)

    @property
    def vs_raw(self) -> float | None:
        return median(self.ratios) if self.ratios else None

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "system": self.system,
            "store": self.store,
            "durability": self.durability,
            "metric": self.metric,
            "value": round(self.value, 4),
            "runs": [round(value, 4) for value in self.runs],
            "vs_raw": None if self.vs_raw is None else round(self.vs_raw, 3),
            "scale": self.scale,
            "settings": self.settings,
        }


class Results:
    """All figures, in the order in which they were first measured."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, str, str, str], Result] = {}
        self.failures: dict[tuple[str, str, str], str] = {}

    def add(self, system: System, store: str, workload: str, answer: dict[str, Any]) -> None:
        metrics = dict(answer["metrics"])
        raw = metrics.pop("raw", None)
        if "steps_per_second_of_100" in metrics:
            metrics["slowdown_100_to_10000"] = metrics["steps_per_second_of_100"] / metrics["steps_per_second_of_10000"]
        for metric, value in metrics.items():
            key = (workload, system.name, store, metric)
            result = self._all.get(key)
            if result is None:
                scale = system.scales.get(workload, 1.0)
                result = Result(workload, system.name, store, system.durability, metric, scale, answer["settings"])
                self._all[key] = result
            result.runs.append(value)
            if raw and metric in ("steps_per_second", "round_trips_per_second"):
                result.ratios.append(value / raw)

    def take_over(self, written: dict[str, Any]) -> None:
        """Add the figures of an earlier run, of what was not measured in this one."""
        measured = {(result.workload, result.system, result.store) for result in self._all.values()}
        for row in written["results"]:
            if (row["workload"], row["system"], row["store"]) in measured:
                continue
            result = Result(*(row[name] for name in _IDENTITY), scale=row["scale"], settings=row["settings"])
            result.runs, result.ratios = row["runs"], [row["vs_raw"]] if row["vs_raw"] is not None else []
            self._all[row["workload"], row["system"], row["store"], row["metric"]] = result
        for row in written["failures"]:
            self.failures.setdefault((row["system"], row["store"], row["workload"]), row["error"])

    def get(self, workload: str, system: str, store: str, metric: str) -> Result | None:
        return self._all.get((workload, system, store, metric))

    def __iter__(self) -> Iterator[Result]:
        order = list(WORKLOADS)
        return iter(sorted(self._all.values(), key=lambda result: order.index(result.workload)))


@dataclass
class Bench:
    """One run of the benchmark."""

    folder: Path
    scale: float
    server: environments.Database

    def measure(self, system: System, store: str, workload: str) -> dict[str, Any]:
        """Run one workload once, in a process of its own, and return what it answers.

        Raises:
            RuntimeError: it failed, with the end of what it said.
        """
        with tempfile.TemporaryDirectory(prefix="w-", dir=self.folder) as folder, contextlib.ExitStack() as stack:
            url = stack.enter_context(self.server.database()) if store == "postgres" else ""
            command = [
                str(environments.python_of(system)), str(HERE / "systems" / system.script), workload,
                "--store", store, "--folder", folder, "--url", url,
                "--scale", str(self.scale * system.scales.get(workload, 1.0)),
            ]  # fmt: skip
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
            ) as process:
                try:
                    output, errors = process.communicate(timeout=TIME_LIMIT)
                except BaseException as error:
                    os.killpg(process.pid, signal.SIGKILL)  # and whatever it has started
                    if isinstance(error, subprocess.TimeoutExpired):
                        raise RuntimeError(f"not done after {TIME_LIMIT} s") from None
                    raise
            if process.returncode != 0:
                raise RuntimeError((errors or output).strip()[-600:])
            answer: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
            return answer


def jobs(names: list[str], stores: list[str], only: list[str]) -> list[tuple[System, str, str]]:
    """Return what is to be measured in one round."""
    return [
        (system, store, workload)
        for workload in WORKLOADS
        for system in SYSTEMS
        if system.name in names and workload in system.workloads and (not only or workload in only)
        for store in system.stores
        if (store in stores or store == "own") and workload not in NOT_ON.get((system.name, store), ())
    ]


def prepare(results: Results, wanted: list[tuple[System, str, str]]) -> set[str]:
    """Install the peers, and return the names of those that cannot be, which is noted."""
    missing = set()
    for system in {system.name: system for system, _, _ in wanted}.values():
        try:
            environments.prepare(system)
        except RuntimeError as error:
            missing.add(system.name)
            results.failures[system.name, "any", "all"] = f"cannot be installed: {error}"
    return missing


def measure_all(bench: Bench, wanted: list[tuple[System, str, str]], rounds: int, results: Results) -> None:
    """Measure everything in every round; what fails is noted and not tried again."""
    began = time.monotonic()
    for number in range(1, rounds + 1):
        for system, store, workload in wanted:
            if (system.name, store, workload) in results.failures:
                continue
            minutes = (time.monotonic() - began) / 60
            text = f"round {number} of {rounds}, {minutes:.0f} min: {workload} on {system.name}, {store}"
            print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)
            try:
                results.add(system, store, workload, bench.measure(system, store, workload))
            except RuntimeError as error:
                results.failures[system.name, store, workload] = str(error)
    print("\r" + " " * 78 + "\r", end="", file=sys.stderr)


def show(results: Results) -> None:
    """Print the table, then how holdfast stands against its targets."""
    last = ""
    for result in results:
        if result.workload != last:
            last = result.workload
            print(f"\n{last}  {WORKLOADS[last]}")
        ratio = f"{result.vs_raw:6.2f} of raw" if result.vs_raw is not None else " " * 13
        spread = f"{_number(min(result.runs))} .. {_number(max(result.runs))}"
        where = f"{result.system}, {result.store}"
        print(f"    {where:<20} {result.metric:<34} {_number(result.value):>10} {ratio}   {spread}")
    for (system, store, workload), error in results.failures.items():
        print(f"\n{workload} on {system}, {store}: not measured\n    " + error.replace("\n", "\n    "))
    print("\nTargets")
    for target in TARGETS:
        value = reached(results, target)
        if value is not None:
            name = f"{target.workload} {target.store} {target.metric}"
            print(f"    {'met   ' if target.met(value) else 'MISSED'} {name:<46} {target.text:<14} {_number(value)}")


def reached(results: Results, target: Target) -> float | None:
    """Return what a target is judged by, None if it was not measured."""
    result = results.get(target.workload, "holdfast", target.store, target.metric)
    if result is None:
        return None
    if target.per_raw:
        return result.vs_raw
    if target.times:
        peer = results.get(target.workload, target.times, target.store, target.metric)
        return result.value / peer.value if peer is not None else None
    return result.value


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def machine() -> dict[str, Any]:
    """Describe what the figures were measured on."""
    model = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **environments.versions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [system.name for system in SYSTEMS]
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="make every workload smaller, to see that it works")
    parser.add_argument("--systems", nargs="+", choices=names, default=names, metavar="SYSTEM", help=", ".join(names))
    parser.add_argument("--stores", nargs="+", choices=("sqlite", "postgres"), default=["sqlite", "postgres"])
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=[], metavar="WORKLOAD", help="W1 W2 ...")
    parser.add_argument(
        "--folder", type=Path, default=HERE, help="where the databases go; measure the disk you will use"
    )
    parser.add_argument("--output", type=Path, default=figures.RESULTS)
    parser.add_argument("--add", action="store_true", help="keep what the file has of everything not measured now")
    parser.add_argument("--profile", choices=ALL, help="profile one workload of holdfast instead")
    parser.add_argument("--lines", type=int, default=25, help="for --profile: how many lines")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.folder) as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        if options.profile:
            profiles.profile(options.profile, folder, options.scale, options.lines)
            return
        wanted = jobs(options.systems, options.stores, options.only)
        results = Results()
        missing = prepare(results, wanted)
        wanted = [job for job in wanted if job[0].name not in missing]
        uses_server = any(store == "postgres" for _, store, _ in wanted)
        server = stack.enter_context(environments.postgres()) if uses_server else environments.NO_DATABASE
        measure_all(Bench(folder, options.scale, server), wanted, options.rounds, results)
    if options.add and options.output.exists():
        results.take_over(json.loads(options.output.read_text()))
    show(results)
    options.output.parent.mkdir(exist_ok=True)
    written = {
        "machine": machine(),
        "results": [result.as_json() for result in results],
        "targets": [
            {"target": str(each), "value": round(value, 4), "met": each.met(value)}
            for each in TARGETS
            if (value := reached(results, each)) is not None
        ],
        "failures": [
            {"system": system, "store": store, "workload": workload, "error": error}
            for (system, store, workload), error in results.failures.items()
        ],
    }
    options.output.write_text(json.dumps(written, indent=1) + "\n")
    if options.output == figures.RESULTS:
        figures.publish()


if __name__ == "__main__":
    main()
