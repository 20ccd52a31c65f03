"""One life of a run: how its code begins, its deadline, what it may return, its compensations, its hooks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from holdfast.clock import Instant, to_datetime
from holdfast.context import compensations
from holdfast.context.run_context import RunContext
from holdfast.context.steps import StepVerb
from holdfast.definitions import HOOK_NAMES, Hooks, Workflow
from holdfast.errors import RunTimeout
from holdfast.payloads import codec
from holdfast.replay import entry as entries
from holdfast.replay.failures import located
from holdfast.replay.journal import Journal
from holdfast.replay.location import DEADLINE, Scope
from holdfast.replay.loop import SCOPE, Timer


class WorkflowCode:
    """A workflow and its input, in the form that an `Execution` takes."""

    __slots__ = ("_args", "_kwargs", "_workflow", "hooks")

    def __init__(self, workflow: Workflow[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._workflow = workflow
        self.hooks = workflow.hooks
        self._args = args
        self._kwargs = kwargs

    def begin(self, journal: Journal) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of the workflow, cut off at the run's deadline if it has one."""
        ctx = journal.loop.home = RunContext(journal, journal.root, self._workflow)
        coro: Any = self._workflow.function(ctx, *self._args, **self._kwargs)
        deadline = journal.run.deadline
        return coro if deadline is None else _until(deadline, journal, coro)

    def undo(self, journal: Journal) -> Coroutine[Any, Any, list[dict[str, Any]]]:
        """Return the coroutine that undoes what the run did."""
        return compensations.undo(journal, self._workflow)

    def concludes(self, status: str) -> bool:
        """Tell whether the workflow has a hook for a run that ends so."""
        return self.hooks is not None and self.hooks.of(status) is not None

    def conclude(self, journal: Journal) -> Coroutine[Any, Any, None]:
        """Return the coroutine that calls it."""
        return _conclude(journal, self.hooks)

    def check(self, result: bytes) -> None:
        """Refuse an encoded result that is not what the workflow declares, rather than fail its callers later.

        Raises:
            UndecodablePayload: it does not fit the annotated type.
        """
        workflow = self._workflow
        try:
            codec.decode(result, workflow.result_type, f"the result of workflow {workflow.name!r}")
        except Exception as unfit:
            unfit.add_note(f"it is declared to return {workflow.result_type!r}")
            raise


class HookVerb(StepVerb):
    """The step that a hook is: nothing hangs on its result, and its failure is a dead letter."""

    __slots__ = ()
    on_its_own = True

    def apply(self, entry: Any) -> None:
        self.set_result(entry)


async def _conclude(journal: Journal, hooks: Hooks | None) -> None:
    """Call the hook for the end that a run came to, or find it in history; one that the code no longer has is left out.

    It gets the run's id, its state and, if it failed, the error.
    """
    assert journal.run.conclusion is not None
    place, decided = journal.run.conclusion
    hook = hooks.of(decided.status) if hooks is not None else None
    if hook is None:
        journal.past.remove(place)
        return
    args: tuple[Any, ...] = (journal.run.id, codec.decode(bytes(decided.state)))
    if decided.error is not None:
        args += (decided.error,)
    scope = Scope(place + "/")
    SCOPE.set(scope)
    location = journal.locate(scope, HOOK_NAMES[decided.status], False)
    verb = HookVerb(journal, location, hook, args, {})
    recorded = journal.begin(location, entries.StepBegun(0, verb.attempt))
    if recorded is not None and journal.violation is None:
        verb.recall(recorded.attempt)
    journal.open[location] = verb
    journal.turn.start(verb)
    await verb


async def _until(deadline: Instant, journal: Journal, coro: Coroutine[Any, Any, Any]) -> Any:
    """Await a workflow as `asyncio.timeout_at` would.

    The timer has a location of its own, so that the workflow's timers keep theirs whether or not there is a deadline.
    """
    loop = journal.loop
    limit = asyncio.timeout(None)
    timer = Timer(loop, lambda: limit.reschedule(loop.time()), (), None)
    try:
        async with limit:
            loop.add_timer(timer, deadline, DEADLINE)
            return await coro
    except Exception as error:
        if not limit.expired():
            raise
        message = f"run {journal.run.id} was cut off at its deadline, {to_datetime(deadline).isoformat()}"
        timeout = located(RunTimeout(message), DEADLINE)
        ours = isinstance(error, TimeoutError) and isinstance(error.__cause__, asyncio.CancelledError)
        raise timeout from (None if ours else error)
    finally:
        timer.cancel()
