"""Steps that run, and are recorded, in one transaction. A store need not have them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from holdfast.contract.operations import Committed, Delivered, Fenced, Transact
from holdfast.contract.rows import InboxKind, Message, RunRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import Renewal
from holdfast.errors import StepTimeout
from holdfast.testing.conformance.samples import NOW, Another, end, one, parked, row, started, turn, unread

LIMIT = timedelta(seconds=2)


def attempt_of(run: RunRow, *, epoch: int = 1, generation: int = 0, limit: timedelta = LIMIT) -> Transact:
    """Return an attempt of the step at location a0."""
    return Transact(run=run.key, epoch=epoch, generation=generation, location="a0", attempt=3, limit=limit)


async def transacted(
    store: Store, attempt: Transact, body: Callable[[Any], str], expired: Callable[[], None] = lambda: None
) -> Delivered | Fenced:
    """Run a body in a transaction, as an engine does."""
    return await asyncio.to_thread(store.transact, attempt, body, lambda: NOW, expired)


class Bodies:
    """A body that counts its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, connection: Any) -> str:
        self.calls.append(connection)
        return '{"result":1}'


def _has_none(store: Store) -> bool:
    return type(store).transact is Store.transact


class TransactionConformance:
    """What a body does in a transaction of the store, and the record of it, are durable together or not at all."""

    async def test_the_end_of_a_body_is_put_into_the_inbox_of_its_run(self, store: Store) -> None:
        """G3"""
        if _has_none(store):
            return
        run, body = await started(store), Bodies()
        await one(store, turn(run.key, state=parked()), Committed)
        told = Message(1, InboxKind.TASK_ENDED, "a0", "3", '{"result":1}', NOW)
        assert await transacted(store, attempt_of(run), body) == Delivered(run.key, "w", told)
        assert await unread(store, run.key) == [told]
        assert (await row(store, run.id)).due == NOW
        assert len(body.calls) == 1
        assert body.calls[0] is not None

    async def test_a_body_is_not_called_for_a_run_that_is_held_by_another(self, store: Store) -> None:
        """G5 G6: another epoch, another life, ended, or not there."""
        if _has_none(store):
            return
        run, body = await started(store), Bodies()
        assert await transacted(store, attempt_of(run, epoch=2), body) == Fenced(run.key)
        assert await transacted(store, attempt_of(run, generation=1), body) == Fenced(run.key)
        await one(store, turn(run.key, renewal=Renewal(input="{}", generation=1)), Committed)
        assert await transacted(store, attempt_of(run), body) == Fenced(run.key)
        await end(store, await row(store, run.id), Status.FAILED)
        assert await transacted(store, attempt_of(run, generation=1), body) == Fenced(run.key)
        missing = Transact(run=run.key + 999, epoch=1, generation=0, location="a0", attempt=1, limit=LIMIT)
        assert await transacted(store, missing, body) == Fenced(run.key + 999)
        assert body.calls == []
        assert await unread(store, run.key) == []

    async def test_what_a_body_raises_comes_out_and_nothing_is_written(self, store: Store) -> None:
        """G3"""
        if _has_none(store):
            return
        run, before = await started(store), ValueError("no")

        def body(connection: Any) -> str:
            raise before

        came: list[Exception] = []
        try:
            await transacted(store, attempt_of(run), body)
        except ValueError as error:
            came.append(error)
        assert came == [before]
        assert await unread(store, run.key) == []
        await one(store, turn(run.key, state=parked()), Committed)
        assert isinstance(await transacted(store, attempt_of(run), Bodies()), Delivered)

    async def test_a_run_that_ends_while_a_body_runs_ends_before_it_or_after_it(
        self, store: Store, another: Another
    ) -> None:
        """G5 G6: either the end waits for the body, or the body comes to nothing."""
        if _has_none(store):
            return
        run, other = await started(store), await another()
        order: list[str] = []

        def body(connection: Any) -> str:
            order.append("begin")
            time.sleep(0.2)
            order.append("end")
            return '{"result":1}'

        running = asyncio.ensure_future(transacted(store, attempt_of(run), body))
        while not order:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await end(other, run)
        order.append("the run ended")
        outcome = await running
        assert isinstance(outcome, Delivered | Fenced)
        # A body may return while its run ends: only what was delivered says in which order the two came.
        assert isinstance(outcome, Fenced) or order == ["begin", "end", "the run ended"]
        assert await unread(store, run.key) == []

    async def test_a_body_that_takes_too_long_loses_its_connection(self, store: Store) -> None:
        """S4-20: the step is known to have failed while its body goes on."""
        if _has_none(store):
            return
        run = await started(store)
        told: list[str] = []

        def body(connection: Any) -> str:
            time.sleep(0.3)
            told.append("body")
            return '{"result":1}'

        try:
            short = attempt_of(run, limit=timedelta(milliseconds=100))
            await transacted(store, short, body, lambda: told.append("expired"))
        except StepTimeout:
            pass
        else:
            raise AssertionError("it must be too late")
        assert told in (["expired", "body"], ["body"])  # the latter where the store has to wait for it
        assert await unread(store, run.key) == []
        await one(store, turn(run.key, state=parked()), Committed)
