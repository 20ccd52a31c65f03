"""How a system's script is called and how it answers; standard library only: every environment has just its own system.

    python benchmarks/systems/on_dbos.py W2 --store sqlite --folder /tmp/x --scale 1

prints what it has to say, and last one line of JSON: {"metrics": {"steps_per_second": 143.0}, "settings": "..."}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any


@dataclass
class Job:
    """What is to be measured."""

    store: str
    """"sqlite", "postgres", or what the system has of its own."""
    folder: Path
    """An empty folder for this one call, on the disk that is measured."""
    url: str
    """An empty database for this one call, if the store is "postgres"."""
    scale: float
    """The share of the work that is done: 0.01 shows that a script works."""

    def times(self, count: int) -> int:
        """Give a count at this scale, at least 3."""
        return max(int(count * self.scale), 3)


Metrics = Mapping[str, float]
Workload = Callable[[Job], Metrics]


def at_once(workload: Callable[[Job], Coroutine[Any, Any, Metrics]]) -> Workload:
    """Make a plain function of an async workload."""
    return lambda job: asyncio.run(workload(job))


def footprint(imports: str) -> dict[str, float]:
    """W10: time to import a package in a fresh interpreter, beyond the interpreter's own; room for it and its needs."""
    packages = Path(sysconfig.get_path("purelib"))
    size = sum(size_of(entry) for entry in packages.iterdir() if not entry.name.startswith(_TOOLS))
    return {"import_ms": (seconds_of(imports) - seconds_of("pass")) * 1e3, "install_mb": size / 1e6}


_TOOLS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence", "__pycache__")


def seconds_of(code: str) -> float:
    """Give how long a fresh interpreter takes to run some code, of several times the median."""
    taken = []
    for _ in range(7):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        taken.append(time.perf_counter() - began)
    return median(taken)


def size_of(path: Path) -> int:
    """Give the bytes of a file, or of all files in a folder; 0 if it does not exist."""
    if path.is_dir():
        return sum(size_of(entry) for entry in path.iterdir())
    return path.stat().st_size if path.exists() else 0


def main(workloads: Mapping[str, Workload], settings: Callable[[Job], str]) -> None:
    """Run the workload that the command line names and print what it gives."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=workloads)
    parser.add_argument("--store", default="sqlite")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--url", default="")
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    job = Job(options.store, options.folder, options.url, options.scale)
    metrics = workloads[options.workload](job)
    print(json.dumps({"metrics": metrics, "settings": settings(job)}), flush=True)
