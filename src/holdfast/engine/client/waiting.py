"""Waiting for runs: for their results, their answers and their next change.

This engine's own worker wakes the caller, or the caller finds what it waits for in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import TypeVar

from holdfast.contract.rows import RunStanding, Status
from holdfast.contract.store import Store
from holdfast.errors import HoldfastError, NoSuchRun

T = TypeVar("T")

_AT_ONCE = 1000
"""How many runs one question to the store is about."""


def engine_stopped(run_id: str) -> HoldfastError:
    """Return what a caller is told that waits for a run when its engine stops."""
    return HoldfastError(f"the engine stopped before run {run_id!r} ended; the run goes on with the next one")


class ResultWaiters:
    """Callers that wait for the end of a run.

    `here` tells whether this engine's worker has a run in memory: then its end is told, and not looked for.
    """

    def __init__(self, store: Store, here: Callable[[str], bool]) -> None:
        self._store = store
        self._here = here
        self._waiting: dict[str, list[asyncio.Future[RunStanding]]] = {}
        self._unsure: dict[str, None] = {}
        """Runs to look for, in the order in which they were asked for."""
        self._looker: asyncio.Task[None] | None = None

    async def end_of(self, run_id: str) -> RunStanding:
        """Wait for a run to end, or to be blocked.

        Raises:
            NoSuchRun: there is no such run (any more).
        """
        end: asyncio.Future[RunStanding] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, []).append(end)
        if not self._here(run_id):
            self._look_for([run_id])
        try:
            return await end
        finally:
            waiting = self._waiting.get(run_id)
            if waiting is not None and end in waiting:
                waiting.remove(end)
                if not waiting:
                    del self._waiting[run_id]

    def ended(self, run_id: str, standing: RunStanding | None = None) -> None:
        """Tell that a run has ended; without its standing it only may have, and is looked for in the store."""
        if run_id not in self._waiting:
            return
        if standing is None:
            self._look_for([run_id])
            return
        for end in self._waiting.pop(run_id):
            if not end.done():
                end.set_result(standing)

    def look_again(self) -> None:
        """Look for every run in the store: another process may have committed."""
        self._look_for(self._waiting)

    def fail(self, error: Callable[[str], Exception]) -> None:
        """Tell all callers that there will be no news."""
        for run_id in list(self._waiting):
            self._refuse(run_id, error(run_id))

    def _look_for(self, run_ids: Iterable[str]) -> None:
        self._unsure.update(dict.fromkeys(run_ids))
        if self._unsure and (self._looker is None or self._looker.done()):
            self._looker = asyncio.get_running_loop().create_task(self._look(), name="holdfast results")

    async def _look(self) -> None:
        while self._unsure:
            wanted = list(islice(self._unsure, _AT_ONCE))
            for run_id in wanted:
                del self._unsure[run_id]
            wanted = [run_id for run_id in wanted if run_id in self._waiting]
            try:
                found = await self._store.standings(wanted) if wanted else {}
            except Exception as error:
                for run_id in wanted:
                    self._refuse(run_id, error)
                continue
            for run_id in wanted:
                standing = found.get(run_id)
                if standing is None:
                    self._refuse(run_id, NoSuchRun(run_id))
                elif standing.status.is_terminal or standing.status is Status.BLOCKED:
                    self.ended(run_id, standing)

    def _refuse(self, run_id: str, error: Exception) -> None:
        for end in self._waiting.pop(run_id, ()):
            if not end.done():
                end.set_exception(error)


class NewsWaiters:
    """Callers that wait for news of a run: woken to look again when this engine, or another process, may have some."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    async def until(self, run_id: str, look: Callable[[], Awaitable[T | None]]) -> T:
        """Look until there is something to see."""
        while True:
            # Listening before looking: what comes while the store is read must not be missed.
            news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(run_id, []).append(news)
            try:
                found = await look()
                if found is not None:
                    return found
                await news
            finally:
                waiting = self._waiting.get(run_id, [])
                if news in waiting:
                    waiting.remove(news)
                if not waiting:
                    self._waiting.pop(run_id, None)

    def wake(self, run_id: str) -> None:
        """Let the callers that wait for a run look again."""
        for news in self._waiting.pop(run_id, ()):
            if not news.done():
                news.set_result(None)

    def wake_all(self) -> None:
        """Let all callers look again: another process may have committed."""
        for run_id in list(self._waiting):
            self.wake(run_id)

    def fail(self, error: Callable[[str], Exception]) -> None:
        """Tell all callers that there will be no news."""
        for run_id, waiting in self._waiting.items():
            for news in waiting:
                if not news.done():
                    news.set_exception(error(run_id))
        self._waiting.clear()
