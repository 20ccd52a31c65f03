"""The fence: a worker writes to a run only in the epoch in which it claimed it, and to none that has ended.

Each claim raises a run's epoch, so a write of a worker that hung or lost its lease meanwhile is refused here, and
`batch.py` answers `Fenced`. For turns that only add facts, the statement that writes them has the same condition, and
reports the rows that it did not write (`facts.py`): `insert_facts` in `sql/queries/batch.sql`, `append_one` and
`append_two` in `sqlite/queries/hot.sql`, `append_facts` in `postgres/queries/postgres.sql`. An attempt in a queue has a
separate fence: its number and the worker that took it (`tasks.py`).
"""

from __future__ import annotations

from typing import TypeGuard

from holdfast.contract.operations import Committed, Fenced, Outcome
from holdfast.contract.turns import CommitTurn
from holdfast.stores.sql.tables import Row, StoredRun


def may_write(run: StoredRun | None, epoch: int) -> TypeGuard[StoredRun]:
    """Whether a worker that claimed a run in an epoch has it still."""
    return run is not None and run.ended is None and run.epoch == epoch


def outcome_of(turn: CommitTurn, fenced: set[Row]) -> Outcome:
    """Return what came of a turn that only added facts."""
    return Fenced(turn.key) if (turn.key, turn.epoch) in fenced else Committed(turn.key)
