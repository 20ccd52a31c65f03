"""The other screens in a browser: overview, schedules, events, deploys, audit, and starting a run."""

from __future__ import annotations

import pytest
from playwright.async_api import expect
from tests.web.browser import shop as shops
from tests.web.browser.conftest import served

from holdfast.looking import LocalDesk
from holdfast.web import Principal

pytestmark = pytest.mark.web


async def test_the_overview_says_first_what_needs_attention_and_what_helps(shop, site, looker):
    await shops.failed(shop)
    await shops.count(shop, 5 * shops.MINUTE, 40, 3)
    await looker.open("/")
    attention = await looker.sees('[aria-label="Needs attention"]')
    await expect(attention.locator("tbody tr")).to_have_count(3)
    await expect(attention).to_contain_text("CardDeclined: insufficient funds")
    await expect(looker(".tiles")).to_contain_text("Ended")
    await expect(looker('[aria-label="Dead letters"]')).to_contain_text("CardDeclined")
    await expect(looker('[aria-label="Database"]')).to_contain_text("Schema")
    await looker.tab_to(attention.get_by_role("button", name="Retry…").first)
    await looker.press("Enter")
    await (await looker.sees(".sheet")).get_by_label("Reason").press("Enter")
    await expect(looker(".toast").first).to_contain_text("order-88409 retried")
    await looker.press("g", "r")
    await looker.row("order-88409")


async def test_an_overview_of_nothing_says_how_to_begin(shop, site, looker):
    await looker.open("/")
    await expect(await looker.sees(".notice")).to_contain_text("There are no runs yet")
    for path, said in (
        ("/schedules", "There is no schedule"),
        ("/events", "No event is queued"),
        ("/letters", "No dead letters"),
        ("/deploys", "No run is blocked"),
    ):
        await looker.open(path)
        await expect(await looker.sees(".panel", said)).to_be_visible()


async def test_a_schedule_is_shown_with_its_ticks_triggered_paused_and_edited(shop, site, looker):
    given = {"order": "o-night"}
    await shop.engine.schedules.put("nightly", shops.quick, given, cron="30 2 * * *", timezone="Europe/Berlin")
    await looker.open("/schedules")
    await expect(await looker.sees(".tbl")).to_contain_text("every day at 02:30, Europe/Berlin")
    await looker.page.get_by_role("link", name="nightly").click()
    one = await looker.sees('[aria-label="Schedule nightly"]')
    await expect(one.locator("tbody tr")).to_have_count(20)
    await one.get_by_role("button", name="Trigger…").click()
    await (await looker.sees(".sheet")).get_by_label("Reason").fill("asked for")
    await looker.press("Enter")
    await expect(looker(".toast").first).to_contain_text("nightly triggered")
    await expect(one.locator(".sq")).to_have_count(1)
    await one.get_by_role("button", name="Pause…").click()
    await (await looker.sees(".sheet")).get_by_label("Reason").press("Enter")
    await expect(one.get_by_role("button", name="Resume…")).to_be_visible()
    await one.get_by_role("button", name="Edit…").click()
    sheet = await looker.sees(".sheet")
    await sheet.get_by_label("Cron").fill("30 2 * 3 *")
    await expect(sheet.locator("[data-ticks] li")).to_have_count(5)
    await sheet.get_by_label("Cron").fill("61 2 * * *")
    await expect(sheet.get_by_role("button", name="Put")).to_be_disabled()
    await sheet.get_by_label("Cron").fill("0 3 * * *")
    await sheet.get_by_role("button", name="Put").click()
    await expect(looker(".toast").last).to_contain_text("nightly put")
    await expect(looker(".tbl").last).to_contain_text("every day at 03:00, Europe/Berlin")
    done = {row.action for row in (await LocalDesk(shop.engine.store).audit(actor="kim")).items}
    assert {"schedule.trigger", "schedule.pause", "schedule.put"} <= done
    assert await looker.violations() == []


async def test_a_day_on_which_clocks_change_is_told_beside_its_tick(shop, site, looker):
    shop.clock.advance(130 * 24 * shops.HOUR)  # to March
    await shop.engine.schedules.put("nightly", shops.on_record, cron="30 2 * * *", timezone="Europe/Berlin")
    await looker.open("/schedules?id=nightly")
    await looker.sees('[aria-label="Schedule nightly"]')
    await expect(looker('[aria-label="Schedule nightly"] .s-paused').first).to_be_visible()


async def test_an_event_is_published_to_the_run_that_waits(shop, site, looker):
    await looker.open("/events")
    await looker.page.get_by_role("button", name="Publish…").click()
    sheet = await looker.sees(".sheet")
    await sheet.get_by_label("Name").fill("parcel")
    await sheet.get_by_label("Payload").fill('{"id": 7}')
    await sheet.get_by_role("button", name="Publish", exact=True).click()
    await expect(looker(".toast").first).to_contain_text("parcel is queued")
    await looker.page.get_by_role("link", name="parcel").click()
    await expect(await looker.sees('[aria-label="Event parcel"]')).to_contain_text('{"id":7}')
    assert await looker.violations() == []


