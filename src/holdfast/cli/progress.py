"""The progress of anything that takes longer than a second: one line on stderr, redrawn, and only on a terminal."""

from __future__ import annotations

import sys
import time

import click

from holdfast.looking.times import span

PATIENCE = 1.0
"""How many seconds pass before anything is said, and half of what passes between two pictures."""
_BAR = 24


class ProgressLine:
    """Shows how much is done, of how much if that is known, how fast, and how long the rest takes."""

    def __init__(self, doing: str, total: int | None, unit: str = "") -> None:
        self._doing = doing
        self._total = total
        self._unit = f" {unit}" if unit else ""
        self._began = self._shown = time.monotonic()
        self._drawn = False

    def show(self, done: int) -> None:
        """Draw how much is done, if a person looks and some time has passed."""
        now = time.monotonic()
        since = now - self._shown
        if not sys.stderr.isatty() or since < PATIENCE / 2 or now - self._began < PATIENCE:
            return
        self._shown, self._drawn = now, True
        click.echo(f"\r\x1b[K{self._line(done, now - self._began)}", nl=False, err=True, color=True)

    def end(self) -> None:
        """Leave the line as it is, so that what is said next begins on one of its own."""
        if self._drawn:
            click.echo(err=True)
            self._drawn = False

    def _line(self, done: int, seconds: float) -> str:
        rate = done / seconds
        speed = f"{rate:,.0f}/s" if rate >= 1 else f"{span(round(seconds * 1e6))}"
        if self._total is None:
            return f"{self._doing} {done:,}{self._unit}  {speed}"
        full = round(_BAR * min(done / self._total, 1)) if self._total else _BAR
        bar = f"{'━' * full}{'─' * (_BAR - full)}"
        left = f"  {span(round(max(self._total - done, 0) / rate * 1e6))} left" if rate else ""
        return f"{self._doing} {bar} {done:,}/{self._total:,}{self._unit}  {speed}{left}"
