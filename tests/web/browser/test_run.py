"""The page of one run in a browser: why, timeline, steps, history."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import expect
from tests.support.waiting import eventually
from tests.web.browser import shop as shops
from tests.web.browser.conftest import PATIENCE


async def test_a_run_shows_why_what_happened_when_and_each_step(shop, site, looker):
    await shops.the_order(shop)
    await looker.open("/runs/order-88405")
    await expect(await looker.sees(".whybox")).to_contain_text("Step book_carrier failed 4 times of 8")
    await expect(looker(".whybox .src")).to_contain_text("shop.py:")
    await expect(looker(".row")).to_have_count(8)
    await expect(looker(".axis text.fold")).to_have_text("2 h")
    await expect(looker(".row.sel")).to_contain_text("book_carrier")
    await expect(looker(".step .err")).to_contain_text("CarrierDown: 503 from api.carrier.example")
    await expect(looker(".att tr")).to_have_count(5)
    await looker(".row a", "charge").click()
    await expect(looker(".step h2")).to_have_text("charge")
    assert "step=charge" in looker.page.url
    await looker.press("ArrowDown")
    await expect(looker(".step h2")).to_have_text("approved")
    await looker.press("f")
    await expect(looker(".axis text.fold")).to_have_count(0)
    await looker.page.get_by_role("tab", name="History").click()
    await expect(looker(".fact", "attempt failed").first).to_be_visible()
    await looker.page.get_by_role("tab", name="Children").click()
    await expect(looker("#tabpanel")).to_contain_text("ship-88405")
    assert await looker.violations() == []


@pytest.mark.web
async def test_a_long_history_keeps_the_page_small(shop, site, looker):
    await shop.engine.start(shops.lengthy, 800, id="long")
    await shop.settle()
    await looker.open("/runs/long?tab=history")
    await looker.sees(".fact")
    box = looker(".virtual")

    async def at_the_end() -> bool:
        await box.evaluate("box => { box.scrollTop = box.scrollHeight; }")
        return "read so far" not in (await looker(".histbar").text_content() or "read so far")

    await eventually(at_the_end, within=PATIENCE / 1_000)
    await expect(looker(".histbar .num")).to_have_text("1,600")  # none twice
    assert await looker.page.evaluate("document.querySelectorAll('*').length") < 3_000
    await looker.page.get_by_role("tab", name="Timeline").click()
    await looker.sees(".row")
    assert await looker.page.evaluate("document.querySelectorAll('*').length") < 3_000


async def test_a_long_value_is_shown_by_its_beginning_and_downloaded_whole(shop, site, looker):
    texts = [f"line {n} <b>" for n in range(20_000)]
    await shop.engine.start(shops.quick, {"order": "o-1", "texts": texts}, id="long")
    await shop.settle()
    await looker.open("/runs/long")
    await expect(await looker.sees('.side [aria-label="Input"]')).to_contain_text("line 3 <b>")
    assert "line 19999" not in (await looker('.side [aria-label="Input"]').text_content() or "")
    async with looker.page.expect_download() as coming:
        await looker(".side button", "download").first.click()
    file = await (await coming.value).path()
    assert json.loads(file.read_text())["order"]["texts"] == texts
    assert (await coming.value).suggested_filename == "input.json"
