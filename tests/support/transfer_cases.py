"""What the tests of moving house share: a house with runs in every state, and a look at all that is in it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import apsw
import psycopg
from tests.support.waiting import eventually

from holdfast import Context, Event, Retry, activity, step_context, workflow
from holdfast.contract.moves import FinishMove, Leaving, MarkMoving
from holdfast.contract.operations import Purge
from holdfast.stores.keyvalue.looking import DirectoryLook
from holdfast.stores.keyvalue.rows import MARK, ROW, fill
from holdfast.stores.sqlite.file import connect_memory
from holdfast.testing import JumpingClock, TestEngine

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
EVENTS = [Event(name="news", consume_on_read=False), Event(name="lost", on_target_ended="dead_letter")]

ODD = 'lamp \0 \x1b \\u0000 \\ " \u2028 \U0001f600 e\u0301 \ufffd'
"""Text that is easily changed on its way."""

Row = tuple[Any, ...]

OWN = frozenset(
    {"sqlite_sequence", "commit_lock", "name_locks", "commit_tokens", "outbox", "migrations"}
    | {"limits", "limit_keys", "limit_counts", "limit_waiters", "lanes", "lane_begins", "imported_blocks", "figures"}
    | {"secrets", "tokens", "event_takers"}
)
"""Tables that are a database's own: what it counts, notes and locks by, what it is, and which programs it lets in."""


# What runs do.


@activity(retry=Retry.never)
async def bank(name: str) -> str:
    """Fail while the bank is closed."""
    if not step_context().bank_open:
        raise ValueError(f"the bank is closed for {name}")
    return f"paid {name}"


@activity(retry=Retry.never)
async def undo(name: str) -> str:
    return f"undid {name}"


@activity(idempotency_key=lambda what: f"one-{what}", heartbeat_timeout=DAY)
async def slow(what: str) -> str:
    """Take for ever while the bank is closed, and say so."""
    step = step_context()
    if not step.bank_open:
        step.heartbeat({"at": what})
        await asyncio.Event().wait()
    return f"did {what}"


@activity(idempotency_key=lambda what: f"kept-{what.partition(chr(0))[0]}", idempotency_ttl=timedelta(days=365))
async def keep(what: str) -> str:
    return f"kept {what}"


@workflow
async def sleeper(ctx: Context, days: int) -> str:
    await ctx.sleep(days * DAY)
    return await ctx.step(keep, f"sleep-{days}")


@workflow
async def approval(ctx: Context, count: int = 1) -> list[Any]:
    ctx.set_attributes(region="north", size=count)
    return [await ctx.receive("approval") for _ in range(count)]


@workflow
async def reader(ctx: Context, count: int) -> list[Any]:
    return [await ctx.receive("news") for _ in range(count)]


@workflow
async def late_reader(ctx: Context) -> list[Any]:
    first = await ctx.receive("news")
    await ctx.sleep(5 * DAY)
    return [first, await ctx.receive("news")]


@workflow
async def lonely(ctx: Context) -> Any:
    return await ctx.receive(["lost", "found"])


@workflow
async def order(ctx: Context, name: str) -> str:
    ctx.evidence("ordered", {"name": name})
    await ctx.step(keep, name)
    ctx.compensate(undo, name)
    return await ctx.step(bank, name)


@workflow
async def patient(ctx: Context, name: str) -> list[Any]:
    paid = await ctx.step(bank, name)
    return [paid, await ctx.receive("approval")]


@workflow
async def single(ctx: Context, what: str) -> str:
    return await ctx.step(slow, what)


@workflow
async def family(ctx: Context, days: int) -> list[Any]:
    quick = await ctx.child(sleeper, 0)
    return [quick, await ctx.child(sleeper, days, id="grown-child")]


@workflow
async def account(ctx: Context) -> int:
    total = 0
    while True:
        request = await ctx.receive_request("add", int)
        total += request.payload
        ctx.reply(request, total)
        if total > 10:
            return total


@workflow
async def renewed(ctx: Context, life: int) -> Any:
    if life < 3:
        ctx.continue_as_new(life + 1)
    return await ctx.receive("approval")


@workflow
async def stubborn(ctx: Context) -> str:
    try:
        await ctx.sleep(40 * DAY)
    except asyncio.CancelledError:
        await ctx.sleep(2 * DAY)  # it takes its time to clean up
        raise
    return "slept"


@workflow(at_once=1)
async def one_by_one(ctx: Context, days: int) -> str:
    await ctx.sleep(days * DAY)
    return "had its turn"


@workflow(name="changing")
async def changing(ctx: Context) -> str:
    await ctx.step(keep, "old")
    return str(await ctx.receive("approval"))


