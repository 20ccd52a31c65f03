"""Graphs: activities and their dependencies, run side by side as far as these allow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any

from holdfast.context.api import Context
from holdfast.declarative.graph_run import Plan, run_graph
from holdfast.declarative.parts import Declared, DeclaredStep, Part, as_part, require_list, require_unique
from holdfast.definitions import DEFAULT_QUEUE, Activity, hooks_given, source_line
from holdfast.errors import DefinitionError
from holdfast.policy import Retry

_RESERVED = ("input", "results")


class Graph(Declared):
    """A workflow that was declared as a graph; `dependencies` has those of each node, by name."""

    dependencies: Mapping[str, tuple[str, ...]]

    def to_mermaid(self) -> str:
        """Return a drawing of the graph in the language of Mermaid."""
        ids = {name: f"n{number}" for number, name in enumerate(self.dependencies)}
        nodes = [f'    {ids[name]}["{_escaped(name)}"]' for name in self.dependencies]
        edges = [
            f"    {ids[dependency]} --> {ids[name]}"
            for name, needed in self.dependencies.items()
            for dependency in needed
        ]
        return "\n".join(["flowchart TD", *nodes, *edges]) + "\n"


def graph(
    name: str,
    nodes: Mapping[Any, Iterable[Any]],
    *,
    on_complete: Callable[[str, Any], object] | None = None,
    on_failed: Callable[[str, Any, Any], object] | None = None,
    on_cancelled: Callable[[str, Any], object] | None = None,
    max_parallel: int | None = None,
    max_per_dependency: int | None = None,
    version: str = "1",
    timeout: timedelta | None = None,
    retry: Retry = Retry.handbook,
    queue: str = DEFAULT_QUEUE,
    step_trail: bool = False,
    input_type: Any = Any,
) -> Graph:
    """Declare a workflow as a graph: `{fetch: [], build: [fetch], test: [build], lint: [fetch]}`.

    Nodes are functions, activities or `step(...)`, dependencies the same objects or their names. A node is run as soon
    as all it depends on has completed, in the order declared, at most `max_parallel` at once, and at most
    `max_per_dependency` of those that depend on the same node. A parameter of its function is given what the dependency
    of that name returned; `input` is the run's input, `results` a mapping with what all dependencies returned. With an
    `input_type` a start whose input does not fit is refused. The result of a run is what every node returned, by name.

    When a node fails nothing more is begun, what is under way finishes, and the run fails with that node's error.

    `timeout` and `retry` are for what says nothing else itself, as an `@activity` or `step()` may. Runs are advanced by
    engines that serve `queue`. `step_trail` is as for `@workflow`. The callbacks, plain or async, get the id of the
    run, what its nodes have returned so far, by name, and, if it failed, the error, once it is decided how it ends: see
    Hooks.

    Raises:
        DefinitionError: a cycle (which is named), an unknown dependency, two nodes of one name, or a parameter that
            nothing is given to.
    """
    if not isinstance(nodes, Mapping):
        raise DefinitionError(f"graph {name!r} takes a mapping of nodes to lists of their dependencies, not {nodes!r}")
    parts = {item: as_part(item, {"timeout": timeout, "retry": retry}) for item in nodes}
    if not parts:
        raise DefinitionError(f"graph {name!r} has no nodes")
    require_unique(name, parts.values())
    needed = _needed(name, nodes, parts)
    order = _sorted(name, needed)
    by_name = {part.name: part for part in parts.values()}
    plan = _plan(name, by_name, needed, max_parallel, max_per_dependency)

    async def run(ctx: Context, input: Any = None) -> dict[str, Any]:
        return await run_graph(ctx, plan, input)

    run.__annotations__["input"] = input_type
    declared = Graph(run, name, version, [by_name[each] for each in order], needed, queue)
    declared.dependencies = needed
    declared.hooks = hooks_given(
        f"graph {name!r}", on_complete=on_complete, on_failed=on_failed, on_cancelled=on_cancelled
    )
    declared.in_order = False
    declared.step_trail = step_trail
    return declared


def _plan(
    graph: str,
    parts: Mapping[str, Part],
    needed: Mapping[str, tuple[str, ...]],
    max_parallel: int | None,
    max_per_dependency: int | None,
) -> Plan:
    return Plan(
        parts=parts,
        needed=needed,
        takes={name: _taken(graph, part, needed[name]) for name, part in parts.items()},
        max_parallel=_checked_cap(graph, "max_parallel", max_parallel),
        max_per_dependency=_checked_cap(graph, "max_per_dependency", max_per_dependency),
    )


def _needed(graph: str, nodes: Mapping[Any, Any], parts: Mapping[Any, Part]) -> dict[str, tuple[str, ...]]:
    """Return the names of the nodes that each node depends on."""
    find = partial(_find, graph, _handles(parts))
    needed: dict[str, tuple[str, ...]] = {}
    for item, needs in nodes.items():
        name = parts[item].name
        listed = require_list(needs, f"graph {graph!r}: the dependencies of {name!r} are a list")
        needed[name] = tuple(dict.fromkeys(find(name, each) for each in listed))
    return needed


# What is refused.


def _handles(parts: Mapping[Any, Part]) -> dict[Any, str | None]:
    """Return what a node can be called by: itself, its name, or its function, which means none if it is that of two."""
    handles: dict[Any, str | None] = {}
    for item, part in parts.items():
        if isinstance(item, DeclaredStep):
            handles[item.function] = None if item.function in handles else part.name
    return {**handles, **{item: part.name for item, part in parts.items()}, **{p.name: p.name for p in parts.values()}}


def _find(graph: str, handles: Mapping[Any, str | None], node: str, dependency: Any) -> str:
    try:
        found = handles.get(dependency)
    except TypeError:  # something that cannot be looked up
        found = None
    if found is None:
        what = f"step {dependency.name!r}" if isinstance(dependency, Activity) else repr(dependency)
        why = "two nodes run it: say which by its name" if dependency in list(handles) else "it is no node of the graph"
        raise DefinitionError(f"graph {graph!r}: {node!r} depends on {what}, but {why}")
    return found


def _sorted(graph: str, needed: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the nodes so that each stands after what it depends on."""
    try:
        return list(TopologicalSorter(needed).static_order())
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise DefinitionError(f"graph {graph!r} has a cycle: {cycle}") from None


