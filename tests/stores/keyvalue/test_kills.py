"""Kill -9 at any batch of the fifty-step order in an engine on a key space."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from tests.support.paths import ROOT, SCRIPTS
from tests.support.redis_server import RedisServer, redis_server
from tests.support.scripts import crash_everywhere

from holdfast import Context, Engine, workflow
from holdfast.contract.rows import RunFilter
from holdfast.errors import OutcomeUnknown, StoreError, StoreUnreachable
from holdfast.kv.driver import Driver, Expected
from holdfast.kv.drivers.redis import RedisDriver
from holdfast.replay import entry as entries
from holdfast.stores.keyvalue import KeyValueStore

BATCHES = 30  # that this workflow makes at the very least
WIDEST = 3  # bodies that can be in flight at once in that workflow
SET_UP = 2  # batches until there are tables


THIRDS = [pytest.param((first, 3), marks=pytest.mark.slow, id=f"every third from {first}") for first in (1, 2, 3)]
"""Which batches a life is killed at: the first, and every how many. All at once take long on a busy machine."""


def kill_at_each(*args: object, moments: tuple[str, ...], batches: tuple[int, int], **environ: str) -> None:
    first, step = batches
    command = [sys.executable, str(SCRIPTS / "kv_engine_everywhere.py"), *map(str, [*args, first, step])]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    killed = {(report["kill_at"], report["moment"]) for report in reports if report["killed"]}
    assert {(batch, moment) for batch in range(first, BATCHES + 1, step) for moment in moments} - killed == set()
    assert [report for report in reports if not report["finished"]] == []
    assert [report for report in reports if report["again"] or report["broken"] or report["missing"]] == []
    assert max(len(report["twice"]) for report in reports) <= WIDEST


@pytest.mark.parametrize("batches", [pytest.param((1, 13), id="some"), *THIRDS])
def test_an_engine_on_a_directory_killed_at_any_batch_continues_and_repeats_no_recorded_step(
    tmp_path: Path, batches: tuple[int, int]
):
    """S0-40 S0-41 S1-14 G1 G3 Before a batch, in the middle of writing it, and after it but before its answer."""
    kill_at_each(tmp_path, "directory", moments=("before", "inside", "after"), batches=batches)


@pytest.mark.parametrize("batches", THIRDS)
def test_an_engine_on_lmdb_killed_at_any_batch_continues_and_repeats_no_recorded_step(
    tmp_path: Path, batches: tuple[int, int]
):
    """S0-40 S0-41 S1-14 G1 G3"""
    kill_at_each(tmp_path, "lmdb", moments=("before", "after"), batches=batches)


@pytest.mark.parametrize("batches", THIRDS)
@pytest.mark.leaves("process")
def test_an_engine_on_redis_killed_at_any_batch_continues_and_repeats_no_recorded_step(
    tmp_path: Path, redis_socket: Path, batches: tuple[int, int]
):
    """S0-40 S0-41 S1-14 G1 G3"""
    kill_at_each(tmp_path, "redis", moments=("before", "after"), batches=batches, REDIS_SOCKET=str(redis_socket))


class KilledServer(RedisDriver):
    """A key space whose server is killed at one batch, and started again with what it has on disk."""

    server: RedisServer
    batches, at, moment = 0, 0, ""
    done: list[str]

    async def batch(
        self, puts: Mapping[bytes, bytes], deletes: Collection[bytes] = (), expect: Expected | None = None
    ) -> None:
        cls = KilledServer
        cls.batches += 1
        if cls.batches != cls.at:
            await super().batch(puts, deletes, expect)
            return
        asked = asyncio.ensure_future(super().batch(puts, deletes, expect)) if cls.moment != "before" else None
        if cls.moment == "inside":
            await asyncio.sleep(0)  # it is asked for
        elif asked is not None:
            await asked
        cls.server.kill()
        cls.server.start()
        cls.done = await recorded(cls.server) if cls.at > SET_UP else []
        crash_everywhere.LIFE = "second"
        if asked is None:
            raise StoreUnreachable("the server is killed by the test")
        if cls.moment == "after":
            raise OutcomeUnknown("the answer is lost by the test")
        await asked


async def recorded(server: RedisServer) -> list[str]:
    """Return the steps whose results are durable."""
    store = KeyValueStore(lambda: RedisDriver.connect(f"unix://{server.socket}", "engine"))
    await store.open(look_only=True)
    done: list[str] = []
    for run in await store.runs(RunFilter()):
        for fact in await store.history(run.key):
            if fact.kind == entries.StepCompleted.kind:
                done.append(json.loads(bytes(entries.decode_entry(fact.kind, fact.data).result)))
    await store.close()
    return done


@pytest.mark.parametrize("batches", [pytest.param((2, 16), id="some"), *THIRDS])
@pytest.mark.parametrize("moment", ["before", "inside", "after"])
async def test_an_engine_goes_on_after_its_redis_server_was_killed_at_any_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, batches: tuple[int, int]
):
    """S0-40 S0-41 S1-14 G1 G3 The engine lives on; all that was acknowledged is there, nothing of it is done again."""
    monkeypatch.setattr(crash_everywhere, "LIFE", "")
    first, step = batches
    kills = 0
    for at in itertools.count(first, step):
        folder = tmp_path / str(at)
        folder.mkdir()
        monkeypatch.setattr(crash_everywhere, "LOG", folder / "log")
        monkeypatch.setattr(crash_everywhere, "LIFE", "first")
        with redis_server(folder) as server:
            KilledServer.server, KilledServer.batches, KilledServer.at = server, 0, at
            KilledServer.moment, KilledServer.done = moment, []
            await an_order(partial(KilledServer.connect, f"unix://{server.socket}", "engine"))
        lines = [line.split() for line in (folder / "log").read_text().splitlines()]
        before, after = ({name for life, name in lines if life == which} for which in ("first", "second"))
        if crash_everywhere.LIFE == "first":
            break
        kills += 1
        assert after & set(KilledServer.done) == set(), at
        assert len(before & after) <= WIDEST, at
        assert before | after == crash_everywhere.NAMES, at
        assert len(lines) <= len(crash_everywhere.NAMES) + WIDEST, at
    assert kills >= BATCHES // step


@asynccontextmanager
async def stubborn(engine: Engine) -> AsyncIterator[Engine]:
    """Open an engine, again if its server is killed meanwhile; one that is killed when it closes is nothing."""
    while True:
        try:
            await engine.__aenter__()
            break
        except StoreError:
            continue
    yield engine
    await engine.__aexit__(None, None, None)


async def an_order(open_driver: Callable[[], Awaitable[Driver]]) -> None:
    """Have the order begun and brought to its end by one engine, whatever its callers meet."""
    store = KeyValueStore(open_driver)
    async with stubborn(Engine(store=store, workflows=[crash_everywhere.fifty], retention=None)) as engine:
        for _ in range(20):
            try:
                run = await engine.start(crash_everywhere.fifty, id="order")
                await run.send("first", "first", id="first")
                await run.send("second", "second", id="second")
                assert await run.result(timeout=timedelta(minutes=5)) == crash_everywhere.EXPECTED
                return
            except StoreError:
                continue
        pytest.fail("it never came to its end")


async def echo(text: str) -> str:
    return text


@workflow
async def asked_twice(ctx: Context) -> list[str]:
    first = await ctx.step(echo, await ctx.receive("first", str))
    return [first, await ctx.step(echo, await ctx.receive("second", str))]


async def test_an_engine_goes_on_after_its_redis_server_was_down_for_a_while(tmp_path: Path):
    """S0-40 G1 It asks for its server until that is there; what a caller was refused meanwhile has not happened."""
    refused = 0
    with redis_server(tmp_path) as server:

        async def open_driver() -> Driver:
            nonlocal refused
            try:
                return await RedisDriver.connect(f"unix://{server.socket}", "engine")
            except StoreUnreachable:
                refused += 1
                if refused == 5:
                    server.start()
                raise

        async with Engine(store=KeyValueStore(open_driver), workflows=[asked_twice]) as engine:
            run = await engine.start(asked_twice, id="order")
            await run.send("first", "one")
            server.kill()
            told = 0
            while not told:
                try:
                    await run.send("second", "two", id="second")
                    told += 1
                except StoreError:
                    await asyncio.sleep(0)  # the engine asks too
            assert await run.result(timeout=timedelta(minutes=5)) == ["one", "two"]
    assert refused >= 5
