"""What a handle needs of its engine."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.contract.rows import RunRow, RunStanding
from holdfast.contract.store import Store
from holdfast.definitions import Registry
from holdfast.engine.client.link import Link
from holdfast.engine.client.messages import Messaging
from holdfast.engine.client.operate import RunControl
from holdfast.engine.client.waiting import NewsWaiters, ResultWaiters
from holdfast.engine.worker.committer import from_callback

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

    async def row(self, run_id: str) -> RunRow:
        """Return a run as the store has it.

        Raises:
            NoSuchRun: there is no such run (any more).
        """
        return await self.link.row(run_id)

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
