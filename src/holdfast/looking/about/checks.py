"""Whether runs fit code: recorded checks before deploys, and one run beside present code."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import msgspec

from holdfast.contract.rows import RunRow
from holdfast.contract.store import Store
from holdfast.definitions import Registry
from holdfast.histories.judging import Judge
from holdfast.histories.misfits import REASONS, CheckReport, Misfit
from holdfast.histories.recorded import recorded_run
from holdfast.looking.about.frames import CodeLine, around
from holdfast.looking.source import perilous
from holdfast.looking.views import AuditPageView

ACTION = "check"
"""What the audit trail calls it: see `holdfast check --record`."""
_MOST_GROUPS = 10
_LONGEST = 300


class CheckGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that a check found not to fit for one reason; `first` is one of them."""

    workflow: str
    count: int
    first: str
    said: str


class CheckView(msgspec.Struct, frozen=True, kw_only=True):
    """A check: of `runs` open runs so many were `fit` to go on with the code; the others are told by their reasons."""

    at: datetime
    by: str
    app: str
    runs: int
    fit: int
    groups: list[CheckGroup] = []


class MisfitView(msgspec.Struct, frozen=True, kw_only=True):
    """Where the history of a run and the code at hand part, with the lines there; `said` is why there is none."""

    run: str
    misfit: Misfit | None = None
    lines: list[CodeLine] = []
    said: str = ""


def recorded_detail(report: CheckReport) -> dict[str, Any]:
    """Return what of a report is put on record."""
    groups = [
        {
            "workflow": group.workflow,
            "count": group.count,
            "first": group.runs[0],
            "said": _said(group.example)[:_LONGEST],
        }
        for group in report.groups[:_MOST_GROUPS]
    ]
    return {"runs": report.runs, "fit": report.fit, **({"groups": groups} if groups else {})}


def _said(example: Misfit) -> str:
    if not example.path:  # messages about an input may have values in them
        return REASONS.get(example.kind, example.kind)
    return f"at {example.path} history has {example.history}; the code has {example.code}"


def checks_of(page: AuditPageView) -> list[CheckView]:
    """Return the checks of a page of the audit trail."""
    found: list[CheckView] = []
    for each in page.items:
        try:
            said = msgspec.convert(each.detail, _Detail)
        except msgspec.ValidationError:
            continue  # another act of that name
        found.append(
            CheckView(at=each.at, by=each.actor, app=each.target, runs=said.runs, fit=said.fit, groups=said.groups)
        )
    return found


class _Detail(msgspec.Struct, frozen=True):
    runs: int
    fit: int
    groups: list[CheckGroup] = []


async def misfit_view(store: Store, row: RunRow, code: Registry | None) -> MisfitView:
    """Return whether a run fits the code at hand. Nothing is executed and nothing is written."""
    if code is None or row.workflow not in code.names():
        return MisfitView(run=row.id, said=f"no code is at hand for workflow {row.workflow!r}")
    if peril := perilous(row):
        return MisfitView(run=row.id, said=peril)
    recorded = recorded_run(row, await store.history(row.key))
    # A turn cannot be driven from inside a task, and a long history takes a while.
    misfit = await asyncio.to_thread(Judge(code).judge, recorded)
    if misfit is None:
        return MisfitView(run=row.id, said="its history fits the code at hand: recover it")
    lines = await asyncio.to_thread(around, misfit.file, misfit.line) if misfit.file else []
    return MisfitView(run=row.id, misfit=misfit, lines=lines)
