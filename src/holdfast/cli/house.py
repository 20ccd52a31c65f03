"""`holdfast doctor`: the house as a whole."""

from __future__ import annotations

import click

from holdfast.cli.database import looking, url_option
from holdfast.cli.output import emit, say, table


@click.command("doctor", short_help="Say what is wrong with the house, and what to do about it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@url_option
def doctor_command(as_json: bool, url: str | None) -> int:
    """Say what is wrong with the house, and what to do about it: database, disk, workers, runs, pauses, schedules.

    It ends with 1 if there is something to look at.

    \b
    Example: holdfast doctor
    """
    found = looking(url, lambda desk: desk.doctor())
    wrong = [finding for finding in found if finding.level != "ok"]
    if as_json:
        emit("holdfast.doctor/1", found)
    else:
        table(("", "", "", ""), [(each.level, each.subject, each.said, each.remedy) for each in found])
        say(f"{len(wrong)} to look at" if wrong else "all is well", err=True)
    return 1 if wrong else 0
