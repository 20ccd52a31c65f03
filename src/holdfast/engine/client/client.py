"""What a handle needs of its engine: the RunPort of a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from holdfast.changes import Change
from holdfast.contract.rows import EntryRow, LetterFilter, Message, RunRow, RunStanding
from holdfast.contract.store import Store
from holdfast.definitions import Registry
from holdfast.engine.client.follow import follow
from holdfast.engine.client.link import Link
from holdfast.engine.client.messages import Messaging
from holdfast.engine.client.operate import RunControl
from holdfast.engine.client.waiting import NewsWaiters, ResultWaiters
from holdfast.engine.views.reasons import paused_by
from holdfast.engine.views.run import Run, run_of
from holdfast.engine.worker.committer import from_callback

if TYPE_CHECKING:
    from holdfast.engine.views.timeline import TimelineItem

T = TypeVar("T")


class Patience(Protocol):
    """Waits for something that runs bring about; a clock that jumps does so meanwhile."""

    def __call__(self, coming: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]: ...


class Client(msgspec.Struct, frozen=True):
    """The side of an engine that looks at runs, talks to them and acts on them."""

    link: Link
    registry: Registry
    control: RunControl
    messaging: Messaging
    results: ResultWaiters
    news: NewsWaiters
    patiently: Patience

    @property
    def store(self) -> Store:
        """Where the runs are."""
        return self.link.store

    @property
    def patience(self) -> float:
        """How many seconds a call of a caller may take."""
        return self.link.patience

    async def row(self, run_id: str) -> RunRow:
        """Return a run as the store has it.

        Raises:
            NoSuchRun: there is no such run (any more).
        """
        return await self.link.row(run_id)

    async def describe(self, run_id: str) -> Run:
        """Return everything known about a run, with what an operator paused that holds it back."""
        row = await self.link.row(run_id)
        run, queue = run_of(row), self.link.worker.runner.queues.queue_of(row.workflow)
        return replace(run, paused=await paused_by(self.store, row, run.waiting_for, queue))

    async def inbox(self, row: RunRow) -> list[Message]:
        """Return what was sent to a run and its code has not taken."""
        return (await self.store.inboxes({row.key: 0}))[row.key]

    async def history(self, row: RunRow) -> list[EntryRow]:
        """Return a run's entries, in order."""
        return await self.store.history(row.key)

    async def beats(self, row: RunRow) -> dict[str, tuple[int, str]]:
        """Return what steps under way said of their progress."""
        return await self.store.beats(row.key)

    async def timeline(self, run_id: str) -> list[TimelineItem]:
        """Return all that happened to a run and was done to it, in order of time."""
        from holdfast.engine.views.timeline import timeline

        row, store = await self.link.row(run_id), self.store
        return timeline(
            row,
            await store.history(row.key),
            await store.audit(run_id),
            await store.letters(LetterFilter(run=run_id)),
            await store.evidence(run_id),
            await store.history(row.key, archived=True),
        )

    def follow(self, run_id: str) -> AsyncIterator[Change]:
        """Yield what happens to a run from now on."""
        return follow(self.store, self.link.observers, self.news, run_id)

    async def evict(self, run_id: str) -> bool:
        """Let a run that waits leave the memory of this process; False if it is not there or something is under way.

        Raises:
            NoSuchRun: there is no such run (any more).
        """
        await self.link.row(run_id)
        return await from_callback(partial(self.link.worker.evict, run_id))

    async def end_of(self, run_id: str) -> RunStanding:
        """Wait for a run to end, or to be blocked.

        Raises:
            NoSuchRun: there is no such run (any more).
        """
        self.link.check_usable()
        return await self.patiently(self.results.end_of(run_id))

    async def reply_to(self, request: str, run_id: str) -> str:
        """Wait for a run's reply to a request.

        Raises:
            RunTerminal, RunBlocked: none will come.
        """

        async def look() -> str | None:
            return await self.messaging.reply_to(request, run_id)

        return await self.patiently(self.news.until(run_id, look))
