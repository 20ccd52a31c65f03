"""What every SQL store does alike: looking."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.clock import Instant
from holdfast.contract.rows import (
    AuditRow,
    Counts,
    EntryRow,
    EvidenceRow,
    Held,
    History,
    LetterFilter,
    LetterRow,
    Message,
    RunFilter,
    RunRow,
    ScheduleRow,
    Standing,
)
from holdfast.contract.store import Store
from holdfast.stores.liveness import Fate
from holdfast.stores.sql import reads
from holdfast.stores.sql.statements import Statements

T = TypeVar("T")
Look = Callable[[Statements], Coroutine[Any, Any, T]]


class SQLStore(Store):
    """A store whose reads are the statements of queries/reads.sql."""

    kind: str
    """The folder of its schema."""

    @abstractmethod
    async def look(self, look: Look[T], *, together: bool = False, patient: bool = False) -> T:
        """Read what is committed; with `together` all of it as of one moment, where it takes several statements.

        It must not take longer than a server is waited for, unless `patient`.
        """

    @abstractmethod
    async def exclusive(self, work: Look[T]) -> T:
        """Write in one transaction while no other process does: all or nothing."""

    @abstractmethod
    async def fates(self) -> dict[str, Fate]:
        """Return what became of workers that were not declared dead and do not seem to be at work."""

    async def undelivered(self, statements: Statements) -> bool:
        """Tell whether there are messages that were committed and not delivered yet (see Store.relay)."""
        return False

    async def load(self, keys: Sequence[int]) -> list[History]:
        return await self.look(lambda db: reads.load(db, keys), together=True)

    async def inboxes(self, after: Mapping[int, int]) -> dict[int, list[Message]]:
        return await self.look(lambda db: reads.inboxes(db, after))

    async def held(self, worker: str) -> list[Held]:
        return await self.look(lambda db: reads.held(db, worker))

    async def held_tasks(self, worker: str) -> list[tuple[int, str, int]]:
        return await self.look(lambda db: reads.held_tasks(db, worker))

    async def get(self, run_id: str) -> RunRow | None:
        return await self.look(lambda db: reads.get(db, run_id))

    async def standings(self, run_ids: Sequence[str]) -> dict[str, Standing]:
        return await self.look(lambda db: reads.standings(db, run_ids))

    async def runs(self, which: RunFilter) -> list[RunRow]:
        return await self.look(lambda db: reads.list_runs(db, which))

    async def history(self, key: int, *, archived: bool = False) -> list[EntryRow]:
        return await self.look(lambda db: reads.entries(db, key, "read_archive" if archived else "read_entries"))

    async def letters(self, which: LetterFilter) -> list[LetterRow]:
        return await self.look(lambda db: reads.list_letters(db, which))

    async def audit(self, target: str | None = None, after: int = 0, limit: int = 1000) -> list[AuditRow]:
        return await self.look(lambda db: reads.audit(db, target, after, limit))

    async def evidence(self, run_id: str, after: int = 0, limit: int = 1000) -> list[EvidenceRow]:
        return await self.look(lambda db: reads.evidence(db, run_id, after, limit))

    async def schedules(self, due: Instant | None = None) -> list[ScheduleRow]:
        return await self.look(lambda db: reads.schedules(db, due))

    async def replies(self, messages: Sequence[str]) -> dict[str, str]:
        return await self.look(lambda db: reads.replies(db, messages))

    async def beats(self, key: int) -> dict[str, tuple[Instant, str]]:
        return await self.look(lambda db: reads.beats(db, key))

    async def counts(self) -> Counts:
        return await self.look(reads.counts, together=True)
