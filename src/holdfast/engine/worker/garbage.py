"""Full garbage collections: made rarer while an engine is open in this process.

A full collection visits every object. With ten thousand runs in memory that takes a fifth of a second, and the objects
that a busy worker makes and forgets trigger one several times a second: more time than the runs themselves take. Young
objects are collected as often as before. Only old reference cycles are left for full collections, and they can wait:
runs that end or leave memory, and batches of the store, leave no cycles.
"""

from __future__ import annotations

import gc
import threading

RARELY = 1_000
"""How many collections of the middle generation lie between two full ones; Python's default is 10."""


class Collecting:
    """The thresholds of this process, as they were and as they are while engines are open."""

    __slots__ = ("_before", "_lock", "_open", "_ours")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._before = self._ours = (0, 0, 0)

    def opened(self) -> None:
        """Note that an engine was opened."""
        with self._lock:
            self._open += 1
            if self._open == 1:
                self._before = gc.get_threshold()
                young, middle, old = self._before
                gc.set_threshold(young, middle, max(old, RARELY))
                self._ours = gc.get_threshold()

    def closed(self) -> None:
        """Note that an engine was closed; after the last one it is as before, unless the application has changed it."""
        with self._lock:
            self._open -= 1
            if self._open == 0 and gc.get_threshold() == self._ours:
                gc.set_threshold(*self._before)


# Of the process, like the garbage collector itself.
collecting = Collecting()
