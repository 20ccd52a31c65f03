"""What happens is seen without a reload, and a page gets over a server that goes away and comes back."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from playwright.async_api import expect
from tests.conftest import with_schema
from tests.postgres.proxy import Proxy
from tests.postgres.servers import fresh_schema
from tests.support.waiting import eventually
from tests.web.browser import shop as shops
from tests.web.browser.conftest import served
from tests.web.shop import approve, house

pytestmark = pytest.mark.web


async def test_a_list_follows_what_happens_and_newer_runs_do_not_push_it(shop, site, looker):
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    await looker.open("/runs")
    await expect(await looker.row("order-88391")).to_contain_text("Waits for message approved")
    await looker.sees('[data-live="live"]')
    await shop.engine.get("order-88391").pause(by="lena", reason="bank down")
    await expect(await looker.row("order-88391")).to_contain_text("Paused by lena")
    await shop.engine.start(shops.quick, {"order": "o-1"}, id="order-1")
    await looker.sees(".fresh", "1 newer run")
    await expect(looker("tbody tr")).to_have_count(1)
    await looker.press("n")
    await looker.row("order-1")


async def test_a_run_follows_what_happens_to_it(shop, site, looker):
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    await looker.open("/runs/order-88391")
    await looker.sees('[data-live="live"]')
    await expect(looker(".row")).to_have_count(3)
    await shop.engine.get("order-88391").send("approved", {"by": "kim"})
    await expect(looker(".row", "print_label")).to_be_visible()


async def test_a_run_follows_changes_of_one_instant(shop, site, looker):
    """The clock of the shop stands still: nothing but its status tells that the run is another."""
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    await looker.open("/runs/order-88391")
    await looker.sees('[data-live="live"]')
    run = shop.engine.get("order-88391")
    for change, status in ((run.pause, "Paused"), (run.resume, "Waiting")):
        await expect(looker(".row")).to_have_count(3)
        await change(by="lena")
        await expect(looker(".head .pill")).to_have_text(status)


async def test_a_page_gets_over_a_server_that_goes_away_and_comes_back(shop, looker):
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    port = looker.site.port
    await looker.open("/runs")
    await looker.sees('[data-live="live"]')
    await looker.site.stop()
    await looker.sees('[data-live="lost"]')
    await expect(await looker.row("order-88391")).to_be_visible()
    await shop.engine.get("order-88391").pause(by="lena", reason="bank down")
    async with served(shop, port):
        await expect(await looker.row("order-88391")).to_contain_text("Paused by lena")
        await looker.sees('[data-live="live"]')
        await looker.page.goto("about:blank")


async def test_the_link_of_holdfast_ui_lets_one_browser_in_once(tmp_path, looker):
    command = [sys.executable, "-m", "holdfast", "ui", "--url", f"sqlite:///{tmp_path / 'new.db'}", "--no-open"]
    serving = await asyncio.create_subprocess_exec(*command, "--bind", "127.0.0.1:0", stdout=asyncio.subprocess.PIPE)
    try:
        assert serving.stdout is not None
        link = (await serving.stdout.readline()).decode().strip()
        looker.site.port = urlsplit(link).port
        await looker.page.goto(link)
        await expect(await looker.sees(".notice")).to_contain_text("There are no runs yet")
        assert "token" not in looker.page.url
        await looker.page.context.clear_cookies()
        await looker.page.goto("about:blank")
        await looker.page.goto(link)
        await looker.sees(".signin")
    finally:
        serving.terminate()
        await serving.wait()


class Cutting:
    """Stands before a server, passes everything on, and cuts each connection after three seconds, as proxies do."""

    def __init__(self) -> None:
        self.target = 0
        self.cuts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            async with asyncio.timeout(3):
                await asyncio.gather(_pipe(reader, down), _pipe(up, writer))
        except TimeoutError:
            self.cuts += 1
        except ConnectionError:
            pass
        finally:
            for each in (writer, down):
                each.transport.abort()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def test_a_page_whose_streams_a_proxy_cuts_every_three_seconds_misses_nothing(shop, looker):
    """FACES 10, line 10: what changes while there is no stream is seen too, without a reload."""
    for number in range(88391, 88395):
        await shops.order(shop, number, 1_200)
    await shop.settle()
    cutting = Cutting()
    async with await asyncio.start_server(cutting.serve, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        async with served(shop, hosts=[f"127.0.0.1:{port}"]) as site:
            cutting.target, looker.site.port = site.port, port
            await looker.open("/runs")
            await looker.sees('[data-live="live"]')
            for number in range(88391, 88395):
                before = cutting.cuts
                await shop.engine.get(f"order-{number}").pause(by="lena", reason="bank down")
                await expect(await looker.row(f"order-{number}")).to_contain_text("Paused by lena")
                await eventually(lambda before=before: cutting.cuts > before)
            loads = [url for url in looker.asked if url.endswith("/workflows/runs")]
            assert len(loads) == 1
            await looker.page.goto("about:blank")


async def test_a_page_gets_over_a_database_that_is_away_for_a_while(postgres, looker):
    """FACES 10, line 10: the last picture stays, with its age, and is true again when the database is back."""
    with fresh_schema(postgres) as schema, Proxy(postgres) as proxy:
        direct = with_schema(postgres, schema)
        async with house(direct) as worker, house(f"{proxy.url}?schema={schema}", run_workflows=False) as engine:
            await worker.start(approve, id="order-7")
            async with served(SimpleNamespace(engine=engine)) as site:
                looker.site.port = site.port
                await looker.open("/runs/order-7")
                await expect(await looker.sees(".whybox")).to_contain_text("approved")
                await looker.sees('[data-live="live"]')
                proxy.refuse()
                proxy.cut()
                await expect(await looker.sees(".lost")).to_contain_text("This is the picture of")
                await expect(looker(".whybox")).to_contain_text("approved")
                await worker.get("order-7").pause(by="lena", reason="bank down")
                await asyncio.sleep(10)
                await expect(looker(".whybox")).to_contain_text("approved")
                proxy.heal()
                await expect(looker(".whybox")).to_contain_text("Paused by lena")
                await expect(looker(".lost")).to_have_count(0)
                assert len([url for url in looker.asked if url.endswith("/runs/order-7") and "/api/" not in url]) == 1
                await looker.page.goto("about:blank")
