"""A worker: one process that claims runs, keeps its lease, notices what other processes did, and stops in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.bodies import eager
from holdfast.bodies.attempt import Around
from holdfast.bodies.executor import Executor
from holdfast.clock import Clock, Instant, new_id
from holdfast.contract.operations import Delivered, Unblock
from holdfast.contract.rows import RunStanding, TakenOver
from holdfast.contract.store import Store
from holdfast.definitions import Registry
from holdfast.engine.runs.arrivals import Arrivals
from holdfast.engine.runs.resident import FINISHING, Resident
from holdfast.engine.runs.runner import Runner
from holdfast.engine.settings import Settings
from holdfast.engine.steps.limits.dated import dating
from holdfast.engine.steps.queue.incoming import TaskRunner
from holdfast.engine.steps.queue.served import Queues
from holdfast.engine.views.observers import Observers, Reporter
from holdfast.engine.worker.background import LAST_WORDS, BackgroundTasks
from holdfast.engine.worker.claimer import TICK, ClaimedRuns, Claimer
from holdfast.engine.worker.committer import Committer, from_callback
from holdfast.engine.worker.lease import LeaseKeeper
from holdfast.engine.worker.limits import LimitKeeper
from holdfast.engine.worker.self_report import about_worker, load_of_worker
from holdfast.errors import StoreError
from holdfast.events import Events
from holdfast.limits import Limits

_logger = logging.getLogger("holdfast.engine")
_QUIET_TICK = 0.05
"""How often a worker looks around when nothing has happened for a while: waking up is most of what that costs."""
_QUIET_AFTER = 2.0
_TAKE_OVER_EVERY = 1.0
_MUCH, _LOOKS_EVERY = 1_000, 10
"""A worker with so many operations to commit looks at the store by itself only every so many seconds."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_NAMED = 20
"""How many runs are named when they are taken over."""


class Listeners(msgspec.Struct, frozen=True):
    """What an engine is told by its worker."""

    run_ended: Callable[[str, RunStanding | None], None]
    """A run ended; with None, it left this worker and may end in another."""
    replied: Callable[[str], None]
    """A run answered a request."""
    may_have_ended: Callable[[], None]
    """Runs that are not in memory here may have ended: another process may have committed."""
    store_broken: Callable[[StoreError], None]
    """The store can no longer be used at all (its file was replaced)."""
    ticked: Callable[[], None]


