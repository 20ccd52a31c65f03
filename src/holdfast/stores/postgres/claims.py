"""Handing due runs, and attempts that wait in queues, to a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection

from holdfast.clock import Instant
from holdfast.contract.rows import Claim, Task
from holdfast.contract.store import POISON_ERROR, POISON_TRIALS
from holdfast.stores.postgres.database import BEGIN, Database
from holdfast.stores.postgres.statements import encoded, found
from holdfast.stores.rules.claims import with_deaths
from holdfast.stores.sql.tables import record_of


class PostgresClaims:
    """What workers take from one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def runs(
        self, worker: str, now: Instant, limit: int, workflows: Sequence[str], *, stuck: bool
    ) -> list[Claim]:
        """Take due runs; see Store.claim."""
        if limit <= 0:
            return []
        known = encoded(workflows)
        rows = await self._take("claim_runs", worker, now, limit, known)
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

    async def tasks(self, worker: str, limit: int, queues: Sequence[str], activities: Sequence[str]) -> list[Task]:
        """Take attempts from queues; see Store.claim_tasks."""
        rows = await self._take("claim_tasks", worker, limit, encoded(queues), encoded(activities))
        return [record_of(Task, row[1:]) for row in sorted(rows)]

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
