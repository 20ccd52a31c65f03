"""The graph of a workflow: which steps follow which, as it was declared, or as its newest runs went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.contract.heads import HeadFilter
from holdfast.contract.store import Store
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.definitions import Registry
    from holdfast.engine.views.steps import Step

_RUNS = 20
_MOST_STEPS = 1_000
MOST_FACTS = 5_000
"""Of a run that is not declared as a graph so many facts are looked at: which of its steps followed which is found by
comparing each with each."""


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """A step, and in how many of the runs that were looked at it was called."""

    name: str
    runs: int = 0


class GraphEdge(msgspec.Struct, frozen=True, kw_only=True):
    """A step that followed another: it began when the other had ended, and no step lay between them."""

    before: str
    after: str
    runs: int = 0


class GraphView(msgspec.Struct, frozen=True, kw_only=True):
    """Which steps of a workflow follow which, without those that undo others.

    If it was not `declared` as a graph, it is what so many runs did.
    """

    workflow: str
    declared: bool
    runs: int
    nodes: list[GraphNode]
    edges: list[GraphEdge]


async def graph_view(store: Store, workflow: str, code: Registry | None) -> GraphView:
    """Return the graph of a workflow: as the code at hand declares it, or else of its newest 20 runs.

    Raises:
        BadInput: it has no runs, and is not declared as a graph.
    """
    dependencies = declared_dependencies(workflow, code)
    if dependencies is not None:
        return _declared(workflow, dependencies)
    heads = (await store.heads(HeadFilter(workflows=(workflow,), limit=_RUNS))).heads
    if not heads:
        raise BadInput(f"workflow {workflow!r} has no runs to draw it from, and no code at hand declares it as a graph")
    from holdfast.engine.views.steps import steps_of

    nodes, edges = Counter[str](), Counter[tuple[str, str]]()
    for head in reversed(heads):  # the oldest first, so that names come in their usual order
        entries = await store.history(head.key, limit=_MOST_STEPS)
        called = steps_of(head.id, entries, {}, head.ended, head.generation)
        steps = [step for step in called if not step.compensation]
        nodes.update([*dict.fromkeys(step.name for step in steps)])
        edges.update(set(_followed(steps)))
    return GraphView(
        workflow=workflow,
        declared=False,
        runs=len(heads),
        nodes=[GraphNode(name=name, runs=runs) for name, runs in nodes.items()],
        edges=[GraphEdge(before=before, after=after, runs=runs) for (before, after), runs in sorted(edges.items())],
    )


class RunNode(msgspec.Struct, frozen=True, kw_only=True):
    """A step in the graph of one run, and how it stands; `path` is that of its newest call, empty before the first."""

    name: str
    status: str = "pending"
    path: str = ""
    attempts: int = 0
    progress: Any = None


class RunGraphView(msgspec.Struct, frozen=True, kw_only=True):
    """The graph of one run: every node of a `declared` workflow, or of another the steps that it has called.

    `done` of its `nodes` have completed. `mermaid` is the same as a drawing, each node in the colour of its status. If
    it is `partial`, the run has more facts than were looked at, and the graph is of its first ones.
    """

    run: str
    workflow: str
    declared: bool
    nodes: list[RunNode]
    edges: list[GraphEdge]
    done: int
    mermaid: str
    partial: bool = False


def run_graph_view(
    run_id: str,
    workflow: str,
    steps: Sequence[Step],
    dependencies: Mapping[str, Sequence[str]] | None,
    partial: bool = False,
) -> RunGraphView:
    """Return the graph of a run with how each of its nodes stands."""
    called = {step.name: step for step in steps if not step.compensation}
    if dependencies is not None:
        names = [*dependencies]
        edges = _declared(workflow, dependencies).edges
    else:
        names = [*called]
        forward = [step for step in steps if not step.compensation]
        edges = [GraphEdge(before=a, after=b) for a, b in dict.fromkeys(_followed(forward)) if a != b]
    nodes = [
        RunNode(name=name)
        if name not in called
        else RunNode(
            name=name,
            status=called[name].status,
            path=called[name].path,
            attempts=called[name].attempts,
            progress=called[name].progress,
        )
        for name in names
    ]
    done = sum(node.status == "completed" for node in nodes)
    drawn = _drawn(nodes, edges)
    return RunGraphView(
        run=run_id, workflow=workflow, declared=dependencies is not None, nodes=nodes, edges=edges, done=done,
        mermaid=drawn, partial=partial,
    )  # fmt: skip


def declared_dependencies(workflow: str, code: Registry | None) -> Mapping[str, Sequence[str]] | None:
    """Return what the nodes of a workflow depend on, if the code at hand declares it as a graph."""
    if code is None or workflow not in code.names():
        return None
    dependencies = getattr(code.get(workflow), "dependencies", None)
    return dependencies if isinstance(dependencies, Mapping) else None


def _declared(workflow: str, dependencies: Mapping[str, Sequence[str]]) -> GraphView:
    return GraphView(
        workflow=workflow,
        declared=True,
        runs=0,
        nodes=[GraphNode(name=name) for name in dependencies],
        edges=[GraphEdge(before=before, after=name) for name, needed in dependencies.items() for before in needed],
    )


def _followed(steps: Sequence[Step]) -> Iterator[tuple[str, str]]:
    """Yield which steps came right after which: by when they began and ended, in the order of their calls."""
    begun: list[tuple[str, datetime, datetime | None]] = []
    for step in steps:
        if step.first_started_at is None:
            continue
        between: datetime | None = None  # the latest begin of those that lie between, from the last call backwards
        for name, began, ended in reversed(begun):
            if ended is None or ended > step.first_started_at:
                continue
            if between is None or ended > between:
                yield name, step.name
            if between is None or began > between:
                between = began
        begun.append((step.name, step.first_started_at, step.finished_at))


def mermaid(view: GraphView) -> str:
    """Return a drawing of the graph in the language of Mermaid."""
    return _drawn(view.nodes, view.edges)


_FILLS = {
    "completed": "#d3f2dd", "failed": "#fbd9d7", "running": "#d5eef6", "waiting": "#e2e6fb", "skipped": "#e2e6fb",
    "cancelled": "#f6ecd0",
}  # fmt: skip


def _drawn(nodes: Sequence[GraphNode | RunNode], edges: Sequence[GraphEdge]) -> str:
    ids = {node.name: f"n{number}" for number, node in enumerate(nodes)}
    lines = [f'    {ids[node.name]}["{_escaped(node.name)}"]' for node in nodes]
    lines += [f"    {ids[edge.before]} --> {ids[edge.after]}" for edge in edges]
    by_status: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, RunNode) and node.status in _FILLS:
            by_status.setdefault(node.status, []).append(ids[node.name])
    for status, found in by_status.items():
        lines += [f"    classDef {status} fill:{_FILLS[status]}", f"    class {','.join(found)} {status}"]
    return "\n".join(["flowchart TD", *lines]) + "\n"


def _escaped(name: str) -> str:
    return name.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
