"""The outcomes of runs that were to be moved."""

from __future__ import annotations

import msgspec


class MoveReport(msgspec.Struct, kw_only=True):
    """What became of the runs; with a dry run `moved` are those that would go."""

    address: str
    dry_run: bool
    moved: list[str] = []
    finished: list[str] = []
    """Those that an earlier move had begun with, and this one brought to its end."""
    left: dict[str, list[str]] = {}
    """Runs that stay, and why; of a family each has the reasons of all."""
