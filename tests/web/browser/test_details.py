"""Small things of a page that are easily wrong: digits, words that lie over each other, what is found by replaying."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import expect
from tests.support.waiting import eventually
from tests.web.browser import shop as shops
from tests.web.browser.conftest import served

from holdfast.contract.rows import Status
from holdfast.looking import LocalDesk
from holdfast.looking.acting import causes
from holdfast.web import Principal
from holdfast.web.auth import ANYONE

pytestmark = pytest.mark.web

LARGE = 9_007_199_254_740_993  # what a float of a browser takes for another number


async def test_whole_numbers_are_shown_and_sent_to_the_digit(shop, site, looker):
    await shop.engine.start(shops.quick, {"order": "o-1", "account": LARGE}, id="order-1")
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    await looker.open("/runs/order-1")
    shown = await (await looker.sees('.side [aria-label="Input"]')).text_content()
    assert json.loads(shown or "")["order"]["account"] == LARGE
    await looker.page.get_by_role("tab", name="History").click()
    await (await looker.sees(".fact")).click()
    [fact] = [each for each in (await LocalDesk(shop.engine.store).history("order-1")).items if each.kind == "step"]
    assert json.loads(await (await looker.sees(".raw pre")).text_content() or "") == fact.data
    await looker.open("/runs/order-88391")
    await looker.sees(".whybox")
    await looker.press("s")
    sheet = await looker.sees(".sheet")
    await sheet.get_by_label("Payload").fill(json.dumps({"account": LARGE}))
    await sheet.get_by_role("button", name="Send", exact=True).click()
    await shop.until("order-88391", lambda head: "approved" not in (head.wait or ""))
    facts = (await LocalDesk(shop.engine.store).history("order-88391")).items
    assert [each.data[2] for each in facts if each.kind == "message"] == [{"account": LARGE}]


async def test_what_a_step_was_called_with_is_found_by_replaying(shop, site, looker):
    await shops.the_order(shop)
    await looker.open("/runs/order-88405?step=book_carrier")
    shown = await (await looker.sees('.step [aria-label="Arguments"]')).text_content()
    assert json.loads(shown or "") == {"parcel": {"order": "o-88405", "kg": 2.4, "to": "Kantstr. 1"}}


@pytest.mark.parametrize("width", [420, 1440])
async def test_no_words_of_a_timeline_lie_over_each_other(blocked_shop, looker, width):
    await shops.fill(blocked_shop)
    await looker.page.set_viewport_size({"width": width, "height": 900})
    async with served(blocked_shop) as site:
        looker.site.port = site.port
        for run_id in ("order-88412", "order-88405", "order-88409", "moving-204", "order-88377"):
            await looker.open(f"/runs/{run_id}")
            await looker.sees(".tl .axis text")
            wrong = await looker.page.evaluate(OVERLAPS)
            assert wrong == [], run_id
        await looker.page.goto("about:blank")


async def test_menus_are_inside_a_narrow_window_and_lead_to_the_settings(shop, site, looker):
    await shops.the_order(shop)
    await looker.page.set_viewport_size({"width": 420, "height": 900})
    for path, opens in (
        ("/runs/order-88405", ".head button:has-text('More')"),
        ("/runs", "button[aria-label*='Menu']"),
    ):
        await looker.open(path)
        await (await looker.sees(opens)).click()
        box = await (await looker.sees(".menu")).bounding_box()
        assert box is not None
        assert box["x"] >= 0, path
        assert box["x"] + box["width"] <= 420, path
    await looker.page.get_by_role("menuitem", name="Settings").click()
    await looker.sees("h1", "Settings")


OVERLAPS = """() => {
  const wrong = [];
  const box = (each) => each.getBoundingClientRect();
  const said = [...document.querySelectorAll(".tl .axis svg text, .tl .axis .nowbox")];
  const axis = said.filter((each) => each.textContent !== "now");
  const right = box(document.querySelector(".tl")).right;
  axis.forEach((one, i) => axis.slice(i + 1).forEach((other) => {
    const [a, b] = [box(one), box(other)];
    if (a.left < b.right && b.left < a.right) wrong.push(`${one.textContent} over ${other.textContent}`);
  }));
  for (const row of document.querySelectorAll(".row")) for (const text of row.querySelectorAll("svg text")) {
    const { left, right: end } = box(text);
    const over = left < box(row.querySelector(".name")).right - 1 || end > right;
    if (over) wrong.push(`${text.textContent} of ${row.textContent}`);
  }
  return wrong;
}"""


async def test_a_group_of_more_letters_than_a_page_has_is_acted_on_whole(shop, site, looker, monkeypatch):
    for number in range(7):
        await shops.order(shop, number, -1)
    await shop.settle()
    for _ in range(5):
        await shop.engine.advance(20 * shops.SECOND)
    await shop.until("order-6", lambda head: head.status is Status.FAILED)
    await looker.page.route(
        "**/letters?limit=200*", lambda route: route.continue_(url=route.request.url.replace("=200", "=3"))
    )
    monkeypatch.setattr(causes, "PAGE", 3)
    await looker.open("/letters")
    await (await looker.sees("button", "Acknowledge 7…")).click()
    sheet = await looker.sees(".sheet")
    await expect(sheet.locator("[data-plan]")).to_contain_text("7 letters of fulfil, step charge, CardDeclined")
    await sheet.get_by_label("Reason").fill("a test of the bank")
    await sheet.get_by_label("Reason").press("Enter")
    await expect(looker(".toast").first).to_contain_text("7 letters acknowledged")
    assert await LocalDesk(shop.engine.store).letter_groups() == []


async def test_a_dashboard_that_is_open_to_all_says_so_on_every_page(shop, site, looker):
    await looker.open("/runs")
    await looker.sees(".notice")
    await expect(looker(".openbar")).to_have_count(0)
    site.who = ANYONE
    await looker.open("/runs")
    await expect(await looker.sees(".openbar")).to_contain_text("dangerously_open=True")


async def test_a_tab_asks_once_for_what_it_shows(shop, site, looker):
    """FACES 10, line 3."""
    await shops.the_order(shop)
    await looker.open("/runs/order-88405")
    await looker.sees('.step [aria-label="Arguments"]')
    await looker.sees('[data-live="live"]')
    await looker.page.wait_for_load_state("networkidle")
    for tab, most in (
        ("Steps", 0),
        ("History", 1),
        ("Messages", 1),
        ("Children", 1),
        ("Graph", 1),
        ("State", 1),
        ("Timeline", 0),
    ):
        before = len(looker.asked)
        await looker.page.get_by_role("tab", name=tab).click()
        await expect(looker.page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")

        async def shown() -> bool:
            return not await looker("#tabpanel [aria-busy]").count()

        await eventually(shown)
        asked = [url for url in looker.asked[before:] if "/api/" in url and "/live" not in url]
        assert len(asked) <= most, (tab, asked)


async def test_a_message_is_named_though_the_facts_of_the_run_are_not_read_yet(shop, site, looker):
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    await looker.page.route("**/history?*", lambda route: route.abort())
    await looker.open("/runs/order-88391")
    await looker.sees(".whybox")
    await looker.press("s")
    await expect((await looker.sees(".sheet")).get_by_label("Name")).to_have_value("approved")


async def test_a_run_says_how_many_others_wait_to_try_its_step_again_and_pauses_them_all(shop, site, looker):
    for number in (1, 2, 3):
        await shop.engine.start(shops.abroad, "kettles", id=f"abroad-{number}")
    await shop.settle()
    await looker.open("/runs/abroad-2")
    await expect(await looker.sees(".whybox .others")).to_have_text("2 other runs wait to try this step again")
    await looker(".whybox").get_by_role("button", name="Pause all 3…").click()
    sheet = await looker.sees(".sheet")
    await expect(sheet.locator("[data-plan]")).to_contain_text("3 can")
    await sheet.get_by_label("Reason").fill("customs are down")
    await sheet.get_by_label("Reason").press("Enter")
    await expect(looker(".toast").first).to_contain_text("3 runs paused")
    assert (await LocalDesk(shop.engine.store).count("status:paused")).n == 3


async def test_a_masked_value_is_revealed_for_a_reason_and_forgotten_when_the_page_is_left(shop, site, looker):
    """Seen failing without the button, with the reason left out, and without forgetting."""
    await shop.engine.start(
        shops.quick, {"order": "o-1", "cards": [{"card": "4111-1"}], "a/b": {"pin": 7}}, id="order-1"
    )
    await shop.settle()
    await looker.open("/runs/order-1")
    masked = looker.page.get_by_role("button", name="Reveal /order/cards/0/card")
    await masked.click()
    sheet = await looker.sees(".sheet")
    confirm = sheet.get_by_role("button", name="Reveal", exact=True)
    await expect(confirm).to_be_disabled()
    assert await looker.violations() == []
    await sheet.get_by_label("Reason").fill("INC-7")
    await expect(sheet).to_contain_text("holdfast reveal order-1 input /order/cards/0/card --reason INC-7")
    await looker.press("Enter")
    await expect(looker(".revealed")).to_have_text('"4111-1"')
    await expect(looker.page.get_by_role("button", name="Reveal /order/a~1b/pin")).to_be_visible()
    [row] = (await LocalDesk(shop.engine.store).audit(target="order-1")).items
    assert (row.actor, row.action, row.detail["pointer"]) == ("kim", "reveal", "/order/cards/0/card")
    await expect(looker(".done")).to_contain_text("kim revealed input /order/cards/0/card INC-7")
    await looker.page.get_by_role("link", name="Runs", exact=True).first.click()
    await (await looker.row("order-1")).get_by_role("link").first.click()
    await expect(masked).to_be_visible()
    await expect(looker(".revealed")).to_have_count(0)
    site.who = Principal("kim", "reader")
    await looker.open("/runs/order-1")
    await expect(await looker.sees('.side [aria-label="Input"]')).to_contain_text("••••••")
    await expect(masked).to_have_count(0)


async def test_a_run_says_who_sent_a_message_and_how_patiently_a_step_is_tried(shop, site, looker):
    await shops.the_order(shop)
    await looker.open("/runs/order-88405")
    await looker(".row a", "approved").click()
    await expect(await looker.sees(".row.sel")).to_contain_text("from kim after 2 h")
    await expect(looker(".step h3").filter(has_text="from kim")).to_be_visible()
    await looker.open("/runs/order-88405?step=book_carrier")
    await expect(looker(".step h3").filter(has_text="backoff")).to_contain_text(
        "backoff 2 s \N{MULTIPLICATION SIGN} 2, at most 5 min, 8 attempts"
    )
