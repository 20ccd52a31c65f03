"""Attempts from queues: taken as there is room, run like any other, and their ends put into the inboxes of their runs.

The run may be in the memory of another worker, or of none. While an attempt is under way its task in the store belongs
to this worker. Once it does not (the run gave the step up or ended, or this worker was declared dead), the body is
stopped, and its result is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec

from holdfast.bodies.admission import is_transient, not_ready
from holdfast.bodies.attempt import Attempt
from holdfast.bodies.child_process import read_arguments
from holdfast.bodies.context import StepContext
from holdfast.bodies.executor import Executor
from holdfast.changes import Change
from holdfast.clock import Instant, micros, to_datetime
from holdfast.contract.limits import TakeTasks, TasksTaken
from holdfast.contract.operations import BeatTask, Delivered, Fenced, FinishTask, KeepResult, Outcome
from holdfast.contract.rows import Task
from holdfast.contract.store import Store
from holdfast.contract.turns import LeaveKey, LeaveLimit
from holdfast.definitions import Activity
from holdfast.engine.runs.runner import Runner
from holdfast.engine.steps.limits.limited import unknown_limit
from holdfast.engine.steps.limits.places import LimitPlace
from holdfast.engine.steps.queue.served import STRICT, Queues
from holdfast.engine.steps.queue.wire import TaskCall, TaskEnd, read_call
from holdfast.engine.views.observers import Observers
from holdfast.engine.worker.committer import Committer
from holdfast.errors import UndecodablePayload
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData, error_from_data, error_to_data
from holdfast.payloads.errors import tamed
from holdfast.policy import asked_delay
from holdfast.replay.entry import OVER_LIMIT, STOPPED

_logger = logging.getLogger("holdfast.engine")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
_SOON = 20_000
"""After how many microseconds a claim, or an end that is told once more, no longer gives way to the other."""

Place = tuple[int, str]


class QueuedWork:
    """A step that a run called, as far as an attempt of it has to know."""

    def __init__(self, activity: Activity[..., Any], task: Task, call: TaskCall) -> None:
        longest, silent = _duration(call.timeout), _duration(call.heartbeat_timeout)
        if (longest, silent) != (activity.settings.timeout, activity.settings.heartbeat_timeout):
            activity = activity.options(timeout=longest, heartbeat_timeout=silent)
        self.activity = activity
        self.attempt = task.attempt
        self.called_at = call.called_at
        self.suspect = call.suspect
        self.in_process = call.in_process
        try:
            self.args, self.kwargs = read_arguments(activity.function, bytes(call.arguments))
        except TypeError as error:
            raise UndecodablePayload(f"the arguments of step {call.step!r} do not fit: {error}") from error

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments: no other attempt has these."""
        return self.args, self.kwargs


class HeldTask:
    """An attempt that this worker has taken."""

    __slots__ = ("attempt", "call", "limited", "task", "unknown", "worker")

    def __init__(self, task: Task, worker: str, limited: LimitPlace | None = None, unknown: str = "") -> None:
        self.task = task
        self.worker = worker
        """Under which name it was taken: this worker may get another one."""
        self.limited = limited
        """Its place of a limit that workers share."""
        self.unknown = unknown
        """The limit that it names and no engine declares."""
        self.call: TaskCall | None = None
        self.attempt: Attempt | None = None

    @property
    def place(self) -> Place:
        """Which step it is of."""
        return self.task.run, self.task.location

    @property
    def number(self) -> tuple[int, str, int]:
        """Which attempt it is."""
        return *self.place, self.task.attempt


