"""`holdfast doctor` and `holdfast db`: the house as a whole."""

from __future__ import annotations

import asyncio

import click

from holdfast.cli.database import database, looking, url_option
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


@click.group("db", short_help="The database itself: upgrade it.")
def db_group() -> None:
    """Look after the database itself."""


@db_group.command("upgrade", short_help="Bring the tables up to date with this holdfast.")
@url_option
def upgrade_command(url: str | None) -> None:
    """Bring the tables up to date with this holdfast, in one transaction; an engine does the same when it opens.

    \b
    Example: holdfast db upgrade
    """
    from holdfast.cli.transfer import open_existing

    async def main() -> None:
        store = open_existing(database(url).value)
        await store.open()
        await store.close()

    asyncio.run(main())
    say("the database is up to date")
