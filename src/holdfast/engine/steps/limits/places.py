"""Places of limits that a worker has: for an attempt of a step, and for those that it took from queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.bodies.attempt import Attempt
from holdfast.clock import Clock, Instant
from holdfast.contract.limits import TakenTask
from holdfast.contract.turns import LeaveLimit


class LimitPlace:
    """A place of a limit that this worker has for an attempt."""

    __slots__ = ("keep", "key", "limit", "outlived", "probe", "worker")

    def __init__(self, limit: str, key: str, worker: str, probe: bool, keep: bool = False) -> None:
        self.limit = limit
        self.key = key
        self.worker = worker
        self.probe = probe
        self.keep = keep
        """Whether the worker may keep it for its next attempt."""
        self.outlived = False
        """Whether its body goes on though the attempt has ended: it has the place until then."""

    def leave(self, now: Instant, places: int = 1, verdict: str = "", hold: int | None = None) -> LeaveLimit:
        """Return what gives it back, or says what came of the attempt while its body goes on.

        What it tried is over with the first of them: another may try when its body is gone.
        """
        tried = self.probe and bool(verdict or places)
        self.probe = self.probe and not tried
        return LeaveLimit(
            limit=self.limit,
            key=self.key,
            worker=self.worker,
            now=now,
            places=places,
            verdict=verdict,
            hold=hold,
            probe=tried,
        )


class TaskPlaces:
    """The places of attempts that one worker took from queues."""

    def __init__(
        self,
        outlives: Callable[[LimitPlace, Attempt], None],
        give_back: Callable[[list[LeaveLimit]], None],
        clock: Clock,
    ) -> None:
        self._outlives = outlives
        self._give_back = give_back
        self._clock = clock
        self._places: set[LimitPlace] = set()
        self.asked = 0
        """How many claims are under way: what they bring is counted in the store before it is known here."""

    def took(self, taken: TakenTask, limit: str, worker: str) -> LimitPlace | None:
        """Note the place of an attempt that was taken from its queue; None if there is no such limit."""
        if taken.answer.outcome != "entered":
            return None
        place = LimitPlace(limit, taken.key, worker, taken.answer.probe)
        self._places.add(place)
        return place

    def left(self, place: LimitPlace, attempt: Attempt | None, verdict: str, hold: int | None) -> LeaveLimit:
        """Return what gives a place back with the end of its attempt; a body that goes on has it until it is gone."""
        self._places.discard(place)
        if attempt is not None and attempt.going:
            self._outlives(place, attempt)
        return place.leave(self._clock.now(), int(not place.outlived), verdict, hold)

    def stopped(self, place: LimitPlace, attempt: Attempt | None) -> None:
        """Give back the place of an attempt that was given up, as soon as its body is gone."""
        left = self.left(place, attempt, "", None)
        if left.places:
            self._give_back([left])

    def held(self, worker: str) -> Iterator[tuple[str, str]]:
        """Return the limits and keys of which a worker has places, each as often as it has."""
        return ((place.limit, place.key) for place in self._places if place.worker == worker)
