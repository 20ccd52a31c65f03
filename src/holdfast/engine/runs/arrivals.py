"""How a run comes into memory: a new one is started, one of the store is claimed and replayed.

Like the runner, called only from plain callbacks of the event loop.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.contract.operations import Outcome, Started
from holdfast.contract.rows import Claim, History, InboxKind
from holdfast.contract.turns import NewRun, StartRun
from holdfast.definitions import Registry, Workflow
from holdfast.engine.runs.resident import FINISHING
from holdfast.engine.runs.runner import Runner
from holdfast.engine.worker.committer import Committer, Done
from holdfast.payloads.codec import error_to_data
from holdfast.replay.execution import first_entries
from holdfast.replay.journal import CANCEL
from holdfast.replay.turn import Ending


class Arrivals:
    """The ways into memory."""

    def __init__(self, runner: Runner, committer: Committer, registry: Registry) -> None:
        self._runner = runner
        self._committer = committer
        self._registry = registry

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

    def adopt(self, claim: Claim, history: History) -> None:
        """Continue a claimed run from its history."""
        runner = self._runner
        now = runner.clock.now()
        try:
            workflow = self._registry.get(claim.workflow, claim.version)
            resident = runner.loader.claimed(claim, workflow, history.entries, now)
        except Exception as error:
            runner.departures.block_claim(runner.loader.unreadable(claim), error_to_data(error))
            return
        resident.was_claimed(history.seen, bool(claim.version))
        runner.keep(resident)
        never_ran = claim.epoch == 1
        if claim.version and workflow.version != claim.version:
            runner.reporter.tell("run.skewed", resident, {"recorded": claim.version, "running": workflow.version})
        if never_ran:
            runner.reporter.tell("run.started", resident)
        if never_ran and any(message.kind == InboxKind.CANCEL for message in history.messages):
            runner.departures.cancel_outright(resident)
            return
        messages, ends, pause = runner.mail.sort(resident, history.messages)
        if pause is not None:
            runner.pauses.begin(resident, pause)
            return
        if claim.paused:
            runner.reporter.tell("run.resumed", resident)
        life = first_entries((), now) if claim.generation and not history.entries else []
        turn = resident.execution.begin(history.entries or life, messages, now)
        turn.entries[:0] = life
        ends = runner.attempts.queued.recall(resident, turn, history, ends)
        begin = runner.attempts.recall(resident, turn, claim, now)
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
