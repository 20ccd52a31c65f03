"""The line of workflow code at which a run waits: found by replaying its history with present code."""

from __future__ import annotations

import asyncio
import linecache

from holdfast.contract.rows import RunRow, Status
from holdfast.contract.store import Store
from holdfast.definitions import Registry
from holdfast.determinism.guard import waits_at
from holdfast.errors import HoldfastError
from holdfast.histories.recorded import RecordedRun, bring_to_its_end, recorded_run, unbegun
from holdfast.looking.views import SourceLine

_TRIED_ALONE = 2
"""Above it a worker has driven the run alone since it last got on (see `Store.claim`)."""


def perilous(row: RunRow) -> str:
    """Say that the code of a run is not to be replayed to look at it: it killed or hung workers that drove it."""
    poison = row.status is Status.BLOCKED and row.fingerprint is None
    if not poison and row.claims <= _TRIED_ALONE:
        return ""
    return (
        "workers that drove it were lost with it, so it is not replayed to be looked at: "
        f"holdfast debug {row.id} does, in a process of its own"
    )


async def source_line(store: Store, row: RunRow, code: Registry) -> SourceLine | None:
    """Return where a run waits; None if it has ended or not begun, its code is not here or does not fit its history.

    None, too, if its code may do to this process what it did to workers. Nothing is executed and nothing is written.
    """
    if row.ended is not None or not row.epoch or row.workflow not in code.names() or perilous(row):
        return None
    recorded = recorded_run(row, await store.history(row.key))
    # A turn cannot be driven from inside a task, and a long history takes a while.
    return await asyncio.to_thread(_replayed_to, recorded, row.version, code)


def _replayed_to(recorded: RecordedRun, version: str, code: Registry) -> SourceLine | None:
    try:
        execution = unbegun(recorded, code.get(recorded.workflow, version), code.errors)
    except HoldfastError:  # its input does not fit, or there is no such version
        return None
    execution.journal.activities = code.activities
    try:
        bring_to_its_end(execution, recorded)
        for task in execution.loop.live_tasks():
            place = waits_at(task.get_coro())
            if place is not None:
                file, line = place
                return SourceLine(file=file, line=line, text=linecache.getline(file, line).strip())
    except HoldfastError:  # the code does not fit
        return None
    finally:
        execution.drop()
    return None
