"""The Context of a run on the replay engine: thin methods over the verbs of this package."""

from __future__ import annotations

import hashlib
import inspect
import logging
import random
import sys
import traceback
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NoReturn, cast

from holdfast.clock import from_datetime, micros, to_datetime
from holdfast.context import branches, children, compensations, loops, notes, steps, waits
from holdfast.context.api import MISSING, Child, Context, Iteration, Request, Winner
from holdfast.definitions import Workflow, options_given
from holdfast.errors import BadInput, ContinueAsNew, NonDeterministic
from holdfast.replay import entry as entries
from holdfast.replay.journal import NAMES, PREFIXES, Journal, RecordedStep, Verb
from holdfast.replay.location import Scope, check_name, name_key
from holdfast.replay.loop import QUERY, SCOPE, RunLoop, _running_loop, handling_cancel, only_looking
from holdfast.replay.verbs import error_of, never_awaited

_LOGGER = logging.getLogger("holdfast.workflow")


def context_here() -> Context | None:
    """Return the Context of the workflow code that is running; see `current_context`."""
    loop: Any = _running_loop()
    scope = SCOPE.get(None)
    if type(loop) is not RunLoop or loop.home is None or scope is None or scope is QUERY:
        return None
    home: RunContext = loop.home
    return home.inside(scope)


