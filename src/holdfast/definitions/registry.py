"""The registry: the workflows, activities and error classes that one engine knows, by name."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from holdfast.definitions.activities import Activity, as_activity
from holdfast.definitions.functions import source_line
from holdfast.definitions.workflows import Workflow
from holdfast.errors import BadInput, DefinitionError, UnknownWorkflow
from holdfast.payloads import codec


class Registry:
    """The workflows and error classes one engine knows."""

    def __init__(
        self,
        workflows: Iterable[Any] = (),
        errors: Iterable[type[BaseException]] = (),
        activities: Iterable[Any] = (),
    ) -> None:
        self._workflows: dict[str, Workflow[Any, Any]] = {}
        self._versions: dict[tuple[str, str], Workflow[Any, Any]] = {}
        self.errors: dict[str, type[BaseException]] = {codec.qualified_name(cls): cls for cls in errors}
        self.activities: dict[str, Activity[Any, Any]] = {}
        for function in activities:
            activity = function if isinstance(function, Activity) else as_activity(function)
            self.activities[activity.name] = activity
        if isinstance(workflows, Workflow):
            raise DefinitionError(f"workflows must be a list: [{workflows.name}]")
        for definition in workflows:
            self.add(definition)

    def add(self, definition: Any) -> None:
        """Register a workflow; a later version of the same name becomes the one new runs use.

        Raises:
            DefinitionError: not a workflow, or another one has that name and version.
            NonDeterministic: its code reads a clock, draws randomness or does I/O.
        """
        if not isinstance(definition, Workflow):
            raise DefinitionError(f"{definition!r} is not a workflow; decorate it with @workflow")
        other = self._versions.get((definition.name, definition.version))
        if other is not None and other is not definition:
            raise DefinitionError(
                f"two workflows are named {definition.name!r} (version {definition.version}): "
                f"{source_line(other)} and {source_line(definition)}; rename one, or give it another version"
            )
        if definition.check:
            # Not before: a program that only declares workflows, or starts them elsewhere, has no use for it.
            from holdfast.determinism.check import require_deterministic

            require_deterministic(definition.function)
        self._versions[definition.name, definition.version] = definition
        self._workflows[definition.name] = definition

    @property
    def hooked(self) -> bool:
        """Whether any workflow has hooks."""
        return any(workflow.hooks is not None for workflow in self._versions.values())

    def names(self) -> list[str]:
        """Return the names of all workflows."""
        return list(self._workflows)

    def served(self, queues: Container[str]) -> list[str]:
        """Return the names of the workflows whose runs wait in one of these queues."""
        return [name for name, workflow in self._workflows.items() if workflow.queue in queues]

    def all(self) -> list[Workflow[Any, Any]]:
        """Return every workflow in every version."""
        return list(self._versions.values())

    def get(self, name: str, version: str | None = None) -> Workflow[Any, Any]:
        """Return a workflow: in the version asked for if it is here, else the latest.

        Raises:
            UnknownWorkflow: with the closest name there is.
        """
        found = self._versions.get((name, version or "")) or self._workflows.get(name)
        if found is None:
            import difflib  # for this error only

            close = difflib.get_close_matches(name, self._workflows, n=1)
            hint = f" - did you mean {close[0]!r}?" if close else "; pass it to Engine(workflows=[...])"
            raise UnknownWorkflow(f"unknown workflow {name!r}{hint}")
        return found

    def registered(self, given: object, asked: str, engine: str = "Engine") -> Workflow[Any, Any]:
        """Return the workflow that a caller means, by name or as it was declared.

        Raises:
            UnknownWorkflow: there is none of that name.
            BadInput: it is no workflow, or not the one that is registered by its name.
        """
        if isinstance(given, str):
            return self.get(given)
        if not isinstance(given, Workflow):
            raise BadInput(f"{asked} needs a workflow, not {given!r}; decorate it with @workflow")
        known = self.get(given.name, given.version)
        if known is not given:
            raise BadInput(
                f"another workflow is registered as {given.name!r} ({source_line(known)}); "
                f"the one given is at {source_line(given)}: pass it to {engine}(workflows=[...])"
            )
        return known
