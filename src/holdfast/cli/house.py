"""`holdfast db`: the database itself."""

from __future__ import annotations

import asyncio

import click

from holdfast.cli.database import database, url_option
from holdfast.cli.output import say


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