class RunContext(Context):
    """The verbs of one run, in one scope."""

    __slots__ = ("_journal", "_scope", "_workflow")

    def __init__(self, journal: Journal, scope: Scope, workflow: Workflow[Any, Any]) -> None:
        self._journal = journal
        self._scope = scope
        self._workflow = workflow

    @property
    def run_id(self) -> str:
        return self._journal.run.id

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        return RunLogger(self._journal, self._scope)

    @property
    def replaying(self) -> bool:
        return self._journal.silent

    def step(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        scope = self._enter()
        return steps.step(self._journal, scope, args, kwargs) if scope else self._never()

    def background(self, *args: Any, **kwargs: Any) -> None:
        scope = self._enter()
        if scope is not None:
            steps.background(self._journal, scope, args, kwargs)

    def sleep(self, duration: timedelta, *, name: str | None = None) -> Awaitable[None]:
        wait = micros(duration)
        scope = self._enter()
        return (
            waits.sleep(self._journal, scope, self._journal.loop.now + self._journal.loop.extra + wait, name)
            if scope
            else self._never()
        )

    def sleep_until(self, moment: datetime, *, name: str | None = None) -> Awaitable[None]:
        deadline = from_datetime(moment)
        scope = self._enter()
        return waits.sleep(self._journal, scope, deadline, name) if scope else self._never()

    def receive(
        self, name: Any, type: Any = Any, /, *, timeout: timedelta | None = None, default: Any = MISSING
    ) -> Any:
        scope = self._enter()
        return waits.receive(self._journal, scope, name, type, timeout, default) if scope else self._never()

    def receive_request(
        self, name: str, type: Any = Any, /, *, timeout: timedelta | None = None, default: Any = MISSING
    ) -> Any:
        if not isinstance(name, str):
            raise BadInput(f"ctx.receive_request() takes one name, not {name!r}")
        scope = self._enter()
        if scope is None:
            return self._never()
        return waits.receive(self._journal, scope, name, type, timeout, default, waits.RequestVerb)

    def reply(self, request: Request[Any], value: object = None) -> None:
        scope = self._enter()
        if scope is not None:
            notes.reply(self._journal, scope, request, value)

    def send(self, run_id: str, name: str, payload: object = None) -> Awaitable[None]:
        scope = self._enter()
        return waits.send(self._journal, scope, run_id, name, payload) if scope else self._never()

    def publish(self, name: str, payload: object = None, *, id: str | None = None) -> Awaitable[None]:
        scope = self._enter()
        return waits.publish(self._journal, scope, name, payload, id) if scope else self._never()

    def join(self, *args: Any) -> Awaitable[dict[str, Any]]:
        scope = self._enter()
        return branches.join(self._journal, scope, self._inner, args) if scope else self._never()

    def race(self, *args: Any) -> Awaitable[Winner[Any]]:
        scope = self._enter()
        return branches.race(self._journal, scope, self._inner, args) if scope else self._never()

    def loop(
        self,
        *args: Any,
        state: Any = MISSING,
        commit_interval: int = 20,
        history_every: int = 20,
        history_keep: int = 20,
    ) -> Any:
        options = loops.LoopOptions(commit_interval, history_every, history_keep)
        scope = self._enter()
        if scope is None:
            return loops.NeverLoop(self._never())
        return loops.loop(self._journal, scope, self._inner, args, state, options)

    def child(  # type: ignore[override]  # the overloads are for callers
        self,
        workflow: Any,
        /,
        *args: Any,
        id: str | None = None,
        propagate: bool | None = None,
        cancel_with_parent: bool = False,
        priority: int = 0,
        attributes: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Child[Any]:
        said = options_given(RunContext.child, locals())
        options = children.child_options(cancel_with_parent, priority, attributes)
        scope = self._enter()
        if scope is None:
            return children.NeverChild(self._never(), id or "")
        return children.child(self._journal, scope, workflow, args, kwargs, said, options)

    def compensate(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        scope = self._enter()
        return compensations.compensate(self._journal, scope, (function, *args), kwargs) if scope is not None else None

    def set_attributes(self, attributes: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        scope = self._enter()
        if scope is not None:
            notes.set_attributes(self._journal, scope, {**(attributes or {}), **more})

    def evidence(self, kind: str, data: object = None) -> str:
        scope = self._enter()
        return notes.evidence(self._journal, scope, kind, data) if scope else ""

    def progress(self, done: float, of: float | None = None) -> None:
        scope = self._enter()
        if scope is not None:
            notes.progress(self._journal, scope, done, of)

    def on_query(self, name: str, handler: Callable[..., object]) -> None:
        check_name(name, "query name")
        given: object = handler
        if not callable(given) or inspect.iscoroutinefunction(given):
            raise BadInput(f"the handler of query {name!r} must be a plain function, not {given!r}")
        if self._enter() is not None:
            journal = self._journal
            journal.queries = {**(journal.queries or {}), name: handler}

    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        if self._enter() is not None:
            journal = self._journal
            forgotten = never_awaited(journal, journal.loop.within)
            if forgotten is not None:
                raise error_of(journal, forgotten)
            journal.renewal = self._workflow.encode_input(args, kwargs)[0]
        raise ContinueAsNew(self.run_id)

    def patched(self, name: str) -> bool:
        check_name(name, "patch name")
        scope, journal = self._enter_sync(), self._journal
        full = f"patched {name}"
        answer = scope.memo(full)
        if answer is None:
            key = journal.names.key(full)
            recorded = key is not None and journal.has_mark(scope.prefix + key, entries.Patched.kind)
            answer = recorded or not journal.past.behind
            if answer and not recorded and not journal.loop.dead:
                if key is None:
                    key = journal.names.add(full)
                    journal.record(NAMES + key, entries.Name(full))
                journal.record(scope.prefix + key, entries.Patched())
            scope.remember(full, answer)
        return answer

    def removed(self, name: str, kind: str = "step") -> None:
        if kind not in entries.BY_WORD:
            raise BadInput(f"removed({name!r}, {kind!r}): the kind is one of {', '.join(entries.BY_WORD)}")
        scope, journal = self._enter_sync(), self._journal
        full = PREFIXES.get(kind, "") + name
        repeat = scope.repeat(full)
        key = journal.names.key(full)
        if key is not None:
            journal.remove(name_key(scope.prefix, key, repeat), kind)

    # What only workflows declared as data ask: they act by what history has.

    def recorded_steps(self) -> list[RecordedStep]:
        """Return the steps that history has in this scope and that were not called yet, in order of their calls."""
        journal = self._journal
        return list(journal.past.steps(journal.names, self._scope.prefix))

    @property
    def facts_left(self) -> int:
        """How much of the history is yet to be replayed."""
        return len(self._journal.past.facts)

    def compensation_recorded(self, name: str, repeat: int) -> bool:
        """Tell whether history has the `repeat`-th call of `compensate` for an activity of this name."""
        return self._journal.has_compensation(self._scope.prefix, name, repeat)

    def now(self) -> datetime:
        return to_datetime(self._journal.loop.now)

    def random(self) -> random.Random:
        scope = self._enter_sync()
        if scope.random is None:
            scope.random = random.Random(self._seed(scope, "random"))  # must be the same on replay
        return cast(random.Random, scope.random)

    def uuid(self) -> uuid.UUID:
        scope = self._enter_sync()
        scope.uuids += 1
        return uuid.UUID(bytes=self._seed(scope, f"uuid {scope.uuids}"), version=4)

    # Where this context may be used.

    def _enter(self) -> Scope | None:
        """Return the scope to act in; None when verbs wait for ever.

        That is while the run is dropped or diverged, and once it was asked to stop, except for code that handles that.
        """
        journal, scope = self._journal, self._scope
        if journal.loop.dead or journal.violation is not None or journal.renewal is not None:
            return self._stay_out()
        if journal.cancelling is not None and not handling_cancel():
            return self._stay_out()
        current = SCOPE.get(None)
        if current is not scope:
            self._come_back(current)
        return scope

    def _stay_out(self) -> Scope | None:
        if SCOPE.get(None) is QUERY:
            raise only_looking("the verbs of a Context")
        return None

    def _enter_sync(self) -> Scope:
        return self._enter() or self._scope

    def _come_back(self, current: Scope | None) -> None:
        """Leave the `async for` loops between the current scope and this one: the code must have broken out of them."""
        if current is None:
            raise NonDeterministic(
                "a Context works only in workflow code; inside a step use step_context(), outside use the engine"
            )
        if current is QUERY:
            raise only_looking("the verbs of a Context")
        around: Scope | None = current
        while around is not None and around is not self._scope:
            around = around.outer
        if around is None:
            raise BadInput(
                f"run {self.run_id}: this Context belongs to another scope; "
                "in a branch or a loop's body use the ctx it is given"
            )
        left = current
        while left is not self._scope:
            cast(loops.DurableLoop, left.loop).leave()
            left = cast(Scope, left.outer)
        SCOPE.set(self._scope)

    def inside(self, scope: Scope) -> RunContext:
        """Return the Context of a scope of this run."""
        if scope is self._scope:
            return self
        iteration = scope.loop.current if isinstance(scope.loop, loops.DurableLoop) else None
        return cast(RunContext, iteration) if iteration is not None else self._inner(scope)

    def _never(self) -> Any:
        return self._journal.loop.create_future()

    def _inner(self, scope: Scope, **iteration: Any) -> RunContext:
        if iteration:
            return IterationContext(self._journal, scope, self._workflow, **iteration)
        return RunContext(self._journal, scope, self._workflow)

    def _seed(self, scope: Scope, purpose: str) -> bytes:
        run = self._journal.run
        text = f"{run.seed}/{run.id}/{run.generation}/{scope.prefix}/{purpose}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest()


class IterationContext(RunContext, Iteration[Any]):
    """The context of one iteration of `async for`."""

    def __init__(self, journal: Journal, scope: Scope, workflow: Workflow[Any, Any], index: int, state: Any) -> None:
        super().__init__(journal, scope, workflow)
        self.index = index
        self.state = state


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Collects log lines in the turn; the engine writes them once the turn is durable."""

    def __init__(self, journal: Journal, scope: Scope) -> None:
        super().__init__(_LOGGER, {})
        self._journal = journal
        self._scope = scope

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        journal = self._journal
        if journal.silent or journal.loop.dead or not self.isEnabledFor(level):
            return
        text, failure = str(msg), kwargs.get("exc_info")
        if failure:
            # Formatted now: the traceback's frames are gone by the time the turn is durable.
            error = failure if isinstance(failure, BaseException) else sys.exc_info()[1]
            text, args = (text % args if args else text) + "\n" + "".join(traceback.format_exception(error)), ()
        line = (level, text, args, journal.names.path(self._scope.prefix.rstrip("/")))
        journal.turn.log(line)


__all__ = ["RunContext", "Verb", "context_here"]
