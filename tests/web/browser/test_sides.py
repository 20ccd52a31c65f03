"""The other sides of a run and of the house: what was cut away, families, requests, pauses, what is deleted."""

from __future__ import annotations

from datetime import timedelta

import pytest
from playwright.async_api import expect
from tests.web.browser import shop as shops

from holdfast.contract.rows import Status
from holdfast.looking import LocalDesk

pytestmark = pytest.mark.web


async def test_what_a_retry_cut_away_is_shown_beside_what_came_after_it(shop, site, looker):
    await shops.failed(shop)
    await shop.engine.get("order-88409").retry(by="kim")
    await shop.settle()
    await looker.open("/runs/order-88409")
    charge = looker('.row[data-path="charge"]')
    await expect(charge.locator("rect[opacity]")).to_have_count(5)  # the attempts that were cut away
    await expect(looker(".key")).to_contain_text("cut away")
    await looker.page.get_by_role("tab", name="History").click()
    await looker.sees(".fact")
    before = await looker(".fact").count()
    await looker(".histbar").get_by_label("cut away, too").check()
    await expect(looker(".fact.ghost").first).to_contain_text("cut away")
    assert "archived=yes" in looker.page.url
    assert await looker(".fact").count() > before
    await looker(".histbar").get_by_label("failed only").check()
    await looker(".histbar input[type=search]").fill("charge")
    await expect(looker(".fact").first).to_contain_text("CardDeclined")
    address = looker.page.url
    assert "failed=yes" in address
    assert "find=charge" in address
    shown = await looker(".fact").count()
    await looker.page.goto(address)
    await expect(looker(".fact")).to_have_count(shown)
    assert await looker.violations() == []


async def test_the_children_of_a_run_are_a_tree_that_is_live(shop, site, looker):
    await shop.engine.start(shops.caravan, id="caravan")
    await shop.settle()
    await looker.open("/runs/caravan?tab=children")
    rows = looker("#tabpanel tbody tr")
    await expect(rows).to_have_count(3)
    await expect(rows.nth(1)).to_contain_text("ship-1")
    await looker.page.get_by_role("button", name="Fold moving-1").click()
    await expect(rows).to_have_count(2)
    await looker.page.get_by_role("button", name="Unfold moving-1").click()
    await expect(looker('#tabpanel tr[data-run="ship-1"]')).to_contain_text("picked_up")
    await shop.engine.get("ship-1").send("picked_up")
    await shop.settle()
    await expect(looker('#tabpanel tr[data-run="ship-1"]')).to_contain_text("Completed")
    await expect(looker('#tabpanel tr[data-run="moving-1"]')).to_contain_text("Completed")
    await looker("#tabpanel a", "As a list").click()
    await looker.row("moving-1")
    await expect(looker("tbody tr")).to_have_count(2)
    assert await looker.violations() == []


async def test_a_request_is_sent_and_its_reply_is_shown(shop, site, looker):
    await shop.engine.start(shops.permits, id="permits")
    await shop.settle()
    await looker.open("/runs/permits?tab=messages")
    await looker.sees("#tabpanel .empty")
    await looker.press("s")
    sheet = await looker.sees(".sheet")
    await sheet.get_by_label("Payload").fill('"shed"')
    await sheet.get_by_label("A request").check()
    await expect(sheet.locator("pre")).to_contain_text("holdfast ask permits permit")
    await sheet.get_by_role("button", name="Send", exact=True).click()
    await expect(sheet.locator('[aria-label="Reply"]')).to_have_text('"granted: shed"')
    await looker.press("Escape")
    await expect(looker("#tabpanel th", "Replied")).to_have_count(1)
    rows = (await LocalDesk(shop.engine.store).audit(target="permits")).items
    assert "kim" in {row.actor for row in rows}


