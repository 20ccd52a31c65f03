"""Runs of every kind that several processes share, how each must end, and what may be seen of its bodies.

A plan is a function of count and seed. How a run must end follows from its input alone.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast import Break, Context, Continue, Engine, Retry, Status, activity, step_context, workflow
from holdfast.contract.rows import RunFilter
from holdfast.contract.store import Store
from holdfast.definitions import Workflow
from holdfast.engine.views.history import readable
from holdfast.errors import StoreError
from holdfast.replay import entry as entries
from holdfast.testing.invariants import violations

BODIES = Path()
"""Where bodies say that they began; set by whoever runs them."""
WORDS = 4
LAPS = 6
# Kills come so thick here that one step may be hit more often than an innocent one ever is.
PATIENT = Retry(crash_limit=1000)


def begin() -> None:
    """Say that this attempt begins, in one write that a kill cannot tear."""
    context = step_context()
    line = f"{os.getpid()} {context.run_id} {context.step} {context.attempt}\n"
    file = os.open(BODIES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)


@activity(retry=PATIENT)
async def effect(value: str) -> str:
    begin()
    await asyncio.sleep(0.03)
    return value


@activity(retry=PATIENT)
def blocking(value: str) -> str:
    begin()
    time.sleep(0.02)
    return value


@activity(retry=PATIENT, idempotency_key=lambda order: f"order {order}")
async def charge(order: int) -> str:
    begin()
    await asyncio.sleep(0.03)
    return f"paid {order}"


@activity(retry=Retry(max_attempts=2, initial_interval=timedelta(milliseconds=20), crash_limit=1000))
async def break_down() -> None:
    begin()
    raise RuntimeError("the last step fails")


@activity(retry=PATIENT)
async def tell_time() -> int:
    """Return the time in ms by a clock that all processes of a machine share and nobody can set."""
    begin()
    return time.monotonic_ns() // 1_000_000


@workflow(check=False)
async def chain(ctx: Context, number: int) -> list[str]:
    done = []
    for step in range(3):
        done.append(await ctx.step(f"s{step}", effect, f"{number}-{step}"))
        await ctx.sleep(timedelta(milliseconds=40))
    return [*done, await ctx.step("sync", blocking, f"{number}-sync")]


@workflow(check=False)
async def fan(ctx: Context, number: int) -> list[str]:
    together = await asyncio.gather(*(ctx.step(f"g{step}", effect, f"{number}-{step}") for step in range(3)))

    async def left(branch: Context) -> str:
        await branch.sleep(timedelta(milliseconds=30))
        return await branch.step("left", effect, f"{number}-left")

    async def right(branch: Context) -> str:
        return await branch.step("right", blocking, f"{number}-right")

    both = await ctx.join("both", {"left": left, "right": right})
    return [*together, both["left"], both["right"]]


@workflow(check=False)
async def rounds(ctx: Context, number: int) -> int:
    async def lap(inner: Context, state: int) -> Continue[int] | Break[int]:
        await inner.step("work", effect, f"{number}-{state}")
        return Continue(state + 1) if state < LAPS - 1 else Break(state + 1)

    return await ctx.loop("laps", lap, state=0, commit_interval=2, history_every=2, history_keep=2)


@workflow(check=False)
async def half(ctx: Context, number: int) -> int:
    await ctx.step("half", effect, str(number))
    return number


@workflow(check=False)
async def family(ctx: Context, number: int) -> int:
    children = [ctx.child(half, number + part, id=f"{ctx.run_id}.{part}") for part in range(2)]
    return sum(await asyncio.gather(*children))


@workflow(check=False)
async def hear(ctx: Context, talker: str) -> list[int]:
    heard = [await ctx.receive("word", int) for _ in range(WORDS)]
    await ctx.send(talker, "thanks", len(heard))
    return heard


@workflow(check=False)
async def talk(ctx: Context, hearer: str) -> int:
    for word in range(WORDS):
        await ctx.send(hearer, "word", word)
        await ctx.step(f"w{word}", effect, str(word))
    return await ctx.receive("thanks", int)


@workflow(check=False)
async def await_bell(ctx: Context, bell: str) -> str:
    heard = await ctx.receive(bell, str)
    return await ctx.step("heard", effect, heard)


@workflow(check=False)
async def ring(ctx: Context, bell: str) -> str:
    rope = await ctx.step("pull", effect, bell)
    await ctx.publish(bell, f"ding of {rope}", id=f"ding of {rope}")
    return rope


@workflow(check=False)
async def pay(ctx: Context, order: int) -> str:
    return await ctx.step("charge", charge, order)


@workflow(check=False)
async def saga(ctx: Context, works: bool) -> str:
    shelf = await ctx.step("reserve", effect, "shelf")
    ctx.compensate(effect, "release")
    await ctx.step("pack", blocking, "box")
    ctx.compensate(blocking, "unpack")
    if not works:
        await ctx.step("ship", break_down)
    return shelf


@workflow(check=False)
async def nap(ctx: Context, ms: int) -> list[int]:
    """Wait three times in different ways, and say when each wait began and ended."""
    times = [await ctx.step("begin", tell_time)]
    await ctx.sleep(timedelta(milliseconds=ms))
    times.append(await ctx.step("slept", tell_time))
    await ctx.receive("nothing", timeout=timedelta(milliseconds=ms), default=None)
    times.append(await ctx.step("waited", tell_time))
    try:
        async with asyncio.timeout(ms / 1000):
            await ctx.receive("nothing")
    except TimeoutError:
        times.append(await ctx.step("timed-out", tell_time))
    return times


@workflow(check=False)
async def listen(ctx: Context, words: int) -> list[int]:
    """Say when each of some messages was heard."""
    times = []
    for word in range(words):
        await ctx.receive("word")
        times.append(await ctx.step(f"heard{word}", tell_time))
    return times


WORKFLOWS: tuple[Workflow[Any, Any], ...] = (
    chain,
    fan,
    rounds,
    half,
    family,
    hear,
    talk,
    await_bell,
    ring,
    pay,
    saga,
    nap,
    listen,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run, and how it must end."""

    id: str
    workflow: Workflow[Any, Any]
    args: tuple[Any, ...]
    output: Any = None
    status: Status = Status.COMPLETED
    undone: tuple[str, ...] = ()
    children: int = 0


