"""Due times of runs in memory: one heap, one callback of the event loop for the earliest."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence

from holdfast.clock import Clock, Instant
from holdfast.engine.runs.resident import DROPPED, Resident

_LONGEST_SLEEP = 3600.0
_FEW = 256


class Timers:
    """Calls `wake` with the runs whose time has come; the caller checks that they still want to be woken."""

    def __init__(self, clock: Clock, wake: Callable[[Sequence[Resident]], None], resolution: int = 0) -> None:
        self._clock = clock
        self._resolution = resolution
        self._wake = wake
        self._heap: list[tuple[Instant, int, Resident]] = []
        self._room = _FEW
        """How long the heap may grow before it is looked through for what has left memory, which it would keep."""
        self._count = 0
        self._handle: asyncio.TimerHandle | None = None
        self._armed: Instant | None = None

    def add(self, due: Instant, resident: Resident) -> None:
        """Wake a run at an instant."""
        self._count += 1
        heapq.heappush(self._heap, (due, self._count, resident))
        if len(self._heap) > self._room:
            self._forget_stale()
        if self._armed is None or due < self._armed:
            self._arm()

    def kept(self, due: Instant) -> Instant:
        """Return when a run is woken that is due at an instant: at the end of the span in which that lies."""
        return -(-due // self._resolution) * self._resolution if self._resolution else due

    def next(self) -> Instant | None:
        """Return the earliest instant at which a run in memory is to be woken."""
        while self._heap and _stale(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def check_jump(self) -> None:
        """Wake the runs that are due early because the wall clock jumped; called by the worker's tick."""
        if self._armed is not None and self._armed <= self._clock.now():
            self.check()

    def check(self) -> None:
        """Wake the runs that are due."""
        now = self._clock.now()
        due: list[Resident] = []
        while (first := self.next()) is not None and first <= now:
            due.append(heapq.heappop(self._heap)[2])
        if due:
            self._wake(due)
        self._arm()

    def close(self) -> None:
        """Wake no run any more."""
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()

    def _forget_stale(self) -> None:
        self._heap = [timer for timer in self._heap if not _stale(timer)]
        heapq.heapify(self._heap)
        self._room = max(_FEW, len(self._heap) * 3 // 2)

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed = self.next()
        if self._armed is not None:
            delay = min(max((self._armed - self._clock.now()) / 1e6, 0.0), _LONGEST_SLEEP)
            self._handle = asyncio.get_running_loop().call_later(delay, self.check)


def _stale(timer: tuple[Instant, int, Resident]) -> bool:
    """Tell whether it wakes no run: its run has left memory, or is to be woken at another instant."""
    due, _, resident = timer
    return resident.phase is DROPPED or resident.scheduled != due
