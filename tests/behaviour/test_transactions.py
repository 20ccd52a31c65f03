"""Transactional steps: the rows a step writes into its own tables and its recorded result are one transaction."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, NotReady, Retry, RunCancelled, RunFailed, Status, activity, step_context, workflow
from holdfast.contract.operations import Delivered, Fenced, Transact
from holdfast.declarative import sequence, step
from holdfast.errors import BadInput, DefinitionError, HoldfastError, NotSerializable, StepTimeout
from holdfast.replay import entry as entries
from holdfast.stores.sqlite.store import SQLiteStore

QUICK = Retry(max_attempts=3, initial_interval=timedelta(milliseconds=1))
NEVER = Retry(max_attempts=1)
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Receipt:
    number: int


class Ledger:
    """A table of the user's own, in the database of an engine."""

    engine: Any = None
    address = ""

    @property
    def table(self) -> str:
        schema = getattr(self.engine.store, "schema", None)
        return f'"{schema}".ledger' if schema else "ledger"

    @property
    def mark(self) -> str:
        return "?" if isinstance(self.engine.store, SQLiteStore) else "%s"

    def write(self, what: str) -> None:
        """Add a row in the transaction of the step."""
        db = step_context().connection
        db.execute(f"CREATE TABLE IF NOT EXISTS {self.table} (what TEXT)")
        db.execute(f"INSERT INTO {self.table} VALUES ({self.mark})", (what,))

    async def rows(self) -> list[str]:
        """Return what is committed."""
        query = f"SELECT what FROM {self.table} ORDER BY what"
        store = self.engine.store
        if isinstance(store, SQLiteStore):
            found = store._connections.reader.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'ledger'").get
            return [what for (what,) in store._connections.reader.execute(query)] if found else []
        connection = await psycopg.AsyncConnection.connect(self.address)
        try:
            return [what for (what,) in await (await connection.execute(query)).fetchall()]
        except psycopg.errors.UndefinedTable:
            return []
        finally:
            await connection.close()


@pytest.fixture
def ledger(mode, request) -> Ledger:
    ledger = Ledger()
    if mode == "postgres":
        ledger.address = request.getfixturevalue("postgres")
    return ledger


@pytest.fixture
async def engine_for(make_engine, ledger) -> Callable[..., Any]:
    async def make(*workflows: Any, **options: Any) -> Any:
        ledger.engine = await make_engine(*workflows, **options)
        return ledger.engine

    return make


def calling(called: Any, *args: Any) -> Any:
    @workflow
    async def caller(ctx: Context) -> Any:
        return await ctx.step(called, *args)

    return caller


async def result_of(engine: Any, run: Any) -> Any:
    return await asyncio.wait_for(engine.get(run.id).result(), LONG)


async def error_of(run: Any) -> BaseException:
    with pytest.raises(RunFailed) as caught:
        await asyncio.wait_for(run.result(), LONG)
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


async def unread(engine: Any, run: Any) -> list[str]:
    row = await engine.store.get(run.id)
    return [message.kind for message in (await engine.store.inboxes({row.key: 0}))[row.key]]


# Together or not at all.


async def test_the_rows_of_a_step_and_its_result_are_there_together(engine_for, ledger):
    """G3 S4-28 Typed like any other; the inbox is empty when it is over."""

    @activity(transaction=True)
    def pay(number: int) -> Receipt:
        ledger.write(f"paid {number} {step_context().attempt} {step_context().idempotency_key}")
        return Receipt(number)

    @workflow
    async def caller(ctx: Context) -> list[int]:
        first = await ctx.step("first", pay, 1)
        both = await asyncio.gather(ctx.step("second", pay, 2), ctx.step("third", pay, 3))
        return [first.number, *(receipt.number for receipt in both), await ctx.receive("more", int)]

    engine = await engine_for(caller)
    run = await engine.start(caller, id="r")
    await run.send("more", 4)
    assert await run.result() == [1, 2, 3, 4]
    assert await ledger.rows() == [f"paid {n} 1 r:{name}" for n, name in ((1, "first"), (2, "second"), (3, "third"))]
    assert await unread(engine, run) == []


