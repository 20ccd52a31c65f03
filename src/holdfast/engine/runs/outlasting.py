"""Calls that cannot be interrupted when their run is cancelled: the run's end waits for them and keeps their results.

A body in a thread cannot be stopped. The code gets the cancel at once and may clean up; only the end of the run waits,
at most for `cancel_grace`. A result that comes in time is recorded, so that `resume` does not repeat the call; later
than that, the history says that the attempt was left behind.
"""

from __future__ import annotations

from functools import partial

import msgspec

from holdfast.bodies.attempt import Attempt
from holdfast.context.steps import StepVerb
from holdfast.engine.runs.ports import Runs
from holdfast.engine.runs.resident import FINISHING, Resident
from holdfast.engine.steps.keys import leave_of
from holdfast.payloads.codec import ErrorData
from holdfast.replay import entry as entries
from holdfast.replay.turn import Turn


class OutlastingCalls:
    """The attempts of cancelled runs that are still under way."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def keep(self, resident: Resident, location: str) -> bool:
        """Let an attempt go on that the code gave up because its run is cancelled, if nothing can interrupt it."""
        attempt = resident.attempts.get(location)
        if attempt is None or resident.execution.journal.cancelling is None:
            return False
        if attempt.kind != "thread" or attempt.inside is not None or not attempt.begun:
            return False
        del resident.attempts[location]
        resident.outlasts(attempt)
        attempt.context.signal.fire("cancelled")
        attempt.done = partial(self._done, resident)
        return True

    def hold(self, resident: Resident, turn: Turn) -> bool:
        """Let the end of a cancelled run, which a turn is, wait for such calls; False if there are none."""
        for verb in turn.abandoned:
            if isinstance(verb, StepVerb):
                self.keep(resident, verb.location)
        if not resident.outlasting:
            return False
        resident.hold_end(turn)
        return True

    def give_up(self, resident: Resident) -> bool:
        """End a run that waits for such calls without them; False if it does not."""
        turn = resident.end_held()
        if turn is None:
            return False
        left: list[tuple[str, entries.Entry]] = []
        for attempt in list(resident.outlasting.values()):
            left.append((attempt.verb.location, entries.AttemptLost(attempt.number, "left behind")))
            attempt.stop("cancel_grace is over")
        resident.outlasting.clear()
        turn.entries.extend(resident.execution.note(left, self._runs.clock.now()).entries)
        self._runs.advance(resident, turn)
        return True

    def drop(self, resident: Resident, reason: str) -> None:
        """Give up the calls of a run that leaves this worker."""
        for attempt in list(resident.outlasting.values()):
            attempt.stop(reason)
        resident.outlasting.clear()

    def _done(
        self, resident: Resident, attempt: Attempt, result: bytes | None, error: BaseException | ErrorData | None
    ) -> None:
        resident.outlasting.pop(attempt.verb.location, None)
        if resident.phase >= FINISHING:
            return
        notes: list[tuple[str, entries.Entry]] = []
        now = self._runs.clock.now()
        if result is not None:
            notes.append((attempt.verb.location, entries.ResultKept(attempt.number, msgspec.Raw(result))))
            left = leave_of(attempt.verb, now, result)
            if left is not None:
                resident.give_up_key(left)
        kept = resident.execution.note(notes, now)
        turn = None if resident.outlasting else resident.end_held()
        if turn is not None:
            turn.entries.extend(kept.entries)
            self._runs.advance(resident, turn)
        elif resident.end_is_held:
            resident.add_to_end(kept.entries)
        else:
            self._runs.advance(resident, kept)
