"""What a worker writes about itself into its row: what it serves when it joins, and its load with each lease."""

from __future__ import annotations

import platform
from collections.abc import Callable

import msgspec

from holdfast.bodies.executor import Executor
from holdfast.clock import Instant, micros
from holdfast.contract.heads import CarriedStep, WorkerAbout, WorkerLoad
from holdfast.definitions import Registry
from holdfast.engine.runs.runner import Runner
from holdfast.engine.settings import Settings
from holdfast.engine.steps.queue.served import Queues
from holdfast.version import __version__

MOST_BODIES = 50
_SHORT = 1_000_000
"""Bodies that have run for less than a second are not named: there may be thousands of them."""


def about_worker(registry: Registry, settings: Settings, queues: Queues) -> str:
    """Return what a worker serves."""
    about = WorkerAbout(
        holdfast=__version__,
        python=platform.python_version(),
        queues=list(queues.names),
        workflows={workflow.name: workflow.version for workflow in registry.all()},
        unserved={flow.name: flow.queue for flow in registry.all() if flow.queue not in queues.names},
        fingerprints={workflow.name: workflow.fingerprint for workflow in registry.all()},
        max_steps=settings.max_steps,
        lease=micros(settings.lease),
    )
    return msgspec.json.encode(about).decode()


def load_of_worker(runner: Runner, executor: Executor) -> Callable[[], str]:
    """Return what tells, from any thread, what a worker carries."""

    def load() -> str:
        try:
            bodies = _bodies(runner)
        except RuntimeError:  # a run came or went meanwhile; the next lease tells
            bodies = []
        now = WorkerLoad(steps=executor.begun, runs=len(runner.residents), bodies=bodies)
        return msgspec.json.encode(now).decode()

    return load


def _bodies(runner: Runner) -> list[CarriedStep]:
    """Return the bodies that have run longest."""
    latest: Instant = runner.clock.now() - _SHORT
    found = [
        (attempt.verb.began, resident, attempt)
        for resident in [*runner.residents.values()]
        for attempt in [*resident.attempts.values()]
        if attempt.begun and 0 < attempt.verb.began <= latest
    ]
    found.sort(key=lambda each: each[0])
    return [
        CarriedStep(
            run=resident.id,
            step=resident.execution.journal.names.path(attempt.verb.location),
            attempt=attempt.number,
            since=began,
        )
        for began, resident, attempt in found[:MOST_BODIES]
    ]
