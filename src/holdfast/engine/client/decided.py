"""Terminating a run whose end is decided: it ends as decided, and its hook, no longer called, becomes a letter."""

from __future__ import annotations

import msgspec

from holdfast.contract.operations import Terminate
from holdfast.contract.rows import Status
from holdfast.definitions import HOOK_NAMES
from holdfast.engine.client.link import Link
from holdfast.engine.runs.ends import Rules, cancelled_end, end_of
from holdfast.engine.runs.records.letters import letter_of_hook
from holdfast.engine.views.steps import steps_of
from holdfast.payloads.codec import ErrorData
from holdfast.replay.entry import Decided, decode_entry
from holdfast.replay.past import names_of
from holdfast.replay.turn import decided_outcome


async def as_decided(link: Link, rules: Rules, operation: Terminate, error: ErrorData) -> Terminate:
    """Return what ends a run as it was decided, and leaves the hook that is not called any more as a letter."""
    row = await link.row(operation.target)
    history, now = await link.store.history(row.key), operation.end.at
    decided = next((each for each in reversed(history) if each.kind == Decided.kind), None)
    if decided is None:  # it was let go on meanwhile
        return Terminate(target=row.id, end=cancelled_end(rules, now, error), audit=operation.audit)
    names, outcome = names_of(history), decided_outcome(decode_entry(decided.kind, decided.data))
    end = end_of(outcome, rules, now)
    if outcome.failed:
        end = msgspec.structs.replace(end, failed_step=names.path(outcome.failed[0]))
    place, status = names.path(decided.location), outcome.ending.value
    attempts = [step.attempts for step in steps_of(row.id, history) if step.path == f"{place}/{HOOK_NAMES[status]}"]
    letter = letter_of_hook(place, status, max(attempts, default=0), error)
    return Terminate(target=row.id, end=end, decided=Status(status), letters=[letter], audit=operation.audit)
