"""The local activity that makes turns: a run's code in this process, driven by what its interpreter says happened.

Code that is at the same point as the interpreter stays in memory; otherwise it is rebuilt from the interpreter's
entries, as after a crash. The interpreter and its turns are always in the same process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

from temporalio import activity, workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from holdfast.clock import Instant
from holdfast.context.code import WorkflowCode
from holdfast.contract.rows import Message
from holdfast.definitions import Registry
from holdfast.engine.worker.committer import from_callback
from holdfast.errors import HoldfastError, UnknownQuery
from holdfast.logs import Lines
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData, error_to_data
from holdfast.replay.execution import Execution
from holdfast.replay.journal import RunInfo
from holdfast.temporal.driver import Blocked, RunDriver, Whereabouts
from holdfast.temporal.interpreter import Interpreter
from holdfast.temporal.known import Known
from holdfast.temporal.wire import (
    ACTS,
    TURN,
    Ahead,
    Happening,
    RunEnded,
    TurnAnswer,
    TurnInput,
    data_of,
    packed,
    raw,
    result_of,
    rows_of,
    said,
    unpacked,
    with_ahead,
)

_logger = logging.getLogger("holdfast.temporal")
_PATIENCE = 1.5
"""For how many seconds a query is worked on: Temporal gives up a task of a workflow after two."""


class Evicted(NamedTuple):
    """A run as it left memory."""

    due: int | None
    busy: bool
    children: list[str]


class Turns:
    """The runs of one worker."""

    def __init__(
        self, registry: Registry, known: Known, tagging: bool, guarded: bool, queue_of: Callable[[str], str]
    ) -> None:
        self.registry = registry
        self.known = known
        self.tagging = tagging
        """Whether the namespace has the search attribute for a run's own attributes."""
        self.guarded = guarded
        self.queue_of = queue_of
        """The task queue of Temporal's for a queue of holdfast's."""
        self.propagate = True
        """Whether the failure of a child that is awaited is raised, unless its call says so itself."""
        self.local_functions = False
        """Whether a step may be a function that only this process knows: for tests."""
        self.time_of: Callable[[Instant], Instant] = lambda at: at
        """The time of runs at a time of the server's."""
        self.stands_still = False
        """Whether that stands still until it is moved: for tests."""
        self.evicted: dict[str, Evicted] | None = None
        """Open runs that left memory, by their ids, as they were: only for tests."""
        self.orphans: set[str] = set()
        """Children whose parent has ended, while somebody notes those that left memory."""
        self.live: dict[tuple[str, str], Any] = {}
        """Those functions, by run and path."""
        self.lent: dict[tuple[str, str], Any] = {}
        """Those of the other engines of a test, too."""
        self.bodies: dict[tuple[str, str], Callable[[], None]] = {}
        """How to stop the bodies that run in this process, by execution and path."""
        self.on_blocked: Callable[[str], None] = lambda run_id: None
        self.on_given_up: Callable[[str, str | None], None] = lambda run_id, path: None
        """Called with a run, and a step unless all of the run is over."""
        self.gone: set[str] = set()
        """Executions in memory that a caller ended."""
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Any] = deque()
        self._interpreters: dict[str, Interpreter] = {}
        self._drivers: dict[str, RunDriver] = {}

    # Called by interpreters, on the threads that Temporal runs them on.

    def entered(self, key: str, interpreter: Interpreter) -> None:
        """Note an execution that this process has in memory."""
        self._interpreters[key] = interpreter
        if self.evicted is not None:
            self.evicted.pop(interpreter.run_id, None)

    def left(self, key: str) -> None:
        """Forget an execution that ended, or was evicted."""
        interpreter = self._interpreters.pop(key, None)
        self.gone.discard(key)
        if self.evicted is not None and interpreter is not None:
            children = list(interpreter.carry.children)
            if not interpreter.done.done():
                self.evicted[interpreter.run_id] = Evicted(interpreter.alarms.due, _is_busy(interpreter), children)
            elif _goes_on(interpreter):
                self.evicted[interpreter.run_id] = Evicted(None, False, children)
            else:
                self.orphans.update(children)
        self._soon(self._forget, key)

    def stop(self, key: str, path: str) -> None:
        """Tell a body that its step was given up: sooner than by its next heartbeat, if it runs here."""
        self._soon(self._stop, key, path)

    def said_end(self, run_id: str, ended: RunEnded) -> None:
        """Log the failure of a run, even if nobody asks for its result."""
        if ended.status == "failed" and ended.error:
            error = codec.decode(ended.error.encode(), ErrorData)
            trace = Lines(f"\n{error.traceback}")
            _logger.warning("run %s failed: %s: %s%s", run_id, error.type, error.message, trace)

    def asked(self, interpreter: Interpreter, name: str, args: Sequence[RawValue]) -> RawValue:
        """Answer a query: about the run, or of its code."""
        if name == ACTS + "carry":
            return packed(interpreter.carried(interpreter.carry.generation, interpreter.rows))
        if name == ACTS + "leaving":
            return packed(interpreter.leaving.left())
        if name == ACTS + "state":
            return packed(_state_of(interpreter))
        if interpreter.leaving.closes and interpreter.ended is None:
            raise RuntimeError(f"Moved: {interpreter.leaving.address}")
        key = interpreter.key
        answer: concurrent.futures.Future[bytes] = concurrent.futures.Future()
        self._soon(self._ask, interpreter, key, name, args, answer)
        try:
            return raw(answer.result(_PATIENCE))
        except Exception as error:
            if not answer.done():
                words = f"query {name!r} of run {interpreter.run_id} took longer than Temporal lets a query take"
                raise ApplicationError(words, type="QueryTooLong", non_retryable=True) from None
            name = type(error).__name__ if isinstance(error, HoldfastError) else error_to_data(error).type
            raise RuntimeError(f"{name}: {error}") from error

    def _soon(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop is closed, and the worker gone
            return

    # On the worker's own event loop.

    def terminated(self, run_id: str) -> None:
        """Stop the bodies of a run that a caller ended: Temporal tells its workers nothing but by their heartbeats."""
        for key, interpreter in list(self._interpreters.items()):
            if interpreter.run_id == run_id and not interpreter.done.done():
                self.gone.add(key)
                for begin, _ in list(interpreter.attempts.values()):
                    self._stop(key, begin.path)
                self._forget(key)
                self.on_given_up(run_id, None)

    def activity(self) -> Callable[..., Any]:
        """Return the local activity."""

        @activity.defn(name=TURN)
        async def turn(value: RawValue) -> RawValue:
            key = activity.info().workflow_run_id or ""
            batch = unpacked(value, TurnInput)
            answer = await from_callback(lambda: self._make(key, batch))
            try:
                return packed(answer)
            except Exception as error:  # what JSON does not carry: nothing of the turn is recorded
                await from_callback(lambda: self._forget(key))
                blocked = _blocked(error)
                self._say_blocked(self._interpreters[key].run_id, blocked.blocked)
                return packed(blocked)

        return turn

    async def ended(self, key: str, step: str, attempt: int, at: int, result: bytes) -> RawValue:
        """Return what Temporal is told of an attempt that succeeded: its result, and the turn that takes it.

        That turn is made at once if the run's code is in memory here and nothing else of the run is under way, so that
        Temporal need not ask for it. Whether it counts is for the interpreter to say, when it hears of the result: if
        something else came first, the turn never was, and the code is brought to where it was before.
        """

        def ahead() -> RawValue | None:
            made = self._ahead(key, step, attempt, at, result)
            try:
                return with_ahead(result, made) if made is not None else None
            except Exception:  # what JSON does not carry: the turn that Temporal asks for says so
                self._forget(key)
                return None

        return await from_callback(ahead) or raw(result)

    def _ahead(self, key: str, step: str, attempt: int, at: int, result: bytes) -> Ahead | None:
        interpreter, driver = self._interpreters.get(key), self._drivers.get(key)
        location = _only_attempt(interpreter, step, attempt) if interpreter is not None else None
        if interpreter is None or driver is None or location is None or driver.number != interpreter.number:
            return None
        number = driver.number
        answer = self._taken(key, TurnInput(number, [Happening("end", at, location, attempt, result_of(result))]))
        return Ahead(number, at, answer) if not answer.blocked else None

    def _make(self, key: str, batch: TurnInput) -> TurnAnswer:
        answer = self._taken(key, batch)
        if answer.blocked:
            self._say_blocked(self._interpreters[key].run_id, answer.blocked)
        return answer

    def _taken(self, key: str, batch: TurnInput) -> TurnAnswer:
        interpreter = self._interpreters[key]
        driver = self._drivers.pop(key, None)
        if driver is not None and driver.number != batch.number:
            driver.execution.drop()
            driver = None
        try:
            if driver is None:
                driver = self._driver(interpreter, False)
                driver.begin(batch)
            answer = driver.take(batch)
        except Exception as error:  # also a workflow that is not known here, or an input that does not fit
            return _blocked(error)
        if answer.ended is None and not answer.blocked:
            driver.number = batch.number + 1
            self._drivers[key] = driver
        else:
            driver.execution.drop()
        if answer.ended is not None:
            self.on_given_up(interpreter.run_id, None)
        return answer

    def _say_blocked(self, run_id: str, why: str) -> None:
        _logger.error("run %s is blocked: %s", run_id, why[:500])
        self.on_blocked(run_id)

    def _driver(self, interpreter: Interpreter, looked_at: bool) -> RunDriver:
        """Bring the code of a run to where its entries end."""
        carry = interpreter.carry
        workflow = self.registry.get(interpreter.info.workflow_type, carry.workflow_version)
        args, kwargs = workflow.decode_input(data_of(interpreter.input).decode())
        rows = rows_of(interpreter.rows)
        begun = rows[0].at if carry.generation and rows else carry.begun
        info = RunInfo(
            interpreter.run_id,
            workflow.name,
            carry.generation,
            carry.seed,
            0,
            carry.reopens,
            carry.deadline,
            propagate=self.propagate,
            looked_at=looked_at,
        )
        code = WorkflowCode(workflow, args, kwargs)
        execution = Execution(info, code, self._ready, begun, self.registry.errors, self.guarded)
        execution.journal.activities = self.registry.activities
        inbox = [Message(*row) for row in interpreter.inbox.values()]
        # In this order: the interpreter, on another thread, notes an end before it forgets what has ended.
        under_way = {*list(interpreter.attempts), *list(interpreter.waiting)}
        under_way |= {begin.location for begin in list(interpreter.held_back)}
        under_way |= {happening.location for happening in list(interpreter.happenings)}
        return RunDriver(self, execution, code, Whereabouts(rows, inbox, under_way, carry, workflow.queue))

    def _ask(
        self,
        interpreter: Interpreter,
        key: str,
        name: str,
        args: Sequence[RawValue],
        answer: concurrent.futures.Future[bytes],
    ) -> None:
        """Ask the code in memory, or bring it there only to be asked."""
        try:
            kwargs = [codec.decode(data_of(each)) for each in args if said(each, "kwargs")]
            values = [codec.decode(data_of(each)) for each in args if not said(each, "kwargs")]
            driver = self._drivers.get(key)
            if driver is not None and driver.number == interpreter.number:
                answer.set_result(driver.execution.query(name, values, kwargs[0] if kwargs else {}))
                return
            if not interpreter.number and not interpreter.rows:
                raise UnknownQuery(f"run {interpreter.run_id} has not begun, so it answers nothing yet")
            looked_at = self._driver(interpreter, True)
            try:
                looked_at.execution.begin(looked_at.place.rows, looked_at.place.inbox, None)
                answer.set_result(looked_at.execution.query(name, values, kwargs[0] if kwargs else {}))
            finally:
                looked_at.execution.drop()
        except BaseException as error:
            if not answer.done():
                answer.set_exception(error)

    def resident(self) -> set[str]:
        """Return the ids of the runs that this process has in memory, and of their children."""
        interpreters, evicted = list(self._interpreters.values()), dict(self.evicted or {})
        children = [child for interpreter in interpreters for child in list(interpreter.carry.children)]
        children += [child for each in evicted.values() for child in each.children]
        return {*(interpreter.run_id for interpreter in interpreters), *evicted, *children}

    def busy(self, served: Container[str], but_for_bodies: bool = False) -> bool:
        """Whether one of them has something under way; or something else than bodies that run here.

        A step whose queue is not `served` is not under way.
        """
        evicted = any(each.busy for each in list((self.evicted or {}).values()))
        bodies = set(self.bodies) if but_for_bodies else set()
        open_ones = [each for key, each in list(self._interpreters.items()) if key not in self.gone]
        return evicted or any(_is_busy(each, bodies, served) for each in open_ones)

    def due(self) -> dict[str, int | None]:
        """Return when each of them has something to do next, by its id; None if it waits for no time."""
        evicted = {run_id: each.due for run_id, each in list((self.evicted or {}).items())}
        return evicted | {
            interpreter.run_id: interpreter.alarms.due for interpreter in list(self._interpreters.values())
        }

    def close(self) -> None:
        """Let go of all code in memory, without letting it act."""
        for key in list(self._drivers):
            self._forget(key)

    def _forget(self, key: str) -> None:
        driver = self._drivers.pop(key, None)
        if driver is not None:
            driver.execution.drop()

    def _stop(self, key: str, path: str) -> None:
        stop = self.bodies.get((key, path))
        if stop is not None:
            stop()


def _is_busy(
    interpreter: Interpreter, bodies: Container[tuple[str, str]] = (), served: Container[str] | None = None
) -> bool:
    """Whether a run has something under way, beside these bodies of steps."""
    attempts = [begin for begin, _ in list(interpreter.attempts.values())]
    attempts = [begin for begin in attempts if not begin.queue or served is None or begin.queue in served]
    attempting = any((interpreter.key, begin.path) not in bodies for begin in attempts)
    under_way = interpreter.turning is not None or attempting or interpreter.waiting or interpreter.happenings
    return bool(under_way) and not interpreter.paused and not interpreter.blocked


def _only_attempt(interpreter: Interpreter, path: str, attempt: int) -> str | None:
    """Return the location of an attempt if the run waits for it and nothing else is under way."""
    attempts = list(interpreter.attempts.items())
    waits = not (interpreter.happenings or interpreter.waiting) and interpreter.is_idle()
    if len(attempts) != 1 or not waits or interpreter.carry.version < 3:
        return None
    location, (begin, _) = attempts[0]
    return location if (begin.path, begin.attempt) == (path, attempt) else None


def _goes_on(interpreter: Interpreter) -> bool:
    """Whether a run whose execution is over has another."""
    ended = interpreter.ended
    return ended.status == "renewed" if ended is not None else not interpreter.leaving.closes


def _blocked(error: Exception) -> TurnAnswer:
    data = error.error if isinstance(error, Blocked) else error_to_data(error)
    return TurnAnswer(taken=0, blocked=codec.encode(data).decode())


def _state_of(interpreter: Interpreter) -> dict[str, Any]:
    """Say where a run stands."""
    status = interpreter.answer.status
    if interpreter.ended is not None:
        status = interpreter.ended.status if interpreter.ended.status != "renewed" else "running"
    elif interpreter.blocked:
        status = "blocked"
    elif interpreter.paused:
        status = "paused"
    elif interpreter.early is not None:
        status = "pending"
    leaving = interpreter.leaving
    if leaving.leaves:
        status = "moving"
    said = {"status": status, "wait": interpreter.answer.wait, "due": interpreter.alarms.due}
    return {**said, "held": leaving.token, "leaves": leaving.leaves, "rests": leaving.rests}


def interpreter_class(turns: Turns) -> type:
    """Return the workflow of Temporal's that runs whatever workflow of holdfast's it is started as."""

    def __init__(self: Any) -> None:
        self.interpreter = Interpreter(turns)

    async def run(self: Any, args: Sequence[RawValue]) -> RawValue:
        ended: RawValue = await self.interpreter.run(args)
        return ended

    def told(self: Any, name: str, args: Sequence[RawValue]) -> None:
        self.interpreter.told(name, args)

    async def requested(self: Any, name: str, args: Sequence[RawValue]) -> RawValue:
        answer: RawValue = await self.interpreter.leaving.asked(name, args)
        return answer

    def asked(self: Any, name: str, args: Sequence[RawValue]) -> RawValue:
        return turns.asked(self.interpreter, name, args)

    functions: list[Callable[..., Any]] = [__init__, run, told, requested, asked]
    for function in functions:
        function.__qualname__ = f"Run.{function.__name__}"  # the SDK refuses what is defined inside a function
        del function.__annotations__["self"]  # which it would count among the arguments
    methods: dict[str, Any] = {
        "__init__": __init__,
        "run": workflow.run(run),
        "told": workflow.signal(dynamic=True)(told),
        "requested": workflow.update(dynamic=True)(requested),
        "asked": workflow.query(dynamic=True)(asked),
    }
    return workflow.defn(dynamic=True)(type("Run", (), methods))
