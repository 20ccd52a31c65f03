"""`holdfast steps` and `watch`: what a run has done, and what it does now."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli import output
from holdfast.cli.database import app_option, json_option, looking, url_option, zone
from holdfast.cli.look import flow, step_row
from holdfast.cli.output import emit, payload, say, table
from holdfast.cli.shell.names import RUN
from holdfast.clock import from_datetime
from holdfast.looking.times import span
from holdfast.looking.views import RunView, StepView
from holdfast.texts import printable

if TYPE_CHECKING:
    from holdfast.looking import Desk

_LOOK_AGAIN = 0.5
_MARKS = {
    "completed": "✓", "failed": "✗", "cancelled": "✗", "running": "▸", "waiting": "↻", "skipped": "↻", "pending": "·",
}  # fmt: skip
_WIDEST = 40


@click.command("steps", short_help="List the steps of a run: attempts, times, results.")
@click.argument("run_id", metavar="ID", type=RUN)
@click.option("--step", metavar="PATH", help="All there is of this step: its arguments, its whole result or error.")
@app_option
@json_option
@url_option
def steps_command(run_id: str, step: str | None, app: str | None, as_json: bool, url: str | None) -> None:
    """List the steps of a run, in the order in which its code called them.

    Of one --step its arguments are shown, too: as they were recorded, or, with --app, by replaying the run here.

    \b
    Example: holdfast steps order-88405
    Example: holdfast steps order-88405 --step charge
    """
    if step is not None:
        from holdfast.cli.runs.steps import show_step

        show_step(run_id, step, app, as_json, url)
        return
    if as_json:
        emit("holdfast.steps/1", looking(url, lambda desk: desk.steps(run_id)))
        return
    view = looking(url, lambda desk: desk.run(run_id))
    if view.steps:
        titles = ("STEP", "STATUS", "ATTEMPTS", "STARTED", "TOOK", "RESULT OR ERROR")
        table(titles, [step_row(step, view.as_of, zone()) for step in view.steps], spare=(3, 4))
    else:
        say("it has called no step yet", err=True)
    if view.partial:
        say(f"of its {view.entries:,} facts the newest were looked at: holdfast history {run_id} has all", err=True)


@click.command("watch", short_help="Show a run and its steps until it has ended.")
@click.argument("run_id", metavar="ID", type=RUN)
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line, whenever something changed.")
@url_option
def watch_command(run_id: str, as_json: bool, url: str | None) -> int:
    """Show a run and its steps, again whenever something changed, until it has ended; Ctrl-C stops watching.

    At a terminal the picture is drawn over; elsewhere each is written below the last. Ends with 1 if the run failed.

    \b
    Example: holdfast watch order-88405
    """

    async def work(desk: Desk) -> RunView:
        shown, drawn = "", 0
        while True:
            view = await desk.run(run_id, relative=not as_json)
            picture = "" if as_json else "\n".join(pictured(view))
            seen = picture if picture and sys.stdout.isatty() else f"{view.head.updated_at} {view.entries}"
            if seen != shown:
                shown, drawn = seen, _draw(view, picture, drawn, as_json)
            if view.head.ended_at is not None or view.head.status == "blocked":
                return view
            await asyncio.sleep(_LOOK_AGAIN)

    view = looking(url, work)
    return 0 if view.head.status == "completed" else 1


def _draw(view: RunView, picture: str, drawn: int, as_json: bool) -> int:
    """Write what there is now, at a terminal over what was there; return how many lines it has."""
    if as_json:
        emit("holdfast.run/1", view, on_one_line=True)
        return 0
    if drawn and sys.stdout.isatty():
        click.echo(f"\x1b[{drawn}F\x1b[J", nl=False, color=True)
    click.echo(picture, color=output.coloured())
    return picture.count("\n") + 1


def pictured(view: RunView) -> list[str]:
    """Return a run as lines: what it is, how far it has come, why it waits, and its steps."""
    head, done = view.head, sum(step.status == "completed" for step in view.steps)
    steps = f"{done} of {len(view.steps)} steps" if view.steps else "no step yet"
    name = f"{printable(head.id)}  {flow(head)}"
    lines = [f"{name}  {output.status(head.status)}  {steps}", f"  {printable(head.why.sentence)}"]
    width = min(max([len(printable(step.path)) for step in view.steps], default=0), _WIDEST)
    lines += [f"  {_line(step, view, width)}" for step in view.steps]
    most = output.width()
    return [line if len(click.unstyle(line)) <= most else f"{click.unstyle(line)[: most - 3]}..." for line in lines]


def _line(step: StepView, view: RunView, width: int) -> str:
    said = []
    if step.attempts > 1:
        said.append(f"{step.attempts} attempts")
    if step.started_at is not None and step.status in ("completed", "failed", "running"):
        said.append(span(from_datetime(step.finished_at or view.as_of) - from_datetime(step.started_at)))
    if step.next_attempt_at is not None and step.status in ("waiting", "skipped"):
        said.append(f"again in {span(from_datetime(step.next_attempt_at) - from_datetime(view.as_of))}")
    if step.progress is not None and step.status == "running":
        said.append(payload(step.progress, 60))
    if step.error is not None and step.status != "completed":
        said.append(f"{step.error.type.rpartition('.')[2]}: {step.error.message}")
    elif step.reason:
        said.append(step.reason)
    mark = _MARKS.get(step.status, "·")
    return f"{output.tinted(mark, step.status)} {printable(step.path):<{width}}  {printable(', '.join(said))}".rstrip()
