"""`holdfast list`, `show`, `why`, `history` and `workers`: looking, which changes nothing."""

from __future__ import annotations

import shlex
from datetime import datetime, tzinfo
from typing import Any

import click

from holdfast.cli import output
from holdfast.cli.database import (
    app_option,
    going_on,
    json_option,
    local_time,
    looking,
    url_option,
    with_database,
    zone,
)
from holdfast.cli.output import clock, emit, listed, payload, say, say_wrapped, table
from holdfast.cli.shell.names import FILTER, RUN, FilterCommand
from holdfast.clock import from_datetime
from holdfast.errors import BadInput
from holdfast.looking import Desk
from holdfast.looking.times import span
from holdfast.looking.views import Head, HistoryPage, Page, RunView, StepView, Why, WorkerView
from holdfast.texts import printable

_INDENT = 6
MOST = 200
"""How many runs a page may have."""


@click.command("list", cls=FilterCommand, short_help="List runs, newest first, each with why it is where it is.")
@click.argument("which", nargs=-1, metavar="[FILTER]...", type=FILTER)
@click.option("--limit", default=20, show_default=True, help="How many runs to show, up to 200.")
@click.option("--cursor", help="Go on where an earlier page ended.")
@click.option("--count", is_flag=True, help="Only say how many there are, up to 10,000.")
@click.option("--fields", help="With --json: only these fields of each run, parted by commas.")
@json_option
@url_option
def list_command(
    which: tuple[str, ...],
    limit: int,
    cursor: str | None,
    count: bool,
    fields: str | None,
    as_json: bool,
    url: str | None,
) -> None:
    """List runs, newest first, each with why it is where it is.

    \b
    A FILTER is made of words that must all fit:
      status:failed,blocked   workflow:fulfil   -status:completed   is:open, is:attention, is:overdue
      id:order-88*   customer=c-2210   tenant:acme   actor:kim   parent:order-7   version:2   key:o-88405
      created:-24h   created:2026-11-01..2026-11-03   ended:..-7d   quiet:-2d   waiting:"message approved"
    A word alone is the id of a run, the beginning of ids, or a workflow.

    \b
    Example: holdfast list status:failed created:-24h
    """
    if fields is not None and not as_json:
        raise click.UsageError("--fields chooses fields of --json")
    text = " ".join(which)
    if count:
        counted = looking(url, lambda desk: desk.count(text))
        if as_json:
            emit("holdfast.count/1", counted)
        else:
            say(f"{counted.n:,}{'' if counted.exact else '+'}")
        return
    page = looking(url, lambda desk: desk.heads(text, limit=limit, cursor=cursor, relative=not as_json))
    if as_json:
        emit("holdfast.runs/1", page, fields)
        return
    _list(page, text, limit, url)


def _list(page: Page, text: str, limit: int, url: str | None) -> None:
    if page.items:
        titles = ("STATUS", "RUN", "WORKFLOW", "STARTED", "TOOK", "NOW, AND WHY")
        table(titles, [_row(head, page.as_of) for head in page.items], spare=(4, 3, 2))
    asked = with_database(f"holdfast list {shlex.quote(text)}" if text else "holdfast list", url)
    if page.partial and page.searched_to is not None:
        reached = clock(page.searched_to, page.as_of, zone())
        say(f"{len(page.items)} found so far, searched back to {reached}; keep looking:", err=True)
        say(f"  {asked} --cursor {page.next}", err=True)
    elif page.next is not None:
        say(f"{len(page.items)} shown, older: {asked} --cursor {page.next}", err=True)
    elif "is:attention" in text.split() and len(page.items) == limit < MOST:
        say(f"the newest {limit} are shown; up to {MOST} of them: {asked} --limit {MOST}", err=True)
    elif not page.items:
        say(f"no run fits{_meant(text)}" if text else "there are no runs yet", err=True)


def _meant(text: str) -> str:
    """Return the filter that a word alone may have stood for, which is no id and no workflow here."""
    from holdfast.contract.rows import Status

    return f"; did you mean status:{text}?" if text in [*Status] else ""


def _row(head: Head, now: datetime) -> tuple[str, ...]:
    took = span(from_datetime(head.ended_at or now) - from_datetime(head.created_at))
    return head.status, head.id, head.workflow, clock(head.created_at, now, zone()), took, head.why.sentence


@click.command("why", short_help="Say in one sentence why a run is where it is, and what would move it.")
@click.argument("run_id", metavar="ID", type=RUN)
@app_option
@json_option
@url_option
def why_command(run_id: str, app: str | None, as_json: bool, url: str | None) -> None:
    """Say in one sentence why a run is where it is, and what would move it; with --app also at which line it waits.

    \b
    Example: holdfast why order-88405
    """
    why = looking(url, lambda desk: desk.why(run_id, relative=not as_json), app)
    if as_json:
        emit("holdfast.why/1", why)
        return
    _why(why, url)


