"""The page of one run in a browser: why, timeline, steps, history, and text that is never more than text."""

from __future__ import annotations

import pytest
from playwright.async_api import expect
from tests.web.browser import shop as shops

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "javascript:alert(1)",
    "{{constructor.constructor('alert(1)')()}}",
    "${alert(1)}",
    "<svg/onload=alert(1)>",
    "\"'><iframe srcdoc='<script>alert(1)</script>'>",
    "\u202egnp.exe \u200b\u2066",
    "<style>*{display:none}</style>",
    "<a href='javascript:alert(1)'>here</a>",
]


async def test_a_run_shows_why_what_happened_when_and_each_step(shop, site, looker):
    await shops.the_order(shop)
    await looker.open("/runs/order-88405")
    await expect(await looker.sees(".whybox")).to_contain_text("Waits for the next attempt of step book_carrier")
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


async def test_what_runs_say_is_shown_as_text_and_never_run(shop, site, looker):
    await shop.engine.start(
        shops.quick,
        {"order": "o-1", **{f"field {number}": text for number, text in enumerate(HOSTILE)}},
        id="hostile",
        actor=HOSTILE[0],
        tenant=HOSTILE[1],
        attributes={f"a{number}": text for number, text in enumerate(HOSTILE)},
    )
    await shop.settle()
    await looker.open("/runs")
    await expect(await looker.row("hostile")).to_contain_text(HOSTILE[0])
    await looker.open("/runs/hostile")
    for text in HOSTILE[:6]:
        await expect(looker(".side")).to_contain_text(text)
    await looker.page.get_by_role("tab", name="History").click()
    await looker.sees(".fact")
    assert await looker("img, iframe, .side script, .side style").count() == 0


@pytest.mark.web
async def test_a_long_history_keeps_the_page_small(shop, site, looker):
    await shop.engine.start(shops.lengthy, 1_500, id="long")
    await shop.settle()
    await looker.open("/runs/long?tab=history")
    await looker.sees(".fact")
    box = looker(".virtual")
    for _ in range(20):
        await box.evaluate("box => { box.scrollTop = box.scrollHeight; }")
        await looker.page.wait_for_timeout(100)
    await expect(looker(".fact", "ended")).to_be_visible()
    assert await looker.page.evaluate("document.querySelectorAll('*').length") < 3_000
    await looker.page.get_by_role("tab", name="Timeline").click()
    await looker.sees(".row")
    assert await looker.page.evaluate("document.querySelectorAll('*').length") < 3_000
