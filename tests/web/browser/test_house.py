"""The other screens in a browser: overview, schedules, events, deploys, audit, and starting a run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from playwright.async_api import expect
from tests.web.browser import shop as shops
from tests.web.browser.conftest import served

from holdfast.cli.main import commands
from holdfast.contract.turns import Audit
from holdfast.looking import LocalDesk
from holdfast.stores import open_store
from holdfast.transfer.backup import put_on_record
from holdfast.web import Principal

pytestmark = pytest.mark.web


def assert_parses(command: str) -> None:
    """Fail if a command that the page offers is none that the command line knows."""
    program, *words = shlex.split(command)
    assert program == "holdfast"
    group: Any = commands
    while isinstance(group, click.Group):
        group = group.get_command(click.Context(group), words.pop(0))
    assert group is not None, command
    group.make_context("holdfast", words)


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
    await expect(looker('[aria-label="Workers"]')).to_contain_text("oldest due run waits")
    await looker.tab_to(attention.get_by_role("button", name="Retry…").first)
    await looker.press("Enter")
    await (await looker.sees(".sheet")).get_by_label("Reason").press("Enter")
    await looker.sees(".toast", "order-88409 retried")
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
    secret = {"order": "o-night", "password": "open sesame"}
    await shop.engine.schedules.put("nightly", shops.quick, secret, cron="30 2 * * *", timezone="Europe/Berlin")
    await looker.open("/schedules")
    await expect(await looker.sees(".tbl")).to_contain_text("every day at 02:30, Europe/Berlin")
    await looker.page.get_by_role("link", name="nightly").click()
    one = await looker.sees('[aria-label="Schedule nightly"]')
    await expect(one.locator("tbody tr")).to_have_count(20)
    await expect(one.locator("tbody tr").first).to_contain_text("2026-11-12 02:30:00 +01:00")
    await one.get_by_role("button", name="Trigger…").click()
    await (await looker.sees(".sheet")).get_by_label("Reason").fill("asked for")
    await looker.press("Enter")
    await looker.sees(".toast", "nightly triggered")
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
    await expect(sheet.locator("[data-ticks] li").first).to_contain_text("2026-11-12 03:00:00 +01:00 there")
    assert_parses(await sheet.locator("pre").inner_text())
    await sheet.get_by_role("button", name="Put").click()
    await looker.sees(".toast", "nightly put")
    await expect(looker(".tbl").last).to_contain_text("every day at 03:00, Europe/Berlin")
    kept = (await shop.engine.schedules.get("nightly")).input["order"]
    assert kept == secret, "what the page may not show was written over"
    done = {row.action for row in (await LocalDesk(shop.engine.store).audit(actor="kim")).items}
    assert {"schedule.trigger", "schedule.pause", "schedule.put"} <= done
    assert await looker.violations() == []


async def test_an_act_of_the_house_is_copied_as_a_command_as_curl_and_as_python(shop, site, looker):
    """FACES 5: what is shown is the whole of what is done, with its reason."""
    await shop.engine.schedules.put("nightly", shops.quick, {"order": "o-1"}, cron="30 2 * * *")
    cases = {
        "/schedules?id=nightly": ("Trigger…", 'await engine.schedules.trigger("nightly", by="me", reason="INC-7")'),
        "/events": ("Publish…", 'await engine.publish("NAME", {}, by="me", reason="INC-7")'),
    }
    for path, (button, python) in cases.items():
        await looker.open(path)
        await looker("main").get_by_role("button", name=button).first.click()
        sheet = await looker.sees(".sheet")
        await sheet.get_by_label("Reason").fill("INC-7")
        assert_parses(await sheet.locator("pre").inner_text())
        await expect(sheet.locator("pre")).to_contain_text("--reason INC-7")
        await sheet.get_by_role("button", name="curl").click()
        await expect(sheet.locator("pre")).to_contain_text('"reason":"INC-7"')
        await sheet.get_by_role("button", name="Python").click()
        await expect(sheet.locator("pre")).to_have_text(python)
    await looker.open("/start?workflow=lengthy")
    for label, text in {"steps": "2", "Tenant": "acme", "Begins after": "1 h 30 min", "Priority": "7"}.items():
        await looker.page.get_by_label(label).fill(text)
    await looker.page.get_by_label("Attributes").fill('{"customer": "c-1", "zip": "0815", "n": 2}')
    shown = looker(".startform pre")
    await expect(shown).to_contain_text("--tenant acme --priority 7 --delay 1h30min --attribute customer=c-1")
    assert_parses(await shown.inner_text())
    words = shlex.split(await shown.inner_text())
    assert [words[n + 1] for n, word in enumerate(words) if word == "--attribute"] == [
        "customer=c-1", 'zip="0815"', "n=2",
    ]  # fmt: skip
    await looker.page.get_by_label("Attributes").fill("[1]")
    await looker.sees(".wrong", "It must be an object")


async def test_a_backfill_says_first_which_ticks_it_starts(shop, site, looker):
    await shop.engine.schedules.put("nightly", shops.quick, {"order": "o-1"}, cron="30 2 * * *")
    await looker.open("/schedules?id=nightly")
    await (await looker.sees('[aria-label="Schedule nightly"]')).get_by_role("button", name="Backfill…").click()
    sheet = await looker.sees(".sheet")
    await sheet.get_by_label("Ticks from").fill("2026-11-01T00:00:00Z")
    await sheet.get_by_label("and before").fill("2026-11-04T00:00:00Z")
    await expect(sheet.locator("[data-plan]")).to_contain_text("3 runs of 3 ticks would be started")
    await expect(sheet.locator("[data-plan] li")).to_have_count(3)
    assert_parses(await sheet.locator("pre").inner_text())
    await sheet.get_by_label("Reason").fill("the disk was full")
    await sheet.get_by_label("Reason").press("Enter")
    await looker.sees(".toast", "3 runs started")
    found = (await LocalDesk(shop.engine.store).heads("workflow:quick")).items
    assert len(found) == 3


async def test_a_schedule_that_skips_says_which_ticks_had_no_run_and_why(shop, site, looker):
    await shop.engine.schedules.put("hourly", shops.on_record, cron="0 * * * *", overlap="skip")
    await shop.engine.advance(4 * shops.HOUR)
    await looker.open("/schedules?id=hourly")
    one = await looker.sees('[aria-label="Schedule hourly"]')
    await expect(one.locator(".squares a.sq")).to_have_count(1)
    await expect(looker('[aria-label="Schedules"] tr', "hourly")).to_contain_text("Waiting")
    await expect(one.locator(".squares .gap")).to_have_count(3)
    await expect(one.locator("summary")).to_have_text("3 ticks of its last 4 have no run")
    await looker.tab_to(one.locator("summary"))
    await looker.press("Enter")
    await expect(one.locator(".gaps li").first).to_contain_text("skipped: hourly:20261111T090000Z was still open")
    assert await looker.violations() == []


async def test_a_day_on_which_clocks_change_is_told_beside_its_tick(shop, site, looker):
    shop.clock.advance(130 * 24 * shops.HOUR)  # to March
    await shop.engine.schedules.put("nightly", shops.on_record, cron="30 2 * * *", timezone="Europe/Berlin")
    await looker.open("/schedules?id=nightly")
    await looker.sees('[aria-label="Schedule nightly"]')
    told = looker('[aria-label="Schedule nightly"] tr', "does not exist that day")
    await expect(told).to_have_count(1)
    await expect(told).to_contain_text("02:30 does not exist that day: clocks go forward from 02:00 to 03:00")
    await expect(told).to_contain_text("2027-03-28 03:00:00 +02:00")


async def test_a_schedule_of_an_interval_of_two_units_is_edited(shop, site, looker):
    await shop.engine.schedules.put("often", shops.quick, {"order": "o-1"}, every=90 * shops.MINUTE)
    await looker.open("/schedules?id=often")
    await (await looker.sees('[aria-label="Schedule often"]')).get_by_role("button", name="Edit…").click()
    sheet = await looker.sees(".sheet")
    every = sheet.get_by_label("Or every")
    await expect(every).to_have_value("1h30min")
    await expect(sheet.locator("[data-ticks] li")).to_have_count(5)
    await every.fill("2 h 15 min")
    await expect(sheet.locator("pre")).to_contain_text("--every 2h15min")
    assert_parses(await sheet.locator("pre").inner_text())
    await expect(sheet.locator("[data-ticks] li")).to_have_count(5)
    await sheet.get_by_role("button", name="Put").click()
    await looker.sees(".toast", "often put")
    assert (await shop.engine.schedules.get("often")).every == 135 * shops.MINUTE
    await looker.sees('[aria-label="Schedules"] td', "every 2 h 15 min")


async def test_a_stretch_of_the_overview_is_chosen_by_dragging(shop, site, looker):
    await shops.order(shop, 88391, 1_200)
    await shops.count(shop, 5 * shops.MINUTE, 40, 3)
    await looker.open("/?span=1h")
    bars = await looker.sees('[aria-label="How things go"] svg.bars')
    box = await bars.bounding_box()
    assert box is not None
    await looker.page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 20)
    await looker.page.mouse.down()
    await looker.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 20, steps=3)
    await expect(looker('[aria-label="How things go"] .legend')).to_contain_text("43 runs ended, 3 failed")
    await looker.page.mouse.up()
    await expect(looker("h1")).to_have_text("Runs")
    assert "q=ended%3A2026-11-11T" in looker.page.url


async def test_what_others_do_is_seen_on_the_screens_of_the_house(shop, site, looker):
    """Also where no number of runs changes: a schedule that is paused, an event that is queued, what was done."""
    await shop.engine.schedules.put("nightly", shops.quick, {"order": "o-1"}, cron="30 2 * * *")
    for path, before in (("/schedules", "nightly"), ("/events", "No event is queued"), ("/audit", "declare limit")):
        await looker.open(path)
        await looker.sees("main", before)
        await looker.sees('[data-live="live"]')
        if path == "/schedules":
            await shop.engine.schedules.pause("nightly", by="lena")
            await looker.sees("main .s-paused", "paused")
        elif path == "/events":
            await shop.engine.publish("parcel", {"id": 7}, by="kim")
            await looker.sees("main td", "parcel")
        else:
            await shop.engine.schedules.resume("nightly", by="lena")
            await looker.sees("main td", "schedule.resume")
        assert len([url for url in looker.asked if url.partition("?")[0].endswith(f"/api/v1{path}")]) == 1


async def test_an_event_is_published_to_the_run_that_waits(shop, site, looker):
    await looker.open("/events")
    await looker.page.get_by_role("button", name="Publish…").click()
    sheet = await looker.sees(".sheet")
    await sheet.get_by_label("Name").fill("parcel")
    await sheet.get_by_label("Payload").fill('{"id": 7}')
    await sheet.get_by_role("button", name="Publish", exact=True).click()
    await looker.sees(".toast", "parcel is queued")
    await looker.page.get_by_role("link", name="parcel").click()
    await expect(await looker.sees('[aria-label="Event parcel"]')).to_contain_text('{"id":7}')
    assert await looker.violations() == []


async def test_deploys_group_blocked_runs_with_what_to_paste_and_recover_them(blocked_shop, own_place, looker):
    found = [
        {"workflow": "checkout", "count": 2, "first": "order-88412", "said": "at charge history has reserve_stock"}
    ]
    check = Audit(actor="lena", action="check", detail=json.dumps({"runs": 7, "fit": 5, "groups": found}))
    await put_on_record(open_store(own_place), check, "shop.main:engine")
    async with served(blocked_shop) as site:
        looker.site.port = site.port
        await looker.open("/deploys")
        blocked = await looker.sees(".blockedgroup")
        await expect(blocked).to_contain_text("1 run of checkout")
        parted = blocked.locator(".parted tbody tr")
        await expect(parted.first).to_contain_text("reserve_stock")
        await expect(parted.first).to_contain_text("charge")
        await expect(blocked.locator("pre.code .hit")).to_contain_text('await ctx.step(charge, "o-88412", 10)')
        report = looker('[aria-label="Checks"] tbody tr')
        await expect(report).to_contain_text("2 of checkout, first order-88412: at charge history has reserve_stock")
        await expect(report).to_contain_text("2 would be blocked")
        await expect(report).to_contain_text("lena")
        await blocked.locator(".paste").first.get_by_role("button", name="copy").click()
        pasted = await looker.page.evaluate("navigator.clipboard.readText()")
        assert pasted == 'if ctx.patched("add-charge"):'
        await blocked.get_by_role("button", name="Recover 1 run after the deploy…").click()
        await (await looker.sees(".sheet")).get_by_label("Reason").fill("v4 is out")
        await looker.press("Enter")
        await looker.sees(".toast", "order-88412 recovered")
        versions = looker('[aria-label="Versions"] tr', "checkout")
        await expect(versions).to_contain_text(shops.checkout_after.fingerprint[:10])
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
    await looker.page.get_by_label("From").fill("-1d")
    await looker.page.get_by_label("Before").fill("2026-11-01")
    await looker.press("Enter")
    await looker.sees(".empty", "Nothing like this is on record")
    await looker.page.get_by_role("button", name="Copy as CLI").click()
    assert_parses(await looker.page.evaluate("navigator.clipboard.readText()"))
    async with looker.page.expect_download() as saved:
        await looker.page.get_by_role("link", name="Export").click()
    assert len(Path(await (await saved.value).path()).read_text().splitlines()) == 3
    site.who = Principal("vera", "viewer")
    await looker.open("/audit")
    await expect(looker(".seal")).to_have_text("chain verified by the server")
    assert await looker.violations() == []


async def test_a_chain_that_is_read_too_fast_for_the_server_is_read_on(shop, site, looker):
    """The rows of a long trail are many requests: one that the server puts off is asked again."""
    asked = []

    async def put_off(route: Any) -> None:
        asked.append(route.request.url)
        if len(asked) > 1:
            await route.continue_()
        else:
            await route.fulfill(status=429, content_type="application/problem+json", body='{"title": "Too many"}')

    await looker.page.route("**/api/v1/audit/chain*", put_off)
    await looker.open("/audit")
    await looker.sees(".seal", "chain verified in this browser")
    assert len(asked) == 2


async def test_rows_of_every_screen_are_gone_through_by_letters(shop, site, looker):
    """FACES 5: j and k move, enter opens."""
    await shop.engine.schedules.put("by-night", shops.on_record, cron="30 2 * * *")
    await shop.engine.schedules.put("hourly", shops.on_record, cron="0 * * * *")
    await shop.engine.schedules.trigger("by-night")
    await shop.settle()
    await looker.open("/schedules")
    await looker.sees("tbody tr", "hourly")
    await looker.press("j", "j")
    await expect(looker("tbody tr", "hourly").get_by_role("link", name="hourly")).to_be_focused()
    await looker.press("k", "Enter")
    await expect((await looker.sees('[aria-label="Schedule by-night"]')).locator(".squares a.sq")).to_have_count(1)


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


async def test_an_admin_makes_and_revokes_tokens_in_the_settings(shop, site, looker):
    await looker.open("/settings")
    await (await looker.sees('[aria-label="Tokens"]')).get_by_role("button", name="New token…").click()
    sheet = await looker.sees(".sheet")
    await sheet.get_by_label("Name").fill("the scraper")
    await sheet.get_by_label("Role").select_option("reader")
    assert_parses(await sheet.locator("pre").inner_text())
    await sheet.get_by_label("Name").press("Enter")
    await expect(sheet.locator("pre")).to_contain_text("hf_")
    await sheet.get_by_role("button", name="Done").click()
    row = await looker.sees('[aria-label="Tokens"] tbody tr', "the scraper")
    await expect(row).to_contain_text("live")
    assert await looker.violations() == []
    await row.get_by_role("button", name="Revoke…").click()
    await (await looker.sees(".sheet")).get_by_label("Reason").press("Enter")
    await expect(row).to_contain_text("revoked")
    site.who = Principal("vera", "viewer")
    await looker.open("/settings")
    await looker.sees('[aria-label="Tokens"]', "an admin's to say")


async def test_settings_and_saved_views_are_kept_in_the_browser(shop, site, looker):
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    await looker.open("/settings")
    await looker.page.get_by_role("radio", name="Dark").check()
    await looker.page.get_by_role("radio", name="Compact").check()
    await looker.page.get_by_label("Time zone").fill("Asia/Tokyo")
    await looker.press("Enter")
    await looker.sees(".toast", "Times in Asia/Tokyo")
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
    await expect(looker(".calls li", "pack")).to_be_visible()
    assert await looker.violations() == []
    await looker('.graph a[aria-label^="charge"]').click()
    await expect(looker(".step h2")).to_have_text("charge")
