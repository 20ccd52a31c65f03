"""What workers find by name: the activities of an engine's workflows."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

from holdfast.context.references import referred
from holdfast.definitions import Activity, Registry, Workflow, as_activity
from holdfast.errors import DefinitionError

_FUNCTIONS = (FunctionType, MethodType)


class Known:
    """The activities that a worker can run, by the workflow that calls them and their name."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._of: dict[tuple[str, str], Activity[..., Any]] = {}
        for workflow in registry.all():
            for activity in _activities_of(workflow):
                self._of.setdefault((workflow.name, activity.name), activity)

    def all(self) -> Iterator[Activity[..., Any]]:
        """Go through all of them."""
        yield from self._of.values()
        yield from self._registry.activities.values()

    def of(self, workflow: str) -> Iterator[Activity[..., Any]]:
        """Go through those that a workflow refers to."""
        yield from (activity for (name, _), activity in self._of.items() if name == workflow)

    def get(self, workflow: str, name: str) -> Activity[..., Any] | None:
        """Return an activity that a run of a workflow asks for, None if it is not known here."""
        return self._registry.activities.get(name) or self._of.get((workflow, name))

    def check(self, workflow: str, activity: Activity[..., Any], path: str) -> None:
        """Refuse a step that another worker would not find.

        Raises:
            DefinitionError: its function is a lambda, a closure, or not referred to by the workflow.
        """
        found = self.get(workflow, activity.name)
        if found is None or inspect.unwrap(found.function) is not inspect.unwrap(activity.function):
            raise DefinitionError(
                f"step {path!r} calls {activity.name!r}, which other workers do not find by that name: on Temporal a "
                "step may run in any process, so define its function at the top of a module, under a name of its own, "
                "and give it to TemporalEngine(activities=[...])"
            )


def _activities_of(workflow: Workflow[Any, Any]) -> Iterator[Activity[..., Any]]:
    yield from workflow.listed
    if workflow.hooks is not None:
        for status in ("completed", "failed", "cancelled"):
            hook = workflow.hooks.of(status)
            if hook is not None:
                yield hook
    for value, _ in referred(workflow.function):
        for each in _within(value):
            if isinstance(each, Activity):
                yield each
            elif isinstance(each, _FUNCTIONS):
                yield as_activity(each)


def _within(value: Any) -> Iterable[Any]:
    """Go through a value and, if it is a table of functions, what is in it."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    return [value]
