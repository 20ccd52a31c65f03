"""Waiting for a run from outside: its answer to a request, its next change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class Waiters:
    """Whoever waits for news of a run: woken to look again when this engine, or another process, may have some."""

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
        """Let those who wait for a run look again."""
        for news in self._waiting.pop(run_id, ()):
            if not news.done():
                news.set_result(None)

    def wake_all(self) -> None:
        """Let everybody look again: another process may have committed."""
        for run_id in list(self._waiting):
            self.wake(run_id)

    def fail(self, error: Callable[[str], Exception]) -> None:
        """Tell everybody that there will be no news."""
        for run_id, waiting in self._waiting.items():
            for news in waiting:
                if not news.done():
                    news.set_exception(error(run_id))
        self._waiting.clear()
