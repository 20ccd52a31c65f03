"""`holdfast doctor`: the house as a whole."""

from __future__ import annotations

import click

from holdfast.cli.database import NoDatabase, json_option, looking, url_option
from holdfast.cli.output import emit, hanging, say, status
from holdfast.errors import CannotOpen, NeedsUpgrade, StoreError
from holdfast.looking.views import HouseFinding
from holdfast.texts import printable


@click.command("doctor", short_help="Say what is wrong with the house, and what to do about it.")
@json_option
@url_option
def doctor_command(as_json: bool, url: str | None) -> int:
    """Say what is wrong with the house, and what to do about it.

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
        width = max(len(each.subject) for each in found)
        for each in found:
            lines = hanging(f"{each.level:<4}  {printable(each.subject):<{width}}  {printable(each.said)}", width + 8)
            click.echo("\n".join([f"{status(lines[0][:4])}{lines[0][4:]}", *lines[1:]]))
            if each.remedy:
                click.echo("\n".join(hanging(f"      {'':<{width}}  {printable(each.remedy)}", width + 8)))
        say(f"{len(wrong)} to look at" if wrong else "all is well", err=True)
    return 1 if wrong else 0


def _unreadable(error: StoreError) -> HouseFinding:
    """Return the finding for a database that cannot even be looked at."""
    if isinstance(error, NeedsUpgrade):
        subject, remedy = "schema", "holdfast db upgrade"
    elif isinstance(error, CannotOpen):
        subject, remedy = "database", "see that the path, the file and its rights are right"
    else:
        subject, remedy = "database", "if it stays so: holdfast db restore BACKUP --replace, with no worker alive"
    return HouseFinding(level="fail", subject=subject, said=str(error), remedy=remedy)
