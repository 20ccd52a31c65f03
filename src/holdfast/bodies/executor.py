"""Places for step bodies: how many run at once, and which waits for which. Nothing here uses the store."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

from holdfast.bodies import eager
from holdfast.bodies.attempt import Around, Attempt, Inside, Kind, Work, kind_of
from holdfast.bodies.child_process import importable
from holdfast.bodies.places import WaitingRoom
from holdfast.bodies.threads import ThreadPool
from holdfast.definitions import Activity
from holdfast.limits import Limits

_logger = logging.getLogger("holdfast.engine")
MAX_ABANDONED_THREADS = 32


class Executor:
    """Runs attempts, as many at once as allowed; suspects one at a time.

    A suspect is a step that was lost twice with its process. Where its function can be imported it runs in a child
    process, so that its crash is seen for what it is; otherwise it runs here, alone among suspects.

    While more than 32 threads never came back from bodies that were given up, no further sync body starts: they wait
    until threads return, since each would probably be lost like those before it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_steps: int,
        max_threads: int,
        limits: Limits | None = None,
        around: Around | None = None,
    ) -> None:
        self.loop = loop
        self.eager = eager.possible(loop)
        self._limits = limits or Limits()
        self._limited: dict[str, WaitingRoom] = {}
        self._numbers = count()
        """In which order attempts came, whatever their kind."""
        self.context = contextvars.copy_context()
        """What every body starts from a copy of: the context in which the engine was opened."""
        self.threads = ThreadPool(self._thread_returned)
        self.around = around
        """What is entered around every body that runs in this process (a span of a trace)."""
        self.substitutes: dict[Any, Activity[..., Any]] = {}
        """Stand-ins for functions, for tests."""
        self._max = max_steps
        self._rooms: dict[Kind, _Room] = {
            "async": _Room(max_steps, self._numbers),
            "thread": _Room(max_threads, self._numbers),
            "process": _Room(max_threads, self._numbers),
        }
        self._running: set[Attempt] = set()
        self._reserved = 0
        """For how many attempts there is to be room that are not known yet to begin."""
        self._suspect: Attempt | None = None
        self._suspects: deque[Attempt] = deque()
        self._queued = 0
        """How many attempts wait for a place, suspects included."""
        self._forsaken: set[asyncio.Task[Any]] = set()
        self._unhealthy = self._begins_no_more = False

    def stand_in(self, activity: Activity[..., Any]) -> Activity[..., Any]:
        """Return what runs in place of an activity: itself, outside tests."""
        if not self.substitutes:
            return activity
        try:
            return self.substitutes.get(activity.function, activity)
        except TypeError:  # a callable object that cannot be hashed
            return activity

    def idle(self) -> bool:
        """Whether no attempt is running or waiting for a place."""
        return not self._running and not self._queued

    @property
    def size(self) -> int:
        """How many attempts may run at once."""
        return self._max

    @property
    def active(self) -> int:
        """How many attempts are running or waiting for a place."""
        return len(self._running) + self._queued

    @property
    def begun(self) -> int:
        """How many attempts are running."""
        return len(self._running)

    @property
    def under_way(self) -> frozenset[Attempt]:
        """The attempts that are running."""
        return frozenset(self._running)

    def begin_no_more(self) -> None:
        """Let the attempts that wait for a place go on waiting: the worker stops, and hands them back."""
        self._begins_no_more = True

    @property
    def abandoned(self) -> int:
        """How many bodies go on though they were given up: threads that never came back, tasks that will not end."""
        return self.threads.abandoned + len(self._forsaken)

    @property
    def healthy(self) -> bool:
        """Whether sync bodies can be started."""
        return self.threads.abandoned <= MAX_ABANDONED_THREADS

    def runs(self, attempt: Attempt) -> bool:
        """Tell whether an attempt is under way, and not waiting for a place."""
        return attempt in self._running

    def free(self, activity: Activity[..., Any]) -> int:
        """Return how many more attempts of an activity could begin at once."""
        kind, limit = kind_of(self.stand_in(activity)), activity.settings.limit
        room = self._rooms[kind]
        if kind == "thread" and not self.healthy:
            return 0
        taken = room.taken + room.reserved + len(room.waiting)
        free = max(min(self._max - self.active - self._reserved, room.size - taken), 0)
        if free and limit is not None and self._limits.is_own(limit):
            free = int(self._limits.enter(limit))  # whether there is a place: it is given back at once
            if free:
                self._limits.leave(limit)
        return free

    def running(self) -> list[Attempt]:
        """Return the attempts under way."""
        waiting = (attempt for room in self._rooms.values() for attempt in room.waiting)
        limited = (attempt for room in self._limited.values() for attempt in room)
        return [*self._running, *waiting, *limited, *self._suspects]

    def run_plain(self, attempt: Attempt, only: bool, first: bool = False) -> None:
        """Start an attempt that no option asks anything of, at once if there is room.

        `only`: no other is to begin with it, which the end of this one could forestall; for `first` see `run`.
        """
        if self._queued or len(self._running) >= self._max or attempt.kind != "async":
            self.run(attempt, only=only, first=first)
            return
        # Not at once before one that was given up has had the time to end.
        attempt.at_once = only and not self._forsaken
        self._running.add(attempt)
        self._rooms["async"].taken += 1
        attempt.start_plain()

    def run(
        self,
        attempt: Attempt,
        admit: Callable[[Attempt], bool] | None = None,
        inside: Inside | None = None,
        only: bool = False,
        first: bool = False,
    ) -> None:
        """Start an attempt as soon as there is room for it, if `admit` then still says so; for `only` see above.

        `first` tells that room was reserved for it, for which it does not wait in line.
        """
        verb = attempt.verb
        if attempt.kind == "thread":
            attempt.inside = inside
        if admit is not None:
            attempt.admit = partial(admit, attempt)
        if verb.suspect:
            if not verb.in_process:
                attempt.isolate()
            self._suspects.append(attempt)
        elif attempt.limit is not None and not self._limits.enter(attempt.limit):
            self._limited.setdefault(attempt.limit, WaitingRoom(self._numbers)).put(attempt)
        elif (first or not self._queued) and self._has_room(attempt.kind):
            attempt.at_once = only and not self._forsaken
            self._begin(attempt)
            return
        else:
            self._rooms[attempt.kind].waiting.put(attempt)
        self._queued += 1
        self.fill()

    def reserve(self, kind: Kind) -> bool:
        """Keep room for an attempt that is not known yet to begin, if there is any."""
        if not self._has_room(kind):
            return False
        self._reserved += 1
        self._rooms[kind].reserved += 1
        return True

    def unreserve(self, kind: Kind) -> None:
        """Give such room up; `fill` lets others have it."""
        self._reserved -= 1
        self._rooms[kind].reserved -= 1

    def isolates(self, verb: Work) -> bool:
        """Tell whether an attempt of this step runs in a child process, so that the worker's death is not its doing."""
        if verb.activity.settings.isolate is not None:
            return True
        if verb.activity.settings.transaction:
            return False
        return verb.suspect and not verb.in_process and importable(verb.activity.function, asked=False) is not None

    def released(self, attempt: Attempt) -> None:
        """Take back an attempt's place."""
        room = self._rooms[attempt.kind]
        if attempt in self._running:
            self._running.discard(attempt)
            room.taken -= 1
            if self._suspect is attempt:
                self._suspect = None
            elif attempt.limit is not None:
                self._leave_limit(attempt)
            if self._queued:
                self.fill()
        elif room.waiting.leave(attempt):
            self._queued -= 1
            self._leave_limit(attempt)
            self.fill()
        elif attempt in self._suspects:
            self._suspects.remove(attempt)
            self._queued -= 1
        elif attempt.limit is not None and attempt.limit in self._limited:
            self._queued -= self._limited[attempt.limit].leave(attempt)

    def _leave_limit(self, attempt: Attempt) -> None:
        """Give the place of a limit to the attempt that waits for it."""
        if attempt.limit is None:
            return
        self._limits.leave(attempt.limit)
        waiting = self._limited.get(attempt.limit)
        if waiting and self._limits.enter(attempt.limit):
            following = waiting.take()
            self._rooms[following.kind].waiting.put(following)

    def left_thread(self, attempt: Attempt) -> None:
        """A sync body returned a coroutine, which goes on without its thread."""
        self._rooms[attempt.kind].taken -= 1
        attempt.kind = "async"
        self._rooms[attempt.kind].taken += 1
        self.fill()

    def forsake(self, task: asyncio.Task[Any], reason: str) -> None:
        """Cancel a body and forget it, whatever it makes of that."""
        if task.cancel(reason):
            self._forsaken.add(task)
            task.add_done_callback(self._forsaken.discard)

    def close(self) -> None:
        """Give up everything."""
        self._suspects.clear()
        for room in self._rooms.values():
            room.waiting.clear()
        self._limited.clear()
        self._queued = 0
        for attempt in list(self._running):
            attempt.stop("the worker stops")
        for task in self._forsaken:
            task.cancel()
        self.threads.close()

    def fill(self) -> None:
        """Begin what waits and has room."""
        if not self._queued:
            return
        while free := [room for kind, room in self._rooms.items() if room.waiting and self._has_room(kind)]:
            self._queued -= 1
            self._begin(min(free, key=_next_of).waiting.take())
        while self._suspects and self._suspect is None and self._has_room(self._suspects[0].kind):
            self._queued -= 1
            self._suspect = self._suspects.popleft()
            self._begin(self._suspect)

    def _has_room(self, kind: Kind) -> bool:
        room = self._rooms[kind]
        taken = len(self._running) + self._reserved
        if self._begins_no_more or taken >= self._max or room.taken + room.reserved >= room.size:
            return False
        return kind != "thread" or self._take_threads()

    def _take_threads(self) -> bool:
        if self.healthy:
            self._unhealthy = False
        elif not self._unhealthy:
            self._unhealthy = True
            _logger.error(
                "%d threads never came back from sync steps that timed out or were cancelled; sync steps wait until "
                "some do: let such bodies watch step_context().signal, or use isolate='process'",
                self.threads.abandoned,
            )
        return self.healthy

    def _begin(self, attempt: Attempt) -> None:
        if attempt.admit is not None and not attempt.admit():
            if attempt is self._suspect:
                self._suspect = None
            else:
                self._leave_limit(attempt)
            return
        self._running.add(attempt)
        self._rooms[attempt.kind].taken += 1
        attempt.start()

    def _thread_returned(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self.fill)
        except RuntimeError:  # the loop is closed: nothing waits any more
            pass


class _Room:
    """How many attempts of one kind may run, how many do, and which wait."""

    __slots__ = ("reserved", "size", "taken", "waiting")

    def __init__(self, size: int, numbers: Iterator[int]) -> None:
        self.size = size
        self.taken = 0
        self.reserved = 0
        self.waiting = WaitingRoom(numbers)


def _next_of(room: _Room) -> tuple[int, int]:
    return room.waiting.first()