async def test_an_attempt_that_raises_leaves_no_rows(engine_for, ledger):
    """G3 G4 S1-22 Retried by its policy; only what the last one wrote is there."""

    @activity(transaction=True, retry=QUICK)
    def pay(times: int) -> int:
        ledger.write(f"attempt {step_context().attempt}")
        if step_context().attempt <= times:
            raise ValueError(f"no {step_context().attempt}")
        return step_context().attempt

    @workflow
    async def caller(ctx: Context, times: int) -> int:
        return await ctx.step(pay, times)

    engine = await engine_for(caller)
    run = await engine.start(caller, 2)
    assert await run.result() == 3
    assert await ledger.rows() == ["attempt 3"]
    run = await engine.start(caller, 9)
    assert isinstance(await error_of(run), ValueError)
    assert await ledger.rows() == ["attempt 3"]
    [letter] = await engine.dead_letters.list(kind="work")
    assert letter.attempts == 3


@pytest.mark.parametrize("what", ["type", "json", "await"])
async def test_a_result_that_cannot_be_recorded_leaves_no_rows(engine_for, ledger, what):
    """G3 GUARANTEES 6.1 It is found before the commit, and another attempt would only repeat it."""

    async def later() -> None: ...

    @activity(transaction=True, retry=QUICK)
    def pay() -> int:
        ledger.write("paid")
        return {"type": lambda: "seven", "json": object, "await": later}[what]()  # type: ignore[return-value]

    engine = await engine_for(calling(pay))
    run = await engine.start("caller")
    error = await error_of(run)
    assert isinstance(error, HoldfastError | NotSerializable)
    assert await ledger.rows() == []
    assert (await run.steps())[0].attempts == 1


async def test_declared_steps_stand_ins_and_other_options_work_with_transactions(engine_for, ledger):
    """S0-27 S0-29 S0-52 S3-9 Conditions, callbacks, keys, lists of activities, and what a test puts in their place."""
    asked: list[int] = []
    told: list[Any] = []

    def ready(context: Any) -> bool | NotReady:
        asked.append(1)
        return len(asked) > 1 or NotReady("wait", HOUR)

    options: dict[str, Any] = {"run_when": ready, "on_success": lambda context, result: told.append(result)}

    @activity(transaction=True, idempotency_key=lambda state: "k", **options)
    def pay(state: dict[str, Any]) -> dict[str, Any]:
        ledger.write("paid")
        return {"paid": True}

    async def stand_in(state: dict[str, Any]) -> dict[str, Any]:
        return {"paid": "not really"}

    def plain(state: dict[str, Any]) -> dict[str, Any]:
        ledger.write("plain")
        return {"plain": True}

    listed = sequence("listed", [pay, step(plain, transaction=True, timeout=None)])
    engine = await engine_for(listed)
    assert await engine.execute(listed, {}) == {"paid": True, "plain": True}
    assert await engine.execute(listed, {}) == {"paid": True, "plain": True}
    assert await ledger.rows() == ["paid", "plain", "plain"]  # the second run was given the result under the key
    assert told[0] == {"paid": True}
    engine.substitute(plain, stand_in)
    assert await engine.execute(listed, {}) == {"paid": "not really"}


async def test_what_undoes_a_step_may_be_a_transaction(engine_for, ledger):
    """B17 G11"""

    @activity(transaction=True)
    def book(what: str) -> None:
        ledger.write(what)

    @workflow
    async def caller(ctx: Context) -> None:
        await ctx.step(book, "taken")
        ctx.compensate(book, "returned")
        raise RuntimeError("no")

    engine = await engine_for(caller)
    run = await engine.start(caller)
    await error_of(run)
    assert await ledger.rows() == ["returned", "taken"]


# What is refused.


def test_only_plain_functions_in_this_process_can_be_transactions():
    """GUARANTEES 6"""

    async def later() -> None: ...

    def now() -> None: ...

    with pytest.raises(DefinitionError, match="must be a plain function"):
        activity(transaction=True)(later)
    with pytest.raises(DefinitionError, match="must be a plain function"):
        activity(later).options(transaction=True)
    for option in ({"queue": "gpu"}, {"isolate": "process"}, {"heartbeat_timeout": HOUR}):
        with pytest.raises(BadInput, match="does not go with"):
            activity(transaction=True, **option)(now)


