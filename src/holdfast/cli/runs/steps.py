"""`holdfast steps --step`: everything about one step of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from holdfast.cli import output
from holdfast.cli.database import local_time, looking, setting
from holdfast.cli.output import emit, payload, say_wrapped
from holdfast.cli.runs.errors import places
from holdfast.clock import from_datetime
from holdfast.errors import BadInput
from holdfast.looking.about.arguments import ArgumentsView, StepDetail
from holdfast.looking.times import span
from holdfast.texts import printable

if TYPE_CHECKING:
    from holdfast.looking import Desk

_KNOWN = {"recorded": "", "replayed": "   # by replaying the code at hand"}


def show_step(run_id: str, path: str, app: str | None, as_json: bool, url: str | None) -> None:
    """Write all there is of a step.

    Raises:
        NoSuchRun, BadInput: there is no such run, or it has called no such step.
    """

    async def work(desk: Desk) -> StepDetail:
        arguments, view = await desk.arguments(run_id, path), await desk.run(run_id)
        step = next((each for each in view.steps if each.path == path), None)
        if step is None:
            raise BadInput(f"step {path!r} of run {run_id} is not among its newest facts: holdfast history has all")
        return StepDetail(run=run_id, step=step, arguments=arguments)

    named = setting("app", app)
    found = looking(url, work, named.value if named is not None else None)
    if as_json:
        emit("holdfast.step/1", found)
        return
    step = found.step
    click.echo(f"{printable(run_id)}  {printable(step.path)}  {output.status(step.status)}")
    for name, value in _facts(found):
        say_wrapped(f"{name:<12}{value}", hang=12)
    for place in places(step.traceback) if step.traceback else []:
        say_wrapped(f"{'':12}{place}", hang=14)


def _facts(found: StepDetail) -> Iterator[tuple[str, str]]:
    step = found.step
    failed = f", {step.failures} failed" if step.failures else ""
    yield "attempts", f"{step.attempts}{failed}"
    if step.started_at is not None:
        ended = step.finished_at
        took = f", took {span(from_datetime(ended) - from_datetime(step.started_at))}" if ended is not None else ""
        yield "last one", f"began {local_time(step.started_at)}{took}"
    if step.next_attempt_at is not None:
        yield "next one", local_time(step.next_attempt_at)
    if step.reason:
        yield "waits", step.reason
    if step.heartbeat_at is not None:
        yield "heartbeat", local_time(step.heartbeat_at)
    if step.progress is not None:
        yield "progress", payload(step.progress)
    yield "arguments", _arguments(found.arguments)
    if found.arguments.retry:
        yield "retries", found.arguments.retry
    if step.idempotency_key:
        yield "key", step.idempotency_key
    if step.status == "completed":
        yield "result", payload(step.result)
    elif step.error is not None:
        yield "error", f"{step.error.type}: {step.error.message}"


def _arguments(found: ArgumentsView) -> str:
    if found.source == "unknown":
        return f"not known: {found.said}"
    return f"{payload(found.arguments)}{_KNOWN[found.source]}"
