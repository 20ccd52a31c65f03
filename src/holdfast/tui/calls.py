"""The calls of the run under the cursor, in two lines: how each stands, and what became of the attempt in hand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, tzinfo

from rich.text import Text

from holdfast.errors import NoSuchRun
from holdfast.looking.about.timeline import CallRow, Timeline
from holdfast.looking.desk import Desk
from holdfast.looking.views import Head
from holdfast.tui.drawing.bars import GLYPHS
from holdfast.tui.drawing.lines import MARKS, clock, joined, lasting, said

_FACTS = 200
"""Of so many of its newest facts they are made."""
_TRIES = 8
_AGAIN = 5
"""A run that is driven is read again at every fifth look."""
_DRIVEN = ("running", "compensating", "cancelling")
_BETWEEN = "  "


class CallLines:
    """What the run under the cursor has called; it is read when its row is another."""

    def __init__(self) -> None:
        self._of = ""
        self._read = ""
        self._rows: list[CallRow] = []
        self._looks = 0

    async def look(self, desk: Desk, head: Head | None) -> None:
        """Read the newest facts of a run, if they may be others than before."""
        self._looks += 1
        if head is None:
            return
        read = f"{head.id} {head.updated_at} {head.status}"
        if read == self._read and (head.status not in _DRIVEN or self._looks % _AGAIN):
            return
        timeline = Timeline()
        try:
            timeline.take((await desk.history(head.id, newest=True, limit=_FACTS)).items)
        except NoSuchRun:
            pass  # it went since the list was read
        self._of, self._read, self._rows = head.id, read, timeline.rows()

    def lines(self, head: Head, width: int, now: datetime, zone: tzinfo | None) -> list[Text]:
        """Return them as far as they are known; a run that is not read yet has an empty line, so that nothing jumps."""
        rows = self._rows if self._of == head.id else []
        tried = next((row for row in reversed(rows) if row.error and row.status != "completed"), None)
        return [_in_one_line(rows, width, head.ended_at or now), *(_last_try(tried, now, zone) if tried else [])]


def _in_one_line(rows: list[CallRow], width: int, end: datetime) -> Text:
    """Return the newest calls, as many as there is room for."""
    shown: list[Text] = []
    room = width
    for row in reversed(rows):
        call = _call(row, end)
        room -= call.cell_len + len(_BETWEEN)
        if room < 2 and shown:
            shown.append(said("…", "dim"))
            break
        shown.append(call)
    return joined(*reversed(shown), gap=_BETWEEN)


def _call(row: CallRow, end: datetime) -> Text:
    mark, style = ("◆", "cyan") if row.kind == "message" else MARKS.get(row.status, ("·", ""))
    more: list[Text] = [Text(glyph, colour, end="") for glyph, colour in _glyphs(row)]
    if not row.attempts:
        more = [said(lasting(row.begun, row.ended or end), "dim")]
    return joined(joined(said(mark, style), said(row.name), gap=" "), joined(*more, gap=""), gap=" ")


def _glyphs(row: CallRow) -> Iterator[tuple[str, str]]:
    """Yield a glyph for each attempt of a step and for each wait between two: the last of them."""
    yield from (GLYPHS[bar.state] for bar in row.bars[-_TRIES:])
    if row.next is not None:
        yield "▷", "yellow"


def _last_try(row: CallRow, now: datetime, zone: tzinfo | None) -> list[Text]:
    bar = next((bar for bar in reversed(row.bars) if bar.attempt and bar.error), None)
    if bar is None:
        return []
    took = lasting(bar.begin, bar.end or now)
    return [joined(f"attempt {bar.attempt}", clock(bar.begin, now, zone), took, said(bar.error, "red"), gap="  ")]
