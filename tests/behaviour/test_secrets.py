"""A canary: a secret in addresses, payloads, keys and the environment is in no log line, no error and no repr.

What a user's exception says is shown, escaped: that is the user's own code speaking.
"""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import Context, Engine, Retry, activity, step_context, workflow
from holdfast.errors import HoldfastError
from holdfast.stores import open_store

CANARY = "canary-7f3a9"
SHOWN = "what the user's exception says\nforged line"
HOUR = timedelta(hours=1)


class Opaque:
    """Cannot be encoded, and shows the secret to everything that asks."""

    def __repr__(self) -> str:
        return CANARY


class Escapes:
    """Every log line at DEBUG, of every logger, as it is formatted; and every error and repr that a test met."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.seen: list[str] = []

    def error(self, error: BaseException) -> None:
        self.seen += [str(error), repr(error), *traceback.format_exception(error)]

    def shown(self, *things: object) -> None:
        self.seen += [text for thing in things for text in (repr(thing), str(thing))]

    def found(self) -> list[str]:
        return [text for text in (*self.lines, *self.seen) if CANARY in text]


@pytest.fixture
def escapes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Escapes]:
    escapes = Escapes()
    formatter = logging.Formatter("%(name)s %(message)s")

    class Catch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            escapes.lines.append(formatter.format(record))

    monkeypatch.setenv("HOLDFAST_CANARY", CANARY)
    monkeypatch.setenv("PGAPPNAME", "holdfast")
    root, handler = logging.getLogger(), Catch(logging.DEBUG)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield escapes
    root.setLevel(level)
    root.removeHandler(handler)


@activity(retry=Retry.never)
async def explode(secret: str) -> None:
    raise RuntimeError(SHOWN)


@activity(retry=Retry.never)
async def unfit(secret: str) -> int:
    return secret  # type: ignore[return-value]  # the very thing under test


@activity(retry=Retry.never)
async def opaque(secret: str) -> object:
    return Opaque()


@activity(retry=Retry.never, timeout=timedelta(milliseconds=1))
async def slow(secret: str) -> None:
    await asyncio.sleep(LONG)


@activity(retry=Retry.never, idempotency_key=lambda secret, n: f"key-{secret}")
async def keyed(secret: str, n: int) -> int:
    return n


async def keep(secret: str) -> str:
    step_context().log.info("kept")
    return secret


@workflow
async def good(ctx: Context, secret: str) -> str:
    ctx.set_attributes(secret=secret)
    ctx.evidence("seen", {"secret": secret})
    kept = await ctx.step(keep, secret)
    return kept + await ctx.receive("word", str)


@workflow
async def bad(ctx: Context, secret: str, which: str) -> Any:
    if which == "key":
        await ctx.step("first", keyed, secret, 1)
        return await ctx.step("second", keyed, secret, 2)
    if which == "message":
        return await ctx.receive("number", int)
    return await ctx.step({"explode": explode, "unfit": unfit, "opaque": opaque, "slow": slow}[which], secret)


@workflow(check=False, name="changed")
async def before(ctx: Context, secret: str) -> str:
    await ctx.step("old", keep, secret)
    return await ctx.receive("word", str)


@workflow(check=False, name="changed")
async def after(ctx: Context, secret: str) -> str:
    await ctx.sleep(HOUR)
    return await ctx.step("new", keep, secret)


@pytest.mark.parametrize("mode", ["file", "evict", "postgres"])
async def test_a_secret_is_in_no_log_line_error_or_repr(make_engine, mode, address, escapes):
    """Runs that succeed, fail, time out, conflict, block; calls that are refused; everything that can be shown."""
    engine: Engine = await make_engine(good, bad, before)

    async def refused(call: Callable[[], Awaitable[Any]]) -> None:
        with pytest.raises((HoldfastError, TypeError)) as raised:
            await call()
        escapes.error(raised.value)

    run = await engine.start(good, CANARY, id="good", unique_key=f"u-{mode}", attributes={"token": CANARY})
    for which in ("explode", "unfit", "opaque", "slow", "key"):
        failing = await engine.start(bad, CANARY, which, id=which)
        await refused(failing.result)
        escapes.shown(await failing.describe(), await failing.steps(), await failing.history())
    hearing = await engine.start(bad, CANARY, "message", id="hearing")
    await hearing.send("number", CANARY, id=f"id-{CANARY}")
    await refused(hearing.result)
    await engine.publish("news", CANARY)
    await refused(lambda: engine.start(good, CANARY + "!", id="good"))
    await refused(lambda: engine.start(good, Opaque()))
    await refused(lambda: engine.start(good, CANARY, CANARY))
    await refused(lambda: engine.start("nothing of that name", CANARY))
    await refused(lambda: engine.start(good, CANARY, unique_key=f"u-{mode}"))
    await refused(lambda: engine.get("nobody").send("word", CANARY))
    await refused(lambda: engine.get("explode").send("word", CANARY))
    await refused(lambda: run.send("word", Opaque()))
    await refused(lambda: run.send("word", {"key": [CANARY, Opaque()]}))  # the path names keys, so that it can be found
    await refused(lambda: run.query("state", CANARY))
    await refused(lambda: engine.publish("news", Opaque()))
    await refused(lambda: engine.runs(attributes={"token": Opaque()}))
    await refused(lambda: engine.schedules.put("daily", good, Opaque(), cron="@daily"))
    escapes.shown(await engine.schedules.put("daily", good, CANARY, cron="@daily"))
    changed = await engine.start(before, CANARY, id="changed")
    await engine.settle()
    escapes.shown(engine, engine.store, engine.settings, run, engine.registry, engine.dead_letters, engine.audit)
    escapes.shown(await run.describe(), await run.steps(), await run.history(), await engine.runs(), engine._link)
    escapes.shown(await engine.dead_letters.list(), await engine.audit.evidence("good"), await engine.health())
    await run.send("word", CANARY)
    assert await run.result() == CANARY * 2
    await engine.stop()

    other = await make_engine(good, bad, after)
    await other.schedules.delete("daily")  # or time would jump from day to day
    await other.get("changed").send("word", CANARY)
    await refused(other.get("changed").result)
    assert (await other.get("changed").describe()).status == "blocked"
    escapes.shown(await other.get("changed").describe(), changed)
    assert escapes.found() == []
    assert len(escapes.lines) > 5
    assert any("what the user's exception says\\nforged line" in line for line in escapes.lines)
    assert not any(line.startswith("forged") for text in escapes.lines for line in text.split("\n"))


ADDRESSES = [
    f"postgresql://user:{CANARY}@127.0.0.1:1/none",
    f"postgresql://user:{CANARY}@no-such-host.invalid/none",
    f"postgresql://user@127.0.0.1:1/none?password={CANARY}",
    f"postgresql://user:{CANARY}%zz@127.0.0.1/none",
    f"postgresql://user:{CANARY}@127.0.0.1:port/none",
    f"postgresql://user:{CANARY}@127.0.0.1/none?schema=Not-A-Schema",
    f"postgresql://user:{CANARY}@127.0.0.1/none?no_such_option=1",
    f"mysql://user:{CANARY}@127.0.0.1/none",
    f"mysql+pymysql://user:{CANARY}/x@127.0.0.1/none",
    f"postgresql+psycopg://user:{CANARY}@127.0.0.1:1/none",
    f"postgresql+asyncpg://user:{CANARY}@127.0.0.1:1/none?ssl=disable",
    f"POSTGRESQL://user:{CANARY}@127.0.0.1:1/none",
    f"postgresql://user:{CANARY}/x@127.0.0.1/none",  # taken for a host, a port and a database
    f"postgresql://user:x/{CANARY}@127.0.0.1/none",
    f"postgresql://user:1/{CANARY}@127.0.0.1/none",
    f"postgresql://user:x@{CANARY}@127.0.0.1/none",
    f"postgresql://user:x[{CANARY}@127.0.0.1/none",
    f"postgresql://user:\uff03{CANARY}@127.0.0.1/none",  # becomes a # when it is normalized
    f"postgresql//user:{CANARY}@127.0.0.1/none",
    f"user:{CANARY}@127.0.0.1/none",
    f"host=127.0.0.1 user=user password={CANARY}",
    f"sqlite+pysqlcipher://:{CANARY}@/none.db",
    f"sqlite:///none.db?key={CANARY}",
    f"postgresql://user:{CANARY}\0@127.0.0.1/none",
    f"postgresql://user:{CANARY}@127.0.0.1/none" + "?" * 4000,
]


@pytest.mark.parametrize("address", ADDRESSES)
async def test_a_password_in_an_address_is_in_no_log_line_error_or_repr(escapes, address):
    """A host that is not there, a port that is shut, options and schemas that mean nothing."""
    with pytest.raises(HoldfastError) as raised:
        engine = Engine(address)
        escapes.shown(engine, engine.store, engine.settings)
        await engine.open()
    escapes.error(raised.value)
    assert escapes.found() == []


@pytest.mark.parametrize("role", ["nobody", "postgres"])
async def test_a_password_that_a_server_is_given_is_not_shown_either(escapes, postgres, role):
    """A role that does not exist, a database that does not."""
    wrong = postgres.replace("postgres@", f"{role}:{CANARY}@", 1)
    if role == "postgres":
        head, _, query = wrong.partition("?")
        wrong = f"{head.rpartition('/')[0]}/no_such_database?{query}"
    with pytest.raises(HoldfastError) as raised:
        await Engine(wrong).open()
    escapes.error(raised.value)
    store = open_store(postgres.replace("postgres@", f"postgres:{CANARY}@", 1))
    await store.open()
    escapes.shown(store, vars(store).keys())
    await store.close()
    assert escapes.found() == []
    assert os.environ["HOLDFAST_CANARY"] == CANARY


class Address:
    """What libraries for settings make of an address: no text, and a repr with everything in it."""

    def __repr__(self) -> str:
        return f"Address('postgresql://user:{CANARY}@127.0.0.1/none')"


def test_an_address_that_is_no_text_is_refused_without_showing_it(escapes):
    with pytest.raises(HoldfastError, match="of class Address") as raised:
        open_store(Address())
    escapes.error(raised.value)
    assert escapes.found() == []
