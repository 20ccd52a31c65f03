"""Handing due runs, and attempts that wait in queues, to a worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import apsw

from holdfast.clock import Instant
from holdfast.contract.rows import Claim, Task
from holdfast.contract.store import POISON_ERROR, POISON_TRIALS
from holdfast.stores.liveness import with_deaths
from holdfast.stores.sql.tables import record_of
from holdfast.stores.sqlite.statements import MANY, SQL, json_rows

_Due = tuple[Any, ...]  # minus priority, due, key, claims, lost, status


def next_due(db: apsw.Connection, workflows: Sequence[str] | None) -> Instant | None:
    """Return when the next claimable run becomes due."""
    known = None if workflows is None else json_rows(workflows)
    dues = [
        due for owner in _free_owners(db) for (due,) in db.execute(SQL["next_due"], (owner, known)) if due is not None
    ]
    return min(dues, default=None)


def anything_due(db: apsw.Connection, now: Instant, workflows: Sequence[str]) -> bool:
    """Whether a claim would find anything, asked before taking the write lock."""
    due = next_due(db, workflows)
    return due is not None and due <= now


def claim(
    db: apsw.Connection,
    worker: str,
    now: Instant,
    limit: int,
    *,
    workflows: Sequence[str],
    stuck: bool,
    oldest: bool = False,
) -> list[Claim]:
    """Take due runs, inside a write transaction; see Store.claim."""
    if not db.execute(SQL["live_worker"], (worker,)).fetchall():
        return []
    known = json_rows(workflows)
    due = _due(db, now, known, limit, stuck=False, oldest=oldest)
    if not due and limit > 0 and stuck:
        due = _next_stuck(db, worker, now, known)
    if not due:
        return []
    db.execute(SQL["take_runs"], (worker, now, json_rows([key for _, _, key, _, _, _ in due])))
    taken = json_rows([(key, lost, status, at) for _, at, key, _, lost, status in due])
    claims = [record_of(Claim, row) for row in db.execute(MANY["taken_runs"], (taken,))]
    if any(claim.died is not None for claim in claims):
        [(deaths,)] = db.execute(SQL["recent_deaths"])
        return with_deaths(claims, deaths)
    return claims


def any_lane(db: apsw.Connection, now: Instant, workflows: Iterable[str]) -> bool:
    """Whether a lane is in line or to be called in, asked before taking the write lock."""
    return any(
        db.execute(SQL["lane_priorities"], (workflow,)).fetchall()
        or db.execute(SQL["ready_lanes"], (workflow, now, 1)).fetchall()
        for workflow in workflows
    )


def any_task(db: apsw.Connection, queues: Sequence[str], activities: Sequence[str]) -> bool:
    """Whether anything waits in queues, asked before taking the write lock."""
    found = (db.execute(SQL["waiting_tasks"], (queue, name, 1)).fetchall() for queue in queues for name in activities)
    return any(found)


def claim_tasks(
    db: apsw.Connection,
    worker: str,
    limit: int,
    queues: Sequence[str],
    activities: Sequence[str],
    at_once: Mapping[str, int],
    oldest: bool,
) -> list[Task]:
    """Take attempts from queues, inside a write transaction."""
    if not db.execute(SQL["live_worker"], (worker,)).fetchall():
        return []
    order = (lambda row: row[1:]) if oldest else None
    waiting: list[tuple[Any, ...]] = []
    for queue in queues:
        room = limit
        if queue in at_once:
            [(running,)] = db.execute(SQL["running_tasks"], (queue,))
            room = min(limit, at_once[queue] - running)
        if room > 0:
            found = [row for activity in activities for row in _waiting_tasks(db, queue, activity, room, oldest)]
            waiting += sorted(found, key=order)[:room]
    taken: list[Task] = []
    for _, _, run, location in sorted(waiting, key=order)[:limit]:
        db.execute(SQL["take_task"], (worker, run, location))
        [row] = db.execute(SQL["taken_task"], (run, location))
        taken.append(record_of(Task, row))
    return taken


def _waiting_tasks(db: apsw.Connection, queue: str, activity: str, limit: int, oldest: bool) -> list[tuple[Any, ...]]:
    if not oldest:
        return db.execute(SQL["waiting_tasks"], (queue, activity, limit)).fetchall()
    priorities = db.execute(SQL["task_priorities"], (queue, activity)).fetchall()
    return [row for each in priorities for row in db.execute(SQL["tasks_of_priority"], (queue, activity, limit, *each))]


def _due(db: apsw.Connection, now: Instant, known: str, limit: int, *, stuck: bool, oldest: bool = False) -> list[_Due]:
    owners = _free_owners(db)
    found: list[_Due] = []
    for owner in owners:
        left = limit
        for (priority,) in db.execute(SQL["priorities"], (owner,)).fetchall():
            if left <= 0:
                break
            rows = db.execute(SQL["due_runs"], (owner, now, known, left, stuck, priority)).fetchall()
            found += rows
            left -= 0 if oldest else len(rows)
    if oldest:
        return sorted(found, key=_overdue)[:limit]
    return sorted(found)[:limit] if len(owners) > 1 else found


def _overdue(run: _Due) -> tuple[Instant, int]:
    return run[1], run[2]


def _next_stuck(db: apsw.Connection, worker: str, now: Instant, known: str) -> list[_Due]:
    """Return the next run that was claimed before without progress; those that never got anywhere are blocked."""
    while due := _due(db, now, known, 1, stuck=True):
        _, _, key, claims, _, _ = due[0]
        if claims <= 2 * POISON_TRIALS:
            break
        db.execute(SQL["block_poison"], (key, now))
        db.execute(SQL["put_results"], (key, None, POISON_ERROR, None, None))
    if due and db.execute(SQL["stuck_running"], (worker,)).fetchall():
        return []
    return due


def _free_owners(db: apsw.Connection) -> list[str | None]:
    return [None, *(worker for (worker,) in db.execute(SQL["dead_workers"]))]
