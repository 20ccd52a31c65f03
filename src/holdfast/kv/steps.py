"""The steps of a run that is driven: attempts begun, ended, tried again, lost, and reported to their callbacks.

As in all runtimes, `bodies/judging.py` decides what an end means, and `bodies/executor.py` runs bodies.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from holdfast.bodies.admission import asking, not_ready
from holdfast.bodies.attempt import Attempt
from holdfast.bodies.context import StepContext
from holdfast.bodies.executor import Executor
from holdfast.bodies.judging import convicted, conviction, judge, misfit, raised_by, skipped_too_often
from holdfast.bodies.keys import key_of
from holdfast.clock import Clock, Instant, micros
from holdfast.context.steps import StepVerb
from holdfast.errors import HoldfastError, KeyConflict, StepCrashed, StepSkipped
from holdfast.kv import keys
from holdfast.kv.space import Changes, Space
from holdfast.kv.standing import StoredResult, encoded
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData, error_to_data, qualified_name
from holdfast.payloads.errors import loggable
from holdfast.replay import entry as entries
from holdfast.replay.entry import STOPPED, UNCOUNTED
from holdfast.replay.execution import Execution
from holdfast.replay.loop import is_done
from holdfast.replay.turn import Turn

_logger = logging.getLogger("holdfast.kv")
_SKIPPED = qualified_name(StepSkipped)
Notes = list[tuple[str, entries.Entry]]


class AttemptEnd(NamedTuple):
    """An attempt that has ended, or has been told to its activity: what is to be recorded of it."""

    verb: StepVerb
    entry: entries.Entry
    told: bool = False


class DrivenSteps:
    """The steps of one run under way."""

    def __init__(
        self,
        space: Space,
        executor: Executor,
        clock: Clock,
        errors: Mapping[str, type[BaseException]],
        app: Callable[[], Mapping[str, Any]] | None,
        wake: Callable[[], None],
    ) -> None:
        self._space = space
        self._executor = executor
        self._clock = clock
        self._errors = errors
        self._app = app
        self._wake = wake
        self._draw = random.random
        self.execution: Execution
        self.attempts: dict[str, Attempt] = {}
        """Those whose bodies run or wait for a place."""
        self.ends: list[AttemptEnd] = []
        """What has ended and is not recorded yet."""
        self.retries: dict[str, tuple[Instant, StepVerb]] = {}
        self._holders: dict[bytes, str] = {}
        """Which location holds an idempotency key."""
        self._wanted: dict[bytes, list[StepVerb]] = {}
        self._telling: dict[str, asyncio.Task[None]] = {}
        self.letters: list[tuple[str, int, ErrorData]] = []
        """Failures that nothing waits for, to be put with the next batch: path, attempts, error."""

    @property
    def busy(self) -> bool:
        """Whether something is under way that will wake the run by itself."""
        return bool(self.attempts or self._telling or self.ends)

    def next_due(self) -> Instant | None:
        """Return when the first step is to be tried again."""
        return min((at for at, _ in self.retries.values()), default=None)

    # Beginning.

    def recall(self, turn: Turn, now: Instant, lost: str) -> list[StepVerb]:
        """Sort out the steps that a replayed run left open; return those whose next attempt may begin."""
        notes: Notes = []
        begin: list[StepVerb] = []
        for verb in turn.started:
            if not isinstance(verb, StepVerb) or not verb.recalled or is_done(verb):
                continue
            if (verb.settled or verb.skipped) and verb.retry_at is not None and verb.retry_at > now:
                self.retries[verb.location] = (verb.retry_at, verb)
            elif (kept := verb.kept) is not None:
                self._tell(verb, kept)
            else:
                if not verb.settled and not verb.skipped:
                    notes.append((verb.location, self._loss(verb, lost)))
                if convicted(verb):
                    self.ends.append(AttemptEnd(verb, conviction(verb)))
                else:
                    begin.append(verb)
        if notes and turn.outcome is None:
            turn.entries.extend(self.execution.note(notes, now).entries)
        return begin

    def _loss(self, verb: StepVerb, why: str) -> entries.AttemptLost:
        if why == "crash" and self._executor.isolates(verb):
            why = "bystander"
        verb.crashes += why == "crash"
        verb.settled = True
        return entries.AttemptLost(verb.attempt, why)

    def due(self, now: Instant) -> list[StepVerb]:
        """Take the steps that are to be tried again by now."""
        ready = [verb for at, verb in self.retries.values() if at <= now]
        for verb in ready:
            del self.retries[verb.location]
        return [verb for verb in ready if not is_done(verb)]

    def count(self, verbs: Iterable[StepVerb], now: Instant) -> Turn:
        """Count another attempt of each step; it may run once that is durable."""
        notes: Notes = []
        for verb in verbs:
            if verb.settled or verb.skipped:
                verb.attempt += verb.settled
                verb.settled = verb.skipped = False
                verb.retry_at, verb.began = None, now
                notes.append((verb.location, entries.AttemptBegun(verb.attempt)))
        return self.execution.note(notes, now)

    def begin(self, verb: StepVerb) -> None:
        """Run the attempt that was counted last, if its key and its condition allow."""
        if is_done(verb):
            return
        settings = verb.activity.settings
        run = self.execution.journal.run
        context = StepContext(run.id, run.workflow, verb.attempt, verb, self._clock)
        try:
            if settings.idempotency_key is not None:
                with asking("idempotency_key", settings):
                    key = settings.idempotency_key(*verb.args, **verb.kwargs)
                if key is not None:
                    context.idempotency_key = verb.idempotency_key(str(key))
                    if not self._takes(verb):
                        return
            why = not_ready(context, settings, self._app)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._failed(verb, error)
            return
        if why is not None:
            verb.skips += 1
            skipped: entries.Entry = entries.AttemptSkipped(why.reason, self._clock.now() + micros(why.retry_in))
            self._settle(verb, skipped_too_often(verb, why.reason) or skipped)
            return
        attempt = Attempt(self._executor, verb, self, context, self._done)
        if settings.on_start is not None:
            on_start = settings.on_start
            attempt.opening = lambda: _called_back(on_start, (context,), run.id)
        self.attempts[verb.location] = attempt
        if verb.activity.plain and not verb.suspect:
            self._executor.run_plain(attempt, False)
        else:
            self._executor.run(attempt)

    def _takes(self, verb: StepVerb) -> bool:
        """Take the key of a step; if there is a result under it, or another step has it, do without running a body."""
        own = key_of(verb)
        if own is None:
            return True
        key = keys.result_key(verb.activity.name, own)
        _, digest = codec.encode_with_digest((verb.args, verb.kwargs), f"the arguments of {verb.activity.name!r}")
        stored = self._space.result(key, self._clock.now())
        if stored is not None and stored.digest != digest:
            path = self.execution.journal.names.path(verb.location)
            error = KeyConflict(f"step {path!r}: its idempotency key was used with other arguments")
            self._settle(verb, entries.StepFailure(verb.attempt, error_to_data(error)))
            return False
        if stored is not None:
            self._succeeded(verb, bytes(stored.result))
            return False
        if self._holders.setdefault(key, verb.location) != verb.location:
            self._wanted.setdefault(key, []).append(verb)
            verb.settled = True
            self.ends.append(AttemptEnd(verb, entries.AttemptLost(verb.attempt, "held"), told=True))
            self._wake()
            return False
        return True

    # Ending.

    def _done(self, attempt: Attempt, result: bytes | None, error: BaseException | ErrorData | None) -> None:
        verb = attempt.verb
        self.attempts.pop(verb.location, None)
        if is_done(verb) or attempt.number != verb.attempt:
            self._wake()
        elif result is not None:
            self._succeeded(verb, result)
        elif attempt.isolated:
            assert error is not None
            _, raised = raised_by(error, verb.activity, self._errors)
            crashed = isinstance(raised, StepCrashed)
            verb.settled, verb.in_process = True, not crashed
            verb.crashes += crashed
            lost = entries.AttemptLost(verb.attempt, "crash" if crashed else "cleared")
            self._settle(verb, conviction(verb) if convicted(verb) else lost)
        else:
            assert error is not None
            self._failed(verb, error)

    def _succeeded(self, verb: StepVerb, result: bytes) -> None:
        try:
            verb.value = verb.activity.decode(result)
        except Exception as unfit:
            self._failed(verb, misfit(verb, unfit))
            return
        self._settle(verb, entries.StepCompleted(verb.attempt, msgspec.Raw(result)))

    def _failed(self, verb: StepVerb, error: BaseException | ErrorData) -> None:
        data, raised = raised_by(error, verb.activity, self._errors)
        self._settle(verb, judge(verb, data, raised, self._clock.now(), self._draw).entry)

    def _settle(self, verb: StepVerb, entry: entries.Entry) -> None:
        self.ends.append(AttemptEnd(verb, entry))
        self._wake()

    def record(self, end: AttemptEnd, changes: Changes, now: Instant) -> list[Turn]:
        """Record what came of an attempt, after its activity was told if it wants to be, and hand it to the code."""
        verb, entry, told = end
        if is_done(verb):
            return []
        if not told and verb.activity.watched and _calls(verb, entry):
            turn = self.execution.note([(verb.location, entries.EndKept.of(entry))], now)
            self._tell(verb, entry)
            return [turn]
        self._leave_key(verb, entry, changes, now)
        if isinstance(entry, entries.AttemptFailed):
            verb.failures += not entry.error.postpones
            verb.settled, verb.retry_at, verb.last = True, entry.retry_at, entry
            self.retries[verb.location] = (entry.retry_at, verb)
        elif isinstance(entry, entries.AttemptSkipped):
            verb.skipped, verb.retry_at, verb.last = True, entry.check_at, entry
            self.retries[verb.location] = (entry.check_at, verb)
        elif isinstance(entry, entries.AttemptLost):
            if entry.why != "held":
                self.retries[verb.location] = (now, verb)
        else:
            if isinstance(entry, entries.StepFailure) and (verb.on_its_own or verb.location.startswith("^")):
                path = self.execution.journal.names.path(verb.location)
                self.letters.append((path, verb.attempt, entry.error))
            return [self.execution.apply(verb.location, entry, now)]
        return [self.execution.note([(verb.location, entry)], now)]

    def _leave_key(self, verb: StepVerb, entry: entries.Entry, changes: Changes, now: Instant) -> None:
        own = key_of(verb) if verb.activity.settings.idempotency_key is not None else None
        if own is None:
            return
        key = keys.result_key(verb.activity.name, own)
        if self._holders.get(key) != verb.location:
            return
        del self._holders[key]
        if isinstance(entry, entries.StepCompleted):
            _, digest = codec.encode_with_digest((verb.args, verb.kwargs), f"the arguments of {verb.activity.name!r}")
            expires = now + micros(verb.activity.settings.idempotency_ttl)
            changes.put(key, encoded(StoredResult(digest=digest, result=entry.result, expires=expires)))
        for waiting in self._wanted.pop(key, ()):
            self.retries[waiting.location] = (now, waiting)

    # Callbacks of activities: told after what they tell is durable, before the code goes on from it.

    def _tell(self, verb: StepVerb, entry: entries.Entry) -> None:
        told = self._told(verb, entry, self._durable)
        self._telling[verb.location] = asyncio.get_running_loop().create_task(told)

    async def _told(self, verb: StepVerb, entry: entries.Entry, durable: asyncio.Event) -> None:
        await durable.wait()
        run = self.execution.journal.run
        context = StepContext(run.id, run.workflow, verb.attempt, verb, self._clock)
        if self._app is not None:
            with suppress(Exception):  # the app is asked again, and heard, when the next attempt begins
                context.app = dict(self._app())
        for callback, what in _calls(verb, entry):
            left = _called_back(callback, (context, what), run.id)
            if left is not None:
                await left
        self._telling.pop(verb.location, None)
        self.ends.append(AttemptEnd(verb, entry, told=True))
        self._wake()

    def open_batch(self) -> None:
        """Let no callback begin before the next batch is durable."""
        self._durable = asyncio.Event()

    def batch_made(self) -> None:
        """Let callbacks begin."""
        self._durable.set()

    # Leaving.

    def abandon(self, location: str) -> None:
        """Give up a step that the code does not wait for any more."""
        self.retries.pop(location, None)
        attempt = self.attempts.pop(location, None)
        if attempt is not None:
            attempt.stop("cancelled")

    def hand_back(self, now: Instant, unbegun: Iterable[StepVerb] = ()) -> Turn:
        """Stop what is under way and note that: an orderly stop does not count as a loss.

        So it is with attempts that were counted and are not begun any more, and with results that no code takes.
        """
        notes: Notes = [(verb.location, entries.AttemptSkipped(STOPPED, now)) for verb in unbegun if not is_done(verb)]
        for verb, entry, told in self.ends:
            if not isinstance(entry, entries.StepCompleted | entries.StepFailure):
                notes.append((verb.location, entry))
            elif not told:  # else it is kept, and told again
                notes.append((verb.location, entries.AttemptLost(verb.attempt, "handed back")))
        self.ends.clear()
        for location, attempt in list(self.attempts.items()):
            lost = entries.AttemptLost(attempt.number, "handed back")
            notes.append((location, lost if attempt.begun else entries.AttemptSkipped(STOPPED, now)))
            attempt.stop("the driver stops")
        self.attempts.clear()
        return self.execution.note(notes, now)

    def drop(self) -> None:
        """Stop everything, without a word."""
        for attempt in list(self.attempts.values()):
            attempt.stop("the run left this driver")
        self.attempts.clear()
        for task in self._telling.values():
            task.cancel()
        self._telling.clear()


Call = tuple[Callable[..., object], Any]


def _calls(verb: StepVerb, entry: entries.Entry) -> list[Call]:
    """Return which callbacks are to be told of an entry, and what."""
    settings = verb.activity.settings
    told: list[tuple[Callable[..., object] | None, Any]] = []
    if isinstance(entry, entries.StepCompleted) and settings.on_success is not None:
        with suppress(HoldfastError):  # it does not fit the code that there is now, which blocks the run
            told = [(settings.on_success, verb.activity.decode(bytes(entry.result)))]
    elif isinstance(entry, entries.AttemptFailed):
        told = [(settings.on_failure, entry.error)]
    elif isinstance(entry, entries.StepFailure):
        told = [(settings.on_failure, entry.error)] if entry.error.type != _SKIPPED else []
        told.append((settings.on_failed, entry.error))
    elif isinstance(entry, entries.AttemptSkipped) and not entry.reason.startswith(UNCOUNTED):
        told = [(settings.on_skipped, entry.reason)]
    return [(callback, what) for callback, what in told if callback is not None]


def _called_back(callback: Callable[..., object], args: tuple[Any, ...], run_id: str) -> Any:
    """Call a callback; return what is left to await of it. What it raises is only logged."""
    try:
        made = callback(*args)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _report(callback, run_id, error)
        return None
    return _finished(made, callback, run_id) if inspect.isawaitable(made) else None


async def _finished(made: Any, callback: Callable[..., object], run_id: str) -> None:
    try:
        await made
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except BaseException as error:
        _report(callback, run_id, error)


def _report(callback: object, run_id: str, error: BaseException) -> None:
    name = getattr(callback, "__qualname__", None) or type(callback).__qualname__
    _logger.error("run %s: callback %s failed; nothing is changed by that", run_id, name, exc_info=loggable(error))
