"""Figures in SQL: each is added to its minute and to its hour, and sums read at most SCAN_BUDGET rows."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.clock import Instant
from holdfast.contract.figures import HOUR, MINUTE, Figure, FigureFilter, FigurePage
from holdfast.contract.heads import SCAN_BUDGET
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import Row, Value

SPANS = {"minutes": MINUTE, "hours": HOUR}
_STATEMENTS = {"step": "sum_figures_by_step", "workflow": "sum_figures_by_workflow", "time": "sum_figures_by_time"}
_Key = tuple[str, Instant, Instant, str, str, str]


def rows_of(figures: Iterable[Figure]) -> list[Row]:
    """Return what is to be added to the table, one row for each key, in the order of the keys.

    So workers that add to the same rows at the same time meet them in the same order.
    """
    added: dict[_Key, list[int]] = {}
    for start, workflow, step, outcome, n, total, buckets in figures:
        for span in (MINUTE, HOUR):
            key = ("step" if step else "run", span, start // span * span, workflow, step, outcome)
            new = [n, total, *buckets]
            known = added.get(key)
            added[key] = new if known is None else [a + b for a, b in zip(known, new, strict=True)]
    return [(*key, *added[key]) for key in sorted(added)]


async def sum_figures(db: Statements, which: FigureFilter) -> FigurePage:
    """Add up what a filter asks for, the newest SCAN_BUDGET rows at most."""
    what, since = "step" if which.by == "step" else "run", which.since
    edge = await db.read("figures_edge", [(what, which.span, since, which.until, SCAN_BUDGET)])
    if edge:
        since = _int(edge[0][0]) + which.span
        since = -(-since // which.slot) * which.slot if which.by == "time" else since
    values: list[Value] = [which.span, since, which.until]
    if which.by == "time":
        values.append(which.slot)
    conditions = "TRUE"
    if which.workflow is not None:
        values.append(which.workflow)
        conditions = f"workflow = ${len(values)}"
    rows = await db.list(_STATEMENTS[which.by], conditions, tuple(values))
    return FigurePage(rows=[_figure(row) for row in rows], since=since, partial=bool(edge))


def _figure(row: Row) -> Figure:
    start, workflow, step, outcome, n, total, *buckets = row
    found = tuple(_int(count) for count in buckets)
    return Figure(_int(start), str(workflow), str(step), str(outcome), _int(n), _int(total), found)


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value
