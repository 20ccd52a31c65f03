"""Limits: how many steps that share a resource run at once, and how often they begin."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import msgspec

from holdfast.clock import Instant, micros
from holdfast.contract.limits import LimitSpec
from holdfast.errors import BadInput
from holdfast.rates import MOST_RATE
from holdfast.texts import check_text

MOST = 1_000_000_000
"""How many steps a limit may count."""
_COOL_DOWN = timedelta(seconds=30)
_LONGEST = micros(timedelta(days=365_000))
"""Over how long a rate may count, all that may come at once included: instants that far ahead can be stored."""
_NUMBERS = ("at_once", "rate", "burst", "per_key_at_once", "trip_after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What steps of activities with `limit=<name>` share, on all workers of a database.

        Engine(..., limits=[Limit(name="stripe", at_once=5, rate=100, per=timedelta(minutes=1))])

    Args:
        name: what activities refer to.
        at_once: how many may run at the same time; None for any number.
        rate: how many may begin within `per`; None for any number.
        per: the time that `rate` counts over.
        burst: with it, begins are spread evenly over `per`, of which so many may come at once.
        per_key_at_once: of the places of `at_once`, how many the steps of one key may have.
        trip_after: after so many failures in a row nothing begins for `cool_down`; then one attempt tries, and the
            others wait for what comes of it.
        cool_down: how long nothing begins then; 30 seconds if not given.
        scope: `database`: counted in the database, for all its workers; `engine`: by each engine for itself, in memory.
    """

    name: str
    at_once: int | None = None
    rate: int | None = None
    per: timedelta = timedelta(seconds=1)
    burst: int | None = None
    per_key_at_once: int | None = None
    trip_after: int | None = None
    cool_down: timedelta | None = None
    scope: Literal["database", "engine"] = "database"

    def __post_init__(self) -> None:
        for field in _NUMBERS:
            value: object = getattr(self, field)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise BadInput(f"{field} of limit {self.name!r} must be a whole number of at least 1, not {value!r}")
            if isinstance(value, int) and value > MOST:
                raise BadInput(f"{field} of limit {self.name!r} must be at most {MOST}, not {value}")
        check_text(self.name, "the name of a Limit")
        if not micros(self.per, f"per of limit {self.name!r}"):
            raise BadInput(f"per of limit {self.name!r} must be longer than zero")
        if self.scope not in ("database", "engine"):
            raise BadInput(f"scope of limit {self.name!r} must be 'database' or 'engine', not {self.scope!r}")
        if self.cool_down is not None:
            micros(self.cool_down, f"cool_down of limit {self.name!r}")
            if self.trip_after is None:
                raise BadInput(
                    f"limit {self.name!r} has a cool_down and no trip_after, the number of failures in a row "
                    "after which it would begin: give it a trip_after, or leave out cool_down"
                )
        if self.burst is not None and self.rate is None:
            raise BadInput(f"limit {self.name!r} has a burst and no rate")
        per = micros(self.per)
        if max(per, -(-per // (self.rate or 1)) * (self.burst or 1)) > _LONGEST:
            raise BadInput(f"limit {self.name!r} counts over more than a thousand years: make per or burst smaller")
        if self.scope == "engine":
            for field in ("burst", "per_key_at_once", "trip_after"):
                if getattr(self, field) is not None:
                    raise BadInput(f"limit {self.name!r} has scope='engine', which does not go with {field}")
        if self.scope == "database" and self.burst is None and self.rate is not None and self.rate > MOST_RATE:
            raise BadInput(
                f"rate of limit {self.name!r} must be at most {MOST_RATE}, not {self.rate}, unless it has a burst: "
                "count over a shorter time, or give it one"
            )

    @property
    def spec(self) -> LimitSpec:
        """The numbers as they are stored."""
        return LimitSpec(
            at_once=self.at_once,
            rate=self.rate,
            per=micros(self.per),
            burst=self.burst,
            per_key_at_once=self.per_key_at_once,
            trip_after=self.trip_after,
            cool_down=micros(_COOL_DOWN if self.cool_down is None else self.cool_down) if self.trip_after else 0,
        )

    def brief(self) -> str:
        """Return the numbers in JSON, as they are stored."""
        return msgspec.json.encode(self.spec).decode()

    def meant(self) -> str:
        """Return the numbers in JSON, without those that mean nothing, as the time of no rate."""
        spec = {name: value for name, value in msgspec.structs.asdict(self.spec).items() if value}
        if self.rate is None:
            del spec["per"]
        return msgspec.json.encode(spec).decode()


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
        limits = self._limits.values()
        self.shared = [limit for limit in limits if limit.scope == "database"]
        """Those that are counted in the database."""
        self.own = frozenset(limit.name for limit in limits if limit.scope == "engine")
        """The names of those that this engine counts for itself."""
        self._rates = {limit.name: _Rate(limit.rate, micros(limit.per)) for limit in limits if limit.rate is not None}
        self._held: dict[str, Instant] = {}
        self._running: dict[str, int] = {}

    def is_own(self, name: str) -> bool:
        """Tell whether a limit is one that this engine counts for itself."""
        return name in self.own

    def turn_of(self, name: str, step: tuple[int, str], now: Instant) -> Instant:
        """Return from when a step may start: now (it is taken to start), or the instant that is reserved for it."""
        held = self._held.get(name, 0)
        rate = self._rates.get(name)
        return rate.turn_of(step, now, held) if rate is not None else max(now, held)

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

    def forget(self, run: int, location: str | None = None) -> None:
        """Give the turns of a run that has ended, or of one step of it that is not wanted any more, to others."""
        for rate in self._rates.values():
            rate.forget(run, location)


class _Rate:
    """The last starts under a limit, and the turns that are reserved."""

    __slots__ = ("_most", "_per", "_starts", "_turns", "_when")

    def __init__(self, rate: int, per: Instant) -> None:
        self._per = per
        self._starts: deque[Instant] = deque(maxlen=rate)
        self._turns: list[Instant] = []
        self._when: dict[int, dict[str, Instant]] = {}
        self._most = 1000

    def turn_of(self, step: tuple[int, str], now: Instant, held: Instant) -> Instant:
        """Return now if a step may start, and count that; else the instant that is reserved for it.

        In any time of `per` at most `rate` starts: a new turn is that long after the turn or start `rate` before it.
        """
        run, location = step
        reserved = self._when.get(run, {}).get(location)
        if reserved is not None:
            if reserved > now:
                return reserved
            self.forget(run, location)  # its turn has come, unless something was said meanwhile
        starts, turns, rate = self._starts, self._turns, self._starts.maxlen or 1
        free = starts[0] + self._per if len(starts) == rate else now
        if reserved is None or max(free, held) > now:
            back = rate - len(turns)
            last = turns[-rate] if back <= 0 else starts[-back] if back <= len(starts) else now - self._per
            turn = max(free, held, last + self._per)
            if turn > now:
                self._reserve(run, location, turn, now)
                return turn
        starts.append(now)
        return now

    def _reserve(self, run: int, location: str, turn: Instant, now: Instant) -> None:
        if len(self._turns) > 2 * self._most:
            self._forget_missed(now - self._per)
        insort(self._turns, turn)
        self._when.setdefault(run, {})[location] = turn

    def forget(self, run: int, location: str | None) -> None:
        """Give up what is reserved for a run, or for one step of it."""
        steps = self._when.get(run)
        if steps is None:
            return
        for each in [location] if location is not None else list(steps):
            turn = steps.pop(each, None)
            if turn is not None:
                del self._turns[bisect_left(self._turns, turn)]
        if not steps:
            del self._when[run]

    def _forget_missed(self, before: Instant) -> None:
        """Forget turns that no step came for: their runs went on in another process."""
        for run, steps in list(self._when.items()):
            for location, turn in list(steps.items()):
                if turn < before:
                    self.forget(run, location)
        self._most = max(len(self._turns), 1000)
