"""@workflow: durable processes, their input and the fingerprint of their code."""

from __future__ import annotations

import builtins
import functools
import hashlib
import inspect
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

import msgspec

from holdfast.contract.turns import Lane
from holdfast.definitions.activities import Activity, as_activity
from holdfast.definitions.flow import Flow, FlowOptions, flow_given
from holdfast.definitions.functions import (
    Definition,
    check_callback,
    function_name,
    return_type,
    source_line,
    type_hints,
)
from holdfast.definitions.names import DEFAULT_QUEUE, check_queue
from holdfast.errors import BadInput, DefinitionError
from holdfast.payloads import codec

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


HOOK_NAMES = {"completed": "on_complete", "failed": "on_failed", "cancelled": "on_cancelled"}
"""The hook for each end of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What to call when it is decided how a run of a workflow ends: functions, plain or async, or activities.

    Each runs as a step of the run, at least once, after the commit that decides its end and frees its unique key; the
    run is told as ended when it has. It is retried as its activity says. One that fails for good is a dead letter, and
    changes nothing.
    """

    on_complete: Callable[[str, Any], object] | None = None
    on_failed: Callable[[str, Any, Any], object] | None = None
    on_cancelled: Callable[[str, Any], object] | None = None

    def __post_init__(self) -> None:
        for field in HOOK_NAMES.values():
            check_callback(getattr(self, field), f"{field} of a workflow")

    def of(self, status: str) -> Activity[..., Any] | None:
        """Return the hook for an end, None if there is none."""
        hook = getattr(self, HOOK_NAMES[status])
        return hook if hook is None or isinstance(hook, Activity) else as_activity(hook)


def hooks_given(whose: str, **given: Any) -> Hooks | None:
    """Return the hooks of a declaration, None if it has none.

    Raises:
        DefinitionError: one cannot be called.
    """
    for what, callback in given.items():
        if callback is not None and not callable(callback):
            raise DefinitionError(f"{what} of {whose} must be a function, not {callback!r}")
    return Hooks(**given) if any(each is not None for each in given.values()) else None


