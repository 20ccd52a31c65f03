"""What the screens of the house say while database, server or stream is away, and that they are true again after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.async_api import Page, expect
from tests.conftest import with_schema
from tests.postgres.proxy import Proxy
from tests.postgres.servers import fresh_schema
from tests.support.waiting import eventually
from tests.web.browser.conftest import PATIENCE, served
from tests.web.browser.test_live import Cutting
from tests.web.shop import approve, fail, house

from holdfast import Engine
from holdfast.errors import StoreBusy
from holdfast.testing.faults import Faults

pytestmark = pytest.mark.web

SCREENS = {
    "/": ("Needs attention", "ValueError"),
    "/schedules?id=nightly": ("nightly", "paused"),
    "/events": ("approved", "parcel"),
    "/deploys": ("approve", "2"),
    "/audit": ("lena", "schedule.pause"),
}
"""What each screen shows before its database goes away, and what only after it came back."""
READS = (
    "heads", "count", "ended_counts", "figures", "letter_groups", "workers", "schedules", "event_names",
    "workflow_names", "acts", "paused",
)  # fmt: skip


@pytest.fixture
def place() -> str:
    """The usual shop is of no interest here."""
    return ":memory:"


@asynccontextmanager
async def on_postgres(postgres: str) -> AsyncIterator[tuple[Engine, Engine, Any, Any]]:
    """Give a worker on the server, an engine behind a proxy, and what cuts it off and heals it."""
    with fresh_schema(postgres) as schema, Proxy(postgres) as proxy:
        through = f"{proxy.url}?schema={schema}"
        async with house(with_schema(postgres, schema)) as worker, house(through, run_workflows=False) as engine:

            def leave() -> None:
                proxy.refuse()
                proxy.cut()

            yield worker, engine, leave, proxy.heal


@asynccontextmanager
async def on_sqlite(folder: Path) -> AsyncIterator[tuple[Engine, Engine, Any, Any]]:
    """Give a worker, an engine beside it, and what lets all that its page reads fail as on a file that stays locked."""
    file = f"sqlite:///{folder / 'shop.db'}"
    async with house(file) as worker, house(file, run_workflows=False) as engine:
        faults = Faults(engine.store)

        def leave() -> None:
            for at in READS:
                faults.fail(None, at=at, error=StoreBusy("another process keeps the database locked"))

        yield worker, engine, leave, faults.heal
        assert faults.injected > len(SCREENS)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_each_screen_keeps_its_last_picture_while_the_database_is_away(store, tmp_path, looker, request):
    """FACES 10, line 10: greyed, with its age, and true again without a reload."""
    place = on_sqlite(tmp_path) if store == "sqlite" else on_postgres(request.getfixturevalue("postgres"))
    async with place as (worker, engine, leave, heal):
        await worker.schedules.put("nightly", approve, cron="30 2 * * *", by="lena")
        await worker.start(approve, id="order-7")
        async with served(SimpleNamespace(engine=engine)) as site:
            pages = await _open_each(looker, site.root)
            leave()
            for path, page in pages.items():
                await _is_told(page, SCREENS[path][0])
            assert await looker.violations() == []
            await _go_on(worker)
            await asyncio.sleep(1)
            for path, page in pages.items():
                await _is_told(page, SCREENS[path][0])
            heal()
            await _are_true(pages)


async def test_each_screen_gets_over_a_server_that_goes_away_and_comes_back(looker):
    """FACES 10, line 10: the last picture stays, and is true again without a reload."""
    async with house() as worker:
        await worker.schedules.put("nightly", approve, cron="30 2 * * *", by="lena")
        await worker.start(approve, id="order-7")
        shop = SimpleNamespace(engine=worker)
        async with AsyncExitStack() as stack:
            site = await stack.enter_async_context(served(shop))
            pages = await _open_each(looker, site.root)
            await site.stop()
            for path, page in pages.items():
                await expect(page.locator('[data-live="lost"]')).to_be_visible()
                await expect(page.locator("main", has_text=SCREENS[path][0])).to_be_visible()
            await _go_on(worker)
            await stack.enter_async_context(served(shop, site.port))
            await _are_true(pages)


async def test_each_screen_misses_nothing_though_a_proxy_cuts_its_streams_every_three_seconds(looker):
    """FACES 10, line 10."""
    cutting = Cutting()
    async with house() as worker, await asyncio.start_server(cutting.serve, "127.0.0.1", 0) as proxy:
        await worker.schedules.put("nightly", approve, cron="30 2 * * *", by="lena")
        await worker.start(approve, id="order-7")
        port = proxy.sockets[0].getsockname()[1]
        async with served(SimpleNamespace(engine=worker), hosts=[f"127.0.0.1:{port}"]) as site:
            cutting.target = site.port
            pages = await _open_each(looker, site.root.replace(f":{site.port}", f":{port}"))
            await eventually(lambda: cutting.cuts >= len(pages))
            await _go_on(worker)
            await _are_true(pages)


async def _open_each(looker: Any, root: str) -> dict[str, Page]:
    """Open each screen in a context of its own: of one, a browser opens six streams at most."""
    looker.site.port = int(root.rpartition(":")[2].partition("/")[0])
    browser = looker.page.context.browser
    pages = {path: looker.page if path == "/" else await browser.new_page() for path in SCREENS}
    for path, page in pages.items():
        page.set_default_timeout(PATIENCE)
        await page.goto(root + path)
        await expect(page.locator("main", has_text=SCREENS[path][0])).to_be_visible()
        await page.evaluate("window.opened = true")
    return pages


async def _are_true(pages: dict[str, Page]) -> None:
    """Wait until each page shows what has come meanwhile, and leave it."""
    for path, page in pages.items():
        await expect(page.locator("main", has_text=SCREENS[path][1])).to_be_visible()
        await expect(page.locator("main .lost")).to_have_count(0)
        assert await page.evaluate("window.opened"), "it was loaded again"
    for page in pages.values():
        await page.goto("about:blank")


async def _is_told(page: Page, before: str) -> None:
    await expect(page.locator("main .lost")).to_contain_text("This is the picture of")
    await expect(page.locator("main.stale", has_text=before)).to_be_visible()


async def _go_on(worker: Engine) -> None:
    """Change something on every screen."""
    await worker.schedules.pause("nightly", by="lena")
    await worker.publish("parcel", {"id": 7})
    await worker.start(approve, id="order-8")
    run = await worker.start(fail, "x")

    async def failed() -> bool:
        return (await run.status()).value == "failed"

    await eventually(failed)
