"""Steps that write the user's own tables in the transaction that records their result: exactly once.

The body runs in a thread, inside `Store.transact`. Its end is a row in the inbox of its run, put there by the commit
that makes its own rows durable, and is taken like that of an attempt which another worker ran. So after a crash the
next owner of the run finds either both or neither. An attempt whose end is unknown is never recorded as lost while its
epoch is current, because it may still commit. The worker that claims the run next raises the epoch, and can be sure.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.bodies.attempt import Attempt
from holdfast.context.steps import StepVerb
from holdfast.contract.operations import Delivered, Fenced, Transact
from holdfast.contract.store import Store
from holdfast.engine.runs.ports import Runs
from holdfast.engine.runs.resident import DROPPED, Resident
from holdfast.engine.steps.queue.wire import TaskEnd
from holdfast.errors import DefinitionError, StepTimeout, UndecodablePayload
from holdfast.payloads import codec

LIMIT = timedelta(seconds=2)
"""How long a body may take unless its activity says."""


class GivenUp(Exception):
    """The step was given up, so that nothing of it is to be written."""


class TransactionalBodies:
    """What the bodies of transactional steps run inside of."""

    def __init__(
        self, runs: Runs, loop: asyncio.AbstractEventLoop, store: Store, left: Callable[[Attempt], None]
    ) -> None:
        self._runs = runs
        self._loop = loop
        self._store = store
        self._left = left
        """Called when an attempt has ended."""

    def run(self, attempt: Attempt, body: Callable[[], Any]) -> Delivered | Fenced | Exception:
        """Run a body in a transaction and return what came of that; called in the thread of the attempt."""
        resident: Resident = attempt.owner
        verb, context = attempt.verb, attempt.context
        assert isinstance(verb, StepVerb)
        raised: BaseException | None = None
        here = contextvars.copy_context()

        def call(connection: Any) -> str:
            nonlocal raised
            context.transaction = connection
            try:
                return here.run(self._payload, attempt, body)
            except BaseException as error:
                raised = error
                raise
            finally:
                context.transaction = None

        limit = verb.activity.settings.timeout or LIMIT
        step = Transact(
            run=resident.key,
            epoch=resident.epoch,
            generation=resident.generation,
            location=verb.location,
            attempt=attempt.number,
            limit=limit,
        )
        too_late = StepTimeout(f"step {context.step!r} did not finish within {limit}")

        def expired() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the engine is gone
                self._loop.call_soon_threadsafe(attempt.give_up, too_late)

        try:
            return self._store.transact(step, call, self._runs.clock.now, expired)
        except StepTimeout as error:
            raise (error if error is raised else too_late) from None
        except BaseException as error:
            if error is raised or not isinstance(error, Exception) or isinstance(error, DefinitionError):
                raise
            return error

    def _payload(self, attempt: Attempt, body: Callable[[], Any]) -> str:
        """Call the body and return its end, which must be in order before anything is committed."""
        result = body()
        step, activity = attempt.context.step, attempt.verb.activity
        if inspect.iscoroutine(result):
            result.close()
            raise DefinitionError(f"step {step!r} has transaction=True and must not return something to await")
        encoded = codec.encode(result, f"the result of step {step!r}")
        try:
            activity.decode(encoded)
        except UndecodablePayload as unfit:
            raise UndecodablePayload(
                f"step {step!r} is declared to return {activity.result_type!r}: {unfit}"
            ) from unfit
        if attempt.context.signal.aborted:
            raise GivenUp(attempt.context.signal.reason)
        return TaskEnd(result=msgspec.Raw(encoded)).encoded()

    def ended(self, attempt: Attempt, outcome: Delivered | Fenced | Exception) -> None:
        """Take the end out of the inbox, or let a run go whose step's end is not known."""
        resident: Resident = attempt.owner
        self._left(attempt)
        if resident.phase is DROPPED:
            return
        if isinstance(outcome, Delivered):
            self._runs.host.delivered(outcome)
            self._runs.pauses.check(resident)  # its inbox may have told it before
        else:
            self._runs.lost(resident, outcome)
