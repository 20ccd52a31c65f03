"""`holdfast check`, the gate before a deploy: which open runs this code would block, and what to write."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import click

from holdfast.cli.database import careful_store, database, open_existing, setting, url_option, who, zone
from holdfast.cli.output import coloured, emit, say, say_wrapped
from holdfast.errors import BadInput, NonDeterministic
from holdfast.texts import printable

DOES_NOT_FIT = 5
_PROGRESS_EVERY = 1.0
_COLOURS = {"  +": "green", "  !": "yellow", "Not fit": "red"}


@click.command("check", short_help="Say which open runs the code at hand would block, before it is deployed.")
@click.option("--app", metavar="MODULE:NAME", help="The code: an engine, a list of workflows, or a function of them.")
@click.option("--export", "file", type=click.Path(exists=True, dir_okay=False), help="The runs of an export instead.")
@click.option("--where", metavar="FILTER", help="Only the open runs that fit, as in `holdfast list`.")
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Only the newest N runs of each status.")
@click.option("--jobs", type=click.IntRange(1, 256), help="How many processes replay; as many as there are cores.")
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "junit", "github"]), default="text", show_default=True,
    help="How to say it: for people, programs, test reports, or annotations of a pull request.",
)  # fmt: skip
@click.option(
    "--record", is_flag=True, help="Leave a row in the audit trail: who checked which code, and what came of it."
)
@click.option("--by", help="With --record: who checks; HOLDFAST_ACTOR, or the login name, unless given.")
@url_option
def check_command(
    app: str | None,
    file: str | None,
    where: str | None,
    sample: int | None,
    jobs: int | None,
    form: str,
    record: bool,
    by: str | None,
    url: str | None,
) -> int:
    """Replay every open run against the code at hand, and say which of them it would block; nothing is executed.

    The database is opened to look only, unless it is put on record. Ends with 0 if all runs fit, and with 5 if not.

    \b
    Example: holdfast check --app shop.main:engine
    """
    from holdfast.histories.app import load_code

    named = setting("app", app)
    if named is None:
        raise BadInput("say which code: --app module:name, HOLDFAST_APP, or app = ... under [tool.holdfast]")
    if file is not None and (url is not None or where is not None or sample is not None or record):
        raise click.UsageError("--export takes all open runs of its file: leave out --url, --where, --sample, --record")
    try:
        code = load_code(named.value)
    except NonDeterministic as error:
        say(f"Not fit to deploy: {error}", err=form != "text")
        return DOES_NOT_FIT
    began = time.monotonic()
    report = asyncio.run(_checked(named.value, code, file, (url, where, sample), jobs or _cores()))
    _TELL[form](report, time.monotonic() - began)
    if record:
        asyncio.run(_recorded(database(url).value, named.value, who(by), report))
    return DOES_NOT_FIT if report.groups else 0


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


async def _checked(app: str, code: Any, file: str | None, given: tuple[Any, ...], jobs: int) -> Any:
    from holdfast.histories.checking import check_runs
    from holdfast.histories.sources import OPEN, chosen_runs, exported_runs, open_runs

    url, where, sample = given
    if file is not None:
        return await check_runs(app, code.registry, exported_runs(file), jobs=jobs, progress=_Progress(None))
    from holdfast.looking import LocalDesk
    from holdfast.looking.query import parse

    store = careful_store(database(url).value)
    await store.open(look_only=True)
    try:
        total = None
        if where is not None:
            query = parse(where, store.clock.now(), zone())
            if query.attention:
                raise BadInput("--where takes conditions such as workflow:fulfil or created:-7d")
            source: AsyncIterator[Any] = (
                _one(LocalDesk(store), query.word) if query.word else chosen_runs(store, query.which, sample)
            )
        else:
            source = open_runs(store, sample)
            if sys.stderr.isatty() and sample is None:
                counted = (await store.counts()).runs
                total = sum(counted.get(str(status), 0) for status in OPEN)
        again: Callable[[str], Awaitable[Any]] = _again(LocalDesk(store))
        workers = [worker for worker in await store.workers() if worker.state == "alive"]
        served = code.queues.union(*(worker.about.queues for worker in workers)) if code.queues else None
        return await check_runs(
            app, code.registry, source, jobs=jobs, again=again, served=served, progress=_Progress(total)
        )
    finally:
        await store.close()


async def _recorded(url: str, app: str, by: str, report: Any) -> None:
    """Leave a row in the audit trail."""
    from holdfast.contract.turns import Audit
    from holdfast.looking.about.checks import recorded_detail
    from holdfast.payloads import codec
    from holdfast.transfer.backup import put_on_record

    detail = codec.encode(recorded_detail(report)).decode()
    await put_on_record(open_existing(url), Audit(actor=by, action="check", detail=detail), app)


async def _one(desk: Any, run_id: str) -> AsyncIterator[Any]:
    yield [await desk.record(run_id)]


def _again(desk: Any) -> Callable[[str], Awaitable[Any]]:
    from holdfast.errors import NoSuchRun

    async def again(run_id: str) -> Any:
        try:
            return await desk.record(run_id)
        except NoSuchRun:
            return None

    return again


class _Progress:
    """Tells a person at a terminal how far it is."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._began = self._shown = time.monotonic()

    def __call__(self, replayed: int) -> None:
        now = time.monotonic()
        if now - self._shown < _PROGRESS_EVERY or not sys.stderr.isatty():
            return
        self._shown = now
        rate = replayed / (now - self._began)
        of = left = ""
        if self._total is not None:
            of = f" of {self._total:,}"
            left = f", {max(0, self._total - replayed) / rate:,.0f} s left"
        say(f"replayed {replayed:,}{of} runs, {rate:,.0f} a second{left}", err=True)


# How it is said.


def _text(report: Any, took: float) -> None:
    from holdfast.cli.ship.reports import text_of

    for line in text_of(report, took):
        colour = next((colour for mark, colour in _COLOURS.items() if line.startswith(mark)), None)
        if colour is not None and coloured():
            click.echo(click.style(printable(line), fg=colour))
        else:
            say_wrapped(line)


def _json(report: Any, took: float) -> None:
    emit("holdfast.check/1", report)


def _junit(report: Any, took: float) -> None:
    from holdfast.cli.ship.reports import junit_of

    click.echo(junit_of(report, took))


def _github(report: Any, took: float) -> None:
    from holdfast.cli.ship.reports import github_of

    for line in github_of(report):
        click.echo(line)


_TELL: dict[str, Callable[[Any, float], None]] = {
    "text": _text, "json": _json, "junit": _junit, "github": _github,
}  # fmt: skip
