"""What the code of a run says about its state: the answers to its queries, from its history and present code."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from holdfast.contract.rows import RunRow
from holdfast.contract.store import Store
from holdfast.definitions import Registry
from holdfast.errors import HoldfastError
from holdfast.histories.recorded import RecordedRun, bring_to_its_end, recorded_run, unbegun
from holdfast.looking.source import perilous
from holdfast.payloads import codec
from holdfast.replay.execution import Execution


class StateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a run answers to one of its queries; `error` says why it does not, as one that takes arguments."""

    name: str
    answer: Any = None
    error: str = ""


class StateView(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of a run to all its queries; where there are none, `said` says why."""

    run: str
    items: list[StateAnswer] = []
    said: str = ""


async def state_view(store: Store, row: RunRow, code: Registry | None) -> StateView:
    """Return what a run answers to its queries. Nothing is executed and nothing is written."""
    if code is None or row.workflow not in code.names():
        return StateView(run=row.id, said=f"no code is at hand for workflow {row.workflow!r}")
    if not row.epoch:
        return StateView(run=row.id, said="it has not begun, so it answers nothing yet")
    if peril := perilous(row):
        return StateView(run=row.id, said=peril)
    recorded = recorded_run(row, await store.history(row.key))
    # A turn cannot be driven from inside a task, and a long history takes a while.
    return await asyncio.to_thread(_asked, recorded, row.version, code)


def _asked(recorded: RecordedRun, version: str, code: Registry) -> StateView:
    try:
        execution = unbegun(recorded, code.get(recorded.workflow, version), code.errors)
    except HoldfastError as error:
        return StateView(run=recorded.id, said=f"the code at hand cannot take it: {error}")
    execution.journal.activities = code.activities
    try:
        bring_to_its_end(execution, recorded)
        names = sorted(execution.journal.queries or {})
        items = []
        for name in names:
            items.append(_answered(execution, name))
    except HoldfastError as error:
        return StateView(run=recorded.id, said=f"the code at hand does not fit its history: {error}")
    finally:
        execution.drop()
    said = "" if items else "its code answers no query: ctx.on_query(name, function) does"
    return StateView(run=recorded.id, items=items, said=said)


def _answered(execution: Execution, name: str) -> StateAnswer:
    try:
        return StateAnswer(name=name, answer=codec.decode(execution.query(name)))
    except HoldfastError as error:
        return StateAnswer(name=name, error=str(error))
    except Exception as error:  # of the handler, which is users' code
        return StateAnswer(name=name, error=f"{type(error).__name__}: {error}")
