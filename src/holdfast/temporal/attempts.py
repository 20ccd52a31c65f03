"""One attempt of a step, as an activity of Temporal's: run by holdfast's own executor.

Temporal makes it once. The run's next turn decides whether there is another attempt, and when. For long bodies this
module sends heartbeats, whose absence reveals a dead worker.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, cast

import msgspec
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from holdfast.bodies.admission import not_ready
from holdfast.bodies.attempt import Attempt
from holdfast.bodies.context import StepContext
from holdfast.bodies.executor import Executor
from holdfast.clock import Clock, from_datetime, micros
from holdfast.contract.rows import Task
from holdfast.definitions import Activity
from holdfast.engine.steps.queue.incoming import QueuedWork
from holdfast.engine.steps.queue.wire import TaskCall, TaskEnd
from holdfast.errors import DefinitionError, UnknownLimit
from holdfast.limits import Limits
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData, error_to_data
from holdfast.payloads.errors import tamed
from holdfast.policy import asked_delay
from holdfast.replay.entry import OVER_LIMIT
from holdfast.temporal.turns import Turns
from holdfast.temporal.wire import MOST_BYTES, AttemptCall, data_of, raw, too_large, unpacked

_logger = logging.getLogger("holdfast.temporal")


class TemporalBodies:
    """The attempts of one worker."""

    def __init__(
        self,
        turns: Turns,
        executor: Executor,
        limits: Limits,
        clock: Clock,
        lease: float,
        app: Callable[[], Any] | None,
    ) -> None:
        self._turns = turns
        self._executor = executor
        self._limits = limits
        self._clock = clock
        self._lease = lease
        self._app = app

    def activity(self) -> Callable[..., Any]:
        """Return the activity of Temporal's that runs whatever activity of holdfast's it is asked for."""

        @activity.defn(dynamic=True)
        async def attempt(args: Sequence[RawValue]) -> RawValue:
            return await self._attempt(unpacked(args[0], AttemptCall), int(data_of(args[1])))

        return attempt

    async def _attempt(self, said: AttemptCall, number: int) -> RawValue:
        info = activity.info()
        run_id, workflow, name = info.workflow_id or "", info.workflow_type or "", info.activity_type
        call = _call_of(said, run_id, info.activity_id.removesuffix(f" (attempt {number})"))
        context = StepContext(run_id, workflow, number)
        context.step, context.idempotency_key = call.step, call.key
        loop, here = asyncio.get_running_loop(), contextvars.copy_context()

        def report(_: StepContext, progress: str, told: Callable[[object], None]) -> None:
            loop.call_soon_threadsafe(here.run, _beat, progress)
            loop.call_soon_threadsafe(told, None)

        context.report = report
        turns, place = self._turns, (run_id, call.step)
        definition = turns.live.get(place) or turns.known.get(workflow, name) or turns.lent.get(place)
        try:
            if definition is None:
                raise DefinitionError(
                    f"no activity {name!r} is known to this worker: give it to TemporalEngine(activities=[...])"
                )
            task = Task(
                run=0,
                run_id=run_id,
                workflow=workflow,
                location="",
                attempt=number,
                queue="",
                activity=name,
                payload="",
            )
            limit = definition.settings.limit
            if limit is not None and not self._limits.is_own(limit):
                raise UnknownLimit(
                    f"step {call.step!r}: the worker that runs it does not declare the limit {limit!r}: add "
                    f"Limit(name={limit!r}, scope='engine', ...) to TemporalEngine(limits=[...])"
                )
            work = QueuedWork(definition, task, call)
            context.verb, context.clock = work, self._clock  # type: ignore[assignment]  # as much of a verb as it asks
            why = not_ready(context, definition.settings, self._app)
        except Exception as error:
            raise failure(TaskEnd(error=error_to_data(error))) from None
        if why is not None:
            await _tell(definition.settings.on_skipped, context, why.reason)
            raise failure(TaskEnd(skip=why.reason, retry_in=micros(why.retry_in)))
        return await self._outcome(definition, work, context)

    async def _outcome(self, definition: Activity[..., Any], work: QueuedWork, context: StepContext) -> RawValue:
        settings, info, loop = definition.settings, activity.info(), asyncio.get_running_loop()
        began = loop.time()
        end = await self._run(work, context)
        if isinstance(end.result, msgspec.Raw):
            result = bytes(end.result)
            if len(result) > MOST_BYTES:
                error = too_large(f"the result of step {context.step!r}", len(result))
                raise failure(TaskEnd(error=error_to_data(error, retryable=False)))
            await _tell(settings.on_success, context, codec.decode(result))
            ended = from_datetime(info.started_time) + int((loop.time() - began) * 1e6)  # by the server's clock
            at = self._turns.time_of(ended)
            return await self._turns.ended(info.workflow_run_id or "", context.step, context.attempt, at, result)
        if end.error is not None:
            await _tell(settings.on_failure, context, end.error)
        raise failure(end)

    async def _run(self, work: QueuedWork, context: StepContext) -> TaskEnd:
        """Run the body, and say from time to time that this worker lives."""
        ended: asyncio.Future[TaskEnd] = asyncio.get_running_loop().create_future()
        attempt = Attempt(self._executor, work, ended, context, self._done)
        on_start = work.activity.settings.on_start
        if on_start is not None:
            attempt.opening = partial(_tell, on_start, context)
        self._executor.run(attempt, partial(self._admit, context))
        info = activity.info()
        place = (info.workflow_run_id or "", context.step)
        self._turns.bodies[place] = partial(attempt.stop, "cancelled")
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=self._lease / 3)
                if not ended.done():
                    _beat()
        except asyncio.CancelledError:
            attempt.stop("the worker stops" if activity.is_worker_shutdown() else "cancelled")
            raise failure(TaskEnd(lost="handed back")) from None
        finally:
            self._turns.bodies.pop(place, None)
        return ended.result()

    def _admit(self, context: StepContext, attempt: Attempt) -> bool:
        settings = attempt.verb.activity.settings
        if settings.limit is not None:
            now = self._clock.now()
            turn = self._limits.turn_of(settings.limit, (hash(context.run_id), context.step), now)
            if turn > now:
                attempt.owner.set_result(TaskEnd(skip=f"{OVER_LIMIT}{settings.limit!r}", retry_in=turn - now))
                return False
        return True

    def _done(self, attempt: Attempt, result: bytes | None, error: BaseException | ErrorData | None) -> None:
        ended: asyncio.Future[TaskEnd] = attempt.owner
        if ended.done():
            return
        if result is not None:
            ended.set_result(TaskEnd(result=msgspec.Raw(result)))
            return
        settings = attempt.verb.activity.settings
        if issubclass(type(error), ErrorData):  # isinstance would ask an exception for its class, which may raise
            data = cast(ErrorData, error)
        else:
            error = cast(BaseException, error)
            data = error_to_data(error)
            wait = asked_delay(tamed(error))
            if settings.limit is not None and wait is not None:
                self._limits.hold(settings.limit, self._clock.now() + wait)
        ended.set_result(TaskEnd(error=data, isolated=attempt.isolated))


def _call_of(said: AttemptCall, run_id: str, step: str) -> TaskCall:
    return TaskCall(
        step=step,
        arguments=said.arguments,
        key=said.key or f"{run_id}:{step}",
        called_at=said.called_at,
        own_key=said.own_key,
        timeout=said.timeout,
        heartbeat_timeout=said.heartbeat_timeout,
        suspect=said.suspect,
        in_process=said.in_process,
    )


def _beat(progress: str | None = None) -> None:
    """Say that this worker lives, and what the body says of its progress."""
    activity.heartbeat(*([msgspec.json.decode(progress)] if progress else []))


def failure(end: TaskEnd) -> ApplicationError:
    """Return what is raised in place of a result, under the name and message of the error itself."""
    name, message = "NotRun", end.lost or str(end.skip)
    if end.error is not None:
        name, message = end.error.type, end.error.message
    # Benign, so that the SDK does not log a traceback of its own code for each: the run's next turn judges the error.
    category = ApplicationErrorCategory.BENIGN
    return ApplicationError(message, raw(end.encoded()), type=name, non_retryable=True, category=category)


def _tell(callback: Callable[..., object] | None, *told: object) -> Coroutine[Any, Any, None]:
    """Call back: at least once, and before what it is told is recorded. What it raises is only reported."""

    async def call() -> None:
        if callback is None:
            return
        try:
            said = callback(*told)
            if inspect.isawaitable(said):
                await said
        except Exception:
            _logger.exception("a callback failed")

    return call()
