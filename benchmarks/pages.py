"""What the dashboard costs, in a browser and beside the work of its process.

    python benchmarks/pages.py look sqlite:///big.db     # paint, usable, nodes, frames; a million runs are made
    python benchmarks/pages.py live sqlite:///fresh.db   # from a commit in one process to the page of another
    python benchmarks/pages.py cost sqlite:///fresh.db   # a hundred pages that are open beside W1 and W2, 200 that idle
    python benchmarks/pages.py house sqlite:///fresh.db  # the same with overviews, each of nine views

Each ends with 1 if a figure is over what the page promises. PostgreSQL is measured with its address; for the word
`postgres` the newest server of this machine is started and ended. It needs Chromium (`make browsers`), and a machine
that has nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parent))

import big
from playwright.async_api import Browser, Page, async_playwright

from holdfast import Context, Engine, workflow
from holdfast.contract.heads import HeadFilter
from holdfast.stores import open_store
from holdfast.stores.sql.store import SQLStore

TIMES = 20
TURNS = 5
SEEN = """new MutationObserver((changes, watch) => {
  if (!document.querySelector("tbody tr[data-run], .tl .row, .fact")) return;
  window.usable = performance.now();
  watch.disconnect();
}).observe(document, { childList: true, subtree: true });"""
SCROLL = """async () => {
  const box = document.querySelector(".virtual"), took = [];
  let last = await new Promise(requestAnimationFrame), still = 0;
  while (still < 60) {
    const before = box.scrollTop;
    box.scrollTop += 2500;
    const now = await new Promise(requestAnimationFrame);
    took.push(now - last);
    last = now;
    still = box.scrollTop === before ? still + 1 : 0;
  }
  return took;
}"""


async def add(n: int) -> int:
    return n + 1


@workflow
async def count(ctx: Context, to: int) -> int:
    n = 0
    while n < to:
        n = await ctx.step(add, n)
    return n


@workflow
async def stays(ctx: Context) -> None:
    await ctx.receive("never")


# The server: a process with an engine and the dashboard, which works when it is told to.


async def serve(address: str, works: bool) -> None:
    import uvicorn

    from holdfast.web import Principal, dashboard
    from holdfast.web.standalone import listen

    options: dict[str, Any] = {} if works else {"run_workflows": False}
    async with Engine(address, workflows=[count, stays], retention=None, **options) as engine:

        def who(request: Any) -> Principal:
            return Principal(request.headers.get("x-user", "kim"), "admin")

        app = dashboard(engine, authenticate=who, rates=None)  # one asks for everything, faster than a person may
        listening = listen("127.0.0.1:0")
        listening.listen()
        config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1, access_log=False)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        counted = _counting(engine)
        _say(listening.getsockname()[1])
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            _say(await _work(engine, line) if line in WORK else counted(line))
        server.should_exit = True
        await serving


def _counting(engine: Engine) -> Callable[[str], int]:
    """Return what tells how often the list of runs was looked at, and how often the database was asked beside it."""
    store: Any = engine.store
    heads, read, n = store.heads, store._connections.read, {"looks": 0, "reads": 0}

    async def counted(which: HeadFilter) -> Any:
        n["looks"] += 1
        return await heads(which)

    async def asked(*arguments: Any, **options: Any) -> Any:
        n["reads"] += 1
        return await read(*arguments, **options)

    store.heads, store._connections.read = counted, asked
    return n.__getitem__


WORK = {"W1": (3, 1, 1_000), "W2": (5, 1_000, 10)}
"""How often so many runs of so many steps are done, all at once: for longer than the second between two looks."""


async def _work(engine: Engine, what: str) -> float:
    """Do the work of a benchmark, and return how many steps a second were done."""
    rounds, runs, steps = WORK[what]
    began = time.perf_counter()
    for _ in range(rounds):
        await asyncio.gather(*(engine.execute(count, steps) for _ in range(runs)))
    return rounds * runs * steps / (time.perf_counter() - began)


def _say(value: Any) -> None:
    print(json.dumps(value), flush=True)


class Server:
    """The process that serves."""

    def __init__(self, address: str, works: bool = False) -> None:
        command = [sys.executable, __file__, "serve", address, *(["--works"] if works else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self._heard())

    def _heard(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def tell(self, what: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self._heard()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def busy(self) -> float:
        """Return how many seconds of processor it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Return how many MiB it has in memory."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096 / (1 << 20)

    def end(self) -> None:
        self.process.communicate("\n", timeout=60)


