"""Steps: how the code calls one, and the outcomes of its attempts so far."""

from __future__ import annotations

import asyncio
import copy
import inspect
import sys
from collections.abc import Mapping
from types import FunctionType
from typing import Any, NamedTuple

from holdfast.definitions import Activity, as_activity, plain_activity
from holdfast.errors import BadInput, HoldfastError, RunBlocked
from holdfast.payloads import codec
from holdfast.replay import entry as entries
from holdfast.replay.entry import UNCOUNTED
from holdfast.replay.journal import PREFIXES, SAME_STEP, Journal, Verb
from holdfast.replay.location import Scope, check_name, with_another
from holdfast.replay.loop import SCOPE

_IMMUTABLE = frozenset({str, int, bool, float, bytes, type(None)})
_NOTHING: Any = object()
_NONE = entries.Earlier()
_NEVER: dict[str, int] = {}
_UNDOING = PREFIXES["compensation"]
SUSPECT_AFTER = 2
OUTLIVED = ("outlived", "outage")
"""Losses with a process that died, perhaps, for another reason: see entries.AttemptLost."""


class FailedCall(NamedTuple):
    """A step that failed for good: what it was called with, and how its attempts went."""

    activity: Activity[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    failures: int
    """Before the last attempt."""
    crashes: int
    outlived: int
    error: str
    """The qualified name of what it raised."""


class StepVerb(Verb):
    """A step under way: what to run, and how its attempts went so far."""

    __slots__ = (
        "activity",
        "args",
        "attempt",
        "began",
        "called_at",
        "crashes",
        "failures",
        "in_process",
        "lapses",
        "last",
        "kwargs",
        "outlived",
        "recalled",
        "retry_at",
        "scope",
        "settled",
        "shared",
        "skipped",
        "skips",
        "value",
    )
    word = "step"
    scope: Scope
    """Where it was called."""
    last: entries.Entry | None
    """What came of its last attempt, once one has ended and the step has not, or history knew it."""

    def __init__(
        self,
        journal: Journal,
        location: str,
        activity: Activity[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        shared: bool = False,
    ) -> None:
        # As Verb does, without one more call for each step.
        scope = SCOPE.get()
        scope.made += 1
        self.number = journal.loop.base + scope.made
        asyncio.Future.__init__(self, loop=journal.loop)  # type: ignore[arg-type]  # see RunLoop.create_future
        self.journal = journal
        self.location = location
        self.awaited = False
        frame = sys._getframe(3)
        self.called = (frame.f_code, frame.f_lasti, journal.loop.within)
        self.activity = activity
        self.args = args
        self.kwargs = kwargs
        self.shared = shared
        """Whether nothing can change the arguments, so that bodies need no copies of them."""
        self.called_at = self.began = journal.loop.now
        self.attempt = 1
        if journal.before is not None:
            self.attempt += journal.before.cut.get(journal.names.path(location), _NONE).attempt
        self.failures = 0
        self.crashes = 0
        self.lapses = 0
        self.outlived = 0
        self.skips = 0
        self.retry_at: int | None = None
        self.settled = False
        """Whether the last attempt's end is recorded (it failed, was lost or handed back)."""
        self.skipped = False
        """Whether its condition said not now when it was last asked: an attempt that is not settled has not run."""
        self.recalled = False
        """Whether history knew this step already."""
        self.in_process = False
        """Whether a suspect showed in a child process that it does not crash, and now runs here again."""
        self.value = _NOTHING

    def recall(self, attempt: int) -> None:
        """Take in what history recorded of the attempts; `attempt` is the number of the first."""
        self.recalled = True
        self.last = None
        self.attempt = attempt
        tries = self.journal.past.tries
        for row in tries.pop(self.location, ()) if tries else ():
            mark, not_run = entries.decode_entry(row.kind, row.data), self.skipped
            self.last = mark
            if row.kind == entries.EndKept.kind:
                continue
            self.retry_at = None
            self.skipped = row.kind == entries.AttemptSkipped.kind
            if self.skipped:
                self.skips += not mark.reason.startswith(UNCOUNTED)
                self.retry_at = mark.check_at
                continue
            self.settled = row.kind != entries.AttemptBegun.kind
            if row.kind == entries.Reopened.kind:
                self.failures = self.crashes = self.lapses = self.outlived = self.skips = 0
                self.in_process = False
                not_run = not_run and not mark.step.attempt
                self.attempt = max(self.attempt, mark.step.attempt)
                self.skipped, self.settled = not_run, not not_run  # an attempt that did not run is not counted
                continue
            self.attempt = mark.attempt
            if row.kind == entries.AttemptBegun.kind:
                self.began = row.at
            elif row.kind == entries.AttemptFailed.kind:
                self.failures += not mark.error.postpones
                self.retry_at = mark.retry_at
            elif row.kind == entries.AttemptLost.kind:
                self.crashes += mark.why == "crash"
                self.lapses += mark.why == "lapse"
                self.outlived += mark.why in OUTLIVED
                self.in_process = self.in_process or mark.why == "cleared"

    @property
    def name(self) -> str:
        """What it is called in every branch, iteration and repetition: the last part of its path."""
        return self.journal.names.path(self.location).rpartition("/")[2].partition("#")[0]

    @property
    def kept(self) -> entries.Entry | None:
        """Of a step that history knew: what came of its last attempt, if its callbacks may not have been told yet."""
        return self.last.kept() if isinstance(self.last, entries.EndKept) else None

    @property
    def call(self) -> str:
        """The location that names this work to the outside world."""
        return self.location

    def idempotency_key(self, own: str | None = None) -> str:
        """Return what names this work to the outside world, whichever attempt it is; `own` is the activity's key.

        Work that was undone and is done again is other work.
        """
        journal, path = self.journal, self.journal.names.path(self.call)
        undone = journal.before.undone if journal.before is not None else _NEVER
        if own is not None:
            return _again(own, path, undone)
        return key_for(journal.run.id, journal.run.generation, path, undone)

    def failed_call(self, error: BaseException) -> FailedCall:
        name = codec.qualified_name(type(error))
        return FailedCall(self.activity, self.args, self.kwargs, self.failures, self.crashes, self.outlived, name)

    @property
    def suspect(self) -> bool:
        """Whether it was lost with its worker so often that it, or what the code does next, may be the reason."""
        return self.crashes + self.lapses + self.outlived >= SUSPECT_AFTER

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return copies for a body to keep and change as it likes."""
        return (self.args, self.kwargs) if self.shared else _copies(self.args, self.kwargs)

    def decoded(self, result: bytes) -> Any:
        """Return a result as the workflow will see it, and keep it for when the fact is applied.

        Raises:
            UndecodablePayload: it does not fit the annotated type.
        """
        self.value = self.activity.decode(result)
        return self.value

    def apply(self, entry: Any) -> None:
        scope = self.scope  # as Scope.note_end, without the call
        scope.ended = with_another(scope.ended, self.location) if scope.ended else self.location
        if type(entry) is entries.StepCompleted:
            value = self.value
            if value is _NOTHING:
                try:
                    value = self.activity.decode(bytes(entry.result))
                except HoldfastError as unfit:
                    run, path = self.journal.run.id, self.journal.names.path(self.location)
                    message = f"the recorded result of step {path!r} does not fit {self.activity.result_type!r}"
                    self.journal.block(RunBlocked(run, f"run {run}: {message}: {unfit}"))
                    return
            self.set_result(value)
        else:
            error = self.journal.error(entry.error, self.activity.errors)
            if isinstance(error, Exception):  # it takes notes: see error_from_data
                error.add_note(f"raised in step {self.journal.names.path(self.location)!r}, attempt {entry.attempt}")
            self.set_exception(error)


class NamedStepVerb(StepVerb):
    """A step that is not called as its activity: the code gave it a name, or that of the activity is no plain text."""

    __slots__ = ()


ORDINARY = (StepVerb, NamedStepVerb)


class BackgroundVerb(StepVerb):
    """A step that nothing waits for: the run ends after it, and its failure is a dead letter."""

    __slots__ = ()
    on_its_own = True

    def forget(self) -> None:
        if self.journal.background:
            self.journal.background.pop(self.location, None)

    def apply(self, entry: Any) -> None:
        self.scope.note_end(self.location)
        self.set_result(None)


def background(journal: Journal, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Begin a step that nothing waits for, or find it in history."""
    verb = step(journal, scope, args, kwargs, BackgroundVerb)
    if verb.location in journal.open:
        journal.background = journal.background or {}
        journal.background[verb.location] = verb


def step(
    journal: Journal,
    scope: Scope,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    make: type[StepVerb] = StepVerb,
) -> StepVerb:
    """Begin a step, or find it in history."""
    explicit: str | None = None
    function: Any = args[0] if args else None
    kind = type(function)
    if kind is FunctionType:
        activity, args = plain_activity(function), args[1:]
    elif kind is Activity:
        activity, args = function, args[1:]
    else:
        explicit, activity, args = _named(args)
    name = explicit or activity.name
    if type(name) is not str or name not in journal.names.codes:
        name = check_name(name, "activity name")  # a text: the member of an enumeration is recorded as it is shown
    digest = None if kwargs else codec.scalar_digest(args)
    shared = digest is not None
    if not activity.settings.check_args:
        digest = 0
    elif digest is None:
        digest = codec.digest((args, kwargs) if kwargs else args, f"the arguments of step {name!r}")
    if not shared:
        args, kwargs = _copies(args, kwargs)
    location = journal.locate(scope, name, explicit is not None)
    if (kwargs or not activity.fewest <= len(args) <= activity.most) and location not in journal.past.calls:
        activity.check_call(args, kwargs, f"step {name!r}{journal.at_line()}")
    if name is not activity.name and make is StepVerb:
        make = NamedStepVerb
    verb = make(journal, location, activity, args, kwargs, shared)
    recorded = journal.begin_step(location, digest, verb.attempt)
    if journal.violation is not None:
        return verb
    if recorded is None:
        if activity.records or journal.run.record_arguments:
            _record_arguments(journal, activity, args, kwargs)
    elif recorded is SAME_STEP:
        if location in journal.past.tries:
            verb.recall(verb.attempt)
        else:
            verb.recalled, verb.last = True, None
    else:
        if recorded.digest != digest and digest and recorded.digest:
            _has_other_arguments(journal, location, name, _brief(args, kwargs))
            return verb
        verb.recall(recorded.attempt)
    verb.scope = scope
    if scope.ended or not scope.called:  # as Scope.note_call, without the call
        scope.called, scope.ended = location, ""
    else:
        scope.called = with_another(scope.called, location)
    journal.open[location] = verb
    if not (verb.recalled and journal.silent):  # of those `Journal.caught_up` finds what is open
        journal.turn.start(verb)
    return verb


def _has_other_arguments(journal: Journal, location: str, name: str, these: str) -> None:
    journal.mismatch(
        location,
        f"step {name!r} with other arguments",
        f"these: {these}",
        "pass the same arguments (iterate over a sorted list rather than a set), or use check_args=False",
    )


def _record_arguments(
    journal: Journal, activity: Activity[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Put the arguments into the entry that was just made of the call."""
    given = arguments_of(activity.function, args, kwargs)
    if given is not None:
        rows = journal.turn.entries
        rows[-1] = rows[-1]._replace(data=f"{rows[-1].data[:-1]},{given}]")


def arguments_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return the arguments of a call as a JSON object by the names of the parameters; None if JSON has no form of them.

    Where the function does not tell its parameters, their places stand for the names.
    """
    try:
        named = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        named = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    try:
        return codec.encode(named).decode()
    except Exception:  # check_args=False lets anything through
        return None


def _named(args: tuple[Any, ...]) -> tuple[str | None, Activity[..., Any], tuple[Any, ...]]:
    """Return the name that a step was given, what it runs, and the arguments of that."""
    explicit: str | None = None
    if not args:
        raise BadInput("ctx.step() needs a function")
    if isinstance(args[0], str):
        if len(args) < 2:
            raise BadInput(f"ctx.step({args[0]!r}) needs a function after its name")
        explicit, args = check_name(args[0], "step name"), args[1:]
    function = args[0]
    return explicit, function if isinstance(function, Activity) else as_activity(function), args[1:]


def key_for(run_id: str, generation: int, path: str, undone: Mapping[str, int]) -> str:
    """Return the key of a step, or of a call of `compensate`, in one life of a run; see `Reopened.undone`."""
    life = f":{generation}" if generation else ""
    around, slash, name = path.rpartition("/")
    if name.startswith(_UNDOING):
        # No service must refuse the key for its space. No name has an @, so no other path becomes the same key.
        name = name.replace(" ", "@", 1)
    return _again(f"{run_id}{life}:{around}{slash}{name}", path, undone)


def _again(key: str, path: str, undone: Mapping[str, int]) -> str:
    if not undone:
        return key
    times = 0
    while path:  # what was undone may be a join or a loop around it
        times += undone.get(path, 0)
        path = path.rpartition("/")[0]
    return f"{key}~{times + 1}" if times else key


def _copies(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not kwargs and _IMMUTABLE.issuperset(map(type, args)):
        return args, kwargs
    return copy.deepcopy((args, kwargs))


def _brief(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    text = ", ".join([*(repr(value) for value in args), *(f"{key}={value!r}" for key, value in kwargs.items())])
    return text if len(text) <= 120 else text[:117] + "..."
