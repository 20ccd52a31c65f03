"""Workers in processes of their own, for tests that kill them: forked from one that has imported everything."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Any

from temporalio import activity
from temporalio.client import Client, Interceptor
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput
from temporalio.worker import Interceptor as WorkerInterceptor
from tests.temporal import flows

from holdfast.temporal import TemporalEngine
from holdfast.temporal.client.connecting import address_of

LEASE = timedelta(seconds=10)  # the machine may be busy: a worker that stalls for as long is taken for dead


class Apart(TemporalEngine):
    """An engine with task queues of its own, so that many tests share a server."""

    apart = ""

    def task_queue(self, queue: str) -> str:
        return f"{super().task_queue(queue)}.{self.apart}"


def apart(address: str, name: str, **options: Any) -> Apart:
    """Return an engine whose workers and runs are apart from all others."""
    engine = Apart(address, workflows=flows.EVERY, lease=LEASE, call_patience=timedelta(minutes=1), **options)
    engine.apart = name
    return engine


class Killer(Interceptor, WorkerInterceptor):
    """Kills its process before or after the nth turn or body."""

    def __init__(self, kill: str) -> None:
        self.when, self.kind, number = kill.split()
        self.number = int(number)
        self.counts: Counter[str] = Counter()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return Watched(next, self)

    def seen(self, when: str, kind: str, number: int) -> None:
        if (when, kind, number) == (self.when, self.kind, self.number):
            os.kill(os.getpid(), signal.SIGKILL)


class Watched(ActivityInboundInterceptor):
    """Counts turns and bodies."""

    def __init__(self, next: ActivityInboundInterceptor, killer: Killer) -> None:
        super().__init__(next)
        self.killer = killer

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        kind = "turn" if activity.info().is_local else "body"
        counts = self.killer.counts
        counts[kind] += 1
        number = counts[kind]
        self.killer.seen("before", kind, number)
        try:
            return await self.next.execute_activity(input)
        finally:
            self.killer.seen("after", kind, number)


def work(address: str, name: str, folder: str, kill: str) -> None:
    """Serve until killed."""
    os.environ["HOLDFAST_TEST_NOTES"] = folder
    asyncio.run(_work(address, name, kill))


async def _work(address: str, name: str, kill: str) -> None:
    place = address_of(address)
    watching = [Killer(kill)] if kill else []
    client = await Client.connect(place.target, namespace=place.namespace, interceptors=watching)
    async with apart(address, name, client=client):
        await asyncio.Event().wait()


class Workers:
    """Starts workers, and kills those that are left."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.temporal.workers"])
        self._begun: list[BaseProcess] = []

    def begin(self, name: str, folder: object, kill: str = "") -> BaseProcess:
        process = self._context.Process(target=work, args=(self._address, name, str(folder), kill), daemon=True)
        process.start()
        self._begun.append(process)
        return process

    def end(self) -> None:
        for process in self._begun:
            process.kill()
            process.join()


@contextmanager
def workers(address: str) -> Iterator[Workers]:
    """Return what starts workers; all of them have ended after it."""
    begun = Workers(address)
    try:
        yield begun
    finally:
        begun.end()
        forkserver._forkserver._stop()  # type: ignore[attr-defined]  # otherwise it lives as long as the tests
