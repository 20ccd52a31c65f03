"""@workflow and @activity, and the registry of names."""

from __future__ import annotations

import difflib
import functools
import hashlib
import inspect
import logging
import sys
import sysconfig
import typing
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import partial
from types import CodeType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast, overload

import msgspec

from holdfast.clock import micros
from holdfast.determinism.check import require_deterministic
from holdfast.determinism.guard import refuse_in_workflow_code
from holdfast.errors import BadInput, DefinitionError, InvalidId, UnknownWorkflow
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData
from holdfast.policy import Retry

_logger = logging.getLogger("holdfast.engine")

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

DEFAULT_QUEUE = "default"
_ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@=+~-")


def check_run_id(run_id: str) -> str:
    """Return a run id fit for use.

    Raises:
        InvalidId: outside the allowed set or length.
    """
    text: object = run_id
    if (
        not (isinstance(text, str) and 0 < len(text) <= 255 and _ID_CHARACTERS.issuperset(text))
        or run_id.strip(".") == ""
    ):
        raise InvalidId(
            f"run id {run_id!r} must be 1 to 255 characters of A-Z a-z 0-9 . _ : @ = + ~ - and not only dots"
        )
    return run_id


def check_queue(queue: str, where: str) -> str:
    """Return the name of a queue.

    Raises:
        BadInput: it is not 1 to 255 printable characters.
    """
    given: object = queue
    if not (isinstance(given, str) and 0 < len(given) <= 255 and given.isprintable()):
        raise BadInput(f"{where} must be 1 to 255 printable characters, not {queue!r}")
    return queue


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
class Hooks:
    """What to call when a run of a workflow has ended, once that is durable.

    They are called by the engine that ended the run, and not again if its process dies before it comes to that: what
    must happen belongs in a step. What they raise is logged and reported, and changes nothing.
    """

    on_complete: Callable[[str, Any], object] | None = None
    on_failed: Callable[[str, Any, Any], object] | None = None
    on_cancelled: Callable[[str, Any], object] | None = None

    def __post_init__(self) -> None:
        for field in ("on_complete", "on_failed", "on_cancelled"):
            check_plain(getattr(self, field), f"{field} of a workflow")


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
    queue: str | None = None
    on_start: Callable[[Any], object] | None = None
    on_success: Callable[[Any, Any], object] | None = None
    on_failure: Callable[[Any, ErrorData], object] | None = None
    on_failed: Callable[[Any, ErrorData], object] | None = None
    on_skipped: Callable[[Any, str], object] | None = None
    raises: tuple[type[BaseException], ...] = ()
    isolate: Literal["process"] | None = None
    transaction: bool = False
    check_args: bool = True

    @property
    def watched(self) -> bool:
        """Whether anybody wants to be called when something becomes of the step."""
        callbacks = (self.on_start, self.on_success, self.on_failure, self.on_failed, self.on_skipped)
        return any(callback is not None for callback in callbacks)

    @property
    def plain(self) -> bool:
        """Whether no option asks for more than running the body and trying again when it fails."""
        asked = (self.timeout, self.heartbeat_timeout, self.idempotency_key, self.run_when, self.limit, self.queue)
        return not any(asked) and not self.isolate and not self.transaction and not self.watched

    def __post_init__(self) -> None:
        for field in ("on_start", "on_success", "on_failure", "on_failed", "on_skipped"):
            callback = getattr(self, field)
            check_plain(callback, f"{field} of activity {self.name!r}")
        given: object = self.priority
        if not isinstance(given, int) or isinstance(given, bool):
            raise BadInput(f"priority of activity {self.name!r} must be a whole number, not {given!r}")
        limit: object = self.limit
        if limit is not None and not (isinstance(limit, str) and limit):
            raise BadInput(f"limit of activity {self.name!r} must be the name of a Limit, not {limit!r}")
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


