"""Leases: a worker says that it is alive, from a separate thread.

While the event loop is blocked, the thread goes on renewing the lease, until the loop has been silent for so long that
the worker should not keep its runs from other workers. A warning names what blocks the loop much earlier. A loop that
was closed under its engine never comes back, so the thread then signs the worker off. It does the same when the process
exits, if an interrupt prevented the engine from stopping.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta

from holdfast.contract.store import Store
from holdfast.logs import Lines

_logger = logging.getLogger("holdfast.engine")
_LOOK_EVERY = 0.5
_NAMED_AFTER = 2.0
"""After how many seconds without a round of the event loop it is said what blocks it."""
_BLOCKED_FOR_GOOD = 60.0
_LAST_WORDS = 5.0
_FRAMES = 30


class LeaseKeeper:
    """Renews one worker's lease until stopped, or until its event loop is closed."""

    def __init__(
        self,
        store: Store,
        worker: str,
        lease: timedelta,
        lost: Callable[[], None],
        load: Callable[[], str] = lambda: "{}",
    ) -> None:
        self._store = store
        self._worker = worker
        self._every = lease.total_seconds() / 3
        self._lost = lost
        self._load = load
        """What the worker carries."""
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._renew_for_ever, name="holdfast lease", daemon=True)
        self._loop_thread = threading.get_ident()
        self._seen = self._looked = time.monotonic()
        self._silence = (self._seen, 0.0)
        """The last round that was seen, and for how long there has been none since."""
        self.renewed = self._seen
        """When the lease was last renewed."""
        self._renewal_seen = self.renewed
        self._complained = False
        self._exiting = False

    def start(self) -> None:
        """Begin renewing."""
        self._thread.start()
        atexit.register(self._at_exit)

    def stop(self) -> None:
        """Stop renewing and wait for the thread."""
        atexit.unregister(self._at_exit)
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def loop_is_alive(self) -> None:
        """Note that the event loop made a round."""
        self._seen = time.monotonic()

    def was_renewed(self) -> bool:
        """Whether the lease was renewed since this was last asked."""
        before, self._renewal_seen = self._renewal_seen, self.renewed
        return before != self._renewal_seen

    def _at_exit(self) -> None:
        """Let the thread leave before it ends with the process."""
        self._exiting = True
        self._stop.set()
        self._thread.join(2 * _LAST_WORDS)

    def _renew_for_ever(self) -> None:
        if self._is_left_alone():
            asyncio.run(self._leave())

    def _is_left_alone(self) -> bool:
        """Renew until the end; tell whether it came without the engine's doing."""
        renewed = time.monotonic()
        while not self._stop.wait(min(self._every, _LOOK_EVERY)):
            if self._loop.is_closed():
                return True
            self._name_what_blocks()
            if time.monotonic() - renewed < self._every or self._blocked():
                continue
            renewed = time.monotonic()
            try:
                if not self._store.renew(self._worker, self._load()):
                    self._lost()
                    return False
                self.renewed = time.monotonic()
            except Exception as error:
                if not self._loop.is_closed():
                    _logger.warning("the lease of worker %s could not be renewed: %s", self._worker, error)
        return self._exiting

    def _name_what_blocks(self) -> None:
        """Say, once for each time that the event loop is blocked, where it is.

        Only time that this thread was awake for counts: a process that was stopped as a whole is not blocked.
        """
        now, seen = time.monotonic(), self._seen
        waited, self._looked = min(now - self._looked, 2 * _LOOK_EVERY), now
        last, silent = self._silence
        if seen != last:
            self._silence = (seen, 0.0)
        elif silent <= _NAMED_AFTER:
            self._silence = (seen, silent + waited)
            if silent + waited > _NAMED_AFTER:
                frame = sys._current_frames().get(self._loop_thread)
                stack = "".join(traceback.format_stack(frame, _FRAMES)) if frame is not None else "  (no frames)\n"
                _logger.warning(
                    "the event loop of worker %s has been blocked for %.0f s, and no run goes on; it is here:\n%s",
                    self._worker,
                    silent + waited,
                    Lines(stack),
                )

    def _blocked(self) -> bool:
        silent = time.monotonic() - self._seen
        blocked = silent > _BLOCKED_FOR_GOOD
        if blocked and not self._complained:
            _logger.error("the event loop has been blocked for %.0f s: its runs are left to other workers", silent)
        self._complained = blocked
        return blocked

    async def _leave(self) -> None:
        """Hand back the runs of a worker whose event loop or process is gone, and close the store that it used."""
        try:
            async with asyncio.timeout(_LAST_WORDS):
                await self._store.leave(self._worker)
            what = "handed its runs back"
        except Exception as error:
            what = f"could not hand back its runs, which are free when its lease lapses ({error!r})"
        try:
            async with asyncio.timeout(_LAST_WORDS):
                await self._store.close()
        except Exception as error:
            what += f"; its store could not be closed: {error!r}"
        _logger.error(
            "%s while an engine was open on it: worker %s %s; "
            "leave the engine's `async with` block or await engine.stop() before the loop ends",
            "the event loop was closed" if self._loop.is_closed() else "the process ended its event loop",
            self._worker,
            what,
        )
