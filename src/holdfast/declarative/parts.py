"""Parts of sequences and graphs, checked where they are declared."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial, wraps
from pathlib import Path
from types import CodeType
from typing import Any

from holdfast.definitions import (
    DEFAULT_QUEUE,
    Activity,
    ActivityOptions,
    NotReady,
    Workflow,
    check_queue,
    function_name,
    source_line,
)
from holdfast.errors import DefinitionError
from holdfast.policy import Retry
from holdfast.replay.location import check_name

HOLD = timedelta(seconds=60)
"""How long a step whose activity is not known here waits before it is looked for again."""
_HERE = str(Path(__file__).parent)
_PATIENT = Retry(max_attempts=None, crash_limit=1_000_000)  # who does not know a step is not the one to give it up


@dataclass(frozen=True, slots=True, eq=False)
class DeclaredStep:
    """A function as a step of a sequence or graph: see `step`."""

    function: Callable[..., Any]
    name: str | None
    compensate: Callable[..., Any] | None
    options: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Parallel:
    """Activities of a sequence that run side by side: see `parallel`."""

    items: tuple[Any, ...]


def step(
    activity: Callable[..., Any],
    *,
    name: str | None = None,
    compensate: Callable[..., Any] | None = None,
    **options: Any,
) -> DeclaredStep:
    """Declare a step with a name of its own, options of an activity, or what undoes it if the run fails later.

    In a sequence `compensate` is called with the state as it was after the step, in a graph with the node's result.

    Raises:
        DefinitionError: not a function, or no such option.
    """
    if isinstance(activity, DeclaredStep | Parallel):
        raise DefinitionError(f"step() needs a function or an activity, not {activity!r}")
    declared = DeclaredStep(activity, name, compensate, options)
    as_part(declared, {})  # refuse it on the line that has the mistake
    return declared


def parallel(items: Iterable[Any]) -> Parallel:
    """Declare activities that run side by side, all on the state as it is before them.

    All of them finish, even if one fails; what they return is merged in the order declared.

    Raises:
        DefinitionError: there are none.
    """
    group = Parallel(tuple(require_list(items, "parallel() takes a list of activities")))
    if not group.items:
        raise DefinitionError("parallel([]) runs nothing: it needs at least one activity")
    return group


@dataclass(frozen=True, eq=False)
class Part:
    """A step of a declared workflow as it is run."""

    name: str
    activity: Activity[..., Any]
    compensate: Activity[..., Any] | None = None
    known: bool = True
    """Whether the definition has it; otherwise only the history of a run does."""

    @cached_property
    def again(self) -> Activity[..., Any]:
        """The activity for a call that history has: its arguments then and now are not compared."""
        return self.activity.options(check_args=False)

    @cached_property
    def undone_by(self) -> Activity[..., Any] | None:
        """What undoes it, for a call of `ctx.compensate` that history has."""
        return self.compensate.options(check_args=False) if self.compensate is not None else None


def as_part(item: Any, defaults: dict[str, Any]) -> Part:
    """Return an item of a declaration as a part; `defaults` are options that hold where a function says nothing else.

    Raises:
        DefinitionError: it is not a function, an activity or a step, or its name or options are unfit.
    """
    declared = item if isinstance(item, DeclaredStep) else DeclaredStep(item, None, None, {})
    function = declared.function
    _require_function(function, "a step")
    try:
        if isinstance(function, Activity):
            unsaid = {name: value for name, value in defaults.items() if name not in function.given}
            if function.settings.transaction:
                unsaid.pop("timeout", None)  # others wait for it: it has a shorter one of its own
            activity = function.options(**{**unsaid, **declared.options})
        else:
            plain = Activity(function, ActivityOptions(name=function_name(function), **defaults))
            activity = plain.options(**declared.options)
        if declared.name is not None:
            activity = activity.options(name=declared.name)
        name = check_name(activity.name, "activity name")
    except ValueError as unfit:
        raise DefinitionError(f"{unfit} ({source_line(function)})") from None
    return Part(name, activity, _undoing(declared.compensate))


def unknown(name: str) -> Part:
    """Return the stand-in of an activity that only a run's history knows: it is held, and never runs."""

    def not_here(step: Any) -> NotReady:
        return NotReady(f"unknown activity {name!r}", HOLD)

    settings = ActivityOptions(name=name, retry=_PATIENT, run_when=not_here, check_args=False)
    return Part(name, Activity(_never, settings), known=False)


