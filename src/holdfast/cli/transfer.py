"""`holdfast export` and `import`, `backup` and `restore`: runs to a file, and from a file into a database."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import click

from holdfast.cli.database import careful_store, open_existing
from holdfast.contract.rows import Status
from holdfast.contract.store import Store
from holdfast.texts import printable
from holdfast.transfer import Report, Which, check_file, export_runs, import_runs
from holdfast.transfer.backup import Backup, back_up, restore

PROGRESS_EVERY = 1.0


@click.command("export", short_help="Write runs to a file.")
@click.argument("database")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--run", "runs", metavar="ID", multiple=True, help="Only this run. May be given several times.")
@click.option("--workflow", "workflows", metavar="NAME", multiple=True, help="Only runs of this workflow.")
@click.option(
    "--status", "statuses", multiple=True, type=click.Choice([*map(str, Status)]), help="Only runs of this status."
)
@click.option("--snapshot", is_flag=True, help="A copy for looking, though workers go on: its open runs arrive paused.")
def export_command(
    database: str,
    file: str,
    runs: tuple[str, ...],
    workflows: tuple[str, ...],
    statuses: tuple[str, ...],
    snapshot: bool,
) -> None:
    """Write runs to a FILE that another database can import; gzipped if its name ends in .gz, to stdout if it is -.

    All runs are written, with their histories and everything else there is, to go on in another database; no worker may
    be alive then. A selection is a copy for looking, made while workers go on: its open runs arrive paused.

    \b
    Example: holdfast export holdfast.db monday.json.gz
    """
    which = Which(runs=runs, workflows=workflows, statuses=[Status(status) for status in statuses], snapshot=snapshot)

    store = open_existing(database)

    async def work(progress: _Progress) -> None:
        with _written(file) as path:
            async with _opened(store):
                report = await export_runs(store, path, which, progress=progress)
        said = [f"exported {_runs(report)} and {sum(report.rows.values()):,} rows to {_name(file)}"]
        if report.snapshot and report.open_runs:
            said.append("this is a copy for looking: where it is imported, its open runs are paused")
        _say("\n".join(said), err=file == "-")

    _run(work, "exported")


@click.command("import", short_help="Write the runs of a file into a database.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("database")
@click.option("--skip-existing", is_flag=True, help="Leave what is in the database as it is, though the file differs.")
def import_command(file: str, database: str, skip_existing: bool) -> None:
    """Write the runs of a FILE into a database, all of them or none; it is made if it is missing.

    Open runs go on there; those of a snapshot are paused. What is there already, and the same, is left as it is.

    \b
    Example: holdfast import monday.json other.db
    """

    store = careful_store(database)
    checked = check_file(file)  # before a database is made for it

    async def work(progress: _Progress) -> None:
        async with _opened(store):
            report = await import_runs(checked, store, skip_existing=skip_existing, by=_user(), progress=progress)
        if report.imported is not None:
            _say(f"nothing to do: {file} was imported on {report.imported.isoformat(timespec='seconds')}")
            return
        _say(f"imported {_runs(report)} and {sum(report.rows.values()):,} rows from {file}")
        if report.skipped:
            _say(f"left alone, because they are there already: {report.skipped:,}")
        if report.snapshot and report.open_runs:
            _say("the file is a copy for looking: its open runs are paused, and go on when they are resumed")

    _run(work, "imported")


@click.command("backup", short_help="Write a whole database to a file while it is in use.")
@click.argument("database")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--replace", is_flag=True, help="Take the place of an older backup.")
def backup_command(database: str, file: str, replace: bool) -> None:
    """Write a whole database to a FILE, as of one moment, while workers go on.

    That of an SQLite database is an SQLite database. That of a PostgreSQL one is an export, gzipped if its name ends in
    .gz.

    \b
    Example: holdfast backup holdfast.db monday.db
    """
    backed_up(database, file, replace)


def backed_up(database: str, file: str, replace: bool) -> None:
    """Write a backup of a database, and say so."""
    store = open_existing(database)

    async def work(progress: _Progress) -> None:
        async with _opened(store):
            made = await back_up(store, file, replace=replace, progress=progress)
        _say(f"backed up {_runs(made)} to {file}, {made.size:,} bytes")

    _run(work, "backed up", "{:,} of {:,}")


@click.command("restore", short_help="Make a database of a backup.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("database")
@click.option("--replace", is_flag=True, help="Take the place of a database file, which is kept under another name.")
def restore_command(file: str, database: str, replace: bool) -> None:
    """Make a DATABASE of a backup; its open runs go on with the first worker.

    No worker may be alive, and no process may have the database open. Nothing is changed unless all of it is.

    \b
    Example: holdfast restore monday.db other.db
    """
    restored(file, database, replace, _user())


def restored(file: str, database: str, replace: bool, by: str, reason: str = "", *, quiet: bool = False) -> Backup:
    """Put a backup in the place of a database, and say so; on stderr if it is to be quiet."""
    done: list[Backup] = []

    async def work(progress: _Progress) -> None:
        made = await restore(file, database, replace=replace, by=by, reason=reason, progress=progress)
        done.append(made)
        _say(f"restored {_runs(made)} from {file}", err=quiet)
        if made.kept is not None:
            _say(f"the database that was there is {made.kept}", err=quiet)

    _run(work, "restored", "{:,} of {:,}")
    return done[0]


@contextmanager
def _written(file: str) -> Iterator[str]:
    """Give the path to write to; what is meant for stdout goes there when it is complete, and otherwise not at all."""
    if file != "-":
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "export")
        yield path
        with open(path, "rb") as complete:
            shutil.copyfileobj(complete, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _name(file: str) -> str:
    return "stdout" if file == "-" else file


@asynccontextmanager
async def _opened(store: Store) -> AsyncIterator[Store]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


class _Progress:
    """Tells a person at a terminal how far it is, and stops in order when that is asked for."""

    def __init__(self, verb: str, words: str) -> None:
        self._verb = verb
        self._words = words
        self._shown = time.monotonic()
        self.stop = threading.Event()

    def __call__(self, *numbers: int) -> None:
        if self.stop.is_set():
            raise click.Abort
        if time.monotonic() - self._shown > PROGRESS_EVERY and sys.stderr.isatty():
            self._shown = time.monotonic()
            click.echo(f"{self._verb} {self._words.format(*numbers)} ...", err=True)


def _run(
    work: Callable[[_Progress], Coroutine[Any, Any, None]], verb: str, words: str = "{:,} runs, {:,} rows"
) -> None:
    async def main() -> None:
        progress = _Progress(verb, words)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, progress.stop.set)
        await work(progress)

    asyncio.run(main())


def _runs(report: Report | Backup) -> str:
    return f"{report.runs:,} run{'' if report.runs == 1 else 's'} ({report.open_runs:,} open)"


def _say(text: str, err: bool = False) -> None:
    for line in text.split("\n"):
        click.echo(printable(line), err=err)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "import"
