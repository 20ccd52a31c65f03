"""Compensations: registering what to undo if the run fails later, and undoing it."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from holdfast.context.references import find_activity
from holdfast.context.steps import StepVerb
from holdfast.context.undone_calls import claim, disclaim
from holdfast.definitions import Activity, Workflow, as_activity, function_name
from holdfast.errors import BadInput, HoldfastError, RunBlocked
from holdfast.payloads import codec
from holdfast.payloads.errors import error_text
from holdfast.replay import entry as entries
from holdfast.replay.journal import Compensation, Journal
from holdfast.replay.location import Scope, check_name, is_undoing, name_key
from holdfast.replay.loop import SCOPE

_PIECES = msgspec.json.Decoder(list[msgspec.Raw])
_NAMED_PIECES = msgspec.json.Decoder(dict[str, msgspec.Raw])


class UndoVerb(StepVerb):
    """A step that undoes: its end is the result, for one that fails does not stop the others."""

    __slots__ = ("where",)
    where: str

    @property
    def call(self) -> str:
        # Places on the stack shift when a run does things again in another order; the call that asks for it does not.
        return self.where or self.location

    def apply(self, entry: Any) -> None:
        self.set_result(entry)


class NotAwaited:
    """What `ctx.compensate` returns: nothing, but it says so to code that awaits it."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __await__(self) -> Iterator[None]:
        raise BadInput(f"ctx.compensate({self._name}, ...) only notes what to undo: write it without `await`")


