"""The execution of one run: apply facts, drive the coroutine until it blocks or is cancelled, say what it asks for.

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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.clock import Instant
from holdfast.contract.rows import COMPENSATE, EntryRow, InboxKind, Message
from holdfast.determinism.guard import guard, raised_at
from holdfast.errors import RunBlocked, StuckRun
from holdfast.payloads.codec import error_to_data
from holdfast.payloads.errors import error_text
from holdfast.replay import entry as entries
from holdfast.replay import generators
from holdfast.replay.ending import Code, Enough, close_tasks, decide, end_of_code, leave_behind, let_go, never
from holdfast.replay.entry import Entry
from holdfast.replay.inbox import match
from holdfast.replay.journal import CANCEL, Journal, RunInfo
from holdfast.replay.loop import SCOPE, Handle, RunLoop, RunTask, _running_loop, _set_running_loop, is_done
from holdfast.replay.queries import ask
from holdfast.replay.turn import Ending, Outcome, Turn, decided_outcome
from holdfast.replay.verbs import ended_alone

_BEGINNING = frozenset({entries.Renewed.kind, entries.CompensationAdded.kind, entries.Reopened.kind})
"""What stands before anything the code of a life did; what else it notes comes with the names it uses."""

_QUEUED = frozenset({InboxKind.MESSAGE, InboxKind.EVENT, InboxKind.NOTICE})
"""Inbox rows that wait until a receive takes them."""


class Execution:
    """One run in memory: its loop, its journal and its coroutine."""

    __slots__ = ("_code", "_end", "_fired", "_frozen", "_root", "ending", "guarded", "journal", "loop", "untaken")

    def __init__(
        self,
        run: RunInfo,
        code: Code,
        ready: deque[Handle],
        now: Instant,
        errors: Mapping[str, type[BaseException]],
        guarded: bool = True,
    ) -> None:
        self.loop = RunLoop(ready, now, run.seed)
        self.journal = Journal(run, self.loop, errors)
        self._code = code
        self._root: RunTask | None = None
        self._end: Outcome | None = None
        """How the code ended, while what it did is being undone."""
        self.guarded = guarded
        self.ending = False
        self._frozen = False
        self.untaken: Sequence[Message] = ()
        """Inbox rows that came when the code would go on no more; a new life of the run takes them."""
        self._fired = ""
        """Where the asyncio timer is that fired last, if the code goes on because of it."""

    def begin(
        self, history: Sequence[EntryRow] = (), messages: Sequence[Message] = (), now: Instant | None = None
    ) -> Turn:
        """Start the function, bring it to where its recorded history ends, then hand it what has come since."""
        self.journal.silent = not all(row.kind in _BEGINNING for row in history)
        return self._drive(self._begin, None, history, messages, now, never)

    def begin_some(
        self, history: Sequence[EntryRow], messages: Sequence[Message], now: Instant | None, enough: Enough
    ) -> Turn | None:
        """Begin as `begin` does; None if `enough`, asked after each fact, says so before all of it is replayed.

        Then call it again to go on, with the same history.
        """
        journal = self.journal
        journal.silent = not all(row.kind in _BEGINNING for row in history)
        turn = self._drive(self._begin, None, history, messages, now, enough)
        if turn.outcome is None and journal.past.facts:
            journal.turn = turn
            return None
        return turn

    def _begin(
        self, history: Sequence[EntryRow], messages: Sequence[Message], now: Instant | None, enough: Enough
    ) -> None:
        if self._root is None:
            self.journal.load(history)
        if not self._replay(enough):
            return
        self.journal.caught_up()
        if not self._stopped():
            self.loop.now = max(self.loop.now, self.journal.recorded_at, now or 0)
            self._take(messages)
            self._fire_due()
        else:
            self.untaken = list(messages)

    def apply(self, location: str, fact: Entry, now: Instant) -> Turn:
        """Record a new fact and let the code go on from it."""
        return self._drive(self._new_fact, now, location, fact)

    def deliver(self, messages: Sequence[Message], now: Instant) -> Turn:
        """Take in inbox rows and hand them to the receives that wait for them, oldest first."""
        return self._drive(self._take, now, messages)

    def fire(self, now: Instant) -> Turn:
        """Fire every timer whose time has come, earliest first."""
        return self._drive(self._fire_due, now)

    def note(self, notes: Sequence[tuple[str, Entry]], now: Instant) -> Turn:
        """Record marks that the engine makes on a step's behalf; the code does not see them."""
        self.loop.now = max(self.loop.now, now)
        for location, mark in notes:
            self.journal.record(location, mark)
        return self._collect(None)

    def conclude(self, now: Instant) -> Turn:
        """Decide that the run is cancelled, whatever its code is doing, and go on with the hook for that."""
        self.loop.now = max(self.loop.now, now)
        self.journal.cancelling = self.journal.cancelling or self.loop.now
        self._finish()
        return self._conclude(Outcome(Ending.CANCELLED))

    def query(self, name: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> bytes:
        """Return the encoded answer to a question about the run's state; see `queries.ask`."""
        return ask(self.journal, name, args, kwargs or {}, self.guarded)

    def unread(self) -> list[Message]:
        """Return the inbox rows that the code has not taken."""
        queues = (self.journal.inbox or {}).values()
        return sorted([*(message for queue in queues for message in queue), *self.untaken])

    def next_due(self) -> Instant | None:
        """Return the instant of the earliest timer."""
        timer = self.loop.next_timer()
        return timer.due if timer else None

    # Driving.

    def _drive(self, action: Callable[..., None], now: Instant | None, *what: Any) -> Turn:
        if self.ending:
            return self._collect(None)
        loop = self.loop
        if now is not None and now > loop.now:
            loop.now = now
        outer = _running_loop()
        if outer is not None and asyncio.current_task(outer) is not None:
            raise RuntimeError("a turn must be driven from a plain callback, not from inside a task")
        hooks = sys.get_asyncgen_hooks()
        if type(getattr(hooks.firstiter, "__self__", None)) is not generators.GeneratorHooks:
            generators.adopt(hooks)
        collecting = gc.isenabled()
        error: BaseException | None = None
        gc.disable()
        _set_running_loop(loop)
        if self.guarded:
            guard.enter(_DRIVE)
        try:
            action(*what)
            self._settle()
        except SystemExit as exit_:
            error = exit_
        except RunBlocked as blocked:
            blocked.run_id = self.journal.run.id
            self.journal.block(blocked)
        except KeyboardInterrupt:
            raise
        except BaseException as unfit:
            # A callback of the user's that raised, or a row that cannot be read: neither is the code's own failure.
            run = self.journal.run.id
            self.journal.block(RunBlocked(run, f"run {run}: {error_text(unfit)}{raised_at(unfit)}"))
        finally:
            if self.guarded:
                violation = guard.leave()
                if violation is not None and loop.violation is None:
                    loop.violation = violation
            _set_running_loop(outer)
            if loop.posed:
                loop.posed = False
                asyncio.set_event_loop(outer)
            if collecting:
                gc.enable()
        return self._collect(error)

    def _replay(self, enough: Enough) -> bool:
        """Apply recorded facts until there are none left, or enough is done; tell which."""
        journal, loop, past = self.journal, self.loop, self.journal.past
        if self._root is None:
            loop.extra = sum(pause for _, pause in past.pauses or ())
            if journal.run.conclusion is None:
                self._root = self._task(self._code.begin(journal), "workflow")
            else:
                self._go_on_with_hooks(journal.run.conclusion.decided)
            self._drain()
        while past.facts and not self._stopped():
            row = past.facts.popleft()
            if row.at > loop.now:
                loop.now = row.at
            while past.pauses and past.pauses[0][0] < row.seq:
                loop.extra -= past.pauses.popleft()[1]
            fact = entries.DECODERS[row.kind](row.data)
            verb = journal.open.pop(row.location, None)
            if verb is None:
                self._apply_alone(row.location, fact, row)
            else:
                self._fired = ""
                verb.forget()
                if not is_done(verb):
                    if not verb._callbacks:  # asyncio's own, and not a call
                        ended_alone(verb)
                    verb.apply(fact)
            self._drain()
            if past.facts and enough() and not self._stopped():
                return False
        if journal.violation is None and loop.violation is None:
            unread = past.next_fact()
            while unread is not None and unread.seq in past.unseen:
                unread = past.next_fact()
            if unread is not None:
                journal.unexpected_fact(unread)
            else:
                journal.unmatched()
        loop.extra = 0
        return True

    def _new_fact(self, location: str, fact: Entry) -> None:
        journal = self.journal
        verb = journal.open.pop(location, None)
        if verb is not None:
            journal.record(location, fact)
            self._fired = ""
            verb.forget()
            if not is_done(verb):
                if not verb._callbacks:  # asyncio's own, and not a call
                    ended_alone(verb)
                verb.apply(fact)
        elif location == CANCEL or self.loop.timer_at(location) is not None:
            journal.record(location, fact)
            self._apply_alone(location, fact, None)
        else:
            return  # the code gave up waiting for it; in history it would answer a call that is not open
        self._drain()

    def _drain(self) -> None:
        """Let the code go on until it waits; if it comes to an end that asks for it, begin to undo what it did."""
        error: SystemExit | None = None
        try:
            self.loop.drain()
        except SystemExit as exit_:
            error = exit_
        if self.journal.background and self._waits_for_background(error):
            return
        if self.journal.compensations is not None and self._turns_back(error):
            self._begin_to_undo()
        elif error is not None:
            raise error

    def _task(self, coro: Coroutine[Any, Any, Any], name: str) -> RunTask:
        context = contextvars.Context()
        context.run(SCOPE.set, self.journal.root)
        return self.loop.create_task(coro, name=name, context=context, structural=True)

    def _apply_alone(self, location: str, fact: Any, row: EntryRow | None) -> None:
        """Apply a fact that no verb waits for."""
        self._fired = ""
        if fact.kind == entries.TimerFired.kind:
            if (timer := self.loop.timer_at(location)) is not None:
                self._fired = location
                self.loop.fire(timer)
                return
        elif fact.kind == entries.CancelRequested.kind:
            self._cancel(fact.compensate)
            return
        if row is not None and row.seq not in self.journal.past.unseen:
            self.journal.unexpected_fact(row)

    def _cancel(self, compensate: bool) -> None:
        """Ask the code to stop. Asked once more to undo, after its grace, it is stopped whatever it is doing."""
        journal = self.journal
        if journal.cancelling is not None and journal.undo_asked:
            self._frozen = True
        journal.undo_asked = journal.undo_asked or compensate
        if journal.cancelling is None:
            journal.cancelling = self.loop.now
            if self._end is not None and not journal.compensating:
                self._frozen, self._end = True, None  # its code has ended: only steps in the background are under way
            elif self._root is not None:
                self._root.cancel()

    def _take(self, messages: Sequence[Message]) -> None:
        journal = self.journal
        for taken, message in enumerate(messages):
            if self._stopped():
                self.untaken = list(messages[taken:])
                return
            if message.kind in _QUEUED:
                journal.take_in(message)
                continue
            journal.turn.consume(message.n)
            if message.kind == InboxKind.CANCEL:
                undo = message.payload == COMPENSATE
                # A run that undoes what it did, or calls its hooks, is ending already.
                ending = journal.compensating or journal.run.conclusion is not None
                if not ending and (journal.cancelling is None or (undo and not journal.undo_asked)):
                    self._new_fact(CANCEL, entries.CancelRequested(undo))
            elif message.kind == InboxKind.CHILD_ENDED:
                verb = (journal.kids or {}).get(message.name)
                if verb is not None and not is_done(verb):
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
            found = match(journal.inbox, (journal.receivers or {}).values())
            if found is None:
                return
            verb, message = found
            journal.turn.consume(message.n)
            source = "" if message.kind == InboxKind.MESSAGE else str(message.kind)
            received = entries.MessageReceived(message.name, message.id, msgspec.Raw(message.payload), source)
            self._new_fact(verb.location, received)

    def _settle(self) -> None:
        """After the facts of a turn: match messages, and notice a run that nothing can bring to go on."""
        journal, root = self.journal, self._root
        if journal.inbox:
            self._match()
        if journal.open or self._stopped() or journal.replaying or self.loop.keeps_time():
            return
        if root is not None and not root.done():
            if journal.cancelling is not None:
                self._frozen = True  # it swallowed its cancel and may do nothing more
                return
            if self.loop.next_timer() is not None:
                return  # its deadline will end it
            journal.block(
                StuckRun(
                    journal.run.id,
                    f"run {journal.run.id} waits for something that nothing can bring about: {self.loop.whereabouts()}",
                )
            )

    def _stopped(self) -> bool:
        journal, root = self.journal, self._root
        if journal.violation is not None or self.loop.violation is not None or self._frozen:
            return True
        if journal.renewal is None and (root is None or not root.done()):
            return False
        return not (journal.background and self._lingers)

    @property
    def _lingers(self) -> bool:
        """Whether the run goes on after its code has ended, for steps in the background."""
        return bool(self.journal.background) and self.journal.cancelling is None

    def _waits_for_background(self, error: SystemExit | None) -> bool:
        """Tell whether the code has ended and steps in the background have not; stop all else that it left."""
        journal = self.journal
        if journal.violation is not None or self.loop.violation is not None or self._frozen or not self._lingers:
            return False
        if self._end is None:
            if error is None and journal.renewal is None and self._root is not None and not self._root.done():
                return False
            self._end = self._ended(error)
            self._stop_code()
        return True

    # Undoing.

    def _turns_back(self, error: SystemExit | None) -> bool:
        """Tell whether the code has come to an end after which what it did is to be undone."""
        journal = self.journal
        if journal.compensating or journal.violation is not None or self.loop.violation is not None:
            return False
        if journal.undo_asked and not self._stopped() and not journal.open and not self.loop.keeps_time():
            self._frozen = True  # as in _settle, but in its place among the facts, so that a replay does the same
        if error is None and not self._stopped():
            return False
        self._end = self._end or self._ended(error)
        return self._end.ending is Ending.FAILED or (self._end.ending is Ending.CANCELLED and journal.undo_asked)

    def _begin_to_undo(self) -> None:
        """Stop all that the code left running, and go on with what undoes it, in the same loop."""
        self._stop_code()
        self.journal.compensating = True
        self.journal.renewal = None
        self._frozen = False
        self._root = self._task(self._code.undo(self.journal), "undo")
        self.loop.drain()

    def _stop_code(self) -> None:
        leave_behind(self.journal, self._root)
        close_tasks(self.loop)
        self.loop.take_new_tasks()

    # Hooks.

    def _go_on_with_hooks(self, decided: entries.Decided) -> None:
        self._end = decided_outcome(decided)
        if self._end.ending is Ending.CANCELLED and self.journal.cancelling is None:
            self.journal.cancelling = self.journal.recorded_at
        self._root = self._task(self._code.conclude(self.journal), "hooks")

    def _conclude(self, outcome: Outcome) -> Turn:
        """Record how the run ended, and go on in the same loop with the hook for that."""
        decided = decide(self.journal, outcome, self.guarded)
        self.ending = False
        return self._drive(self._begin_hooks, None, decided)

    def _begin_hooks(self, decided: entries.Decided) -> None:
        close_tasks(self.loop)
        self.loop.take_new_tasks()
        self.journal.compensations = None
        self._frozen = False
        self._go_on_with_hooks(decided)
        self.loop.drain()

    # The turn's answer.

    def _collect(self, error: BaseException | None) -> Turn:
        journal = self.journal
        if error is not None or self._stopped():
            outcome = self._outcome(error)
            if self._code.hooks is not None and outcome is not None and self._awaits_hooks(outcome):
                return self._conclude(outcome)
            journal.turn.outcome = outcome
            if outcome is not None:
                journal.turn.ordinary = False
                if outcome.ending is Ending.RENEWED and journal.compensations:
                    journal.turn.carried = journal.carried()
        turn, journal.turn = journal.turn, Turn()
        if journal.polls is not None:
            polls, journal.polls = journal.polls, None
            for end in polls:
                end()
        return turn

    def _outcome(self, error: BaseException | None) -> Outcome | None:
        if self.ending:
            return None  # a run ends once
        journal = self.journal
        violation = journal.violation or self.loop.violation
        if violation is not None:
            return Outcome(Ending.BLOCKED, error=error_to_data(violation))
        outcome = self._end or self._ended(error)
        if journal.compensating and journal.run.conclusion is None:
            assert self._root is not None
            outcome = outcome._replace(compensation=self._root.result())
        self._finish()
        if outcome.ending is Ending.FAILED and journal.run.conclusion is None:
            journal.end(outcome.failed)
        return outcome

    def _awaits_hooks(self, outcome: Outcome) -> bool:
        decides = outcome.ending not in (Ending.BLOCKED, Ending.RENEWED) and self.journal.run.conclusion is None
        return decides and not self.journal.run.looked_at and self._code.concludes(outcome.ending)

    def _ended(self, error: BaseException | None) -> Outcome:
        assert self._root is not None
        return end_of_code(self.journal, self._root, self._code.check, error, self._fired)

    def _finish(self) -> None:
        self.ending = True
        leave_behind(self.journal, self._root)

    def drop(self) -> None:
        """Let go of the coroutine without letting it act; see `close_tasks`."""
        if self._root is None and not self.loop.tasks:
            self.loop.dead = True
            return
        let_go(self.journal)
        self._root = None


_DRIVE = Execution._drive.__code__
