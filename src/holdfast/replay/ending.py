"""Ends: how the code of a run ended and what it leaves; and eviction: dropping a run without letting it act.

Python has no way to free a coroutine without running its `finally` blocks. While a run is dropped its loop is dead:
verbs wait for ever, nothing is recorded, nothing is logged. Plain synchronous code in `finally` does run.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import sys
import traceback
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any, Protocol

import msgspec

from holdfast.clock import Instant
from holdfast.contract.rows import EntryRow
from holdfast.determinism.guard import await_chain
from holdfast.payloads import codec
from holdfast.payloads.errors import error_text
from holdfast.replay import entry as entries
from holdfast.replay import generators
from holdfast.replay.journal import NAMES, Journal
from holdfast.replay.location import compensation_location, end_location
from holdfast.replay.loop import SCOPE, RunLoop, RunTask, _running_loop, _set_running_loop, is_done
from holdfast.replay.past import Conclusion
from holdfast.replay.queries import ask
from holdfast.replay.turn import Ending, LogLine, Outcome, failure
from holdfast.replay.verbs import error_of, never_awaited

LIMBO: list[Any] = []
"""Coroutines that swallow even being closed. Freeing them would run them again, so they are kept for ever."""

_CLOSES = 100

Enough = Callable[[], bool]
"""Tells when enough of a history is replayed for now."""


def never() -> bool:
    """Say that nothing is enough."""
    return False


class Code(Protocol):
    """What an execution runs: the code of one life of a run."""

    @property
    def hooks(self) -> object | None:
        """What may be called at the end of the run, None if nothing is."""
        ...

    def begin(self, journal: Journal) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of the workflow."""
        ...

    def undo(self, journal: Journal) -> Coroutine[Any, Any, list[dict[str, Any]]]:
        """Undo what is on the stack of compensations, the last first, and say how each one went."""
        ...

    def concludes(self, status: str) -> bool:
        """Tell whether there is a hook for a run that ends so."""
        ...

    def conclude(self, journal: Journal) -> Coroutine[Any, Any, None]:
        """Call that hook."""
        ...

    def check(self, result: bytes) -> None:
        """Raise if the encoded result is not what the workflow declares."""
        ...


def close_tasks(loop: RunLoop) -> None:
    """Close every task of a loop, the youngest first, and those that closing them creates."""
    loop.dead = True
    closed: list[RunTask] = []
    if any([not is_done(task) for task in loop.tasks]):  # noqa: C419  # a generator costs a call more for each
        outer = _running_loop()
        generators.adopt(sys.get_asyncgen_hooks())
        _set_running_loop(loop)  # so that asyncio.sleep() in a finally meets the dead loop
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # coroutines of the user's that were never awaited
                while loop.tasks:
                    closed.append(loop.tasks.pop())
                    _close(closed[-1])
        finally:
            _set_running_loop(outer)
    while loop.tasks:
        closed.append(loop.tasks.pop())
        _close(closed[-1])
    loop.forget_timers()
    for task in closed:
        _unlink_task(task)


def let_go(journal: Journal) -> None:
    """Close every task of a run that is dropped, and forget all that waits."""
    close_tasks(journal.loop)
    for verb in journal.open.values():
        if verb._callbacks:
            _unlink(verb)
    journal.close()


def end_of_code(
    journal: Journal,
    root: RunTask,
    check: Callable[[bytes], None],
    error: BaseException | None,
    fired: str,
) -> Outcome:
    """Return how the code ended; `fired` is the location of the asyncio timer because of which it went on, if any."""
    if journal.cancelling is not None:
        return Outcome(Ending.CANCELLED)
    if error is not None:
        return failure(error)
    if journal.renewal is not None:
        return Outcome(Ending.RENEWED, payload=journal.renewal)
    if root.cancelled():
        return failure(asyncio.CancelledError("the workflow cancelled itself"))
    raised = root.exception()
    if raised is not None:
        outcome = failure(raised)
        if not outcome.failed and fired and issubclass(type(raised), TimeoutError):
            outcome = outcome._replace(failed=(fired,))  # an asyncio.timeout ended it
        return outcome
    forgotten = never_awaited(journal) if journal.open or journal.loop.ended_alone else None
    if forgotten is not None:
        return failure(error_of(journal, forgotten))
    result = root.result()
    try:
        payload = codec.encode(result, f"the result of workflow {journal.run.workflow!r}")
        check(payload)
    except Exception as unfit:
        if isinstance(result, Awaitable):
            unfit.add_note("the workflow returned something to await: did you forget `await`?")
        return failure(unfit)
    return Outcome(Ending.COMPLETED, payload=payload.decode())


def first_entries(carried: Sequence[entries.Entry], at: Instant) -> list[EntryRow]:
    """Return the entries with which a new life begins: when that was, and what it has to undo if it fails.

    They belong in the commit that ends the old life, so that a crash between the two loses nothing.
    """
    begun = [(NAMES, entries.Renewed()), *((compensation_location(n), added) for n, added in enumerate(carried))]
    return [
        EntryRow(place, seq, entry.kind, at, entries.encode_entry(entry)) for seq, (place, entry) in enumerate(begun, 1)
    ]


