"""The timeline of a run in columns of a terminal: long idle stretches are folded, what happened keeps its order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from rich.text import Text

from holdfast.looking.about.timeline import Bar, CallRow
from holdfast.looking.times import span

GLYPHS = {
    "done": ("█", "green"), "failed": ("▒", "red"), "lost": ("░", "magenta"), "running": ("▓", "cyan"),
    "wait": ("╌", "blue"), "child": ("━", "blue"), "backoff": ("·", "yellow"),
}  # fmt: skip
"""How each state of a stretch of time is drawn."""
_IDLE = ("wait", "child", "backoff")
"""What lasts while nothing is going on."""
_FOLD = 3
_SHARE, _AGAIN = 0.05, 0.4
_SHORTEST = timedelta(seconds=2)
"""No stretch is folded that is shorter than this, or than a share of all."""


class Scale:
    """From instants to columns; `folds` are idle stretches that take three columns each, whatever they last."""

    def __init__(self, rows: Sequence[CallRow], begin: datetime, end: datetime, width: int, *, fold: bool) -> None:
        busy = _merged([*_busy(rows, end), (begin, begin), (end, end)])
        gaps = [(busy[n][1], busy[n + 1][0]) for n in range(len(busy) - 1)]
        lasts = any(last > first for first, last in busy)  # else there would be nothing but folds
        folded = _folded(gaps, busy[-1][1] - busy[0][0]) if fold and lasts else []
        folded = folded[: max(width // (3 * _FOLD), 0)]
        ends = [busy[0][0], *(moment for gap in folded for moment in gap), busy[-1][1]]
        self._pieces = [(ends[n], ends[n + 1]) for n in range(0, len(ends), 2)]
        shown = sum((piece[1] - piece[0] for piece in self._pieces), timedelta(0)).total_seconds() or 1.0
        room = max(width - 1 - _FOLD * len(folded), 1)
        least = min(3.0, room / (2 * len(self._pieces)))
        spare = room - least * len(self._pieces)
        self._places: list[tuple[float, float]] = []
        x = 0.0
        for first, last in self._pieces:
            wide = least + spare * (last - first).total_seconds() / shown
            self._places.append((x, wide))
            x += wide + _FOLD
        self.width = width
        self.folds = [
            (round(self._places[n][0] + self._places[n][1]), span(round((last - first).total_seconds() * 1e6)))
            for n, (first, last) in enumerate(folded)
        ]

    def at(self, moment: datetime) -> int:
        """Return the column of an instant."""
        column = 0.0
        for (first, last), (x, wide) in zip(self._pieces, self._places, strict=True):
            if moment < first:
                break
            lasts = (last - first).total_seconds()
            share = min((moment - first).total_seconds() / lasts, 1.0) if lasts else 0.0
            column = x + wide * share + (1 if moment > last else 0)
        return max(0, min(round(column), self.width - 1))

    def axis(self, begin: str) -> Text:
        """Return the line above the bars: when they begin, and how long is folded."""
        line = begin
        for column, length in self.folds:
            said = f"~{length.replace(' ', '')}~"
            if column > len(line):
                line = line.ljust(column) + said
        return Text(line[: self.width].ljust(self.width), "bold", end="")

    def draw(self, row: CallRow, now: datetime) -> Text:
        """Return the bars of a call."""
        cells = [(" ", "")] * self.width
        for column, _ in self.folds:
            for n in range(column, min(column + _FOLD, self.width)):
                cells[n] = ("┊", "dim")
        for bar in sorted(row.bars, key=lambda bar: bar.state not in _IDLE):
            self._fill(cells, bar, now)
        for moment, _ in row.marks:
            cells[self.at(moment)] = ("◆", "bold cyan")
        if row.next is not None and row.next > now:
            cells[self.at(row.next)] = ("▷", "yellow")
        line = Text(end="", no_wrap=True)
        for glyph, style in cells:
            line.append(glyph, style)
        return line

    def _fill(self, cells: list[tuple[str, str]], bar: Bar, now: datetime) -> None:
        glyph = GLYPHS[bar.state]
        first, last = self.at(bar.begin), self.at(bar.end if bar.end is not None else max(now, bar.begin))
        for n in range(first, max(last, first + 1) if bar.state not in _IDLE else last):
            cells[n] = glyph


def _busy(rows: Sequence[CallRow], now: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield what happens at an instant, or lasts: outside of these nothing is going on."""
    for row in rows:
        yield row.begun, row.begun
        for moment, _ in row.marks:
            yield moment, moment
        if row.next is not None:
            yield row.next, row.next
        for bar in row.bars:
            end = bar.end if bar.end is not None else now
            if bar.state in _IDLE:
                yield bar.begin, bar.begin
                yield end, end
            else:
                yield bar.begin, max(bar.begin, end)


def _merged(spans: list[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    merged: list[tuple[datetime, datetime]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def _folded(gaps: list[tuple[datetime, datetime]], whole: timedelta) -> list[tuple[datetime, datetime]]:
    """Return the gaps that are folded: those that take much of all, and those that take much of what is left then."""
    left, chosen = whole, set[tuple[datetime, datetime]]()
    for gap in gaps:
        if gap[1] - gap[0] > max(whole * _SHARE, _SHORTEST):
            chosen.add(gap)
            left -= gap[1] - gap[0]
    again = len(gaps) > 1
    while again:
        again = False
        for gap in gaps:
            if gap not in chosen and gap[1] - gap[0] > max(left * _AGAIN, _SHORTEST):
                chosen.add(gap)
                left -= gap[1] - gap[0]
                again = True
    return sorted(chosen)
