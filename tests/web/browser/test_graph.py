"""The graph and the state of a run in a browser: nodes that say how they stand, the tree of calls, answers of code."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from playwright.async_api import expect
from tests.web.browser import shop as shops
from tests.web.browser.conftest import served

from holdfast import Context, Retry, activity, step_context, workflow
from holdfast.declarative import graph
from holdfast.testing import JumpingClock, TestEngine
from holdfast.web import Principal

pytestmark = pytest.mark.web


@activity
async def fetch(input: str) -> str:
    return input


@activity(retry=Retry(max_attempts=5, initial_interval=timedelta(hours=1)))
async def build(fetch: str) -> str:
    raise ConnectionError(fetch)


@activity(heartbeat_timeout=timedelta(hours=1))
async def scan(fetch: str) -> None:
    step_context().heartbeat({"done": "61 %"})
    await asyncio.Event().wait()


@activity
async def ship(build: str, scan: None) -> None: ...


release = graph("release", {fetch: [], build: [fetch], scan: [fetch], ship: [build, scan]})


@workflow
async def counter(ctx: Context) -> None:
    total = 0
    ctx.on_query("total", lambda: {"sum": total, "note": "<b>so far</b>"})
    ctx.on_query("above", lambda limit: total > limit)
    while True:
        total += await ctx.receive("add", int)


@pytest.fixture
async def factory(place: str, looker: Any) -> Any:
    """A house of other workflows than the shop's, which the browser looks at."""
    async with AsyncExitStack() as stack:
        clock = JumpingClock(shops.BEGIN)
        shops.CLOCK[:] = [clock]
        workflows: list[Any] = [release, counter, shops.poll, _wide()]
        engine = TestEngine(place, workflows=workflows, clock=clock, stop_grace=timedelta(0))
        await stack.enter_async_context(engine)
        engine.store.clock = clock
        shop = shops.Shop(engine, clock)
        site = await stack.enter_async_context(served(shop))
        looker.site.port = site.port
        looker.other = site
        yield shop
        await looker.page.goto("about:blank")


def _wide() -> Any:
    def node(n: int) -> Any:
        async def body() -> int:
            return n

        body.__name__ = body.__qualname__ = f"node_{n}"
        return activity(body)

    nodes = [node(n) for n in range(500)]
    return graph("wide", {each: nodes[max(n - 3, 0) : n] for n, each in enumerate(nodes)})


async def test_the_nodes_of_a_declared_run_say_how_they_stand_and_lead_to_their_steps(factory, looker):
    await factory.engine.start(release, "v1", id="run")

    async def beaten() -> bool:
        return any(step.progress for step in await factory.engine.get("run").steps())

    await shops.eventually(beaten)
    await looker.open("/runs/run?tab=graph")
    await expect(looker(".ptitle", "As it is declared")).to_contain_text("1 of 4 steps done")
    await looker.sees('.node.s-completed[aria-label="fetch, Completed"]')
    await looker.sees('.node.s-running[aria-label="scan, Running, 61 %"]')
    await looker.sees('.node.none[aria-label="ship, not called yet"]')
    assert await looker.violations() == []
    await looker.page.get_by_role("button", name="Copy as Mermaid").click()
    copied = await looker.page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(release.to_mermaid())
    assert "classDef running" in copied
    node = looker('.graph a[aria-label^="build"]')
    await looker.tab_to(node)
    await looker.press("Enter")
    await expect(looker(".step h2")).to_have_text("build")


async def test_a_graph_of_five_hundred_nodes_is_drawn_within_what_a_browser_bears(factory, looker):
    """FACES 10, line 2."""
    await factory.engine.start("wide", None, id="run")
    await factory.engine.get("run").result()
    await looker.open("/runs/run?tab=graph")
    await expect(looker(".node")).to_have_count(500)
    await expect(looker(".ptitle", "As it is declared")).to_contain_text("500 of 500 steps done")
    assert await looker.page.evaluate("document.querySelectorAll('*').length") < 3_000
    assert not await looker.overflows()
    assert await looker.violations() == []


async def test_the_calls_of_a_coded_run_are_a_tree_that_folds(factory, looker):
    await factory.engine.start(shops.poll, 9, id="poll-1")
    await factory.settle()
    await looker.open("/runs/poll-1?tab=graph")
    calls = await looker.sees(".calls")
    await expect(calls.locator("li", has_text="iteration")).to_have_count(5)
    await expect(calls.locator("li", has_text="fetch")).to_have_count(1)
    await calls.get_by_role("button", name="4 earlier…").click()
    await expect(calls.locator("li", has_text="iteration")).to_have_count(9)
    assert await looker.violations() == []
    await calls.get_by_role("link", name="fetch").click()
    await expect(looker(".step h2")).to_contain_text("fetch")


async def test_the_state_tab_has_the_answers_of_the_code(factory, looker):
    run = await factory.engine.start(counter, id="run")
    await run.send("add", 4)
    await factory.engine.start(shops.poll, 1, id="poll-1")
    await factory.settle()
    await looker.open("/runs/run?tab=state")
    await expect(await looker.sees(".state")).to_contain_text('"note": "<b>so far</b>"')
    await expect(looker(".state")).to_contain_text("limit")
    await run.send("add", 5)
    await expect(looker(".state")).to_contain_text('"sum": 9')
    assert await looker.violations() == []
    await looker.open("/runs/poll-1?tab=state")
    await looker.sees("#tabpanel", "Its code answers no query")
    looker.other.who = Principal("vera", "viewer")
    await looker.open("/runs/run?tab=state")
    await looker.sees("#tabpanel", "needs the role reader")