@contextmanager
def server(address: str, works: bool = False) -> Iterator[Server]:
    found = Server(address, works)
    try:
        yield found
    finally:
        found.end()


class Report:
    """Prints figures, and knows whether any was over."""

    def __init__(self) -> None:
        self.wrong = 0

    def tell(self, what: str, value: float, unit: str, most: float | None = None, least: float | None = None) -> None:
        bad = (most is not None and value > most) or (least is not None and value < least)
        self.wrong += bad
        bound = f"  at most {most:g}" if most is not None else f"  at least {least:g}" if least is not None else ""
        print(f"{'WRONG ' if bad else ''}{what:58} {value:10.2f} {unit}{bound}", flush=True)


async def browser_of(stack: AsyncExitStack) -> Browser:
    found = os.environ.get("HOLDFAST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        sys.exit("there is no Chromium: `make browsers` installs it")
    playwright = await stack.enter_async_context(async_playwright())
    return await playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])


# look


async def look(address: str, report: Report) -> None:
    await _big(address)
    async with AsyncExitStack() as stack:
        browser = await browser_of(stack)
        with server(address) as big_one:
            paints, usables, nodes = await _opened(browser, big_one.root + "/runs", "tbody tr[data-run]")
            report.tell("/runs of a million: first paint", median(paints), "ms", most=500)
            report.tell("/runs of a million: usable", median(usables), "ms", most=1000)
            report.tell("/runs of a million: nodes", max(nodes), "", most=3000)
            await asyncio.to_thread(_over_http, big_one.port, report)
            for q in ("status:failed", "customer=77", "status:blocked workflow:flow-3", "ended:2023-11-20..2023-11-21"):
                _, usables, _ = await _opened(browser, f"{big_one.root}/runs?q={quote(q)}", "tbody tr[data-run]", 5)
                report.tell(f"/runs?q={q}: usable", median(usables), "ms", most=1000)
        with tempfile.TemporaryDirectory() as folder:
            long = f"sqlite:///{folder}/long.db"
            ids = await _long_runs(long)
            with server(long) as long_ones:
                for entries, most in ((5_000, 1500), (100_000, 3000)):
                    page = f"{long_ones.root}/runs/{ids[entries]}"
                    _, usables, nodes = await _opened(browser, page, ".tl .row", 5)
                    report.tell(f"run of {entries:,} facts: usable", median(usables), "ms", most=most)
                    report.tell(f"run of {entries:,} facts: nodes", max(nodes), "", most=3000)
                await _scrolled(browser, f"{long_ones.root}/runs/{ids[100_000]}?tab=history", report)
        await browser.close()


