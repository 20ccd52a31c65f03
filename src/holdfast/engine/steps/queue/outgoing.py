"""Steps whose attempts are elsewhere: put into a queue with the commit that counts them, ended by a row in the inbox.

A run that only waits for such steps parks like one that waits for a message: it may be evicted, and another worker may
claim it. Like the runner, called only from plain callbacks of the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from holdfast.context.steps import StepVerb
from holdfast.contract.rows import History, Message
from holdfast.definitions import NotReady
from holdfast.engine.runs.resident import Resident
from holdfast.engine.steps.queue.wire import new_task, read_end
from holdfast.errors import UndecodablePayload
from holdfast.replay.entry import OVER_LIMIT
from holdfast.replay.turn import Turn

if TYPE_CHECKING:
    from holdfast.engine.runs.runner import Runner
    from holdfast.engine.steps.attempts import Attempts


class Elsewhere:
    """The steps, of all runs in memory, that other workers see to."""

    def __init__(self, runner: Runner, attempts: Attempts) -> None:
        self._runner = runner
        self._attempts = attempts

    # Handing out.

    def hand_out(self, resident: Resident, verb: StepVerb) -> bool:
        """Put the attempt that is being counted into its queue, with the commit that counts it.

        False if something is left to do here when that is durable, before which the run must not be let go.
        """
        try:
            task = new_task(verb)
        except Exception:
            return False  # met again, and told the run, by `committed`
        self._remember(resident, verb)
        if resident.tasks is None:
            resident.tasks = []
        resident.tasks.append(task)
        return verb.activity.settings.idempotency_key is None  # the commit may say that somebody else has the key

    def committed(self, resident: Resident, verb: StepVerb) -> None:
        """Let a run whose attempt is in its queue park.

        Raises:
            Exception: what kept the attempt from being put there.
        """
        if verb.location not in (resident.queued or {}):
            new_task(verb)
        resident.active.discard(verb.location)

    def _remember(self, resident: Resident, verb: StepVerb) -> None:
        if resident.queued is None:
            resident.queued = {}
        resident.queued[verb.location] = verb

    # Recalling.

    def recall(self, resident: Resident, turn: Turn, history: History, ends: Sequence[Message]) -> list[Message]:
        """Find the attempts of a replayed run that are elsewhere, so that they are not taken for lost.

        Returns the rows that tell how some of them ended. One that the code gave up while it was replayed, or whose
        activity has no queue any more, is withdrawn.
        """
        told = self.expected(resident, ends)
        for verb in turn.started:
            if not isinstance(verb, StepVerb) or not verb.recalled or not _under_way(verb):
                continue
            if history.tasks.get(verb.location) == verb.attempt and verb.activity.queue is not None:
                self._remember(resident, verb)
                self._runner.queues.takes(verb.activity, resident.id)
        left = [location for location in history.tasks if location not in (resident.queued or {})]
        resident.untasks = left or None
        return told

    # Ending.

    def expected(self, resident: Resident, rows: Sequence[Message]) -> list[Message]:
        """Return the rows that end an attempt which is under way; the run is not let go before they are acted on.

        The others come too late for the run to care, and are deleted as read.
        """
        told: list[Message] = []
        for row in rows:
            verb = resident.execution.journal.open.get(row.name)
            if isinstance(verb, StepVerb) and _under_way(verb) and str(verb.attempt) == row.id:
                self._remember(resident, verb)
                resident.active.add(row.name)
                told.append(row)
            else:
                resident.taken = [*(resident.taken or ()), row.n]
        return told

    def ended(self, resident: Resident, row: Message) -> None:
        """Act on the end of an attempt; its row is deleted by the commit that records it."""
        if resident.deaf:
            return
        verb = (resident.queued or {}).pop(row.name, None)
        resident.active.discard(row.name)
        resident.taken = [*(resident.taken or ()), row.n]
        attempts = self._attempts
        if verb is None or verb.done():
            self._runner.advance(resident, resident.execution.note([], self._runner.clock.now()))
            return
        try:
            end = read_end(row.payload)
        except msgspec.MsgspecError as error:
            attempts.failed(resident, verb, UndecodablePayload(f"what came of a step cannot be read: {error}"))
            return
        if end.lost:
            attempts.lost(resident, verb, end.lost)
            return
        attempts.watch(resident, verb, attempts.context(resident, verb))
        if isinstance(end.skip, str):
            self._skipped(resident, verb, end.skip, end.retry_in)
        elif isinstance(end.result, msgspec.Raw):
            unfit = attempts.succeeded(resident, verb, bytes(end.result))
            if unfit is not None:
                attempts.failed(resident, verb, unfit)
        elif end.error is not None:
            attempts.failed(resident, verb, end.error, isolated=end.isolated)

    def _skipped(self, resident: Resident, verb: StepVerb, reason: str, retry_in: int) -> None:
        if reason.startswith(OVER_LIMIT):
            self._attempts.put_off(resident, verb, reason, self._runner.clock.now() + retry_in)
        else:
            self._attempts.skip(resident, verb, NotReady(reason, timedelta(microseconds=retry_in)))


def _under_way(verb: StepVerb) -> bool:
    return not (verb.done() or verb.settled or verb.skipped)
