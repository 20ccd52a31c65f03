"""The list of runs in a browser: found, read, selected and acted on, by clicking and by keyboard alone."""

from __future__ import annotations

import pytest
from playwright.async_api import expect
from tests.web.browser import shop as shops

from holdfast.contract.rows import Status
from holdfast.looking import LocalDesk


async def test_runs_are_listed_with_why_and_found_by_a_filter(shop, site, looker):
    await shops.order(shop, 88391, 1_200, region="north")
    await shops.order(shop, 88392, 1_200, region="south")
    await shop.settle()
    await looker.open("/runs")
    await expect(await looker.row("order-88391")).to_contain_text("Waits for message approved")
    await looker.page.get_by_role("combobox", name="Filter").fill("region=south")
    await looker.press("Enter")
    await expect(looker("tbody tr")).to_have_count(1)
    await looker.row("order-88392")
    assert "q=region%3Dsouth" in looker.page.url
    await looker.page.get_by_role("button", name="Remove region=south").click()
    await expect(looker("tbody tr")).to_have_count(2)
    await looker.page.go_back()
    await expect(looker("tbody tr")).to_have_count(1)
    assert await looker.violations() == []
    assert sum(looker.scripts.values()) < 60 * 1024, looker.scripts


async def test_many_are_paused_by_keyboard_alone_after_a_dry_run(shop, site, looker):
    for number in (88391, 88392, 88393):
        await shops.order(shop, number, 1_200)
    await shop.settle()
    await shop.engine.get("order-88393").cancel(by="kim")
    await shop.settle()
    await looker.open("/runs")
    await looker.row("order-88391")
    await looker.press("j", "x", "j", "x", "j", "x", "p")
    sheet = await looker.sees(".sheet")
    await expect(sheet.locator("[data-plan]")).to_contain_text("2 can, 1 cannot: cancelled")
    reason = sheet.get_by_label("Reason")
    await reason.fill("bank down")
    await reason.press("Enter")
    await expect(looker(".toast").first).to_contain_text("2 runs paused")
    for number in (88391, 88392):
        await shop.until(f"order-{number}", lambda head: head.status is Status.PAUSED)
        await expect(await looker.row(f"order-{number}")).to_contain_text("Paused by kim")
    noted = (await LocalDesk(shop.engine.store).audit(target="order-88391")).items[0]
    assert (noted.actor, noted.action, noted.detail["reason"]) == ("kim", "pause", "bank down")


@pytest.mark.web
async def test_what_the_filter_does_not_know_is_told_and_an_empty_list_says_what_would_be_there(shop, site, looker):
    await looker.open("/runs?q=statis%3Afailed")
    await expect(looker("[role=alert]")).to_contain_text("did you mean status?")
    await looker.open("/runs?q=customer%3Dnobody")
    await expect(await looker.sees(".notice")).to_contain_text("No run fits")
