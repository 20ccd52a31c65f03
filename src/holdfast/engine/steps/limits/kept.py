"""Places that attempts of a worker have left, and that it keeps briefly: its next attempts use them without asking.

The store says where that is allowed: the worker is busy under a limit, and half of the limit is free for others. A kept
place stays counted for the worker, so a limit is never exceeded. It is given back when no attempt used it for a moment,
or when the store no longer allows keeping it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from holdfast.clock import Clock
from holdfast.contract.limits import LimitAnswer
from holdfast.contract.turns import EnterLimit, LeaveLimit
from holdfast.engine.steps.limits.places import LimitPlace

Pair = tuple[str, str]
"""A limit and a key."""

KEPT_FOR = 0.1
"""After how many seconds without use places are given back, and at most twice that."""


class KeptPlaces:
    """The places that one worker keeps, and how many are counted for it in all."""

    def __init__(self, give_back: Callable[[list[LeaveLimit]], None], clock: Clock) -> None:
        self._give_back = give_back
        self._clock = clock
        self._worker = ""
        self._counted: dict[Pair, int] = {}
        """How many places the store is known to count for the steps of this worker: it counts no fewer."""
        self.kept: dict[Pair, int] = {}
        self._used: set[Pair] = set()
        """Those of which places were used since they were last looked at."""
        self._look: asyncio.TimerHandle | None = None

    def take(self, pair: Pair, worker: str) -> int:
        """Take a place that was kept; return how many are counted for the worker, 0 if none was kept."""
        if worker != self._worker:  # it was declared dead, and nothing is counted for it any more
            self._worker, self.kept = worker, {}
            self._counted.clear()
        kept = self.kept.get(pair)
        if not kept:
            return 0
        self._less(self.kept, pair)
        self._used.add(pair)
        return self._counted[pair]

    def answered(self, enter: EnterLimit, answer: LimitAnswer | None, made: bool) -> None:
        """Note what became of asking for a place; without an answer, whether it is known that nothing was asked."""
        if enter.worker != self._worker:
            return
        pair = (enter.limit, enter.key)
        if answer is None:
            if enter.counted and made:
                self._keep(pair)
            elif enter.counted:
                self._less(self._counted, pair)
            return
        if answer.outcome == "entered":
            if not enter.counted:
                self._counted[pair] = self._counted.get(pair, 0) + 1
        elif enter.counted:
            self._less(self._counted, pair)
        if not answer.keep and pair in self.kept:
            self._return([pair])

    def left(self, place: LimitPlace, verdict: str) -> bool:
        """Note that an attempt has left its place; tell whether it is kept and need not be given back."""
        if place.worker != self._worker:
            return False
        pair = (place.limit, place.key)
        if place.keep and verdict == "ok" and not place.outlived:
            self._keep(pair)
            return True
        self._less(self._counted, pair)
        return False

    def _keep(self, pair: Pair) -> None:
        self.kept[pair] = self.kept.get(pair, 0) + 1
        self._used.add(pair)
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(KEPT_FOR, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._return([pair for pair in self.kept if pair not in self._used])
        self._used.clear()
        if self.kept:
            self._look = asyncio.get_running_loop().call_later(KEPT_FOR, self._look_again)

    def _return(self, pairs: list[Pair]) -> None:
        leaves: list[LeaveLimit] = []
        for limit, key in pairs:
            places = self.kept.pop((limit, key))
            self._less(self._counted, (limit, key), places)
            leave = LeaveLimit(limit=limit, key=key, worker=self._worker, now=self._clock.now(), places=places)
            leaves.append(leave)
        self._give_back(leaves)

    @staticmethod
    def _less(counts: dict[Pair, int], pair: Pair, by: int = 1) -> None:
        """Count less; what is nothing is not kept."""
        left = counts.get(pair, 0) - by
        if left > 0:
            counts[pair] = left
        else:
            counts.pop(pair, None)

    def of(self, worker: str) -> Mapping[Pair, int]:
        """Return what a worker keeps."""
        return self.kept if worker == self._worker else {}

    def close(self) -> None:
        """Give back nothing more: the worker leaves, and what is counted for it goes with it."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        self.kept = {}
