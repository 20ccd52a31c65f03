"""Hints to other processes that something was committed: sent by NOTIFY, received by LISTEN, replaced by looking."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import AsyncConnection

from holdfast.clock import new_id
from holdfast.errors import StoreUnreachable
from holdfast.stores.postgres.address import Dialect
from holdfast.stores.postgres.connections import PostgresConnections, cut

_logger = logging.getLogger("holdfast.store")

POLL = 0.2
POLL_LISTENING = 1.0
"""How often, in seconds, to look for commits of other processes: more often when they cannot be heard."""

HINT_EVERY = 0.02
"""How many seconds lie between two hints, at least: commits in between are told by one."""

TELL_EVERY = 0.02
"""How many seconds lie between two calls of what is to know that something was heard, at least."""

_NOTIFY = "SELECT set_config('synchronous_commit', 'off', TRUE), pg_notify(%s, %s)"
"""It need not survive anything, so it waits for no disk that commits are waiting for."""


class Hints:
    """What this process tells others of its commits, and hears of theirs."""

    def __init__(self, connections: PostgresConnections, channel: str, heard: Callable[[], None]) -> None:
        self._connections = connections
        self._channel = channel
        self._when_heard = heard
        self._me = new_id()
        self._listener: _Listener | None = None
        self._hinting: asyncio.Task[None] | None = None
        self._again = False
        """Whether something was committed since the last hint."""
        self._looked = 0.0
        self._later = False
        """Whether it begins to listen when it is asked."""

    def start(self) -> None:
        """Begin to listen, where that works."""
        self._later = False
        if self._connections.dialect is Dialect.DIRECT:
            self._listener = _Listener(self._connections, self._channel, self._me, self._when_heard)
            self._listener.start()

    def start_when_asked(self) -> None:
        """Begin to listen when it is first asked what was heard: most commands look once and end."""
        self._later = True

    async def stop(self) -> None:
        """Listen no more."""
        self._later = False
        if self._listener is not None:
            await self._listener.stop()
            self._listener = None

    @property
    def pending(self) -> asyncio.Task[None] | None:
        """The hint that is about to be given."""
        return self._hinting

    def give(self) -> None:
        """Hint to other processes that something was committed: at once, then once for many, and after the commit."""
        self._again = True
        if self._connections.dialect is Dialect.DIRECT and self._hinting is None:
            self._hinting = asyncio.get_running_loop().create_task(self._give(), name="holdfast hint")

    async def _give(self) -> None:
        try:
            while self._again:
                self._again = False
                await self._connections.reader.use(
                    lambda connection: connection.execute(_NOTIFY, (self._channel, self._me))
                )
                await asyncio.sleep(HINT_EVERY)
        except (psycopg.Error, StoreUnreachable):
            pass  # other processes look by themselves
        finally:
            self._hinting = None

    def heard(self) -> bool:
        """Tell whether another process may have committed since the last call."""
        if self._later:
            self.start()
        now, listener = time.monotonic(), self._listener
        heard = listener is not None and listener.heard
        if not heard and now - self._looked < (POLL_LISTENING if listener is not None and listener.hears else POLL):
            return False
        if listener is not None:
            listener.heard = False
        self._looked = now
        return True


class _Listener:
    """Hears from other processes that they committed something, as a hint; without it one looks more often."""

    def __init__(self, connections: PostgresConnections, channel: str, me: str, heard: Callable[[], None]) -> None:
        self._connections = connections
        self._channel = channel
        self._me = me
        self._when_heard = heard
        self._task: asyncio.Task[None] | None = None
        self._connection: AsyncConnection[Any] | None = None
        self._stopping = False
        self._told = 0.0
        self.hears = False
        self.heard = False

    def start(self) -> None:
        """Begin to listen."""
        self._task = asyncio.get_running_loop().create_task(self._listen_for_ever(), name="holdfast listener")

    async def stop(self) -> None:
        """Listen no more."""
        self._stopping = True
        cut(self._connection)
        while self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1)
        self._task = None

    def _tell(self) -> None:
        """Say that something was heard; where much is heard, it is noticed soon enough."""
        if time.monotonic() - self._told >= TELL_EVERY:
            self._told = time.monotonic()
            self._when_heard()

    async def _listen_for_ever(self) -> None:
        pause, complained = 0.1, 0.0
        while not self._stopping:
            try:
                async with await self._connections.connect() as connection:
                    self._connection = connection
                    await connection.execute(f'LISTEN "{self._channel}"')
                    self.hears = self.heard = True  # whatever was said meanwhile
                    pause = 0.1
                    async for notification in connection.notifies():
                        if notification.payload != self._me:
                            self.heard = True
                            self._tell()
            except (psycopg.Error, OSError, StoreUnreachable) as error:
                if time.monotonic() - complained > 60 and not self._stopping:
                    complained = time.monotonic()
                    _logger.warning("%s: not listening at present: %s", self._connections.where, error)
            finally:
                self.hears = False
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 5.0)