def _taken(graph: str, part: Part, needed: tuple[str, ...]) -> list[str]:
    """Return the names of what a node's function is given."""
    where = f"graph {graph!r}: {part.name!r} ({source_line(part.activity)})"
    if part.name in _RESERVED:
        raise DefinitionError(f"{where} needs another name: {part.name!r} is a parameter that every node may have")
    parameters = _parameters(part, where)
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise DefinitionError(
                f"{where}: what nodes are given goes by name, which {parameter} does not take; "
                "take `results` for all that its dependencies returned"
            )
        if parameter.name not in (*needed, *_RESERVED):
            known = ", ".join([*needed, *_RESERVED])
            raise DefinitionError(
                f"{where}: nothing is given to its parameter {parameter.name!r}; it may be one of: {known}"
            )
    return [parameter.name for parameter in parameters]


def _parameters(part: Part, where: str) -> list[inspect.Parameter]:
    function = part.activity.function
    bound = function.keywords if isinstance(function, partial) else {}
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise DefinitionError(f"{where}: its parameters cannot be told; wrap it in a function") from None
    return [parameter for parameter in parameters if parameter.name not in bound]


def _checked_cap(graph: str, what: str, cap: object) -> int | None:
    if cap is not None and (not isinstance(cap, int) or isinstance(cap, bool) or cap < 1):
        raise DefinitionError(f"{what} of graph {graph!r} must be a whole number of at least 1, or None, not {cap!r}")
    return cap


def _escaped(name: str) -> str:
    return name.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
