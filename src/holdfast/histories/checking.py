"""The check before a deploy: every run that is given is replayed against the code at hand, in several processes."""

from __future__ import annotations

import asyncio
import sys
from asyncio import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial

from holdfast.definitions import Registry
from holdfast.determinism.check import check as check_source
from holdfast.errors import HoldfastError
from holdfast.histories.misfits import CheckReport, Judged, Misfit, grouped
from holdfast.histories.recorded import RecordedRun
from holdfast.histories.worker import framed, judged_frame

Runs = list[RecordedRun]


class CheckFailed(HoldfastError):
    """A process that replayed runs ended before it answered."""


async def check_runs(
    app: str,
    registry: Registry,
    source: AsyncIterator[Runs],
    *,
    jobs: int,
    again: Callable[[str], Awaitable[RecordedRun | None]] | None = None,
    served: Collection[str] | None = None,
    progress: Callable[[int], None] = lambda replayed: None,
) -> CheckReport:
    """Replay runs against the workflows of `app`, which are those of `registry`, and return which do not fit.

    A run that was continued as new or reopened while it was read is read once more with `again`, if that is given.
    `served` are the queues that this code or a worker serves; runs that need another are warned of.

    Raises:
        CheckFailed: a process that replayed them ended.
    """
    todo: asyncio.Queue[Runs | None] = asyncio.Queue(jobs)
    tally = _Tally(progress)
    processes: list[subprocess.Process] = []
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_feed(source, todo, jobs))
            for _ in range(jobs):
                tasks.create_task(_work(partial(_process, app, processes), todo, tally, again))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        for process in processes:
            await _end(process)
    return CheckReport(
        runs=tally.runs,
        fit=tally.runs - len(tally.misfits),
        workflows=len(tally.workflows),
        groups=grouped(tally.misfits),
        warnings=[
            *(str(found) for workflow in registry.all() for found in check_source(workflow.function)),
            *(
                _unserved(queue, count)
                for queue, count in sorted(tally.queues.items())
                if queue not in (served or {queue})
            ),
        ],
    )


def _unserved(queue: str, count: int) -> str:
    runs = f"{count:,} open run{' needs' if count == 1 else 's need'}"
    return f"{runs} queue {queue!r}, which neither this engine nor a worker that is alive serves"


class _Tally:
    """What was found so far."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self.runs = 0
        self.workflows: set[str] = set()
        self.misfits: list[Misfit] = []
        self.queues: Counter[str] = Counter()
        self._progress = progress

    def add(self, runs: Runs, misfits: list[Misfit], queues: Mapping[str, int]) -> None:
        self.runs += len(runs)
        self.queues.update(queues)
        self.workflows.update(run.workflow for run in runs)
        self.misfits += misfits
        self._progress(self.runs)


async def _process(app: str, processes: list[subprocess.Process]) -> subprocess.Process:
    """Start a process, and keep it where it is ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast.histories.worker", app, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        limit=1 << 20,
    )  # fmt: skip
    processes.append(process)
    return process


async def _feed(source: AsyncIterator[Runs], todo: asyncio.Queue[Runs | None], jobs: int) -> None:
    async for runs in source:
        await todo.put(runs)
    for _ in range(jobs):
        await todo.put(None)


async def _work(
    start: Callable[[], Awaitable[subprocess.Process]],
    todo: asyncio.Queue[Runs | None],
    tally: _Tally,
    again: Callable[[str], Awaitable[RecordedRun | None]] | None,
) -> None:
    process: subprocess.Process | None = None
    while (runs := await todo.get()) is not None:
        process = process or await start()  # not before there is something to do
        judged = await _ask(process, runs)
        misfits = judged.misfits
        if misfits and again is not None:
            misfits = await _confirmed(process, runs, misfits, again)
        tally.add(runs, misfits, judged.queues)


async def _confirmed(
    process: subprocess.Process,
    runs: Runs,
    misfits: list[Misfit],
    again: Callable[[str], Awaitable[RecordedRun | None]],
) -> list[Misfit]:
    """Return which misfits stand: a run that began a new life between two reads is judged by what it is now."""
    read = {run.id: run for run in runs}
    sure: list[Misfit] = []
    for misfit in misfits:
        now, was = await again(misfit.run), read[misfit.run]
        if now is not None and (now.generation, now.reopens) == (was.generation, was.reopens):
            sure.append(misfit)
        elif now is not None:
            sure += (await _ask(process, [now])).misfits
    return sure


async def _ask(process: subprocess.Process, runs: Runs) -> Judged:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(framed(runs))
        await process.stdin.drain()
        size = int.from_bytes(await process.stdout.readexactly(4), "big")
        return judged_frame.decode(await process.stdout.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        code = await process.wait()
        one = f"run {runs[0].id}" if len(runs) == 1 else f"one of {len(runs)} runs, {runs[0].id} the first"
        raise CheckFailed(f"the process that replayed {one}, ended with {code} and did not answer") from None


async def _end(process: subprocess.Process) -> None:
    if process.returncode is None and sys.exc_info()[0] is not None:
        with suppress(ProcessLookupError):
            process.kill()
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()
