"""`holdfast move`: move open runs, in the middle of their code, from a database to a Temporal cluster, or back."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import click

from holdfast.cli.act import duration_of
from holdfast.cli.database import app_option, json_option, open_existing, setting, shown_address, who
from holdfast.cli.endings import IN_PART, NOTHING_CHANGED
from holdfast.cli.output import emit, say, say_wrapped
from holdfast.cli.progress import ProgressLine
from holdfast.errors import BadInput, StoreUnreachable
from holdfast.texts import check_remark, printable

if TYPE_CHECKING:
    from holdfast.contract.store import Store
    from holdfast.moving.families import KnownCode
    from holdfast.moving.mover import Mover
    from holdfast.moving.report import MoveReport
    from holdfast.moving.returner import Returner

_GRACE = timedelta(seconds=30)
_TEMPORAL = "temporal://"


@click.command("move", short_help="Let open runs go on, in the middle of their code, on a Temporal cluster, or back.")
@click.argument("source")
@click.argument("target")
@click.option("--run", "runs", metavar="ID", multiple=True, help="Only this run, and its family. May be given again.")
@click.option("--workflow", "workflows", metavar="NAME", multiple=True, help="Only runs of this workflow.")
@app_option
@click.option("--queue", default="default", show_default=True, help="Of workflows that --app does not know.")
@click.option("--grace", metavar="TIME", help="How long steps under way may take to end: 30s unless given.")
@click.option("--no-tags", is_flag=True, help="The namespace has no search attribute for attributes of runs.")
@click.option("--dry-run", is_flag=True, help="Only say which would go, and which cannot and why.")
@click.option("--by", help="Who moves them; HOLDFAST_ACTOR, or the login name, unless given.")
@click.option("--reason", default="", help="Why, for the audit trail.")
@json_option
def move_command(
    source: str,
    target: str,
    runs: tuple[str, ...],
    workflows: tuple[str, ...],
    app: str | None,
    queue: str,
    grace: str | None,
    no_tags: bool,
    dry_run: bool,
    by: str | None,
    reason: str,
    as_json: bool,
) -> int:
    """Let the open runs of SOURCE go on at TARGET, in the middle of their code.

    One of the two is a database, the other the address of a Temporal cluster: temporal://host:7233/namespace. At most
    one side acts at any moment, and no run is lost: killed, the same command finishes what was begun. Workers may go
    on; a run is taken from them once its steps under way have ended. Runs that have ended stay.

    \b
    Example: holdfast move shop.db temporal://localhost:7233/default --app shop.main:engine --dry-run
             holdfast move temporal://localhost:7233/default shop.db --app shop.main:engine --dry-run
    """
    check_remark(reason, "reason")
    known = setting("app", app)
    asked = _Asked(
        (runs, workflows), known and known.value, dry_run, who(by), reason, duration_of("--grace", grace) or _GRACE
    )
    if source.startswith(_TEMPORAL):
        if target.startswith(_TEMPORAL):
            raise BadInput("runs move between a database and a Temporal cluster: one of the two must be a database")
        return asyncio.run(_returned(source, target, asked, as_json))
    return asyncio.run(_moved(source, target, asked, queue, not no_tags, as_json))


class _Asked(NamedTuple):
    """What a move to Temporal and one back were both asked."""

    which: tuple[tuple[str, ...], tuple[str, ...]]
    app: str | None
    dry_run: bool
    by: str
    reason: str
    grace: timedelta


async def _moved(database: str, address: str, asked: _Asked, queue: str, tags: bool, as_json: bool) -> int:
    store = open_existing(database)
    from holdfast.moving.mover import Mover
    from holdfast.temporal.client.target import MoveTarget

    code = _code(asked.app, queue)
    target = await MoveTarget.connect(address, tags=tags)  # before anything is asked of the runs
    mover = Mover(store, target, by=asked.by, reason=asked.reason, grace=asked.grace, code=code)
    return await _done(store, mover, asked, as_json)


async def _returned(address: str, database: str, asked: _Asked, as_json: bool) -> int:
    store = open_existing(database)
    from holdfast.moving.returner import Returner
    from holdfast.temporal.client.source import MoveSource

    source = await MoveSource.connect(address)
    versions = None
    if asked.app is not None:
        from holdfast.histories.app import load_app

        versions = {workflow.name: workflow.version for workflow in load_app(asked.app).all()}
    where = shown_address(database, store)
    mover = Returner(source, store, where, by=asked.by, reason=asked.reason, grace=asked.grace, versions=versions)
    return await _done(store, mover, asked, as_json)


async def _done(store: Store, mover: Mover | Returner, asked: _Asked, as_json: bool) -> int:
    await store.open(look_only=asked.dry_run)
    progress = ProgressLine("moving", None, "runs")
    try:
        try:
            report = await mover.move(*asked.which, dry_run=asked.dry_run, progress=progress.show)
        except StoreUnreachable:
            _tell(mover.report, as_json)
            raise
    finally:
        progress.end()
        await store.close()
    _tell(report, as_json)
    gone = report.moved or report.finished
    return (IN_PART if report.left else 0) if gone else NOTHING_CHANGED


def _code(app: str | None, queue: str) -> KnownCode:
    """Return what is known of the workflows."""
    from holdfast.moving.families import KnownCode

    if app is None:
        return KnownCode(queue=queue)
    from holdfast.errors import NotOffered
    from holdfast.histories.app import load_app
    from holdfast.temporal.known import Known
    from holdfast.temporal.refusals import refuse_activity, refuse_workflow

    registry, refused = load_app(app), dict[str, str]()
    known = Known(registry)
    for workflow in registry.all():
        try:
            refuse_workflow(workflow)
            for activity in known.of(workflow.name):
                refuse_activity(activity)
        except NotOffered as error:
            refused[workflow.name] = str(error)
    return KnownCode(
        queues={workflow.name: workflow.queue for workflow in registry.all()}, refused=refused, queue=queue
    )


def _tell(report: MoveReport, as_json: bool) -> None:
    if as_json:
        emit("holdfast.moved/1", report)
        return
    would = "would be " if report.dry_run else ""
    if report.finished:
        say(f"{would}finished, on their way already: {_runs(report.finished)}")
    if report.moved:
        say(f"{would}moved to {report.address}: {_runs(report.moved)}")
    if report.left:
        say(f"{'would stay' if report.dry_run else 'stayed'}: {len(report.left):,} run{'s' * (len(report.left) > 1)}")
    for run_id, reasons in report.left.items():
        say_wrapped(f"  {printable(run_id)}: {'; '.join(map(printable, reasons))}")
    if not (report.moved or report.finished or report.left):
        say("no open run is there to be moved")


def _runs(ids: list[str]) -> str:
    shown = ", ".join(map(printable, ids[:5]))
    return f"{len(ids):,} run{'s' * (len(ids) > 1)} ({shown}{', ...' if len(ids) > 5 else ''})"
