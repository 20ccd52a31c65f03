"""What the world of flow control is made of: clocks that jump, stores that write down begins, workflows, troubles."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from operator import sub
from random import Random
from typing import Any

import pytest
from psycopg import AsyncConnection, sql
from tests.support.flow_judge import Line
from tests.support.moved_clocks import BootClock, BootedStore, MovedClock

from holdfast import Context, Engine, Retry, Status, activity, step_context, workflow
from holdfast.clock import Clock
from holdfast.contract.operations import Committed, Operation, Outcome, Started
from holdfast.contract.store import Store
from holdfast.contract.turns import CommitTurn, StartRun
from holdfast.errors import HoldfastError, NonRetryable, OutcomeUnknown, RetryAfter, RunFailed, RunRejected, StoreError
from holdfast.limits import Limit
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.faults import Faults


def milliseconds(count: float) -> timedelta:
    """Return a duration."""
    return timedelta(milliseconds=count)


RATE, PER = 4, milliseconds(40)
"""How many may begin in which time, of steps and of runs."""
BURST = 3
LIMITS = [
    Limit(name="whole", at_once=3, per_key_at_once=2),
    Limit(name="paced", rate=RATE, per=PER),
    Limit(name="spread", rate=RATE, per=PER, burst=BURST),
    Limit(name="one", at_once=1, trip_after=3, cool_down=milliseconds(20)),
]
LESS = [Limit(name="whole", at_once=2, per_key_at_once=1), Limit(name="paced", rate=2, per=PER)]
"""What operators, and engines that are opened with other numbers, put in their place."""
ALLOWED = {"whole": 3, "whole/t0": 2, "whole/t1": 2, "whole/t2": 2, "one": 1, "lane/k0": 2, "lane/k1": 2, "single": 1}
ALLOWED |= {"latest": 1}
"""How many may be there at the same time: bodies, and in lanes runs between their first step and their last."""
SECOND, HOUR = 1_000_000, 3_600_000_000
PATIENCE = 100
"""In how many rounds in a row nothing may go on before all has ended."""


class World:
    """Workers of one database, and what the bodies of their steps wrote down."""

    def __init__(self, seed: int, make_store: Callable[[], Store], *, boots: bool) -> None:
        self.random = Random(seed)
        self.boots = boots
        """Whether leases have a clock of their own, the time since boot."""
        self.log: list[Line] = []
        self.begins: dict[tuple[str, str], list[int]] = {}
        """When steps began under a rate, by limit and key, by the lease's clock; and runs, by the clock on the wall."""
        self.happened: Counter[str] = Counter()
        self._stands = ""
        """How it stood when it was last looked at."""
        self.wall = MovedClock()
        self.lease = BootClock(-Clock().now() + 50 * HOUR) if boots else self.wall
        self.unfolded = 0
        """What is to be added to the lease's time, so that it goes on when the machine is booted."""
        self.engines: list[Engine] = []
        self.faults: list[Faults] = []
        self.started: set[str] = set()
        self._make_store = make_store
        self._bodies = itertools.count()
        self.workflows = make_workflows(self)

    async def at(self, *places: str, who: str = "") -> None:
        """Stay somewhere for a while, and perhaps fail."""
        who = who or f"{step_context().run_id}/{next(self._bodies)}"
        await self._leave_behind(places)
        self.log += [("in", place, who) for place in places]
        try:
            await asyncio.sleep(self.random.choice([0, 0, 0.001, 0.003]))
            dice = self.random.random()
            if dice < 0.04:
                raise RetryAfter(milliseconds(self.random.randrange(10)), "429")
            if dice < 0.12:
                raise ConnectionError("down")
        finally:
            self.log += [("out", place, who) for place in places]

    async def _leave_behind(self, places: Sequence[str]) -> None:
        """Count bodies no more whose runs have ended, where runs are counted: their workers may not know it yet."""
        if not {"latest", "single"}.isdisjoint(places):
            for run in {who.partition("/")[0] for _, where, who in self.log if where in places}:
                with suppress(HoldfastError, IndexError):  # there is no worker, or the one that is asked goes
                    row = await self.engines[0].find(run)
                    if row is not None and row.status.is_terminal:
                        self.log.append(("gone", "", run))

    # Workers.

    async def open(self) -> None:
        """Open another worker."""
        draw = self.random
        store = self._make_store()
        store.clock = self.wall
        if isinstance(store, BootedStore):
            store.since_boot = self.lease
        faults = Faults(store)
        self._write_down_begins(store)
        limits = {limit.name: limit for limit in LIMITS}
        if draw.random() < 0.3:
            limits |= {limit.name: limit for limit in draw.sample(LESS, 1)}
        engine = Engine(
            store=store, workflows=self.workflows, limits=list(limits.values()), retention=None,
            queues=["default", "far"], max_steps=draw.choice([2, 8]), max_resident=draw.choice([0, 3, 1000]),
            stop_grace=milliseconds(5), lease=timedelta(seconds=30), development=False,
        )  # fmt: skip
        await engine.open()
        self.engines.append(engine)
        self.faults.append(faults)

    def _write_down_begins(self, store: Any) -> None:
        """Let a store tell which begins it records, with their instants."""
        boot, apply, apply_now, claim_waiting = self.unfolded, store.apply, store.apply_now, store.claim_waiting

        def note(operations: Sequence[Operation], outcomes: Sequence[Outcome] | None) -> None:
            for operation, outcome in zip(operations, outcomes or (), strict=False):
                turn: Any = operation.turn if isinstance(operation, StartRun) else operation
                done = outcome.committed if isinstance(outcome, Started) else outcome
                if isinstance(turn, CommitTurn) and isinstance(done, Committed) and turn.effects is not None:
                    for enter in turn.effects.enters:
                        if enter.location in done.limits and done.limits[enter.location].outcome == "entered":
                            self.begins.setdefault((enter.limit, enter.key), []).append(enter.now + boot)

        under_way: list[Sequence[Operation]] = []

        async def noting(operations: Sequence[Operation]) -> list[Outcome]:
            under_way.append(operations)
            try:
                outcomes: list[Outcome] = await apply(operations)
            finally:
                under_way.pop()
            note(operations, outcomes)
            return outcomes

        def noting_now(operations: Sequence[Operation]) -> list[Outcome] | None:
            outcomes: list[Outcome] | None = apply_now(operations)
            if not any(operations is each for each in under_way):  # by way of apply, which tells
                note(operations, outcomes)
            return outcomes

        async def claiming(worker: str, now: int, *args: Any, **options: Any) -> Any:
            back = self.wall.back
            claims = await claim_waiting(worker, now, *args, **options)
            for claim in claims:
                self.begins.setdefault((claim.workflow, ""), []).append(now + back)
            return claims

        store.apply, store.apply_now, store.claim_waiting = noting, noting_now, claiming

    async def close(self, number: int, how: str) -> None:
        """End a worker: in order, or as if it were killed."""
        engine, faults = self.engines.pop(number), self.faults.pop(number)
        faults.heal()
        if how == "kill":
            faults.die()
        worker = engine._link.worker.id
        await engine.stop(grace=timedelta(0) if how == "kill" else None)
        if how == "kill" and isinstance(engine.store, PostgresStore):
            # Its process goes on, so that only its lease could tell: let that be over.
            async with await AsyncConnection.connect(engine.store._connections.conninfo, autocommit=True) as connection:
                schema = sql.Identifier(engine.store.schema)
                await connection.execute(
                    sql.SQL("UPDATE {}.workers SET lease_until = 0 WHERE id = %s").format(schema), (worker,)
                )

    async def boot(self) -> None:
        """Kill all workers at once; the next ones find that the time since boot began again."""
        while self.engines:
            await self.close(0, "kill")
        if self.boots:
            before = self.lease.now()
            self.lease.ahead -= before
            self.unfolded += before
        await self.open()

    # Troubles.

    async def trouble(self) -> None:
        """Do something to the workers, their clocks, the store, a limit, a workflow or a run."""
        draw = self.random
        engine = draw.choice(self.engines)
        acts: list[tuple[str, int, Callable[[Engine], Awaitable[Any]]]] = [
            ("kill", 3, self._replace), ("stop", 2, self._replace), ("boot", 1, self._boot), ("clock", 3, self._clocks),
            ("fail", 2, self._fail), ("limit", 3, self._pause_limit), ("workflow", 1, self._pause_workflow),
            ("numbers", 2, self._override), ("run", 4, self._pause_run), ("cancel", 2, self._cancel),
            ("terminate", 1, self._terminate),
        ]  # fmt: skip
        what, _, act = draw.choices(acts, [weight for _, weight, _ in acts])[0]
        self.happened[what] += 1
        self._what = what
        with suppress(HoldfastError, TimeoutError):  # it has ended, stands otherwise, or the store failed
            await act(engine)

    async def _replace(self, engine: Engine) -> None:
        if len(self.engines) < 2:
            await self.open()
        await self.close(self.engines.index(engine), self._what)
        await self.open()

    async def _boot(self, engine: Engine) -> None:
        await self.boot()

    async def _clocks(self, engine: Engine) -> None:
        draw = self.random
        by = draw.choice([0, 1_000, 50_000, 20_000_000, HOUR])
        while by == HOUR and any(each._link.worker.committer.waiting for each in self.engines):  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # a commit may be late, but not by more than a minute
        self.lease.jump(by)
        if self.boots:
            self.wall.jump(draw.choice([-20_000, -5_000, 5_000, 300_000, HOUR]))

    async def _fail(self, engine: Engine) -> None:
        faults = self.random.choice(self.faults)
        if self.random.random() < 0.5:
            faults.fail(self.random.randint(1, 2), skip=self.random.randrange(3))
        else:
            faults.lose_answer(1, skip=self.random.randrange(3))

    async def _pause_limit(self, engine: Engine) -> None:
        name = self.random.choice(LIMITS).name
        await engine.limits.pause(name)
        await asyncio.sleep(0.003)
        await engine.limits.resume(name)

    async def _pause_workflow(self, engine: Engine) -> None:
        which = self.random.choice(self.workflows)
        await engine.flow.pause(workflow=which)
        await asyncio.sleep(0.003)
        await engine.flow.resume(workflow=which)

    async def _override(self, engine: Engine) -> None:
        less = self.random.choice(LESS)
        await engine.limits.override(less.name, less if self.random.random() < 0.5 else None)

    async def _pause_run(self, engine: Engine) -> None:
        if self.started:
            run = engine.get(self.random.choice(sorted(self.started)))
            await run.pause(duration=self.random.choice([None, milliseconds(3)]))

    async def _cancel(self, engine: Engine) -> None:
        if mortal := self._mortal():
            await engine.get(self.random.choice(mortal)).cancel()

    async def _terminate(self, engine: Engine) -> None:
        if mortal := self._mortal():
            await engine.get(self.random.choice(mortal)).terminate()

    def _mortal(self) -> list[str]:
        return sorted(run for run in self.started if run.startswith(("steps", "latest", "single", "hasty")))

    # Runs.

    async def start(self, number: int) -> None:
        """Start a run of some workflow, however often that takes; one that is rejected is given up."""
        which = self.random.choice([*self.workflows, self.workflows[0], self.workflows[0]])
        run_id = f"{which.name}-{number}"
        while True:
            try:
                await self.random.choice(self.engines).start(which, number, id=run_id)
            except RunRejected:
                self.happened["rejected"] += 1
                return
            except (StoreError, OutcomeUnknown, RunFailed):
                await asyncio.sleep(0.001)
            else:
                self.started.add(run_id)
                return

    async def end(self) -> None:
        """Wait until every run has ended; where nothing goes on, let the clocks do.

        Patience is counted in rounds in which every worker ticked and nothing went on. Each moves the clocks by
        a second, so that it does not matter how fast the machine is.
        """
        quiet, seen, before = 0, "", self._ticks()
        while not await self._settle():
            ticks = self._ticks()
            if self._stands != seen:
                quiet, seen, before = 0, self._stands, ticks
            elif all(ticked >= 5 for ticked in map(sub, ticks, before)):
                quiet, before = quiet + 1, ticks
                if quiet >= PATIENCE:
                    pytest.fail(f"nothing goes on any more: {seen}, of {len(self.started)}; {await self._left()}")
                self.wall.jump(SECOND)
                if self.lease is not self.wall:
                    self.lease.jump(SECOND)

    async def _left(self) -> str:
        """Say of each run that has not ended how it stands, and in which worker's memory it is."""
        rows = {row.id: row for row in await self.engines[0].runs(limit=1000)}
        lines = [f"{run_id} was started and is not there" for run_id in self.started - rows.keys()]
        for row in rows.values():
            if not row.status.is_terminal:
                held = [engine._working().runner.ids.get(row.id) for engine in self.engines]
                stands = [(each.phase, each.parked, each.scheduled, each.commits) if each else None for each in held]
                lines.append(f"{row.id} is {row.status}, {await self.engines[0].get(row.id).describe()}, {stands}")
        return "; ".join(lines)

    def _ticks(self) -> list[int]:
        """Return how often each worker has looked whether others committed, which it does at each tick."""
        return [faults.calls["changed"] for faults in self.faults]

    async def _settle(self) -> bool:
        """Let go on what was paused; tell whether every run has ended and nothing is taken or waits."""
        await asyncio.sleep(0.02)  # each look costs more than most of what is waited for
        engine = self.engines[0]
        for paused in await engine.flow.paused():
            await engine.flow.resume(**{paused.kind: paused.name})
        limits = await engine.limits()
        for limit in limits:
            if limit.paused:
                await engine.limits.resume(limit.name)
        for run in await engine.runs(status=Status.PAUSED, limit=1000):
            with suppress(HoldfastError):
                await engine.get(run.id).resume()
        found = await engine.stats()
        ended = sum(found[status] for status in Status if status.is_terminal)
        used = {limit.name: (limit.used, limit.waiting) for limit in limits}
        lanes = await engine.flow.waiting()
        self._stands = f"{ended} runs ended, {used} used and waiting, {lanes} and {len(self.log)} lines written"
        return ended == len(self.started) and set(used.values()) == {(0, 0)} and lanes == []


