"""`holdfast` alone: the state of a database and its workers in ten lines, and commands to try next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli import output
from holdfast.cli.database import database, json_option, looking, url_option, with_database
from holdfast.cli.output import emit, say, say_wrapped, table
from holdfast.cli.shell.figures import LAST, show_figures
from holdfast.looking.views import Count, Summary
from holdfast.texts import masked, passwords, printable

if TYPE_CHECKING:
    from holdfast.looking import Desk

_SHOWN = 5
_TOLD = frozenset({"workers", "overdue", "blocked", "letters"})
"""What the doctor finds that a summary says in other words."""
_ORDER = (
    "running", "suspended", "pending", "paused", "blocked", "failed", "compensating", "cancelling", "cancelled",
    "completed", "moving", "moved",
)  # fmt: skip


async def summed_up(desk: Desk) -> Summary:
    """Return how runs and workers are, in short."""
    about = await desk.database()
    page = await desk.heads("is:attention", limit=_SHOWN, relative=True)
    letters = await desk.letters(limit=1_000)
    return Summary(
        kind=about.kind,
        schema_number=about.schema_number,
        durability=about.durability,
        size=about.size,
        runs=about.runs,
        workers=about.workers,
        overdue=await desk.count("is:overdue"),
        letters=Count(n=len(letters), exact=len(letters) < 1_000),
        attention=page.items,
        findings=[each for each in await desk.doctor() if each.level != "ok" and each.subject not in _TOLD],
    )


@click.command("stats", short_help="Say how runs and workers are, or how long what takes and what fails most.")
@click.option("--by", type=click.Choice(["step", "workflow", "time"]), help="Figures of all workers together.")
@click.option("--last", type=click.Choice([*LAST]), default="24h", show_default=True, help="Of how long they are.")
@click.option("--workflow", help="Only figures of this workflow.")
@json_option
@url_option
def stats_command(by: str | None, last: str, workflow: str | None, as_json: bool, url: str | None) -> None:
    """Say how all is: the database, workers, runs by status, what needs attention, and what to ask next.

    With --by it says instead how often runs or steps ended and how long they took, as the workers counted it: by step
    (the steps that fail most come first), by workflow, or by time.

    \b
    Example: holdfast stats
    Example: holdfast stats --by step --last 7d
    """
    if by is not None:
        show_figures(url, by, last, workflow, as_json)
        return
    if workflow is not None:
        raise click.UsageError("--workflow chooses figures: say --by step, workflow or time, too")
    show_summary(url, as_json)


def show_summary(url: str | None = None, as_json: bool = False) -> int:
    """Write how the database is that is meant here, and what to ask next."""
    named, summary = database(url), looking(url, summed_up)
    if as_json:
        emit("holdfast.summary/1", summary)
    else:
        _show(masked(named.value, passwords([named.value])), summary, url)
    return 0


def _show(where: str, summary: Summary, url: str | None) -> None:
    from holdfast.looking.database import bytes_said

    size = f", {bytes_said(summary.size)}" if summary.size is not None else ""
    kind = {"sqlite": "SQLite", "postgres": "PostgreSQL"}.get(summary.kind, summary.kind)
    name = where.removeprefix("sqlite:///")
    say(f"{name}  {kind}, schema {summary.schema_number}, durability {summary.durability}{size}")
    say(", ".join([_workers(summary.workers), _overdue(summary.overdue)]))
    counts = [f"{output.status(name)} {_said(summary.runs[name])}" for name in _ORDER if name in summary.runs]
    if summary.letters.n:
        counts.append(f"dead letters {_said(summary.letters)}")
    click.echo("   ".join(counts) if counts else "there are no runs yet", color=output.coloured())
    if summary.attention or summary.findings:
        say("Needs attention")
        runs = [(f"  {head.id}", head.status, printable(head.why.sentence)) for head in summary.attention]
        found = [(f"  {each.subject}", each.level, each.said) for each in summary.findings[:_SHOWN]]
        broken = [row for row in found if row[1] == "fail"]  # which may be why runs need it
        table(("", "", ""), [*broken, *runs, *(row for row in found if row not in broken)])
    asks = ["holdfast list"]
    if summary.attention:
        asks = [f"holdfast why {summary.attention[0].id}", "holdfast list is:attention"]
    if summary.letters.n:
        asks.append("holdfast letters groups")
    asks = [with_database(ask, url) for ask in [*asks, "holdfast doctor"]]
    say_wrapped(f"Next: {' · '.join([*asks, 'holdfast --help'])}")


def _said(count: Count) -> str:
    return f"{count.n:,}{'' if count.exact else '+'}"


def _workers(workers: dict[str, int]) -> str:
    alive = workers.get("alive", 0)
    lost = [f"{number} {state}" for state, number in workers.items() if state != "alive"]
    return ", ".join([f"{alive} worker{'' if alive == 1 else 's'} alive" if alive else "no worker is alive", *lost])


def _overdue(overdue: Count) -> str:
    return f"{_said(overdue)} overdue" if overdue.n else "nothing overdue"
