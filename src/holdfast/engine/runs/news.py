"""What a commit means for others: other runs, callers, logs and observers learn of it once it is durable."""

from __future__ import annotations

import logging
from typing import Any

from holdfast.context.steps import StepVerb
from holdfast.contract.operations import Committed
from holdfast.definitions import Registry
from holdfast.engine.runs.ports import Host
from holdfast.engine.runs.resident import Resident
from holdfast.engine.steps.queue.served import Queues
from holdfast.engine.views.observers import Reporter
from holdfast.replay.turn import Ending, Turn

_logger = logging.getLogger("holdfast.engine")
_workflow_logger = logging.getLogger("holdfast.workflow")


class News:
    """Tells of turns that are durable."""

    def __init__(self, host: Host, reporter: Reporter, queues: Queues, registry: Registry) -> None:
        self._host = host
        self._reporter = reporter
        self._queues = queues
        self._registry = registry
        self._strangers: set[str] = set()
        """Workflows of children that this engine does not advance, and that it has warned of."""

    def committed(self, resident: Resident, turn: Turn, outcome: Committed) -> None:
        """Tell other runs, callers, logs and observers what a turn did, once it is durable."""
        cancelled = turn.outcome is not None and turn.outcome.ending is Ending.CANCELLED
        if outcome.woke_others or turn.children or cancelled:
            self._host.woke_others(may_have_ended=cancelled)
            self._warn_of_strangers(turn)
        if turn.abandoned and any(map(_in_a_queue, turn.abandoned)):
            self._host.woke_others()  # this worker may be running what was withdrawn
        if turn.effects is not None and turn.effects.replies:
            self._host.replied(resident.id)
        if turn.logs:
            self._log(resident, turn)
        self._reporter.turn(resident, turn)

    def _warn_of_strangers(self, turn: Turn) -> None:
        for child in turn.children:
            name = child.run.workflow
            if name not in self._queues.served and name not in self._strangers:
                self._strangers.add(name)
                _logger.warning(
                    "run %s waits for a worker that %s workflow %r; this engine does not: if no other does, %s",
                    child.run.id,
                    "serves the queue of" if name in self._registry.names() else "knows",
                    name,
                    self._queues.remedy(name),
                )

    def _log(self, resident: Resident, turn: Turn) -> None:
        for level, text, args, scope in turn.logs:
            extra = {"run_id": resident.id, "workflow": resident.workflow.name, "scope": scope}
            try:
                _workflow_logger.log(level, f"[{resident.id}] {text}", *args, extra=extra)
            except Exception:
                _logger.exception("a logging handler failed; run %s goes on", resident.id)


def _in_a_queue(verb: Any) -> bool:
    return isinstance(verb, StepVerb) and verb.activity.queue is not None
