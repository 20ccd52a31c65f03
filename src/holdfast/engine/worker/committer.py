"""Group commit: all operations that arrive while a commit is in flight go into the next one.

A batch begins from a plain callback of the event loop, after the callbacks that are ready now, so that it includes
their operations. If the store can commit it at once without waiting, the outcomes are acted on there: no task, no
thread. The outcomes of a large batch are handed out in slices, one per round of the loop. So the next commit can run
while they are handed out, and other callbacks do not wait for all of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol, TypeVar

from holdfast.contract.operations import Committed, Fenced, InboxMoved, Operation, Outcome, SendMessage
from holdfast.contract.store import Store
from holdfast.contract.turns import CommitTurn, StartRun
from holdfast.engine.worker.background import hide
from holdfast.errors import BadData, Contended, OutcomeUnknown, StoreBusy, StoreError, StoreFull
from holdfast.policy import Retry

_logger = logging.getLogger("holdfast.engine")

Done = Callable[[Outcome | Exception], None]
T = TypeVar("T")


class Holder(Protocol):
    """What asks for operations that only make sense after its earlier ones: a run in memory."""

    @property
    def id(self) -> str:
        """The id of the run."""
        ...

    @property
    def lost(self) -> bool:
        """Whether an earlier one was not made, so that later ones must not be either."""
        ...

    def lose(self) -> None:
        """Note that one was not made."""
        ...


Batch = list[tuple[Operation, Done, Holder | None]]
MAX_BATCH = 2000
SLICE = 100
"""How many outcomes are handed out in one round of the event loop."""
_NOT_WRITTEN = (Exception, InboxMoved)
"""Outcomes after which a later commit of the same run would leave a gap; one that is fenced is so for good."""
_BURST = 0.002
"""For how many seconds one commit after another is made before the event loop gets its turn."""
_RETRIES = (0.05, 0.2, 0.5, 1.0, 2.0)
"""How many seconds to rest before what the store could not do is tried again."""
_OUTLAST = 30.0
"""For how many seconds a batch is tried again while another process keeps the store locked."""


def resolving(future: asyncio.Future[Outcome]) -> Done:
    """Return what hands an outcome to a future, unless the caller that waited has gone."""

    def done(outcome: Outcome | Exception) -> None:
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    return done


async def from_callback(call: Callable[[], T]) -> T:
    """Call something that drives turns from a plain callback of the event loop, for a caller that is a task.

    A turn cannot run inside a task: asyncio knows only one current task of a thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def answer() -> None:
        try:
            made = call()
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(made)

    loop.call_soon(answer)
    return await future


def soon(ask: Callable[[Done], None], done: Done) -> None:
    """Ask for something to be committed from a plain callback, as `from_callback` does."""

    def begin() -> None:
        try:
            ask(done)
        except Exception as error:
            done(error)

    asyncio.get_running_loop().call_soon(begin)


