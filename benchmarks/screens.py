"""What the other screens of the dashboard cost, and the figures that they show.

    python benchmarks/screens.py look sqlite:///big.db     # paint, usable, nodes; answers; a million runs are made
    python benchmarks/screens.py live sqlite:///fresh.db   # from a commit in one process to the page of another
    python benchmarks/screens.py beside sqlite:///fresh.db # 200 streams of a hundred pages and more, beside W2
    python benchmarks/screens.py counted :memory:          # what counting for the figures costs a step

Addresses and how it ends are as with pages.py.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from statistics import median, quantiles
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pages
from pages import Report, browser_of, count, server, stays
from playwright.async_api import Page

from holdfast import Engine
from holdfast.engine.steps import attempts
from holdfast.engine.worker.figures import Figures

SCREENS = ("/", "/schedules", "/events", "/deploys", "/audit", "/letters", "/workers")
ASKED = (
    "/runs?q=is:attention&limit=10", "/counts", "/figures?by=time", "/figures?by=step", "/figures?by=time&last=P30D",
    "/letters/groups", "/workers", "/schedules", "/doctor", "/database", "/events", "/versions", "/checks", "/audit",
    "/audit?actor=nobody", "/runs?q=status:blocked&limit=200",
)  # fmt: skip
USABLE = """new MutationObserver((changes, watch) => {
  if (!document.querySelector("main .panel")) return;
  if (document.querySelector("main[aria-busy], main [aria-busy=true]")) return;
  window.usable = performance.now();
  watch.disconnect();
}).observe(document, { childList: true, subtree: true, attributeFilter: ["aria-busy"] });"""
TIMES, TURNS, STEPS, ALONE = 10, 11, 4_000, 50_000


async def look(address: str, report: Report) -> None:
    """Open each screen on a million runs, and ask for each thing that they show."""
    await pages._big(address)
    async with AsyncExitStack() as stack:
        browser = await browser_of(stack)
        with server(address) as big:
            await asyncio.to_thread(_answers, big.port, report)
            for screen in SCREENS:
                paints, usables, nodes = [], [], []
                for _ in range(TIMES):
                    context = await browser.new_context(viewport={"width": 1440, "height": 1000})
                    await context.add_init_script(USABLE)
                    page = await context.new_page()
                    await page.goto(big.root + screen)
                    await page.wait_for_load_state("networkidle")
                    paints.append(
                        await _of(page, "performance.getEntriesByName('first-contentful-paint')[0].startTime")
                    )
                    while not await page.evaluate("window.usable"):
                        await asyncio.sleep(0.02)
                    usables.append(await _of(page, "window.usable"))
                    nodes.append(await _of(page, "document.querySelectorAll('*').length"))
                    await context.close()
                report.tell(f"{screen} of a million: first paint", median(paints), "ms", most=500)
                report.tell(f"{screen} of a million: usable", median(usables), "ms", most=1000)
                report.tell(f"{screen} of a million: nodes", max(nodes), "", most=3000)
        await browser.close()


async def _of(page: Page, what: str) -> float:
    return float(await page.evaluate(what))


def _answers(port: int, report: Report) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for path in ASKED:
        took = []
        for _ in range(TIMES):
            began = time.perf_counter()
            connection.request("GET", "/api/v1" + path)
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status == 200, said
            took.append(1000 * (time.perf_counter() - began))
        report.tell(f"{path}: half of them", median(took), "ms", most=100)
        report.tell(f"{path}: the longest", max(took), "ms", most=250)
    connection.close()


async def live(address: str, report: Report) -> None:
    """Change something on each screen, and wait until the page of a server in another process shows it."""
    with server(address) as served:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(Engine(address, workflows=[count, stays], retention=None))
            await engine.schedules.put("nightly", stays, cron="30 2 * * *", by="lena")
            await engine.start(stays, id="order-0")
            browser = await browser_of(stack)

            async def watched(path: str) -> Page:
                page = await (await browser.new_context()).new_page()
                await page.goto(served.root + path)
                await page.wait_for_selector('[data-live="live"]')
                return page

            async def schedules(n: int) -> None:
                await (engine.schedules.resume if n % 2 else engine.schedules.pause)("nightly", by="lena")

            async def publish(n: int) -> None:
                await engine.publish(f"parcel-{n}", n)

            async def pause(n: int) -> None:
                run = engine.get("order-0")
                await (run.resume if n % 2 else run.pause)(by="lena", reason=f"turn {n}")

            async def start(n: int) -> None:
                await engine.start(stays, id=f"new-{n}")
                await engine.get(f"new-{n}").pause(by="lena")

            screens: dict[str, tuple[Callable[[int], Awaitable[None]], Callable[[int], str]]] = {
                "/schedules": (
                    schedules,
                    lambda n: "tbody button:has-text('Re')" if n % 2 == 0 else "tbody button:has-text('Pause')",
                ),
                "/events": (publish, lambda n: f"tbody tr:has-text('parcel-{n}')"),
                "/audit": (pause, lambda n: f"tbody tr:has-text('turn {n}')"),
                "/": (start, lambda n: f"[aria-label='Open runs'] li:has-text('Paused') b:text-is('{n + 1}')"),
            }
            for path, (change, shows) in screens.items():
                page, took = await watched(path), []
                for n in range(20):
                    await asyncio.sleep(0.37 * (n % 4))  # at another moment between two looks each time
                    await change(n)
                    began = time.perf_counter()
                    await page.wait_for_selector(shows(n), timeout=60_000)
                    took.append(time.perf_counter() - began)
                report.tell(f"commit to {path} of another process: half of them", median(took), "s")
                report.tell(f"commit to {path} of another process: 19 of 20", quantiles(took, n=20)[18], "s", most=1.5)
                await page.context.close()
            await browser.close()


OPEN: dict[str, tuple[str, ...]] = {
    "overview": pages.OVERVIEW,
    "runs": ("runs", "counts"),
    "schedules": ("schedules",),
    "events": ("events",),
    "deploys": ("runs?q=status:blocked%26limit=200", "versions", "checks?limit=10"),
    "audit": ("audit?limit=50",),
    "letters": ("letters", "newest-letters?seen=false"),
    "workers": ("workers", "queues", "limits"),
}
"""What pages of each screen watch."""


async def beside(address: str, report: Report) -> None:
    """Work with no page and with 200 streams in turns: those of a hundred pages, and as many again."""
    with server(address, works=True) as worker:
        for _ in range(2):
            worker.tell("W2")
        found, memory = [], []
        for _ in range(TURNS):
            without = await asyncio.to_thread(pages._turn, worker, "W2")
            before = worker.memory()
            async with pages._streams(worker.port, 200, *OPEN.values()):
                found.append((without, await asyncio.to_thread(pages._turn, worker, "W2")))
                memory.append(worker.memory() - before)
        shares = [100 * with_them.rate / without.rate for without, with_them in found]
        print(f"W2 beside 200 streams, of that without, by turns: {' '.join(f'{each:.1f}' for each in shares)} %")
        report.tell("W2, no page", median(each.rate for each, _ in found), "steps/s")
        report.tell("W2 beside 200 streams of 8 screens, of that", median(shares), "%", least=90)
        report.tell("memory, more than before", max(memory), "MiB", most=100)


async def counted(address: str, report: Report) -> None:
    """Compare the processor time of a step with that of counting it; and steps with and without counting, in turns.

    The turns of a machine differ by more than counting costs, so what is judged is the counting by itself.
    """
    counting, shares, costs = attempts.complete, [], []
    async with Engine(address, workflows=[count], retention=None) as engine:
        await (await engine.start(count, STEPS)).result()
        for turn in range(TURNS):
            spent = {}
            for does in (counting, _uncounted) if turn % 2 else (_uncounted, counting):
                attempts.complete = does
                began = time.process_time()
                for _ in range(3):
                    await (await engine.start(count, STEPS)).result()
                spent[does] = (time.process_time() - began) / (3 * STEPS)
            costs.append(1e6 * spent[_uncounted])
            shares.append(100 * (spent[counting] / spent[_uncounted] - 1))
        attempts.complete = counting
        alone = _alone(counting, engine) - _alone(_uncounted, engine)
    print(f"more with counting, by turns: {' '.join(f'{each:.1f}' for each in shares)} %, half {median(shares):.1f} %")
    report.tell("a step, not counted", median(costs), "us of processor")
    report.tell("counting it, by itself", 1e6 * alone, "us of processor")
    report.tell("counting it, of the step", 100 * 1e6 * alone / median(costs), "%", most=1)


def _uncounted(runs: Any, resident: Any, step: Any, fact: Any) -> None:
    """Do what `complete` does, but for counting."""
    try:
        turn = resident.execution.apply(step.location, fact, runs.clock.now())
    except Exception as error:
        runs.turn_failed(resident, error)
    else:
        runs.advance(resident, turn)


def _alone(does: Callable[..., None], engine: Engine) -> float:
    """Return how much processor time handing over a result takes in which nothing else is done."""
    clock: Any = engine.store.clock
    nothing = lambda *given: None  # noqa: E731
    runs = SimpleNamespace(clock=clock, figures=Figures(engine.store, clock), advance=nothing, turn_failed=nothing)
    resident = SimpleNamespace(workflow=SimpleNamespace(name="count"), execution=SimpleNamespace(apply=nothing))
    step, took = SimpleNamespace(name="add", location=1, began=clock.now()), []
    for _ in range(TURNS):
        began = time.process_time()
        for _ in range(ALONE):
            does(runs, resident, step, None)
        took.append((time.process_time() - began) / ALONE)
    return min(took)


MEASURES: dict[str, Callable[[str, Report], Awaitable[None]]] = {
    "look": look, "live": live, "beside": beside, "counted": counted,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what the other screens of the dashboard cost.")
    parser.add_argument("what", choices=[*MEASURES])
    parser.add_argument("address")
    given = parser.parse_args()
    report = Report()
    with ExitStack() as stack:
        address = given.address
        if address == "postgres":
            import environments

            address = stack.enter_context(stack.enter_context(environments.postgres()).database())
        asyncio.run(MEASURES[given.what](address, report))
    return int(report.wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
