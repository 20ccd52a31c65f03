"""The check before a deploy: every given run is replayed against present code, in several processes."""

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


_PATIENCE = 300.0
"""How many seconds some runs may take to be replayed: then the code hangs."""
_MOST_KILLED = 50
"""How many processes the code may kill until nothing more is replayed."""


class CheckFailed(HoldfastError):
    """Processes that replayed runs ended before they answered, again and again."""


class _Ended(Exception):
    """A process that replayed runs did not answer."""


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
        CheckFailed: too many processes that replayed them ended.
    """
    todo: asyncio.Queue[Runs | None] = asyncio.Queue(jobs)
    tally = _Tally(progress)
    processes: list[subprocess.Process] = []
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_feed(source, todo, jobs))
            for _ in range(jobs):
                tasks.create_task(_work(_Replayer(partial(_process, app, processes), tally), todo, tally, again))
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
        self.killed = 0
        """How many processes the code killed."""
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


class _Replayer:
    """A process that replays runs; after one that the code at hand kills or hangs another takes its place."""

    def __init__(self, start: Callable[[], Awaitable[subprocess.Process]], tally: _Tally) -> None:
        self._start = start
        self._tally = tally
        self._process: subprocess.Process | None = None

    async def judge(self, runs: Runs) -> Judged:
        """Return which of some runs do not fit; those that kill a process are found one by one.

        Raises:
            CheckFailed: too many do.
        """
        self._process = self._process or await self._start()  # not before there is something to do
        try:
            return await _ask(self._process, runs)
        except _Ended as error:
            self._process = None
            self._tally.killed += 1
            if self._tally.killed > _MOST_KILLED:
                raise CheckFailed(
                    f"{self._tally.killed} processes that replayed runs did not answer; the last had {len(runs):,}, "
                    f"run {runs[0].id} the first: {error}"
                ) from None
            if len(runs) == 1:
                return Judged(misfits=[_killer(runs[0], str(error))])
        alone = [await self.judge([run]) for run in runs]
        queues = sum((Counter(each.queues) for each in alone), Counter[str]())
        return Judged(misfits=[misfit for each in alone for misfit in each.misfits], queues=dict(queues))


def _killer(run: RecordedRun, said: str) -> Misfit:
    return Misfit(run=run.id, workflow=run.workflow, version=run.version, kind="killer", message=said)


async def _work(
    replayer: _Replayer,
    todo: asyncio.Queue[Runs | None],
    tally: _Tally,
    again: Callable[[str], Awaitable[RecordedRun | None]] | None,
) -> None:
    while (runs := await todo.get()) is not None:
        judged = await replayer.judge(runs)
        misfits = judged.misfits
        if misfits and again is not None:
            misfits = await _confirmed(replayer, runs, misfits, again)
        tally.add(runs, misfits, judged.queues)


async def _confirmed(
    replayer: _Replayer,
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
            sure += (await replayer.judge([now])).misfits
    return sure


async def _ask(process: subprocess.Process, runs: Runs) -> Judged:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_PATIENCE):
            process.stdin.write(framed(runs))
            await process.stdin.drain()
            size = int.from_bytes(await process.stdout.readexactly(4), "big")
            return judged_frame.decode(await process.stdout.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        raise _Ended(f"it ended with {await process.wait()}") from None
    except TimeoutError:
        process.kill()
        raise _Ended(f"it did not answer for {_PATIENCE:.0f} s") from None


async def _end(process: subprocess.Process) -> None:
    if process.returncode is None and sys.exc_info()[0] is not None:
        with suppress(ProcessLookupError):
            process.kill()
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()