async def test_other_steps_have_no_connection(engine_for):
    """GUARANTEES 6 Unless the app's own context says so."""

    async def body() -> Any:
        return step_context().connection

    engine = await engine_for(calling(body))
    assert "transaction=True" in str(await error_of(await engine.start("caller")))
    other = await engine_for(calling(body), context=lambda: {"connection": "mine"}, database=":memory:")
    assert await other.execute("caller") == "mine"


@pytest.mark.parametrize("mode", ["memory", "file"])
@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT", "ROLLBACK", "BEGIN", "END", "ATTACH ':memory:' AS other", "DETACH main", "PRAGMA user_version = 7",
        "PRAGMA synchronous = off", "DELETE FROM runs", "UPDATE inbox SET n = 1", "INSERT INTO tasks (run) VALUES (1)",
        "DROP TABLE workers", "CREATE TABLE RUNS (x)", "CREATE INDEX mine ON runs (id)", "VACUUM",
        "CREATE TRIGGER mine AFTER INSERT ON entries BEGIN SELECT 1; END", "ALTER TABLE runs ADD COLUMN x",
        "CREATE TEMP TRIGGER mine AFTER INSERT ON inbox BEGIN SELECT 1; END", "CREATE TEMP TABLE inbox (x)",
        "CREATE TEMP VIEW inbox AS SELECT 1",
    ],
)  # fmt: skip
async def test_a_body_must_not_end_the_transaction_or_touch_what_is_not_its_own(engine_for, ledger, sql):
    """GUARANTEES 6 G5 It is told why; swallowing that changes nothing."""
    said: list[str] = []

    @activity(transaction=True, retry=QUICK)
    def pay(swallow: bool) -> None:
        ledger.write("paid")
        try:
            step_context().connection.execute(sql)
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
            if not swallow:
                raise

    @workflow
    async def caller(ctx: Context, swallow: bool) -> None:
        await ctx.step(pay, swallow)

    engine = await engine_for(caller)
    await error_of(await engine.start(caller, False))
    assert await ledger.rows() == []
    assert "DefinitionError" in said[0] or sql == "VACUUM"
    await (await engine.start(caller, True)).result()
    assert await ledger.rows() == ["paid"]


@pytest.mark.parametrize("mode", ["memory", "file"])
async def test_savepoints_foreign_keys_and_looking_at_our_tables_work(engine_for, ledger):
    """A body uses its connection as in any other program."""

    @activity(transaction=True)
    def pay() -> list[Any]:
        db = step_context().connection
        ledger.write("kept")
        try:
            with db:
                ledger.write("undone")
                raise ValueError("only this part")
        except ValueError:
            pass
        db.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY); CREATE TABLE child (of INTEGER REFERENCES parent)")
        try:
            db.execute("INSERT INTO child VALUES (7)")
        except Exception as error:
            refused = type(error).__name__
        return [refused, db.execute("SELECT count(*) FROM runs").get, len(db.execute("PRAGMA table_info(runs)").get)]

    engine = await engine_for(calling(pay))
    refused, runs, columns = await engine.execute("caller")
    assert (refused, runs) == ("ConstraintError", 1)
    assert columns > 10
    assert await ledger.rows() == ["kept"]


@pytest.mark.parametrize("mode", ["memory", "file", "evict"])
@pytest.mark.parametrize("then", ["nothing", "write", "savepoint"])
async def test_a_statement_that_rolls_everything_back_fails_the_step(engine_for, ledger, then):
    """G3 INSERT OR ROLLBACK gets past those who watch over statements, but nothing is written after it."""

    @activity(transaction=True, retry=NEVER)
    def pay() -> None:
        db = step_context().connection
        db.execute("CREATE TABLE single (id INTEGER PRIMARY KEY)")
        db.execute("INSERT INTO single VALUES (1)")
        try:
            db.execute("INSERT OR ROLLBACK INTO single VALUES (1)")
        except Exception:
            if then == "savepoint":
                db.execute("SAVEPOINT mine")
            if then != "nothing":
                ledger.write("on my own")

    engine = await engine_for(calling(pay))
    error = await error_of(await engine.start("caller"))
    assert isinstance(error, DefinitionError)
    assert "rolled back" in str(error)
    assert await ledger.rows() == []


