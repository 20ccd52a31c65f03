"""Flow control for operators: pause and resume a workflow or a queue, and see what is held back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from holdfast.changes import Change
from holdfast.clock import to_datetime
from holdfast.contract.operations import Done, PauseWork
from holdfast.definitions import Workflow, check_queue
from holdfast.errors import BadInput
from holdfast.ops.port import Port, audited, check_who
from holdfast.patience import patient
from holdfast.texts import check_text, shown

Kind = Literal["workflow", "queue"]
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class PausedWork:
    """A workflow or a queue of which nothing begins."""

    kind: Kind
    name: str
    since: datetime


@dataclass(frozen=True, slots=True)
class WaitingRuns:
    """How many runs of a workflow with one key wait for their turn or for a place, and hold one."""

    workflow: str
    key: str
    waiting: int
    holding: int
    since: datetime | None
    """From when the first that waits may begin."""


@dataclass(frozen=True, slots=True)
class QueuePlaces:
    """How many attempts of a queue may run at once, and how many do, on all workers together."""

    queue: str
    places: int | None
    """As this engine declares it; None if it sets no limit."""
    used: int
    """How many attempts workers have, up to 10,000."""
    waiting: int
    """How many wait, also in the line of a limit, up to 10,000 of each activity."""


class FlowControl:
    """What operators do to all runs of a workflow, or to all that waits in a queue. It holds for every worker."""

    def __init__(self, port: Port, changed: Callable[[], Awaitable[None]], places: Mapping[str, int]) -> None:
        self._port = port
        self._changed = changed
        """Lets the worker of this engine see at once what others see within a second."""
        self._places = places
        """How many attempts may run at once of those queues where this engine limits that."""

    @property
    def _call_patience(self) -> float:
        return self._port.patience

    @patient
    async def pause(
        self,
        *,
        workflow: Workflow[Any, Any] | str | None = None,
        queue: str | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> bool:
        """Let nothing of a workflow or of a queue begin until it is resumed; False if it was paused already.

        Steps under way finish and are recorded. Runs can be started, and are sent messages; they wait. It is in force
        in every worker within two seconds, and survives restarts.

        Raises:
            BadInput: neither is named, or both are.
        """
        return await self._write(workflow, queue, True, by, reason)

    @patient
    async def resume(
        self,
        *,
        workflow: Workflow[Any, Any] | str | None = None,
        queue: str | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> bool:
        """Let a workflow or a queue that was paused go on; False if it was not paused.

        Raises:
            BadInput: neither is named, or both are.
        """
        return await self._write(workflow, queue, False, by, reason)

    @patient
    async def paused(self) -> list[PausedWork]:
        """Return the workflows and queues that are paused."""
        rows = await self._port.store.paused()
        return [PausedWork(_kind(row.kind), row.name, to_datetime(row.since)) for row in rows]

    @patient
    async def waiting(self, *, limit: int = 20) -> list[WaitingRuns]:
        """Return where most runs wait for their turn or for a place, by workflow and key.

        It counts them: a question for people, not for a loop.
        """
        given: object = limit
        if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= _MOST:
            raise BadInput(f"limit must be between 1 and {_MOST:,}, not {shown(given)}")
        rows = await self._port.store.lanes(limit)
        return [
            WaitingRuns(row.workflow, row.key, row.waiting, row.holding, to_datetime(row.since) if row.since else None)
            for row in rows
        ]

    @patient
    async def queues(self) -> list[QueuePlaces]:
        """Return the queues that have attempts, or of which this engine says how many run at once, by name."""
        found = dict.fromkeys(self._places, (0, 0))
        for row in await self._port.store.queues():
            used, waiting = found.get(row.queue, (0, 0))
            found[row.queue] = (used + row.taken, waiting + row.waiting)
        return [QueuePlaces(queue, self._places.get(queue), *found[queue]) for queue in sorted(found)]

    async def _write(
        self, workflow: Workflow[Any, Any] | str | None, queue: str | None, paused: bool, by: str | None, reason: str
    ) -> bool:
        check_who(by, reason)
        kind, name = _named(workflow, queue)
        verb, at = "pause" if paused else "resume", self._port.clock.now()
        audit = audited(self._port, by, f"{kind}.{verb}", reason=reason or None)
        outcome = await self._port.apply(PauseWork(kind=kind, name=name, at=at, paused=paused, audit=audit))
        await self._changed()
        changed = isinstance(outcome, Done) and bool(outcome.count)
        if changed:
            said: dict[str, object] = {kind: name} | ({"reason": reason} if reason else {})
            self._port.notify(Change(type=f"{kind}.{verb}d", at=to_datetime(at), data=said))
        return changed


def _named(workflow: object, queue: Any) -> tuple[Kind, str]:
    """Return what is to be paused or resumed.

    Raises:
        BadInput: not exactly one is named, or its name is none.
    """
    if (workflow is None) == (queue is None):
        raise BadInput("name a workflow= or a queue=, one of the two")
    if queue is not None:
        return "queue", check_queue(queue, "queue")
    name = workflow.name if isinstance(workflow, Workflow) else workflow
    if not isinstance(name, str):
        raise BadInput(f"workflow must be a workflow or its name, not {shown(name)}")
    check_text(name, "workflow", printable=False)
    return "workflow", name


def _kind(said: str) -> Kind:
    return "queue" if said == "queue" else "workflow"