class Workflow(Definition, Generic[P, R_co]):
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
        self.queue: str = check_queue(queue, f"queue of workflow {name!r}")
        """The queue whose workers advance its runs."""
        self.step_trail = False
        """Whether each end of a step is put on record, apart from the history."""
        self.hooks: Hooks | None = None
        """What to call when a run ends."""
        self.flow: Flow | None = None
        """What holds its runs back, if anything does."""
        self.activities: tuple[str, ...] = ()
        """The steps of a workflow that is declared as data, in order."""
        self.in_order = True
        """Whether it runs them one after the other."""
        self.listed: tuple[Activity[..., Any], ...] = ()
        """What they run, and what undoes them."""
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or not _takes_context(function, parameters[0]):
            raise DefinitionError(
                f"workflow {name!r} ({source_line(function)}) must take a Context as its first argument: "
                f"async def {function_name(function)}(ctx: Context, ...)"
            )
        self._parameters = parameters[1:]
        for parameter in self._parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise DefinitionError(
                    f"workflow {name!r} ({source_line(function)}) takes *{parameter.name}: name its parameters, "
                    "so that its stored input stays readable"
                )
        self._named = tuple(each.name for each in self._parameters if each.kind is each.KEYWORD_ONLY)
        self._positional = tuple(each.name for each in self._parameters if each.kind is not each.KEYWORD_ONLY)

    @property
    def told_of_cancels(self) -> bool:
        """Whether a hook is called when a run is cancelled, even if it never began."""
        return self.hooks is not None and self.hooks.on_cancelled is not None

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
        where = f"the input of workflow {self.name!r}"
        given = codec.encode_named(self._bound(args, kwargs), where)
        # Through the types and back, so that 1 and 1.0 for a float are the same input.
        encoded, digest = codec.encode_record(self._decode(given), where)
        return encoded.decode(), digest

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if not kwargs and len(args) == len(self._parameters) and not self._named:
            return dict(zip(self._positional, args, strict=True))  # nearly all calls, and binding takes long
        signature = inspect.Signature(self._parameters)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise BadInput(f"workflow {self.name!r}{signature}: {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def decode_input(self, encoded: bytes | str) -> tuple[list[Any], dict[str, Any]]:
        """Return stored input as arguments of the annotated types."""
        values = self._decode(encoded)
        named = {name: getattr(values, name) for name in self._named} if self._named else {}
        return [getattr(values, name) for name in self._positional], named

    def lane(self, encoded: bytes | str) -> Lane | None:
        """Return where a run with this stored input waits for its turn, None if its workflow has no lanes.

        Raises:
            BadInput: its key cannot be made of this input.
        """
        return self.flow.lane(self.name, *self.decode_input(encoded)) if self.flow is not None else None

    @functools.cached_property
    def _decode(self) -> Callable[[bytes | str], Any]:
        return codec.decoder(self.input_type, f"the input of workflow {self.name!r}")

    @functools.cached_property
    def input_type(self) -> Any:
        """A record of the arguments, by name, as they are annotated."""
        hints = type_hints(self.function)
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
        return return_type(self.function)

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
    *,
    name: str | None = None,
    version: str = "1",
    check: bool = True,
    queue: str = DEFAULT_QUEUE,
    on_complete: Callable[[str, Any], object] | None = None,
    on_failed: Callable[[str, Any, Any], object] | None = None,
    on_cancelled: Callable[[str, Any], object] | None = None,
    step_trail: bool = False,
    **flow: Unpack[FlowOptions],
) -> Callable[[Callable[Concatenate[Any, P], Awaitable[R]]], Workflow[P, R]]: ...
def workflow(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    version: str = "1",
    check: bool = True,
    queue: str = DEFAULT_QUEUE,
    on_complete: Callable[[str, Any], object] | None = None,
    on_failed: Callable[[str, Any, Any], object] | None = None,
    on_cancelled: Callable[[str, Any], object] | None = None,
    step_trail: bool = False,
    **flow: Any,
) -> Any:
    """Declare an async function as a workflow.

    `check=False` skips the check for clocks, random numbers and I/O when the workflow is given to an engine. Its runs
    are advanced only by engines that serve its `queue`. With `step_trail` each end of a step is put on record in the
    same commit, in the evidence of the run, which no loop and no continue-as-new shortens.
    `on_complete(run_id, state)`, `on_failed(run_id, state, error)` and `on_cancelled(run_id, state)`, plain or async,
    are called at the end of a run: see Hooks.

    What else it takes holds its runs back, on all workers of a database together:

    - `key`: a function of the input that returns a text, such as the tenant. Runs of different keys take turns, and
      everything below counts for each key by itself.
    - `at_once`: how many runs go on at once, from their first turn to their end, asleep or paused too.
    - `rate` and `per`: how many begin in any time of that length.
    - `on_full`: what becomes of a run for which there is no place: it may `wait`, be refused (`reject`), or stop the
      oldest (`cancel_oldest`).
    - `debounce`: a run begins that much after its start, unless another is started under its key by then, which ends
      it as superseded; at most `debounce_at_most` after the first of them.

    Raises:
        DefinitionError: naming the option that does not fit.
    """

    def decorate(fn: Callable[..., Any]) -> Workflow[Any, Any]:
        if isinstance(fn, Definition):
            raise DefinitionError(f"{fn.name!r} is already decorated ({source_line(fn)})")
        if isinstance(fn, str):
            raise DefinitionError(f"write @workflow(name={fn!r})")
        if not inspect.iscoroutinefunction(fn):
            raise DefinitionError(f"workflow {function_name(fn)!r} ({source_line(fn)}) must be `async def`")
        declared = Workflow(fn, name or function_name(fn), version, check, queue)
        declared.hooks = hooks_given(
            f"workflow {declared.name!r}", on_complete=on_complete, on_failed=on_failed, on_cancelled=on_cancelled
        )
        declared.step_trail = step_trail
        if flow:
            unknown = flow.keys() - FlowOptions.__annotations__.keys()
            if unknown:
                raise TypeError(f"@workflow takes no {min(unknown)!r}")
            declared.flow = flow_given(f"workflow {declared.name!r}", **flow)
        return declared

    return decorate if function is None else decorate(function)


def _takes_context(function: Callable[..., Any], first: inspect.Parameter) -> bool:
    """Tell whether the first parameter may be a Context: it is, unless it is annotated as something else."""
    if first.kind in (first.VAR_KEYWORD, first.KEYWORD_ONLY):
        return False
    hint = first.annotation
    if isinstance(hint, str):
        if hint.endswith(("Context", "Any")):
            return True
        try:
            hint = typing.get_type_hints(inspect.unwrap(function)).get(first.name, Any)
        except Exception:  # a name for checkers only
            hint = getattr(builtins, hint, Any)
    return _is_context(hint)


def _is_context(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return any(map(_is_context, typing.get_args(hint)))
    kind = origin or hint
    if (
        not isinstance(kind, type)
        or kind in (inspect.Parameter.empty, object, Any)
        or getattr(kind, "_is_protocol", False)
    ):
        return True
    return any(base.__name__.endswith("Context") for base in kind.__mro__)


def _same(value: Any) -> Any:
    return value


def _files_used(function: Callable[..., Any]) -> set[str]:
    """Return the source files of a function and of the modules its globals come from, installed packages left out."""
    target: Any = inspect.unwrap(function)
    modules = {target.__module__}
    for value in target.__globals__.values():
        name = getattr(value, "__module__", None) or getattr(value, "__name__", None)
        if isinstance(name, str):
            modules.add(name)
    files = {getattr(sys.modules.get(name), "__file__", None) for name in modules}
    import sysconfig  # for fingerprints only, which an engine takes when it opens

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