# Time.


@pytest.mark.parametrize("mode", ["file", "evict", "postgres"])
async def test_a_body_that_takes_too_long_loses_its_connection_and_the_step_fails(engine_for, ledger):
    """S4-20 At once, though the body goes on; nothing of it is written, and it finds a closed connection."""
    go = threading.Event()
    late: list[str] = []

    @activity(transaction=True, timeout=timedelta(milliseconds=300), retry=NEVER)
    def pay() -> None:
        ledger.write("too late")
        db = step_context().connection
        go.wait(LONG)
        try:
            db.execute("SELECT 1")
        except Exception as error:
            late.append(type(error).__name__)

    engine = await engine_for(calling(pay))
    run = await engine.start("caller")
    error = await error_of(run)
    assert isinstance(error, StepTimeout)
    assert "step 'pay' did not finish within" in str(error)
    assert engine.abandoned == 1
    go.set()
    await eventually(lambda: late)
    await eventually(lambda: engine.abandoned == 0)
    assert await ledger.rows() == []


@pytest.mark.parametrize("mode", ["memory", "file"])
async def test_a_statement_that_takes_too_long_is_interrupted(engine_for, ledger):
    """S4-20"""

    @activity(transaction=True, timeout=timedelta(milliseconds=200), retry=NEVER)
    def pay() -> None:
        ledger.write("too late")
        counting = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
        step_context().connection.execute(counting).fetchall()

    engine = await engine_for(calling(pay))
    began = time.monotonic()
    assert isinstance(await error_of(await engine.start("caller")), StepTimeout)
    assert time.monotonic() - began < 5
    assert await ledger.rows() == []


@pytest.mark.parametrize("mode", ["memory", "file"])
async def test_nobody_is_made_to_wait_for_longer_than_five_seconds(engine_for):
    """GUARANTEES 2 Said before anything runs."""

    @activity(transaction=True, timeout=timedelta(seconds=6), retry=QUICK)
    def pay() -> None: ...

    engine = await engine_for(calling(pay))
    run = await engine.start("caller")
    error = await error_of(run)
    assert isinstance(error, DefinitionError)
    assert "at most 5 s on SQLite" in str(error)


# Giving up, going on elsewhere.


@pytest.mark.parametrize("mode", ["file", "evict", "postgres"])
@pytest.mark.parametrize("how", ["race", "terminate", "cancel"])
async def test_a_body_that_is_given_up_while_it_runs_is_done_in_time_or_not_at_all(engine_for, ledger, mode, how):
    """B7 S1-26 On SQLite those who give it up have to wait for it; elsewhere its signal tells it, and it is undone."""
    begun = threading.Event()

    @activity(transaction=True)
    def pay() -> str:
        ledger.write("paid")
        begun.set()
        step_context().signal.wait(0.5)
        return "paid"

    @workflow
    async def caller(ctx: Context) -> str:
        won = await ctx.race({"slow": lambda inner: inner.step(pay), "quick": lambda inner: inner.receive("go", str)})
        return won.winner

    engine = await engine_for(caller)
    run = await engine.start(caller)
    await eventually(begun.is_set)
    if how == "race":
        await run.send("go", "!")
    else:
        await getattr(run, how)()
    try:
        ended = await result_of(engine, run)
    except RunCancelled:
        ended = "cancelled"
    await eventually(lambda: not engine.abandoned)
    rows = await ledger.rows()
    assert rows == ["paid"] if ended == "slow" else rows in ([], ["paid"])
    assert ended != "slow" or mode != "postgres"
    assert mode != "postgres" or rows == []
    assert await unread(engine, run) == []


async def test_the_same_step_of_a_new_life_has_a_result_of_its_own(engine_for, ledger):
    """S1-32 G3"""

    @activity(transaction=True)
    def pay(lap: int) -> int:
        ledger.write(f"lap {lap}")
        return lap

    @workflow
    async def caller(ctx: Context, lap: int) -> int:
        paid = await ctx.step(pay, lap)
        if lap < 4:
            await ctx.continue_as_new(lap + 1)
        return paid

    engine = await engine_for(caller)
    assert await engine.execute(caller, 0) == 4
    assert await ledger.rows() == [f"lap {lap}" for lap in range(5)]


