"""An engine for tests: its clock jumps when everything is blocked, and activities can be replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

from holdfast.clock import Instant, micros
from holdfast.definitions import Activity, Workflow, as_activity
from holdfast.engine.engine import Engine
from holdfast.errors import BadInput
from holdfast.testing.clock import JumpingClock

_QUIET_ROUNDS = 5
T = TypeVar("T")


class TestEngine(Engine):
    """An engine on a database in memory whose time passes only while a result is awaited.

        async with TestEngine(workflows=[fulfil], substitutes={charge: fake_charge}) as engine:
            run = await engine.start(fulfil, order)
            assert await run.result() == ...        # a sleep of thirty days is over in milliseconds

    While `run.result()` is awaited and nothing is under way, the clock jumps to the next due time. `settle()` waits for
    quiet without letting time pass, `advance()` lets a given time pass.
    """

    __test__ = False  # not a test class, whatever its name says

    def __init__(
        self,
        database: str = ":memory:",
        *,
        workflows: Iterable[Workflow[Any, Any]] = (),
        substitutes: Mapping[Any, Callable[..., Any]] | None = None,
        start: datetime | None = None,
        clock: JumpingClock | None = None,
        **options: Any,
    ) -> None:
        self.jumping = clock or JumpingClock(start)
        options.setdefault("retention", None)  # its clock jumps by months, and tests look at runs that are over
        super().__init__(database, workflows=workflows, clock=self.jumping, **options)
        self._substitutes = dict(substitutes or {})

    async def open(self) -> None:
        await super().open()
        for activity, stand_in in self._substitutes.items():
            self.substitute(activity, stand_in)

    def substitute(self, activity: Any, stand_in: Callable[..., Any]) -> None:
        """Run another function wherever a workflow calls this activity."""
        target = activity.function if isinstance(activity, Activity) else activity
        if not callable(target):
            raise BadInput(f"substitutes: the key is the step's function itself, not {activity!r}")
        replacement = stand_in if isinstance(stand_in, Activity) else as_activity(stand_in)
        self._working().executor.substitutes[target] = replacement

    async def settle(self) -> None:
        """Wait until nothing is under way: every run has ended or waits for a message, a timer or a retry."""
        quiet = 0
        while quiet < _QUIET_ROUNDS:
            await asyncio.sleep(0 if quiet else 0.0005)
            quiet = quiet + 1 if self._quiet() else 0

    async def advance(self, duration: timedelta) -> None:
        """Let time pass, stopping at every instant at which something is due on the way."""
        await self.settle()
        end = self.clock.now() + micros(duration)
        while (due := await self._next_due()) is not None and due <= end:
            self._jump(due)
            await self.settle()
        self._jump(end)
        await self.settle()

    async def _patiently(self, coming: Coroutine[Any, Any, T]) -> T:
        waiting = asyncio.ensure_future(coming)
        try:
            while not waiting.done():
                await self._settle_unless(waiting)
                due = await self._next_due()
                if waiting.done():
                    break
                if due is not None and self._quiet():
                    self._jump(due)
                else:
                    await asyncio.wait([waiting], timeout=0.001)
            return waiting.result()
        finally:
            waiting.cancel()

    async def _settle_unless(self, waiting: asyncio.Future[Any]) -> None:
        quiet = 0
        while quiet < _QUIET_ROUNDS and not waiting.done():
            await asyncio.sleep(0 if quiet else 0.0005)
            quiet = quiet + 1 if self._quiet() else 0

    def _quiet(self) -> bool:
        return self._working().idle and not (self._maintenance is not None and self._maintenance.busy)

    async def _next_due(self) -> Instant | None:
        worker = self._working()
        known = [
            due
            for due in (
                worker.runner.timers.next(),
                await self.store.next_due(worker.queues.workflows) if self._run_workflows else None,
                self._maintenance.next_tick if self._maintenance is not None else None,
            )
            if due is not None
        ]
        return min(known) if known else None

    def _jump(self, instant: Instant) -> None:
        self.jumping.jump_to(instant)
        worker = self._working()
        asyncio.get_running_loop().call_soon(worker.runner.timers.check)
        worker.wake()
