"""Recording a run through its handle."""

from __future__ import annotations

from typing import Any

from holdfast.engine.handle import RunHandle
from holdfast.histories.recorded import RecordedRun, recorded_run


async def record(run: RunHandle[Any]) -> RecordedRun:
    """Return the history of a run as it stands."""
    row = await run._client.row(run.id)
    return recorded_run(row, await run._client.history(row))
