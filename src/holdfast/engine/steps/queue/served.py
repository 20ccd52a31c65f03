"""The queues an engine serves: which runs it advances, and the activities it can run for runs of other workers."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator
from typing import Any

from holdfast.contract.turns import Lane
from holdfast.definitions import Activity, Queue, Registry, Workflow, check_queue, source_line
from holdfast.errors import BadInput, DefinitionError

_logger = logging.getLogger("holdfast.engine")


STRICT = 9
"""How many are taken by priority for each that has waited longest, where a queue ages."""


class Queues:
    """What one engine takes from queues.

    Raises:
        BadInput: a name is unfit.
        DefinitionError: two activities that workers find by name have the same one.
    """

    def __init__(self, names: Iterable[str | Queue], registry: Registry) -> None:
        if isinstance(names, str | Queue):
            raise BadInput(f"queues must be a list: [{names!r}]")
        declared = _declared(names)
        self.names = tuple(declared)
        self.at_once = {name: queue.at_once for name, queue in declared.items() if queue.at_once is not None}
        """How many attempts may run at once of those queues where that is limited."""
        self.ageing = frozenset(name for name, queue in declared.items() if queue.ageing)
        """Queues from which one in ten is the one that has waited longest."""
        self.activities = _known_activities(registry)
        """Those that an attempt in a queue may ask for, by name."""
        self.paused: frozenset[tuple[str, str]] = frozenset()
        """The workflows and queues of which nothing begins, by kind and name."""
        self.lanes: dict[str, Lane] = _laned(registry, self.names)
        """The rules of the workflows whose runs wait in lanes."""
        self._registry = registry
        self._warned: set[tuple[str, str]] = set()

    @property
    def served(self) -> list[str]:
        """The names of the workflows whose runs this engine advances, unless they are paused."""
        return self._registry.served(self.names)

    @property
    def workflows(self) -> list[str]:
        """The names of the workflows whose runs this engine advances now."""
        served = self._registry.served(self.names)
        if self.paused:
            served = [name for name in served if self.is_open(self._registry.get(name))]
        return served

    @property
    def ageing_workflows(self) -> list[str]:
        """Those of them whose queue ages."""
        return [name for name in self.workflows if self._registry.get(name).queue in self.ageing]

    @property
    def open_names(self) -> tuple[str, ...]:
        """The queues from which this engine takes attempts now."""
        if self.paused:
            return tuple(name for name in self.names if ("queue", name) not in self.paused)
        return self.names

    @property
    def paused_work(self) -> list[tuple[str, str]]:
        """The same as `paused`, with the workflows of paused queues as far as this engine knows them."""
        if not self.paused:
            return []
        known = map(self._registry.get, self._registry.names())
        closed = {("workflow", workflow.name) for workflow in known if not self.is_open(workflow)}
        return sorted(self.paused | closed)

    @property
    def open_lanes(self) -> dict[str, Lane]:
        """The same of those that are not paused."""
        return {name: lane for name, lane in self.lanes.items() if self.is_open(self._registry.get(name))}

    def drain(self, workflows: Iterable[str]) -> None:
        """Let runs go on, without limits, that wait in lanes of workflows which have none any more."""
        for name in set(workflows).intersection(self.served).difference(self.lanes):
            self.lanes[name] = Lane()

    def serves(self, workflow: Workflow[Any, Any]) -> bool:
        """Whether runs of a workflow are advanced here and now."""
        return workflow.queue in self.names and (not self.paused or self.is_open(workflow))

    def is_open(self, workflow: Workflow[Any, Any]) -> bool:
        """Whether neither a workflow nor its queue is paused."""
        return self.paused.isdisjoint((("workflow", workflow.name), ("queue", workflow.queue)))

    def queue_of(self, workflow: str) -> str | None:
        """Return the queue of a workflow, None if this engine does not know it."""
        return self._registry.get(workflow).queue if workflow in self._registry.names() else None

    def remedy(self, workflow: str) -> str:
        """Return what makes this engine advance runs of a workflow."""
        if workflow not in self._registry.names():
            return "add it to Engine(workflows=[...])"
        return f"use Engine(queues=[{self._registry.get(workflow).queue!r}, ...])"

    def takes(self, activity: Activity[..., Any], run_id: str) -> bool:
        """Whether attempts of an activity are taken from its queue here; says once if they have to wait for others."""
        queue, name = activity.queue or "", activity.name
        if queue not in self.names:
            what, remedy, once = f"serves queue {queue!r}", f"Engine(queues=[{queue!r}, ...])", (queue, "")
        elif name not in self.activities:
            what = f"serves queue {queue!r} and knows activity {name!r}"
            remedy, once = "Engine(activities=[...])", (queue, name)
        else:
            return True
        if once not in self._warned:
            self._warned.add(once)
            _logger.warning(
                "step %r of run %s waits for a worker that %s; this engine does not: if no other does, use %s",
                name,
                run_id,
                what,
                remedy,
            )
        return False


def _declared(queues: Iterable[str | Queue]) -> dict[str, Queue]:
    declared: dict[str, Queue] = {}
    for queue in queues:
        each = queue if isinstance(queue, Queue) else Queue(name=check_queue(queue, "a queue's name"))
        if declared.setdefault(each.name, each) != each:
            raise BadInput(f"queue {each.name!r} is declared twice")
    return declared


def _laned(registry: Registry, queues: Container[str]) -> dict[str, Lane]:
    served = (registry.get(name) for name in registry.served(queues))
    return {workflow.name: workflow.flow.rules for workflow in served if workflow.flow is not None}


def _known_activities(registry: Registry) -> dict[str, Activity[..., Any]]:
    found: dict[str, Activity[..., Any]] = {}
    for workflow in registry.all():
        for activity in _activities_of(workflow):
            other = found.setdefault(activity.name, activity)
            if other.function is not activity.function and activity.name not in registry.activities:
                raise DefinitionError(
                    f"two activities with a queue are named {activity.name!r}: {source_line(other)} and "
                    f"{source_line(activity)}; workers find them by name: rename one"
                )
    return found | registry.activities


def _activities_of(workflow: Workflow[Any, Any]) -> Iterator[Activity[..., Any]]:
    """Go through the activities with a queue that a workflow lists, or that its code refers to."""
    from holdfast.context.references import referred

    named = (value for value, _ in referred(workflow.function)) if not workflow.listed else ()
    for value in (*workflow.listed, *named):
        if isinstance(value, Activity) and value.queue is not None:
            yield value
