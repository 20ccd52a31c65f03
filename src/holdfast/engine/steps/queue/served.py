"""The queues an engine serves: whose runs it advances, and the activities it can run for the runs of others."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.definitions import Activity, Registry, Workflow, check_queue, source_line
from holdfast.errors import BadInput, DefinitionError

_logger = logging.getLogger("holdfast.engine")


class Queues:
    """What one engine takes from queues.

    Raises:
        BadInput: a name is unfit.
        DefinitionError: two activities that workers find by name have the same one.
    """

    def __init__(self, names: Iterable[str], registry: Registry) -> None:
        if isinstance(names, str):
            raise BadInput(f"queues must be a list: [{names!r}]")
        self.names = tuple(dict.fromkeys(check_queue(name, "a queue's name") for name in names))
        self.activities = _known_activities(registry)
        """Those that an attempt in a queue may ask for, by name."""
        self._registry = registry
        self._warned: set[tuple[str, str]] = set()

    @property
    def workflows(self) -> list[str]:
        """The names of the workflows whose runs this engine advances."""
        return self._registry.served(self.names)

    def serves(self, workflow: Workflow[Any, Any]) -> bool:
        """Whether runs of a workflow are advanced here."""
        return workflow.queue in self.names

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
