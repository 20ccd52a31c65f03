"""Attempts in queues under limits: the worker that takes a task takes its place, or puts it in line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.contract.limits import TakenTask, TakeTasks, TasksTaken
from holdfast.contract.rows import Task
from holdfast.contract.turns import EnterLimit
from holdfast.stores.sql.tables import Row

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch

_MOST = 100
"""How many attempts are put in line by one operation, at most."""


async def take_tasks(batch: Batch, operation: TakeTasks) -> TasksTaken:
    """Take attempts that have a place, and put those in line that must wait, until there is no room or none is left."""
    statements, limits = batch.statements, batch.limits
    if operation.room <= 0 or not await batch.lives(operation.worker):
        return TasksTaken()
    await batch.flush()
    batch.forget_woken()
    due = await statements.read("due_task_turns", [(operation.limit, operation.now, operation.room)])
    for run, location in due:
        await statements.write("unpark_task", [(run, location)])
    taken: list[TakenTask] = []
    in_line, more = 0, True
    while len(taken) < operation.room and in_line < _MOST:
        wanted = operation.room - len(taken)
        found = await _waiting(batch, operation, wanted)
        for row in found:
            made = await _take(batch, operation, row)
            if made is not None:
                taken.append(made)
            else:
                in_line += 1
        more = len(found) == wanted and not limits.is_full(operation.limit)
        if not more:
            break
    [(turn,)] = await statements.read("next_task_turn", [(operation.limit,)])
    woke = batch.forget_woken()
    return TasksTaken(tuple(taken), more and not taken, None if turn is None else int(turn), woke)


async def _waiting(batch: Batch, operation: TakeTasks, limit: int) -> list[Row]:
    """Return the first attempts that wait and are not in line, by priority, then oldest first, or oldest first only."""
    statements, found = batch.statements, []
    for queue in operation.queues:
        room = limit
        if queue in operation.at_once:
            [(running,)] = await statements.read("running_tasks", [(queue,)])
            room = min(limit, operation.at_once[queue] - int(running or 0))
        if room <= 0:
            continue
        waiting: list[Row] = []
        for activity in operation.activities:
            if operation.oldest:
                for (priority,) in await statements.read("task_priorities", [(queue, activity)]):
                    waiting += await statements.read("limited_tasks_of_priority", [(queue, activity, room, priority)])
            else:
                waiting += await statements.read("limited_tasks", [(queue, activity, room)])
        found += sorted(waiting, key=_age if operation.oldest else _order)[:room]
    return sorted(found, key=_age if operation.oldest else _order)[:limit]


async def _take(batch: Batch, operation: TakeTasks, row: Row) -> TakenTask | None:
    """Make an attempt the worker's if it has its place; None if it is put in line."""
    priority, _, run, location, run_id, workflow, attempt, queue, activity, payload, key = row
    enter = EnterLimit(
        limit=operation.limit,
        key=str(key),
        location=str(location),
        worker=operation.worker,
        now=operation.now,
        priority=-int(priority or 0),
    )
    answer = await batch.limits.enter_task(int(run or 0), enter, operation.at)
    if answer.outcome == "waits":
        return None
    await batch.statements.write("own_task", [(operation.worker, run, location)])
    task = Task(
        run=int(run or 0),
        run_id=str(run_id),
        workflow=str(workflow),
        location=str(location),
        attempt=int(attempt or 0),
        queue=str(queue),
        activity=str(activity),
        payload=str(payload),
    )
    return TakenTask(task, str(key), answer)


def _order(row: Row) -> tuple[int, int, int, str]:
    return int(row[0] or 0), *_age(row)


def _age(row: Row) -> tuple[int, int, str]:
    return int(row[1] or 0), int(row[2] or 0), str(row[3])
