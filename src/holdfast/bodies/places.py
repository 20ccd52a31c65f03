"""Attempts that wait for a place: the one with the highest priority first, among equals the one that came first."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.bodies.attempt import Attempt


class WaitingRoom:
    """A queue for each priority, so that finding the next costs the same however many wait.

    One that is given up stays in its queue and is passed over.
    """

    __slots__ = ("_entries", "_numbers", "_priorities", "_queues", "_waiting")

    def __init__(self, numbers: Iterator[int] | None = None) -> None:
        self._queues: dict[int, deque[tuple[int, Attempt]]] = {}
        self._priorities: list[int] = []
        self._waiting: set[Attempt] = set()
        self._entries = 0
        self._numbers = numbers if numbers is not None else count()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self._waiting)

    def put(self, attempt: Attempt) -> None:
        """Let an attempt wait."""
        queue = self._queues.get(-attempt.priority)
        if queue is None:
            queue = self._queues[-attempt.priority] = deque()
            heapq.heappush(self._priorities, -attempt.priority)
        queue.append((next(self._numbers), attempt))
        self._entries += 1
        self._waiting.add(attempt)

    def take(self) -> Attempt:
        """Return the attempt that is next."""
        queue = self._first_queue()
        self._entries -= 1
        attempt = queue.popleft()[1]
        self._waiting.discard(attempt)
        return attempt

    def first(self) -> tuple[int, int]:
        """Return what orders who is next among several rooms: the smallest is first."""
        number, attempt = self._first_queue()[0]
        return -attempt.priority, number

    def leave(self, attempt: Attempt) -> bool:
        """Let an attempt wait no more; False if it did not."""
        if attempt not in self._waiting:
            return False
        self._waiting.discard(attempt)
        if self._entries > 2 * len(self._waiting) + 64:
            for priority, queue in self._queues.items():
                self._queues[priority] = deque(entry for entry in queue if entry[1] in self._waiting)
            self._entries = len(self._waiting)
        return True

    def clear(self) -> None:
        """Forget all that wait."""
        self._queues.clear()
        self._priorities.clear()
        self._waiting.clear()
        self._entries = 0

    def _first_queue(self) -> deque[tuple[int, Attempt]]:
        while True:
            queue = self._queues[self._priorities[0]]
            while queue:
                if queue[0][1] in self._waiting:
                    return queue
                queue.popleft()
                self._entries -= 1
            del self._queues[heapq.heappop(self._priorities)]
