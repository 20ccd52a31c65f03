"""The figures in docs/design/performance.md, made of benchmarks/results/latest.json.

Every run of the benchmark that writes that file writes the page too; a test compares the two.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "latest.json"
PAGE = HERE.parent / "docs" / "design" / "performance.md"
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


def figures(written: dict[str, Any]) -> str:
    """Return the published part of the results as Markdown."""
    values = {(row["workload"], row["system"], row["store"], row["metric"]): row for row in written["results"]}

    def value(workload: str, metric: str, system: str = "holdfast", store: str = "sqlite") -> str:
        row = values.get((workload, system, store, metric))
        return "-" if row is None else _number(row["value"])

    lines = [
        "| | holdfast SQLite | holdfast PostgreSQL | DBOS SQLite | DBOS PostgreSQL | absurd | Restate | Temporal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for title, workload, metric in _ROWS:
        cells = " | ".join(value(workload, metric, *column) for column in _COLUMNS)
        lines.append(f"| {title} | {cells} |")
    per_raw = {row["workload"]: row["vs_raw"] for row in written["results"] if row["vs_raw"] and _of_holdfast(row)}
    return (
        "\n".join(lines)
        + f"""

Against a plain loop of one-row commits on the same file: W1 {per_raw.get("W1", "-")}, W5 {per_raw.get("W5", "-")}.
100,000 suspended runs (W7): started in {value("W7", "start_seconds_100000")} s, {value("W7", "memory_mb_100000")} MB,
{value("W7", "idle_cpu_percent_100000")} % of a processor, all woken in {value("W7", "wake_seconds_100000")} s.
A step beside 1,000,000 finished runs costs {value("W9", "growth")} times one beside 1,000 (W9).
10,000 steps gathered by one run: {value("W11", "seconds")} s (W11).
An event for 10,000 waiters: {value("W12", "seconds")} s (W12).
"""
    )


def _of_holdfast(row: dict[str, Any]) -> bool:
    return row["system"] == "holdfast" and row["store"] == "sqlite"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def published(page: str) -> str:
    """Return what stands between the markers of the page."""
    return page.partition(BEGIN)[2].partition(END)[0]


def publish() -> None:
    """Write the figures into the page."""
    page = PAGE.read_text()
    new = figures(json.loads(RESULTS.read_text()))
    PAGE.write_text(page.replace(BEGIN + published(page) + END, BEGIN + new + END))
