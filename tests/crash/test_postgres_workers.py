"""Many workers on one PostgreSQL database: killed, stopped beyond their lease, with wrong clocks, waking each other."""

from __future__ import annotations

import asyncio
import os
import random
import time
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.pooler import Pooler
from tests.support.scripts.postgres_crowd import Bench, Crowd, until
from tests.support.scripts.postgres_runs import WORKFLOWS, begin_all, fan, listen, losses, nap, plan, problems
from tests.support.waiting import LONG

from holdfast import Engine, RunHandle, Status
from holdfast.clock import new_id
from holdfast.contract.turns import NewRun, StartRun
from holdfast.stores.postgres.store import PostgresStore

SEED = int(os.environ.get("HOLDFAST_SEED", "5"))
LEASE = 0.7
LATENCY = 250
A_SECOND = timedelta(seconds=1)
SOON = timedelta(seconds=LONG)


@pytest.mark.parametrize(
    ("workers", "runs", "faults"),
    [
        pytest.param(3, 150, 8, id="small"),
        pytest.param(4, 2000, 100, marks=pytest.mark.slow, id="full"),
    ],
)
async def test_workers_killed_and_stopped_beyond_their_lease_lose_nothing_and_record_nothing_twice(
    database: str, tmp_path: Path, workers: int, runs: int, faults: int
):
    """B1 B24 G1 G3 G4 G5 S2-28 S4-28 As many kills as stops, over runs of every kind; late writes are refused."""
    dice, planned = random.Random(SEED), plan(runs, SEED)
    share = -(-len(planned) // faults)
    with Crowd(tmp_path, url=database, lease=LEASE) as crowd:
        async with Bench(database) as bench:
            for _ in range(workers):
                crowd.begin()
            await crowd.ready()
            for fault in range(faults):
                await begin_all(bench.client, planned[fault * share : (fault + 1) * share])
                await until(lambda: all(map(crowd.is_ready, crowd.pids)) and all(map(bench.worker, crowd.pids)))
                hung, killed = dice.sample(sorted(crowd.pids), 2)
                await _hang_and_kill(crowd, bench, hung, killed)
            await bench.all_ended()
            assert crowd.exited() == [], crowd.log()
            assert crowd.leave() == [0] * workers, crowd.log()
            assert await problems(bench.client, planned, crowd.bodies) == []
    assert crowd.lapses() >= faults * 0.9, "those that hung must have noticed"
    assert crowd.fenced() >= faults / 2, "late writes must have been refused"


async def _hang_and_kill(crowd: Crowd, bench: Bench, hung: int, killed: int) -> None:
    """Stop one worker until it is declared dead, and meanwhile kill another and replace it."""
    name = bench.worker(hung)
    crowd.stop(hung)
    crowd.kill(killed)
    crowd.begin()
    await until(lambda: bench.worker(hung) != name)
    crowd.go_on(hung)


async def test_a_worker_that_hangs_inside_a_transaction_keeps_nobody_waiting(database: str, tmp_path: Path):
    """B24 G5 S2-28 What it has locked is set free when its lease is over, and its runs are taken over."""
    with Crowd(tmp_path, url=database, lease=1.0) as crowd:
        async with Bench(database) as bench:
            hung = crowd.begin()
            await crowd.ready()
            (tmp_path / "hang").touch()
            run = await bench.client.start(fan, 1)
            await until(lambda: crowd.stands_still(hung))
            locks = "SELECT 1 FROM pg_locks WHERE relation = '$schema.commit_lock'::regclass AND granted"
            assert bench.ask(locks), "it must have stopped inside a transaction"
            crowd.begin()
            assert await run.result(SOON) == ["1-0", "1-1", "1-2", "1-left", "1-right"]
            crowd.go_on(hung)
            await until(lambda: bench.worker(hung) is not None)
            assert crowd.leave() == [0, 0], crowd.log()
    assert crowd.lapses() >= 1, "on a busy machine the other one may have been missed, too"


@pytest.mark.parametrize("dialect", [None, "pooler"], ids=["told", "looking"])
async def test_a_run_parked_in_one_process_is_woken_by_a_message_sent_through_another(
    database: str, tmp_path: Path, dialect: str | None
):
    """B12 G7 S3-12 Within a second, on a busy machine five, by a hint or by looking alone."""
    dice, sent = random.Random(SEED), list[int]()
    with Crowd(tmp_path, url=database, dialect=dialect) as crowd:
        pid = crowd.begin()
        await crowd.ready()
        async with Bench(database) as bench:
            run = await bench.client.start(listen, 10)
            await until(partial(_is_parked, run, (tmp_path / f"ready-{pid}").read_text()))
            async with Engine(database, workflows=WORKFLOWS, dialect=dialect) as other:
                for _ in range(10):
                    await asyncio.sleep(dice.uniform(0.1, 0.4))
                    sent.append(time.monotonic_ns() // 1_000_000)
                    await other.get(run.id).send("word")
                heard = await run.result(SOON)
    delays = sorted(there - here for here, there in zip(sent, heard, strict=True))
    assert delays[0] >= 0
    assert delays[5] <= 5000, delays
    assert {line.split()[0] for line in crowd.bodies.read_text().splitlines()} == {str(pid)}


async def _is_parked(run: RunHandle[Any], owner: str) -> bool:
    seen = await run.describe()
    return seen.status is Status.SUSPENDED and seen.owner == owner


async def test_workers_whose_clocks_are_wrong_by_ten_minutes_steal_nothing_and_fire_no_timer_early(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """G9 B24 G5 S3-12 The database's clock is everybody's; a timer may be set by one worker and fire at another."""
    right = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right() + 600 * 1_000_000_000)
    planned = plan(40, SEED)
    with Crowd(tmp_path, url=database, max_resident=0) as crowd:
        for error in (600.0, -600.0, 0.0):
            crowd.begin(clock_error=error)
        await crowd.ready()
        async with Bench(database) as bench:
            naps = {ms: await bench.client.start(nap, ms, id=f"nap-{ms}") for ms in range(700, 1700, 50)}
            begun = time.monotonic_ns() // 1_000_000
            delayed = await bench.client.start(nap, 10, delay=A_SECOND)
            await begin_all(bench.client, planned)
            for ms, run in naps.items():
                times = await run.result(SOON)
                # What a worker knows of the database's time is as old as the answer that said it was late.
                assert all(-LATENCY <= after - before - ms <= 60_000 for before, after in pairwise(times)), (ms, times)
            assert (await delayed.result(SOON))[0] - begun >= 1000
            await bench.all_ended()
            wrong = "SELECT 1 FROM $schema.runs WHERE abs(created - extract(epoch FROM now()) * 1000000) > 60000000"
            assert bench.ask(wrong) == []
            assert await problems(bench.client, planned, crowd.bodies, others=len(naps) + 1) == []
            assert await losses(bench.client) & {"crash", "lapse"} == set()
        bodies = [line.split() for line in crowd.bodies.read_text().splitlines()]
        workers = [{words[0] for words in bodies if f"nap-{ms}" in words} for ms in naps]
        assert any(len(some) > 1 for some in workers), "a timer must have been set by one and fired by another"
        assert crowd.leave() == [0] * 3, crowd.log()
    assert crowd.lapses() == 0


@pytest.mark.parametrize(
    "dialect",
    [
        pytest.param(None, id="default"),
        pytest.param("pooler", id="pooler"),
    ],
)
async def test_workers_behind_a_transaction_pooler_get_along(
    database: str, postgres: str, tmp_path: Path, dialect: str | None
):
    """G1 G3 G7 B24 Nothing of a session lasts from one transaction to the next."""
    planned = plan(40, SEED)
    schema = database.rpartition("schema=")[2]
    with Pooler(postgres) as pooler, Crowd(tmp_path, url=f"{pooler.url}?schema={schema}", dialect=dialect) as crowd:
        for _ in range(2):
            crowd.begin()
        await crowd.ready()
        async with Bench(database) as bench:
            await begin_all(bench.client, planned)
            await bench.all_ended()
            assert await problems(bench.client, planned, crowd.bodies) == []
        assert crowd.exited() == [], crowd.log()
        assert crowd.leave() == [0] * 2, crowd.log()
        assert pooler.switches > 0
    assert crowd.lapses() == 0


async def test_an_idle_store_holds_no_connection_of_a_pooler(database: str, postgres: str):
    """Otherwise those who have nothing to do keep everybody else from working."""
    schema = database.rpartition("schema=")[2]
    with Pooler(postgres, size=1) as pooler:
        store = PostgresStore(f"{pooler.url}?schema={schema}", dialect="pooler")
        await store.open()
        try:
            for _ in range(20):
                run = NewRun(id=new_id(), workflow="w", version="", input="{}", digest=1, seed=1, at=1)
                await store.apply([StartRun(run=run)])
                async with asyncio.timeout(LONG):
                    async with await psycopg.AsyncConnection.connect(pooler.url, autocommit=True) as other:
                        await other.execute("SELECT 1")
        finally:
            await store.close()


async def test_no_two_connections_behind_a_pooler_share_the_name_of_a_statement(database: str, postgres: str):
    """G1 Otherwise one may run what another prepared, with parameters that were meant for something else.

    The pooler says nothing against the settings of a session: only the session's number gives it away.
    """
    schema = database.rpartition("schema=")[2]
    with Pooler(postgres, ignored=("options",)) as pooler:
        stores = [PostgresStore(f"{pooler.url}?schema={schema}") for _ in range(2)]
        for store in stores:
            await store.open()
        try:
            for number in range(8):
                run = NewRun(id=new_id(), workflow="w", version="", input="{}", digest=1, seed=1, at=1)
                await stores[number % 2].apply([StartRun(run=run)])
            names = [name for client in pooler._clients.values() for name in client.session._prepared if name]
            assert len(names) == len(set(names))
        finally:
            for store in stores:
                await store.close()
