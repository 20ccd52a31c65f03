"""Pausing a run: begin nothing more, let what is under way finish and record it, then let the run go.

While a run is pausing its code does not go on, so the results of its steps are only recorded; the worker that continues
the run later replays them. Like the runner, called only from plain callbacks of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.clock import Instant
from holdfast.contract.rows import InboxKind, Message
from holdfast.engine.runs.ports import Steps
from holdfast.engine.runs.resident import PAUSING, Resident

_ACTS = frozenset({InboxKind.PAUSE, InboxKind.RESUME})


def standing_pause(messages: Sequence[Message]) -> Message | None:
    """Return the pause that is in force after these inbox rows: not taken back, and not followed by a cancel."""
    pause: Message | None = None
    for message in messages:
        if message.kind == InboxKind.CANCEL:
            return None
        if message.kind in _ACTS:
            pause = message if message.kind == InboxKind.PAUSE else None
    return pause


def until(pause: Message) -> Instant | None:
    """Return when a pause ends by itself."""
    return int(pause.payload) if pause.payload else None


class Pauses:
    """Runs on their way to being paused."""

    def __init__(self, steps: Steps, let_go: Callable[[Resident], None]) -> None:
        self._steps = steps
        self._let_go = let_go

    def begin(self, resident: Resident, pause: Message) -> None:
        """Let a run begin nothing more."""
        resident.begin_pause(until(pause))
        self._steps.stop_queued(resident)
        self.check(resident)

    def hold_back(self, resident: Resident) -> None:
        """Let a run go whose workflow or queue is paused: once nothing is under way, it waits for a worker again.

        One that is being cancelled goes on: it only ends what it began.
        """
        journal = resident.execution.journal
        if journal.cancelling is None or journal.compensating:
            pausing = resident.begin_pause(None)
            pausing.resumed = True
            self._steps.stop_queued(resident)
            self.check(resident)

    def told(self, resident: Resident, messages: Sequence[Message]) -> None:
        """Take in what operators say to a run that is pausing; all other rows wait for the worker that continues it."""
        pausing = resident.pausing
        assert pausing is not None
        for message in messages:
            if message.kind == InboxKind.PAUSE:
                pausing.until, pausing.resumed = until(message), False
            elif message.kind == InboxKind.RESUME:
                pausing.resumed = True
            elif message.kind == InboxKind.CANCEL:
                pausing.cancelled = True
            if message.kind in _ACTS:
                resident.read_rows([message.n])
        if pausing.cancelled:
            self._steps.stop_all(resident, "the run was cancelled")
        self.check(resident)

    def check(self, resident: Resident) -> None:
        """Let a run go if it is pausing and nothing of it is under way.

        To be called whenever something of a run has ended that no commit follows: a run that is missed here is in
        memory for ever, with an owner, and no worker goes on with it.
        """
        if resident.phase is PAUSING and not (resident.attempts or resident.telling or resident.commits):
            self._let_go(resident)