def _over_http(port: int, report: Report) -> None:
    """Ask for the first page, each run with why, and for the number of runs, of 200 filters made at random."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for what, path, most, longest in (
        ("page of 50", "/api/v1/runs?limit=50&q=", 100, 250),
        ("count", "/api/v1/counts/runs?q=", 50, 250),
    ):
        took = []
        for q in big.filters(200):
            began = time.perf_counter()
            connection.request("GET", path + quote(q))
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                took.append(1000 * (time.perf_counter() - began))
            elif answer.status != 400:  # of two that exclude each other it is said so
                sys.exit(f"{path}{q} was answered with {answer.status}")
        report.tell(f"{what} of {len(took)} filters over HTTP: half of them", median(took), "ms")
        report.tell(f"{what} over HTTP: 19 of 20", quantiles(took, n=20)[18], "ms", most=most)
        report.tell(f"{what} over HTTP: the longest", max(took), "ms", most=longest)
    connection.close()


async def _big(address: str) -> None:
    store = open_store(address)
    assert isinstance(store, SQLStore)
    await store.open()
    try:
        if (await store.count(HeadFilter(), 10)).n < 10:
            await asyncio.to_thread(big.fill, store, big.RUNS)
    finally:
        await store.close()


async def _long_runs(address: str) -> dict[int, str]:
    """Make runs with so many facts: two for each step."""
    ids = {entries: f"long-{entries}" for entries in (5_000, 100_000)}
    async with Engine(address, workflows=[count], durability="process", retention=None) as engine:
        for entries, run_id in ids.items():
            await (await engine.start(count, entries // 2, id=run_id)).result()
    return ids


async def _opened(browser: Browser, url: str, what: str, times: int = TIMES) -> tuple[list[float], ...]:
    paints, usables, nodes = [], [], []
    for _ in range(times):
        page = await _page(browser)
        await page.goto(url)
        await page.wait_for_selector(what)
        await page.wait_for_load_state("networkidle")
        paints.append(await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        usables.append(await page.evaluate("window.usable"))
        nodes.append(await page.evaluate("document.querySelectorAll('*').length"))
        await page.context.close()
    return paints, usables, nodes


async def _page(browser: Browser) -> Page:
    context = await browser.new_context(viewport={"width": 1440, "height": 1000})
    context.set_default_timeout(120_000)
    await context.add_init_script(SEEN)
    return await context.new_page()


async def _scrolled(browser: Browser, url: str, report: Report) -> None:
    page = await _page(browser)
    await page.goto(url)
    await page.wait_for_selector(".fact")
    frames: list[float] = await page.evaluate(SCROLL)
    said = await page.text_content(".histbar") or ""
    nodes = await page.evaluate("document.querySelectorAll('*').length")
    report.tell(f"history of 100,000 scrolled to {said.split('only')[-1].strip()}: frames", len(frames), "")
    report.tell("  longest frame", max(frames), "ms", most=50)
    report.tell("  99 of 100 frames", quantiles(frames, n=100)[98], "ms", most=50)
    report.tell("  nodes", nodes, "", most=3000)
    await page.context.close()


# live


async def live(address: str, report: Report) -> None:
    """Change runs here, and wait until a page of the server in another process shows it."""
    took = []
    with server(address) as served:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(Engine(address, workflows=[count, stays], retention=None))
            ids = [f"order-{n}" for n in range(40)]
            for each in ids:
                await engine.start(stays, id=each)
            browser = await browser_of(stack)
            page = await _page(browser)
            await page.goto(served.root + "/runs")
            await page.wait_for_selector('[data-live="live"]')
            for n, each in enumerate(ids):
                await asyncio.sleep(0.37 * (n % 4))  # at another moment between two looks each time
                await engine.get(each).pause(by="lena")
                began = time.perf_counter()
                await page.wait_for_selector(f'tr[data-run="{each}"] .s-paused')
                took.append(time.perf_counter() - began)
            await browser.close()
    report.tell("commit to page of another process: half of them", median(took), "s")
    report.tell("commit to page of another process: 19 of 20", quantiles(took, n=20)[18], "s", most=1.5)


# cost


RUNS = ("runs",)
OVERVIEW = (
    "runs?q=is:attention%26limit=10", "counts", "figures?by=time", "figures?by=step", "letters", "workers", "schedules",
    "doctor", "database",
)  # fmt: skip


async def house(address: str, report: Report) -> None:
    """Open overviews instead of lists."""
    await cost(address, report, OVERVIEW)


async def cost(address: str, report: Report, views: Sequence[str] = RUNS) -> None:
    """Work with no page and with a hundred in turns, each beside the other, and let 200 streams idle."""
    with server(address, works=True) as worker:
        worker.tell("W2")
        turns: dict[str, list[tuple[Turn, Turn]]] = {"W1": [], "W2": []}
        for _ in range(TURNS):
            for what, found in turns.items():
                without = await asyncio.to_thread(_turn, worker, what)
                async with _streams(worker.port, 100, views):
                    found.append((without, await asyncio.to_thread(_turn, worker, what)))
        for what, found in turns.items():
            report.tell(f"{what}, no page", median(each.rate for each, _ in found), "steps/s")
            shares = [100 * beside.rate / without.rate for without, beside in found]
            print(f"{what} with 100 pages, of that, by turns: {' '.join(f'{each:.1f}' for each in shares)}")
            report.tell(f"{what} with 100 pages, of that", median(shares), "%", least=90)
            # Pages cost something each second, however fast the work goes beside them: on a machine that has more to do
            # the rates are those of its neighbours, but this stays.
            costs = [100 * (beside.spent - without.spent) / beside.took for without, beside in found]
            report.tell(f"{what} with 100 pages: processor of the server for pages", median(costs), "% of a second")
            report.tell(
                f"{what} with 100 pages: reads of the database for pages, a second",
                median((b.asked - a.asked) / b.took for a, b in found),
                "",
            )
    with server(address) as idle:
        before = idle.memory()
        async with _streams(idle.port, 200, views):
            await asyncio.sleep(3)
            spent, looks = idle.busy(), idle.tell("looks")
            await asyncio.sleep(20)
            report.tell("200 idle streams: processor", 100 * (idle.busy() - spent) / 20, "%", most=2)
            if views is RUNS:
                report.tell("200 streams of one view: looks a second", (idle.tell("looks") - looks) / 20, "", most=1.05)
            report.tell("200 idle streams: memory in all", idle.memory(), "MiB")
            report.tell("200 idle streams: memory, more than before", idle.memory() - before, "MiB", most=100)


class Turn(NamedTuple):
    """What the work took: steps a second, seconds, seconds of processor of the server, and reads of its database."""

    rate: float
    took: float
    spent: float
    asked: int


def _turn(worker: Server, what: str) -> Turn:
    began, spent, asked = time.perf_counter(), worker.busy(), worker.tell("reads")
    rate = worker.tell(what)
    return Turn(rate, time.perf_counter() - began, worker.busy() - spent, worker.tell("reads") - asked)


class _streams:
    """So many live streams, each of the views of a screen, of ten pages for each person, read as they come."""

    def __init__(self, port: int, many: int, *screens: Sequence[str]) -> None:
        self._port, self._many = port, many
        self._paths = [
            "/api/v1/live?" + "&".join(f"view={each.replace('?', '%3F')}" for each in views) for views in screens
        ]
        self._reading: list[asyncio.Task[None]] = []
        self._begun = asyncio.Semaphore(0)

    async def __aenter__(self) -> None:
        self._reading = [asyncio.create_task(self._one(n)) for n in range(self._many)]
        for _ in self._reading:
            await self._begun.acquire()

    async def __aexit__(self, *exception: Any) -> None:
        for each in self._reading:
            each.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        await asyncio.sleep(1.5)

    async def _one(self, n: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        path, person = self._paths[n % len(self._paths)], f"user-{n // 10}"
        asked = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nX-User: {person}\r\n\r\n"
        writer.write(asked.encode())
        try:
            status = (await reader.readline()).split()[1]
            if status != b"200":
                raise http.client.HTTPException(status.decode())
            self._begun.release()
            while await reader.read(1 << 16):
                pass
        finally:
            writer.transport.abort()


MEASURES: dict[str, Callable[[str, Report], Awaitable[None]]] = {
    "look": look, "live": live, "cost": cost, "house": house,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what the dashboard costs.")
    parser.add_argument("what", choices=[*MEASURES, "serve"])
    parser.add_argument("address")
    parser.add_argument("--works", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.what == "serve":
        asyncio.run(serve(given.address, given.works))
        return 0
    report = Report()
    with ExitStack() as stack:
        address = given.address
        if address == "postgres":
            import environments

            address = stack.enter_context(stack.enter_context(environments.postgres()).database())
        measured = MEASURES[given.what](address, report)
        asyncio.run(asyncio.wait_for(measured, timedelta(minutes=30).total_seconds()))
    return int(report.wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
