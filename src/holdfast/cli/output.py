"""How the command line prints: tables, JSON with its schema, and colours only on a terminal."""

from __future__ import annotations

import json
import os
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any

import click
import msgspec

from holdfast.errors import BadInput
from holdfast.texts import printable

_COLOURS = {
    "completed": "green", "failed": "red", "blocked": "red", "paused": "yellow", "cancelled": "yellow",
    "cancelling": "yellow", "compensating": "yellow", "running": "cyan", "suspended": "blue", "pending": "blue",
    "ok": "green", "warn": "yellow", "fail": "red", "dead": "red", "silent": "yellow", "alive": "green",
    "moving": "yellow", "moved": "blue", "unserved": "red", "left alone": "yellow",
}  # fmt: skip
_NARROWEST = 30
_ROOMY = 50
"""How many columns a sentence wants beside others; with fewer it goes below them."""


def coloured() -> bool:
    """Whether colours may be used: at a terminal, unless NO_COLOR is set; FORCE_COLOR asks for them anywhere."""
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def say(text: str = "", *, err: bool = False) -> None:
    """Write one line, with everything that a terminal might obey written out."""
    click.echo(printable(text), err=err)


def say_wrapped(text: str, *, err: bool = False, hang: int | None = None) -> None:
    """Write one line, broken at words where a terminal is narrower than it; what goes to a file is not broken.

    What follows the first line hangs below it by so many columns, by two more than it is indented unless that is said.
    """
    shown = printable(text)
    for line in hanging(shown, hang if hang is not None else len(shown) - len(shown.lstrip()) + 2, err=err):
        click.echo(line, err=err)


def hanging(text: str, indent: int, *, err: bool = False) -> list[str]:
    """Return the lines of a text as a terminal has room for them, those after the first indented."""
    room = width(err=err)
    return _folded(text, room, "", " " * indent) if indent + _NARROWEST < room < len(text) else [text]


def _folded(text: str, room: int, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text, room, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[int] = ()) -> None:
    """Write rows in columns.

    At a terminal the last column is cut where the line ends, or, in a table without titles, goes on below itself; where
    there is hardly room for it, it goes on lines of its own below, and the columns that can be spared are left out, in
    the order given, until the others fit.
    """
    lines = [list(titles), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(titles))]
    room = width()
    below = room - _taken(widths[:-1]) - 2 < min(_ROOMY, widths[-1])
    kept = [*range(len(titles) - 1)]
    for each in spare:
        if below and _taken([widths[n] for n in kept]) > room:
            kept.remove(each)
    written: list[str] = []
    for number, line in enumerate(lines):
        if not any(line):
            continue  # a table without titles
        cells = [line[n].ljust(widths[n]) for n in kept]
        left = room - _taken([widths[n] for n in kept]) - 2
        last, *more = [line[-1]] if below or len(line[-1]) <= left else [f"{line[-1][: left - 3]}..."]
        if not below and not any(titles) and line[-1]:
            last, *more = _folded(line[-1], left, "", "")
        if coloured():
            cells = [click.style(cell, bold=True) if number == 0 else _tinted(cell) for cell in cells]
            last = click.style(last, bold=True) if number == 0 else last
        if not below:
            written.append("  ".join([*cells, last]).rstrip())
            written += [f"{'':{room - left}}{each}" for each in more]
            continue
        written.append("  ".join(cells).rstrip())
        if number and last:
            written += _folded(last, room, "    ", "    ")
    _write(written)


def _write(lines: Sequence[str]) -> None:
    """Write lines, through the program of HOLDFAST_PAGER where a terminal has no room for all of them."""
    pager = os.environ.get("HOLDFAST_PAGER")
    if pager and sys.stdout.isatty() and len(lines) >= _terminal().lines:
        import subprocess

        text = "".join(f"{line}\n" for line in lines)
        try:
            subprocess.run(shlex.split(pager), input=text.encode(), check=False)  # noqa: S603  # a setting of the user
        except (OSError, ValueError) as error:
            raise BadInput(f"HOLDFAST_PAGER={pager} cannot be run: {error}") from None
        return
    for line in lines:
        click.echo(line, color=coloured())


def listed(titles: Sequence[str], rows: Sequence[Sequence[str]], otherwise: str, spare: Sequence[int] = ()) -> None:
    """Write rows in columns, or, where there are none, say so."""
    if rows:
        table(titles, rows, spare)
    else:
        say(otherwise, err=True)


def _taken(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * max(len(widths) - 1, 0)


def width(*, err: bool = False) -> int:
    """Return how many columns there are to write in: those of the terminal, or as many as are wanted."""
    return _terminal().columns if (sys.stderr if err else sys.stdout).isatty() else sys.maxsize


def _terminal() -> os.terminal_size:
    from shutil import get_terminal_size  # it loads every way to pack files

    return get_terminal_size()


def _tinted(cell: str) -> str:
    colour = _COLOURS.get(cell.strip())
    return click.style(cell, fg=colour) if colour is not None else cell


def tinted(text: str, word: str) -> str:
    """Return a text in the colour that a status has."""
    return click.style(text, fg=_COLOURS.get(word)) if coloured() else text


def status(word: str) -> str:
    """Return the word for a status, in its colour."""
    return click.style(word, fg=_COLOURS.get(word.strip())) if coloured() else word


def emit(schema: str, view: Any, fields: str | None = None, *, on_one_line: bool = False) -> None:
    """Write a record, or a list of records, as one JSON document that names its schema."""
    plain = msgspec.to_builtins(view, str_keys=True)
    document: dict[str, Any] = {"items": plain} if isinstance(plain, list) else dict(plain)
    if fields is not None:
        document["items"] = [_chosen(item, fields) for item in document.get("items", ())]
    text = msgspec.json.encode({"schema": schema, **document})
    click.echo(harmless(text if on_one_line else msgspec.json.format(text, indent=2)))


def harmless(text: bytes) -> str:
    """Return JSON with what a terminal might obey, or read in another order, written as escapes: it says the same."""
    said = text.decode()
    return said if said.isprintable() else "".join(map(_escaped, said))


def _escaped(letter: str) -> str:
    if letter.isprintable() or letter == "\n":
        return letter
    return json.dumps(letter)[1:-1]


def _chosen(item: Mapping[str, Any], fields: str) -> dict[str, Any]:
    names = [name.strip() for name in fields.split(",")]
    unknown = [name for name in names if name not in item]
    if unknown:
        raise BadInput(f"there is no field {unknown[0]!r}; there are {', '.join(item)}")
    return {name: item[name] for name in names}


def clock(moment: datetime | None, now: datetime, zone: tzinfo | None) -> str:
    """Return a moment by its clock, with its day where that is not today."""
    if moment is None:
        return ""
    local, today = moment.astimezone(zone), now.astimezone(zone)
    return f"{local:%H:%M:%S}" if local.date() == today.date() else f"{local:%Y-%m-%d %H:%M}"


def payload(value: Any, most: int = 2_000) -> str:
    """Return a value as JSON on one line, cut where it is long."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters; --json has all of it)"