class Activity(Generic[P, R_co]):
    """A function with options, run as a step. Called directly it is the plain function."""

    __holdfast_activity__ = True

    def __init__(self, function: Callable[P, R_co], settings: ActivityOptions) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.settings = settings
        self.name = settings.name
        """The name under which the step is recorded."""
        self.watched = settings.watched
        self.queue = settings.queue
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004  # an object whose __call__ is async
        )
        self.plain = self.is_async and settings.plain
        """Whether its body is run on the event loop and no option asks for anything more."""
        if settings.transaction and self.is_async:
            raise DefinitionError(
                f"activity {self.name!r} ({source_line(function)}) has transaction=True and must be a plain function: "
                "everybody else's commits wait for it"
            )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        # Inside a turn the body would run again on every replay, unrecorded.
        refuse_in_workflow_code(
            f"activity {self.name!r} is called directly in workflow code", f"write ctx.step({self.name}, ...)"
        )
        return self.function(*args, **kwargs)

    def options(self, **changes: Any) -> Activity[P, R_co]:
        """Return the same activity with other options: `charge.options(timeout=timedelta(minutes=1))`."""
        try:
            return Activity(self.function, replace(self.settings, **changes))
        except TypeError as error:
            raise BadInput(f"options of {self.name!r}: {_option_error(error, ActivityOptions)}") from None

    @functools.cached_property
    def result_type(self) -> Any:
        """The annotated type of the result; Any when there is none."""
        return _return_type(self.function)

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
    queue: str | None = None,
    on_start: Callable[[Any], object] | None = None,
    on_success: Callable[[Any, Any], object] | None = None,
    on_failure: Callable[[Any, ErrorData], object] | None = None,
    on_failed: Callable[[Any, ErrorData], object] | None = None,
    on_skipped: Callable[[Any, str], object] | None = None,
    raises: Iterable[type[BaseException]] = (),
    isolate: Literal["process"] | None = None,
    transaction: bool = False,
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
    done by one step at a time, and its result is handed to everybody who asks within `idempotency_ttl`.
    `run_when(step_context)` is asked before each attempt; while it says no (False, or NotReady with a reason) the step
    is skipped and asked again later, without using up an attempt, at most `max_skips` times.

    When slots are scarce, steps of a higher `priority` run first, whichever runs they belong to. `limit` names a Limit
    of the engine: how many at once, and how often. With a `queue` each attempt waits there for whichever worker serves
    it, `Engine(queues=[...])`, and knows the activity.

    The callbacks are told, once that is durable, that an attempt starts (`on_start(step_context)`), that the step
    succeeded (`on_success(step_context, result)`), that an attempt failed (`on_failure(step_context, error)`), that the
    step failed for good (`on_failed`), or was skipped (`on_skipped(step_context, reason)`); what they raise is only
    reported.
    """

    def decorate(fn: Callable[..., Any]) -> Activity[Any, Any]:
        if isinstance(fn, Activity | Workflow):
            raise DefinitionError(f"{fn.name!r} is already decorated ({source_line(fn)})")
        if not callable(fn):
            raise DefinitionError(f"@activity needs a function, not {fn!r}")
        if isinstance(raises, type):
            raise DefinitionError(f"raises of {function_name(fn)!r} must be a list: [{raises.__name__}]")
        try:
            settings = ActivityOptions(name=name or function_name(fn), raises=tuple(raises), **options)
        except TypeError as error:
            raise DefinitionError(
                f"@activity on {function_name(fn)!r}: {_option_error(error, ActivityOptions)}"
            ) from None
        return Activity(fn, settings)

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
    if isinstance(function, Workflow):
        raise BadInput(f"{function.name!r} is a workflow: start it with ctx.child({function.name}, ...)")
    if inspect.iscoroutine(function):
        function.close()
        raise BadInput(f"a step needs a function: write ctx.step({function.__name__}, ...), without calling it")
    if not callable(function):
        raise BadInput(f"a step needs a function, not {function!r}")
    return Activity(function, ActivityOptions(name=function_name(function)))


class Workflow(Generic[P, R_co]):
    """A durable process, defined as an async function that takes a Context first."""

    __holdfast_workflow__ = True

    def __init__(
        self,
        function: Callable[Concatenate[Any, P], Awaitable[R_co]],
        name: str,
        version: str,
        check: bool,
        queue: str = DEFAULT_QUEUE,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.version = version
        self.check = check
        self.queue = check_queue(queue, f"queue of workflow {name!r}")
        """The queue whose workers advance its runs."""
        self.declared_at = source_line(function)
        """The file and line of its declaration."""
        self.hooks: Hooks | None = None
        """What to call when a run has ended."""
        self.activities: tuple[str, ...] = ()
        """The steps of a workflow that is declared as data, in order."""
        self.in_order = True
        """Whether it runs them one after the other."""
        self.listed: tuple[Activity[..., Any], ...] = ()
        """What they run, and what undoes them."""
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters:
            raise DefinitionError(
                f"workflow {name!r} ({source_line(function)}) must take a Context as its first argument"
            )
        self._parameters = parameters[1:]
        for parameter in self._parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise DefinitionError(
                    f"workflow {name!r} ({source_line(function)}) takes *{parameter.name}: name its parameters, "
                    "so that its stored input stays readable"
                )

    def __call__(self, ctx: Any, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R_co]:
        return self.function(ctx, *args, **kwargs)

    def refuse_ambiguous(self, verb: str, given: Iterable[str], positional: int) -> None:
        """Refuse options of a verb that are named like parameters which were not given by position.

        Raises:
            BadInput: whether the option or the parameter was meant cannot be told.
        """
        for name in given:
            for place, parameter in enumerate(self._parameters):
                if parameter.name == name and (place >= positional or parameter.kind is parameter.KEYWORD_ONLY):
                    raise BadInput(
                        f"workflow {self.name!r} has a parameter {name!r}, which is an option of {verb}() too: "
                        "pass it by position, or rename it"
                    )

    def encode_input(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, int]:
        """Return the arguments of a call as JSON, by parameter name, with their digest.

        Raises:
            BadInput: they do not fit the signature, or the types it declares.
        """
        signature = inspect.Signature(self._parameters)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise BadInput(f"workflow {self.name!r}{signature}: {error}") from None
        bound.apply_defaults()
        where = f"the input of workflow {self.name!r}"
        given = codec.encode(bound.arguments, where)
        # Through the types and back, so that 1 and 1.0 for a float are the same input.
        encoded, digest = codec.encode_with_digest(codec.decode(given, self._input_type, where), where)
        return encoded.decode(), digest

    def decode_input(self, encoded: bytes | str) -> tuple[list[Any], dict[str, Any]]:
        """Return stored input as arguments of the annotated types."""
        values = codec.decode(encoded, self._input_type, f"the input of workflow {self.name!r}")
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for parameter in self._parameters:
            value = getattr(values, parameter.name)
            if parameter.kind is parameter.KEYWORD_ONLY:
                named[parameter.name] = value
            else:
                positional.append(value)
        return positional, named

    @functools.cached_property
    def _input_type(self) -> Any:
        hints = _hints(self.function)
        fields: list[Any] = []
        for parameter in self._parameters:
            hint = hints.get(parameter.name, Any)
            if parameter.default is parameter.empty:
                fields.append((parameter.name, hint))
            else:
                fields.append((parameter.name, hint, msgspec.field(default_factory=partial(_same, parameter.default))))
        return msgspec.defstruct("Input", fields, kw_only=True)

    @functools.cached_property
    def result_type(self) -> Any:
        """The annotated type of the result; Any when there is none."""
        return _return_type(self.function)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of the function's code, of its file, and of the project's files that it uses directly."""
        digest = hashlib.blake2b(digest_size=12)
        _digest_code(self.function.__code__, digest)
        for path in sorted(_files_used(self.function)):
            try:
                with open(path, "rb") as file:
                    digest.update(file.read())
            except OSError:
                continue
        return digest.hexdigest()