def _kinds(n: int, dice: random.Random) -> list[list[Planned]]:
    works = dice.random() < 0.5
    undone: dict[str, Any] = {"status": Status.FAILED, "undone": ("blocking", "effect")}
    bell, words, parts = f"bell-{n}", list(range(WORDS)), (0, 1, 2, "left", "right")
    return [
        [Planned(id=f"chain-{n}", workflow=chain, args=(n,), output=[f"{n}-{step}" for step in (0, 1, 2, "sync")])],
        [Planned(id=f"fan-{n}", workflow=fan, args=(n,), output=[f"{n}-{part}" for part in parts])],
        [Planned(id=f"rounds-{n}", workflow=rounds, args=(n,), output=LAPS)],
        [Planned(id=f"family-{n}", workflow=family, args=(n,), output=2 * n + 1, children=2)],
        [
            Planned(id=f"hear-{n}", workflow=hear, args=(f"talk-{n}",), output=words),
            Planned(id=f"talk-{n}", workflow=talk, args=(f"hear-{n}",), output=WORDS),
        ],
        [
            Planned(id=f"await-{n}", workflow=await_bell, args=(bell,), output=f"ding of {bell}"),
            Planned(id=f"ring-{n}", workflow=ring, args=(bell,), output=bell),
        ],
        [Planned(id=f"pay-{n}-{part}", workflow=pay, args=(n,), output=f"paid {n}") for part in range(2)],
        [Planned(id=f"saga-{n}", workflow=saga, args=(works,), **({"output": "shelf"} if works else undone))],
    ]  # fmt: skip


def plan(count: int, seed: int) -> list[Planned]:
    """Return what is started, in this order: a run that others talk to comes before them. Children are counted."""
    dice, planned, number, total = random.Random(seed), list[Planned](), 0, 0
    while total < count:
        group = dice.choice(_kinds(number, dice))
        planned += group
        total += sum(1 + each.children for each in group)
        number += 1
    return planned


async def begin_all(engine: Engine, planned: Sequence[Planned], insist: bool = False) -> None:
    """Start runs, one after another, so that each finds those it talks to; insisting while the store is away."""
    for each in planned:
        while True:
            try:
                await engine.start(each.workflow, *each.args, id=each.id)
                break
            except StoreError:
                if not insist:
                    raise
                await asyncio.sleep(0.05)


async def problems(engine: Engine, planned: Sequence[Planned], bodies: Path, others: int = 0) -> list[str]:
    """Return everything that is not as it must be after all has ended; `others` are runs that are not planned."""
    runs = {run.id: run for run in await all_runs(engine)}
    found = await violations(engine.store)
    expected = len(planned) + sum(each.children for each in planned) + others
    if len(runs) != expected:
        found.append(f"there are {len(runs)} runs, not {expected}")
    found += [f"{run.id} is {run.status}: {run.waiting_for}" for run in runs.values() if not run.status.is_terminal]
    for each in planned:
        run = runs.get(each.id)
        if run is None:
            found.append(f"{each.id} is lost")
            continue
        undone = tuple(item["name"] for item in run.compensation or () if item["status"] == "completed")
        ended = (run.status, run.output, undone)
        if ended != (each.status, each.output, each.undone):
            found.append(f"{each.id} ended {ended}, not {(each.status, each.output, each.undone)}")
    return found + await _wrong_bodies(engine.store, bodies)


async def all_runs(engine: Engine) -> list[Any]:
    """Return every run."""
    runs = page = await engine.runs(limit=1000)
    while len(page) == 1000:
        page = await engine.runs(limit=1000, before=page[-1])
        runs += page
    return runs


async def losses(engine: Engine) -> set[str]:
    """Return in which ways attempts were lost."""
    found: set[str] = set()
    for run in await all_runs(engine):
        facts = [entries.decode_entry(row.kind, row.data) for row in await engine.store.history(run.key)]
        found.update(fact.why for fact in facts if isinstance(fact, entries.AttemptLost))
    return found


async def _wrong_bodies(store: Store, bodies: Path) -> list[str]:
    """Return attempts that were run twice, results of attempts that never ran, and attempts after the result."""
    began = Counter(tuple(line.split()[1:]) for line in bodies.read_text().splitlines())
    found = [f"attempt {attempt} was run {often} times" for attempt, often in began.items() if often > 1]
    last: dict[tuple[str, str], int] = {}
    for run, step, attempt in began:
        last[run, step] = max(int(attempt), last.get((run, step), 0))
    before = None
    while rows := await store.runs(RunFilter(limit=500, before=before)):
        before = rows[-1].key
        for row in rows:
            for fact in readable(await store.history(row.key)):
                if isinstance(fact.entry, entries.StepCompleted):
                    ran = last.get((row.id, fact.path), 0)
                    if ran != fact.entry.attempt and not _from_another(row.workflow):
                        found.append(f"{row.id} {fact.path}: attempt {fact.entry.attempt} is recorded, {ran} ran last")
    return found


def _from_another(workflow: str) -> bool:
    """Tell whether a result may be that of another run, which had the same idempotency key."""
    return workflow == "pay"