def decide(journal: Journal, outcome: Outcome, guarded: bool) -> entries.Decided:
    """Record how a run ended whose hooks are to be called, with what its code has accumulated."""
    decided = entries.Decided(
        outcome.ending.value,
        msgspec.Raw(outcome.payload or "null"),
        outcome.error,
        list(outcome.failed),
        msgspec.Raw(codec.encode(outcome.compensation)),
        msgspec.Raw(_state(journal, guarded)),
    )
    place = end_location(journal.run.reopens)
    journal.record(place, decided)
    journal.run = journal.run._replace(conclusion=Conclusion(place, decided))
    journal.turn.decided = outcome
    journal.turn.ordinary = False
    return decided


def _state(journal: Journal, guarded: bool) -> bytes:
    """Return what the code answers to the query `state`, null if it does not."""
    if "state" not in (journal.queries or {}):
        return b"null"
    try:
        return ask(journal, "state", (), {}, guarded)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        said = error_text(error)
        journal.turn.log((40, "the hooks of the workflow are told no state, for its query failed: %s", (said,), ""))
        return b"null"


def leave_behind(journal: Journal, root: RunTask | None) -> None:
    """Record what code that has ended leaves: open verbs are abandoned, tasks still running are reported.

    Steps in the background go on, unless the run was asked to stop.
    """
    loop = journal.loop
    logs: list[LogLine] = []
    for task in loop.tasks:
        if task is root:
            continue
        if not is_done(task):
            where = f"{task.get_name()} ({await_chain(task.get_coro())})"
            logs.append((30, "the workflow ended while %s was still running; it was stopped", (where,), ""))
        elif not task.cancelled() and getattr(task, "_log_traceback", False):
            loop.call_exception_handler({"task": task, "exception": task.exception()})
    for failed in loop.failures or ():
        logs.append((30, "the workflow never awaited %s", (failed,), ""))
    kept = journal.background if journal.background and journal.cancelling is None else {}
    left = [verb for location, verb in journal.open.items() if location not in kept]
    for verb in left:
        if verb.word == "step" and journal.cancelling is None and journal.renewal is None:
            path = journal.names.path(verb.location)
            logs.append((30, "the workflow ended without awaiting step %r; it was stopped", (path,), ""))
        journal.abandon(verb)
    if not journal.silent:
        for line in logs:
            journal.turn.log(line)
    loop.dead = True
    loop.forget_timers()
    for verb in left:
        verb.cancel()  # so that a result on its way finds nothing waiting


def _close(task: RunTask) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own switch for a task ended on purpose
    if is_done(task):
        if not task.cancelled():
            task.exception()
        return
    coro: Any = task.get_coro()  # not of a done task: one that ran eagerly has none, and Python 3.12.1 crashes on it
    if not _closed(coro, task.own_context):
        if not LIMBO:
            atexit.register(_say_nothing_of_limbo)
        LIMBO.append(task)
        return
    waiter = getattr(task, "_fut_waiter", None)
    if waiter is not None:
        waiter.cancel()


def _unlink_task(task: Any) -> None:
    for each in (task, getattr(task, "_fut_waiter", None)):
        if getattr(each, "_callbacks", None):
            _unlink(each)
    scope = task.own_context.get(SCOPE)
    while scope is not None and scope.loop is not None:  # iterations and their loops keep each other
        scope.loop, scope = None, scope.outer


def _unlink(future: Any) -> None:
    """Take from what nothing will resolve whatever it would call: tasks and what they wait for keep each other by that.

    So a dropped run is freed at once, and not by a full garbage collection, which is rare.
    """
    for callback, _ in getattr(future, "_callbacks", None) or ():
        asyncio.Future.remove_done_callback(future, callback)
        if getattr(callback, "__module__", "") == asyncio.tasks.__name__:
            for held in inspect.getclosurevars(callback).nonlocals.values():  # of shield, gather and wait
                for each in held if isinstance(held, list | set) else (held,):
                    if isinstance(each, asyncio.Future):
                        _unlink(each)


def _closed(coro: Any, context: Context) -> bool:
    """Close a coroutine, and before it those that it waits for: one that is freed while it goes on would be reported.

    Tell whether it let itself be closed.
    """
    for _ in range(_CLOSES):
        chain = [coro]
        while (inner := _awaited_by(chain[-1])) is not None:
            chain.append(inner)
        for each in reversed(chain):
            try:
                context.run(each.close)
            except BaseException as error:  # what cleanup raises while being dropped concerns no run
                _forget(error)
            if _frame(each) is not None:
                break
        else:
            return True
    return False


def _forget(error: BaseException) -> None:
    """Empty the frames that an error came through: a TaskGroup keeps the error, and is kept by its frame."""
    for each in (error, *getattr(error, "exceptions", ())):
        traceback.clear_frames(each.__traceback__)


def _say_nothing_of_limbo() -> None:
    """Let the interpreter end without a word about coroutines that are freed then and go on even so."""
    said = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not str(unraisable.exc_value).endswith("ignored GeneratorExit"):
            said(unraisable)

    sys.unraisablehook = hook


def _awaited_by(coro: Any) -> Any:
    """Return the coroutine that another waits for, None if it waits for something else."""
    inner = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)
    return inner if hasattr(inner, "cr_frame") or hasattr(inner, "gi_frame") else None


def _frame(coro: Any) -> Any:
    return getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