def _why(why: Why, url: str | None, *, shown: bool = False) -> None:
    say_wrapped(why.sentence)
    if why.source is not None:
        say(f"  {why.source.file}:{why.source.line}   {why.source.text}")
    for below in why.chain:
        say_wrapped(f"  {below.run}: {below.sentence}")
    facts = [why.code]
    if why.since is not None:
        facts.append(f"since {why.since.astimezone(zone()):%Y-%m-%d %H:%M:%S}")
    if why.others is not None and why.others.n:
        others, more = why.others.n, "" if why.others.exact else "+"
        facts.append(f"{others:,}{more} other run{'s wait' if others != 1 else ' waits'} to try this step again")
    say_wrapped(f"  {' · '.join(facts)}")
    here = f"holdfast show {shlex.quote(why.run)}" if shown else None
    for number, help in enumerate(help for help in why.help if help.command != here):
        command = with_database(help.command, url)
        what = f"{command}   # {help.say}" if help.command else help.say
        if help.command and len(what) + _INDENT > output.width():
            say(f"{'Try:' if number == 0 else '':<{_INDENT}}# {help.say}:")  # a command is never broken
            number, what = 1, command
        line = f"{'Try:' if number == 0 else '':<{_INDENT}}{what}"
        if help.command:
            say(line)
        else:
            say_wrapped(line, hang=_INDENT)


@click.command("show", short_help="Show one run: why it is where it is, its input, its result, its steps.")
@click.argument("run_id", metavar="ID", type=RUN)
@json_option
@url_option
def show_command(run_id: str, as_json: bool, url: str | None) -> None:
    """Show one run: why it is where it is, its input, its result or error, and its steps.

    \b
    Example: holdfast show order-88405
    """
    view = looking(url, lambda desk: desk.run(run_id, relative=not as_json))
    if as_json:
        emit("holdfast.run/1", view)
        return
    _show(view, url)


def _show(view: RunView, url: str | None) -> None:
    from holdfast.cli.runs.errors import shown_errors

    head = view.head
    click.echo(f"{printable(head.id)}  {flow(head)}  {output.status(head.status)}")
    _why(head.why, url, shown=True)
    say()
    for name, value in _facts(view):
        say_wrapped(f"{name:<12}{value}", hang=12)
    for said, places in shown_errors(view):
        if said:
            say_wrapped(f"{'error':<12}{said}", hang=12)
        for place in places:
            say_wrapped(f"{'':12}{place}", hang=14)
    if view.steps:
        say()
        table(
            ("STEP", "STATUS", "ATTEMPTS", "STARTED", "TOOK", "RESULT OR ERROR"),
            [step_row(step, view.as_of, zone()) for step in view.steps],
            spare=(3, 4),
        )


def flow(head: Head) -> str:
    """Return the workflow of a run with its version, which one that was not begun may not have yet."""
    return printable(f"{head.workflow} v{head.version}" if head.version else head.workflow)


def _facts(view: RunView) -> list[tuple[str, str]]:
    head, now = view.head, view.as_of
    facts = [
        ("created", clock(head.created_at, now, zone())),
        ("ended", clock(head.ended_at, now, zone())),
        ("worker", head.process or head.worker or ""),
        ("parent", head.parent or ""),
        ("actor", head.actor or ""),
        ("tenant", head.tenant or ""),
        ("key", head.unique_key or ""),
        ("attributes", payload(head.attributes) if head.attributes else ""),
        ("input", payload(view.input)),
        ("result", payload(view.output) if head.status == "completed" else ""),
        ("history", f"{view.entries:,} facts{_of_the_newest(view)}"),
    ]
    if view.compensation:
        facts.append(("undone", ", ".join(f"{each.get('name')} {each.get('status')}" for each in view.compensation)))
    return [(name, value) for name, value in facts if value]


def _of_the_newest(view: RunView) -> str:
    return "; its steps are those of the newest alone, all are in holdfast history" if view.partial else ""


def step_row(step: StepView, now: datetime, zone: tzinfo | None) -> tuple[str, ...]:
    """Return a step as a row of a table."""
    took = ""
    if step.started_at is not None and step.status in ("running", "completed", "failed", "cancelled"):
        took = span(from_datetime(step.finished_at or now) - from_datetime(step.started_at))
    said = step.reason
    if step.error is not None and step.status != "completed":
        said = f"{step.error.type.rpartition('.')[2]}: {step.error.message}"
    elif step.status == "completed":
        said = payload(step.result, 200)
    started = clock(step.started_at, now, zone)
    return step.path, step.status, str(step.attempts), started, took, " ".join(said.split())


