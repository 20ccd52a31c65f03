"""Async generators on a thread that runs many loops: each is closed by the loop in which it began.

Python calls two hooks of the thread for them. A turn could install its own hooks and remove them again, but every such
change is an audited event, and there would be some for every step of every run. So one pair stays installed, in front
of the hooks of the thread's own event loop, and sends each generator to its loop.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from holdfast.replay.loop import RunLoop, _running_loop

Hook = Callable[[Any], object] | None
_FEW = 1000


class GeneratorHooks:
    """The pair of hooks, with the pair it stands in front of."""

    __slots__ = ("_final", "_first", "_owners", "_prune_at")

    def __init__(self, first: Hook, final: Hook) -> None:
        self._first = first
        self._final = final
        # By identity: when a generator is finalized, weak references to it are gone already. One that came to its end
        # is never finalized; what it leaves here is replaced when its place in memory is taken by the next one.
        self._owners: dict[int, weakref.ref[RunLoop]] = {}
        self._prune_at = _FEW

    def first(self, generator: Any) -> None:
        loop = _running_loop()
        if type(loop) is RunLoop:
            self._owners[id(generator)] = weakref.ref(loop)
            if len(self._owners) > self._prune_at:
                self._prune()
        else:
            self._owners.pop(id(generator), None)
            if self._first is not None:
                self._first(generator)

    def final(self, generator: Any) -> None:
        owner = self._owners.pop(id(generator), None)
        if owner is None:
            if self._final is not None:
                self._final(generator)
            else:
                _close(generator)
        elif (loop := owner()) is not None:
            loop.asyncgen_final(generator)

    def _prune(self) -> None:
        self._owners = {at: owner for at, owner in self._owners.items() if (loop := owner()) and not loop.dead}
        self._prune_at = max(_FEW, 2 * len(self._owners))


def _close(generator: Any) -> None:
    """Do what Python does with a generator that no hook asks for."""
    try:
        generator.aclose().send(None)
    except (StopIteration, StopAsyncIteration, RuntimeError):
        pass


def adopt(hooks: Any) -> None:
    """See to it that async generators which begin in a run on this thread belong to it, in front of these hooks."""
    if type(getattr(hooks.firstiter, "__self__", None)) is not GeneratorHooks:
        ours = GeneratorHooks(hooks.firstiter, hooks.finalizer)
        sys.set_asyncgen_hooks(ours.first, ours.final)
