"""What a run in memory has only sometimes: additions to its next commit, what it waits for, how it pauses.

Only a Resident assigns these attributes, like its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from holdfast.bodies.attempt import Attempt
from holdfast.bodies.context import StepContext
from holdfast.clock import Instant
from holdfast.context.steps import StepVerb
from holdfast.contract.rows import EntryRow, Message
from holdfast.contract.turns import LeaveKey, NewLetter, NewTask
from holdfast.replay.turn import Turn

T = TypeVar("T")
_NO_NAMES: frozenset[str] = frozenset()


class Pausing:
    """A run that begins nothing more and waits for what is under way to end."""

    __slots__ = ("cancelled", "resumed", "until", "withheld")

    def __init__(self, until: Instant | None) -> None:
        self.until = until
        self.resumed = False
        """Whether it goes on at once after all."""
        self.cancelled = False
        """Whether it was asked to stop meanwhile."""
        self.withheld = False
        """Whether facts were recorded that the code has not seen."""


class Telling:
    """What the callbacks of an activity are being told of one of its attempts."""

    __slots__ = ("begun", "calls", "durable", "task", "then", "verb")

    def __init__(
        self,
        verb: StepVerb,
        calls: deque[tuple[Callable[..., object], tuple[Any, ...]]],
        then: Callable[[], None],
    ) -> None:
        self.verb = verb
        self.calls = calls
        """Those that are still to be called."""
        self.then = then
        """What follows once all were."""
        self.durable = False
        """Whether history has what they are told."""
        self.begun = False
        self.task: asyncio.Task[None] | None = None
        """One that is awaited."""


class Aside:
    """What a run has only at times: made when there is something to put in it, forgotten when there is not.

    Runs that wait for a queue or a key are parked with it, so a list or a set in it is made when its first item comes.
    """

    __slots__ = (
        "contexts",
        "held",
        "held_end",
        "keys_freed",
        "keys_given_up",
        "letters",
        "limited",
        "limits_withdrawn",
        "next_life",
        "outlasting",
        "pausing",
        "queued",
        "rows_read",
        "stale_waits",
        "tasks",
        "telling",
        "turns",
        "unversioned",
        "withdrawn",
    )

    def __init__(self) -> None:
        # For the next commit of the run.
        self.tasks: list[NewTask] | tuple[()] = ()
        """Attempts to put into queues."""
        self.withdrawn: list[str] | tuple[()] = ()
        """Locations of attempts to take out of queues again."""
        self.keys_given_up: list[LeaveKey] | tuple[()] = ()
        self.letters: list[NewLetter] | tuple[()] = ()
        """Dead letters to write."""
        self.limits_withdrawn: list[tuple[str, Instant]] | tuple[()] = ()
        """Locations of steps that wait for limits no longer, and the lease's time."""
        self.rows_read: list[int] | tuple[()] = ()
        """Numbers of inbox rows that the engine itself has acted on, to be deleted."""
        self.stale_waits: frozenset[str] = _NO_NAMES
        """Names of events that came: the store may have deleted the wait of another receive than took them."""
        self.unversioned = False
        """Whether the row does not say yet which version of the workflow runs: a client without the code started it."""
        # For longer.
        self.held: dict[str, StepVerb] = {}
        """Steps that wait for an idempotency key that another step holds."""
        self.keys_freed: frozenset[str] = _NO_NAMES
        """Locations whose key was said to be free before it was known here that they wait for it."""
        self.limited: dict[str, StepVerb] | None = None
        """Steps that wait for a limit that is shared."""
        self.turns: dict[str, Message] | None = None
        """Turns that came before it was known here that their steps wait, by location."""
        self.queued: dict[str, StepVerb] = {}
        """Steps whose attempt is in a queue, or with the worker that took it from there."""
        self.contexts: dict[str, StepContext] | None = None
        """Of the attempts under way whose activities are told what comes of them."""
        self.telling: dict[str, Telling] | None = None
        """What they are being told."""
        self.next_life: list[EntryRow] | tuple[()] = ()
        """The first entries of the life that follows this one."""
        self.pausing: Pausing | None = None
        self.outlasting: dict[str, Attempt] | None = None
        """Attempts of a cancelled run that nothing can interrupt: its end waits for them."""
        self.held_end: Turn | None = None
        """That end."""

    def written(self, pausing: bool) -> None:
        """Forget what went into a commit; what operators asked stays in the inbox until a pause is in force."""
        self.tasks = self.withdrawn = self.keys_given_up = self.letters = self.limits_withdrawn = ()
        if not pausing:
            self.rows_read = ()
        self.stale_waits = _NO_NAMES
        self.unversioned = False

    @property
    def empty(self) -> bool:
        """Whether nothing is left to keep it for."""
        return not (
            self.tasks or self.withdrawn or self.keys_given_up or self.letters or self.limits_withdrawn
            or self.rows_read or self.stale_waits or self.unversioned
            or self.held or self.keys_freed or self.limited or self.turns or self.queued or self.contexts
            or self.telling or self.next_life or self.pausing or self.outlasting or self.held_end
        )  # fmt: skip


def extended(items: list[T] | tuple[()], more: Iterable[T]) -> list[T]:
    """Extend a list that is made when the first item comes."""
    if not items:
        return [*more]
    items.extend(more)
    return items