async def test_deploys_group_blocked_runs_with_what_to_paste_and_recover_them(blocked_shop, looker):
    async with served(blocked_shop) as site:
        looker.site.port = site.port
        await looker.open("/deploys")
        blocked = await looker.sees(".blockedgroup")
        await expect(blocked).to_contain_text("1 run of checkout")
        await blocked.get_by_role("button", name="Recover 1 run after the deploy…").click()
        await (await looker.sees(".sheet")).get_by_label("Reason").fill("v4 is out")
        await looker.press("Enter")
        await expect(looker(".toast").first).to_contain_text("order-88412 recovered")
        await expect(looker('[aria-label="Versions"]')).to_contain_text("checkout")
        assert await looker.violations() == []
        await looker.page.goto("about:blank")


async def test_the_audit_trail_is_newest_first_and_its_chain_is_checked_here(shop, site, looker):
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    run = shop.engine.get("order-88391")
    await run.pause(by="lena", reason="bank down")
    await run.resume(by="kim", reason="bank is back")
    await looker.open("/audit")
    rows = looker("tbody tr")
    await expect(rows).to_have_count(3)  # with the limit that the engine declared
    await expect(rows.first).to_contain_text("bank is back")
    await expect(looker(".seal")).to_have_text("chain verified in this browser")
    await looker.page.get_by_label("Who").fill("lena")
    await looker.press("Enter")
    await expect(rows).to_have_count(1)
    assert "actor=lena" in looker.page.url
    site.who = Principal("vera", "viewer")
    await looker.open("/audit")
    await expect(looker(".seal")).to_have_text("chain verified by the server")
    assert await looker.violations() == []


async def test_a_run_is_started_by_a_form_of_what_its_workflow_takes(shop, site, looker):
    await looker.open("/start?workflow=lengthy")
    steps = looker.page.get_by_label("steps")
    await steps.fill("two")
    start = looker.page.get_by_role("button", name="Start", exact=True)
    await expect(start).to_be_disabled()
    await steps.fill("2")
    await looker.page.get_by_label("Id", exact=True).fill("long-1")
    await start.click()
    await expect(looker("h1")).to_have_text("long-1")
    await shop.settle()
    assert (await shop.engine.get("long-1").describe()).actor in (None, "kim")
    await looker.open("/start?workflow=lengthy")
    await looker.page.get_by_label("Id", exact=True).fill("long-1")
    await looker.sees(".plan", "There is a run with this id")
    await looker.page.get_by_role("button", name="as JSON").click()
    await looker.page.get_by_label("Arguments by name, JSON").fill('{"steps": 1}')
    await looker.page.get_by_label("Id", exact=True).fill("long-2")
    await looker.tab_to(start)
    await looker.press("Enter")
    await expect(looker("h1")).to_have_text("long-2")
    await looker.open("/start?workflow=fulfil")
    await looker.sees("textarea")
    assert await looker.violations() == []


async def test_settings_and_saved_views_are_kept_in_the_browser(shop, site, looker):
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    await looker.open("/settings")
    await looker.page.get_by_role("radio", name="Dark").check()
    await looker.page.get_by_role("radio", name="Compact").check()
    await looker.page.get_by_label("Time zone").fill("Asia/Tokyo")
    await looker.press("Enter")
    await expect(looker(".toast").first).to_contain_text("Times in Asia/Tokyo")
    await looker.open("/runs?q=status%3Asuspended")
    await expect(looker("html")).to_have_attribute("data-theme", "dark")
    await expect(looker("html")).to_have_attribute("data-density", "compact")
    await expect(looker(".foot")).to_contain_text("Asia/Tokyo")
    await looker.page.get_by_role("button", name="Save view").click()
    await (await looker.sees(".sheet")).get_by_label("Name").fill("What waits")
    await looker.press("Enter")
    await looker.sees(".views a", "What waits")
    await looker.open("/settings")
    await looker.sees('[aria-label="Saved views"] a', "What waits")
    await looker.page.get_by_role("button", name="Remove").click()
    await expect(looker('[aria-label="Saved views"]')).to_contain_text("None yet")
    assert await looker.violations() == []


async def test_the_graph_of_a_workflow_shows_what_became_of_each_step(shop, site, looker):
    await shops.the_order(shop)
    await looker.open("/runs/order-88405?tab=graph")
    await expect(await looker.sees(".graph")).to_contain_text("book_carrier")
    await expect(looker(".node.s-completed")).to_have_count(4)
    await looker.page.get_by_role("button", name="Copy as Mermaid").click()
    assert (await looker.page.evaluate("navigator.clipboard.readText()")).startswith("flowchart TD")
    assert await looker.violations() == []
    await looker('.graph a[aria-label^="charge"]').click()
    await expect(looker(".step h2")).to_have_text("charge")
