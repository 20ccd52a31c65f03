"""Listing and counting runs, by the server's visibility."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from temporalio.client import WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError

from holdfast.clock import Instant, to_datetime
from holdfast.contract.rows import RunFilter, Status
from holdfast.engine.views.run import Run, run_of
from holdfast.errors import NoSuchRun, NotOffered, StoreUnreachable
from holdfast.temporal.client.port import TemporalPort
from holdfast.temporal.sdk import tags

_OF_TEMPORAL: Mapping[Status, tuple[str, ...]] = {
    Status.COMPLETED: ("Completed",),
    Status.MOVED: ("Completed",),
    Status.FAILED: ("Failed", "TimedOut"),
    Status.CANCELLED: ("Canceled", "Terminated", "Failed"),  # a child that was cancelled with its parent has failed
}
_COUNTED = {
    WorkflowExecutionStatus.COMPLETED: Status.COMPLETED,
    WorkflowExecutionStatus.FAILED: Status.FAILED,
    WorkflowExecutionStatus.TIMED_OUT: Status.FAILED,
    WorkflowExecutionStatus.CANCELED: Status.CANCELLED,
    WorkflowExecutionStatus.TERMINATED: Status.CANCELLED,
    WorkflowExecutionStatus.RUNNING: Status.RUNNING,
}
_LOOKED_THROUGH = 10_000
"""How many executions are looked through for one page: the server does not list the newest first."""
_AT_ONCE = 10


class RunLists:
    """Lists the runs of one namespace."""

    def __init__(self, port: TemporalPort, tagging: bool) -> None:
        self._port = port
        self._tagging = tagging

    async def runs(self, which: RunFilter) -> list[Run]:
        """Return the runs that a filter names, newest first."""
        if which.attributes and not self._tagging:
            instead = "open the engine with tags=True, for which the namespace needs a search attribute"
            raise NotOffered("runs(attributes=...) with tags=False", "attributes", instead)
        found: dict[str, WorkflowExecution] = {}
        try:
            async for each in self._port.client.list_workflows(_query(which), page_size=1_000, limit=_LOOKED_THROUGH):
                newest = found.get(each.id)
                if newest is None or newest.start_time < each.start_time:
                    found[each.id] = each
        except RPCError as error:
            words = str(error).split("\n", 1)[0][:300]
            raise StoreUnreachable(f"the Temporal server did not list runs: {words}") from error
        inward = sorted(found.values(), key=lambda each: each.start_time, reverse=True)
        listed: list[Run] = []
        while inward and len(listed) < which.limit:
            page, inward = inward[:_AT_ONCE], inward[_AT_ONCE:]
            looked_at = await asyncio.gather(*(self._look(each, which) for each in page))
            listed += [run for run in looked_at if run is not None]
        return listed[: which.limit]

    async def _look(self, found: WorkflowExecution, which: RunFilter) -> Run | None:
        """Return a run if it is one that was asked for; what visibility says of it may be over."""
        memo: Mapping[str, Any] = await found.memo()
        if any(
            wanted is not None and memo.get(name) != wanted
            for name, wanted in (
                ("parent", which.parent),
                ("actor", which.actor),
                ("tenant", which.tenant),
                ("unique_key", which.unique_key),
            )
        ):
            return None
        try:
            run = run_of(await self._port.row(found.id, patient=False))
        except NoSuchRun:
            return None
        if which.status is not None and run.status is not which.status:
            return None
        return run

    async def stats(self) -> dict[str, int]:
        """Count runs by how they ended."""
        stats = {str(status): 0 for status in Status}
        try:
            counted = await self._port.client.count_workflows("GROUP BY ExecutionStatus")
        except RPCError as error:
            words = str(error).split("\n", 1)[0][:300]
            raise StoreUnreachable(f"the Temporal server did not count runs: {words}") from error
        for group in counted.groups:
            status = _COUNTED.get(WorkflowExecutionStatus[_enum_name(str(group.group_values[0]))])
            if status is not None:
                stats[status] += group.count
        return stats


def _enum_name(said: str) -> str:
    """Return the name of a status in the SDK for that in the server's counts: ContinuedAsNew, CONTINUED_AS_NEW."""
    words = "".join(f"_{letter}" if letter.isupper() else letter for letter in said).strip("_")
    return words.upper()


def _query(which: RunFilter) -> str:
    """Return what the server is asked for. An execution that went on in another one is no run of its own."""
    asked = []
    if which.status is None:
        asked.append("ExecutionStatus != 'ContinuedAsNew'")
    else:
        names = _OF_TEMPORAL.get(which.status, ("Running",))
        asked.append(f"ExecutionStatus IN ({', '.join(map(_quoted, names))})")
    if which.workflow is not None:
        asked.append(f"WorkflowType = {_quoted(which.workflow)}")
    for tag in tags(which.attributes):
        asked.append(f"HoldfastTags = {_quoted(tag)}")
    if which.created_from is not None:
        asked.append(f"StartTime >= {_moment(which.created_from)}")
    if which.created_until is not None:
        asked.append(f"StartTime < {_moment(which.created_until)}")
    if which.before is not None:
        asked.append(f"StartTime < {_moment(which.before)}")
    return " AND ".join(asked)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _moment(at: Instant) -> str:
    return _quoted(to_datetime(at).isoformat())
