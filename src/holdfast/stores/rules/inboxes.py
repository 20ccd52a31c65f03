"""The inboxes of runs: a row that is put there makes its run due, unless the run is held back."""

from __future__ import annotations

from holdfast.clock import Instant
from holdfast.contract.rows import InboxKind, Message, RunPlace, Status
from holdfast.stores.rules.rows import BatchRows
from holdfast.stores.sql.tables import StoredRun

_STILL = frozenset({Status.BLOCKED, Status.PAUSED, Status.MOVING})
"""What no inbox row makes due."""


class Inboxes(BatchRows):
    """What a batch puts into inboxes."""

    def put(self, run: StoredRun, kind: InboxKind, name: str, id: str, payload: str, at: Instant) -> Message:
        """Put a row into a run's inbox and return it; the run is due then, unless it is held back."""
        return self.put_row(run, Message(run.inbox + 1, kind, name, id, payload, at), at)

    def put_row(self, run: StoredRun, row: Message, now: Instant) -> Message:
        """Do likewise with a row, which may be older (an event that was published before) than it is in this inbox."""
        run.inbox += 1
        if run.status not in _STILL and run.place != RunPlace.WAITS:
            wanted = self.beginning(run, now)
            if run.due is None or run.due > wanted:
                run.due = wanted
        row = row._replace(n=run.inbox) if row.n != run.inbox else row
        self._inbox.setdefault(run.key, {})[run.inbox] = row
        self._woken.add(run.key)
        self.touch(run, now)
        return row

    def note_woken(self, run: StoredRun) -> None:
        """Note that workers should look for what a run waits for, though there is nothing in its inbox."""
        self._woken.add(run.key)

    def forget_woken(self) -> bool:
        """Tell whether there are such runs, or others were put something into their inboxes, and note it no more."""
        woken = bool(self._woken)
        self._woken.clear()
        return woken

    def beginning(self, run: StoredRun, at: Instant) -> Instant:
        """Return from when a run may be driven: at once, but not before it begins."""
        return max(at, run.begins) if run.begins is not None and not run.epoch else at