@pytest.mark.parametrize("mode", ["file", "evict", "postgres"])
async def test_a_body_under_way_when_its_run_is_paused_counts_when_it_goes_on(engine_for, ledger):
    """B25 Its rows are there, its result is taken, it is not run again."""
    begun, go = threading.Event(), threading.Event()

    @activity(transaction=True, timeout=timedelta(seconds=5))
    def pay() -> str:
        begun.set()
        go.wait(3)
        ledger.write("paid")
        return "paid"

    engine = await engine_for(calling(pay))
    run = await engine.start("caller")
    await eventually(begun.is_set)
    pausing = asyncio.ensure_future(run.pause())
    await asyncio.sleep(0.05)
    go.set()
    await pausing

    async def over() -> bool:
        return await run.status() in (Status.PAUSED, Status.COMPLETED)

    await eventually(over)
    await run.resume()
    assert await result_of(engine, run) == "paid"
    assert await ledger.rows() == ["paid"]


@pytest.mark.parametrize("mode", ["file", "evict", "postgres"])
async def test_an_engine_that_stops_in_the_middle_of_a_body_leaves_both_or_neither(engine_for, ledger):
    """S3-24 G3 G5 The next engine finds the result, or makes the next attempt; the row is there once."""
    begun = threading.Event()

    @activity(transaction=True)
    def pay() -> int:
        begun.set()
        ledger.write("paid")
        time.sleep(0.5)
        return step_context().attempt

    caller = calling(pay)
    first = await engine_for(caller)
    run = await first.start(caller)
    await eventually(begun.is_set)
    await first.stop(grace=timedelta(milliseconds=10))
    second = await engine_for(caller, clock=first.jumping)
    attempt = await result_of(second, run)
    assert await ledger.rows() == ["paid"]
    row = await second.store.get(run.id)
    found = [entries.decode_entry(each.kind, each.data) for each in await second.store.history(row.key)]
    lost = [(each.attempt, each.why) for each in found if isinstance(each, entries.AttemptLost)]
    assert lost == [(number, "handed back") for number in range(1, attempt)]


class SlowStore(SQLiteStore):
    """A real store that takes its time between the end of a body and its commit."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.committing = threading.Event()

    def transact(self, attempt: Transact, body: Any, now: Any, expired: Any) -> Delivered | Fenced:
        def later() -> Any:
            self.committing.set()
            time.sleep(0.4)
            return now()

        return super().transact(attempt, body, later, expired)


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_an_engine_that_stops_just_before_a_commit_does_not_call_it_lost(engine_for, ledger, tmp_path):
    """S3-24 G3 G5 The commit comes after the engine gave the attempt up, and is what counts."""

    @activity(transaction=True)
    def pay() -> int:
        ledger.write("paid")
        return step_context().attempt

    caller = calling(pay)
    store = SlowStore(str(tmp_path / "test.db"))
    first = await engine_for(caller, store=store)
    run = await first.start(caller)
    await eventually(store.committing.is_set)
    await first.stop(grace=timedelta(milliseconds=10))
    second = await engine_for(caller, clock=first.jumping)
    assert await result_of(second, run) == 1
    assert await ledger.rows() == ["paid"]


# Stores that fail.


@pytest.mark.parametrize("mode", ["file", "evict"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_transaction_whose_outcome_is_unknown_is_not_done_twice(engine_for, ledger, when):
    """G3 G4 S4-28 The run is let go, and whoever claims it looks what is there."""

    @activity(transaction=True, retry=NEVER)
    def pay() -> int:
        ledger.write("paid")
        return step_context().attempt

    engine = await engine_for(calling(pay))
    fault = {"before": engine.faults.fail, "after": engine.faults.lose_answer}[when](at="transact")
    run = await engine.start("caller")
    assert await result_of(engine, run) == {"before": 2, "after": 1}[when]
    assert fault.injected == 1
    assert await ledger.rows() == ["paid"]
