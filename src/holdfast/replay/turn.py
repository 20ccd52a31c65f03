"""The turn: apply facts, drive the coroutine until it blocks, and say what it asks for.

A turn is synchronous and pure: given the same function, input and facts it asks for the same things. Facts are applied
one at a time in their recorded order and the loop is drained after each, so whatever interleaving happened live happens
again.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from holdfast import codec
from holdfast.clock import Instant
from holdfast.codec import ErrorData, error_to_data
from holdfast.errors import RunBlocked, StuckRun
from holdfast.records import EntryRow, Message, Send, StartChild
from holdfast.replay import entry as entries
from holdfast.replay.entry import Entry
from holdfast.replay.eviction import close_tasks
from holdfast.replay.guards import guard, raised_at
from holdfast.replay.journal import CANCEL, Journal, RunInfo, Verb
from holdfast.replay.loop import SCOPE, Handle, RunLoop, RunTask, _running_loop, _set_running_loop, await_chain


class Ending(StrEnum):
    """How a turn can end a run (or this life of it)."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RENEWED = "renewed"
    BLOCKED = "blocked"


class Outcome(NamedTuple):
    """The end of a run: its encoded result, its error, or the input to go on with."""

    ending: Ending
    payload: str | None = None
    error: ErrorData | None = None


class Turn(NamedTuple):
    """What a turn asks for. Nothing of it is acted on before the entries are durable."""

    entries: list[EntryRow]
    started: list[Any]
    abandoned: list[Verb]
    sends: list[Send]
    children: list[StartChild]
    trims: list[tuple[str, str]]
    consumed: list[int]
    logs: list[tuple[int, str, tuple[Any, ...], str]]
    outcome: Outcome | None