class Worker:
    """Everything one engine does to advance runs."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        settings: Settings,
        clock: Clock,
        listeners: Listeners,
        events: Events,
        observers: Observers,
        limits: Limits,
        queues: Queues,
        lease_clock: Clock,
        app: Callable[[], Mapping[str, Any]] | None = None,
        deadline: float | None = None,
        around: Around | None = None,
    ) -> None:
        self.id = new_id()
        self._store = store
        self._registry = registry
        self._settings = settings
        self._clock = clock
        self._listeners = listeners
        self._loop = asyncio.get_running_loop()
        self._background = BackgroundTasks()
        self.executor = Executor(self._loop, settings.max_steps, settings.max_threads, limits, around)
        self.committer = Committer(store, self.executor.idle, settings.storage_retry, dating(lease_clock))
        reporter = Reporter(observers, clock)
        self.runner = Runner(
            self, registry, settings, clock, store, self.committer, self.executor, events, reporter, limits, queues,
            lease_clock, app, deadline,
        )  # fmt: skip
        self.arrivals = Arrivals(self.runner, self.committer, registry, self.in_doubt)
        self.runs = ClaimedRuns(
            store, clock, self.runner, self.arrivals, self.committer, self.executor, self._background, self.wake
        )
        self.tasks = TaskRunner(
            store, queues, self.runner, self.executor, self.committer, observers, self.runs.look_again
        )
        self.limits = LimitKeeper(store, self.committer, self.runner, clock, lease_clock, self.look)
        self._claimer = Claimer(clock, self.runs, [self.tasks], self._store_broken)
        self._lease: LeaseKeeper | None = None
        self._tick_handle: asyncio.TimerHandle | None = None
        self._look_again = False
        self._others_may_have_ended = False
        self._busy_at = self._rescued_at = self._loop.time()
        """When something was last seen to happen, and when dead workers were last looked for."""
        self._grace_ends: float | None = None
        """When, by the event loop's clock, a worker that stops waits for bodies no longer."""
        self._complained = -60.0
        self.lapses = 0
        """How often this worker hung beyond its lease and was declared dead."""

    # Its life.

    async def start(self, advance: bool) -> None:
        """Join, recover what dead workers left, and begin to claim; with `advance` False only observe and commit."""
        if advance:
            await self._join()
            await self.take_over()
            await self.runs.pauses.look()
            for workflow in self._registry.all():
                await self.committer.apply(
                    Unblock(at=self._clock.now(), workflow=workflow.name, fingerprint=workflow.fingerprint)
                )
        await self.limits.declare(self.id)
        if advance:
            self._background.start("claimer", self._claimer.run(lambda: self.id))
        self._store.when_changed = self._hear
        self._tick_again()

    def begin_to_stop(self, grace: timedelta | None = None) -> None:
        """Begin nothing more; `stop` waits for bodies at most for the grace from now, or for what is left of it."""
        ends = self._loop.time() + (self._settings.stop_grace if grace is None else grace).total_seconds()
        self._grace_ends = ends if self._grace_ends is None else min(ends, self._grace_ends)
        self.runner.stopping = True
        self._claimer.stop()
        self.executor.begin_no_more()

    def hurry(self) -> None:
        """Wait for bodies no longer."""
        self.begin_to_stop(timedelta(0))

    async def stop(self) -> None:
        """Let step bodies finish within the grace, hand back the rest, and leave; also after a start that failed.

        Done again after an interrupt, it goes on where it was left.
        """
        if not self._stopping:
            self.hurry()
        self._store.when_changed = None
        await self._background.finish("claimer")
        while self.executor.begun and self._loop.time() < (self._grace_ends or 0.0):  # noqa: ASYNC110  # once
            await asyncio.sleep(0.005)
        await from_callback(self._hand_back)
        self.committer.hurry = True
        await self._last_commits()
        await self._background.finish()
        self.runner.timers.close()
        self.runner.attempts.limited.close()
        self.executor.close()
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        await self._leave()

    def _hand_back(self) -> None:
        self.tasks.hand_back_waiting()
        self.arrivals.drop_all()  # nothing is begun: the store hands them back when the worker leaves
        self.runner.hand_back_all()

    async def end_commits(self) -> None:
        """Wait, not for long, for a commit that the stop left behind: the store is closed by now and refuses it."""
        await self._last_commits()

    async def _last_commits(self) -> None:
        try:
            async with asyncio.timeout(LAST_WORDS):
                await self.committer.stop()
        except TimeoutError:
            _logger.warning("a commit takes too long while worker %s stops; it is left behind", self.id)

    async def _leave(self) -> None:
        """Hand back in the store what this worker still has there."""
        if self._lease is None:
            return
        self._lease.stop()
        try:
            async with asyncio.timeout(LAST_WORDS):
                await self._store.leave(self.id)
                await self.runner.figures.add()
        except (StoreError, TimeoutError) as error:
            _logger.error("worker %s could not leave in order: %s", self.id, repr(error))
        else:
            self._lease = None

    @property
    def _stopping(self) -> bool:
        return self._grace_ends is not None

    async def _join(self) -> None:
        about = about_worker(self._registry, self._settings, self.runner.queues)
        await self._store.join(self.id, self._settings.lease, about)
        load = load_of_worker(self.runner, self.executor)
        self._lease = LeaseKeeper(self._store, self.id, self._settings.lease, self._lapsed_in_thread, load)
        self._lease.start()

    def _lapsed_in_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._lapsed)

    def _lapsed(self) -> None:
        """This worker was declared dead: forget everything and come back as a new one."""
        if self._stopping:
            return
        _logger.warning("worker %s was declared dead while it hung; it goes on under a new name", self.id)
        self.lapses += 1
        self.runner.drop_all()
        self.arrivals.drop_all()
        self.tasks.drop_all()
        former = self.id
        self.id = new_id()
        self._background.start("rejoin", self._rejoin(former))

    async def _rejoin(self, former: str) -> None:
        while not self._stopping:
            try:
                await self._store.leave(former)
                await self._join()
                self.wake()
                return
            except Exception as error:
                _logger.warning("cannot rejoin yet: %s", error)
                await asyncio.sleep(1)

    # What its runs tell it: see Host.

    def delivered(self, outcome: Delivered) -> None:
        """Act on a row that this process put into a run's inbox."""
        if outcome.row is None:
            return
        if outcome.owner == self.id and outcome.key in self.runner.residents:
            self.runner.mail.delivered(outcome.key, outcome.row)
        else:
            self.wake()

    def woke_others(self, *, may_have_ended: bool = False) -> None:
        """Look at the store: a commit put rows into the inboxes of other runs, or may have ended some."""
        self.look(may_have_ended=may_have_ended)

    def released(self, due: Instant | None) -> None:
        """Claim a run that any worker may have now, when it is due."""
        if due is None:
            return
        next_due = self.runs.next_due
        if due <= self._clock.now() or next_due is None or due < next_due:
            self.runs.next_due = due
            self._claimer.wake()

    def tasks_queued(self) -> None:
        """Look for attempts in queues."""
        self.wake()

    def ended(self, run_id: str, standing: RunStanding | None) -> None:
        """Tell the engine that a run ended, or left this worker."""
        self._listeners.run_ended(run_id, standing)

    def replied(self, run_id: str) -> None:
        """Tell the engine that a run answered a request."""
        self._listeners.replied(run_id)

    # What its engine asks.

    def wake(self) -> None:
        """Look for claimable runs now, if this worker claims any."""
        if self._background.busy("claimer"):
            self._claimer.wake()

    def in_doubt(self) -> None:
        """Compare, soon, what the store holds for this worker with what it has: the outcome of a commit is unknown."""
        self.runs.doubt = True

    def forget(self, run_id: str) -> None:
        """Drop a run that was ended from outside, if it is in memory here."""
        resident = self.runner.ids.get(run_id)
        if resident is not None:
            self._loop.call_soon(self.runner.drop, resident)
            self.runner.limits.forget(resident.key)

    def evict(self, run_id: str) -> bool:
        """Let a run go that waits in memory here; it is claimed again when it is due."""
        resident = self.resident(run_id)
        if resident is None or not resident.parked:
            return False
        self.runner.departures.release(resident)
        return True

    def resident(self, run_id: str) -> Resident | None:
        """Return a run that is in memory here and whose code may be looked at."""
        resident = self.runner.ids.get(run_id)
        return None if resident is None or resident.phase else resident

    @property
    def lease_age(self) -> timedelta | None:
        """How long ago its lease was renewed; None if it has none."""
        return timedelta(seconds=time.monotonic() - self._lease.renewed) if self._lease is not None else None

    @property
    def idle(self) -> bool:
        """Whether nothing is under way: no body, no commit, no claim."""
        waiting = self.executor.active or any(resident.active for resident in self.runner.residents.values())
        return self.only_bodies and not waiting

    @property
    def only_bodies(self) -> bool:
        """Whether nothing is under way but bodies: no commit, no claim."""
        return not (
            self.committer.waiting
            or self._claimer.busy
            or self.runner.mail.busy
            or self.arrivals.replaying
            or self.tasks.busy
            or self._background.busy("look")
            or self._background.busy("suspect")
            or any(resident.commits for resident in self.runner.residents.values())
        )

    # Noticing.

    def _tick_again(self) -> None:
        self.tick()
        quiet = self._loop.time() - self._busy_at > _QUIET_AFTER
        self._tick_handle = self._loop.call_later(_QUIET_TICK if quiet else TICK, self._tick_again)

    def tick(self) -> None:
        """Notice what happened since the last tick: a clock that jumped, commits of other processes, dead workers."""
        now = self._loop.time()
        if self._lease is not None:
            self._lease.loop_is_alive()
        if self._stopping:
            return
        if self.executor.active or self.committer.waiting or self.committer.made:
            self._busy_at, self.committer.made = now, 0
        self.executor.eager = eager.possible(self._loop)  # a program may set a task factory at any time
        self.runner.timers.check_jump()
        self._listeners.ticked()
        if self.runs.next_due is not None and self.runs.next_due <= self._clock.now():
            self.wake()  # the claimer sleeps by another clock, which does not jump
        self._notice()
        if now - self._rescued_at >= _TAKE_OVER_EVERY and self._lease is not None:
            self._rescued_at = now
            if not self._background.busy("take over"):
                self._background.start("take over", self._take_over())
            if self.runner.figures.due(now) and not self._background.busy("figures"):
                self._background.start("figures", self.runner.figures.add())
            # What another process put into an inbox while its clock was ahead of this one is due by now. But so is all
            # that this worker is committing: while ten thousand runs wake, it would read these keys beside them.
            if self.committer.waiting < _MUCH or int(now) % _LOOKS_EVERY == 0:
                self.look()
            self._evict()

    def _hear(self) -> None:
        """Notice at once that another process has committed."""
        if not self._stopping:
            self._notice()

    def _notice(self) -> None:
        """Look at the store if other processes may have committed."""
        try:
            if self._store.changed():
                others = self._lease is None or not self._lease.was_renewed()  # else most likely this worker itself
                self.runs.others_committed(others)
                if others:
                    self._busy_at = self._loop.time()
                self.look(may_have_ended=True)
        except StoreError as error:
            self._store_broken(error)

    def _store_broken(self, error: StoreError) -> None:
        if self._loop.time() - self._complained > 5:
            self._complained = self._loop.time()
            _logger.error("the store cannot be used: %s", error)
            self._listeners.store_broken(error)

    def look(self, *, may_have_ended: bool = False) -> None:
        """Look at the store: runs in memory may have inbox rows, others may be due.

        With `may_have_ended`, a run that is not in memory here may have ended: callers that wait for one look too.
        """
        self._others_may_have_ended = self._others_may_have_ended or may_have_ended
        self._look_again = True
        if not self._background.busy("look"):
            self._background.start("look", self._look_around())

    async def _look_around(self) -> None:
        pause = _FIRST_PAUSE
        while self._look_again and not self._stopping:
            self._look_again = False
            try:
                await self._look_once()
            except Exception as error:
                self._look_again = True
                if isinstance(error, StoreError):
                    self._store_broken(error)
                else:
                    _logger.warning("cannot look at the store, trying again: %s", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _look_once(self) -> None:
        if self._lease is not None:
            await self._store.relay()
            due = await self._store.due(self.id, self._clock.now())
            residents = self.runner.residents
            found = [residents[key] for key in due if key in residents]
            seen = {resident.key: resident.seen for resident in found if resident.phase < FINISHING}
            if seen:
                self._loop.call_soon(self.runner.mail.take_all, await self._store.inboxes(seen))
            self.wake()
            if self.tasks.holding:
                await self.tasks.check(self.id)
        if self._others_may_have_ended:
            self._others_may_have_ended = False
            self._listeners.may_have_ended()

    async def take_over(self) -> list[TakenOver]:
        """Free what dead workers were running, and say so; return those workers."""
        dead = await self._store.take_over(self._clock.now())
        for taken in dead:
            how = "died" if taken.lost == "crash" else "hung beyond its lease"
            more = len(taken.runs) - _NAMED
            runs = ", ".join(taken.runs[:_NAMED]) + (f" and {more} more" if more > 0 else "")
            _logger.info(
                "worker %s %s; any worker may go on with what it was running: %s", taken.worker, how, runs or "-"
            )
        return dead

    async def _take_over(self) -> None:
        try:
            if await self.take_over():
                self.look()
            await self.runs.pauses.look()
            if self.runs.doubt or self.tasks.holding:
                await self.tasks.check(self.id)
            await self.runs.check(self.id)
            await self.limits.see_to(self._lease.renewed if self._lease is not None else 0.0)
        except StoreError as error:
            self._store_broken(error)
        except Exception as error:
            _logger.warning("cannot look for dead workers, trying again: %s", error)

    def _evict(self) -> None:
        runner = self.runner
        excess = len(runner.residents) - self._settings.max_resident
        if excess > 0:
            parked = [resident for resident in runner.residents.values() if resident.parked and not resident.phase]
            parked.sort(key=lambda resident: resident.idle_since)
            for resident in parked[:excess]:
                runner.departures.release(resident)
