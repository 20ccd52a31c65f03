"""`holdfast db`: the database itself: its state, upgrading it, backing it up, and restoring a backup."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from holdfast.cli.act import shared
from holdfast.cli.database import database, json_option, looking, open_existing, url_option, who
from holdfast.cli.output import emit, say
from holdfast.looking.database import DatabaseView, bytes_said


@click.group("db", short_help="The database itself: status, upgrade, backup, restore.")
def db_group() -> None:
    """Look after the database itself."""


@db_group.command("status", short_help="Say how the database is: schema, size, runs, workers.")
@json_option
@url_option
def status_command(as_json: bool, url: str | None) -> None:
    """Say how the database is: its schema and size, how many runs there are of each status, and which workers.

    \b
    Example: holdfast db status
    """
    view = looking(url, lambda desk: desk.database())
    if as_json:
        emit("holdfast.database/1", view)
        return
    for name, value in _status(view, database(url)):
        say(f"{name:<12}{value}")


def _status(view: DatabaseView, found: Any) -> list[tuple[str, str]]:
    from holdfast.texts import masked, passwords

    rows = [
        ("database", f"{masked(found.value, passwords([found.value]))}, from {found.source}"),
        ("schema", f"{view.schema_number}, the newest that this holdfast knows"),
        ("durability", view.durability),
    ]
    if view.size is not None:
        log = f", its log {bytes_said(view.wal)}" if view.wal else ""
        free = f", {bytes_said(view.free)} free on its disk" if view.free is not None else ""
        rows.append(("size", f"{bytes_said(view.size)}{log}{free}"))
    runs = ", ".join(f"{status} {count.n:,}{'' if count.exact else '+'}" for status, count in view.runs.items())
    workers = ", ".join(f"{count:,} {state}" for state, count in view.workers.items())
    return [*rows, ("runs", runs or "none"), ("workers", workers or "none")]


@db_group.command("upgrade", short_help="Bring the tables up to date with this holdfast.")
@url_option
def upgrade_command(url: str | None) -> None:
    """Bring the tables up to date with this holdfast, in one transaction; an engine does the same when it opens.

    \b
    Example: holdfast db upgrade
    """

    async def main() -> None:
        store = open_existing(database(url).value)
        await store.open()
        await store.close()

    asyncio.run(main())
    say("the database is up to date")


@db_group.command("backup", short_help="Write the whole database to a file while it is in use.")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--replace", is_flag=True, help="Take the place of an older backup.")
@url_option
def db_backup_command(file: str, replace: bool, url: str | None) -> None:
    """Write the whole database to a FILE, as of one moment, while workers go on.

    That of an SQLite database is an SQLite database. That of a PostgreSQL one is an export, gzipped if its name ends in
    .gz.

    \b
    Example: holdfast db backup monday.db
    """
    from holdfast.cli.transfer import backed_up

    backed_up(database(url).value, file, replace)


@db_group.command("restore", short_help="Make the database of a backup; no worker may be alive.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--replace", is_flag=True, help="Take the place of a database file, which is kept under another name.")
@shared
def db_restore_command(file: str, replace: bool, reason: str, by: str | None, as_json: bool, url: str | None) -> None:
    """Make the database of a backup; its open runs go on with the first worker.

    Refused while a worker is alive or a process has the database open. Nothing is changed unless all of it is.

    \b
    Example: holdfast db restore monday.db --url sqlite:///shop.db
    """
    from holdfast.cli.transfer import restored

    made = restored(file, database(url).value, replace, who(by), reason, quiet=as_json)
    if as_json:
        emit("holdfast.restored/1", made)
