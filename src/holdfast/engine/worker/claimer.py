"""Claiming: a worker takes runs that are due, and attempts from queues, as it has room for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from holdfast.bodies.executor import Executor
from holdfast.clock import FAR_FUTURE, Clock, Instant
from holdfast.contract.operations import Committed
from holdfast.contract.rows import Claim, Held
from holdfast.contract.store import Store
from holdfast.contract.turns import CommitTurn
from holdfast.engine.runs.arrivals import Arrivals
from holdfast.engine.runs.resident import FINISHING
from holdfast.engine.runs.runner import Runner
from holdfast.engine.steps.queue.served import STRICT
from holdfast.engine.worker.background import BackgroundTasks
from holdfast.engine.worker.committer import Committer, from_callback
from holdfast.engine.worker.paused_work import StandingPauses
from holdfast.errors import StoreError

_logger = logging.getLogger("holdfast.engine")
TICK = 0.02
_BATCH = 200
_MAX_UNDER_WAY = 4000
_PATIENCE = 500_000
_FULL_EVERY = 60_000_000
_UNLIKELY_EVERY = 60_000_000
"""After how many microseconds a commit that likely was this worker's own is taken for another process's."""
_CROWDED = 20_000
"""After how many microseconds a worker without room for another run looks again, unless a run ends before."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class Source(Protocol):
    """Where a worker's work comes from: runs, and attempts in queues. Both are claimed, run, finished and checked."""

    async def claim(self, worker: str) -> bool:
        """Take as much as there is room for, and begin it; tell whether there was any."""
        ...

    async def check(self, worker: str) -> None:
        """Compare what the store holds for this worker with what it has: stop the one, hand back the other."""
        ...


