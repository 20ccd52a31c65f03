"""What happens is seen without a reload, and a page gets over a server that goes away and comes back."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest
from playwright.async_api import expect
from tests.web.browser import shop as shops
from tests.web.browser.conftest import served

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
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serving = await asyncio.create_subprocess_exec(
        *command, "--bind", f"127.0.0.1:{port}", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert serving.stdout is not None
        link = (await serving.stdout.readline()).decode().strip()
        looker.site.port = port
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
