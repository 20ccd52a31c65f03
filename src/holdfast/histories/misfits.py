"""What a check finds, as records: one run that does not fit, a group of similar ones, and the whole report."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

_NUMBERS = re.compile(r"#\d+")
REASONS = {
    "no-workflow": "their workflow is not among those of this code",
    "input": "their input cannot be read by this code",
    "code": "the code cannot go on with them",
    "killer": "the code kills or hangs the process that replays them",
}
"""Why runs do not fit whose history does not part from the code at a call."""
MOST_RUNS = 20
"""How many runs of a group are named."""


class CallLine(msgspec.Struct, frozen=True, kw_only=True):
    """A call on the context: its path and kind and, of one that the present code makes, its file and line."""

    path: str
    kind: str
    file: str = ""
    line: int = 0


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What came of trying the proposed patch on a run; one that was not tried says why."""

    tried: bool
    fits: bool = False
    said: str = ""


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """A run that cannot go on with the code at hand."""

    run: str
    workflow: str
    version: str
    kind: str
    """new-call, call-gone, other-call, no-workflow, input, code, killer."""
    message: str
    path: str = ""
    history: str = ""
    """What the history has there."""
    code: str = ""
    """What the code has there."""
    file: str = ""
    line: int = 0
    advice: str = ""
    trial: Trial | None = None
    recorded: list[CallLine] = []
    """The last calls of the history up to the divergence, and what follows it; of the first run of its kind only."""
    present: list[CallLine] = []
    """The last calls that the present code makes, up to the divergence."""

    @property
    def alike(self) -> tuple[str, ...]:
        """What runs of one group share."""
        return self.workflow, self.kind, _NUMBERS.sub("", self.path), self.file, str(self.line), self._said

    @property
    def _said(self) -> str:
        return "" if self.path or self.kind == "no-workflow" else self.message.replace(self.run, "")


class MisfitGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that do not fit for one reason; `example` is the first that was found."""

    workflow: str
    kind: str
    count: int
    runs: list[str]
    """The ids of some of them."""
    tried: int
    """On how many the proposed patch was tried."""
    fit_patched: int
    """How many of those fit with it."""
    example: Misfit


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What a process that replays answers: the runs that do not fit, and how many of the others need each queue."""

    misfits: list[Misfit]
    queues: dict[str, int] = {}


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the open runs fit the code at hand."""

    runs: int
    fit: int
    workflows: int
    groups: list[MisfitGroup]
    warnings: list[str] = []


def grouped(misfits: Iterable[Misfit]) -> list[MisfitGroup]:
    """Return runs that do not fit by the reason, the largest group first."""
    by_reason: dict[tuple[str, ...], list[Misfit]] = {}
    for misfit in misfits:
        by_reason.setdefault(misfit.alike, []).append(misfit)
    groups = [
        MisfitGroup(
            workflow=alike[0].workflow,
            kind=alike[0].kind,
            count=len(alike),
            runs=[misfit.run for misfit in alike[:MOST_RUNS]],
            tried=sum(misfit.trial is not None and misfit.trial.tried for misfit in alike),
            fit_patched=sum(misfit.trial is not None and misfit.trial.fits for misfit in alike),
            example=next((misfit for misfit in alike if misfit.recorded or misfit.present), alike[0]),
        )
        for alike in by_reason.values()
    ]
    return sorted(groups, key=lambda group: -group.count)
