"""Context: the verbs of workflow code.

A verb takes its place in the run's history when it is called, not when it is awaited, so verbs can be gathered, raced,
stored and awaited later like any awaitable. Between verbs the code must be deterministic: time, randomness and the
outside world come only through here.

A new verb is an abstract method here, a thin method in `run_context.py`, its code beside similar verbs (`waits.py`,
`steps.py`, `children.py` ...) and, if it is recorded in a new way, an entry in `replay/entry.py`.
"""

from __future__ import annotations

import logging
import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, NoReturn, ParamSpec, TypeVar, Unpack, overload

from holdfast.context.values import MISSING as MISSING
from holdfast.context.values import Break as Break
from holdfast.context.values import Child as Child
from holdfast.context.values import ChildKeywords as ChildKeywords
from holdfast.context.values import Continue as Continue
from holdfast.context.values import Request as Request
from holdfast.context.values import Winner as Winner
from holdfast.definitions import Workflow
from holdfast.definitions.takes import Takes0, Takes1, Takes2, Takes3, TakesMore
from holdfast.errors import ChildFailed

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D")
S = TypeVar("S")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class Context(ABC):
    """The verbs of one run, in one scope of it."""

    @property
    @abstractmethod
    def run_id(self) -> str:
        """The id of this run."""

    @property
    @abstractmethod
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that is silent on replay; a line appears once the turn that wrote it is durable."""

    @property
    @abstractmethod
    def replaying(self) -> bool:
        """Whether the code is being replayed, to reach the point where it was; for telemetry only.

        Code whose calls depend on it does not fit its own history.
        """

    @overload
    def step(self, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    @overload
    def step(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...
    @overload
    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    @abstractmethod
    def step(self, function: Any, /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Run a function once and record its result for ever.

        The body runs outside the workflow, may do anything, and is retried by its policy. A recorded result is never
        computed again. The body gets copies of the arguments; if its activity has a `queue`, it runs on a worker that
        serves the queue. An exception keeps its class if that is a builtin or registered (`raises=`,
        `Engine(errors=)`); otherwise StepFailed is raised.
        """

    @overload
    def background(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    def background(self, name: str, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @abstractmethod
    def background(self, function: Any, /, *args: Any, **kwargs: Any) -> None:
        """Begin a step and do not wait for it.

        The run ends only after the step, unless it is cancelled. If the step fails for good, that is a dead letter,
        and does not affect the run.
        """

    @abstractmethod
    def sleep(self, duration: timedelta, *, name: str | None = None) -> Awaitable[None]:
        """Wait, durably: across restarts, deploys and months."""

    @abstractmethod
    def sleep_until(self, moment: datetime, *, name: str | None = None) -> Awaitable[None]:
        """Wait until an aware datetime; one in the past is over at once."""

    @overload
    def receive(self, name: str, type: type[T], /, *, timeout: timedelta | None = None) -> Awaitable[T]: ...
    @overload
    def receive(
        self, name: str, type: type[T], /, *, timeout: timedelta | None = None, default: D
    ) -> Awaitable[T | D]: ...
    @overload
    def receive(self, name: str, /, *, timeout: timedelta | None = None, default: Any = MISSING) -> Awaitable[Any]: ...
    @overload
    def receive(
        self,
        names: Sequence[str],
        types: Mapping[str, Any] | None = None,
        /,
        *,
        timeout: timedelta | None = None,
    ) -> Awaitable[tuple[str, Any]]: ...
    @overload
    def receive(
        self,
        names: Sequence[str],
        types: Mapping[str, Any] | None = None,
        /,
        *,
        timeout: timedelta | None = None,
        default: D,
    ) -> Awaitable[tuple[str, Any] | D]: ...
    @abstractmethod
    def receive(
        self, name: Any, type: Any = Any, /, *, timeout: timedelta | None = None, default: Any = MISSING
    ) -> Any:
        """Take the oldest message with this name, waiting for one if there is none.

        With several names, the oldest message of any of them is taken and (name, value) returned; the others stay
        queued. After `timeout` the default is returned if one was given; otherwise ReceiveTimeout is raised. A timeout
        of zero polls once. A message that arrived in time is taken even if the run looks late. None is an ordinary
        value.

        Messages sent to this run come first, then events published under the name.
        """

    @overload
    def receive_request(
        self, name: str, type: type[T], /, *, timeout: timedelta | None = None
    ) -> Awaitable[Request[T]]: ...
    @overload
    def receive_request(
        self, name: str, type: type[T], /, *, timeout: timedelta | None = None, default: D
    ) -> Awaitable[Request[T] | D]: ...
    @overload
    def receive_request(
        self, name: str, /, *, timeout: timedelta | None = None, default: Any = MISSING
    ) -> Awaitable[Any]: ...
    @abstractmethod
    def receive_request(
        self, name: str, type: Any = Any, /, *, timeout: timedelta | None = None, default: Any = MISSING
    ) -> Any:
        """Take a message as `receive` does, together with the id for its reply."""

    @abstractmethod
    def reply(self, request: Request[Any], value: object = None) -> None:
        """Answer a request; the caller gets the value once this turn is durable. The first answer counts."""

    @abstractmethod
    def send(self, run_id: str, name: str, payload: object = None) -> Awaitable[None]:
        """Send a message to another run.

        Raises, when awaited: NoSuchRun, RunTerminal.
        """

    @abstractmethod
    def publish(self, name: str, payload: object = None, *, id: str | None = None) -> Awaitable[None]:
        """Publish an event for the runs that receive under this name, now or later.

        An event with an `id` is published once, however many runs publish it.

        Raises, when awaited: QueueFull.
        """

    @overload
    def join(self, branches: Mapping[str, Callable[[Context], Awaitable[T]]], /) -> Awaitable[dict[str, T]]: ...
    @overload
    def join(
        self, name: str, branches: Mapping[str, Callable[[Context], Awaitable[T]]], /
    ) -> Awaitable[dict[str, T]]: ...
    @abstractmethod
    def join(self, *args: Any) -> Awaitable[dict[str, Any]]:
        """Run named branches at once and wait for all of them, even after a failure.

        Each branch is given a Context of its own. Raises JoinError with every failed branch by name.
        """

    @overload
    def race(self, branches: Mapping[str, Callable[[Context], Awaitable[T]]], /) -> Awaitable[Winner[T]]: ...
    @overload
    def race(self, name: str, branches: Mapping[str, Callable[[Context], Awaitable[T]]], /) -> Awaitable[Winner[T]]: ...
    @abstractmethod
    def race(self, *args: Any) -> Awaitable[Winner[Any]]:
        """Run named branches at once; the first to complete wins and the others are cancelled.

        Raises RaceError with every error by name when all of them fail.
        """

    @overload
    def loop(
        self,
        name: str,
        body: Callable[[Context, S], Awaitable[Continue[S] | Break[T]]],
        /,
        *,
        state: S,
        commit_interval: int = 20,
        history_every: int = 20,
        history_keep: int = 20,
    ) -> Awaitable[T]: ...
    @overload
    def loop(
        self,
        name: str,
        /,
        *,
        state: S,
        commit_interval: int = 20,
        history_every: int = 20,
        history_keep: int = 20,
    ) -> AsyncIterable[Iteration[S]]: ...
    @overload
    def loop(
        self,
        *args: Any,
        state: Any = MISSING,
        commit_interval: int = 20,
        history_every: int = 20,
        history_keep: int = 20,
    ) -> Loop: ...
    @abstractmethod
    def loop(
        self,
        *args: Any,
        state: Any = MISSING,
        commit_interval: int = 20,
        history_every: int = 20,
        history_keep: int = 20,
    ) -> Any:
        """Repeat with durable state and a history that does not grow.

        `await ctx.loop("poll", body, state=0)`: body(ctx, state) returns Continue(new_state) or Break(value).
        `async for it in ctx.loop("poll", state=0)`: call verbs on `it`, set `it.state`, leave with `break`.

        Every `commit_interval` iterations the state is recorded, and a restart resumes there; every `history_every`
        iterations all but the last `history_keep` are removed from the history. Only the state crosses iterations: an
        outer variable that the body changes is outside the contract.
        """

    # For type checkers: as of Engine.start.
    @overload
    def child(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Child[R]: ...
    @overload
    def child(
        self, workflow: Takes0[R], /, *, propagate: Literal[True] = True, **options: Unpack[ChildKeywords]
    ) -> Child[R]: ...
    @overload
    def child(
        self, workflow: Takes1[A, R], a: A, /, *, propagate: Literal[True] = True, **options: Unpack[ChildKeywords]
    ) -> Child[R]: ...
    @overload
    def child(
        self,
        workflow: Takes2[A, B, R],
        a: A,
        b: B,
        /,
        *,
        propagate: Literal[True] = True,
        **options: Unpack[ChildKeywords],
    ) -> Child[R]: ...
    @overload
    def child(
        self,
        workflow: Takes3[A, B, C, R],
        a: A,
        b: B,
        c: C,
        /,
        *,
        propagate: Literal[True] = True,
        **options: Unpack[ChildKeywords],
    ) -> Child[R]: ...
    @overload
    def child(
        self,
        workflow: TakesMore[R],
        a: Any,
        b: Any,
        c: Any,
        d: Any,
        /,
        *more: Any,
        propagate: Literal[True] = True,
        **options: Unpack[ChildKeywords],
    ) -> Child[R]: ...
    @overload
    def child(
        self, workflow: Takes0[R], /, *, propagate: bool, **options: Unpack[ChildKeywords]
    ) -> Child[R | ChildFailed]: ...
    @overload
    def child(
        self, workflow: Takes1[A, R], a: A, /, *, propagate: bool, **options: Unpack[ChildKeywords]
    ) -> Child[R | ChildFailed]: ...
    @overload
    def child(
        self, workflow: Takes2[A, B, R], a: A, b: B, /, *, propagate: bool, **options: Unpack[ChildKeywords]
    ) -> Child[R | ChildFailed]: ...
    @overload
    def child(
        self, workflow: Takes3[A, B, C, R], a: A, b: B, c: C, /, *, propagate: bool, **options: Unpack[ChildKeywords]
    ) -> Child[R | ChildFailed]: ...
    @overload
    def child(
        self,
        workflow: TakesMore[R],
        a: Any,
        b: Any,
        c: Any,
        d: Any,
        /,
        *more: Any,
        propagate: bool,
        **options: Unpack[ChildKeywords],
    ) -> Child[R | ChildFailed]: ...
    @overload
    def child(
        self, workflow: TakesMore[R], /, *, id: str, propagate: Literal[True] = True, **more: Any
    ) -> Child[R]: ...
    @overload
    def child(
        self, workflow: Takes1[A, R], a: A, /, *, id: str, propagate: Literal[True] = True, **more: Any
    ) -> Child[R]: ...
    @overload
    def child(self, workflow: TakesMore[R], /, *, id: str, propagate: bool, **more: Any) -> Child[R | ChildFailed]: ...
    @overload
    def child(
        self, workflow: Takes1[A, R], a: A, /, *, id: str, propagate: bool, **more: Any
    ) -> Child[R | ChildFailed]: ...
    @overload
    def child(self, workflow: str, /, *args: Any, **kwargs: Any) -> Child[Any]: ...
    @abstractmethod  # type: ignore[misc]  # a parameter named like an option goes by position
    def child(
        self,
        workflow: Any,
        /,
        *args: Any,
        id: str | None = None,
        propagate: bool | None = None,
        cancel_with_parent: bool = False,
        priority: int = 0,
        attributes: Mapping[str, str | int | float | bool] | None = None,
        **kwargs: Any,
    ) -> Child[Any]:
        """Start another workflow as a child run, exactly once.

        Await it for its result; ChildFailed is raised if it failed or was cancelled, or returned as a value with
        `propagate=False` (None: as `Engine(propagate_child_failures=)` says, which is True). If it is not awaited, it
        runs on its own and its failure does not reach this run. It goes on when this run is cancelled, unless
        `cancel_with_parent`.
        Pass a workflow's parameter that is named like one of these by position.
        """

    @overload
    def compensate(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    def compensate(self, step: str, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @abstractmethod
    def compensate(self, function: Any, /, *args: Any, **kwargs: Any) -> None:
        """Register what undoes a step: it runs as a step itself if this run fails later.

        Call it after the step that it undoes: the step that ended last in this branch, or was called last if none has
        ended since, and that no other compensation undoes. If several end side by side, name the step:
        `ctx.compensate("charge", refund, 500)`. The name of a join, race or loop means everything in it.

        Compensations run in reverse order, one at a time, retried by the policy of their activity; one that fails does
        not stop the others. The run then ends failed, and shows the outcome of each. A cancelled run is undone only if
        the cancel asked for it.

        A compensation outlives the loop, the lost branch or the life (`continue_as_new`) that registered it. The
        arguments are recorded, and decoded by the function's annotations; the function is found again by its name.
        """

    @abstractmethod
    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """End this life of the run and begin again with new input and an empty history, under the same id."""

    @abstractmethod
    def patched(self, name: str) -> bool:
        """Return whether this run takes a new path: True for runs that come here for the first time."""

    @abstractmethod
    def removed(
        self,
        name: str,
        kind: Literal["step", "sleep", "receive", "send", "publish", "child", "join", "race", "loop"] = "step",
    ) -> None:
        """Keep the place of a call that this code no longer makes but old runs have in their history."""

    @abstractmethod
    def set_attributes(
        self,
        attributes: Mapping[str, str | int | float | bool | None] | None = None,
        /,
        **more: str | int | float | bool | None,
    ) -> None:
        """Set attributes by which this run can be found; None removes one, the others stay."""

    @abstractmethod
    def evidence(self, kind: str, data: object = None) -> str:
        """Add an item to the run's audit trail, which cannot be changed unnoticed, and return its id."""

    @abstractmethod
    def progress(self, done: float, of: float | None = None) -> None:
        """Report how far the run has come, and of how much, for `run.progress()`. It is recorded with the next step.

        Nothing depends on it: you may add, move and remove it under open runs.
        """

    @abstractmethod
    def on_query(self, name: str, handler: Callable[..., object]) -> None:
        """Answer queries about the state of this run with a plain function that reads it and changes nothing.

        It is called between turns, with the arguments of the query, even after the run has ended; verbs called in it
        raise BadInput. The last handler registered under a name answers.
        """

    @abstractmethod
    def now(self) -> datetime:
        """Return the run's time: that of the last fact applied. It never goes back."""

    @abstractmethod
    def random(self) -> random.Random:
        """Return a source of randomness that draws the same numbers on replay."""

    @abstractmethod
    def uuid(self) -> uuid.UUID:
        """Return a new UUID, the same one on replay."""


class Iteration(Context, Generic[S]):
    """One iteration of an `async for` over `ctx.loop`: a Context of its own with the loop's state."""

    index: int
    state: S


class Loop(Awaitable[Any], ABC):
    """A durable loop: await it (with a body function) or iterate over it with `async for`."""

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Any]:
        """Begin the next iteration each time round."""