class Committer:
    """Collects operations and applies them in order, one batch at a time.

    `done` is called from a plain callback of the event loop, never inside a task, so that it may drive turns.
    `idle` tells whether nothing else could be asked for soon, in which case waiting for company is of no use.
    """

    def __init__(
        self,
        store: Store,
        idle: Callable[[], bool],
        retry: Retry | None = None,
        again: Callable[[Sequence[Operation]], list[Operation]] = list,
    ) -> None:
        self._store = store
        self._again = again
        """What makes operations fit to be tried again."""
        self._retry = retry
        """How a commit is tried again that the store was too busy for; None: see `_RETRIES`."""
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._ready: Collection[object] = getattr(self._loop, "_ready", (None,))
        """The callbacks that asyncio's own event loop is about to call in this round: they may ask for more."""
        self._pending: Batch = []
        self._early = False
        """Whether a turn may be waiting that takes a message before its commit."""
        self._scheduled = False
        self._task: asyncio.Task[None] | None = None
        self._resting: Batch | None = None
        """The batch in flight, while it is known that nothing of it was made: until it is tried again."""
        self._withdrawn = asyncio.Event()
        """Set when all of that batch was withdrawn."""
        self._unwanted: list[object] = []
        """What callers would withdraw of the batch in flight."""
        self._depth = 0
        self._outcomes: deque[tuple[Done, Any]] = deque()
        """What is to be handed out."""
        self.in_hand = 0
        """How many outcomes are being handed out together."""
        self.made = 0
        """How many outcomes were handed out since the worker last set this to 0."""
        self.hurry = False
        """Whether there is no time any more to try again what the store cannot do at present."""

    @property
    def waiting(self) -> int:
        """How many operations are waiting or in flight."""
        return len(self._pending) + len(self._outcomes) + (self._task is not None)

    async def stop(self) -> None:
        """Wait until everything asked for is committed or has failed."""
        while self.waiting:
            if self._task is not None:
                await asyncio.wait([self._task])
            self._flush_soon()
            await asyncio.sleep(0)

    def submit(self, operation: Operation, done: Done, holder: Holder | None = None) -> None:
        """Ask for an operation to be made durable; it is refused if an earlier one of its holder was lost."""
        self._pending.append((operation, done, holder))
        if type(operation) is CommitTurn and operation.inbox is not None:
            self._early = True
        if self._task is not None or self._scheduled:
            return
        if self._depth == 0 and not self._ready and self._idle() and asyncio.current_task() is None:
            self._flush()
        else:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let everything that is asked for inside go into one batch."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._pending and not self._scheduled and self._task is None:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    async def apply(self, operation: Operation) -> Outcome:
        """Make one operation durable and return its outcome, for callers that are tasks."""
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self.submit(operation, resolving(future))
        return await future

    def withdraw(self, what: object) -> None:
        """Do not make an operation any more, or the start of a run: the caller has waited long enough.

        If it is waiting its outcome is StoreBusy, here and now. If it is in flight it may be made; should the store say
        that it was not, it is not tried again.
        """
        if self._task is not None:
            self._unwanted.append(what)
        self._take_back([what])

    def _take_back(self, unwanted: Sequence[object]) -> None:
        """Answer for what is unwanted and not in flight, and for turns that were made of it."""
        waiting = [*(self._resting or ()), *self._pending]
        gone = [item for item in waiting if _is_one_of(item[0], unwanted)]
        if not gone:
            return
        ahead = _turns_made_of(waiting, {item[0].target for item in gone if type(item[0]) is SendMessage})
        taken = {id(item) for item in (*gone, *ahead)}
        for batch in (self._resting, self._pending):
            if batch is not None:
                batch[:] = [item for item in batch if id(item) not in taken]
        told = StoreBusy("the store takes nothing at present: this was withdrawn and did not happen")
        refused = StoreError("a message that this turn was made of was withdrawn")
        if not self._resting:
            self._withdrawn.set()
        self._distribute([*gone, *ahead], [*[told] * len(gone), *[refused] * len(ahead)])

    def _flush(self) -> None:
        """Commit what is asked for, and what that leads to, while nothing else has anything to do: but not for long."""
        self._scheduled = False
        until = time.monotonic() + _BURST
        while self._commit_pending() and not self._ready and self._idle() and time.monotonic() < until:
            pass
        self._flush_soon()

    def _commit_pending(self) -> bool:
        """Commit one batch; tell whether that is done and more was asked for."""
        if self._task is not None or not self._pending:
            return False
        batch, self._pending = self._pending[:MAX_BATCH], self._pending[MAX_BATCH:]
        if self._early:
            batch = self._up_to_early(batch)
        operations = []
        for operation, _, holder in batch:
            if holder is not None and holder.lost:
                batch = self._without_lost(batch)
                operations = [each[0] for each in batch]
                break
            operations.append(operation)
        try:
            outcomes = self._store.apply_now(operations)
        except Exception:
            outcomes = None  # the patient way meets the same error, and knows what to do about it
        except BaseException:
            self._loop.call_soon(self._distribute, batch, _cut_off(batch))
            raise
        if outcomes is None:
            self._task = self._loop.create_task(self._commit(batch, operations), name="holdfast commit")
            hide(self._task)
            return False
        self._depth += 1
        try:
            self._distribute(batch, outcomes)
        finally:
            self._depth -= 1
        return bool(self._pending)

    def _up_to_early(self, batch: Batch) -> Batch:
        """Put off what a run asks for after a turn that may be refused: in the same batch it would leave a gap."""
        self._early = False
        early: set[int] = set()
        first: Batch = []
        later: Batch = []
        for item in batch:
            operation, _, holder = item
            (later if id(holder) in early else first).append(item)
            if type(operation) is CommitTurn and operation.inbox is not None:
                early.add(id(holder))
        self._pending[:0] = later
        self._early = bool(later)
        return first

    def _without_lost(self, batch: Batch) -> Batch:
        lost = [item for item in batch if item[2] is not None and item[2].lost]
        self._distribute(lost, [StoreError("an earlier commit of this run failed")] * len(lost))
        return [item for item in batch if item[2] is None or not item[2].lost]

    def _distribute(self, batch: Batch, outcomes: list[Any]) -> None:
        handing_out = bool(self._outcomes)
        for (_, done, holder), outcome in zip(batch, outcomes, strict=True):
            if holder is not None and type(outcome) is not Committed and isinstance(outcome, _NOT_WRITTEN):
                holder.lose()  # at once: what it asks for next must not be written either
            self._outcomes.append((done, outcome))
        if not handing_out:
            self._hand_out()

    def _hand_out(self) -> None:
        outcomes = self._outcomes
        self._depth += 1
        self.in_hand = len(outcomes)
        self.made += self.in_hand
        try:
            for _ in range(min(SLICE, len(outcomes))):
                done, outcome = outcomes.popleft()
                try:
                    done(outcome)
                except Exception:
                    _logger.exception("a failure while acting on a commit; the worker goes on")
        finally:  # an interrupt must not keep the others from their outcomes
            self._depth -= 1
            self.in_hand = 0
            if not self._depth:
                self._flush_soon()
            if outcomes:
                self._loop.call_soon(self._hand_out)

    async def _commit(self, batch: Batch, operations: list[Operation]) -> None:
        outcomes: list[Any]
        try:
            outcomes = list(await self._insist(batch, operations))
        except (BadData, Contended) as error:
            # One of them is to blame, and must not take the others with it.
            outcomes = [error] if len(batch) == 1 else await self._one_by_one(batch)
        except Exception as error:
            outcomes = [error] * len(batch)
        except BaseException:
            self._tell(batch, _cut_off(batch))
            raise
        self._tell(batch, outcomes)

    def _tell(self, batch: Batch, outcomes: list[Any]) -> None:
        if not self._loop.is_closed():  # then no caller is left to tell
            self._loop.call_soon(self._committed, batch, outcomes)

    async def _one_by_one(self, batch: Batch) -> list[Outcome | Exception]:
        """Apply operations each by itself, but none of a holder after one of it, or a message to it, that failed."""
        outcomes: list[Outcome | Exception] = []
        lost: set[int] = set()
        for operation, _, holder in batch:
            try:
                if id(holder) in lost:
                    raise StoreError("an earlier commit of this run failed")
                [outcome] = await self._store.apply([operation])
                outcomes.append(outcome)
                failed = isinstance(outcome, Fenced | InboxMoved)
            except Exception as error:
                outcomes.append(error)
                failed = True
            if failed and holder is not None:
                lost.add(id(holder))
            elif failed and type(operation) is SendMessage:
                lost.update(id(item[2]) for item in _turns_made_of(batch, {operation.target}))
        return outcomes

    def _committed(self, batch: Batch, outcomes: list[Any]) -> None:
        self._task = None
        self._unwanted.clear()
        self._distribute(batch, outcomes)

    async def _insist(self, batch: Batch, operations: list[Operation]) -> list[Outcome]:
        """Apply a batch, again while another process is in the way; callers may withdraw theirs between two tries."""
        began = self._loop.time()
        for tries in count():
            try:
                return await self._store.apply(operations)
            except (StoreBusy, StoreFull) as error:
                if self._outlasted(tries, began, error) or self.hurry or isinstance(error, Contended):
                    raise
                _logger.warning("the store cannot commit, trying again: %s", error)
            self._resting = batch
            self._withdrawn.clear()
            self._loop.call_soon(self._take_back, self._unwanted)
            try:
                async with asyncio.timeout(self._pause(tries)):
                    await self._withdrawn.wait()
            except TimeoutError:
                pass
            finally:
                self._resting = None
            if not batch:
                return []
            operations = self._again([operation for operation, _, _ in batch])
        raise AssertionError("unreachable")

    def _outlasted(self, tries: int, began: float, error: StoreError) -> bool:
        """Tell whether a commit was tried often enough."""
        if self._retry is not None:
            return self._retry.max_attempts is not None and tries + 1 >= self._retry.max_attempts
        return tries >= len(_RETRIES) and (isinstance(error, StoreFull) or self._loop.time() - began > _OUTLAST)

    def _pause(self, tries: int) -> float:
        """Return for how many seconds the store is left alone after so many tries."""
        if self._retry is not None:
            return self._retry.delay(tries + 1).total_seconds()
        return _RETRIES[min(tries, len(_RETRIES) - 1)]


def _is_one_of(operation: Operation, unwanted: Sequence[object]) -> bool:
    """Whether an operation, or the run that it starts, is one of those."""
    return any(operation is what or (type(operation) is StartRun and operation.run is what) for what in unwanted)


def _turns_made_of(batch: Batch, targets: Collection[str]) -> Batch:
    """Return the turns of some runs that took a message before its commit: without it they must not be made either."""
    return [
        item
        for item in batch
        if item[2] is not None and item[2].id in targets and type(item[0]) is CommitTurn and item[0].inbox is not None
    ]


def _cut_off(batch: Batch) -> list[Any]:
    """Return the outcomes of a batch that an interrupt or a cancel came into: whether it was made is not known."""
    for _, _, holder in batch:
        if holder is not None:
            holder.lose()  # at once: what it asks for next must not be written
    return [OutcomeUnknown("the commit was cut off: whether it was made is not known")] * len(batch)