async def _never(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("a stand-in was run")


def _undoing(function: Callable[..., Any] | None) -> Activity[..., Any] | None:
    if function is None:
        return None
    _require_function(function, "compensate")
    activity: Activity[..., Any] = (
        function
        if isinstance(function, Activity)
        else Activity(function, ActivityOptions(name=function_name(function)))
    )
    require_one_argument(activity, "what it undoes")
    return activity


def _require_function(function: Any, what: str) -> None:
    if isinstance(function, Workflow):
        raise DefinitionError(f"{what} needs a function or an activity, and {function.name!r} is a workflow")
    if inspect.iscoroutine(function):
        function.close()
        raise DefinitionError(f"{what} needs a function: write {function.__name__}, without calling it")
    if not callable(function):
        raise DefinitionError(f"{what} needs a function or an activity, not {function!r}")


def require_one_argument(activity: Activity[..., Any], what: str) -> None:
    """Refuse an activity that cannot be called with one argument.

    Raises:
        DefinitionError: with the place of the function.
    """
    try:
        signature = inspect.signature(activity.function)
    except ValueError:  # a builtin that does not tell
        return
    try:
        signature.bind(None)
    except TypeError:
        raise DefinitionError(
            f"{activity.name!r}{signature} ({source_line(activity)}) must take one argument: {what}"
        ) from None


def require_unique(workflow: str, parts: Iterable[Part]) -> None:
    """Refuse two parts of one name.

    Raises:
        DefinitionError: with the places of both.
    """
    seen: dict[str, tuple[int, Part]] = {}
    for place, part in enumerate(parts, 1):
        if part.name in seen:
            first, other = seen[part.name]
            raise DefinitionError(
                f"{workflow!r} has two activities named {part.name!r}: number {first} ({source_line(other.activity)}) "
                f"and number {place} ({source_line(part.activity)}); "
                f'give one of them another name: step({function_name(part.activity.function)}, name="...")'
            )
        seen[part.name] = place, part


def require_list(items: Any, complaint: str) -> list[Any]:
    """Return the items of a list.

    Raises:
        DefinitionError: it is no list.
    """
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise DefinitionError(f"{complaint}, not {items!r}")
    return list(items)


class Declared(Workflow[Any, Any]):
    """A workflow that was declared as data."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        version: str,
        parts: Iterable[Part],
        shape: object,
        queue: str = DEFAULT_QUEUE,
    ) -> None:
        try:
            check_name(name, "workflow name")
            check_queue(queue, f"queue of workflow {name!r}")
        except ValueError as unfit:
            raise DefinitionError(str(unfit)) from None
        place = _declaration()
        run = _told_apart(function, f"in workflow {name!r}, declared at {place}")
        super().__init__(run, name, version, check=False, queue=queue)
        self.declared_at = place
        self.parts: tuple[Part, ...] = tuple(parts)
        self._shape = repr(shape)
        self.activities = tuple(part.name for part in self.parts)
        undoing = [part.compensate for part in self.parts if part.compensate is not None]
        self.listed = (*(part.activity for part in self.parts), *undoing)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of what was declared: names and their shape, and the code of the functions."""
        digest = hashlib.blake2b(self._shape.encode(), digest_size=12)
        for part in self.parts:
            for activity in (part.activity, part.compensate):
                function: Any = getattr(activity, "function", None)
                while isinstance(function, partial):
                    function = function.func
                code = getattr(inspect.unwrap(function) if function is not None else None, "__code__", None)
                digest.update(repr((part.name, activity and activity.name)).encode())
                digest.update(code.co_code if isinstance(code, CodeType) else repr(function).encode())
        return digest.hexdigest()


def _told_apart(function: Callable[..., Any], note: str) -> Callable[..., Any]:
    """Return a workflow's function whose errors say where it is declared: its own lines mean nothing to a reader."""

    @wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except Exception as error:
            with suppress(Exception):  # a note is not worth losing the error
                error.add_note(note)
            raise

    return run


def _declaration() -> str:
    """Return the file and line at which a workflow is declared: that is where a reader has to look."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
