"""Join and race: named branches that run at once."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from holdfast.context.api import Winner
from holdfast.errors import BadInput, JoinError, RaceError
from holdfast.payloads.errors import error_text
from holdfast.replay import entry as entries
from holdfast.replay.journal import Journal
from holdfast.replay.location import Scope, check_name
from holdfast.replay.loop import SCOPE, RunTask
from holdfast.replay.verbs import CallTask, expect_await

Branch = Callable[[Any], Awaitable[Any]]
MakeContext = Callable[[Scope], Any]


def join(journal: Journal, scope: Scope, make: MakeContext, args: tuple[Any, ...]) -> Awaitable[dict[str, Any]]:
    """Start every branch and return the task that waits for all of them."""
    name, branches = _arguments("join", args)
    location = _begin(journal, scope, name, "join", entries.JoinBegun(list(branches)))
    if journal.violation is not None:
        return journal.loop.create_future()
    team = _Team(journal, scope, make, location, branches)
    task = _task(journal, "join", location, _join(team))
    expect_await(journal, task, "join", location)
    return task


def race(journal: Journal, scope: Scope, make: MakeContext, args: tuple[Any, ...]) -> Awaitable[Winner[Any]]:
    """Start every branch and return the task that waits for the first of them."""
    name, branches = _arguments("race", args)
    if not branches:
        raise BadInput("ctx.race() needs at least one branch")
    location = _begin(journal, scope, name, "race", entries.RaceBegun(list(branches)))
    if journal.violation is not None:
        return journal.loop.create_future()
    team = _Team(journal, scope, make, location, branches)
    task = _task(journal, "race", location, _race(team))
    expect_await(journal, task, "race", location)
    return task


class _Team:
    """The branches of one join or race, and what became of them, in order of completion."""

    def __init__(
        self, journal: Journal, scope: Scope, make: MakeContext, location: str, branches: Mapping[str, Branch]
    ) -> None:
        self.journal = journal
        self.scope = scope
        self.location = location
        self.results: dict[str, Any] = {}
        self.errors: dict[str, BaseException] = {}
        self.first: asyncio.Future[None] = journal.loop.create_future()
        self.all: asyncio.Future[None] = journal.loop.create_future()
        self.tasks: dict[str, RunTask] = {}
        self._open = len(branches)
        inside = Scope(location + "/")
        for name, branch in branches.items():
            place = journal.locate(inside, name, True)
            inner = Scope(place + "/")
            context = contextvars.copy_context()
            context.run(SCOPE.set, inner)
            coro = context.run(_run, branch, make(inner))
            task = journal.loop.create_task(coro, name=f"branch {name}", context=context, structural=True)
            task.add_done_callback(partial(self._ended, name, place))
            self.tasks[name] = task

    def _ended(self, name: str, place: str, task: asyncio.Task[Any]) -> None:
        self._open -= 1
        if task.cancelled():
            status = "cancelled"
            self.errors[name] = asyncio.CancelledError("the branch was cancelled")
        elif (error := task.exception()) is not None:
            status = "failed"
            self.errors[name] = error
        else:
            status = "completed"
            self.results[name] = task.result()
        self.journal.mark(place, entries.BranchEnded(status))
        if not self.first.done() and (status == "completed" or not self._open):
            self.first.set_result(None)
        if not self._open and not self.all.done():
            self.all.set_result(None)

    def stop(self) -> None:
        """Cancel the branches that are still running, in order of creation."""
        for task in self.tasks.values():
            task.cancel()

    async def wait(self, what: asyncio.Future[None]) -> None:
        """Wait; if that is cancelled, cancel the branches and let them clean up first."""
        try:
            await asyncio.shield(what)
            self.scope.note_end(self.location + "/")
        except asyncio.CancelledError:
            self.stop()
            if not self.all.done():
                await asyncio.shield(self.all)
            raise


def _task(journal: Journal, word: str, location: str, coro: Coroutine[Any, Any, Any]) -> RunTask:
    name = f"{word} {journal.names.path(location)}"
    return journal.loop.create_task(coro, name=name, structural=True, kind=CallTask)


async def _run(branch: Branch, ctx: Any) -> Any:
    return await branch(ctx)


async def _join(team: _Team) -> dict[str, Any]:
    if team.tasks:
        await team.wait(team.all)
    if team.errors:
        errors = {name: team.errors[name] for name in team.tasks if name in team.errors}
        listed = "; ".join(f"{name}: {error_text(error)}" for name, error in errors.items())
        raise JoinError(f"{len(errors)} of {len(team.tasks)} branches failed: {listed}", errors)
    return {name: team.results[name] for name in team.tasks}


async def _race(team: _Team) -> Winner[Any]:
    await team.wait(team.first)
    if not team.results:
        listed = "; ".join(f"{name}: {error_text(error)}" for name, error in team.errors.items())
        raise RaceError(f"every branch failed: {listed}", team.errors)
    winner, value = next(iter(team.results.items()))
    team.journal.mark(team.location, entries.RaceWon(winner))
    team.stop()
    return Winner(winner, value)


def _arguments(verb: str, args: tuple[Any, ...]) -> tuple[str | None, Mapping[str, Branch]]:
    name, branches = (None, args[0]) if len(args) == 1 else args if len(args) == 2 else (None, None)
    if not isinstance(branches, Mapping) or not (name is None or isinstance(name, str)):
        raise BadInput(f'ctx.{verb} takes a mapping of branches: ctx.{verb}("name", {{"a": branch_a, "b": branch_b}})')
    for key, branch in branches.items():
        check_name(key, "branch name")
        if not callable(branch):
            raise BadInput(f"branch {key!r} of ctx.{verb} must be a function that takes a Context, not {branch!r}")
    return name, branches


def _begin(journal: Journal, scope: Scope, name: str | None, word: str, call: entries.Entry) -> str:
    location = journal.locate(scope, check_name(name, f"{word} name") if name else word, name is not None)
    recorded = journal.begin(location, call)
    scope.note_call(location + "/")
    if recorded is not None and recorded is not call and set(recorded.branches) - set(call.branches):  # type: ignore[attr-defined]  # both are joins or races
        gone = sorted(set(recorded.branches) - set(call.branches))  # type: ignore[attr-defined]
        journal.mismatch(location, f"a {word} with branches {recorded.branches}", f"one without {gone}")
    return location
