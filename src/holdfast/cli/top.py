"""`holdfast top`: runs, workers and dead letters live in the terminal."""

from __future__ import annotations

import os
import sys

import click

from holdfast.cli.database import app_option, database, desk_to_act, desk_to_look, is_server, url_option, who, zone
from holdfast.cli.shell.names import FILTER, FilterCommand
from holdfast.errors import BadInput, MissingExtra


@click.command("top", cls=FilterCommand, short_help="Show runs, workers and dead letters live in the terminal.")
@click.argument("which", nargs=-1, metavar="[FILTER]...", type=FILTER)
@app_option
@url_option
def top_command(which: tuple[str, ...], app: str | None, url: str | None) -> None:
    """Show runs, workers and dead letters live in the terminal, and act on them by keys; ? shows the keys.

    It is the dashboard for a terminal: the same filters, words and keys, on a database or, with --url https://..., on a
    server. Looking changes nothing; every act has a dry run and takes a reason.

    \\b
    Example: holdfast top status:failed
    """
    try:
        from holdfast.tui import House, Top
    except MissingExtra as error:
        raise BadInput(f"{error}; holdfast list, watch and tail work without them") from None

    _check_terminal()
    where = database(url).value
    house = House(
        _name(where),
        lambda: desk_to_look(where, app),
        lambda: desk_to_act(where),
        who(None),
        zone(),
    )
    Top(house, " ".join(which)).run()


def _check_terminal() -> None:
    """Raises BadInput where there is no terminal that could show it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("holdfast top needs a terminal; holdfast list, stats and tail write to a pipe or a file")
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        raise BadInput(
            f"TERM is {os.environ.get('TERM') or 'not set'}, which cannot move its cursor: set TERM, as to "
            "xterm-256color, or use holdfast list and holdfast watch"
        )


def _name(where: str) -> str:
    """Return what is shown of a database or server: no user, no password."""
    if is_server(where) or where.startswith("postgres"):
        from urllib.parse import urlsplit

        parts = urlsplit(where)
        return f"{parts.hostname or ''}{parts.path}".rstrip("/")
    return os.path.basename(where.removeprefix("sqlite:///"))
