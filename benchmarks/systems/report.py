"""How a system's script is called and how it answers; standard library only: every environment has just its own system.

    python benchmarks/systems/on_dbos.py W2 --store sqlite --folder /tmp/x --scale 1

prints what it has to say, and last one line of JSON: {"metrics": {"steps_per_second": 143.0}, "settings": "..."}.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


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
