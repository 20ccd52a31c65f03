"""`holdfast stats --by`: how often runs and steps ended, how long they took, and which steps fail most."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.cli.database import looking, zone
from holdfast.cli.output import emit, say, table

if TYPE_CHECKING:
    from holdfast.looking.about.figures import FiguresView, FigureView

LAST = {
    "1h": timedelta(hours=1), "6h": timedelta(hours=6), "24h": timedelta(days=1), "7d": timedelta(days=7),
    "30d": timedelta(days=30), "90d": timedelta(days=90),
}  # fmt: skip
_UNITS = ((1e-3, "us", 1e6), (1.0, "ms", 1e3), (120.0, "s", 1.0), (7_200.0, "min", 1 / 60), (172_800.0, "h", 1 / 3_600))


def show_figures(url: str | None, by: str, last: str, workflow: str | None, as_json: bool) -> None:
    """Write the figures of the last hours or days."""
    found = looking(url, lambda desk: desk.figures(last=LAST[last], workflow=workflow, by=by))
    if as_json:
        emit("holdfast.figures/1", found)
        return
    rows = [_row(each, found) for each in found.items if _counted(each)]
    if not rows:
        say("nothing was counted in that time; workers add what they counted every 10 s")
        return
    if by == "step":
        table(("STEP", "WORKFLOW", "COMPLETED", "FAILED", "RETRIED", "LOST", "P50", "P95", "LAST ERROR"), rows)
    else:
        first = "WORKFLOW" if by == "workflow" else "FROM"
        table((first, "COMPLETED", "FAILED", "CANCELLED", "P50", "P95", "CLAIMED AFTER, P50", "P95"), rows)
    if found.partial:
        say(f"there was too much to add up: only from {found.since:%Y-%m-%d %H:%M} UTC on", err=True)


def _counted(each: FigureView) -> int:
    return each.completed + each.failed + each.cancelled + each.retried + each.lost + each.claimed


def _row(each: FigureView, found: FiguresView) -> tuple[str, ...]:
    took = (duration(each.p50), duration(each.p95))
    if found.by == "step":
        counts = (each.completed, each.failed, each.retried, each.lost)
        return each.step, each.workflow, *(f"{count:,}" for count in counts), *took, each.error_type
    ends = tuple(f"{count:,}" for count in (each.completed, each.failed, each.cancelled))
    first = each.workflow
    if each.at is not None:
        first = f"{each.at.astimezone(zone()):%Y-%m-%d %H:%M}"
    return first, *ends, *took, duration(each.claim_p50), duration(each.claim_p95)


def duration(seconds: float | None) -> str:
    """Return an estimated duration: two digits and its unit."""
    if seconds is None:
        return "-"
    for most, unit, factor in _UNITS:
        if seconds < most:
            return f"{seconds * factor:.2g} {unit}" if seconds * factor < 100 else f"{seconds * factor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"
