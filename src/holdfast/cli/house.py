"""`holdfast doctor`: the database and its workers as a whole."""

from __future__ import annotations

import re

import click

from holdfast.cli import output
from holdfast.cli.database import NoDatabase, json_option, looking, url_option, with_database
from holdfast.cli.output import emit, hanging, say, status
from holdfast.errors import CannotOpen, NeedsUpgrade, StoreError
from holdfast.looking.views import HouseFinding
from holdfast.texts import printable

_COMMAND = re.compile(r"(?:^|: )holdfast ")
_ROOM = 40
"""How many columns what is said of a subject has at least."""


@click.command("doctor", short_help="Say what is wrong with database and workers, and what to do.")
@json_option
@url_option
def doctor_command(as_json: bool, url: str | None) -> int:
    """Say what is wrong with the database and its workers, and what to do about it.

    It looks at database, disk, clocks, workers, queues, runs, pauses, schedules and retention, and ends with 1 if there
    is something to look at.

    \b
    Example: holdfast doctor
    """
    try:
        found = looking(url, lambda desk: desk.doctor())
    except NoDatabase:
        raise
    except StoreError as error:
        found = [_unreadable(error)]
    wrong = [finding for finding in found if finding.level != "ok"]
    if as_json:
        emit("holdfast.doctor/1", found)
    else:
        _show(found, url)
        say(f"{len(wrong)} to look at" if wrong else "all is well", err=True)
    return 1 if wrong else 0


def _show(found: list[HouseFinding], url: str | None) -> None:
    """Write findings in columns; a subject that leaves the others no room stands on a line of its own."""
    subjects = [printable(each.subject) for each in found]
    wide, room = max(map(len, subjects)), output.width() - 8 - _ROOM
    if wide > room:
        wide = max((len(each) for each in subjects if len(each) <= room), default=0)
    for each, subject in zip(found, subjects, strict=True):
        lines = hanging(f"{each.level:<4}  {subject:<{wide}}  {printable(each.said)}", wide + 8)
        if len(subject) > wide:
            said = hanging(f"{'':<{wide + 8}}{printable(each.said)}", wide + 8)
            lines = [f"{each.level:<4}  {subject}", *said]
        click.echo("\n".join([f"{status(lines[0][:4])}{lines[0][4:]}", *lines[1:]]))
        if each.remedy:
            remedy = printable(remedy_here(each.remedy, url))
            click.echo("\n".join(hanging(f"      {'':<{wide}}  {remedy}", wide + 8)))


def remedy_here(remedy: str, url: str | None) -> str:
    """Return a remedy; a command, with which it ends if it has one, names the database that was looked at."""
    return with_database(remedy, url) if _COMMAND.search(remedy) else remedy


def _unreadable(error: StoreError) -> HouseFinding:
    """Return the finding for a database that cannot even be looked at."""
    if isinstance(error, NeedsUpgrade):
        subject, remedy = "schema", "holdfast db upgrade"
    elif isinstance(error, CannotOpen):
        subject, remedy = "database", "see that the path, the file and its rights are right"
    else:
        subject, remedy = "database", "if it stays so, with no worker alive: holdfast db restore BACKUP --replace"
    return HouseFinding(level="fail", subject=subject, said=str(error), remedy=remedy)
