"""Durable loops: state that survives, history that does not grow."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.context.api import MISSING, Break, Continue, Loop
from holdfast.errors import BadInput, HoldfastError, RunBlocked
from holdfast.payloads import codec
from holdfast.replay import entry as entries
from holdfast.replay.journal import Gate, Journal
from holdfast.replay.location import Scope, check_name, checkpoint_location, inside, iteration_prefix, iterations
from holdfast.replay.loop import SCOPE, RunTask

_PLAIN = frozenset({dict, list, str, int, float, bool, type(None)})


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How often a loop records its state, and how much of its history it keeps."""

    commit_interval: int
    history_every: int
    history_keep: int

    def __post_init__(self) -> None:
        for field in ("commit_interval", "history_every", "history_keep"):
            value = getattr(self, field)
            if not isinstance(value, int) or value < 1:
                raise BadInput(f"{field} must be a whole number of at least 1, not {value!r}")


class DurableLoop(Loop):
    """One loop of one run."""

    def __init__(
        self,
        journal: Journal,
        scope: Scope,
        make: Callable[..., Any],
        body: Callable[..., Any] | None,
        state: Any,
        options: LoopOptions,
        location: str,
    ) -> None:
        self._journal = journal
        self._scope = scope
        self._make = make
        self._body = body
        self._options = options
        self._location = location
        self._stateless = state is MISSING
        self._type = _state_type(body, state)
        self._trimmed = 0
        self._iteration = 0
        self._state = self._through_codec(None if self._stateless else state)
        self._gate = journal.gate(location)
        self._current: Any = None
        self.left = False
        """Whether the code of an `async for` used the context around the loop, as it may after `break`."""

    def leave(self) -> None:
        """Note that the code of an `async for` uses the context around the loop, as it may after `break`."""
        if not self.left:
            self.left = True
            self._scope.note_end(self._location + "/")

    def __await__(self) -> Generator[Any, Any, Any]:
        if self._body is None:
            raise BadInput('`await ctx.loop(...)` needs a body: ctx.loop("name", body, state=...)')
        return self._run(self._body).__await__()

    def __aiter__(self) -> DurableLoop:
        if self._body is not None:
            raise BadInput("`async for` over ctx.loop(...) takes no body function; leave it out")
        return self

    async def __anext__(self) -> Any:
        if self.left:
            raise BadInput(
                f"loop {self._path()!r}: inside `async for it in ctx.loop(...)` call the verbs on `it`, "
                "not on the outer ctx"
            )
        if self._gate is not None:
            await self._resume(self._gate)
        elif self._current is not None:
            self._next(self._current.state)
        scope = Scope(iteration_prefix(self._location, self._iteration), self._scope, self)
        SCOPE.set(scope)
        self._current = self._make(scope, index=self._iteration, state=self._state)
        return self._current

    async def _run(self, body: Callable[..., Any]) -> Any:
        if self._gate is not None:
            await self._resume(self._gate)
        while True:
            scope = Scope(iteration_prefix(self._location, self._iteration))
            ctx = self._make(scope)
            token = SCOPE.set(scope)
            try:
                result = await (body(ctx) if self._stateless else body(ctx, self._state))
            finally:
                SCOPE.reset(token)
            if isinstance(result, Break):
                self._journal.mark(self._location, entries.LoopEnded(self._iteration + 1))
                self._scope.note_end(self._location + "/")
                return result.value
            if isinstance(result, Continue):
                self._next(result.state)
            elif result is None and self._stateless:
                self._next(None)
            else:
                raise BadInput(
                    f"the body of loop {self._path()!r} must return Continue(state) or Break(value), not {result!r}"
                )

    async def _resume(self, gate: Gate) -> None:
        """Wait until replay comes to the recorded state, and go on from it."""
        while not gate.done():
            try:
                await gate
            except asyncio.CancelledError:  # see Gate.cancel
                continue
        self._gate = None
        checkpoint = gate.result()
        self._iteration, self._trimmed = checkpoint.iteration, checkpoint.trimmed
        try:
            self._state = codec.decode(bytes(checkpoint.state), self._type, f"the state of loop {self._path()!r}")
        except HoldfastError as error:
            run = self._journal.run.id
            self._journal.block(
                RunBlocked(run, f"run {run}: the recorded state of loop {self._path()!r} does not fit: {error}")
            )
            await self._journal.loop.create_future()

    def _next(self, state: Any) -> None:
        """End an iteration: record the state and trim the history where that is due and safe."""
        self._state = self._through_codec(state)
        self._iteration += 1
        options, journal = self._options, self._journal
        commit = self._iteration % options.commit_interval == 0
        trim = self._iteration % options.history_every == 0
        if not (commit or trim) or journal.replaying or journal.violation or not self._isolated():
            return
        location, keep_from = self._location, self._iteration - options.history_keep
        if trim and keep_from > self._trimmed:
            low, high = iterations(location, self._trimmed, keep_from)
            journal.turn.trim(low, high)
            self._trimmed = keep_from
        place = checkpoint_location(location)
        journal.turn.trim(place, place + " ")
        raw = msgspec.Raw(codec.encode(self._state, f"the state of loop {self._path()!r}"))
        journal.record(place, entries.LoopCheckpoint(self._iteration, self._trimmed, raw))

    def _isolated(self) -> bool:
        """Tell whether a replay may begin at this iteration: nothing outside shares what the past iterations did."""
        current = asyncio.current_task()
        if not isinstance(current, RunTask) or not current.structural:
            return False
        for task in self._journal.loop.live_tasks():
            if task is current:
                continue
            prefix = task.scope.prefix if task.scope else ""
            if inside(prefix, self._location) or (not task.structural and self._location.startswith(prefix)):
                return False
        low, high = iterations(self._location, 0, self._iteration)
        return not any(low <= location < high for location in self._journal.open)

    def _through_codec(self, state: Any) -> Any:
        where = f"the state of loop {self._path()!r}"
        return codec.decode(codec.encode(state, where), self._type, where)

    def _path(self) -> str:
        return self._journal.names.path(self._location)


class NeverLoop(Loop):
    """The loop of a run that goes no further."""

    def __init__(self, never: Awaitable[Any]) -> None:
        self._never = never

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._never.__await__()

    def __aiter__(self) -> NeverLoop:
        return self

    async def __anext__(self) -> Any:
        return await self._never


def loop(
    journal: Journal, scope: Scope, make: Callable[..., Any], args: tuple[Any, ...], state: Any, options: LoopOptions
) -> DurableLoop:
    """Begin a loop, or find in history where it stands."""
    name = check_name(args[0], "loop name") if args and isinstance(args[0], str) else None
    rest = args[1:] if name else args
    if len(rest) > 1 or (rest and not callable(rest[0])):
        raise BadInput('ctx.loop takes an optional name and an optional body: ctx.loop("name", body, state=...)')
    location = journal.locate(scope, name or "loop", name is not None)
    journal.begin(location, entries.LoopBegun())
    scope.note_call(location + "/")
    return DurableLoop(journal, scope, make, rest[0] if rest else None, state, options, location)


def _state_type(body: Callable[..., Any] | None, state: Any) -> Any:
    if body is not None and state is not MISSING:
        parameters = list(inspect.signature(body).parameters)
        try:
            hints = typing.get_type_hints(body)
        except Exception:
            hints = {}
        if len(parameters) > 1 and parameters[1] in hints:
            return hints[parameters[1]]
    return Any if state is MISSING or type(state) in _PLAIN else type(state)
