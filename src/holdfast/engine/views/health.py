"""The health of an engine, for probes that ask every second: they get an answer in time even if the store is silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.clock import Clock
from holdfast.contract.store import Store
from holdfast.texts import printable

if TYPE_CHECKING:
    from holdfast.engine.worker.worker import Worker

_LATE = timedelta(seconds=1)
"""By how much an event loop may be late."""
_NAP = 0.005


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine is. `ok` is True when there are no `reasons` against it; the rest is for people and graphs."""

    ok: bool
    reasons: tuple[str, ...]
    open: bool
    """Whether the engine is open, and not stopping."""
    store_latency: timedelta | None
    """How long the store took to answer; None if it has not."""
    lease_age: timedelta | None
    """How long ago the worker's lease was renewed; None for an engine that advances no runs."""
    loop_lag: timedelta
    """By how much the event loop is late."""
    runs_in_memory: int
    oldest_due: timedelta | None
    """How long the run that is due and has waited longest for a worker has waited; None if none waits."""


class HealthProbe:
    """Asks the store one question at a time, however many ask for the health and however long it takes."""

    def __init__(self, store: Store, clock: Clock, lease: timedelta, worker: Callable[[], Worker | None]) -> None:
        self._store = store
        self._clock = clock
        self._lease = lease
        self._worker = worker
        self._asked = 0.0
        self._asking: asyncio.Task[tuple[timedelta, timedelta | None]] | None = None

    async def health(self, timeout: timedelta) -> Health:
        """Look, and wait so long for the store at most."""
        worker = self._worker()
        if worker is None:
            return Health(
                ok=False,
                reasons=("the engine is not open",),
                open=False,
                store_latency=None,
                lease_age=None,
                loop_lag=timedelta(0),
                runs_in_memory=0,
                oldest_due=None,
            )
        reasons: list[str] = []
        asking = self._ask(worker)
        lag = await _lag()
        await asyncio.wait([asking], timeout=timeout.total_seconds())
        latency, oldest = None, None
        if not asking.done():
            reasons.append(f"the store has not answered for {time.monotonic() - self._asked:.1f} s")
        elif asking.cancelled():
            reasons.append("the engine is stopping")
        elif (error := asking.exception()) is not None:
            reasons.append(printable(f"{type(error).__name__}: {error}"))
        else:
            latency, oldest = asking.result()
        if lag > _LATE:
            reasons.append(f"the event loop is late by {lag.total_seconds():.1f} s")
        age = worker.lease_age
        if age is not None and age > self._lease:
            reasons.append(f"the lease was renewed {age.total_seconds():.0f} s ago, and lasts {self._lease}")
        return Health(
            ok=not reasons,
            reasons=tuple(reasons),
            open=True,
            store_latency=latency,
            lease_age=age,
            loop_lag=lag,
            runs_in_memory=len(worker.runner.residents),
            oldest_due=oldest,
        )

    def stop(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()

    def _ask(self, worker: Worker) -> asyncio.Task[tuple[timedelta, timedelta | None]]:
        """Ask the store, unless it has not answered the last question yet."""
        if self._asking is None or self._asking.done():
            self._asked = time.monotonic()
            self._asking = asyncio.get_running_loop().create_task(self._question(worker), name="holdfast health")
            self._asking.add_done_callback(_take_note)
        return self._asking

    async def _question(self, worker: Worker) -> tuple[timedelta, timedelta | None]:
        began = time.monotonic()
        due = await self._store.next_due(worker.runner.queues.workflows)
        latency = timedelta(seconds=time.monotonic() - began)
        waited = self._clock.now() - due if due is not None else 0
        return latency, timedelta(microseconds=waited) if waited > 0 else None


def _take_note(asked: asyncio.Task[Any]) -> None:
    """Let an error that no probe waits for any more be none that was forgotten."""
    if not asked.cancelled():
        asked.exception()


async def _lag() -> timedelta:
    """Return by how much later than asked for the event loop comes back."""
    began = time.monotonic()
    await asyncio.sleep(_NAP)
    return timedelta(seconds=max(time.monotonic() - began - _NAP, 0.0))
