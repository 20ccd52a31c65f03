"""What a worker does for shared limits besides running steps: declare them, correct its counts, pass turns on."""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.contract.limits import GrantTurns, PutLimit
from holdfast.contract.operations import Done
from holdfast.contract.store import Store
from holdfast.contract.turns import Audit
from holdfast.engine.runs.runner import Runner
from holdfast.engine.worker.committer import Committer

_logger = logging.getLogger("holdfast.engine")


class LimitKeeper:
    """The shared limits of one engine."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        runner: Runner,
        clock: Clock,
        lease_clock: Clock,
        turns_came: Callable[[], None],
    ) -> None:
        self._store = store
        self._committer = committer
        self._runner = runner
        self._clock = clock
        self.lease_clock = lease_clock
        self._turns_came = turns_came
        self._known: dict[str, tuple[str, bool]] = {}
        """The numbers in force of the limits that this engine declares, and whether they are paused, as last seen."""
        self._corrected: float | None = None
        """The renewal of the lease after which the counts of this worker were last corrected."""

    async def declare(self, worker: str) -> None:
        """Write down the limits that this engine declares: the one that was opened last says what holds.

        What was written before the machine was booted is brought to the present time since boot.
        """
        for limit in self._runner.limits.shared:
            outcome = await self._committer.apply(
                PutLimit(
                    name=limit.name,
                    spec=limit.spec,
                    at=self._clock.now(),
                    now=self.lease_clock.now(),
                    audit=Audit(actor="engine", action="declare limit", detail=limit.meant()),
                )
            )
            self._known[limit.name] = (limit.brief(), False)
            if isinstance(outcome, Done) and outcome.ids:
                _logger.warning("limit %r was %s and is %s now", limit.name, outcome.ids[0], limit.brief())
        if self._runner.limits.shared:
            clock = self.lease_clock if self.lease_clock.same_for_all else None
            await self._committer.apply(
                GrantTurns(at=self._clock.now(), now=self.lease_clock.now(), opens=worker, clock=clock)
            )

    async def see_to(self, renewed: float) -> None:
        """Correct the counts of this worker after each renewal of its lease, and hand on turns that were not used."""
        await self._follow()
        now = self.lease_clock.now()
        limited = self._runner.attempts.limited
        if (limited.used and not limited.tasks.asked) and (renewed != self._corrected or limited.doubt):
            self._corrected = renewed
            correction = limited.correction()
            try:
                outcome = await self._committer.apply(correction)
            except Exception:
                limited.doubt = True
                raise
            if isinstance(outcome, Done) and outcome.count:
                _logger.info("%d places of limits were counted for this worker that it did not have", outcome.count)
                self._turns_came()
        paused = self._runner.queues.paused_work
        if await self._store.limits_to_see_to(now, paused):
            await self._committer.apply(GrantTurns(at=self._clock.now(), now=now, paused=paused))
            self._turns_came()

    async def _follow(self) -> None:
        """Say what became of the limits that this engine declares: the stored numbers hold, and others change them."""
        declared = {limit.name for limit in self._runner.limits.shared}
        for row in await self._store.limits() if declared else ():
            found = (row.override if row.override is not None else row.spec, row.paused)
            before = self._known.get(row.name, found)
            self._known[row.name] = found
            if row.name in declared and found != before:
                said = " (paused)" if row.paused else ""
                _logger.warning("limit %r was %s and is %s%s now", row.name, before[0], found[0], said)
