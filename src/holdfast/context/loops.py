"""Durable loops: state that survives, history that does not grow."""

from __future__ import annotations

import asyncio
import inspect
import logging
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
from holdfast.replay.verbs import error_of, expect_await, never_awaited

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

    awaited: bool

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
        self._said = journal.has_mark(location, entries.LoopKept.kind)
        """Whether the history has it that something keeps this loop from forgetting."""
        self.current: Any = None
        """The iteration of an `async for` that is under way."""
        self.left = False
        """Whether the code of an `async for` used the context around the loop, as it may after `break`."""

    def leave(self) -> None:
        """Note that the code of an `async for` uses the context around the loop, as it may after `break`."""
        if not self.left:
            self.left = True
            self.current = None
            self._scope.note_end(self._location + "/")

    def note_awaited(self) -> None:
        """Note that the code awaits it or iterates over it."""
        self.awaited = True
        if self._journal.loop.ended_alone:
            self._journal.loop.ended_alone.pop(self._location, None)

    def __await__(self) -> Generator[Any, Any, Any]:
        self.note_awaited()
        if self._body is None:
            raise BadInput('`await ctx.loop(...)` needs a body: ctx.loop("name", body, state=...)')
        return self._run(self._body).__await__()

    def __aiter__(self) -> DurableLoop:
        self.note_awaited()
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
        elif self.current is not None:
            self._next(self.current.state)
        scope = Scope(iteration_prefix(self._location, self._iteration), self._scope, self)
        SCOPE.set(scope)
        self.current = self._make(scope, index=self._iteration, state=self._state)
        return self.current

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
        if not (commit or trim) or journal.violation:
            return
        self._refuse_forgotten()
        if journal.replaying:
            return
        hindrance = self._hindrance()
        if hindrance:
            self._say(hindrance)
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

    def _refuse_forgotten(self) -> None:
        """Fail if a past iteration called something and never awaited it: a replay from here would not know.

        What history passed it passes: an older holdfast did not look.
        """
        journal = self._journal
        low, high = iterations(self._location, 0, self._iteration)
        call = never_awaited(journal, journal.loop.within, low=low, high=high)
        if call is None:
            return
        if not journal.past.strict:
            journal.mark(call.location, entries.Forgotten())
        elif not journal.has_mark(call.location, entries.Forgotten.kind):
            return
        raise error_of(journal, call)

    def _hindrance(self) -> str:
        """Return why a replay cannot begin at this iteration: what shares what the past ones did; empty if it can."""
        journal, current = self._journal, asyncio.current_task()
        if not isinstance(current, RunTask):
            return "it runs in no task"
        live = journal.loop.live_tasks()
        for task in live:
            prefix = task.scope.prefix if task.scope else ""
            if task is current:
                continue
            if inside(prefix, self._location):
                return f"{task.get_name()}, begun in an iteration, goes on after it"
            if not task.structural and self._location.startswith(prefix):
                return f"{task.get_name()} runs beside it"
        if not current.structural and not any(_waits_for(task, current) for task in live):
            return f"it runs in {current.get_name()}, beside the code that began that"
        low, high = iterations(self._location, 0, self._iteration)
        left = next((verb for location, verb in journal.open.items() if low <= location < high), None)
        return f"{left.word} {journal.names.path(left.location)!r} is still open" if left is not None else ""

    def _say(self, hindrance: str) -> None:
        """Say, once for each loop, that its history grows."""
        if self._said:
            return
        self._said, journal = True, self._journal
        journal.mark(self._location, entries.LoopKept(hindrance))
        text = "loop %r keeps its whole history as long as %s"
        journal.turn.log((logging.WARNING, text, (self._path(), hindrance), ""))

    def _through_codec(self, state: Any) -> Any:
        where = f"the state of loop {self._path()!r}"
        return codec.decode(codec.encode(state, where), self._type, where)

    def _path(self) -> str:
        return self._journal.names.path(self._location)


def _waits_for(task: RunTask, other: RunTask) -> bool:
    """Tell whether a task does nothing but wait for another: awaited, in gather, a TaskGroup, wait_for or wait."""
    waiter = getattr(task, "_fut_waiter", None)
    if waiter is other or other in getattr(waiter, "_children", ()):
        return True
    coro: Any = task.get_coro()
    frame: Any = None
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None) or frame
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)
    if frame is None or not frame.f_code.co_filename.startswith(_ASYNCIO):
        return False
    held = frame.f_locals
    return other is held.get("fut") or other in (held.get("fs") or getattr(held.get("self"), "_tasks", None) or ())


_ASYNCIO = asyncio.__file__.rpartition("__init__")[0]


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
    durable = DurableLoop(journal, scope, make, rest[0] if rest else None, state, options, location)
    expect_await(journal, durable, "loop", location)
    return durable


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