def make_workflows(world: World) -> list[Any]:
    """Return the workflows of a world; each takes the number of its run."""
    retry = Retry(max_attempts=None, initial_interval=milliseconds(2), coefficient=1.0, crash_limit=1000)

    @activity(limit="whole", limit_key=lambda tenant, number: tenant, retry=retry)
    async def shared(tenant: str, number: int) -> None:
        await world.at("whole", f"whole/{tenant}")

    @activity(limit="whole", limit_key=lambda tenant: tenant, retry=retry, queue="far")
    async def taken(tenant: str) -> None:
        await world.at("whole", f"whole/{tenant}")

    @activity(limit="paced", limit_key=lambda tenant: tenant, retry=retry)
    async def paced(tenant: str) -> None:
        await world.at("paced")

    @activity(limit="spread", retry=retry)
    async def spread() -> None:
        await world.at("spread")

    @activity(limit="one", retry=retry, idempotency_key=lambda number: str(number // 2))
    async def alone(number: int) -> None:
        await world.at("one")
        if world.random.random() < 0.05:
            raise NonRetryable("refused")

    @activity(retry=retry)
    async def stay(place: str) -> None:
        await world.at(place)

    @activity(retry=retry)
    async def arrive(lane: str, number: int) -> None:
        world.log.append(("in", lane, str(number)))
        await asyncio.sleep(0)

    @activity(retry=retry)
    async def depart(lane: str, number: int) -> None:
        await asyncio.sleep(0)
        world.log.append(("out", lane, str(number)))

    @workflow(name="steps")
    async def several(ctx: Context, number: int) -> int:
        await ctx.step(shared, f"t{number % 3}", number)
        await asyncio.gather(ctx.step(paced, f"p{number % 2}"), ctx.step("more", shared, f"t{number % 2}", number))
        await asyncio.gather(ctx.step(spread), ctx.step(taken, f"t{number % 3}"))
        with suppress(Exception):
            await ctx.step(alone, number)
        return number

    @workflow(name="hasty")
    async def hasty(ctx: Context, number: int) -> int:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.001 * (number % 5)):
                await ctx.step(shared, f"t{number % 3}", number)
        await ctx.race(
            {
                "paced": lambda inner: inner.step(paced, f"p{number % 2}"),
                "alone": lambda inner: inner.step(stay, "anywhere"),
                "taken": lambda inner: inner.step(taken, f"t{number % 3}"),
            }
        )
        await ctx.sleep(milliseconds(number % 20))
        return number

    @workflow(name="lane", at_once=2, key=lambda number, life: f"k{number % 2}")
    async def laned(ctx: Context, number: int, life: int = 0) -> int:
        lane = f"lane/k{number % 2}"
        if life == 0:
            await ctx.step(arrive, lane, number)
            await ctx.sleep(milliseconds(2))
            ctx.continue_as_new(number, 1)
        await ctx.step(shared, "t0", number)
        await ctx.step(depart, lane, number)
        return number

    @workflow(name="single", at_once=1, on_full="reject")
    async def single(ctx: Context, number: int) -> int:
        await ctx.step(stay, "single")
        return number

    @workflow(name="latest", at_once=1, on_full="cancel_oldest")
    async def latest(ctx: Context, number: int) -> int:
        await ctx.step(stay, "latest")
        return number

    @workflow(name="window", key=lambda number: f"k{number % 2}", debounce=milliseconds(8), debounce_at_most=PER)
    async def window(ctx: Context, number: int) -> int:
        await ctx.step(spread)
        return number

    @workflow(name="often", rate=RATE, per=PER)
    async def often(ctx: Context, number: int) -> int:
        await ctx.step(paced, "p0")
        return number

    return [several, laned, single, latest, window, often, hasty]
