"""Keeping the WAL short without making commits wait for it.

A checkpoint started by a commit copies a thousand pages on that commit's time. Here a thread with a connection of its
own copies them while commits go on; what was added meanwhile is copied by the next commit, a few pages, and only then
does the WAL start over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import apsw

PAGES = 1000
"""How long the WAL may get before it is copied back."""


class Checkpoints:
    """Watches the WAL of one write connection."""

    def __init__(self, writer: apsw.Connection, connect: Callable[[], apsw.Connection]) -> None:
        self.connection: apsw.Connection | None = None
        self._writer = writer
        self._connect = connect
        self._pages = 0
        self._threshold = PAGES
        self._copied = False
        self._stopping = False
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._work, name="holdfast-checkpoints", daemon=True)
        self._thread.start()
        writer.set_wal_hook(self._after_commit)

    def finish(self) -> None:
        """Copy what is left after the thread has copied most; called by the writer's owner between transactions."""
        if self._copied:
            self._copied = False
            try:
                self._writer.wal_checkpoint()
            except apsw.Error:
                pass  # the next one will do it; a commit must not fail for a checkpoint

    def stop(self) -> None:
        """End the thread and close its connection."""
        self._stopping = True
        self._wanted.set()
        self._thread.join()

    def _after_commit(self, db: apsw.Connection, schema: str, pages: int) -> int:
        if pages < self._pages:
            self._threshold = PAGES
        self._pages = pages
        if pages >= self._threshold:
            self._threshold = pages + PAGES
            self._wanted.set()
        return apsw.SQLITE_OK

    def _work(self) -> None:
        while self._wanted.wait():
            self._wanted.clear()
            if self._stopping:
                break
            try:
                if self.connection is None:
                    self.connection = self._connect()
                self.connection.wal_checkpoint()
                self._copied = True
            except apsw.Error:
                continue
        if self.connection is not None:
            self.connection.close()
