"""Workers on PostgreSQL, forked on request (imports are paid once) so that they can be killed by the hundred.

usage: postgres_worker.py FOLDER, with orders as lines of JSON on the standard input, each answered by one:

    {"begin": {...}}    fork a worker with the options of `work`; answers its process id
    {"wait": PID}       wait for one to end; answers how, as waitpid gives it
    {"look": PID}       the same without waiting; answers null if it has not ended

A worker says in FOLDER that it is `ready-PID`, which of its writes were `fenced`, and whatever it has to `log`; bodies
say in `bodies` that they began. While the file `hang` is there, the next worker that is about to commit deletes it and
stops. SIGTERM lets a worker leave in order. When the input is closed everybody is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.support.scripts import postgres_runs

from holdfast import Engine
from holdfast.contract.operations import Fenced, Operation, Outcome
from holdfast.stores.postgres import workers
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.rules.batch import Batch

PR_SET_PDEATHSIG = 1


class NotingStore(PostgresStore):
    """Notes which writes were refused, where a kill does not take it away."""

    noted: Path

    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        outcomes = await super().apply(operations)
        fenced = [outcome for outcome in outcomes if isinstance(outcome, Fenced)]
        if fenced:
            with self.noted.open("a") as file:
                file.write("".join(f"{os.getpid()} {outcome.key}\n" for outcome in fenced))
        return outcomes


def hang_in_transaction(folder: Path) -> None:
    """Let this process stop in the middle of a transaction when it is told to."""
    apply = Batch.apply

    async def apply_and_hang(batch: Batch, *args: Any, **options: Any) -> list[Outcome]:
        outcomes = await apply(batch, *args, **options)
        if (folder / "hang").exists():
            (folder / "hang").unlink()
            os.kill(os.getpid(), signal.SIGSTOP)
        return outcomes

    Batch.apply = apply_and_hang  # type: ignore[method-assign, assignment]


async def work(
    folder: Path,
    url: str,
    lease: float = 30.0,
    dialect: str | None = None,
    clock_error: float = 0.0,
    max_resident: int = 10_000,
) -> None:
    """Work until told to leave."""
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    logging.basicConfig(
        filename=folder / "log", level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s"
    )
    postgres_runs.BODIES = folder / "bodies"
    hang_in_transaction(folder)
    workers.SILENCE = min(workers.SILENCE, timedelta(seconds=lease))  # leases are shorter here than any in earnest
    if clock_error:
        right = time.time_ns
        time.time_ns = lambda: right() + int(clock_error * 1e9)  # a wrong machine clock
    store = NotingStore(url, dialect=dialect)
    store.noted = folder / "fenced"
    async with Engine(
        store=store,
        workflows=postgres_runs.WORKFLOWS,
        lease=timedelta(seconds=lease),
        max_resident=max_resident,
        retention=None,
    ) as engine:
        (folder / f"ready-{os.getpid()}").write_text(engine._working().id)
        await leave.wait()


def begin(folder: Path, options: dict[str, Any]) -> int:
    """Fork a worker and return its process id."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            asyncio.run(work(folder, **options))
            status = 0
    except BaseException:
        with (folder / "log").open("a") as log:
            log.write(f"{os.getpid()} ended by {traceback.format_exc()}")
    os._exit(status)


def main(folder: Path) -> None:
    """Do what is asked until nobody asks any more; those that are left die with this process."""
    for line in sys.stdin:
        ((order, argument),) = json.loads(line).items()
        answer: int | None
        if order == "begin":
            answer = begin(folder, argument)
        else:
            pid, status = os.waitpid(argument, 0 if order == "wait" else os.WNOHANG)
            answer = status if pid else None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