@click.command("history", short_help="Show the facts of a run's history.")
@click.argument("run_id", metavar="ID", type=RUN)
@click.option("--after", default=0, help="Only facts after this number.")
@click.option("--limit", default=100, show_default=True, help="How many facts to show, up to 1,000.")
@click.option("--newest", is_flag=True, help="The last facts instead of the first.")
@click.option("--archived", is_flag=True, help="Facts that were cut away when the run was reopened.")
@json_option
@url_option
def history_command(
    run_id: str, after: int, limit: int, newest: bool, archived: bool, as_json: bool, url: str | None
) -> None:
    """Show the facts of a run's history, in their order.

    \b
    Example: holdfast history order-88405 --newest --limit 20
    """

    async def work(desk: Desk) -> HistoryPage:
        return await desk.history(run_id, after=after, limit=limit, newest=newest, archived=archived)

    page = looking(url, work)
    if as_json:
        emit("holdfast.history/1", page)
        return
    rows = [
        (str(entry.seq), f"{entry.at.astimezone(zone()):%Y-%m-%d %H:%M:%S}", entry.kind, entry.path, _data(entry.data))
        for entry in page.items
    ]
    table(("SEQ", "AT", "KIND", "PATH", "DATA"), rows)
    if page.next is not None:
        say(f"more: {going_on(['history', run_id], url, after=page.next)}", err=True)


def _data(data: Any) -> str:
    return "" if data in ({}, [], None) else payload(data, 300)


@click.command("workers", short_help="List the workers: alive, silent, dead; or what one of them runs.")
@click.argument("worker", required=False)
@json_option
@url_option
def workers_command(worker: str | None, as_json: bool, url: str | None) -> None:
    """List the processes that advance runs: alive, silent (their lease lapsed) or dead.

    With a WORKER, its id, or its process as the list shows it: the steps that it runs now, the longest first.

    \b
    Example: holdfast workers
    """
    workers: list[WorkerView] = looking(url, lambda desk: desk.workers())
    if worker is not None:
        _carried(_named(workers, worker), as_json)
        return
    if as_json:
        emit("holdfast.workers/1", workers)
        return
    if not workers:
        say("no worker is there; a process with Engine(..., workflows=[...]) is one", err=True)
        return
    rows = [
        (
            each.state, f"{each.host}:{each.pid}", f"{each.heard_at.astimezone(zone()):%Y-%m-%d %H:%M:%S}",
            str(each.runs), f"{each.steps} of {each.max_steps}" if each.max_steps else str(each.steps),
            each.holdfast, each.id, _serves(each),
        )
        for each in workers
    ]  # fmt: skip
    titles = ("STATE", "PROCESS", "LAST HEARD OF", "RUNS", "STEPS", "HOLDFAST", "WORKER", "SERVES")
    table(titles, rows, spare=(6, 5))


def _named(workers: list[WorkerView], name: str) -> WorkerView:
    """Return the worker of a name; of those that were one process the one that was heard of last."""
    found = [each for each in workers if name in (each.id, f"{each.host}:{each.pid}", str(each.pid))]
    if not found:
        there = ", ".join(f"{each.host}:{each.pid}" for each in workers if each.state == "alive")
        raise BadInput(f"there is no worker {name!r}; {f'alive are {there}' if there else 'none is alive'}")
    return max(found, key=lambda each: each.heard_at)


def _carried(worker: WorkerView, as_json: bool) -> None:
    if as_json:
        emit("holdfast.worker/1", worker)
        return
    heard = f"last heard of {local_time(worker.heard_at)}"
    say(f"{worker.host}:{worker.pid}  {worker.state}, {heard}, here since {local_time(worker.joined_at)}")
    say_wrapped(f"  holdfast {worker.holdfast}, Python {worker.python}; {_serves(worker)}", hang=2)
    rows = [(each.run, each.step, str(each.attempt), local_time(each.since)) for each in worker.bodies]
    none = f"{worker.steps} run, none of them for longer than a second" if worker.steps else "no step runs"
    listed(("RUN", "STEP", "ATTEMPT", "SINCE"), rows, none)


def _serves(worker: WorkerView) -> str:
    """Return the queues and workflows of a worker, in words."""
    queues = f"queue{'s' if len(worker.queues) != 1 else ''} {', '.join(worker.queues)}" if worker.queues else ""
    flows = ", ".join(f"{name} v{version}" for name, version in sorted(worker.workflows.items()))
    idle = ", ".join(f"not {name}, of queue {queue}" for name, queue in sorted(worker.unserved.items()))
    return "; ".join(each for each in (queues, flows, idle) if each)
