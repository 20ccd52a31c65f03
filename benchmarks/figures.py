"""The figures in docs/design/performance.md and docs/comparison.md, made of benchmarks/results/latest.json.

Every run of the benchmark that writes that file writes the pages too; a test compares them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "latest.json"
DOCS = HERE.parent / "docs"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"

_COLUMNS = (
    ("holdfast", "sqlite"),
    ("holdfast", "postgres"),
    ("dbos", "sqlite"),
    ("dbos", "postgres"),
    ("absurd", "postgres"),
    ("restate", "own"),
    ("temporal", "own"),
)
_ROWS = (
    ("W1 steps/s, one run", "W1", "steps_per_second"),
    ("W1 with local activities", "W1", "steps_per_second_local"),
    ("W2 steps/s, 1,000 runs", "W2", "steps_per_second"),
    ("W2 with local activities", "W2", "steps_per_second_local"),
    ("W3 start to result, p50 ms", "W3", "p50_ms"),
    ("W4 2,000 runs after kill -9, s", "W4", "seconds"),
    ("W5 round trips/s, one run", "W5", "round_trips_per_second"),
    ("W5 round trips/s, 100 runs", "W5", "round_trips_per_second_100"),
    ("W6 replay of 5,000 steps, s", "W6", "seconds"),
    ("W8 bytes per step", "W8", "bytes_per_step"),
    ("W10 import, ms", "W10", "import_ms"),
)


class Figures:
    """Results, as cells of a table."""

    def __init__(self, written: dict[str, Any]) -> None:
        self._rows = {(row["workload"], row["system"], row["store"], row["metric"]): row for row in written["results"]}

    def value(self, workload: str, metric: str, system: str = "holdfast", store: str = "sqlite") -> str:
        """Return a figure, "-" if it was not measured."""
        row = self._rows.get((workload, system, store, metric))
        return "-" if row is None else _number(row["value"])

    def per_raw(self, workload: str, metric: str) -> str:
        """Return the ratio of holdfast on SQLite to the raw rate beside it."""
        row = self._rows.get((workload, "holdfast", "sqlite", metric))
        return "-" if row is None else str(row["vs_raw"])


def of_performance(figures: Figures) -> str:
    """Return what docs/design/performance.md publishes."""
    value = figures.value
    lines = [
        "| | holdfast SQLite | holdfast PostgreSQL | DBOS SQLite | DBOS PostgreSQL | absurd | Restate | Temporal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for title, workload, metric in _ROWS:
        cells = " | ".join(value(workload, metric, *column) for column in _COLUMNS)
        lines.append(f"| {title} | {cells} |")
    table = "\n".join(lines)
    return f"""{table}

Against a plain loop of one-row commits on the same file: W1 {figures.per_raw("W1", "steps_per_second")}, \
W5 {figures.per_raw("W5", "round_trips_per_second")}.
100,000 suspended runs (W7): started in {value("W7", "start_seconds_100000")} s, {value("W7", "memory_mb_100000")} MB,
{value("W7", "idle_cpu_percent_100000")} % of a processor, all woken in {value("W7", "wake_seconds_100000")} s.
A step beside 1,000,000 finished runs costs {value("W9", "growth")} times one beside 1,000 (W9).
10,000 steps gathered by one run: {value("W11", "seconds")} s (W11).
An event for 10,000 waiters: {value("W12", "seconds")} s (W12).
"""


def of_comparison(figures: Figures) -> str:
    """Return what docs/comparison.md publishes."""
    columns = [column for column in _COLUMNS if column not in (("dbos", "sqlite"), ("absurd", "postgres"))]
    lines = [
        "| | holdfast SQLite | holdfast PostgreSQL | DBOS PostgreSQL | Restate | Temporal |",
        "|---|---|---|---|---|---|",
    ]
    for title, workload, metric in (
        ("steps per second, one run", "W1", "steps_per_second"),
        ("steps per second, 1,000 runs", "W2", "steps_per_second"),
        ("start to result, median, ms", "W3", "p50_ms"),
        ("message round trips per second, one run", "W5", "round_trips_per_second"),
        ("replay of 5,000 recorded steps, s", "W6", "seconds"),
        ("bytes stored per step", "W8", "bytes_per_step"),
    ):
        cells = [figures.value(workload, metric, *column) for column in columns]
        local = figures.value(workload, f"{metric}_local", "temporal", "own")
        cells[-1] += f"; {local}" if local != "-" else ""
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


PAGES = {DOCS / "design" / "performance.md": of_performance, DOCS / "comparison.md": of_comparison}


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def published(page: str) -> str:
    """Return what stands between the markers of the page."""
    return page.partition(BEGIN)[2].partition(END)[0]


def publish() -> None:
    """Write the figures into the pages."""
    figures = Figures(json.loads(RESULTS.read_text()))
    for path, text in PAGES.items():
        page = path.read_text()
        path.write_text(page.replace(BEGIN + published(page) + END, BEGIN + text(figures) + END))
