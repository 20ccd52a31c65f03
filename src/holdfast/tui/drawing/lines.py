"""What a terminal shows, as lines of text: statuses, columns, durations.

Every text of users becomes `printable` here, so that no control sequence reaches the terminal, and no text is markup.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Any, NamedTuple

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from holdfast.clock import from_datetime
from holdfast.looking.times import span
from holdfast.looking.views import Count, StatusCount
from holdfast.texts import printable

_GAP = 2
WANTS = 34
"""How many columns the last cell of a row wants, unless it is said."""
_WIDEST = 36
MARKS = {
    "pending": ("○", "blue"), "running": ("▸", "cyan"), "suspended": ("◷", "blue"), "paused": ("‖", "yellow"),
    "compensating": ("↶", "yellow"), "cancelling": ("⊘", "yellow"), "blocked": ("■", "bold red"),
    "failed": ("✗", "red"), "completed": ("✓", "green"), "cancelled": ("⊘", "yellow"), "waiting": ("◷", "blue"),
    "skipped": ("◷", "blue"), "lost": ("░", "magenta"), "alive": ("✓", "green"), "silent": ("‖", "yellow"),
    "dead": ("✗", "red"), "moving": ("→", "yellow"), "moved": ("→", "blue"),
}  # fmt: skip
_SHORT_WORDS = {"compensating": "undoing", "cancelling": "stopping"}
_WORDS = {"suspended": "waiting", "skipped": "put off"}
STATUSES = (
    "pending", "running", "suspended", "paused", "compensating", "cancelling", "blocked", "failed", "completed",
    "cancelled", "moving", "moved",
)  # fmt: skip


class Row(NamedTuple):
    """A row under the cursor: what it is about, its cells, and whether it is drawn as one that is over."""

    key: str
    cells: tuple[Text, ...]
    faint: bool = False


def said(text: str, style: str = "") -> Text:
    """Return a text of users as it may be shown."""
    return Text(printable(text), style, no_wrap=True, overflow="ellipsis", end="")


def status(word: str, short: bool = False) -> Text:
    """Return a status: mark, word and colour together."""
    mark, colour = MARKS.get(word, ("·", ""))
    words = _WORDS | _SHORT_WORDS if short else _WORDS
    return said(f"{mark} {words.get(word, word)}", colour)


def joined(*parts: str | Text, gap: str = " · ") -> Text:
    """Return texts with something between those that are not empty."""
    kept = [part if isinstance(part, Text) else said(part) for part in parts if part]
    return Text(gap, end="").join(kept) if kept else said("")


def folded(text: str, width: int, most: int, style: str = "") -> list[Text]:
    """Return a text broken at words, in at most so many lines."""
    lines = textwrap.wrap(printable(text), max(width, 10), break_on_hyphens=False)
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1]} ..."]
    return [Text(line, style, no_wrap=True, overflow="ellipsis", end="") for line in lines]


def in_columns(
    titles: Sequence[str], rows: Sequence[Row], width: int, spare: Sequence[int] = (), wants: int = WANTS
) -> tuple[Text, list[Text]]:
    """Return titles and rows in columns of a width; the last has what is left.

    Where that is less than it wants, columns are spared, in the order given.
    """
    widths = [
        min(max([cell_len(title), *(row.cells[n].cell_len for row in rows)]), _WIDEST) for n, title in enumerate(titles)
    ]
    kept = [*range(len(titles) - 1)]
    wanted = min(widths[-1], wants)
    for each in spare:
        if sum(widths[n] + _GAP for n in kept) + wanted > width:
            kept.remove(each)
    while kept and (over := sum(widths[n] + _GAP for n in kept) + wanted - width) > 0:
        widest = max(kept, key=lambda n: widths[n])
        if widths[widest] <= 6:
            break
        widths[widest] = max(6, widths[widest] - over)
    last = max(width - sum(widths[n] + _GAP for n in kept), 0)

    def line(cells: Sequence[Text], style: str) -> Text:
        made = Text(no_wrap=True, end="", style=style)
        for n in kept:
            made.append_text(_cut(cells[n], widths[n])).append(" " * _GAP)
        return made.append_text(_cut(cells[-1], last))

    return line([Text(title) for title in titles], "bold"), [
        line(row.cells, "dim" if row.faint else "") for row in rows
    ]


def _cut(cell: Text, width: int) -> Text:
    """Return a cell of exactly so many columns."""
    if cell.cell_len <= width:
        padded = cell.copy()
        padded.append(" " * (width - cell.cell_len))
        return padded
    cut = cell.copy()
    cut.plain = set_cell_size(cell.plain, max(width - 1, 0)) + ("…" if width > 0 else "")
    return cut


def clock(moment: datetime | None, now: datetime, zone: tzinfo | None) -> Text:
    """Return a moment by its clock, with its day where that is not today."""
    if moment is None:
        return said("")
    local, today = moment.astimezone(zone), now.astimezone(zone)
    return said(f"{local:%H:%M:%S}" if local.date() == today.date() else f"{local:%Y-%m-%d %H:%M}")


def lasting(begin: datetime | None, end: datetime | None) -> str:
    """Return how long something took."""
    return span(from_datetime(end) - from_datetime(begin)) if begin is not None and end is not None else ""


def counted(count: Count | StatusCount) -> str:
    """Return a number as people read it; with + there are more."""
    return f"{count.n:,}{'' if count.exact else '+'}"


def payload(value: Any, most: int = 2_000) -> str:
    """Return a value as JSON on one line, cut where it is long."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= most else f"{text[:most]}..."
