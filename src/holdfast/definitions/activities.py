"""@activity: functions that run as steps, and how."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from types import FunctionType
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from holdfast.clock import micros
from holdfast.definitions.functions import (
    Definition,
    check_callback,
    check_plain,
    function_name,
    option_error,
    return_type,
    source_line,
)
from holdfast.definitions.names import check_queue
from holdfast.determinism.guard import refuse_in_workflow_code
from holdfast.errors import BadInput, DefinitionError
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData
from holdfast.policy import Retry

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class NotReady:
    """What a `run_when` condition returns instead of False to say why, and when to ask again (default: in 30 s)."""

    reason: str = ""
    retry_in: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        micros(self.retry_in, "retry_in")

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityOptions:
    """How an activity is run as a step."""

    name: str
    retry: Retry = Retry.default
    timeout: timedelta | None = None
    heartbeat_timeout: timedelta | None = None
    idempotency_key: Callable[..., str | None] | None = None
    idempotency_ttl: timedelta = timedelta(hours=24)
    run_when: Callable[[Any], bool | NotReady] | None = None
    max_skips: int | None = None
    priority: int = 0
    limit: str | None = None
    limit_key: Callable[..., str] | None = None
    queue: str | None = None
    on_start: Callable[[Any], object] | None = None
    on_success: Callable[[Any, Any], object] | None = None
    on_failure: Callable[[Any, ErrorData], object] | None = None
    on_failed: Callable[[Any, ErrorData], object] | None = None
    on_skipped: Callable[[Any, str], object] | None = None
    raises: tuple[type[BaseException], ...] = ()
    isolate: Literal["process"] | None = None
    transaction: bool = False
    idempotent: bool = False
    record_arguments: bool = False
    check_args: bool = True

    @property
    def watched(self) -> bool:
        """Whether a callback is to be called when something becomes of the step."""
        callbacks = (self.on_start, self.on_success, self.on_failure, self.on_failed, self.on_skipped)
        return any(callback is not None for callback in callbacks)

    @property
    def plain(self) -> bool:
        """Whether no option asks for more than running the body and trying again when it fails."""
        return self.limit is None and self.only_limited

    @property
    def only_limited(self) -> bool:
        """Whether the same is so but for a limit."""
        asked = (self.timeout, self.heartbeat_timeout, self.idempotency_key, self.run_when, self.queue)
        return not any(asked) and not self.isolate and not self.transaction and not self.watched

    def __post_init__(self) -> None:
        for field in ("on_start", "on_success", "on_failure", "on_failed", "on_skipped"):
            callback = getattr(self, field)
            check_callback(callback, f"{field} of activity {self.name!r}")
        given: object = self.priority
        if not isinstance(given, int) or isinstance(given, bool):
            raise BadInput(f"priority of activity {self.name!r} must be a whole number, not {given!r}")
        limit: object = self.limit
        if limit is not None and not (isinstance(limit, str) and limit):
            raise BadInput(f"limit of activity {self.name!r} must be the name of a Limit, not {limit!r}")
        check_plain(self.limit_key, f"limit_key of activity {self.name!r}")
        if self.limit_key is not None and limit is None:
            raise BadInput(f"activity {self.name!r} has a limit_key and no limit; name the Limit whose key it makes")
        if self.queue is not None:
            check_queue(self.queue, f"queue of activity {self.name!r}")
        if self.run_when is not None and not callable(self.run_when):
            raise BadInput(f"run_when of activity {self.name!r} must be a function, not {self.run_when!r}")
        skips: object = self.max_skips
        if skips is not None and (not isinstance(skips, int) or skips < 0):
            raise BadInput(f"max_skips of activity {self.name!r} must be a whole number or None, not {skips!r}")
        for field in ("timeout", "heartbeat_timeout", "idempotency_ttl"):
            if (value := getattr(self, field)) is not None:
                micros(value, f"{field} of activity {self.name!r}")
        if self.isolate not in (None, "process"):
            raise BadInput(f"isolate of activity {self.name!r} must be None or 'process', not {self.isolate!r}")
        if self.transaction:
            for field in ("queue", "isolate", "heartbeat_timeout"):
                if getattr(self, field) is not None:
                    raise BadInput(f"activity {self.name!r} has transaction=True, which does not go with {field}")
        if not isinstance(self.retry, Retry):
            raise BadInput(f"retry of activity {self.name!r} must be a Retry, not {self.retry!r}")


class Activity(Definition, Generic[P, R_co]):
    """A function with options, run as a step. Called directly it is the plain function."""

    __holdfast_activity__ = True

    def __init__(
        self, function: Callable[P, R_co], settings: ActivityOptions, given: frozenset[str] = frozenset()
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.settings = settings
        self.given: frozenset[str] = given
        """The options that were given; a sequence or graph has defaults of its own for the others."""
        self.name: str = settings.name
        """The name under which the step is recorded."""
        self.watched: bool = settings.watched
        self.queue: str | None = settings.queue
        self.records: bool = settings.record_arguments
        self.fewest, self.most = _how_many(function)
        """How many arguments by position it takes, where its code tells."""
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004  # an object whose __call__ is async
        )
        self.plain: bool = self.is_async and settings.plain
        """Whether its body is run on the event loop and no option asks for anything more."""
        self.only_limited: bool = self.is_async and settings.only_limited
        """The same, but it may be under a limit."""
        if settings.transaction and self.is_async:
            raise DefinitionError(
                f"activity {self.name!r} ({source_line(function)}) has transaction=True and must be a plain function: "
                "the commits of all runs wait for it"
            )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        # Inside a turn the body would run again on every replay, unrecorded.
        refuse_in_workflow_code(
            f"activity {self.name!r} is called directly in workflow code", f"write ctx.step({self.name}, ...)"
        )
        return self.function(*args, **kwargs)

    def check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> None:
        """Refuse arguments that do not fit its parameters.

        Raises:
            BadInput: they do not fit.
        """
        try:
            signature = inspect.signature(self.function, follow_wrapped=False)
        except (TypeError, ValueError):  # it does not tell its parameters
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            unknown = [name for name in kwargs if name not in signature.parameters]
            what = f"it has no parameter {unknown[0]!r}" if unknown else str(error)
            plain = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
            takes = signature.replace(parameters=plain, return_annotation=signature.empty)
            raise BadInput(f"{where} is called with arguments that do not fit {self.name}{takes}: {what}") from None

    def options(self, **changes: Any) -> Activity[P, R_co]:
        """Return the same activity with other options: `charge.options(timeout=timedelta(minutes=1))`."""
        try:
            return Activity(self.function, replace(self.settings, **changes), self.given | changes.keys())
        except TypeError as error:
            raise BadInput(f"options of {self.name!r}: {option_error(error, ActivityOptions)}") from None

    @functools.cached_property
    def result_type(self) -> Any:
        """The annotated type of the result; Any when there is none."""
        return return_type(self.function)

    @functools.cached_property
    def errors(self) -> dict[str, type[BaseException]]:
        """The exception classes that come back to the workflow as themselves, by qualified name."""
        return {codec.qualified_name(cls): cls for cls in self.settings.raises}

    @functools.cached_property
    def decode(self) -> Callable[[bytes], Any]:
        """Decode an encoded result into the annotated type."""
        return codec.decoder(self.result_type)


@overload
def activity(function: Callable[P, R], /) -> Activity[P, R]: ...
@overload
def activity(
    *,
    name: str | None = None,
    retry: Retry = Retry.default,
    timeout: timedelta | None = None,
    heartbeat_timeout: timedelta | None = None,
    idempotency_key: Callable[..., str | None] | None = None,
    idempotency_ttl: timedelta = timedelta(hours=24),
    run_when: Callable[[Any], bool | NotReady] | None = None,
    max_skips: int | None = None,
    priority: int = 0,
    limit: str | None = None,
    limit_key: Callable[..., str] | None = None,
    queue: str | None = None,
    on_start: Callable[[Any], object] | None = None,
    on_success: Callable[[Any, Any], object] | None = None,
    on_failure: Callable[[Any, ErrorData], object] | None = None,
    on_failed: Callable[[Any, ErrorData], object] | None = None,
    on_skipped: Callable[[Any, str], object] | None = None,
    raises: Iterable[type[BaseException]] = (),
    isolate: Literal["process"] | None = None,
    transaction: bool = False,
    idempotent: bool = False,
    record_arguments: bool = False,
    check_args: bool = True,
) -> Callable[[Callable[P, R]], Activity[P, R]]: ...
def activity(function: Any = None, /, *, name: str | None = None, raises: Iterable[Any] = (), **options: Any) -> Any:
    """Attach options to a function that runs as a step.

    `retry` says how often and how patiently, `timeout` how long one attempt may take (None or zero: as long as it
    likes), `raises` which exception classes come back to the workflow as themselves, `isolate="process"` runs the body
    in a child process that is really killed on timeout or cancel.

    With `transaction=True` a plain function is given a connection of the engine's own database,
    `step_context().connection`; what it writes there and its recorded result are one transaction, so its rows are there
    exactly once. Its `timeout` is 2 s unless given: others wait for it.

    `idempotency_key(*args)` names the outside effect (None: there is none to name): whichever run asks for it, it is
    done by one step at a time, and its result is handed to every step that asks within `idempotency_ttl`.
    `run_when(step_context)` is asked before each attempt; while it says no (False, or NotReady with a reason) the step
    is skipped and asked again later, without using up an attempt, at most `max_skips` times.

    `idempotent=True` says that doing it again does no harm, even if it is not known whether the last attempt took
    effect: retries and replays of many take such steps along.

    With `record_arguments` they are kept in the history, to be looked at (`run.steps()`); otherwise only a digest is.

    When slots are scarce, steps of a higher `priority` run first, whichever runs they belong to. `limit` names a Limit:
    how many at once, and how often, on all workers; `limit_key(*args)` makes the key (a tenant, a customer) under which
    they are counted. With a `queue` each attempt waits there for whichever worker serves
    it, `Engine(queues=[...])`, and knows the activity.

    The callbacks, plain or async, are told that an attempt starts (`on_start(step_context)`, awaited inside it), and,
    once that is durable, that the step succeeded (`on_success(step_context, result)`), that an attempt failed
    (`on_failure(step_context, error)`), that the step failed for good (`on_failed`), or was skipped
    (`on_skipped(step_context, reason)`). They are awaited before the code, or the next attempt, goes on, and called
    again if the process dies before that; what they raise is only reported.
    """

    def decorate(fn: Callable[..., Any]) -> Activity[Any, Any]:
        if isinstance(fn, Definition):
            raise DefinitionError(f"{fn.name!r} is already decorated ({source_line(fn)})")
        if not callable(fn):
            raise DefinitionError(f"@activity needs a function, not {fn!r}")
        if isinstance(raises, type):
            raise DefinitionError(f"raises of {function_name(fn)!r} must be a list: [{raises.__name__}]")
        try:
            settings = ActivityOptions(name=name or function_name(fn), raises=tuple(raises), **options)
        except TypeError as error:
            raise DefinitionError(
                f"@activity on {function_name(fn)!r}: {option_error(error, ActivityOptions)}"
            ) from None
        return Activity(fn, settings, frozenset(options))

    return decorate if function is None else decorate(function)


def as_activity(function: Callable[..., Any]) -> Activity[Any, Any]:
    """Return a plain function as an activity with default options."""
    try:
        return plain_activity(function)
    except TypeError:
        return plain_activity.__wrapped__(function)  # an object that cannot be hashed


@functools.lru_cache(maxsize=4096)
def plain_activity(function: Callable[..., Any]) -> Activity[Any, Any]:
    """Return a function that can be hashed as an activity with default options."""
    if isinstance(function, Definition):
        raise BadInput(f"{function.name!r} is a workflow: start it with ctx.child({function.name}, ...)")
    if inspect.iscoroutine(function):
        function.close()
        raise BadInput(f"a step needs a function: write ctx.step({function.__name__}, ...), without calling it")
    if not callable(function):
        raise BadInput(f"a step needs a function, not {function!r}")
    return Activity(function, ActivityOptions(name=function_name(function)))


def _how_many(function: Callable[..., Any]) -> tuple[int, int]:
    """Return the fewest and the most arguments by position with which a call surely fits, without any by name."""
    if type(function) is not FunctionType or "__signature__" in vars(function):
        return 0, sys.maxsize
    code = function.__code__
    if code.co_kwonlyargcount > len(function.__kwdefaults__ or ()):
        return sys.maxsize, sys.maxsize
    fewest = code.co_argcount - len(function.__defaults__ or ())
    return fewest, sys.maxsize if code.co_flags & inspect.CO_VARARGS else code.co_argcount
