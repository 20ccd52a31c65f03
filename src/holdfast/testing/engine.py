"""An engine for tests: its clock jumps when everything is blocked, and activities can be replaced."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, TypeVar

from holdfast.clock import Instant, micros, to_datetime
from holdfast.definitions import Activity, Workflow, as_activity
from holdfast.engine.engine import Engine
from holdfast.engine.runs.resident import Resident
from holdfast.engine.views.run import Run
from holdfast.errors import BadInput, HoldfastError
from holdfast.testing.clock import JumpingClock
from holdfast.testing.faults import Faults
from holdfast.testing.replay_check import ReplayCheck

_QUIET_ROUNDS = 5
_MOMENT = 200
"""For how many rounds of the event loop, of half a millisecond or more, bodies are waited for before time passes."""
_NAMED = 5
"""How many runs an error names."""
T = TypeVar("T")


class NoProgress(HoldfastError):
    """What a test waits for does not come about; the message names the open runs and what they wait for."""


class TestEngine(Engine):
    """An engine on a database in memory whose time passes only while a result is awaited.

        async with TestEngine(workflows=[fulfil], substitutes={charge: fake_charge}) as engine:
            run = await engine.start(fulfil, order)
            assert await run.result() == ...        # a sleep of thirty days is over in milliseconds

    While `run.result()` is awaited and nothing is under way, the clock jumps to the next due time. `settle()` waits for
    quiet without letting time pass, `advance()` lets a given time pass.

    Args:
        max_jumps: how often the clock may jump while one result is awaited: a run that never ends, because it retries
            or polls for ever, raises NoProgress instead of keeping the test busy.
        patience: for how long, in real time, a result is awaited while nothing is under way and nothing is due; then
            NoProgress is raised. What another task or process of the test does must happen within that time.
        replay: after every fact that a run records its history is replayed, and must come to where the run is. If it
            does not, the code is not deterministic: what the test awaits next raises HistoryMismatch, which names the
            step, the place in the history and both sides; so does the end of the `async with` block.
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
        max_jumps: int = 1_000,
        patience: timedelta = timedelta(seconds=60),
        replay: bool = False,
        **options: Any,
    ) -> None:
        self.jumping: JumpingClock = clock or JumpingClock(start)
        self._max_jumps = max_jumps
        self._patience = patience.total_seconds()
        options.setdefault("retention", None)  # its clock jumps by months, and tests look at runs that are over
        super().__init__(database, workflows=workflows, clock=self.jumping, **options)
        self._substitutes = dict(substitutes or {})
        self._slow: frozenset[Any] = frozenset()
        """Attempts that were waited for in vain, so that time passes while they run."""
        self._check = ReplayCheck(self.store, self.registry, self._in_hand) if replay else None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        if error is None:
            self._raise_diverged()

    async def open(self) -> None:
        await super().open()
        for activity, stand_in in self._substitutes.items():
            self.substitute(activity, stand_in)

    @functools.cached_property
    def faults(self) -> Faults:
        """What lets the store of this engine fail."""
        return Faults(self.store)

    # What a test may want to know of the worker.

    @property
    def worker_id(self) -> str:
        """The name under which this engine holds its runs."""
        return self._working().id

    @property
    def idle(self) -> bool:
        """Whether nothing is under way here: no body, no commit, no claim."""
        return self._quiet()

    @property
    def bodies(self) -> int:
        """How many bodies of steps run here, or wait for a place."""
        return self._working().executor.active

    @property
    def abandoned(self) -> int:
        """How many bodies were given up but have not come back: threads cannot be ended, and tasks may refuse to."""
        return self._working().executor.abandoned

    @property
    def residents(self) -> int:
        """How many runs are in memory here."""
        return len(self._working().runner.residents)

    @property
    def lapses(self) -> int:
        """How often this worker hung beyond its lease and was declared dead."""
        return self._working().lapses

    @property
    def replays(self) -> int:
        """How many histories were replayed and compared, with `replay=True`."""
        return self._check.replays if self._check is not None else 0

    async def crash(self) -> None:
        """End as if the process were killed: nothing more reaches the database, and what was in memory is gone.

        The next engine on that database takes over what this one was running.
        """
        self.faults.die()
        await self.stop(grace=timedelta(0))

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
        self._raise_diverged()

    async def advance(self, duration: timedelta) -> None:
        """Let time pass, stopping at every instant at which something is due on the way.

        At each of them the bodies of steps are given a moment to end. Time passes while those run that do not.

        Raises:
            NoProgress: something stays due at one instant, however often it is looked at.
        """
        await self._settle_but_for_bodies()
        end = self.clock.now() + micros(duration)
        standing_still = 0
        while (due := await self._next_due()) is not None and due <= end:
            standing_still = 0 if due > self.clock.now() else standing_still + 1
            if standing_still > self._max_jumps:
                raise NoProgress(f"the same instant stays due: {await self._open_runs()}")
            self._jump(due)
            await self._settle_but_for_bodies()
        self._jump(end)
        await self._settle_but_for_bodies()

    async def _settle_but_for_bodies(self) -> None:
        """Wait until nothing is under way but bodies that were given their moment."""
        quiet = alone = 0
        bodies: frozenset[Any] = frozenset()
        while quiet < _QUIET_ROUNDS:
            await asyncio.sleep(0 if quiet else 0.0005)
            worker, before = self._working(), bodies
            bodies = worker.executor.under_way
            only = worker.only_bodies and not self._sweeping
            # What the worker does meanwhile, on a slow server say, takes nothing away from the bodies' moment.
            alone = alone + only if bodies == before else 0
            if alone > _MOMENT:
                self._slow = bodies
            quiet = quiet + 1 if self._quiet() or (only and bodies and bodies <= self._slow) else 0
        self._slow &= bodies
        self._raise_diverged()

    async def _patiently(self, coming: Coroutine[Any, Any, T]) -> T:
        waiting = asyncio.ensure_future(coming)
        loop = asyncio.get_running_loop()
        jumps, moved = 0, loop.time()
        try:
            while not waiting.done():
                self._raise_diverged()
                await self._settle_unless(waiting)
                due = await self._next_due()
                if waiting.done():
                    break
                if not self._quiet():
                    moved = loop.time()
                elif due is not None:
                    jumps, moved = jumps + 1, loop.time()
                    if jumps > self._max_jumps:
                        raise NoProgress(
                            f"the clock jumped {jumps - 1} times, to {to_datetime(self.clock.now()).isoformat()}, and "
                            f"what is awaited has not come: {await self._open_runs()}; "
                            "a workflow that needs more: TestEngine(max_jumps=...)"
                        )
                    self._jump(due)
                    continue
                elif loop.time() - moved > self._patience:
                    raise NoProgress(f"nothing is under way and nothing is due: {await self._open_runs()}")
                await asyncio.wait([waiting], timeout=0.001)
            self._raise_diverged()
            return waiting.result()
        finally:
            waiting.cancel()

    async def _open_runs(self) -> str:
        """Say which runs are open and what they wait for."""
        runs = [run for run in await self.runs(limit=1000) if not run.status.is_terminal]
        said = [await self._said(run) for run in runs[:_NAMED]]
        if len(runs) > _NAMED:
            said.append(f"{len(runs) - _NAMED} more runs are open")
        return "; ".join(said) or "no run is open"

    async def _said(self, run: Run) -> str:
        said = f"run {run.id!r} ({run.workflow}) is {run.status}"
        if run.waiting_for:
            said += f", waiting for {run.waiting_for}"
        if run.due_at is not None:
            said += f", due at {run.due_at.isoformat()}"
        for step in await self.get(run.id).steps():
            if step.status in ("pending", "running", "waiting", "skipped"):
                said += f", step {step.path!r} is {step.status} after {step.attempts} attempts"
        return said

    async def _settle_unless(self, waiting: asyncio.Future[Any]) -> None:
        quiet = 0
        while quiet < _QUIET_ROUNDS and not waiting.done():
            await asyncio.sleep(0 if quiet else 0.0005)
            quiet = quiet + 1 if self._quiet() else 0

    def _quiet(self) -> bool:
        return self._working().idle and not self._sweeping

    @property
    def _sweeping(self) -> bool:
        return self._maintenance is not None and self._maintenance.busy

    def _in_hand(self) -> Mapping[int, Resident]:
        return self._working().runner.residents if self._link.current is not None else {}

    def _raise_diverged(self) -> None:
        if self._check is not None and self._check.diverged is not None:
            diverged, self._check.diverged = self._check.diverged, None
            raise diverged

    async def _next_due(self) -> Instant | None:
        worker = self._working()
        known = [
            due
            for due in (
                worker.runner.timers.next(),
                worker.tasks.next_turn,
                await self.store.next_due(worker.runner.queues.workflows) if self._run_workflows else None,
                self._maintenance.next_tick if self._maintenance is not None else None,
                await self.store.next_called(list(worker.runner.queues.open_lanes)) if self._run_workflows else None,
            )
            if due is not None
        ]
        return min(known) if known else None

    def _jump(self, instant: Instant) -> None:
        self.jumping.jump_to(instant)
        worker = self._working()
        asyncio.get_running_loop().call_soon(worker.runner.timers.check)
        worker.wake()