class ClaimedRuns:
    """Runs that are due and that no living worker has."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        runner: Runner,
        arrivals: Arrivals,
        committer: Committer,
        executor: Executor,
        background: BackgroundTasks,
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._runner = runner
        self._arrivals = arrivals
        self._committer = committer
        self._executor = executor
        self._background = background
        self._wake = wake
        self.next_due: Instant | None = None
        """When the earliest run that this worker may claim is due, as far as it knows."""
        self.doubt = False
        """Whether the store may hold runs for this worker that it does not have."""
        self._compare_at: Instant = FAR_FUTURE
        """When to check which runs are still this worker's, since another process committed or may have."""
        self._missing: set[Held] = set()
        self._ask_full: Instant = 0
        """When lanes that were full are asked again, though no run of theirs has ended: a deploy may give them more."""
        self._by_priority = 0
        """How many were taken by priority since the last that were most overdue."""
        self.pauses = StandingPauses(store, runner.queues, runner, wake)
        self._in_hand: set[int] = set()
        """Runs that were taken when it was their turn, and have not parked or ended since."""

    async def claim(self, worker: str) -> bool:
        """Take runs that are due and continue them; tell whether there were any."""
        if self._executor.active + self._committer.waiting > _MAX_UNDER_WAY or len(self._arrivals.replaying) > _BATCH:
            await asyncio.sleep(TICK)
            return True
        names, one_in_hand = self._runner.queues.workflows, self._background.busy("suspect")
        ageing = self._runner.queues.ageing
        claims = await self._claim_oldest(worker) if ageing else []
        if not claims:
            claims = await self._store.claim(worker, self._clock.now(), _BATCH, names, stuck=not one_in_hand)
            if ageing:
                self._by_priority += len(claims)
        self._runner.figures.claimed(claims)
        if claims and claims[0].claims > 1:
            self._background.start("suspect", self._adopt_suspect(claims))
        elif claims:
            await self._adopt(claims)
        elif one_in_hand:
            self.next_due = self._clock.now() + _PATIENCE  # the earliest due may be a suspect, which has to wait
        else:
            self.next_due = await self._store.next_due(names)
        in_turn = bool(self._runner.queues.lanes) and await self._claim_waiting(worker)
        return bool(claims) or in_turn

    async def _claim_oldest(self, worker: str) -> list[Claim]:
        """Take the most overdue runs of queues that age, one for each nine that were taken by priority."""
        owed = min(self._by_priority // STRICT, _BATCH)
        if not owed:
            return []
        names = self._runner.queues.ageing_workflows
        claims = await self._store.claim(worker, self._clock.now(), owed, names, stuck=False, oldest=True)
        self._by_priority = 0  # none is owed to a time when none waited
        return claims

    async def _claim_waiting(self, worker: str) -> bool:
        """Take runs whose turn it is, as many as there is room for now; tell whether there were any.

        What waits here would not take turns with what is started later, so none is taken before it can go on.
        """
        now, rules = self._clock.now(), self._runner.queues.open_lanes
        residents, replaying = self._runner.residents, self._arrivals.replaying
        self._in_hand = {
            key for key in self._in_hand if key in replaying or ((run := residents.get(key)) and not run.parked)
        }
        room = min(self._executor.size - max(self._executor.active, len(self._in_hand)), _BATCH)
        if room <= 0:
            self.look_again(now + _CROWDED)
            return False
        full = now >= self._ask_full
        if full:
            self._ask_full = now + _FULL_EVERY
        claims = await self._store.claim_waiting(worker, now, room, rules, full=full)
        if claims:
            self._in_hand.update(claim.key for claim in claims)
            await self._adopt(claims)
        else:
            self.look_again(await self._store.next_called(list(rules)))
        return bool(claims)

    def look_again(self, at: Instant | None) -> None:
        """Claim again at an instant, if not before."""
        if at is not None:
            self.next_due = at if self.next_due is None else min(at, self.next_due)

    async def _adopt(self, claims: list[Claim], alone: bool = False) -> None:
        if self._runner.stopping:
            return  # they are handed back when the worker leaves
        histories = {history.key: history for history in await self._store.load([claim.key for claim in claims])}
        if alone and not await self._begin_trial(claims):
            return

        found = [(claim, histories[claim.key]) for claim in claims if claim.key in histories]
        # Alone means that nothing else happens meanwhile, however long that takes.
        await from_callback(partial(self._arrivals.adopt_all, found, alone=alone))
        if not alone:
            for claim in claims:
                self._runner.attempts.suspects.turns.release(claim.key)

    async def _begin_trial(self, claims: list[Claim]) -> bool:
        """Make durable that runs are about to be driven alone: only what dies after this is evidence against them."""
        now = self._clock.now()
        marks = [CommitTurn(key=claim.key, epoch=claim.epoch, at=now, trial=True) for claim in claims]
        outcomes = [await self._committer.apply(mark) for mark in marks]
        return all(isinstance(outcome, Committed) for outcome in outcomes)

    async def _adopt_suspect(self, claims: list[Claim]) -> None:
        """Continue a run that was claimed before without progress: alone, so that no other is blamed for a crash."""
        while self._runner.attempts.suspects.judging and not self._runner.stopping:  # noqa: ASYNC110  # rare, and not waited for
            await asyncio.sleep(TICK)
        turns = self._runner.attempts.suspects.turns
        for claim in claims:
            turns.hold(claim.key)
        try:
            await self._adopt(claims, alone=True)
            residents = self._runner.residents
            while any((run := residents.get(claim.key)) and run.commits for claim in claims):  # noqa: ASYNC110
                await asyncio.sleep(TICK)
        except Exception as error:
            self.doubt = True
            _logger.warning("a suspect cannot be loaded, trying again later: %s", error)
        finally:
            for claim in claims:
                turns.release(claim.key)
        self._wake()

    def others_committed(self, certainly: bool) -> None:
        """Check, soon, which runs are still this worker's; in a minute if it likely was this worker's own thread.

        Then only memory is at stake: what another process ended or took is refused here. While a body is under way it
        is checked soon in any case, so that the body of an ended run is stopped.
        """
        at = 0 if certainly or self._executor.active else self._clock.now() + _UNLIKELY_EVERY
        self._compare_at = min(self._compare_at, at)

    async def check(self, worker: str) -> None:
        """After a fault whose outcome is unknown, or a commit of another process: compare with what the store holds."""
        if self.doubt:
            await self._hand_back_missing(worker)
        if self._compare_at <= self._clock.now():
            compare_at, self._compare_at = self._compare_at, FAR_FUTURE
            try:
                await self._drop_ended(worker)
            except BaseException:
                self._compare_at = compare_at
                raise

    async def _hand_back_missing(self, worker: str) -> None:
        """Hand back runs that the store says are ours but that we do not have.

        Only those missing twice in a row: what is still on its way here or out is given the time to arrive.
        """
        self.doubt = False  # a doubt that comes while the store is asked is about what the answer may not have yet
        try:
            held = await self._store.held(worker)
        except BaseException:
            self.doubt = True
            raise
        arriving = self._arrivals.replaying
        missing = {run for run in held if run.key not in self._runner.residents and run.key not in arriving}
        for run in missing & self._missing:
            self._runner.departures.give_back(run)
        self._missing = missing
        self.doubt = self.doubt or bool(missing)

    async def _drop_ended(self, worker: str) -> None:
        """Drop runs in memory that another process ended or took: what they are doing would be refused anyway."""
        residents = self._runner.residents
        before = {key: resident.epoch for key, resident in residents.items() if resident.phase < FINISHING}
        held = {run.key: run.epoch for run in await self._store.held(worker)}
        loop = asyncio.get_running_loop()
        for key, epoch in before.items():
            resident = residents.get(key)
            if resident is not None and resident.epoch == epoch and held.get(key) != epoch and not resident.commits:
                loop.call_soon(self._runner.drop, resident)
                self._runner.limits.forget(key)


class Claimer:
    """Claims from each source in turn, when woken or when something is due."""

    def __init__(
        self, clock: Clock, runs: ClaimedRuns, others: list[Source], broken: Callable[[StoreError], None]
    ) -> None:
        self._clock = clock
        self._runs = runs
        self._sources: list[Source] = [runs, *others]
        self._broken = broken
        self._woken = asyncio.Event()
        self._stopping = False
        self._claiming = False

    @property
    def busy(self) -> bool:
        """Whether a claim is under way or wanted."""
        return self._claiming or self._woken.is_set()

    def wake(self) -> None:
        """Look for work now."""
        self._woken.set()

    def stop(self) -> None:
        """Claim nothing more."""
        self._stopping = True
        self._woken.set()

    async def run(self, worker: Callable[[], str]) -> None:
        """Claim for a worker, whose name may change, until stopped."""
        pause = _FIRST_PAUSE
        while not self._stopping:
            self._woken.clear()
            more = False
            try:
                self._claiming = True
                for source in self._sources:
                    if not self._stopping:
                        more = await source.claim(worker()) or more
                pause = _FIRST_PAUSE
            except Exception as error:
                self._runs.doubt = True
                if isinstance(error, StoreError):
                    self._broken(error)
                else:
                    _logger.exception("cannot claim runs, trying again")
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            finally:
                self._claiming = False
            if not more:
                await self._wait()

    async def _wait(self) -> None:
        if self._stopping:
            return
        delay, due = None, self._runs.next_due
        if due is not None:
            delay = min(max((due - self._clock.now()) / 1e6, 0.001), 3600.0)
        try:
            await asyncio.wait_for(self._woken.wait(), delay)
        except TimeoutError:
            return
