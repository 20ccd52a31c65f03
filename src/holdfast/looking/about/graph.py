"""The graph of a workflow: which steps follow which, as it was declared, or as its newest runs went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.contract.heads import HeadFilter
from holdfast.contract.store import Store
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.definitions import Registry
    from holdfast.engine.views.steps import Step

_RUNS = 20
_MOST_STEPS = 1_000


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
    if code is not None and workflow in code.names():
        dependencies = getattr(code.get(workflow), "dependencies", None)
        if isinstance(dependencies, Mapping):
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
    begun = [step for step in steps if step.first_started_at is not None]
    for n, step in enumerate(begun):
        over = [(m, each) for m, each in enumerate(begun[:n]) if _is_before(each, step)]
        for m, each in over:
            if not any(later > m and _is_before(each, between) for later, between in over):
                yield each.name, step.name


def _is_before(one: Step, other: Step) -> bool:
    end, begin = one.finished_at, other.first_started_at
    return end is not None and begin is not None and end <= begin


def mermaid(view: GraphView) -> str:
    """Return a drawing of the graph in the language of Mermaid."""
    ids = {node.name: f"n{number}" for number, node in enumerate(view.nodes)}
    nodes = [f'    {ids[name]}["{_escaped(name)}"]' for name in ids]
    edges = [f"    {ids[edge.before]} --> {ids[edge.after]}" for edge in view.edges]
    return "\n".join(["flowchart TD", *nodes, *edges]) + "\n"


def _escaped(name: str) -> str:
    return name.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
