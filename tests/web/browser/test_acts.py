"""Every act on a run in a browser, by clicking and by keyboard alone; each leaves one row of the audit trail."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect
from tests.web.browser import shop as shops

from holdfast.contract.rows import Status
from holdfast.looking import LocalDesk
from holdfast.web import Principal

pytestmark = pytest.mark.web


async def waiting(shop: shops.Shop) -> str:
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    return "order-88391"


async def paused(shop: shops.Shop) -> str:
    run_id = await waiting(shop)
    await shop.engine.get(run_id).pause(by="lena")
    await shop.settle()
    return run_id


async def failed(shop: shops.Shop) -> str:
    await shops.order(shop, 88409, -1)
    await shop.settle()
    for _ in range(5):
        await shop.engine.advance(20 * shops.SECOND)
    return "order-88409"


async def completed(shop: shops.Shop) -> str:
    await shop.engine.start(shops.quick, {"order": "o-1"}, id="order-1")
    await shop.settle()
    return "order-1"


async def retrying(shop: shops.Shop) -> str:
    await shops.the_order(shop)
    return "order-88405"


CASES: dict[str, tuple[Any, str]] = {
    "cancel": (waiting, "Cancel"),
    "pause": (waiting, "Pause"),
    "resume": (paused, "Resume"),
    "retry": (failed, "Retry"),
    "rerun": (completed, "Rerun"),
    "terminate": (waiting, "Terminate"),
    "nudge": (retrying, "Try now"),
}


async def noted(shop: shops.Shop, run_id: str, action: str) -> list[tuple[str, str]]:
    rows = (await LocalDesk(shop.engine.store).audit(target=run_id, action=action)).items
    return [(row.actor, row.detail.get("reason", "")) for row in rows if row.actor == "kim"]


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
@pytest.mark.parametrize("action", CASES)
async def test_an_act_says_what_it_does_and_leaves_one_row_of_the_audit_trail(shop, site, looker, action, by):
    make, word = CASES[action]
    run_id = await make(shop)
    await looker.open(f"/runs/{run_id}")
    await looker.sees(".whybox")
    await choose(looker, word, by)
    sheet = await looker.sees(".sheet")
    await expect(sheet.locator("pre")).to_contain_text(f"holdfast {action} {run_id}")
    reason = sheet.get_by_label("Reason")
    await reason.fill("INC-7")
    confirm = sheet.get_by_role("button", name=word, exact=True)
    await expect(confirm).to_be_enabled()
    if by == "mouse":
        await confirm.click()
    else:
        await reason.press("Enter")
    await expect(looker(".toast").first).to_contain_text(run_id)
    assert await noted(shop, run_id, action) == [("kim", "INC-7")]


async def choose(looker: Any, word: str, by: str) -> None:
    """Open the sheet of an act: by its button if it has one, else from the menu of all acts."""
    head = looker(".head .end")
    button = head.get_by_role("button", name=f"{word}…", exact=True)
    if await button.count() == 0:
        await (head.get_by_role("button", name="More").click() if by == "mouse" else looker.press("a"))
        button = head.get_by_role("menuitem", name=f"{word}…", exact=True)
    if by == "mouse":
        await button.click()
    else:
        await looker.tab_to(button)
        await looker.press("Enter")


async def test_a_paused_run_is_resumed_by_undo(shop, site, looker):
    run_id = await waiting(shop)
    await looker.open(f"/runs/{run_id}")
    await looker.sees(".whybox")
    await looker.press("p")
    await (await looker.sees(".sheet")).get_by_label("Reason").press("Enter")
    undo = looker(".toast").get_by_role("button", name="Undo")
    await expect(undo).to_be_visible()
    shop.clock.advance(shops.SECOND)  # a run that waits again since that very instant would be as it was
    await undo.click()
    await shop.until(run_id, lambda head: head.status is not Status.PAUSED)
    await expect(looker(".head .pill")).to_have_text("Waiting")


async def test_what_a_role_may_not_do_is_shown_disabled_with_the_role_it_needs(shop, site, looker):
    run_id = await waiting(shop)
    site.who = Principal("vera", "viewer")
    await looker.open(f"/runs/{run_id}")
    await looker.sees(".whybox")
    pause = looker(".head .end").get_by_role("button", name="Pause…")
    await expect(pause).to_be_disabled()
    await expect(pause).to_have_attribute("title", "Needs the role operator")


async def test_escape_closes_a_sheet_and_gives_the_focus_back(shop, site, looker):
    run_id = await waiting(shop)
    await looker.open(f"/runs/{run_id}")
    cancel = looker(".head .end").get_by_role("button", name="Cancel…")
    await cancel.click()
    await looker.sees(".sheet")
    await looker.press("Escape")
    await expect(looker(".sheet")).to_have_count(0)
    await expect(cancel).to_be_focused()


async def test_escape_closes_a_sheet_and_nothing_behind_it_though_that_changes_meanwhile(shop, site, looker):
    """What is behind it is drawn again with each change, and has a meaning of its own for the key."""
    await shops.order(shop, 88391, 1_200)
    await shops.order(shop, 88392, 1_200)
    await shop.settle()
    await looker.open("/runs")
    await looker.sees('[data-live="live"]')
    await (await looker.row("order-88391")).get_by_role("checkbox").check()
    await looker.press("p")
    await looker.sees(".sheet")
    await shop.engine.get("order-88392").pause(by="lena")
    await expect(await looker.row("order-88392")).to_contain_text("Paused by lena")
    await looker.press("Escape")
    await expect(looker(".sheet")).to_have_count(0)
    await expect((await looker.row("order-88391")).get_by_role("checkbox")).to_be_checked()


async def test_attributes_are_edited(shop, site, looker):
    run_id = await waiting(shop)
    await looker.open(f"/runs/{run_id}")
    await looker(".side").get_by_role("button", name="edit").click()
    sheet = await looker.sees(".sheet")
    await sheet.get_by_label("Attributes").fill('{"customer": "c-1", "vip": true}')
    await sheet.get_by_role("button", name="Set 2 attributes").click()
    await expect(looker(".side .chips")).to_contain_text("vip true")
    assert (await shop.engine.get(run_id).describe()).attributes == {"customer": "c-1", "vip": True}


async def test_a_message_is_sent_to_a_run_that_waits_for_it(shop, site, looker):
    run_id = await waiting(shop)
    await looker.open(f"/runs/{run_id}?tab=messages")
    await looker.sees("#tabpanel .empty")
    await looker.press("s")
    sheet = await looker.sees(".sheet")
    await expect(sheet.get_by_label("Name")).to_have_value("approved")
    await sheet.get_by_label("Payload").fill("{")
    await expect(sheet.get_by_role("button", name="Send", exact=True)).to_be_disabled()
    await sheet.get_by_label("Payload").fill('{"by": "kim"}')
    await sheet.get_by_role("button", name="Send", exact=True).click()
    await expect(looker(".toast").first).to_contain_text("Message approved sent")
    await shop.until(run_id, lambda head: "approved" not in (head.wait or ""))


async def test_a_group_of_dead_letters_is_replayed_one_first_then_all(shop, site, looker):
    for number in (88407, 88408, 88409):
        await shops.order(shop, number, -1)
    await shop.settle()
    for _ in range(5):
        await shop.engine.advance(20 * shops.SECOND)
    await looker.open("/letters")
    await (await looker.sees("button", "Replay 3…")).click()
    sheet = await looker.sees(".sheet")
    await expect(sheet.locator("[data-plan]")).to_contain_text("3 letters of fulfil, step charge, CardDeclined")
    await sheet.get_by_label("Reason").fill("the bank is back")
    await sheet.get_by_role("button", name="Try one first").click()
    await expect(looker(".toast").first).to_contain_text("1 letter replayed")
    await expect(looker(".tbl").first).to_contain_text("2")
    await sheet.get_by_role("button", name="Close").last.click()
    await (await looker.sees("button", "Replay 2…")).click()
    await (await looker.sees(".sheet")).get_by_label("Reason").press("Enter")
    await expect(looker(".toast").last).to_contain_text("2 letters replayed")
    await expect(looker(".notice")).to_contain_text("No dead letters")


async def test_a_viewer_sees_the_page_without_payloads(shop, site, looker):
    await shops.the_order(shop)
    site.who = Principal("vera", "viewer")
    await looker.open("/runs/order-88405")
    await expect(await looker.sees(".side")).to_contain_text("hidden")
    await expect(looker(".row")).to_have_count(8)
    assert "kettle" not in await looker.page.content()
