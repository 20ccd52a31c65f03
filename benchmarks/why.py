"""How long a sentence takes: of one run, of a page of a list, and as a command; and how long `--help` does.

    python benchmarks/why.py sqlite:///why.db    # the file must not be there yet
    python benchmarks/why.py postgres            # on a server of its own, started and ended

Medians of 20. It ends with 1 if one is over what is promised, on a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median
from typing import Any

from holdfast import Context, Engine, Retry, activity, workflow
from holdfast.contract.heads import HeadFilter
from holdfast.looking import LocalDesk

TIMES = 20
STEPS = 499
"""Two facts each, and one of the receive: a thousand with what comes before them."""
ROWS = 50


@activity(retry=Retry(max_attempts=9))
async def down() -> None:
    raise ConnectionError("503")


async def add(n: int) -> int:
    return n + 1


async def hang() -> None:
    await asyncio.Event().wait()


@workflow
async def long(ctx: Context, *, works: bool) -> None:
    n = 0
    for _ in range(STEPS):
        n = await ctx.step(add, n)
    await (ctx.step(hang) if works else ctx.receive("approved"))


@workflow
async def waits(ctx: Context, how: int) -> None:
    if how == 0:
        await ctx.step(down)
    elif how == 1:
        await ctx.child(waits, 2)
    else:
        await ctx.receive("approved")


class Report:
    """Prints figures, and knows whether one is over."""

    def __init__(self) -> None:
        self.over = False

    def tell(self, what: str, ms: float, most: float) -> None:
        self.over = self.over or ms > most
        print(f"{'OVER ' if ms > most else ''}{what:46} {ms:8.2f} ms  at most {most:g}", flush=True)


async def taken(ask: Callable[[], Awaitable[Any]]) -> float:
    """Return how many milliseconds a question takes."""
    spent: list[float] = []
    for _ in range(TIMES):
        began = time.perf_counter()
        await ask()
        spent.append(1000 * (time.perf_counter() - began))
    return median(spent)


def command(*words: str) -> float:
    """Return how many milliseconds a command takes, from its start to its end."""
    spent: list[float] = []
    for _ in range(TIMES):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "holdfast", *words], check=True, capture_output=True)
        spent.append(1000 * (time.perf_counter() - began))
    return median(spent)


async def main(address: str) -> int:
    """Make a long run and fifty that wait, and ask why they do."""
    report = Report()
    async with Engine(address, workflows=[long, waits], retention=None) as engine:
        waits_long, works_long = [await engine.start(long, works=works, id=f"long-{works}") for works in (False, True)]
        for number in range(ROWS):
            await engine.start(waits, number % 3, id=f"order-{number}")
        while len((await engine.store.heads(HeadFilter(waiting="message approved"))).heads) < ROWS - ROWS // 3:
            await asyncio.sleep(0.05)
        while not (await waits_long.describe()).waiting_for or len(await works_long.steps()) <= STEPS:
            await asyncio.sleep(0.05)
        desk, store = LocalDesk(engine.store), engine.store
        coded = LocalDesk(engine.store, code=engine.registry)
        for run, what in ((waits_long, "waits"), (works_long, "works")):
            report.tell(f"why, of a run of a thousand facts that {what}", await taken(partial(desk.why, run.id)), 5)
            report.tell("why, with its source line", await taken(partial(coded.why, run.id)), 50)
        heads = HeadFilter(limit=ROWS)
        bare, told = await taken(lambda: store.heads(heads)), await taken(lambda: desk.heads(limit=ROWS))
        report.tell("the sentences of a page of fifty", told - bare, 5)
        report.tell("holdfast --help", await asyncio.to_thread(command, "--help"), 150)
        why = await asyncio.to_thread(command, "why", works_long.id, "--url", address)
        report.tell("holdfast why", why, 300)
    return int(report.over)


if __name__ == "__main__":
    import environments

    parser = argparse.ArgumentParser(description="Measure what sentences cost.")
    parser.add_argument("address")
    given = parser.parse_args()
    with environments.address_of(given.address) as address:
        sys.exit(asyncio.run(main(address)))
