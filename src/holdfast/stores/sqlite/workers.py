"""Workers on one machine: each has a row, and is alive while it holds its lock file and renews its lease."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import apsw

from holdfast.clock import Instant
from holdfast.contract.rows import TakenOver
from holdfast.stores.liveness import RECENT_DEATH, Fate, is_free
from holdfast.stores.rules.batch import Batch
from holdfast.stores.sql.statements import at_once
from holdfast.stores.sqlite.statements import SQL, PlainStatements
from holdfast.system import boot_id, boot_time


def join(db: apsw.Connection, worker: str, lease: int, lock: str, about: str) -> None:
    """Announce a worker; `lock` is the name of its lock file, empty when only the lease counts."""
    now = boot_time()
    row = (worker, boot_id(), now + lease, lease, os.getpid(), socket.gethostname(), lock, now, about)
    db.execute(SQL["join_worker"], row)


def renew(db: apsw.Connection, worker: str, load: str) -> bool:
    """Extend a lease; False when the worker is not alive in the books any more."""
    db.execute(SQL["renew_worker"], (worker, boot_time(), load))
    return db.changes() == 1


def leave(db: apsw.Connection, worker: str) -> None:
    """Hand back the runs of a worker and forget it."""
    _lose_work(db, worker, "handed back")
    db.execute(SQL["hand_back"], (worker,))
    db.execute(SQL["delete_worker"], (worker,))


def fates(db: apsw.Connection, folder: Path) -> dict[str, Fate]:
    """Return what became of workers that do not seem to be at work, without writing anything."""
    boot, now = boot_id(), boot_time()
    found: dict[str, Fate] = {}
    for worker, its_boot, lease_until, lock in db.execute(SQL["live_leases"]):
        rebooted = its_boot and boot and its_boot != boot
        if rebooted or (lock and is_free(str(folder / lock))):
            found[worker] = Fate.DIED
        elif lease_until < now:
            found[worker] = Fate.HANGS if lock else Fate.LAPSED
    return found


def locks(db: apsw.Connection) -> set[str]:
    """Return the names of the lock files of workers that were not declared dead."""
    return {lock for _, _, _, lock in db.execute(SQL["live_leases"])}


def declare_dead(db: apsw.Connection, workers: Mapping[str, Fate], now: Instant) -> list[TakenOver]:
    """Free what these workers were running, all but those that renewed meanwhile; return which are dead."""
    dead = []
    for worker, fate in workers.items():
        db.execute(SQL["declare_dead"], (worker, boot_time(), fate is Fate.DIED))
        if db.changes():
            runs = [run for (run,) in db.execute(SQL["run_by"], (worker,))]
            db.execute(SQL["free_lost"], (worker, now, fate.lost, now - _silence(db, worker)))
            _lose_work(db, worker, fate.lost, now)
            dead.append(TakenOver(worker, fate.lost, runs))
    db.execute(SQL["age_dead"], (boot_id(), boot_time() - RECENT_DEATH))
    db.execute(SQL["prune_dead"])
    return dead


def _silence(db: apsw.Connection, worker: str) -> int:
    """Return for how many microseconds a worker has not renewed its lease, 0 if the machine was booted since."""
    [(boot, renewed)] = db.execute(SQL["last_renewal"], (worker,))
    return max(boot_time() - renewed, 0) if boot == boot_id() else 0


def _lose_work(db: apsw.Connection, worker: str, how: str, now: Instant | None = None) -> None:
    batch = Batch(PlainStatements(db))

    async def lose() -> None:
        await batch.tasks.lose(worker, how, now)
        await batch.limits.lose(worker, now)
        await batch.flush()

    at_once(lose())
