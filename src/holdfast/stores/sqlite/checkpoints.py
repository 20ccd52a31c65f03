"""Keeping the WAL short without making the event loop wait for it.

A checkpoint started by a commit copies a thousand pages while that commit waits. Here a thread with its own connection
copies them while commits continue; the next commit copies the few pages added meanwhile, and only then does the WAL
start over. When commits are faster than the thread, they go to the writer thread and wait there.
"""

from __future__ import annotations

import threading

import apsw

from holdfast.errors import StoreError
from holdfast.stores.sqlite.watch import FileWatch

PAGES = 1000
"""How long the WAL may get before it is copied back."""

FEW_PAGES = 100
"""How many pages a commit may copy on the event loop's time."""

MAX_PAGES = 4000
"""How long the WAL may get while it is being copied."""

_PATIENCE = 5.0


def begin_wal(db: apsw.Connection, grown: bool) -> None:
    """Make the WAL's file, with its working size if commits sync it: one that makes it longer takes half as long again.

    A transaction larger than the cache spills into the WAL; rolled back, it leaves nothing but the length of the file.
    """
    db.pragma("user_version")  # any look makes the file
    if not grown:
        return
    try:
        cache = db.pragma("cache_size")
        db.pragma("cache_size", 10)
        try:
            db.execute("BEGIN IMMEDIATE")
            db.execute("CREATE TABLE wal_filler (filler)")
            db.execute("INSERT INTO wal_filler VALUES (zeroblob(?))", (PAGES * 4096,))
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
            db.pragma("cache_size", cache)
    except apsw.Error:
        pass  # another process is writing, or there is no room: commits are a little slower, that is all


class Checkpoints:
    """Watches the WAL of one write connection, and copies it back on another, which it closes in the end."""

    def __init__(self, writer: apsw.Connection, connection: apsw.Connection, file: FileWatch) -> None:
        self.connection = connection
        self._writer = writer
        self._file = file
        self._pages = 0
        self._threshold = PAGES
        self._copied: int | None = None
        self._stopping = False
        self._wanted = threading.Event()
        self._resting = threading.Event()
        self._resting.set()
        self._thread = threading.Thread(target=self._work, name="holdfast-checkpoints", daemon=True)
        self._thread.start()
        writer.set_wal_hook(self._after_commit)

    @property
    def behind(self) -> bool:
        """Whether commits have outrun the copying."""
        return self._pages >= MAX_PAGES and not self._resting.is_set()

    def wait(self) -> None:
        """Let the copying catch up."""
        if self.behind:
            self._resting.wait(_PATIENCE)

    def finish(self, patient: bool) -> None:
        """Copy what is left after the thread has copied most, however much it is if the caller is patient.

        Called by the owner of the writer between two transactions.
        """
        if self._copied is None:
            return
        left, self._copied = self._pages - self._copied, None
        if left > FEW_PAGES and not patient:
            self._ask()
            return
        try:
            self._file.checkpoint(self._writer.wal_checkpoint)
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
            self._ask()
        return apsw.SQLITE_OK

    def _ask(self) -> None:
        self._resting.clear()
        self._wanted.set()

    def _work(self) -> None:
        while self._wanted.wait():
            self._wanted.clear()
            if self._stopping:
                break
            try:
                _, self._copied = self._file.checkpoint(self.connection.wal_checkpoint)
            except (apsw.Error, StoreError):
                pass  # the next one will do it; commits are told by themselves if the file was replaced
            if not self._wanted.is_set():
                self._resting.set()
        self._resting.set()
        self.connection.close()
