"""Checks before deploys that were put on record: which code was checked against the open runs, and what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.looking.views import AuditPageView

ACTION = "check"
"""What the audit trail calls it: see `holdfast check --record`."""


class CheckView(msgspec.Struct, frozen=True, kw_only=True):
    """A check: of `runs` open runs so many were `fit` to go on with the code."""

    at: datetime
    by: str
    app: str
    runs: int
    fit: int


def checks_of(page: AuditPageView) -> list[CheckView]:
    """Return the checks of a page of the audit trail."""
    found: list[CheckView] = []
    for each in page.items:
        said: dict[str, Any] = each.detail if isinstance(each.detail, dict) else {}
        runs, fit = said.get("runs"), said.get("fit")
        if isinstance(runs, int) and isinstance(fit, int):
            found.append(CheckView(at=each.at, by=each.actor, app=each.target, runs=runs, fit=fit))
    return found