class Execution:
    """One run in memory: its loop, its journal and its coroutine."""

    __slots__ = ("_frozen", "_root", "_start", "ending", "guarded", "journal", "loop")

    def __init__(
        self,
        run: RunInfo,
        start: Callable[[Journal], Coroutine[Any, Any, Any]],
        ready: deque[Handle],
        now: Instant,
        errors: Mapping[str, type[BaseException]],
        guarded: bool = True,
    ) -> None:
        self.loop = RunLoop(ready, now, run.seed)
        self.journal = Journal(run, self.loop, errors)
        self._start = start
        self._root: RunTask | None = None
        self.guarded = guarded
        self.ending = False
        self._frozen = False

    def begin(
        self, history: Sequence[EntryRow] = (), messages: Sequence[Message] = (), now: Instant | None = None
    ) -> Turn:
        """Start the function, bring it to where its recorded history ends, then hand it what has come since."""
        self.journal.silent = bool(history)

        def action() -> None:
            self.journal.load(history)
            self._replay()
            self.journal.caught_up()
            if not self._stopped():
                self.loop.now = max(self.loop.now, self.journal.recorded_at, now or 0)
                self._take(messages)
                self._fire_due()
            else:
                self.journal.untaken = list(messages)

        return self._drive(action)

    def apply(self, location: str, fact: Entry, now: Instant) -> Turn:
        """Record a new fact and let the code go on from it."""
        return self._drive(lambda: self._new_fact(location, fact), now)

    def deliver(self, messages: Sequence[Message], now: Instant) -> Turn:
        """Take in inbox rows and hand them to whoever waits for them, oldest first."""
        return self._drive(lambda: self._take(messages), now)

    def fire(self, now: Instant) -> Turn:
        """Fire every timer whose time has come, earliest first."""
        return self._drive(self._fire_due, now)

    def note(self, notes: Sequence[tuple[str, Entry]], now: Instant) -> Turn:
        """Record marks that the engine makes on a step's behalf; the code does not see them."""
        self.loop.now = max(self.loop.now, now)
        for location, mark in notes:
            self.journal.record(location, mark)
        return self._collect(None)

    def next_due(self) -> Instant | None:
        """Return the instant of the earliest timer."""
        timer = self.loop.next_timer()
        return timer.due if timer else None

    # Driving.

    def _drive(self, action: Callable[[], None], now: Instant | None = None) -> Turn:
        if self.ending:
            return self._collect(None)
        loop = self.loop
        if now is not None and now > loop.now:
            loop.now = now
        outer = _running_loop()
        if outer is not None and asyncio.current_task(outer) is not None:
            raise RuntimeError("a turn must be driven from a plain callback, not from inside a task")
        hooks = sys.get_asyncgen_hooks()
        collecting = gc.isenabled()
        error: BaseException | None = None
        gc.disable()
        _set_running_loop(loop)
        sys.set_asyncgen_hooks(loop.asyncgen_first, loop.asyncgen_final)
        if self.guarded:
            guard.enter()
        try:
            action()
            if not self._stopped():
                self._settle()
        except SystemExit as exit_:
            error = exit_
        except RunBlocked as blocked:
            blocked.run_id = self.journal.run.id
            self.journal.block(blocked)
        except Exception as unfit:
            # A callback of the user's that raised, or a row nobody can read: neither is the code's own failure.
            run = self.journal.run.id
            self.journal.block(RunBlocked(run, f"run {run}: {type(unfit).__name__}: {unfit}{raised_at(unfit)}"))
        finally:
            if self.guarded:
                violation = guard.leave()
                if violation is not None and loop.violation is None:
                    loop.violation = violation
            sys.set_asyncgen_hooks(*hooks)
            _set_running_loop(outer)
            if collecting:
                gc.enable()
        return self._collect(error)

    def _replay(self) -> None:
        journal = self.journal
        context = contextvars.Context()
        context.run(SCOPE.set, journal.root)
        self._root = self.loop.create_task(self._start(journal), name="workflow", context=context, structural=True)
        self.loop.drain()
        while not self._stopped():
            row = journal.next_fact()
            if row is None:
                break
            if row.at > self.loop.now:
                self.loop.now = row.at
            self._apply(row.location, entries.decode_entry(row.kind, row.data), row)
            self.loop.drain()
        if journal.violation is None and self.loop.violation is None:
            row = journal.next_fact()
            if row is not None:
                journal.unexpected_fact(row)
            else:
                journal.unmatched()

    def _new_fact(self, location: str, fact: Entry) -> None:
        if location not in self.journal.open and location != CANCEL and self.loop.timer_at(location) is None:
            return  # the code gave up waiting for it; in history it would answer a call that is not open
        self.journal.record(location, fact)
        self._apply(location, fact, None)
        self.loop.drain()

    def _apply(self, location: str, fact: Any, row: EntryRow | None) -> None:
        journal = self.journal
        verb = journal.open.pop(location, None)
        if verb is not None:
            verb.forget()
            if not verb.done():
                verb.apply(fact)
            return
        if fact.kind == entries.TimerFired.kind:
            timer = self.loop.timer_at(location)
            if timer is not None:
                self.loop.fire(timer)
                return
        elif fact.kind == entries.CancelRequested.kind:
            journal.cancelling = self.loop.now
            if self._root is not None:
                self._root.cancel()
            return
        if row is not None:
            journal.unexpected_fact(row)

    def _take(self, messages: Sequence[Message]) -> None:
        journal = self.journal
        for taken, message in enumerate(messages):
            if self._stopped():
                journal.untaken = list(messages[taken:])
                return
            if message.kind == "message":
                if journal.inbox is None:
                    journal.inbox = {}
                journal.inbox.setdefault(message.name, deque()).append(message)
                continue
            journal.consumed.append(message.n)
            if message.kind == "cancel":
                if journal.cancelling is None:
                    self._new_fact(CANCEL, entries.CancelRequested())
                continue
            verb = (journal.kids or {}).get(message.name)
            if verb is not None and not verb.done():
                ended = entries.decode_entry(entries.ChildEnded.kind, message.payload)
                self._new_fact(verb.location, ended)

    def _fire_due(self) -> None:
        while not self._stopped():
            self._match()
            timer = self.loop.next_timer()
            if timer is None or timer.due > self.loop.now:
                return
            self._new_fact(timer.location, entries.TimerFired())

    def _match(self) -> None:
        """Hand waiting messages to waiting receives; a message present at a passed deadline is still taken."""
        journal = self.journal
        while journal.inbox and not self._stopped():
            found = journal.match()
            if found is None:
                return
            verb, message = found
            journal.consumed.append(message.n)
            received = entries.MessageReceived(message.name, message.id, msgspec.Raw(message.payload))
            self._new_fact(verb.location, received)

    def _settle(self) -> None:
        self._match()
        journal, root = self.journal, self._root
        if self._stopped() or journal.open or journal.replaying or self.loop.next_timer() is not None:
            return
        if root is not None and not root.done():
            if journal.cancelling is not None:
                self._frozen = True  # it swallowed its cancel and may do nothing more
                return
            journal.block(
                StuckRun(
                    journal.run.id,
                    f"run {journal.run.id} waits for something that nothing can bring about: {self.loop.whereabouts()}",
                )
            )

    def _stopped(self) -> bool:
        journal = self.journal
        return (
            journal.violation is not None
            or self.loop.violation is not None
            or journal.renewal is not None
            or self._frozen
            or (self._root is not None and self._root.done())
        )

    # The turn's answer.

    def _collect(self, error: BaseException | None) -> Turn:
        journal = self.journal
        outcome = self._outcome(error)
        turn = Turn(
            journal.new,
            journal.started,
            journal.abandoned,
            journal.sends,
            journal.children,
            journal.trims,
            journal.consumed,
            journal.logs,
            outcome,
        )
        journal.forget_turn()
        return turn

    def _outcome(self, error: BaseException | None) -> Outcome | None:
        if self.ending:
            return None  # a run ends once
        journal, root = self.journal, self._root
        violation = journal.violation or self.loop.violation
        if violation is not None:
            return Outcome(Ending.BLOCKED, error=error_to_data(violation))
        done = error is not None or journal.renewal is not None or self._frozen or (root is not None and root.done())
        if journal.cancelling is not None and done:
            self._finish()
            return Outcome(Ending.CANCELLED)
        if error is not None:
            self._finish()
            return Outcome(Ending.FAILED, error=error_to_data(error))
        if journal.renewal is not None:
            self._finish()
            return Outcome(Ending.RENEWED, payload=journal.renewal)
        if root is None or not root.done():
            return None
        self._finish()
        if root.cancelled():
            return Outcome(Ending.FAILED, error=error_to_data(asyncio.CancelledError("the workflow cancelled itself")))
        raised = root.exception()
        if raised is not None:
            return Outcome(Ending.FAILED, error=error_to_data(raised))
        result = root.result()
        try:
            payload = codec.encode(result, f"the result of workflow {journal.run.workflow!r}")
        except Exception as unfit:
            if isinstance(result, Awaitable):
                unfit.add_note("the workflow returned something to await: did you forget `await`?")
            return Outcome(Ending.FAILED, error=error_to_data(unfit))
        return Outcome(Ending.COMPLETED, payload=payload.decode())

    def _finish(self) -> None:
        """Record what the code leaves behind: verbs still open are abandoned, tasks still running are reported."""
        self.ending = True
        journal = self.journal
        for task in self.loop.tasks:
            if task is self._root:
                continue
            if not task.done():
                where = f"{task.get_name()} ({await_chain(task.get_coro())})"
                journal.logs.append((30, "the workflow ended while %s was still running; it was stopped", (where,), ""))
            elif not task.cancelled() and getattr(task, "_log_traceback", False):
                self.loop.call_exception_handler({"task": task, "exception": task.exception()})
        for failure in self.loop.failures or ():
            journal.logs.append((30, "nobody awaited %s", (failure,), ""))
        left = list(journal.open.values())
        for verb in left:
            if verb.word == "step" and journal.cancelling is None and journal.renewal is None:
                path = journal.names.path(verb.location)
                journal.logs.append((30, "the workflow ended without awaiting step %r; it was stopped", (path,), ""))
            journal.abandon(verb)
        self.loop.dead = True
        self.loop.forget_timers()
        for verb in left:
            verb.cancel()  # so that a result on its way finds nobody waiting

    def drop(self) -> None:
        """Let go of the coroutine without letting it act; see `eviction`."""
        if self._root is None and not self.loop.tasks:
            self.loop.dead = True
            return
        close_tasks(self.loop)
        self.journal.close()
        self._root = None
