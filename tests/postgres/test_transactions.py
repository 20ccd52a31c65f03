"""Business rows and workflow rows in one PostgreSQL transaction: steps that write, and enclosed starts and messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import psycopg
import pytest

from holdfast import Context, Engine, NoSuchRun, RunConflict, RunTerminal, activity, step_context, workflow
from holdfast.errors import BadInput, RunFailed
from holdfast.policy import Retry
from holdfast.testing import TestEngine


@activity(transaction=True)
def book(order: str) -> str:
    connection = step_context().connection
    connection.execute("INSERT INTO ledger (what) VALUES (%s)", (order,))
    return f"booked {order}"


@activity(transaction=True, retry=Retry(max_attempts=2))
def book_at_last(order: str) -> int:
    attempt = step_context().attempt
    step_context().connection.execute("INSERT INTO ledger (what) VALUES (%s)", (f"{order} {attempt}",))
    if attempt == 1:
        raise ValueError("not yet")
    return attempt


@activity(transaction=True, timeout=timedelta(milliseconds=300), retry=Retry(max_attempts=1))
def sleepy(order: str) -> None:
    connection = step_context().connection
    connection.execute("INSERT INTO ledger (what) VALUES (%s)", (order,))
    if order == "in python":
        time.sleep(1)
    connection.execute("SELECT pg_sleep(5)")


@activity(transaction=True, retry=Retry(max_attempts=1))
def meddling(order: str) -> None:
    connection = step_context().connection
    connection.execute("INSERT INTO ledger (what) VALUES (%s)", (order,))
    connection.execute("COMMIT")


@workflow
async def order(ctx: Context, name: str, how: str = "book") -> object:
    steps = {"book": book, "at last": book_at_last, "sleepy": sleepy, "meddling": meddling}
    return await ctx.step(steps[how], name)


@workflow
async def approval(ctx: Context) -> str:
    return await ctx.receive("answer", str)


@pytest.fixture
def ledger(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database.partition("schema=")[0].rstrip("?&"), autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS ledger")
        connection.execute("CREATE TABLE ledger (what TEXT)")
        yield connection
        connection.execute("DROP TABLE ledger")


def booked(ledger: psycopg.Connection) -> list[str]:
    return [what for (what,) in ledger.execute("SELECT what FROM ledger ORDER BY what")]


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    async with TestEngine(database=database, workflows=[order, approval]) as engine:
        yield engine


async def test_a_step_commits_its_rows_with_its_result(engine: Engine, ledger: psycopg.Connection) -> None:
    """G3."""
    assert await engine.execute(order, "o1") == "booked o1"
    assert booked(ledger) == ["o1"]


async def test_what_a_failed_attempt_wrote_is_rolled_back(engine: Engine, ledger: psycopg.Connection) -> None:
    """G3, G4."""
    assert await engine.execute(order, "o2", how="at last") == 2
    assert booked(ledger) == ["o2 2"]


@pytest.mark.parametrize("name", ["in python", "in the server"])
async def test_a_step_that_takes_too_long_loses_its_connection(
    name: str, engine: Engine, ledger: psycopg.Connection
) -> None:
    """S4-20 B5"""
    with pytest.raises(RunFailed, match="did not finish within"):
        await engine.execute(order, name, how="sleepy")
    assert booked(ledger) == []


async def test_a_step_that_commits_by_itself_is_told(engine: Engine, ledger: psycopg.Connection) -> None:
    with pytest.raises(RunFailed, match="holdfast commits"):
        await engine.execute(order, "o3", how="meddling")


async def test_a_run_is_started_if_the_transaction_commits(
    engine: Engine, database: str, ledger: psycopg.Connection
) -> None:
    """G1, G2: together with the caller's own rows, or not at all."""
    url = database.partition("schema=")[0].rstrip("?&")
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute("INSERT INTO ledger (what) VALUES ('mine')")
        run = await engine.start(order, "o4", id="o4", connection=connection)
        assert (await engine.start(order, "o4", id="o4", connection=connection)).id == run.id
        with pytest.raises(RunConflict):
            await engine.start(order, "other", id="o4", connection=connection)
        assert await engine.store.get("o4") is None
        await connection.rollback()
        assert await engine.store.get("o4") is None
        await connection.execute("INSERT INTO ledger (what) VALUES ('mine')")
        run = await engine.start(order, "o4", id="o4", connection=connection)
        await connection.commit()
    assert await run.result() == "booked o4"
    assert booked(ledger) == ["mine", "o4"]


async def test_a_message_is_sent_if_the_transaction_commits(engine: Engine, database: str) -> None:
    """G7: also over a blocking connection, also to a run of the same transaction, once."""
    url = database.partition("schema=")[0].rstrip("?&")
    run = await engine.start(approval)
    with psycopg.connect(url) as connection:
        await run.send("answer", "no", connection=connection)
        connection.rollback()
        assert await run.send("answer", "yes", id="m1", connection=connection)
        young = await engine.start(approval, connection=connection)
        await young.send("answer", "early", connection=connection)
        with pytest.raises(NoSuchRun):
            await engine.get("nobody").send("answer", "x", connection=connection)
        connection.commit()
        assert await run.result() == "yes"
        assert await young.result() == "early"
        assert not await engine.get(run.id).send("answer", "yes", id="m1", connection=connection)
        with pytest.raises(RunTerminal):
            await run.send("answer", "late", connection=connection)


async def test_what_is_no_open_transaction_is_refused(engine: Engine, database: str) -> None:
    url = database.partition("schema=")[0].rstrip("?&")
    with pytest.raises(BadInput, match="psycopg connection"):
        await engine.start(order, "x", connection="postgresql://")
    with (
        psycopg.connect(url, autocommit=True) as connection,
        pytest.raises(BadInput, match="no transaction open"),
    ):
        await engine.start(order, "x", connection=connection)
    async with TestEngine(workflows=[order]) as other:
        with pytest.raises(BadInput, match="PostgreSQL"):
            await other.start(order, "x", connection=object())
    await asyncio.sleep(0)
