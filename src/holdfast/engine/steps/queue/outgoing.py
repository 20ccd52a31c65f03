"""Steps whose attempts other workers run: put into a queue with the commit that counts them, ended by an inbox row.

A run that only waits for such steps parks like one that waits for a message: it may be evicted, and another worker may
claim it. Like the runner, called only from plain callbacks of the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from holdfast.bodies.context import StepContext
from holdfast.clock import Instant
from holdfast.context.steps import StepVerb
from holdfast.contract.operations import Outcome
from holdfast.contract.rows import History, Message
from holdfast.contract.turns import CommitTurn
from holdfast.definitions import NotReady
from holdfast.engine.runs.ports import Runs
from holdfast.engine.runs.resident import Resident
from holdfast.engine.steps.queue.wire import new_task, read_end
from holdfast.engine.worker.committer import Done
from holdfast.errors import UndecodablePayload
from holdfast.payloads.codec import ErrorData
from holdfast.replay.entry import UNCOUNTED
from holdfast.replay.loop import is_done
from holdfast.replay.turn import Turn


class Ends(Protocol):
    """What an end that came from a queue means for the run: the same as that of an attempt of its own."""

    def lost(self, resident: Resident, verb: StepVerb, why: str) -> None:
        """End an attempt of which nothing came."""
        ...

    def succeeded(self, resident: Resident, verb: StepVerb, result: bytes) -> Exception | None:
        """End a step with a result; return what is wrong with it if it does not fit."""
        ...

    def failed(
        self, resident: Resident, verb: StepVerb, error: BaseException | ErrorData, *, isolated: bool = False
    ) -> None:
        """End an attempt that failed."""
        ...

    def skip(self, resident: Resident, verb: StepVerb, why: NotReady) -> None:
        """Ask a step's condition again later."""
        ...

    def put_off(self, resident: Resident, verb: StepVerb, reason: str, check_at: Instant) -> None:
        """Let a step wait, durably and without a slot."""
        ...

    def context(self, resident: Resident, verb: StepVerb) -> StepContext:
        """Return what a callback that is told of the attempt may know."""
        ...

    def call_back(self, resident: Resident, verb: StepVerb, context: StepContext) -> None:
        """Remember the activity to be told what becomes of a step."""
        ...


class QueuedSteps:
    """The steps, of all runs in memory, whose attempts are in queues."""

    def __init__(self, runs: Runs, ends: Ends) -> None:
        self._runs = runs
        self._ends = ends

    # Putting.

    def put(self, resident: Resident, verb: StepVerb) -> bool:
        """Put the attempt that is being counted into its queue, with the commit that counts it.

        False if something is left to do here when that is durable, before which the run must not be let go.
        """
        try:
            task = new_task(verb)
        except KeyboardInterrupt:
            raise
        except BaseException:
            return False  # met again, and told the run, by `committed`
        resident.queue_attempt(verb, task)
        return verb.activity.settings.idempotency_key is None  # the commit may say that another step has the key

    def committed(self, resident: Resident, verb: StepVerb) -> None:
        """Let a run whose attempt is in its queue park.

        Raises:
            Exception: what kept the attempt from being put there.
        """
        if verb.location not in resident.queued:
            new_task(verb)
        resident.active.discard(verb.location)

    def then_tell(self, resident: Resident, commit: CommitTurn | None, done: Done) -> Done:
        """Let this engine look for attempts, once a commit that puts some into queues is durable."""
        if commit is None or commit.effects is None:
            return done
        ours = False
        for task in commit.effects.tasks:
            ours = self._runs.queues.takes(resident.queued[task.location].activity, resident.id) or ours
        if not ours:
            return done

        def then(outcome: Outcome | Exception) -> None:
            done(outcome)
            self._runs.host.tasks_queued()

        return then

    def abandon(self, resident: Resident, verb: StepVerb) -> None:
        """Take the attempt of a step that the code gave up out of its queue; its end may have come to the inbox."""
        if resident.queued.pop(verb.location, None) is not None or verb.activity.settings.transaction:
            resident.withdraw_attempts([verb.location])

    # Recalling.

    def recall(self, resident: Resident, turn: Turn, history: History, ends: Sequence[Message]) -> list[Message]:
        """Find the attempts of a replayed run that are in queues, so that they are not taken for lost.

        Returns the rows that tell how some of them ended. One that the code gave up while it was replayed, or whose
        activity has no queue any more, is withdrawn.
        """
        told = self.expected(resident, ends)
        for verb in turn.started:
            if not isinstance(verb, StepVerb) or not verb.recalled or not _under_way(verb):
                continue
            if history.tasks.get(verb.location) == verb.attempt and verb.activity.queue is not None:
                resident.queue_attempt(verb)
                self._runs.queues.takes(verb.activity, resident.id)
        left = [location for location in history.tasks if location not in resident.queued]
        if left:
            resident.withdraw_attempts(left)
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
                resident.queue_attempt(verb)
                resident.active.add(row.name)
                told.append(row)
            else:
                resident.read_rows([row.n])
        return told

    def ended(self, resident: Resident, row: Message) -> None:
        """Act on the end of an attempt; its row is deleted by the commit that records it."""
        if resident.phase:
            return
        verb = resident.queued.pop(row.name, None)
        resident.active.discard(row.name)
        resident.read_rows([row.n])
        ends = self._ends
        if verb is None or is_done(verb):
            self._runs.note(resident)
            return
        try:
            end = read_end(row.payload)
        except msgspec.MsgspecError as error:
            ends.failed(resident, verb, UndecodablePayload(f"what came of a step cannot be read: {error}"))
            return
        if end.lost:
            ends.lost(resident, verb, end.lost)
            return
        ends.call_back(resident, verb, ends.context(resident, verb))
        if isinstance(end.skip, str):
            self._skipped(resident, verb, end.skip, end.retry_in)
        elif isinstance(end.result, msgspec.Raw):
            unfit = ends.succeeded(resident, verb, bytes(end.result))
            if unfit is not None:
                ends.failed(resident, verb, unfit)
        elif end.error is not None:
            ends.failed(resident, verb, end.error, isolated=end.isolated)

    def _skipped(self, resident: Resident, verb: StepVerb, reason: str, retry_in: int) -> None:
        if reason.startswith(UNCOUNTED):
            self._ends.put_off(resident, verb, reason, self._runs.clock.now() + retry_in)
        else:
            self._ends.skip(resident, verb, NotReady(reason, timedelta(microseconds=retry_in)))


def _under_way(verb: StepVerb) -> bool:
    return not (is_done(verb) or verb.settled or verb.skipped)
