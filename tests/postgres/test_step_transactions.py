"""Steps whose body writes in a transaction of the store."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.support.waiting import LONG

from holdfast.contract.operations import (
    Delivered,
)
from holdfast.errors import StepTimeout, StoreError
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.conformance.samples import (
    started,
)
from holdfast.testing.conformance.transactions import attempt_of, transacted


def _oversleep(connection: object) -> str:
    time.sleep(0.2)
    return ""


async def test_a_body_that_came_too_late_costs_the_next_one_nothing(store: PostgresStore) -> None:
    """G4: its connection is being taken away, so nobody else may be given it."""
    run = await started(store)
    connections = store._connections
    with connections._renewing:  # a renewal is under way, so that it takes a moment
        with pytest.raises(StepTimeout):
            await transacted(store, attempt_of(run, limit=timedelta(milliseconds=50)), _oversleep)

        def slow(connection: psycopg.Connection[Any]) -> str:
            entered.set()
            leave.wait(LONG)
            connection.execute("SELECT 1")
            return "{}"

        entered, leave = threading.Event(), threading.Event()
        second = asyncio.create_task(transacted(store, attempt_of(run), slow))
        await asyncio.to_thread(entered.wait, LONG)
    await asyncio.sleep(0.3)
    leave.set()
    assert isinstance(await second, Delivered)


async def test_what_a_body_does_to_its_connection_stays_with_it(store: PostgresStore) -> None:
    """The next body gets a connection as it was: rows as tuples, and the settings of the session."""
    run = await started(store)

    def meddling(connection: psycopg.Connection[Any]) -> str:
        connection.row_factory = dict_row
        connection.execute("SET statement_timeout = 12345")
        return "{}"

    def plain(connection: psycopg.Connection[Any]) -> str:
        found.extend(connection.execute("SHOW statement_timeout").fetchall())
        return "{}"

    found: list[Any] = []
    assert isinstance(await transacted(store, attempt_of(run), meddling), Delivered)
    assert isinstance(await transacted(store, attempt_of(run), plain), Delivered)
    assert found == [("0",)]


async def test_a_server_that_restarted_costs_steps_no_attempt(
    store: PostgresStore, side: psycopg.Connection[Any]
) -> None:
    """G4: a kept connection that is dead is found out before the body is called."""
    run = await started(store)
    assert isinstance(await transacted(store, attempt_of(run), lambda _: "{}"), Delivered)
    [kept] = store._transactions._kept
    side.execute("SELECT pg_terminate_backend(%s)", (kept.info.backend_pid,))
    assert isinstance(await transacted(store, attempt_of(run), lambda _: "{}"), Delivered)


async def test_a_connection_that_breaks_in_a_body_is_no_failure_of_the_body(
    store: PostgresStore, side: psycopg.Connection[Any]
) -> None:
    """G4: a storage fault hands the attempt back; nothing was written."""

    def body(connection: psycopg.Connection[Any]) -> str:
        side.execute("SELECT pg_terminate_backend(%s, 1000)", (connection.info.backend_pid,))
        connection.execute("SELECT 1")
        return "{}"

    with pytest.raises(StoreError):
        await transacted(store, attempt_of(await started(store)), body)
