"""Leases: a worker says that it is alive, from a thread of its own.

A blocked event loop does not silently expire: the thread goes on renewing, until the loop has been silent for so long
that holding its runs would keep them from everybody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from holdfast.stores.base import Store

_logger = logging.getLogger("holdfast.engine")
_BLOCKED_FOR_GOOD = 60.0


class LeaseKeeper:
    """Renews one worker's lease until stopped."""

    def __init__(self, store: Store, worker: str, lease: timedelta, lost: Callable[[], None]) -> None:
        self._store = store
        self._worker = worker
        self._every = lease.total_seconds() / 3
        self._lost = lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew_for_ever, name="holdfast lease", daemon=True)
        self._seen = time.monotonic()

    def start(self) -> None:
        """Begin renewing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing and wait for the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def loop_is_alive(self) -> None:
        """Note that the event loop made a round."""
        self._seen = time.monotonic()

    def _renew_for_ever(self) -> None:
        while not self._stop.wait(self._every):
            silent = time.monotonic() - self._seen
            if silent > _BLOCKED_FOR_GOOD:
                _logger.error("the event loop has been blocked for %.0f s: its runs are left to other workers", silent)
                continue
            try:
                if not self._store.renew(self._worker):
                    self._lost()
                    return
            except Exception as error:
                _logger.warning("the lease of worker %s could not be renewed: %s", self._worker, error)
