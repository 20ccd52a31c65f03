"""`holdfast purge` and `letters purge`: deleting what is old, counted and confirmed first."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.act import duration_of, shared
from holdfast.cli.database import acting, who
from holdfast.cli.endings import NOTHING_CHANGED
from holdfast.cli.output import emit, say, say_wrapped
from holdfast.cli.progress import ProgressLine
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.looking import Desk
    from holdfast.looking.acting.purging import PurgeReport

_KINDS = ("completed", "failed", "cancelled", "letters", "seen_letters", "events")
_WORDS = {
    "completed": ("completed run", "completed runs"), "failed": ("failed run", "failed runs"),
    "cancelled": ("cancelled run", "cancelled runs"), "letters": ("dead letter", "dead letters"),
    "seen_letters": ("dead letter that was seen", "dead letters that were seen"),
    "events": ("event that no run took", "events that no run took"),
}  # fmt: skip


def purging(command: Any) -> Any:
    """Give a command what every purge takes."""
    for option in (
        click.option("--expect", type=int, help="With --yes: how many a dry run has shown."),
        click.option("--yes", is_flag=True, help="Do not ask; needs --expect."),
        click.option("--dry-run", is_flag=True, help="Only say what would be deleted."),
        click.option("--older-than", metavar="AGE", required=True, help="What is over for longer than that: 12h, 30d."),
    ):
        command = option(command)
    return shared(command)


@click.command("purge", short_help="Delete what is over for long: runs, dead letters, events.")
@click.argument("kinds", nargs=-1, required=True, metavar="KIND...", type=click.Choice(_KINDS))
@purging
def purge_command(kinds: tuple[str, ...], **given: Any) -> int:
    """Delete what is over for longer than an age; runs that have not ended are never touched.

    \b
    A KIND is completed, failed or cancelled (runs, by their end), letters (also those that no person has
    seen), seen_letters, or events (that no run took). The ids of deleted runs are kept for a year.

    \b
    Example: holdfast purge completed cancelled --older-than 30d --dry-run
    """
    return purge(kinds, given)


def purge(kinds: tuple[str, ...], given: dict[str, Any]) -> int:
    """Say what would be deleted, ask, and delete it."""
    from holdfast.looking.acting.requests import PurgeRequest

    age = duration_of("--older-than", given["older_than"]) or timedelta(0)
    request, actor, reason = PurgeRequest(kinds=list(kinds), older_than=age), who(given["by"]), given["reason"]  # type: ignore[arg-type]  # click has checked them
    counted = acting(given["url"], lambda desk: desk.purge(request, by=actor, reason=reason))
    total = sum(counted.counts.values())
    if given["dry_run"] and given["as_json"]:
        emit("holdfast.purged/1", counted)
        return 0
    say_wrapped(f"{_said(counted)} would be deleted." if total else "nothing is that old.", err=given["as_json"])
    if given["dry_run"] or not total:
        return 0 if total else NOTHING_CHANGED
    _confirm(total, counted.finished, given)
    progress = ProgressLine("deleting", total if counted.finished else None)

    async def work(desk: Desk) -> dict[str, int]:
        gone: dict[str, int] = {}
        while True:
            done = await desk.purge(request, by=actor, reason=reason, dry_run=False)
            gone = {kind: gone.get(kind, 0) + n for kind, n in done.counts.items()}
            progress.show(sum(gone.values()))
            if done.finished:
                return gone

    gone = acting(given["url"], work)
    progress.end()
    done = type(counted)(dry_run=False, counts=gone, finished=True)
    if given["as_json"]:
        emit("holdfast.purged/1", done)
    else:
        say(f"deleted {_said(done)}")
    return 0


def _said(report: PurgeReport) -> str:
    more = "" if report.finished else "+"
    return ", ".join(f"{n:,}{more} {_WORDS[kind][n > 1]}" for kind, n in report.counts.items() if n)


def _confirm(total: int, exact: bool, given: dict[str, Any]) -> None:
    if given["yes"]:
        if given["expect"] != total or not exact:
            way = f"say --yes --expect {total}" if exact else "ask for a greater age, or at a terminal"
            raise BadInput(f"this deletes {total:,}{'' if exact else ' or more'}: look with --dry-run, then {way}")
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(f"there is no terminal to ask at: look with --dry-run, then say --yes --expect {total}")
    if not click.confirm(f"Delete {total:,}{'' if exact else ' or more'}? They cannot be brought back", err=True):
        raise click.Abort
