"""An engine for tests of behaviour on Temporal's development server, which has lists and schedules, and real time."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from tests.temporal.server import temporal_server

from holdfast.clock import Clock, Instant
from holdfast.engine.views.run import Run
from holdfast.errors import NotOffered
from holdfast.temporal import TemporalEngine, TemporalTestEngine, TimeSkippingServer
from holdfast.temporal.client.connecting import address_of, connected
from holdfast.temporal.client.schedules import TemporalSchedules


class RealTime(Clock):
    """The time of this machine, which nobody moves."""

    def advance(self, duration: timedelta) -> None:
        """Refuse."""
        raise NotOffered("a clock that is moved", "clock", "test it on the time-skipping server")

    def jump_to(self, instant: Instant) -> None:
        """Refuse."""
        self.advance(timedelta(0))


class DevelopmentServer(TimeSkippingServer):
    """A development server in place of one that skips time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock: Any = RealTime()
        self._stack = ExitStack()
        self._address = ""
        self._client: Client | None = None
        self.known: set[str] = set()
        """The runs that there were."""

    async def __aenter__(self) -> DevelopmentServer:
        self._address = await asyncio.to_thread(self._stack.enter_context, temporal_server())
        self._client = await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._stack.close)

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    async def connect(self) -> Client:
        return await connected(address_of(self._address))

    def time_of(self, at: Instant) -> Instant:
        return at

    async def catch_up(self) -> None:
        return

    async def begin_others(self) -> None:
        await asyncio.sleep(0.05)

    def next_due(self) -> Instant | None:
        return None

    async def visible(self) -> None:
        """Wait until the server's lists know what it knows of each run: they do a moment later."""
        while True:
            wanted = {run_id: await self._described(run_id) for run_id in self.known}
            listed: dict[str, Any] = {}
            async for found in self.client.list_workflows():  # newest executions first
                listed.setdefault(found.id, (found.status, found.search_attributes))
            if all(listed.get(run_id) == found for run_id, found in wanted.items()):
                return
            await asyncio.sleep(0.02)

    async def _described(self, run_id: str) -> Any:
        found = await self.client.get_workflow_handle(run_id).describe()
        return found.status, found.search_attributes


class DevelopmentEngine(TemporalTestEngine):
    """A TemporalEngine with what tests ask of a TestEngine, but for a clock that jumps."""

    _server: DevelopmentServer

    def __init__(self, server: DevelopmentServer, **options: Any) -> None:
        super().__init__(server=server, **options)
        self._tags = True

    def offers(self, capability: str) -> bool:
        return TemporalEngine.offers(self, capability)

    async def open(self) -> None:
        await super().open()
        if self._turns is not None:
            self._turns.stands_still = False

    async def start(self, *args: Any, **options: Any) -> Any:
        run = await super().start(*args, **options)
        self._server.known.add(run.id)
        return run

    async def runs(self, /, *, limit: int = 100, before: Run | None = None, **which: Any) -> list[Run]:
        await self._be_visible()
        return await TemporalEngine.runs(self, limit=limit, before=before, **which)

    async def stats(self) -> dict[str, int]:
        await self._be_visible()
        return await TemporalEngine.stats(self)

    async def _be_visible(self) -> None:
        self._server.known |= self.in_memory()
        await self._server.visible()

    @property
    def schedules(self) -> TemporalSchedules:
        schedules: Any = TemporalEngine.schedules
        return schedules.fget(self)
