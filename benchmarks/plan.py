"""What is measured: which workloads, on which systems and stores, and what holdfast is expected to reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

WORKLOADS = {
    "commits": "rows in commits of a plain loop: the limit",
    "msgspec": "a step's entry to JSON and back: the limit",
    "asyncio": "tasks made and awaited: the limit",
    "W1": "one run of 1,000 sequential steps",
    "W2": "1,000 runs x 10 steps in one process",
    "W3": "start to result of a one-step run",
    "W4": "2,000 runs finished after kill -9",
    "W5": "message round trips",
    "W6": "replay of 5,000 recorded steps",
    "W7": "10,000 and 100,000 suspended runs",
    "W8": "bytes stored per step",
    "W9": "a step's cost with 10^3 and 10^6 runs stored",
    "W10": "import, cold start, install size",
    "W11": "one run gathering 10,000 steps",
    "W12": "broadcast to 10,000 waiters",
    "W13": "W2 under a shared limit that never binds; one place that goes round",
}


@dataclass(frozen=True)
class System:
    """What is measured, and how its script is run."""

    name: str
    stores: tuple[str, ...]
    workloads: tuple[str, ...]
    durability: str
    environment: bool = True
    """Whether it has a virtual environment of its own."""
    packages: tuple[str, ...] = ()
    """What it needs from npm."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """The share of the work that is enough for a workload: the rate of a slow system needs fewer steps to be known."""

    @property
    def script(self) -> str:
        return f"on_{self.name}.py"


def _without(workloads: tuple[str, ...], *left_out: str) -> tuple[str, ...]:
    return tuple(workload for workload in workloads if workload not in left_out)


ALL = tuple(name for name in WORKLOADS if name.startswith("W"))
PEERS = ("W1", "W2", "W3", "W4", "W5", "W6", "W8", "W10")
SYSTEMS = (
    System("raw", ("sqlite", "postgres"), ("commits", "msgspec", "asyncio"), "full", environment=False),
    System("holdfast", ("sqlite", "postgres"), ALL, "full", environment=False),
    System("dbos", ("sqlite", "postgres"), PEERS, "default", scales={"W1": 0.5, "W2": 0.3, "W8": 0.3}),
    System("absurd", ("postgres",), _without(PEERS, "W4"), "default", scales={"W2": 0.3, "W8": 0.3}),
    System(
        "restate",
        ("own",),
        PEERS,
        "default",
        packages=("@restatedev/restate-server@1.7.12",),
        scales={"W2": 0.5},
    ),
    System(
        "temporal",
        ("own",),
        _without(PEERS, "W6"),
        "default",
        scales={"W1": 0.1, "W2": 0.2, "W3": 0.2, "W4": 0.1, "W5": 0.2, "W8": 0.2},
    ),
)
# Left out: absurd's W4 waits for its lease of 120 s; 5,000 activities in sequence (W6) take Temporal's server minutes.
NOT_ON = {
    ("raw", "postgres"): {"msgspec", "asyncio"},
    ("holdfast", "postgres"): {"W7", "W9", "W10"},
    ("dbos", "postgres"): {"W10"},
}
"""What a second store would only measure again, or (W7) is about one process's memory, or (W9) tests prove there."""


@dataclass(frozen=True)
class Target:
    """What holdfast is expected to reach."""

    store: str
    workload: str
    metric: str
    text: str
    met: Callable[[float], bool]
    per_raw: bool = False
    """Whether the ratio to the raw rate of the same run counts, and not the figure."""
    times: str = ""
    """The system that the figure is divided by, on the same store."""

    def __str__(self) -> str:
        return f"{self.workload} {self.store} {self.metric} {self.text}"


def at_least(limit: float) -> Callable[[float], bool]:
    return lambda value: value >= limit


def at_most(limit: float) -> Callable[[float], bool]:
    return lambda value: value <= limit


TARGETS = (
    Target("sqlite", "W1", "steps_per_second", ">= 0.8 of raw", at_least(0.8), per_raw=True),
    Target("sqlite", "W1", "slowdown_100_to_10000", "flat: <= 1.25", at_most(1.25)),
    Target("sqlite", "W2", "steps_per_second", ">= 10,000", at_least(10_000)),
    Target("sqlite", "W2", "steps_per_second", ">= 25 x DBOS", at_least(25), times="dbos"),
    Target("postgres", "W2", "steps_per_second", ">= 5,000", at_least(5_000)),
    Target("postgres", "W2", "steps_per_second", ">= 20 x DBOS", at_least(20), times="dbos"),
    Target("sqlite", "W3", "p50_ms", "<= 2", at_most(2)),
    Target("sqlite", "W4", "seconds", "< 1.5", at_most(1.5)),
    Target("sqlite", "W5", "round_trips_per_second", ">= 0.4 of raw", at_least(0.4), per_raw=True),
    Target("sqlite", "W5", "round_trips_per_second_100", ">= 5,000", at_least(5_000)),
    Target("sqlite", "W6", "seconds", "< 0.1", at_most(0.1)),
    Target("sqlite", "W7", "memory_mb_100000", "< 300", at_most(300)),
    Target("sqlite", "W7", "idle_cpu_percent_100000", "< 1", at_most(1)),
    Target("sqlite", "W7", "start_seconds_100000", "< 20", at_most(20)),
    Target("sqlite", "W7", "wake_seconds_100000", "< 20", at_most(20)),
    Target("sqlite", "W8", "bytes_per_step", "<= 200", at_most(200)),
    Target("sqlite", "W9", "growth", "<= 1.5", at_most(1.5)),
    Target("sqlite", "W10", "import_ms", "< 150", at_most(150)),
    Target("sqlite", "W11", "seconds", "< 2", at_most(2)),
    Target("sqlite", "W12", "seconds", "< 3", at_most(3)),
    Target("sqlite", "W13", "share_of_w2", ">= 0.6", at_least(0.6)),
    Target("postgres", "W13", "share_of_w2", ">= 0.5", at_least(0.5)),
    Target("postgres", "W13", "four_to_one", ">= 1", at_least(1)),
    Target("sqlite", "W13", "hand_overs_per_second", ">= 15", at_least(15)),
    Target("postgres", "W13", "hand_overs_per_second", ">= 15", at_least(15)),
)
