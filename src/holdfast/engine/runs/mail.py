"""Every door by which an inbox row reaches a run in memory.

| door | the row comes |
|---|---|
| `early` | before its commit: this process sends a message to a run that waits for it here |
| `delivered` | with its commit: this process put it into the inbox, alone or (`_hand_over`) with others |
| `take_all`, `take` | after another process committed it: the worker looked, or a commit of the run itself was told |
| `sort` | with the history: the run was just claimed |

A run takes rows in the order of their numbers and without a gap; `without_gap` is the one check of that. Like the
runner, called only from plain callbacks of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.contract.rows import FOR_CODE, InboxKind, Message
from holdfast.engine.runs.pauses import Pauses, standing_pause
from holdfast.engine.runs.ports import Runs, Steps
from holdfast.engine.runs.resident import FINISHING, PAUSING, Resident
from holdfast.engine.steps.queue.outgoing import QueuedSteps
from holdfast.engine.worker.committer import Committer

_EVENTS = frozenset({InboxKind.EVENT, InboxKind.NOTICE})
_DELETED_AS_READ = frozenset(
    {InboxKind.PAUSE, InboxKind.RESUME, InboxKind.KEY_FREED, InboxKind.LIMIT_TURN, InboxKind.NUDGE}
)
"""Kinds of rows for the worker of which nothing is recorded."""


class Sorted(NamedTuple):
    """Inbox rows by what they are for."""

    code: list[Message]
    """For the code: messages, events, ends of children, a cancel."""
    ends: list[Message]
    """Ends of attempts that were in a queue or in a transaction."""
    pause: Message | None
    """The pause that is in force after them."""


def without_gap(seen: int, rows: Sequence[Message]) -> list[Message] | None:
    """Return the rows after those that a run has seen, None if one between them is missing here."""
    fresh = [row for row in rows if row.n > seen]
    whole = all(row.n == seen + place for place, row in enumerate(fresh, 1))
    return fresh if whole else None


class Mail:
    """The inbox rows of the runs in memory."""

    def __init__(self, runs: Runs, steps: Steps, queued: QueuedSteps, pauses: Pauses, committer: Committer) -> None:
        self._runs = runs
        self._steps = steps
        self._queued = queued
        self._pauses = pauses
        self._committer = committer
        self._together: dict[int, list[Message]] = {}
        """Rows of commits that are being answered together, by run."""

    @property
    def busy(self) -> bool:
        """Whether rows wait to be handed over."""
        return bool(self._together)

    def early(self, run_id: str, message: Message) -> None:
        """Hand a message to a run that waits for it here, together with the commit that puts it into its inbox.

        That commit has been asked for just before. If a row of another process is there first, the store refuses the
        turn (`InboxMoved`), and the run is continued from what is durable.
        """
        resident = self._runs.ids.get(run_id)
        if resident is not None and resident.awaits(message.name):
            resident.saw_rows(resident.seen + 1, early=True)
            self._runs.deliver(resident, [message._replace(n=resident.seen)])

    def delivered(self, key: int, row: Message) -> None:
        """Hand over a row that this process put into the inbox of a run that is in memory."""
        if self._committer.in_hand <= 1:
            self._hand_over({key: [row]})
            return
        # Many may be for one run: it takes them together, in one turn.
        if not self._together:
            asyncio.get_running_loop().call_soon(self._hand_over_together)
        self._together.setdefault(key, []).append(row)

    def _hand_over_together(self) -> None:
        together, self._together = self._together, {}
        with self._committer.together():
            self._hand_over(together)

    def _hand_over(self, rows_by_run: Mapping[int, list[Message]]) -> None:
        for key, rows in rows_by_run.items():
            resident = self._runs.residents.get(key)
            fresh = without_gap(resident.seen, rows) if resident is not None else None
            if fresh is None:
                self._runs.host.look()  # another process put rows between them
            else:
                self.take(key, fresh)

    def take_all(self, inboxes: Mapping[int, Sequence[Message]]) -> None:
        """Hand over what the store has in the inboxes of some runs."""
        with self._committer.together():
            for key, rows in inboxes.items():
                self.take(key, rows)

    def take(self, key: int, rows: Sequence[Message]) -> None:
        """Hand a run the inbox rows that it has not seen; the store gave all of them, or there is no gap."""
        resident = self._runs.residents.get(key)
        if resident is None or resident.phase >= FINISHING:
            return
        fresh = [row for row in rows if row.n > resident.seen]
        if not fresh:
            self._pauses.check(resident)  # it may have seen the end of a body before that was told
            return
        resident.saw_rows(fresh[-1].n)
        if resident.phase is PAUSING:
            self._pauses.told(resident, fresh)
            return
        code, rows_of_tasks, pause = self.sort(resident, fresh)
        if pause is not None:
            self._pauses.begin(resident, pause)
            return
        events = {row.name for row in fresh if row.kind in _EVENTS}
        if events:
            resident.events_came(events)
        begin = [
            verb
            for row in fresh
            if row.kind == InboxKind.KEY_FREED
            for verb in self._steps.key_is_free(resident, row.name)
        ]
        begin += self._steps.turns_came(resident, [row for row in fresh if row.kind == InboxKind.LIMIT_TURN])
        begin += self._steps.nudged(resident, fresh)
        ends = self._queued.expected(resident, rows_of_tasks)
        if begin or not (code or ends):
            self._runs.note(resident, begin=begin)
        if code:
            self._runs.deliver(resident, code)
        for end in ends:
            self._queued.ended(resident, end)

    def sort(self, resident: Resident, rows: Sequence[Message]) -> Sorted:
        """Tell the rows for the code from those for its worker.

        The latter are deleted as read, but for the ends of attempts, which have to be recorded.
        """
        read = [row.n for row in rows if row.kind in _DELETED_AS_READ]
        if read:
            resident.read_rows(read)
        code = [row for row in rows if row.kind in FOR_CODE]
        return Sorted(code, [row for row in rows if row.kind == InboxKind.TASK_ENDED], standing_pause(rows))
