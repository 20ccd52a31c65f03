"""The house that a screen looks at: its desk is opened when it is asked, and again after it was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import tzinfo
from typing import TypeVar

from holdfast.errors import HoldfastError, StoreError
from holdfast.looking.desk import Desk

T = TypeVar("T")

Opening = Callable[[], AbstractAsyncContextManager[Desk]]
"""Opens a desk, and closes it when it is left."""


class House:
    """A desk to look at, kept open while it answers, and one to act at, opened for each act: looking changes nothing.

    Args:
        name: what is shown of it.
        look: opens the desk that only looks.
        act: opens one that acts.
        by: who acts.
        zone: the time zone of this person; None for that of the machine.
    """

    def __init__(self, name: str, look: Opening, act: Opening, by: str, zone: tzinfo | None = None) -> None:
        self.name = name
        self.by = by
        self.zone = zone
        self.reason = ""
        """Why the last act was done: it is likely to be why the next one is."""
        self._look = look
        self._act = act
        self._open = AsyncExitStack()
        self._desk: Desk | None = None
        self._asking = asyncio.Lock()

    async def ask(self, question: Callable[[Desk], Awaitable[T]]) -> T:
        """Ask the desk something; if the store behind it fails, it is opened again for the next question.

        Raises:
            HoldfastError, OSError: what went wrong.
        """
        async with self._asking:
            try:
                if self._desk is None:
                    self._desk = await self._open.enter_async_context(self._look())
                return await question(self._desk.in_zone(self.zone) if self.zone is not None else self._desk)
            except (StoreError, OSError):
                await self._lose()
                raise

    async def act(self, act: Callable[[Desk], Awaitable[T]]) -> T:
        """Do something at a desk that acts.

        Raises:
            HoldfastError, OSError: what went wrong.
        """
        async with self._act() as desk:
            return await act(desk)

    async def close(self) -> None:
        """Close the desk, whatever it was asked last."""
        async with self._asking:
            await self._lose()

    async def _lose(self) -> None:
        opened, self._open, self._desk = self._open, AsyncExitStack(), None
        try:
            await opened.aclose()
        except (HoldfastError, OSError):
            pass  # it is lost already, and said why
