"""How a run comes into memory: a new run is started, a stored run is claimed and replayed.

A long history is replayed in slices of about 10 ms, between which leases, timers and other runs go on. Until all of it
is replayed the run is not in memory, and messages to it wait in the store. Like the runner, called only from plain
callbacks of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from holdfast.context.steps import StepVerb
from holdfast.contract.operations import Outcome, Started
from holdfast.contract.rows import Claim, History, InboxKind, Message
from holdfast.contract.turns import NewRun, StartRun
from holdfast.definitions import Registry, Workflow
from holdfast.engine.runs.mail import Sorted
from holdfast.engine.runs.resident import FINISHING, Resident
from holdfast.engine.runs.runner import Runner
from holdfast.engine.worker.committer import Committer, Done
from holdfast.payloads.codec import error_to_data
from holdfast.replay.ending import Enough, first_entries, never
from holdfast.replay.journal import CANCEL
from holdfast.replay.turn import Ending

SLICE = 0.01
"""For how many seconds runs are replayed before the event loop gets its round."""
_logger = logging.getLogger("holdfast.engine")


class _Arrival(NamedTuple):
    """A claimed run that is being replayed; none but this file knows of it."""

    claim: Claim
    history: History
    resident: Resident
    messages: list[Message]
    ends: list[Message]


def a_slice(loop: asyncio.AbstractEventLoop) -> Enough:
    """Return what tells, from now on, when the event loop must have its round."""
    end = loop.time() + SLICE

    def over() -> bool:
        return loop.time() >= end

    return over


class Arrivals:
    """The ways into memory."""

    def __init__(self, runner: Runner, committer: Committer, registry: Registry, in_doubt: Callable[[], None]) -> None:
        self._runner = runner
        self._committer = committer
        self._registry = registry
        self._in_doubt = in_doubt
        """Told when a claimed run could not be continued: the store has it for this worker, which does not."""
        self._loop = asyncio.get_running_loop()
        self._replaying: deque[_Arrival] = deque()
        self._scheduled = False

    def start(self, run: NewRun, workflow: Workflow[Any, Any], done: Done) -> None:
        """Insert a run together with its first turn, and go on with it once that is durable."""
        resident = self._runner.loader.new(run, 0, workflow)
        turn = resident.execution.begin()
        if turn.children or (turn.outcome is not None and turn.outcome.ending in (Ending.BLOCKED, Ending.RENEWED)):
            # Its children need its key, which only the insert gives; a turn that ends otherwise takes the ordinary way.
            resident.execution.drop()
            self.start_plain(run, workflow, done)
        else:
            self._runner.begin(run, resident, turn, done)

    def start_plain(self, run: NewRun, workflow: Workflow[Any, Any], done: Done) -> None:
        """Insert a run before any code of it runs: whether it may be inserted, only the commit knows."""
        self._committer.submit(StartRun(run=run), partial(self._started_plain, run, workflow, done))

    def _started_plain(
        self, run: NewRun, workflow: Workflow[Any, Any], done: Done, outcome: Outcome | Exception
    ) -> None:
        if isinstance(outcome, Started):
            resident = self._runner.loader.new(run, outcome.key, workflow)
            self._runner.keep(resident)
            done(outcome)
            self._runner.reporter.tell("run.started", resident)
            self._runner.advance(resident, resident.execution.begin())
        else:
            done(outcome)

    def adopt_all(self, claimed: Iterable[tuple[Claim, History]], *, alone: bool = False) -> None:
        """Continue claimed runs from their histories: in slices, between which the event loop gets its round.

        Those that are to be driven `alone` are replayed at once, however long that takes.
        """
        arrivals: list[_Arrival] = []
        for claim, history in claimed:
            try:
                arrivals += self._receive(claim, history)
            except Exception:
                self._failed(claim)
        if alone:
            with self._committer.together():
                for arrival in arrivals:
                    self._bring(arrival, never)
            return
        self._replaying.extend(arrivals)
        if not self._scheduled:
            self._go_on()

    def _receive(self, claim: Claim, history: History) -> list[_Arrival]:
        """Make a claimed run and return it, unless it ends or pauses before its code goes on."""
        runner = self._runner
        now = runner.clock.now()
        try:
            workflow = self._registry.get(claim.workflow, claim.version)
            resident = runner.loader.claimed(claim, workflow, history.entries, now)
            never_ran = claim.epoch == 1
            lane = workflow.lane(claim.input) if never_ran and workflow.flow and not claim.place else None
        except Exception as error:
            runner.departures.block_claim(runner.loader.unreadable(claim), error_to_data(error))
            return []
        resident.was_claimed(history.seen, bool(claim.version))
        if lane is not None:
            runner.keep(resident)
            runner.departures.enter_lane(resident, lane)
            return []
        if claim.version and workflow.version != claim.version:
            runner.reporter.tell("run.skewed", resident, {"recorded": claim.version, "running": workflow.version})
        if never_ran:
            runner.reporter.tell("run.started", resident)
        if never_ran and any(message.kind == InboxKind.CANCEL for message in history.messages):
            runner.keep(resident)
            resident.read_rows([message.n for message in history.messages if message.kind == InboxKind.CANCEL])
            runner.cancel_outright(resident)
            return []
        messages, ends, pause = (
            runner.mail.sort(resident, history.messages) if history.messages else Sorted([], [], None)
        )
        if pause is not None:
            runner.keep(resident)
            runner.pauses.begin(resident, pause)
            return []
        if claim.paused:
            runner.reporter.tell("run.resumed", resident)
        return [_Arrival(claim, history, resident, messages, ends)]

    # Replaying, in slices.

    @property
    def replaying(self) -> set[int]:
        """The keys of the runs that are being replayed and are not in memory yet."""
        return {arrival.claim.key for arrival in self._replaying}

    def drop_all(self) -> None:
        """Forget the runs that are being replayed; the store has them."""
        while self._replaying:
            self._replaying.popleft().resident.execution.drop()

    def _go_on(self) -> None:
        """Replay for one slice, each run in turn, and leave the rest to the next round of the event loop."""
        over = a_slice(self._loop)
        with self._committer.together():
            while self._replaying:
                arrival = self._replaying.popleft()
                if not self._bring(arrival, over):
                    self._replaying.append(arrival)
                if over():
                    break
        self._scheduled = bool(self._replaying)
        if self._scheduled:
            self._loop.call_soon(self._go_on)

    def _failed(self, claim: Claim) -> None:
        self._in_doubt()
        _logger.error("run %s cannot be continued", claim.id)

    def _bring(self, arrival: _Arrival, enough: Enough) -> bool:
        """Replay a run until enough is done; tell whether it needs no more of that."""
        try:
            return self._replay(arrival, enough)
        except Exception:
            self._failed(arrival.claim)
            return True

    def _replay(self, arrival: _Arrival, enough: Enough) -> bool:
        """Replay a run; if all is done go on with it."""
        claim, history, resident, messages, ends = arrival
        runner = self._runner
        now = runner.clock.now()
        life = first_entries((), now) if claim.generation and not history.entries else []
        turn = resident.execution.begin_some(history.entries or life, messages, now, enough)
        if turn is None:
            return False
        runner.keep(resident)
        turn.entries[:0] = life
        if history.tasks or ends:
            ends = runner.attempts.queued.recall(resident, turn, history, ends)
        begin: list[StepVerb] = []
        if turn.started or history.limits:
            begin = runner.attempts.recall(resident, turn, claim, now, history.limits)
        if history.messages:
            begin += runner.attempts.nudged(resident, history.messages)
        grace = resident.grace_ends
        over = turn.outcome is None and grace is not None and grace <= now
        if over:
            resident.active.add(CANCEL)  # not to be let go yet
        runner.advance(resident, turn, begin)
        if over and resident.phase < FINISHING:
            resident.active.discard(CANCEL)
            runner.out_of_grace(resident)
        for end in ends:
            runner.attempts.queued.ended(resident, end)
        return True