@overload
def workflow(function: Callable[Concatenate[Any, P], Awaitable[R]], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *, name: str | None = None, version: str = "1", check: bool = True, queue: str = DEFAULT_QUEUE
) -> Callable[[Callable[Concatenate[Any, P], Awaitable[R]]], Workflow[P, R]]: ...
def workflow(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    version: str = "1",
    check: bool = True,
    queue: str = DEFAULT_QUEUE,
) -> Any:
    """Declare an async function as a workflow.

    `check=False` skips the check for clocks, dice and I/O when the workflow is given to an engine. Its runs are
    advanced only by engines that serve its `queue`.
    """

    def decorate(fn: Callable[..., Any]) -> Workflow[Any, Any]:
        if isinstance(fn, Activity | Workflow):
            raise DefinitionError(f"{fn.name!r} is already decorated ({source_line(fn)})")
        if isinstance(fn, str):
            raise DefinitionError(f"write @workflow(name={fn!r})")
        if not inspect.iscoroutinefunction(fn):
            raise DefinitionError(f"workflow {function_name(fn)!r} ({source_line(fn)}) must be `async def`")
        return Workflow(fn, name or function_name(fn), version, check, queue)

    return decorate if function is None else decorate(function)


class Registry:
    """The workflows and error classes one engine knows."""

    def __init__(
        self,
        workflows: Iterable[Any] = (),
        errors: Iterable[type[BaseException]] = (),
        activities: Iterable[Any] = (),
    ) -> None:
        self._workflows: dict[str, Workflow[Any, Any]] = {}
        self._versions: dict[tuple[str, str], Workflow[Any, Any]] = {}
        self.errors: dict[str, type[BaseException]] = {codec.qualified_name(cls): cls for cls in errors}
        self.activities: dict[str, Activity[Any, Any]] = {}
        for function in activities:
            activity = function if isinstance(function, Activity) else as_activity(function)
            self.activities[activity.name] = activity
        if isinstance(workflows, Workflow):
            raise DefinitionError(f"workflows must be a list: [{workflows.name}]")
        for definition in workflows:
            self.add(definition)

    def add(self, definition: Any) -> None:
        """Register a workflow; a later version of the same name becomes the one new runs use.

        Raises:
            DefinitionError: not a workflow, or another one has that name and version.
            NonDeterministic: its code reads a clock, draws randomness or does I/O.
        """
        if not isinstance(definition, Workflow):
            raise DefinitionError(f"{definition!r} is not a workflow; decorate it with @workflow")
        other = self._versions.get((definition.name, definition.version))
        if other is not None and other is not definition:
            raise DefinitionError(
                f"two workflows are named {definition.name!r} (version {definition.version}): "
                f"{source_line(other)} and {source_line(definition)}; rename one, or give it another version"
            )
        if definition.check:
            require_deterministic(definition.function)
        self._versions[definition.name, definition.version] = definition
        self._workflows[definition.name] = definition

    @property
    def hooked(self) -> bool:
        """Whether any workflow has hooks."""
        return any(workflow.hooks is not None for workflow in self._versions.values())

    def names(self) -> list[str]:
        """Return the names of all workflows."""
        return list(self._workflows)

    def served(self, queues: Container[str]) -> list[str]:
        """Return the names of the workflows whose runs wait in one of these queues."""
        return [name for name, workflow in self._workflows.items() if workflow.queue in queues]

    def all(self) -> list[Workflow[Any, Any]]:
        """Return every workflow in every version."""
        return list(self._versions.values())

    def get(self, name: str, version: str | None = None) -> Workflow[Any, Any]:
        """Return a workflow: in the version asked for if it is here, else the latest.

        Raises:
            UnknownWorkflow: with the closest name there is.
        """
        found = self._versions.get((name, version or "")) or self._workflows.get(name)
        if found is None:
            close = difflib.get_close_matches(name, self._workflows, n=1)
            hint = f" - did you mean {close[0]!r}?" if close else "; pass it to Engine(workflows=[...])"
            raise UnknownWorkflow(f"unknown workflow {name!r}{hint}")
        return found