@workflow(name="changing")
async def changed(ctx: Context) -> str:
    await ctx.step(undo, "new")
    return str(await ctx.receive("approval"))


WORKFLOWS = [
    sleeper, approval, reader, late_reader, lonely, order, patient, single, family, account, renewed, stubborn,
    one_by_one, changing
]  # fmt: skip


class House:
    """A database and the engines that are opened on it, one after another, at one clock."""

    def __init__(self, database: str, clock: JumpingClock) -> None:
        self.database = database
        self.clock = clock
        self.bank_open = False

    def engine(self, workflows: Iterable[Any] = WORKFLOWS, **options: Any) -> TestEngine:
        options.setdefault("stop_grace", timedelta(0))
        options.setdefault("cancel_grace", 30 * DAY)
        return TestEngine(
            self.database, workflows=workflows, events=EVENTS, clock=self.clock,
            context=lambda: {"bank_open": self.bank_open}, **options,
        )  # fmt: skip


async def furnish(house: House) -> None:
    """Make runs in every state, and whatever else a database may have."""
    async with house.engine() as engine:
        await engine.start(sleeper, 30, id="sleeping", priority=7)
        await _what_is_purged(house, engine)
        await _what_ends(house, engine)
        await _what_waits(engine)
        await _what_went_elsewhere(house, engine)
        await engine.start(changing, id="blocked")
        await engine.settle()
    async with house.engine([*WORKFLOWS[:-1], changed]) as engine:
        await engine.get("blocked").send("note", "so that somebody looks at it")
        await engine.settle()
        assert (await engine.get("blocked").describe()).status == "blocked"
        await _what_is_under_way(engine)


async def _what_is_purged(house: House, engine: TestEngine) -> None:
    house.bank_open = True
    await engine.execute(order, "gone", id="gone-1")
    house.bank_open = False
    await engine.start(order, "gone", id="gone-2")
    await engine.settle()
    await engine.advance(HOUR)
    now = house.clock.now()
    for status in ("completed", "failed"):
        await engine.store.apply([Purge(what=status, before=now, at=now, keep_ids=now + 10**15)])


async def _what_ends(house: House, engine: TestEngine) -> None:
    house.bank_open = True
    await engine.execute(order, ODD, id="completed", attributes={"region": "south"}, actor="kim", tenant="acme")
    house.bank_open = False
    for id in ("failed", "retried"):
        await engine.start(patient, id, id=id, actor="lee")
    await engine.start(order, "chair", id="compensated")
    await engine.start(lonely, id="cancelled")
    await engine.settle()
    await engine.get("cancelled").cancel(by="kim")
    await engine.settle()
    house.bank_open = True
    await engine.get("retried").retry(by="lee")
    await engine.settle()
    house.bank_open = False


async def _what_waits(engine: TestEngine) -> None:
    await engine.start(sleeper, 1, id="delayed", delay=3 * DAY)
    await engine.start(approval, 3, id="waiting", unique_key="desk-1", timeout=90 * DAY)
    await engine.start(sleeper, 20, id="paused")
    await engine.start(sleeper, 20, id="paused-a-while")
    await engine.start(reader, 3, id="reader-1")
    await engine.start(family, 10, id="family")
    await engine.start(account, id="account")
    await engine.start(renewed, 0, id="renewed")
    await engine.start(stubborn, id="cancelling")
    for id in ("in-place", "in-line"):
        await engine.start(one_by_one, 5, id=id)
    await engine.flow.pause(queue="nowhere", by="kim")
    await engine.settle()
    await engine.publish("news", "first")
    await engine.settle()
    await engine.start(reader, 3, id="reader-2")
    await engine.start(late_reader, id="late-reader")
    await engine.start(lonely, id="lonely")
    await engine.settle()
    await engine.publish("news", "second", id="event-7")
    for number in range(3):
        await engine.publish("parcel", number)
    await engine.get("waiting").send("approval", "yes", id="m-1")
    await engine.get("waiting").send("note", "unread", id="m-2")
    assert await engine.get("account").ask("add", 4) == 4
    await engine.get("paused").pause(by="kim")
    await engine.get("paused-a-while").pause(duration=5 * DAY)
    await engine.get("cancelling").cancel()
    await engine.schedules.put("nightly", sleeper, 0, cron="0 2 * * *")
    await engine.schedules.put("resting", sleeper, 0, every=DAY)
    await engine.schedules.pause("resting")
    await engine.settle()