def compensate(journal: Journal, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NotAwaited:
    """Put something to undo on the run's stack, or find in history that it is there."""
    step, function, args = _parted(args)
    undoes = _named(journal, scope, step) if step is not None else None
    activity = function if isinstance(function, Activity) else as_activity(function)
    name = check_name(activity.name, "activity name")
    where = f"the arguments of compensation {name!r}"
    given, named = msgspec.Raw(codec.encode(args, where)), msgspec.Raw(codec.encode(kwargs, where))
    place = journal.locate(scope, f"compensate {name}", False)
    added = entries.CompensationAdded(place, name, given, named)
    compensation = journal.registered(place)
    if compensation is None:
        activity.check_call(args, kwargs, f"compensation {name!r}{journal.at_line()}")
        _arguments(activity, added)  # better now than when it is needed
        undoes = claim(journal, scope) if undoes is None else undoes
        compensation = journal.register(msgspec.structs.replace(added, undoes=undoes))
    else:
        disclaim(journal, scope, compensation.entry.undoes)
        if activity.settings.check_args and not _same_arguments(activity, compensation.entry, added, args, kwargs):
            journal.mismatch(
                place,
                f"compensation {name!r} with other arguments",
                f"these: {bytes(given).decode()} {bytes(named).decode()}",
                "pass the same arguments, or use check_args=False",
            )
    if compensation is not None:
        compensation.activity = activity
    return NotAwaited(name)


def _parted(args: tuple[Any, ...]) -> tuple[str | None, Any, tuple[Any, ...]]:
    """Return the name of the step, if it is given, the function and its arguments."""
    if not isinstance(args[0], str):
        return None, args[0], args[1:]
    if len(args) < 2 or not callable(args[1]):
        raise BadInput(f"ctx.compensate({args[0]!r}, ...) needs a function after the name of the step that it undoes")
    return args[0], args[1], args[2:]


def _named(journal: Journal, scope: Scope, step: str) -> str:
    """Return where the call is that was made in a branch under a name."""
    name, _, repeat = step.partition("#")
    times = (scope.counts or {}).get(name, 0)
    if not times or (repeat and not (repeat.isdecimal() and 1 < int(repeat) <= times)):
        raise BadInput(f"ctx.compensate({step!r}, ...): no step {step!r} was called in this branch before")
    key = journal.names.key(name)
    assert key is not None
    location = name_key(scope.prefix, key, int(repeat or 1))
    disclaim(journal, scope, location)
    return location


async def undo(journal: Journal, workflow: Workflow[Any, Any]) -> list[dict[str, Any]]:
    """Undo what is on the stack, the last first and one at a time; return how each one went.

    Those that history has come first, in its order: what failed may be undone again after all others.
    """
    stack = list(reversed(journal.compensations or ()))
    begun = {at.partition("/")[0]: row.seq for at, row in journal.past.calls.items() if is_undoing(at)}
    report: dict[str, dict[str, Any]] = {}
    try:
        for compensation in sorted(stack, key=lambda each: begun.get(each.location, sys.maxsize)):
            ended = await _step(journal, workflow, compensation)
            failed = type(ended) is not entries.StepCompleted
            report[compensation.location] = {
                "name": compensation.entry.name,
                "status": "failed" if failed else "completed",
                "attempts": ended.attempt,
                "error": f"{ended.error.type}: {ended.error.message}" if failed else None,
            }
    except Exception as unfit:
        journal.block(
            unfit
            if isinstance(unfit, RunBlocked)
            else RunBlocked(journal.run.id, f"run {journal.run.id} cannot undo what it did: {error_text(unfit)}")
        )
        await journal.loop.create_future()
    return [report[compensation.location] for compensation in stack]


def _step(journal: Journal, workflow: Workflow[Any, Any], compensation: Compensation) -> UndoVerb:
    """Begin to undo one thing, or find it in history."""
    entry, run = compensation.entry, journal.run.id
    activity = compensation.activity or find_activity(workflow.function, entry.name)
    activity = activity or journal.activities.get(entry.name)
    if activity is None:
        raise RunBlocked(
            run,
            f"run {run} of workflow {workflow.name!r} has to undo with activity {entry.name!r}, which is not found "
            "from the workflow's code; pass it with Engine(activities=[...])",
        )
    try:
        args, kwargs = _arguments(activity, entry)
    except HoldfastError as unfit:
        message = f"the recorded arguments of compensation {entry.name!r} do not fit {function_name(activity)!r}"
        raise RunBlocked(run, f"run {run}: {message}: {unfit}") from unfit
    scope = Scope(compensation.location + "/")
    SCOPE.set(scope)
    location = journal.locate(scope, entry.name, False)
    verb = UndoVerb(journal, location, activity, args, kwargs)
    digest = codec.digest((codec.decode(bytes(entry.args)), codec.decode(bytes(entry.kwargs))))
    verb.where = entry.where
    recorded = journal.begin(location, entries.StepBegun(digest, verb.attempt))
    if journal.violation is not None:
        return verb
    if recorded is not None:
        verb.recall(recorded.attempt)
    journal.open[location] = verb
    journal.turn.start(verb)
    return verb


# The arguments, by the types that the function declares: alike whether or not this life made the call itself.


def _arguments(activity: Activity[..., Any], entry: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    type_of = _types(activity.function)
    where = f"the arguments of compensation {activity.name!r}"
    pieces, named = _PIECES.decode(bytes(entry.args)), _NAMED_PIECES.decode(bytes(entry.kwargs))
    args = tuple(codec.decode(bytes(piece), type_of(position), where) for position, piece in enumerate(pieces))
    return args, {name: codec.decode(bytes(piece), type_of(name), where) for name, piece in named.items()}


def _same_arguments(
    activity: Activity[..., Any], recorded: Any, added: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    if bytes(recorded.args) == bytes(added.args) and bytes(recorded.kwargs) == bytes(added.kwargs):
        return True
    try:
        before = _arguments(activity, recorded)
    except HoldfastError:
        return False
    return codec.digest(before) == codec.digest((args, kwargs))  # a set may be written in another order


def _types(function: Callable[..., Any]) -> Callable[[int | str], Any]:
    """Return a function that gives the declared type of an argument, by position or name."""
    target: Any = inspect.unwrap(function)
    while isinstance(target, partial):
        target = inspect.unwrap(target.func)
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = typing.get_type_hints(target if inspect.isroutine(target) else type(target).__call__, None, None, True)
    except Exception:  # a builtin, or a type imported for checkers only: values keep their plain JSON types
        return lambda position: Any
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    rest = next((each.name for each in parameters if each.kind is each.VAR_POSITIONAL), "")
    named = next((each.name for each in parameters if each.kind is each.VAR_KEYWORD), "")
    names = {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}

    def type_of(argument: int | str) -> Any:
        if isinstance(argument, str):
            return hints.get(argument if argument in names else named, Any)
        return hints.get(positional[argument].name if argument < len(positional) else rest, Any)

    return type_of
