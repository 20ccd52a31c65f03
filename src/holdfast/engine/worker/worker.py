"""A worker: one process that claims runs, keeps its lease, notices what other processes did, and stops in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from holdfast.clock import Clock, Instant, new_id
from holdfast.contract.operations import Delivered, Unblock
from holdfast.contract.rows import Claim, Held, Message, Standing
from holdfast.contract.store import Store
from holdfast.definitions import Registry
from holdfast.engine.runs.resident import Resident
from holdfast.engine.runs.runner import Runner
from holdfast.engine.settings import Settings
from holdfast.engine.steps.executor import Executor
from holdfast.engine.steps.queue.incoming import Tasks
from holdfast.engine.steps.queue.served import Queues
from holdfast.engine.views.observers import Observers, Reporter
from holdfast.engine.worker.committer import Committer
from holdfast.engine.worker.lease import LeaseKeeper
from holdfast.errors import RunBlocked, StoreError
from holdfast.events import Events
from holdfast.limits import Limits
from holdfast.payloads import codec
from holdfast.payloads.codec import error_to_data

_logger = logging.getLogger("holdfast.engine")
TICK = 0.02
_QUIET_TICK = 0.05
"""How often a worker looks around when nothing has happened for a while: waking up is most of what that costs."""
_QUIET_AFTER = 2.0
_TAKE_OVER_EVERY = 1.0
_BATCH = 200
_PATIENCE = 500_000
_MAX_UNDER_WAY = 4000
_LAST_WORDS = 5.0


class Worker:
    """Everything one engine does to advance runs."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        settings: Settings,
        clock: Clock,
        ended: Callable[[str, Standing | None], None],
        events: Events,
        observers: Observers,
        limits: Limits,
        queues: Queues,
        app: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self.id = new_id()
        self._store = store
        self._registry = registry
        self.queues = queues
        self._settings = settings
        self._clock = clock
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.executor = Executor(loop, settings.max_steps, settings.max_threads, limits)
        self.committer = Committer(store, lambda: not self.executor.active)
        reporter = Reporter(observers, clock)
        self.runner = Runner(
            registry,
            settings,
            clock,
            store,
            self.committer,
            self.executor,
            ended,
            events,
            reporter,
            limits,
            queues,
            app,
        )
        self.runner.released = self._released
        self.runner.stirred = self.look
        self.runner.handed_out = self.wake
        self.runner.delivered = self.delivered
        self.tasks = Tasks(store, queues, self.runner, self.executor, self.committer, observers, self.delivered)
        self.tasks.wake = self.wake
        self._lease: LeaseKeeper | None = None
        self._wake = asyncio.Event()
        self._claimer: asyncio.Task[None] | None = None
        self._tick_handle: asyncio.TimerHandle | None = None
        self._looker: asyncio.Task[None] | None = None
        self._look_again = False
        self._everybody = False
        self._foreign = False
        """Whether another process committed since it was last looked which runs are still this worker's."""
        self._rescuer: asyncio.Task[None] | None = None
        self._suspect: asyncio.Task[None] | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._busy_at = loop.time()
        """When something was last seen to happen."""
        self._rescued_at = loop.time()
        self.doubt = False
        """Whether the store may hold runs for this worker that it does not have."""
        self._missing: set[Held] = set()
        self._handed: dict[int, list[Message]] = {}
        self._stopping = False
        self.next_due: Instant | None = None
        self.ticked: Callable[[], None] = lambda: None
        """Called every tick."""
        self.looked: Callable[[], None] = lambda: None
        """Called after runs that are not in memory here may have ended: another process may have committed."""
        self.broken: Callable[[StoreError], None] = lambda error: None
        """Called when the store can no longer be used at all (its file was replaced)."""
        self._complained = -60.0
        self.claiming = False
        self.lapses = 0
        """How often this worker hung beyond its lease and was declared dead."""

    async def start(self, advance: bool) -> None:
        """Join, recover what dead workers left, and begin to claim; with `advance` False only observe and commit."""
        if advance:
            await self._join()
            await self._store.take_over(self._clock.now())
            for workflow in self._registry.all():
                await self.committer.apply(
                    Unblock(at=self._clock.now(), workflow=workflow.name, fingerprint=workflow.fingerprint)
                )
            self._claimer = self._loop.create_task(self._claim_for_ever(), name="holdfast claimer")
        self._tick()

    async def abandon(self) -> None:
        """Undo a start that failed half way."""
        self._stopping = True
        if self._lease is not None:
            self._lease.stop()
            try:
                await self._store.leave(self.id)
            except StoreError as error:
                _logger.warning("worker %s could not leave in order: %s", self.id, error)

    async def stop(self, grace: timedelta | None = None) -> None:
        """Let step bodies finish within the grace, hand back the rest, and leave."""
        if self._stopping:
            return
        self._stopping = True
        self._wake.set()
        await self._leave_behind([self._claimer])
        self.runner.stopping = True
        await self._drain(self._settings.stop_grace if grace is None else grace)
        done = self._loop.create_future()
        self._loop.call_soon(self._hand_back, done)
        await done
        self.committer.hurry = True
        await self._leave_behind([self._loop.create_task(self.committer.stop())])
        await asyncio.sleep(0)
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        await self._leave_behind([self._looker, self._rescuer, self._suspect, self._rejoining])
        self.runner.timers.close()
        self.executor.close()
        if self._lease is not None:
            self._lease.stop()
            try:
                await asyncio.wait_for(self._store.leave(self.id), _LAST_WORDS)
            except (StoreError, TimeoutError) as error:
                _logger.error("worker %s could not leave in order: %s", self.id, repr(error))

    async def end_commits(self) -> None:
        """Wait, not for long, for a commit that the stop left behind: the store is closed by now and refuses it."""
        await self._leave_behind([self._loop.create_task(self.committer.stop())])

    async def _leave_behind(self, tasks: Iterable[asyncio.Task[None] | None]) -> None:
        """Wait for tasks, but not for ever: the store may be away, and whoever stops us may be in a hurry."""
        waiting = [task for task in tasks if task is not None]
        _, pending = await asyncio.wait(waiting, timeout=_LAST_WORDS) if waiting else ((), ())
        for task in pending:
            _logger.warning("%s takes too long while the worker stops; it is left behind", task.get_name())
            task.cancel()

    def delivered(self, outcome: Delivered, message: Message) -> None:
        """Act on a row that this process put into a run's inbox."""
        if outcome.owner == self.id and outcome.key in self.runner.residents:
            resident = self.runner.residents[outcome.key]
            if self.committer.crowd > 1:
                # Many may be for one run: it takes them together, in one turn.
                if not self._handed:
                    self._loop.call_soon(self._hand_over)
                self._handed.setdefault(outcome.key, []).append(message._replace(n=outcome.n))
            elif outcome.n == resident.seen + 1:
                self.runner.take(outcome.key, [message._replace(n=outcome.n)])
            elif outcome.n > resident.seen:
                self.look()
        else:
            self.wake()

    def _hand_over(self) -> None:
        handed, self._handed = self._handed, {}
        with self.committer.together():
            for key, messages in handed.items():
                resident = self.runner.residents.get(key)
                if resident is None:
                    self.look()
                    continue
                fresh = [message for message in messages if message.n > resident.seen]
                whole = [message.n for message in fresh] == [*range(resident.seen + 1, resident.seen + 1 + len(fresh))]
                if whole:
                    self.runner.take(key, fresh)
                else:
                    self.look()  # somebody else put rows between them

    def wake(self) -> None:
        """Look for claimable runs now, if this worker claims any."""
        if self._claimer is not None:
            self._wake.set()

    def forget(self, run_id: str) -> None:
        """Drop a run that was ended from outside, if it is in memory here."""
        resident = self.runner.ids.get(run_id)
        if resident is not None:
            self._loop.call_soon(self.runner.drop, resident)
            self.runner.limits.forget(resident.key)

    def resident(self, run_id: str) -> Resident | None:
        """Return a run that is in memory here and whose code may be looked at."""
        resident = self.runner.ids.get(run_id)
        return None if resident is None or resident.deaf else resident

    @property
    def idle(self) -> bool:
        """Whether nothing is under way: no body, no commit, no claim."""
        runner = self.runner
        return not (
            self.executor.active
            or self.committer.waiting
            or self.claiming
            or self._wake.is_set()
            or self._handed
            or self.tasks.busy
            or (self._looker is not None and not self._looker.done())
            or (self._suspect is not None and not self._suspect.done())
            or any(resident.commits or resident.active for resident in runner.residents.values())
        )

    async def _join(self) -> None:
        await self._store.join(self.id, self._settings.lease)
        self._lease = LeaseKeeper(self._store, self.id, self._settings.lease, self._lapsed_in_thread)
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
        self.tasks.drop_all()
        former = self.id
        self.id = new_id()

        async def rejoin() -> None:
            while not self._stopping:
                try:
                    await self._store.leave(former)
                    await self._join()
                    self.wake()
                    return
                except Exception as error:
                    _logger.warning("cannot rejoin yet: %s", error)
                    await asyncio.sleep(1)

        self._rejoining = self._loop.create_task(rejoin())

    async def _drain(self, grace: timedelta) -> None:
        deadline = self._loop.time() + grace.total_seconds()
        while self.executor.active and self._loop.time() < deadline:  # noqa: ASYNC110  # once, while stopping
            await asyncio.sleep(0.005)

    def _hand_back(self, done: asyncio.Future[None]) -> None:
        self.runner.hand_back_all()
        done.set_result(None)

    # Claiming.

    async def _claim_for_ever(self) -> None:
        pause = 0.05
        while not self._stopping:
            self._wake.clear()
            try:
                self.claiming = True
                more = await self._claim()
                if not self._stopping:
                    more = await self.tasks.claim(self.id) or more
                pause = 0.05
            except Exception as error:
                self.doubt = True
                if isinstance(error, StoreError):
                    self._store_broken(error)
                else:
                    _logger.exception("cannot claim runs, trying again")
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
                continue
            finally:
                self.claiming = False
            if not more:
                await self._wait_for_due()

    async def _claim(self) -> bool:
        if self.executor.active + self.committer.waiting > _MAX_UNDER_WAY:
            await asyncio.sleep(TICK)
            return True
        names, one_in_hand = self.queues.workflows, self._suspect is not None and not self._suspect.done()
        claims = await self._store.claim(self.id, self._clock.now(), _BATCH, names, _POISON, suspects=not one_in_hand)
        if claims and claims[0].claims > 1:
            self._suspect = self._loop.create_task(self._adopt_suspect(claims))
        elif claims:
            await self._adopt(claims)
        elif one_in_hand:
            self.next_due = self._clock.now() + _PATIENCE  # the earliest due may be a suspect, which has to wait
        else:
            self.next_due = await self._store.next_due(names)
        return bool(claims)

    async def _adopt(self, claims: list[Claim]) -> None:
        histories = {history.key: history for history in await self._store.load([claim.key for claim in claims])}
        adopted = self._loop.create_future()

        def adopt() -> None:
            with self.committer.together():
                for claim in claims:
                    if claim.key in histories:
                        try:
                            self.runner.adopt(claim, histories[claim.key])
                        except Exception:
                            self.doubt = True
                            _logger.exception("run %s cannot be continued", claim.id)
            adopted.set_result(None)

        self._loop.call_soon(adopt)
        await adopted

    async def _adopt_suspect(self, claims: list[Claim]) -> None:
        """Continue a run that was claimed before without progress: alone, so that a crash is blamed on nobody else."""
        while self.runner.attempts.judging and not self._stopping:  # noqa: ASYNC110  # rare, and nobody waits for it
            await asyncio.sleep(TICK)
        try:
            await self._adopt(claims)
        except Exception as error:
            self.doubt = True
            _logger.warning("a suspect cannot be loaded, trying again later: %s", error)
        while any((run := self.runner.residents.get(claim.key)) and run.commits for claim in claims):  # noqa: ASYNC110
            await asyncio.sleep(TICK)
        self.wake()

    async def _wait_for_due(self) -> None:
        if self._stopping:
            return
        delay = None
        if self.next_due is not None:
            delay = max((self.next_due - self._clock.now()) / 1e6, 0.0)
            delay = min(max(delay, 0.001), 3600.0)
        try:
            await asyncio.wait_for(self._wake.wait(), delay)
        except TimeoutError:
            return

    def _released(self, due: Instant | None) -> None:
        if due is None:
            return
        if due <= self._clock.now() or self.next_due is None or due < self.next_due:
            self.next_due = due
            self._wake.set()

    # Noticing.

    def _tick(self) -> None:
        if self._lease is not None:
            self._lease.loop_is_alive()
        now = self._loop.time()
        if self.executor.active or self.committer.waiting or self.committer.made:
            self._busy_at, self.committer.made = now, 0
        self.runner.timers.check_jump()
        self.ticked()
        if self.next_due is not None and self.next_due <= self._clock.now():
            self.wake()  # the claimer sleeps by another clock, which does not jump
        try:
            if self._store.changed():
                self._foreign, self._busy_at = True, now
                self.look(everybody=True)
        except StoreError as error:
            self._store_broken(error)
        if now - self._rescued_at >= _TAKE_OVER_EVERY and self._lease is not None:
            self._rescued_at = now
            if self._rescuer is None or self._rescuer.done():
                self._rescuer = self._loop.create_task(self._take_over())
            self._evict()
        quiet = now - self._busy_at > _QUIET_AFTER
        self._tick_handle = self._loop.call_later(_QUIET_TICK if quiet else TICK, self._tick)

    def _store_broken(self, error: StoreError) -> None:
        if self._loop.time() - self._complained > 5:
            self._complained = self._loop.time()
            _logger.error("the store cannot be used: %s", error)
            self.broken(error)

    def look(self, everybody: bool = False) -> None:
        """Look at the store: runs in memory may have news, others may be due.

        With `everybody`, a run that is not in memory here may have ended: whoever waits for one looks too.
        """
        self._everybody = self._everybody or everybody
        self._look_again = True
        if self._looker is None or self._looker.done():
            self._looker = self._loop.create_task(self._look_around())

    async def _look_around(self) -> None:
        pause = 0.05
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
                pause = min(pause * 2, 1.0)

    async def _look_once(self) -> None:
        if self._lease is not None:
            await self._store.relay()
            due = await self._store.due(self.id, self._clock.now())
            residents = self.runner.residents
            seen = {key: residents[key].seen for key in due if key in residents}
            if seen:
                self._loop.call_soon(self._take, await self._store.inboxes(seen))
            self.wake()
            if self.tasks.holding:
                await self.tasks.check(self.id)
        if self._everybody:
            self._everybody = False
            self.looked()

    def _take(self, inboxes: dict[int, list[Message]]) -> None:
        with self.committer.together():
            for key, messages in inboxes.items():
                self.runner.take(key, messages)

    async def _take_over(self) -> None:
        try:
            if await self._store.take_over(self._clock.now()):
                self.look()
            if self.doubt or self.tasks.holding:
                await self.tasks.check(self.id)
            if self.doubt:
                await self._look_for_lost()
            if self._foreign:
                self._foreign = False
                await self._look_for_ended()
        except StoreError as error:
            self._store_broken(error)
        except Exception as error:
            _logger.warning("cannot look for dead workers, trying again: %s", error)

    async def _look_for_lost(self) -> None:
        """After a fault whose outcome is unknown: hand back runs the store says are ours but that we do not have.

        Only those missing twice in a row: what is still on its way here or out is given the time to arrive.
        """
        held = await self._store.held(self.id)
        missing = {run for run in held if run.key not in self.runner.residents}
        for run in missing & self._missing:
            self.runner.departures.give_back(run)
        self._missing = missing
        self.doubt = bool(missing)

    async def _look_for_ended(self) -> None:
        """Drop runs in memory that somebody else ended or took: what they are doing would be refused anyway."""
        residents = self.runner.residents
        before = {key: resident.epoch for key, resident in residents.items() if not resident.gone}
        held = {run.key: run.epoch for run in await self._store.held(self.id)}
        for key, epoch in before.items():
            resident = residents.get(key)
            if resident is not None and resident.epoch == epoch and held.get(key) != epoch and not resident.commits:
                self._loop.call_soon(self.runner.drop, resident)
                self.runner.limits.forget(key)

    def _evict(self) -> None:
        runner = self.runner
        excess = len(runner.residents) - self._settings.max_resident
        if excess > 0:
            parked = [resident for resident in runner.residents.values() if resident.parked and not resident.deaf]
            parked.sort(key=lambda resident: resident.touched)
            for resident in parked[:excess]:
                runner.departures.release(resident)


_POISON = codec.encode(
    error_to_data(
        RunBlocked(
            "",
            "three workers in a row took this run and none of them got a commit out of it: its code seems to crash or "
            "hang the process before its next step; put it right, then engine.get(run_id).recover()",
        )
    )
).decode()
