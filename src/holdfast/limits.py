"""Limits: how many steps that share a resource run at once, and how often they start."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from holdfast.clock import Instant, micros
from holdfast.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What steps of activities with `limit=<name>` share, in one engine.

        Engine(..., limits=[Limit(name="stripe", at_once=5, rate=100, per=timedelta(minutes=1))])

    Args:
        name: what activities refer to.
        at_once: how many may run at the same time; None for any number.
        rate: how many may start within `per`; None for any number.
        per: the time that `rate` counts over.
    """

    name: str
    at_once: int | None = None
    rate: int | None = None
    per: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        for field in ("at_once", "rate"):
            value: object = getattr(self, field)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise BadInput(f"{field} of limit {self.name!r} must be a whole number of at least 1, not {value!r}")
        if not self.name:
            raise BadInput("a Limit needs a name")
        if not micros(self.per, f"per of limit {self.name!r}"):
            raise BadInput(f"per of limit {self.name!r} must be longer than nothing")


class Limits:
    """The limits of one engine, and how far each is used."""

    def __init__(self, limits: Iterable[Limit] = ()) -> None:
        self._limits: dict[str, Limit] = {}
        for limit in limits:
            given: object = limit
            if not isinstance(given, Limit):
                raise BadInput(f"limits must be a list of Limit, not {given!r}")
            if limit.name in self._limits:
                raise BadInput(f"two limits are named {limit.name!r}")
            self._limits[limit.name] = limit
        self._starts: dict[str, deque[Instant]] = {}
        self._held: dict[str, Instant] = {}
        self._running: dict[str, int] = {}
        self._places: dict[tuple[int, str], Instant] = {}
        self._expected = 1000

    def turn_of(self, name: str, step: tuple[int, str], now: Instant) -> Instant:
        """Return from when a step may start: now, or the instant that is reserved for it."""
        held = self._held.get(name, 0)
        reserved = self._places.get(step)
        if reserved is not None:
            if max(reserved, held) <= now:
                del self._places[step]
            return max(reserved, held)
        limit = self._limits.get(name)
        turn = max(now, held)
        if limit is not None and limit.rate is not None:
            starts = self._starts.setdefault(name, deque(maxlen=limit.rate))
            if len(starts) == limit.rate:
                turn = max(turn, starts[0] + micros(limit.per))
            starts.append(turn)
            if turn > now:
                self._forget_missed(now - micros(limit.per))
                self._places[step] = turn
        return turn

    def hold(self, name: str, until: Instant) -> None:
        """Let nothing start under a limit until an instant."""
        self._held[name] = max(until, self._held.get(name, 0))

    def enter(self, name: str) -> bool:
        """Take one of the places of a limit; False when all are taken."""
        limit, running = self._limits.get(name), self._running.get(name, 0)
        if limit is not None and limit.at_once is not None and running >= limit.at_once:
            return False
        self._running[name] = running + 1
        return True

    def leave(self, name: str) -> None:
        """Give a place back."""
        self._running[name] = max(self._running.get(name, 0) - 1, 0)

    def _forget_missed(self, before: Instant) -> None:
        """Forget turns that nobody came for: their runs ended, or went on elsewhere."""
        if len(self._places) > 2 * self._expected:
            self._places = {step: turn for step, turn in self._places.items() if turn >= before}
            self._expected = max(len(self._places), 1000)