def function_name(function: Callable[..., Any]) -> str:
    """Return the name a function goes by."""
    if isinstance(function, functools.partial):
        return function_name(function.func)
    name = getattr(function, "__name__", None) or type(function).__name__
    return name.strip("<>")


def check_plain(callback: Any, where: str) -> None:
    """Refuse what cannot be called back at once.

    Raises:
        BadInput: it is neither None nor a plain function.
    """
    if callback is not None and (not callable(callback) or is_async(callback)):
        raise BadInput(f"{where} must be a plain function (not `async def`), not {callback!r}")


def is_async(function: Any) -> bool:
    """Tell whether calling this makes something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # an object whose __call__ is async


def options_given(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword options of a call that were given another value than their default.

    `values` is what `locals()` says at the beginning of the function.
    """
    given = {}
    for name, default in _defaults(function):
        value = values[name]
        if value is not default and (type(value) is not type(default) or value != default):
            given[name] = value
    return given


@functools.cache
def _defaults(function: Callable[..., Any]) -> tuple[tuple[str, Any], ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple((each.name, each.default) for each in parameters if each.kind is each.KEYWORD_ONLY)


def source_line(function: Any) -> str:
    """Return where a function, an activity or a workflow is defined, as file:line."""
    if isinstance(function, Workflow):
        return function.declared_at
    code = getattr(inspect.unwrap(getattr(function, "function", function)), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else "?"


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception as error:
        # A name that cannot be resolved (a type imported for checkers only) leaves plain JSON types.
        _logger.warning(
            "the annotations of %s (%s) cannot be resolved (%s): values keep their plain JSON types",
            function_name(target),
            source_line(target),
            error,
        )
        return {
            name: hint for name, hint in getattr(target, "__annotations__", {}).items() if not isinstance(hint, str)
        }


def _same(value: Any) -> Any:
    return value


def _return_type(function: Callable[..., Any]) -> Any:
    return _hints(cast(Any, function)).get("return", Any)


def _option_error(error: TypeError, options: type) -> str:
    known = ", ".join(field.name for field in fields(options))
    return f"{str(error).partition(' ')[2]}; the options are {known}"


def _files_used(function: Callable[..., Any]) -> set[str]:
    """Return the source files of a function and of the modules its globals come from, installed packages left out."""
    target: Any = inspect.unwrap(function)
    modules = {target.__module__}
    for value in target.__globals__.values():
        name = getattr(value, "__module__", None) or getattr(value, "__name__", None)
        if isinstance(name, str):
            modules.add(name)
    files = {getattr(sys.modules.get(name), "__file__", None) for name in modules}
    installed = tuple(sysconfig.get_paths().values())
    return {path for path in files if path and path.endswith(".py") and not path.startswith(installed)}


def _digest_code(code: CodeType, digest: Any) -> None:
    digest.update(code.co_code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _digest_code(constant, digest)
        elif not isinstance(constant, frozenset):
            digest.update(repr(constant).encode())
    digest.update(repr(code.co_names).encode())
