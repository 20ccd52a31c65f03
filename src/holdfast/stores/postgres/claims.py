"""Handing due runs, and attempts that wait in queues, to a worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from psycopg import AsyncConnection

from holdfast.clock import Instant
from holdfast.contract.rows import Claim, Task
from holdfast.contract.store import POISON_ERROR, POISON_TRIALS
from holdfast.contract.turns import Lane
from holdfast.stores.liveness import with_deaths
from holdfast.stores.postgres.connections import in_pipeline
from holdfast.stores.postgres.database import BEGIN, Database
from holdfast.stores.postgres.statements import encoded, found, lane_lock, name_lock
from holdfast.stores.rules.flow.line import Line
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import record_of


async def _any_lane(db: Statements, now: Instant, workflows: Iterable[str]) -> list[str]:
    """Return the workflows with a lane that is in line or to be called in."""
    return [
        workflow
        for workflow in workflows
        if await db.read("lane_priorities", [(workflow,)]) or await db.read("ready_lanes", [(workflow, now, 1)])
    ]


class PostgresClaims:
    """What workers take from one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def runs(
        self, worker: str, now: Instant, limit: int, workflows: Sequence[str], *, stuck: bool, oldest: bool = False
    ) -> list[Claim]:
        """Take due runs; see Store.claim."""
        if limit <= 0:
            return []
        known = encoded(workflows)
        rows = await self._take("claim_runs", worker, now, limit, known, int(oldest))
        if not rows and stuck:
            rows = await self._database.insist(
                self._database.connections.writer,
                lambda connection: self._take_stuck(connection, worker, now, known),
                twice=False,
            )
        claims = [record_of(Claim, row[1:]) for row in sorted(rows)]
        if any(claim.died is not None for claim in claims):
            [(deaths,)] = await self._database.ask("recent_deaths")
            return with_deaths(claims, int(deaths or 0))
        return claims

    async def waiting(
        self, worker: str, now: Instant, limit: int, lanes: Mapping[str, Lane], full: bool
    ) -> list[Claim]:
        """Take runs that wait in lanes; see Store.claim_waiting."""
        database = self._database
        in_line = list(lanes) if full else await database.look(lambda db: _any_lane(db, now, lanes))
        if limit <= 0 or not in_line:
            return []
        names = encoded(sorted({lane_lock(workflow) for workflow in in_line}))

        async def work(connection: AsyncConnection[Any]) -> list[Claim]:
            statements = database.on(connection)
            async with in_pipeline(connection, database.connections.dialect):
                await connection.execute(BEGIN)
                await statements.execute("limit_lock_waits", ())
                await statements.execute("lock_names", (names,))
                rules = {name: lanes[name] for name in in_line}
                claims = await Line(statements, worker, now, rules).take(limit, full)
                await connection.execute("COMMIT")
            return claims

        return await database.insist(database.connections.writer, work, twice=False)

    async def tasks(
        self,
        worker: str,
        limit: int,
        queues: Sequence[str],
        activities: Sequence[str],
        at_once: Mapping[str, int],
        oldest: bool,
    ) -> list[Task]:
        """Take attempts from queues; see Store.claim_tasks."""
        statement = "claim_oldest_tasks" if oldest else "claim_tasks"
        free = [queue for queue in queues if queue not in at_once] if at_once else queues
        rows: list[tuple[Any, ...]] = []
        if free:
            rows = sorted(await self._take(statement, worker, limit, encoded(free), encoded(activities)))
        for queue in (queue for queue in queues if queue in at_once):
            if len(rows) < limit:
                wanted = (worker, limit - len(rows), encoded([queue]), encoded(activities))
                rows += await self._take_limited(statement, queue, at_once[queue], wanted)
        return [record_of(Task, row[1:]) for row in rows]

    async def _take_limited(
        self, statement: str, queue: str, most: int, wanted: tuple[str, int, str, str]
    ) -> list[tuple[Any, ...]]:
        """Take attempts from a queue of which only so many may run at once: one worker at a time asks."""
        worker, limit, *what = wanted
        name = encoded([name_lock("queue", queue)])

        async def work(connection: AsyncConnection[Any]) -> list[tuple[Any, ...]]:
            statements = self._database.on(connection)
            await connection.execute(BEGIN)
            await statements.execute("limit_lock_waits", ())
            await statements.execute("lock_names", (name,))
            [(running,)] = await statements.read("running_tasks", [(queue,)])
            room = min(limit, most - int(running or 0))
            rows = await found([await statements.execute(statement, (worker, room, *what))]) if room > 0 else []
            await connection.execute("COMMIT")
            return sorted(rows)

        return await self._database.insist(self._database.connections.writer, work, twice=False)

    async def _take(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement that takes something; what it took, should its answer be lost, its worker is told later."""

        async def work(connection: AsyncConnection[Any]) -> list[tuple[Any, ...]]:
            return await found([await self._database.on(connection).execute(name, values)])

        return await self._database.insist(self._database.connections.reader, work, twice=False)

    async def _take_stuck(
        self, connection: AsyncConnection[Any], worker: str, now: Instant, known: str
    ) -> list[tuple[Any, ...]]:
        """Take the next run that was claimed before without progress; those that never get anywhere are blocked."""
        statements = self._database.on(connection)
        await connection.execute(BEGIN)
        rows: list[tuple[Any, ...]] = []
        while due := await found([await statements.execute("due_stuck", (now, known))]):
            [(key, claims)] = due
            if int(claims or 0) <= 2 * POISON_TRIALS:
                if not await statements.read("stuck_running", [(worker,)]):
                    rows = await found([await statements.execute("claim_stuck", (worker, now, key))])
                break
            await statements.write("block_poison", [(key, now)])
            await statements.write("put_results", [(key, None, POISON_ERROR, None, None)])
        await connection.execute("COMMIT")
        return rows

    async def own_due(self, worker: str, now: Instant) -> list[int]:
        """Return the runs of a worker that are due; see Store.due."""
        return [int(key or 0) for (key,) in await self._database.ask("own_due", worker, now)]

    async def next_due(self, workflows: Sequence[str] | None) -> Instant | None:
        """Return when the next claimable run becomes due; see Store.next_due."""
        if workflows is None:
            [(due,)] = await self._database.ask("next_due_of_any")
        else:
            [(due,)] = await self._database.ask("next_due", encoded(workflows))
        return None if due is None else int(due)
