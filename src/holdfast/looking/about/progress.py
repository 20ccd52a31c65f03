"""The progress of runs: how many of their steps are done and, if that is known, of how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.contract.heads import RunHead
from holdfast.contract.rows import Status
from holdfast.contract.store import Store
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.definitions import Registry

MOST_RUNS = 50
"""How many runs can be asked about at once."""
_MOST_FACTS = 500
"""How much of a history is read: with more of it the progress is `partial`."""


class ProgressView(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that a run has called so far, by what became of them, without those that undo others.

    `total` is how many there are in all, where the workflow is declared as a graph and its code is at hand. With
    `partial` only the beginning of its history was read: there are at least so many.
    """

    run: str
    done: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    undone: int = 0
    """Compensations that were done."""
    to_undo: int = 0
    """Of a run that undoes what it has done: how many compensations there are in all."""
    total: int | None = None
    partial: bool = False


async def progress_views(store: Store, ids: Sequence[str], code: Registry | None) -> list[ProgressView]:
    """Return how far runs have come, in the order of their ids; runs that are not there are left out.

    Raises:
        BadInput: there are too many of them.
    """
    if len(ids) > MOST_RUNS:
        raise BadInput(f"the progress of {MOST_RUNS} runs can be asked for at once, not of {len(ids)}")
    heads = await store.heads_of(list(dict.fromkeys(ids)))
    return [await _progress(store, heads[run_id], code) for run_id in dict.fromkeys(ids) if run_id in heads]


async def _progress(store: Store, head: RunHead, code: Registry | None) -> ProgressView:
    from holdfast.engine.views.steps import steps_of

    entries = await store.history(head.key, limit=_MOST_FACTS + 1)
    steps = steps_of(head.id, entries[:_MOST_FACTS], {}, head.ended, head.generation)
    found = Counter(step.status for step in steps if not step.compensation)
    return ProgressView(
        run=head.id,
        done=found["completed"],
        failed=found["failed"] + found["cancelled"],
        running=found["running"],
        waiting=found["waiting"] + found["skipped"] + found["pending"],
        to_undo=await _to_undo(store, head) if head.status is Status.COMPENSATING else 0,
        undone=sum(step.compensation and step.status == "completed" for step in steps),
        total=_declared(head.workflow, code),
        partial=len(entries) > _MOST_FACTS,
    )


async def _to_undo(store: Store, head: RunHead) -> int:
    from holdfast.replay.entry import CompensationAdded

    newest = await store.history(head.key, newest=True, limit=1)
    added = await store.facts_of_kind(head.key, CompensationAdded.kind, newest[-1].seq + 1) if newest else []
    return len({row.location for row in added})


def _declared(workflow: str, code: Registry | None) -> int | None:
    if code is None or workflow not in code.names():
        return None
    dependencies = getattr(code.get(workflow), "dependencies", None)
    return len(dependencies) if isinstance(dependencies, Mapping) else None