class TaskRunner:
    """The attempts that one worker takes from queues."""

    def __init__(
        self,
        store: Store,
        queues: Queues,
        runner: Runner,
        executor: Executor,
        committer: Committer,
        observers: Observers,
        look_again: Callable[[Instant], None],
    ) -> None:
        self._store = store
        self._queues = queues
        self._runner = runner
        self._executor = executor
        self._committer = committer
        self._observers = observers
        self._look_again = look_again
        self._places = runner.attempts.limited.tasks
        self.next_turn: Instant | None = None
        """When the next attempt that waits for the rate of its limit may begin, as far as this worker knows."""
        self._running: dict[Place, HeldTask] = {}
        self._finishing: dict[Place, HeldTask] = {}
        self._told_again: set[HeldTask] = set()
        """Whose end is being told once more: the store may have taken it, and have given out the next attempt since."""
        self._unknown: set[tuple[int, str, int]] = set()
        self._by_priority = 0
        """How many were taken by priority, from queues that age, since the last that had waited longest."""
        self._claiming = False
        """Whether the store may have given this worker attempts that it has not heard of yet."""
        self._crowded = False
        """Whether more may wait than there was room for."""
        self._over = False
        """Whether this engine stops too soon for what it took last."""

    @property
    def busy(self) -> bool:
        """Whether an attempt has ended and the store does not know yet."""
        return bool(self._finishing)

    @property
    def holding(self) -> bool:
        """Whether this worker has attempts, as far as it knows or fears."""
        return bool(self._running or self._finishing or self._unknown)

    # Taking.

    async def claim(self, worker: str) -> bool:
        """Take as many attempts as there is room for; tell whether there were any."""
        if self._told_again:
            self._look_again(self._runner.clock.now() + _SOON)
            return False
        self._crowded = found = False
        self.next_turn = None
        for room, names, limit in self._rooms():
            if room <= 0:
                self._crowded = True
                continue
            queues = self._queues
            self._claiming = True
            try:
                if queues.at_once or queues.ageing:
                    found = await self._take(worker, room, names, limit) > 0 or found
                else:
                    found = bool(await self._claim(worker, room, queues.open_names, names, limit)) or found
            finally:
                self._claiming = False
        if self.next_turn is not None:
            self._look_again(self.next_turn)
        return found

    async def _take(self, worker: str, room: int, names: list[str], limit: str | None) -> int:
        """Take attempts of activities; where queues age, for each nine by priority the one that has waited longest."""
        queues, taken = self._queues, 0
        ageing = [name for name in queues.open_names if name in queues.ageing] if queues.ageing else []
        owed = min(self._by_priority // STRICT, room) if ageing else 0
        if owed:
            taken = len(await self._claim(worker, owed, ageing, names, limit, oldest=True))
            self._by_priority -= STRICT * taken
        # While one is owed none is taken before it: its queue may just have been full.
        served = [name for name in queues.open_names if taken == owed or name not in queues.ageing]
        if taken < room and served:
            strictly = await self._claim(worker, room - taken, served, names, limit)
            self._by_priority += sum(held.task.queue in queues.ageing for held in strictly)
            taken += len(strictly)
        return taken

    async def _claim(
        self, worker: str, room: int, queues: Sequence[str], names: list[str], limit: str | None, oldest: bool = False
    ) -> list[HeldTask]:
        """Take attempts and begin them; return them."""
        now, most = self._runner.clock.now(), self._queues.at_once or None
        if limit is not None:
            tasks = await self._claim_limited(worker, room, queues, names, limit, oldest)
        else:
            found = await self._store.claim_tasks(worker, now, room, queues, names, at_once=most, oldest=oldest)
            tasks = [HeldTask(task, worker) for task in found]
        for held in tasks:
            self._begin(held)
        return tasks

    async def _claim_limited(
        self, worker: str, room: int, queues: Sequence[str], names: list[str], limit: str, oldest: bool
    ) -> list[HeldTask]:
        """Take attempts that have a place of their limit, if any wait; the others are put in line."""
        runner, limited, more = self._runner, self._runner.attempts.limited, True
        tasks: list[HeldTask] = []
        waits, turn = await self._store.limited_tasks(limit, queues, names)
        more = waits or (turn is not None and turn <= limited.clock.now())
        while more:
            take = TakeTasks(
                worker=worker,
                limit=limit,
                room=room,
                queues=[*queues],
                activities=names,
                at=runner.clock.now(),
                now=limited.clock.now(),
                at_once={name: most for name, most in self._queues.at_once.items() if name in queues},
                oldest=oldest,
            )
            self._places.asked += 1
            limited.used = True
            try:
                taken = await self._committer.apply(take)
            except Exception:
                limited.doubt = True  # what it took nevertheless is handed back by `check`
                raise
            finally:
                self._places.asked -= 1
            assert isinstance(taken, TasksTaken)
            turn, more = taken.turn, taken.more
            for each in taken.tasks:
                place = self._places.took(each, limit, worker)
                tasks.append(HeldTask(each.task, worker, place, limit if place is None else ""))
            if taken.woke_others:
                runner.host.woke_others()
        if turn is not None:
            at = runner.clock.now() + max(turn - limited.clock.now(), 0)
            self.next_turn = at if self.next_turn is None else min(at, self.next_turn)
        return tasks

    def _rooms(self) -> Iterator[tuple[int, list[str], str | None]]:
        """Return how many attempts there is room for now, of activities that share it, and the limit of all workers."""
        if self._over:
            return
        alike: dict[object, list[Activity[..., Any]]] = {}
        for activity in self._queues.activities.values():
            if not self._runner.too_late(activity.settings):
                settings = activity.settings
                alike.setdefault((activity.is_async, settings.isolate, settings.limit), []).append(activity)
        limits = self._runner.limits
        for activities in alike.values():
            if not self._judging:
                limit = activities[0].settings.limit
                shared = limit if limit is not None and not limits.is_own(limit) else None
                yield self._executor.free(activities[0]), [activity.name for activity in activities], shared

    @property
    def _judging(self) -> bool:
        """Whether a suspect runs in this very process: another one, merely waiting, would be blamed for its death."""
        attempts = (held.attempt for held in self._running.values())
        return any(each is not None and self._in_danger(each.verb) for each in attempts)

    def _in_danger(self, work: Any) -> bool:
        return bool(work.suspect) and not self._executor.isolates(work)

    def _begin(self, held: HeldTask) -> None:
        # What this worker had there before is over in the store, whether or not it has heard of that.
        self._finishing.pop(held.place, None)
        if (before := self._running.get(held.place)) is not None:
            self._give_up(before)
        task, runner = held.task, self._runner
        context = StepContext(task.run_id, task.workflow, task.attempt)
        try:
            held.call = call = read_call(task.payload)
            work = QueuedWork(self._queues.activities[task.activity], task, call)
            context.step, context.idempotency_key = call.step, call.key
            context.report = partial(self._report, held)
            context.verb, context.clock = work, runner.clock  # type: ignore[assignment]  # as much of a verb as it asks
            if held.unknown:
                raise unknown_limit(call.step, held.unknown)
            if self._in_danger(work) and self._judging:
                self._finish(held, TaskEnd(lost="bystander"))
                return
            why = not_ready(context, work.activity.settings, runner.app)
        except msgspec.MsgspecError as error:
            self._finish(held, TaskEnd(error=error_to_data(UndecodablePayload(f"a task cannot be read: {error}"))))
            return
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._finish(held, TaskEnd(error=error_to_data(error)))
            return
        if why is not None:
            self._finish(held, TaskEnd(skip=why.reason, retry_in=micros(why.retry_in)))
            return
        self._running[held.place] = held
        attempt = held.attempt = Attempt(self._executor, work, held, context, self._done)
        if held.limited is not None:
            attempt.limit = None  # its place is counted in the store
        if call.own_key is not None:
            attempt.late = partial(self._late, held)
        on_start = work.activity.settings.on_start
        if on_start is not None:
            attempt.opening = partial(self._observers.call, on_start, task.run_id, context)
        self._executor.run(attempt, self._admit)

    def _admit(self, attempt: Attempt) -> bool:
        """Tell whether an attempt that has got its place may begin: it may have waited for it."""
        held: HeldTask = attempt.owner
        settings, runner = attempt.verb.activity.settings, self._runner
        end: TaskEnd | None = None
        if runner.too_late(settings):
            self._over, end = True, TaskEnd(lost="handed back")
        elif settings.limit is not None and held.limited is None:
            now = runner.clock.now()
            turn = runner.limits.turn_of(settings.limit, held.place, now)
            if turn > now:
                end = TaskEnd(skip=f"{OVER_LIMIT}{settings.limit!r}", retry_in=turn - now)
        if end is not None:
            self._finish(held, end)
            return False
        return True

    # Ending.

    def _done(self, attempt: Attempt, result: bytes | None, error: BaseException | ErrorData | None) -> None:
        held: HeldTask = attempt.owner
        if self._running.get(held.place) is not held:
            return
        if result is not None:
            self._finish(held, TaskEnd(result=msgspec.Raw(result)), "ok")
            return
        assert error is not None
        settings = attempt.verb.activity.settings
        if type(error) is ErrorData:
            data, raised = error, error_from_data(error, {})
        else:
            assert isinstance(error, BaseException)
            data, raised = error_to_data(error), tamed(error)
        wait = asked_delay(raised)
        if settings.limit is not None and wait is not None and held.limited is None:
            self._runner.limits.hold(settings.limit, self._runner.clock.now() + wait)
        verdict = ""
        if held.limited is not None and wait is None and not attempt.isolated:  # a suspect is judged by its run
            verdict = "failed" if is_transient(settings.retry, raised, data) else ""
        self._finish(held, TaskEnd(error=data, isolated=attempt.isolated), verdict, wait)

    def _finish(self, held: HeldTask, end: TaskEnd, verdict: str = "", hold: int | None = None) -> None:
        self._running.pop(held.place, None)
        self._finishing[held.place] = held
        place, leave = held.limited, None
        if place is not None:
            leave = self._places.left(place, held.attempt, verdict, hold)
        self._tell(held, end.encoded(), _FIRST_PAUSE, leave)
        if self._crowded:
            self._runner.host.tasks_queued()

    def _tell(self, held: HeldTask, payload: str, pause: float, leave: LeaveLimit | None = None) -> None:
        """Let the run know how an attempt ended, however long the store cannot take it."""
        task, at = held.task, self._runner.clock.now()
        operation = FinishTask(
            run=task.run,
            location=task.location,
            attempt=task.attempt,
            worker=held.worker,
            payload=payload,
            at=at,
            leave=leave,
        )
        limited = self._runner.attempts.limited

        def done(outcome: Outcome | Exception) -> None:
            self._told_again.discard(held)
            if isinstance(outcome, Exception) and not self._runner.stopping:
                limited.doubt = limited.doubt or leave is not None  # it may have been given back
                self._executor.loop.call_later(pause, self._tell_again, held, payload, pause)
                return
            if self._finishing.get(held.place) is held:
                del self._finishing[held.place]
            if held.task.queue in self._queues.at_once or leave is not None:
                self._runner.host.tasks_queued()
            if isinstance(outcome, Delivered):
                self._runner.host.delivered(outcome)
            elif isinstance(outcome, Fenced):
                _logger.info("attempt %d of a step of run %s is not wanted any more", task.attempt, task.run_id)
                if leave is not None:
                    limited.give_back([leave])
                self._runner.host.woke_others()  # or it was taken by the very commit that seemed to fail

        self._committer.submit(operation, done)

    def _tell_again(self, held: HeldTask, payload: str, pause: float) -> None:
        """Tell the end of an attempt again, unless the next one, which may have its number, is here or on its way."""
        if self._claiming:
            self._executor.loop.call_later(_SOON / 1e6, self._tell_again, held, payload, pause)
        elif self._finishing.get(held.place) is held:
            self._told_again.add(held)
            self._tell(held, payload, min(pause * 2, _LONGEST_PAUSE))

    def _late(self, held: HeldTask, result: bytes) -> None:
        """Keep a result that came after its attempt was given up, for the next attempt to find."""
        task, call = held.task, held.call
        assert call is not None
        settings = self._queues.activities[task.activity].settings
        expires = self._runner.clock.now() + micros(settings.idempotency_ttl)
        left = LeaveKey(activity=task.activity, key=call.own_key or "", result=result.decode(), expires=expires)
        self._runner.keep_result(KeepResult(run=task.run, leave=left))

    # Progress, and what became of it meanwhile.

    def _report(self, held: HeldTask, context: StepContext, progress: str, told: Callable[[object], None]) -> None:
        """Make durable that a body reported progress; called from any thread."""
        self._executor.loop.call_soon_threadsafe(self._beat, held, progress, told)

    def _beat(self, held: HeldTask, progress: str, told: Callable[[object], None]) -> None:
        if self._running.get(held.place) is not held:
            told(None)
            return
        task, at = held.task, self._runner.clock.now()
        if self._observers.listen(held.task.run_id):
            step, said = held.call.step if held.call else "", {"progress": codec.decode(progress)}
            change = Change(
                type="step.progress",
                at=to_datetime(at),
                run_id=task.run_id,
                workflow=task.workflow,
                step=step,
                data=said,
            )
            self._observers.notify(change)
        beat = BeatTask(
            run=task.run, location=task.location, attempt=task.attempt, worker=held.worker, at=at, detail=progress
        )

        def done(outcome: Outcome | Exception) -> None:
            told(outcome)
            if isinstance(outcome, Fenced):
                self._give_up(held)

        self._committer.submit(beat, done)

    async def check(self, worker: str) -> None:
        """Stop what the store says is not this worker's any more, and hand back what this worker does not know of."""
        running = list(self._running.values())
        known = self._known()
        found = set(await self._store.held_tasks(worker))
        for held in running:
            if held.worker == worker and held.number not in found:
                self._give_up(held)
        if self._claiming:
            return  # what is found may be what the claim under way brings
        unknown = found - known - self._known()
        for run, location, attempt in unknown & self._unknown:
            task = Task(
                run=run, run_id="", workflow="", location=location, attempt=attempt, queue="", activity="", payload=""
            )
            self._finish(HeldTask(task, worker), TaskEnd(lost="handed back"))
        self._unknown = unknown

    def _known(self) -> set[tuple[int, str, int]]:
        return {held.number for held in (*self._running.values(), *self._finishing.values())}

    def _give_up(self, held: HeldTask) -> None:
        if self._running.get(held.place) is held:
            del self._running[held.place]
            if held.attempt is not None:
                held.attempt.stop("cancelled")
            if held.limited is not None:
                self._places.stopped(held.limited, held.attempt)
            if self._crowded:
                self._runner.host.tasks_queued()

    def hand_back_waiting(self) -> None:
        """Give back the attempts that had no place to run yet; they keep their numbers."""
        for held in list(self._running.values()):
            if held.attempt is not None and not held.attempt.begun:
                held.attempt.stop("the worker stops")
                self._finish(held, TaskEnd(skip=STOPPED))

    def drop_all(self) -> None:
        """Give up everything: this worker was declared dead."""
        for held in list(self._running.values()):
            self._give_up(held)
        self._finishing.clear()


def _duration(length: int | None) -> timedelta | None:
    return timedelta(microseconds=length) if length is not None else None