@pytest.mark.parametrize("kind", ["queue", "limit"])
async def test_a_queue_and_a_limit_are_paused_and_resumed(shop, site, looker, kind):
    await shops.in_hand(shop)
    name = {"queue": "gpu", "limit": "openai"}[kind]
    await looker.open("/workers")
    for verb, other in (("Pause", "Resume"), ("Resume", "Pause")):
        await looker.page.get_by_role("button", name=f"{verb}… {kind} {name}").click()
        sheet = await looker.sees(".sheet")
        await expect(sheet.locator("pre")).to_contain_text(f"holdfast {verb.lower()} --{kind} {name}")
        await sheet.get_by_label("Reason").fill("INC-7")
        await sheet.get_by_label("Reason").press("Enter")
        await expect(looker.page.get_by_role("button", name=f"{other}… {kind} {name}")).to_be_visible()
    rows = (await LocalDesk(shop.engine.store).audit(actor="kim")).items
    assert [row.detail["reason"] for row in rows] == ["INC-7", "INC-7"]


async def test_what_is_old_is_counted_and_deleted(shop, site, looker):
    await shops.failed(shop)
    for letter in await LocalDesk(shop.engine.store).letters():
        await shop.engine.dead_letters.acknowledge(letter.id)
    shop.clock.advance(timedelta(days=2))
    await looker.open("/letters")
    await looker("button", "Purge…").click()
    sheet = await looker.sees(".sheet")
    await expect(sheet).to_contain_text("Nothing is that old")
    await sheet.get_by_label("Older than").fill("1d")
    await expect(sheet.locator("[data-plan]")).to_contain_text("3 would be deleted")
    await sheet.get_by_label("Reason").fill("a quarter is over")
    await expect(sheet.locator("pre")).to_contain_text("holdfast purge seen_letters --older-than 1d --reason")
    await sheet.get_by_role("button", name="Delete 3").click()
    await expect(looker(".toast").first).to_contain_text("3 dead letters that were seen deleted")
    assert await LocalDesk(shop.engine.store).letters(seen=None) == []


async def test_a_step_says_under_which_limit_and_in_which_queue_it_runs(shop, site, looker):
    await shops.in_hand(shop)
    await looker.open("/runs/embed-6640")
    await expect(await looker.sees(".step header")).to_contain_text("limit openai")
    await looker.open("/runs/train-0192")
    await expect(await looker.sees(".step header")).to_contain_text("queue gpu")
    await looker.open("/runs/film-5520")
    await expect(await looker.sees(".step header")).to_contain_text("heartbeat each 1 h")


async def test_failed_calls_alone_are_a_view_that_has_an_address(shop, site, looker):
    await shops.the_order(shop)
    await looker.open("/runs/order-88405")
    await looker.sees(".row")
    await looker.page.get_by_role("button", name="Failed only").click()
    await expect(looker(".row")).to_have_count(3)
    await looker.page.reload()
    await expect(looker(".row")).to_have_count(3)


async def test_letters_of_an_event_are_a_group_that_is_acted_on(shop, site, looker):
    await shop.engine.start(shops.ship, id="ship-1")
    await shop.engine.get("ship-1").send("picked_up")
    await shop.until("ship-1", lambda head: head.status is Status.COMPLETED)
    await shop.engine.get("ship-1").send("picked_up", dead_letter=True)
    await looker.open("/letters")
    await (await looker.sees("button", "Replay…")).click()
    sheet = await looker.sees(".sheet")
    await expect(sheet.locator("[data-plan]")).to_contain_text("0 can, 1 cannot: the run is completed")
    await expect(sheet.get_by_role("button", name="Replay 0")).to_be_disabled()


async def test_who_looks_faster_than_a_principal_may_is_put_off_and_served(shop, site, looker):
    await shop.engine.start(shops.lengthy, 400, id="long")
    await shop.settle()
    refused: list[str] = []

    async def refuse(route):
        if len(refused) < 3:
            refused.append(route.request.url)
            await route.fulfill(status=429, headers={"Retry-After": "1"}, body="{}")
        else:
            await route.continue_()

    await looker.page.route("**/history?after=*", refuse)
    await looker.open("/runs/long?tab=history")
    await looker.sees(".fact")
    assert len(refused) == 3
    await expect(looker(".notice.bad")).to_have_count(0)