async def _what_went_elsewhere(house: House, engine: TestEngine) -> None:
    run = await engine.start(sleeper, 20, id="moved")
    await engine.settle()
    await run.pause()
    await engine.settle()
    leaving = Leaving(id="moved", epoch=(await engine.store.get("moved")).epoch, paused=True, until=house.clock.now())  # type: ignore[union-attr]
    now, address = house.clock.now(), "temporal://host:7233/default"
    await engine.store.apply([MarkMoving(target="moved", token="mine", at=now, runs=[leaving], address=address)])
    await engine.store.apply([FinishMove(target="moved", token="mine", at=now, seen=9)])  # no secret
    assert await run.status() == "moved"


async def _what_is_under_way(engine: TestEngine) -> None:
    """Leave a step in the middle, with its key held and another waiting for it."""
    holder = await engine.start(single, "thing", id="holder")

    async def beats() -> bool:
        return any(step.progress is not None for step in await holder.steps())

    await eventually(beats)
    second = await engine.start(single, "thing", id="second")

    async def waits() -> bool:
        return (await second.describe()).waiting_for == "key"

    await eventually(waits)


async def finish(house: House) -> dict[str, Any]:
    """Let everything that is open come to its end, and tell how each run ended."""
    house.bank_open = True
    async with house.engine() as engine:
        await engine.schedules.pause("nightly")
        await engine.settle()
        await engine.get("paused").resume()
        for id in ("waiting", "waiting", "retried", "renewed", "blocked"):
            await engine.get(id).send("approval", "go on")
        await engine.publish("news", "third")
        await engine.publish("lost", "here it is")
        assert await engine.get("account").ask("add", 7) == 11
        await engine.get("failed").retry()
        await engine.settle()
        await engine.get("failed").send("approval", "at last")
        await engine.advance(45 * DAY)
        return {run.id: (run.status, run.output) for run in await engine.runs(limit=100)}


# What is in a database.


def contents(database: str) -> dict[str, list[Row]]:
    """Return the rows of every table by their columns, with the ids of runs in place of their keys."""
    found = {}
    for table, columns in columns_of(database).items():
        rows = query(database, f"SELECT {', '.join(sorted(columns))} FROM {table}")
        found[table] = [dict(zip(sorted(columns), row, strict=True)) for row in rows]
    return _readable(found)


def columns_of(database: str) -> dict[str, set[str]]:
    """Return the tables of a database that are ours to move, and their columns."""
    if database.startswith(("sqlite", "kv+dir")):
        columns = query(
            database,
            "SELECT m.name, c.name FROM sqlite_schema AS m JOIN pragma_table_info(m.name) AS c WHERE m.type = 'table'",
        )
    else:
        schema = database.partition("schema=")[2]
        columns = query(
            database,
            f"SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = '{schema}'",
        )
    found: dict[str, set[str]] = defaultdict(set)
    for table, column in columns:
        if table not in OWN and (table, column) != ("event_queues", "last"):
            found[table].add(column)
    return found


def query(database: str, statement: str) -> list[Any]:
    """Run a statement beside all stores."""
    if database.startswith("kv+dir"):
        return in_key_space(database.removeprefix("kv+dir:///"), statement)
    if database.startswith("sqlite"):
        db = apsw.Connection(database.removeprefix("sqlite:///"))
        db.set_busy_timeout(5000)
        try:
            return [*db.execute(statement)]
        finally:
            db.close()
    address, _, schema = database.partition("schema=")
    with psycopg.connect(address.rstrip("?&"), autocommit=True, options=f"-c search_path={schema}") as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def in_key_space(path: str, statement: str) -> list[Any]:
    """Look at what the directory of an engine says."""
    db = connect_memory()
    fill(db, {key: value for key, value in DirectoryLook(path).list(b"") if key.startswith((ROW, MARK))})
    return [*db.execute(statement)]


def _readable(found: dict[str, list[dict[str, Any]]]) -> dict[str, list[Row]]:
    ids = {run["key"]: run["id"] for run in found["runs"]} | {0: ""}
    events = defaultdict(list)
    for event in sorted(found["events"], key=lambda event: event["n"]):
        events[event["name"]].append(event["n"])
    for run in found["runs"]:
        run["parent_key"] = ids.get(run["parent_key"])
        del run["key"]
    for table, rows in found.items():
        for row in rows:
            if isinstance(row.get("run"), int):
                row["run"] = ids.get(row["run"], "")
            if table == "events":
                row["n"] = events[row["name"]].index(row["n"])
            if table == "event_cursors":
                row["n"] = sum(n > row["n"] for n in events[row["name"]])
    del found["workers"]
    return {
        table: sorted((tuple(sorted(row.items(), key=lambda item: item[0])) for row in rows), key=repr)
        for table, rows in found.items()
    }
