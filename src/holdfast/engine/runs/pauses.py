"""Pausing a run: begin nothing more, let what is under way finish and record it, then let the run go.

While a run is pausing its code does not go on, so what its steps achieve is only recorded; whoever continues the run
later replays it. Like the runner, called only from plain callbacks of the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.clock import Instant
from holdfast.contract.rows import Message
from holdfast.engine.runs.resident import Pausing, Resident

if TYPE_CHECKING:
    from holdfast.engine.runs.runner import Runner

ACTS = frozenset({"pause", "resume"})


def standing_pause(messages: Sequence[Message]) -> Message | None:
    """Return the pause that is in force after these inbox rows: not taken back, and not overtaken by a cancel."""
    pause: Message | None = None
    for message in messages:
        if message.kind == "cancel":
            return None
        if message.kind in ACTS:
            pause = message if message.kind == "pause" else None
    return pause


def until(pause: Message) -> Instant | None:
    """Return when a pause ends by itself."""
    return int(pause.payload) if pause.payload else None


class Pauses:
    """Runs on their way to being paused."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def begin(self, resident: Resident, pause: Message) -> None:
        """Let a run begin nothing more."""
        resident.pausing = Pausing(until(pause))
        self._runner.attempts.stop_queued(resident)
        self.check(resident)

    def told(self, resident: Resident, messages: Sequence[Message]) -> None:
        """Take in what somebody says to a run that is pausing; all but acts waits for whoever continues it."""
        assert resident.pausing is not None
        for message in messages:
            if message.kind == "pause":
                resident.pausing.until, resident.pausing.resumed = until(message), False
            elif message.kind == "resume":
                resident.pausing.resumed = True
            elif message.kind == "cancel":
                resident.pausing.cancelled = True
            else:
                continue
            if message.kind in ACTS:
                resident.taken = [*(resident.taken or ()), message.n]
        if resident.pausing.cancelled:
            self._runner.attempts.stop_all(resident, "the run was cancelled")
        self.check(resident)

    def check(self, resident: Resident) -> None:
        """Let a run go once nothing of it is under way."""
        if resident.pausing is not None and not (resident.gone or resident.attempts or resident.commits):
            self._runner.departures.pause(resident)
