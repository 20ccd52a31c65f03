"""A PostgreSQL server that comes and goes, a network that misbehaves: workers go on by themselves and lose nothing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres import servers
from tests.postgres.proxy import Proxy
from tests.support.scripts import postgres_runs
from tests.support.scripts.postgres_crowd import Bench, Crowd, until
from tests.support.scripts.postgres_runs import WORKFLOWS, begin_all, chain, losses, plan, problems
from tests.support.waiting import LONG

from holdfast import Context, Engine, RunHandle, Status, activity, workflow
from holdfast.clock import new_id
from holdfast.contract.operations import Committed, Operation, Outcome
from holdfast.contract.turns import NewRun, StartRun
from holdfast.errors import OutcomeUnknown, StoreError
from holdfast.replay import entry as entries
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.invariants import violations

SEED = int(os.environ.get("HOLDFAST_SEED", "11"))
LEASE = 4.0
SOON = timedelta(seconds=LONG)


@workflow(check=False)
async def collect(ctx: Context, wanted: int) -> list[int]:
    """Take numbers in the order in which they come."""
    return [await ctx.receive("number", int) for _ in range(wanted)]


@workflow(check=False)
async def nothing(ctx: Context) -> None:
    """End at once."""


@pytest.fixture
def server() -> Iterator[servers.Server]:
    """Give a server that only this test uses."""
    version = os.environ.get("HOLDFAST_POSTGRES") or next(iter(servers.find_servers()), "")
    if version not in servers.find_servers():
        pytest.skip("there is no such PostgreSQL on this machine")
    with servers.own_server(version) as server:
        yield server


@pytest.fixture
def schema(database: str) -> str:
    return database.rpartition("schema=")[2]


@pytest.fixture
def proxy(postgres: str) -> Iterator[Proxy]:
    """Give a network in front of the database."""
    with Proxy(postgres) as proxy:
        yield proxy


@asynccontextmanager
async def engine(address: str, *workflows: Any, **options: Any) -> AsyncIterator[Engine]:
    """Have an engine that keeps what it ran."""
    async with Engine(address, workflows=workflows or WORKFLOWS, retention=None, **options) as opened:
        yield opened


# The server.


@pytest.mark.parametrize(
    ("runs", "outages"),
    [
        pytest.param(80, ["immediate", "sessions", "long"], id="small"),
        pytest.param(
            400,
            ["immediate", "fast", "sessions", "long"] * 4,
            marks=pytest.mark.slow,
            id="full",
        ),
    ],
)
async def test_workers_outlive_the_server_and_finish_everything(
    server: servers.Server, tmp_path: Path, runs: int, outages: list[str]
):
    """B24 G1 G3 S4-28

    Under load it crashes, is stopped, also for longer than a lease, and its sessions are ended: no worker exits, and
    none is taken for dead.
    """
    dice, planned = random.Random(SEED), plan(runs, SEED)
    share = -(-len(planned) // len(outages))
    database = f"{server.url()}&schema=outages"
    with Crowd(tmp_path, url=database, lease=LEASE) as crowd:
        async with Bench(database) as bench:
            for _ in range(3):
                crowd.begin()
            await crowd.ready()
            for number, outage in enumerate(outages):
                starting = asyncio.create_task(
                    begin_all(bench.client, planned[number * share : (number + 1) * share], insist=True)
                )
                await asyncio.sleep(dice.uniform(0.05, 0.4))
                await asyncio.to_thread(_break, server, outage)
                await starting
                assert crowd.exited() == [], crowd.log()
            await bench.all_ended()
            assert await problems(bench.client, planned, crowd.bodies) == []
            assert await losses(bench.client) & {"crash", "lapse"} == set(), "nobody died or hung"
        assert crowd.leave() == [0] * 3, crowd.log()
    assert crowd.lapses() == 0


def _break(server: servers.Server, outage: str) -> None:
    """Let a server crash or stop and come back, or end every session; see that it did."""
    before = _ask(server, "SELECT pg_postmaster_start_time()")
    if outage == "sessions":
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'holdfast%'"
        assert len(_ask(server, ended)) >= 4
    else:
        server.stop("immediate" if outage == "immediate" else "fast")
        time.sleep(LEASE + 1 if outage == "long" else 0)
        server.start()
        assert _ask(server, "SELECT pg_postmaster_start_time()") != before


def _ask(server: servers.Server, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


# The network.


def _through(proxy: Proxy, schema: str) -> str:
    return f"{proxy.url}?schema={schema}"


async def test_a_worker_whose_connections_were_cut_while_it_was_idle_goes_on(database: str, schema: str, proxy: Proxy):
    """B24 G7 S4-28 It hears of the next message by itself."""
    async with (
        engine(_through(proxy, schema), collect) as worker,
        engine(database, collect, run_workflows=False) as client,
    ):
        run = await client.start(collect, 5)
        for number in range(5):
            await until(partial(_waits_for, run, number))
            await until(lambda: proxy.open_connections >= 3)
            proxy.cut()
            assert proxy.injected >= 3 * (number + 1)
            await run.send("number", number)
        assert await run.result(SOON) == [0, 1, 2, 3, 4]
        assert await violations(client.store) == []
        assert worker._working().lapses == 0


async def _waits_for(run: RunHandle[Any], number: int) -> bool:
    """Tell whether a run has taken so many messages and waits for one more."""
    waits = [fact for fact in await run.history() if isinstance(fact.entry, entries.ReceiveBegun)]
    return len(waits) == number + 1 and await run.status() is Status.SUSPENDED


def _any_cut(proxy: Proxy, dice: random.Random, **options: Any) -> None:
    """Cut the next commit: before the server gets it, before its answer arrives, or so that it gets it later."""
    late = dice.choice([None, 0.05])
    dice.choice(
        [
            lambda: proxy.cut_before_commit(**options),
            lambda: proxy.cut_after_commit_sent(**options),
            lambda: proxy.cut_after_commit_sent(late=late, **options),
        ]
    )()


@pytest.mark.parametrize("cuts", [12, pytest.param(120, marks=pytest.mark.slow)], ids=["small", "full"])
async def test_what_is_sent_and_started_while_commits_are_cut_off_is_there_once(
    database: str, schema: str, proxy: Proxy, cuts: int
):
    """G1 G7 B12 B13 S2-30 With and without ids of their own: what became of a commit is asked, and not guessed."""
    dice, started = random.Random(SEED), list[str]()
    async with (
        engine(database, collect, nothing) as worker,
        engine(_through(proxy, schema), collect, nothing, run_workflows=False) as client,
    ):
        run = await worker.start(collect, cuts)
        for number in range(cuts):
            own_id = dice.choice([None, f"own-{number}"])
            _any_cut(proxy, dice)
            await client.get(run.id).send("number", number, id=own_id)
            assert proxy.injected == 2 * number + 1
            _any_cut(proxy, dice)
            started.append((await client.start(nothing, id=own_id)).id)
            assert proxy.injected == 2 * number + 2
        assert await run.result(SOON) == list(range(cuts))
        there = [each.id for each in await worker.runs(limit=1000) if each.workflow == "nothing"]
        assert sorted(there) == sorted(started)
        for id in started:
            await worker.get(id).result(SOON)
        assert await violations(worker.store) == []


class _Struck(PostgresStore):
    """Has something done to it when it starts a run."""

    strike: Callable[[], None]

    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        if any(isinstance(operation, StartRun) for operation in operations):
            self.strike()
        return await super().apply(operations)


@pytest.mark.parametrize(
    ("here", "fault"),
    [
        (True, "late"),
        (False, "after"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [(True, "before"), (True, "after"), (False, "before"), (False, "late")]
        ),
    ],
)
async def test_a_start_of_which_nobody_can_say_what_became_may_be_repeated(
    database: str, schema: str, proxy: Proxy, fault: str, here: bool
):
    """G1 G2 The run is there once or not at all, and if it is there it goes on by itself."""
    store = _Struck(_through(proxy, schema))
    strikes: dict[str, Callable[[], None]] = {
        "before": proxy.cut_before_commit,
        "after": proxy.cut_after_commit_sent,
        "late": partial(proxy.cut_after_commit_sent, late=4.0),
    }

    def strike() -> None:
        proxy.reset_new()
        strikes[fault]()

    store.strike = strike
    async with (
        engine(database, nothing, run_workflows=not here) as other,
        engine("", nothing, run_workflows=here, store=store) as starter,
    ):
        assert await starter.runs() == []  # so that it is connected
        await until(lambda: starter._working().idle)  # so that the next commit is the one
        with pytest.raises(OutcomeUnknown, match="the server cannot be asked"):
            await starter.start(nothing, id="the-one")
        assert proxy.bites.keys() >= {
            "reset_new",
            "cut_before_commit" if fault == "before" else "cut_after_commit_sent",
        }
        store.strike = proxy.heal
        proxy.heal()
        if fault == "after":
            await other.get("the-one").result(SOON)
        elif fault == "before":
            assert await other.runs() == []
        await (await starter.start(nothing, id="the-one")).result(SOON)
        assert [run.id for run in await other.runs()] == ["the-one"]
        assert await violations(other.store) == []


@pytest.mark.parametrize(
    ("runs", "cuts"),
    [
        pytest.param(40, 12, id="small"),
        pytest.param(300, 100, marks=pytest.mark.slow, id="full"),
    ],
)
async def test_a_worker_whose_commits_are_cut_off_repeats_nothing_that_is_recorded(
    database: str, schema: str, proxy: Proxy, tmp_path: Path, runs: int, cuts: int
):
    """G1 G3 G4 S4-28 Claims, facts, parking, renewals of the lease: each may be the one whose answer is lost."""
    dice, planned = random.Random(SEED), plan(runs, SEED)
    share = -(-len(planned) // cuts)
    with Crowd(tmp_path, url=_through(proxy, schema), lease=5.0) as crowd:
        async with Bench(database) as bench:
            for _ in range(2):
                crowd.begin()
            await crowd.ready()
            for number in range(cuts):
                await begin_all(bench.client, planned[number * share : (number + 1) * share])
                _any_cut(proxy, dice, autocommit=dice.random() < 0.7, skip=dice.randrange(4))
                await asyncio.to_thread(proxy.wait_injected, number + 1)
            proxy.heal()
            await bench.all_ended()
            assert await problems(bench.client, planned, crowd.bodies) == []
            assert await losses(bench.client) & {"crash", "lapse"} == set(), "nobody died or hung"
        assert proxy.injected >= cuts
        assert crowd.exited() == [], crowd.log()
        assert crowd.leave() == [0] * 2, crowd.log()


async def test_a_worker_cut_off_for_longer_than_its_lease_is_replaced_and_comes_back(
    database: str, schema: str, proxy: Proxy, tmp_path: Path
):
    """B24 G3 G5 S2-28 Nothing arrives in either direction; what it did meanwhile is refused when everything does."""
    planned = plan(20, SEED)
    cut_off = Crowd(tmp_path, url=_through(proxy, schema), lease=1.0)
    other = Crowd(tmp_path, url=database, lease=1.0)
    with cut_off, other:
        async with Bench(database) as bench:
            pid = cut_off.begin()
            await cut_off.ready()
            await begin_all(bench.client, planned)
            await until(lambda: cut_off.bodies.stat().st_size > 0)
            name = bench.worker(pid)
            proxy.black_hole()
            other.begin()
            await until(lambda: bench.worker(pid) != name)
            await bench.all_ended()
            proxy.heal()
            await until(lambda: bench.worker(pid) not in (None, name))
            assert await problems(bench.client, planned, cut_off.bodies) == []
            # On a busy machine no attempt may have been under way just then; what was lost is never called a crash.
            assert "crash" not in await losses(bench.client)
            assert cut_off.lapses() >= 1
            assert other.leave() == [0]
            await (await bench.client.start(chain, 99)).result(SOON)
        assert cut_off.leave() == [0], cut_off.log()
    assert proxy.bites["black_hole"] > 0


@pytest.mark.parametrize("fault", ["delay", "slow"])
async def test_a_slow_network_only_costs_time(database: str, schema: str, proxy: Proxy, tmp_path: Path, fault: str):
    """G1 G3 B24 Nobody is taken for dead, and nothing is done twice."""
    planned = plan(12, SEED)
    with Crowd(tmp_path, url=_through(proxy, schema), lease=10.0) as crowd:
        async with Bench(database) as bench:
            crowd.begin()
            await crowd.ready()
            if fault == "delay":
                proxy.delay(0.03)
            else:
                proxy.slow(100_000)
            await begin_all(bench.client, planned)
            await bench.all_ended()
            proxy.heal()
            assert await problems(bench.client, planned, crowd.bodies) == []
            attempts = Counter(line.split()[-1] for line in crowd.bodies.read_text().splitlines())
            assert attempts["1"] >= 20
        assert crowd.leave() == [0], crowd.log()
    assert crowd.lapses() == 0
    assert proxy.bites[fault] > 20


async def test_an_engine_stops_in_time_though_the_server_is_away(
    schema: str, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """B24 S4-28 What it had under way is left to others, as if it had been killed."""
    monkeypatch.setattr(postgres_runs, "BODIES", tmp_path / "bodies")
    opened = Engine(_through(proxy, schema), workflows=WORKFLOWS, retention=None, stop_grace=timedelta(seconds=1))
    await opened.open()
    for number in range(10):
        await opened.start(chain, number)
    proxy.refuse()
    assert proxy.cut() >= 3
    stopping = asyncio.create_task(opened.stop())
    await asyncio.wait([stopping], timeout=LONG)
    in_time = stopping.done()
    proxy.heal()
    await stopping
    assert in_time


@pytest.mark.slow
async def test_a_worker_whose_sessions_fell_silent_makes_new_ones(server: servers.Server, tmp_path: Path):
    """B24 S4-28 As behind a load balancer that lost the server and tells nobody."""
    database, silenced = f"{server.url()}&schema=silent", list[int]()
    with Crowd(tmp_path, url=database, lease=5.0) as crowd:
        async with Bench(database) as bench:
            await (await bench.client.start(chain, 0)).status()
            sessions = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND state = 'idle'"
            before = bench.ask(sessions)
            crowd.begin()
            await crowd.ready()
            await bench.all_ended()
            try:
                for (pid,) in set(bench.ask(sessions)).difference(before):
                    os.kill(pid, signal.SIGSTOP)
                    silenced.append(pid)
                assert len(silenced) >= 3
                run = await bench.client.start(chain, 1)
                await run.result(timedelta(seconds=LONG))
            finally:
                for pid in silenced:
                    os.kill(pid, signal.SIGCONT)
        assert crowd.leave() == [0], crowd.log()


# What a lost answer means.


@pytest.mark.parametrize("which", ["run", "suspect"])
async def test_a_claim_whose_answer_was_lost_is_reported(database: str, schema: str, proxy: Proxy, which: str):
    """G1 B24 The worker must look for what it may hold: a claim that is made again in silence loses the run."""
    direct, store = PostgresStore(database), PostgresStore(_through(proxy, schema))
    await direct.open()
    await store.open()
    try:
        await store.join("worker", timedelta(seconds=30))
        run = NewRun(id=new_id(), workflow="w", version="", input="{}", digest=1, seed=1, at=1)
        await direct.apply([StartRun(run=run)])
        if which == "suspect":
            await direct.look(lambda db: db.change("hand_back", ("nobody",)))
            with psycopg.connect(_address(database), autocommit=True) as connection:
                connection.execute(f'UPDATE "{schema}".runs SET claims = 1'.encode())
        else:
            await store._connections.writer.drop()
        proxy.cut_after_commit_sent(autocommit=which == "run")
        with pytest.raises(StoreError):
            await store.claim("worker", 10, 5, ["w"])
        assert proxy.injected == 1
        assert len(await direct.held("worker")) == 1
    finally:
        await store.close()
        await direct.close()


class _LateAnswers(PostgresStore):
    """Hears late that somebody else holds an idempotency key."""

    asked: asyncio.Event
    answer: asyncio.Event

    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        outcomes = await super().apply(operations)
        answers = [answer for each in outcomes if isinstance(each, Committed) for answer in each.keys.values()]
        if any(answer.outcome == "held" for answer in answers):
            self.asked.set()
            await self.answer.wait()
        return outcomes


async def test_a_key_that_is_given_up_before_it_is_known_to_be_held_is_not_waited_for(database: str):
    """B14 G7 The answer to the commit that asked for it is overtaken by the news that it is free."""
    go, store = asyncio.Event(), _LateAnswers(database)
    store.asked, store.answer = asyncio.Event(), asyncio.Event()

    @activity(idempotency_key=lambda: "the only one")
    async def charge() -> str:
        await go.wait()
        return "paid"

    @workflow(check=False)
    async def first(ctx: Context) -> str:
        return await ctx.step(charge)

    async def begin() -> None: ...

    @workflow(check=False)
    async def second(ctx: Context) -> str:
        await ctx.step(begin)  # the commit that starts the run must not be the one that asks
        return await ctx.step(charge)

    async with engine(database, first) as holding, engine("", second, store=store) as waiting:
        held = await holding.start(first)
        await until(lambda: bool(holding._working().executor.active))
        run = await waiting.start(second)
        await store.asked.wait()
        try:
            go.set()
            assert await held.result(SOON) == "paid"
            (resident,) = waiting._working().runner.residents.values()
            await until(lambda: resident.seen > 0)
        finally:
            store.answer.set()
        assert await run.result(timedelta(seconds=LONG)) == "paid"


def _address(database: str) -> str:
    return database.rpartition("schema=")[0].rstrip("?&")


async def test_options_in_the_address_reach_the_server(database: str):
    """As libpq writes them."""
    store = PostgresStore(f"{database}&options=-c%20statement_timeout%3D5000")
    await store.open()
    try:
        cursor = await store._connections.reader.use(lambda connection: connection.execute("SHOW statement_timeout"))
        assert await cursor.fetchall() == [("5s",)]
    finally:
        await store.close()
