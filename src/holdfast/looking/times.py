"""Instants and durations for people."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo

from holdfast.clock import Instant, to_datetime

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_SOON = timedelta(days=1)


class Times:
    """How sentences say instants: relative to now for people, or by themselves for programs.

    Without a zone they are said in that of this machine. A `discreet` sentence names the class of an error, and not
    what it says, nor the progress of a step: both are texts of users' code, and may have payloads in them.
    """

    def __init__(self, now: Instant, zone: tzinfo | None, relative: bool, discreet: bool = False) -> None:
        self.discreet = discreet
        self.now = now
        self.zone = zone
        self.relative = relative

    def ago(self, at: Instant) -> str:
        """Return since when, as `since 3 h 12 min` or `since 2026-11-16 09:00:00+00:00`."""
        return f"since {span(self.now - at)}" if self.relative else f"since {self.moment(at)}"

    def back(self, at: Instant) -> str:
        """Return when something was, as `4 min ago` or `at 2026-11-16 ...`."""
        return f"{span(self.now - at)} ago" if self.relative else f"at {self.moment(at)}"

    def ahead(self, at: Instant) -> str:
        """Return when something will be, as `in 38 s` or `at 2026-11-16 ...`."""
        if not self.relative:
            return f"at {self.moment(at)}"
        return f"in {span(at - self.now)}" if at > self.now else "now"

    def until(self, at: Instant) -> str:
        """Return a moment by its clock, with the day if it is another."""
        return self._clock(at) if self.relative else self.moment(at)

    def moment(self, at: Instant) -> str:
        """Return an instant as a date and a time with its zone, to the second."""
        return to_datetime(at).astimezone(self.zone).isoformat(" ", "seconds")

    def _clock(self, at: Instant) -> str:
        then, now = (to_datetime(each).astimezone(self.zone) for each in (at, self.now))
        return f"{day(then, now)}{then:%H:%M:%S}" if then - now < _SOON else f"{day(then, now)}{then:%H:%M}"


def day(then: datetime, now: datetime) -> str:
    """Return the day of a moment, where it is not today."""
    apart = (then.date() - now.date()).days
    words = {0: "", 1: "tomorrow ", -1: "yesterday "}
    return words.get(apart, f"{then:%Y-%m-%d} ")


def span(micros: int) -> str:
    """Return a duration with its two largest units."""
    seconds = max(micros, 0) / 1e6
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds < 1 else f"{seconds:.0f} s"
    left, said = int(seconds), []
    for size, unit in _UNITS:
        if left >= size:
            said.append(f"{left // size} {unit}")
            left %= size
        elif said:
            break
        if len(said) == 2:
            break
    return " ".join(said)
