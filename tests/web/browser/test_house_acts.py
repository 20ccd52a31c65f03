"""Every act of the house in a browser, by clicking and by keyboard alone; each leaves one row of the audit trail."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from playwright.async_api import Locator, expect
from tests.web.browser import shop as shops

from holdfast.contract.limits import LimitSpec
from holdfast.limits import Limit
from holdfast.looking import LocalDesk

pytestmark = pytest.mark.web


class Case(NamedTuple):
    """An act: where its button is, what is given beside the reason, and what is on record of it."""

    screen: str
    button: str
    confirm: str
    action: str
    given: dict[str, str]
    said: str
    """What is told when it is done."""


NIGHTLY = "/schedules?id=nightly"
CASES = {
    "trigger": Case(NIGHTLY, "Trigger…", "Trigger", "schedule.trigger", {}, "nightly triggered"),
    "pause": Case(NIGHTLY, "Pause…", "Pause", "schedule.pause", {}, "nightly paused"),
    "resume": Case(NIGHTLY, "Resume…", "Resume", "schedule.resume", {}, "nightly resumed"),
    "backfill": Case(
        NIGHTLY, "Backfill…", "Backfill 3 runs", "schedule.backfill",
        {"Ticks from": "2026-11-01T00:00:00Z", "and before": "2026-11-04T00:00:00Z"}, "3 runs started",
    ),
    "edit": Case(NIGHTLY, "Edit…", "Put", "schedule.put", {"Cron": "0 3 * * *"}, "nightly put"),
    "delete": Case(NIGHTLY, "Delete…", "Delete", "schedule.delete", {}, "nightly deleted"),
    "publish": Case("/events", "Publish…", "Publish", "publish", {"Name": "parcel"}, "parcel is queued"),
    "token": Case("/settings", "New token…", "Make it", "token.create", {"Name": "scraper"}, ""),
    "change a limit": Case(
        "/workers", "Change…", "Change", "limit.override", {"At once": "3", "May begin": "10", "in, as": "1min"},
        "The limit openai has these numbers now",
    ),
    "restore a limit": Case(
        "/workers", "Restore…", "Restore", "limit.override", {}, "The limit openai has its declared numbers again"
    ),
    "start": Case("/start?workflow=lengthy", "", "Start", "start", {"steps": "2"}, "started"),
}  # fmt: skip


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
@pytest.mark.parametrize("act", CASES)
async def test_an_act_of_the_house_leaves_one_row_of_the_audit_trail(shop, site, looker, act, by):
    """FACES 10, lines 7 and 22."""
    case = CASES[act]
    await shop.engine.schedules.put("nightly", shops.quick, {"order": "o-1"}, cron="30 2 * * *", by="lena")
    if act == "resume":
        await shop.engine.schedules.pause("nightly", by="lena")
    if act == "restore a limit":
        await shop.engine.limits.override("openai", Limit(name="openai", at_once=5), by="lena")
    await looker.open(case.screen)
    sheet = looker("main form.startform")
    if case.button:
        await push(looker, looker("main").get_by_role("button", name=case.button).first, by)
        sheet = await looker.sees(".sheet")
    for label, text in {**case.given, "Reason": "INC-7"}.items():
        await write(looker, sheet.get_by_label(label, exact=label == "Name" and act == "publish"), text, by)
    confirm = sheet.get_by_role("button", name=case.confirm, exact=True)
    await expect(confirm).to_be_enabled()
    await push(looker, confirm, by)
    if case.said:
        await expect(looker(".toast").first).to_contain_text(case.said)
    else:
        await expect(sheet.locator("pre")).to_contain_text("hf_")
    rows = (await LocalDesk(shop.engine.store).audit(action=case.action, actor="kim")).items
    many = 3 if act == "backfill" else 1  # each run that is started is on record by itself
    assert [row.detail.get("reason") for row in rows] == ["INC-7"] * many
    if case.action == "limit.override":
        changed = act == "change a limit"
        [limit] = await shop.engine.limits()
        numbers = LimitSpec(at_once=3, rate=10, per=60_000_000) if changed else LimitSpec(at_once=1)
        assert (limit.overridden, limit.numbers) == (changed, numbers)


async def push(looker: Any, button: Locator, by: str) -> None:
    if by == "mouse":
        await button.click()
    else:
        await looker.tab_to(button)
        await looker.press("Enter")


async def write(looker: Any, field: Locator, text: str, by: str) -> None:
    if by == "mouse":
        await field.fill(text)
        return
    await looker.tab_to(field)
    await looker.press("Control+a")
    await looker.page.keyboard.type(text)


async def test_a_token_is_revoked_by_keyboard_alone(shop, site, looker):
    await looker.open("/settings")
    await push(looker, looker.page.get_by_role("button", name="New token…"), "keyboard")
    await write(looker, looker(".sheet").get_by_label("Name"), "scraper", "keyboard")
    await looker.press("Enter")
    await looker.sees(".sheet pre", "hf_")
    await looker.press("Escape")
    row = await looker.sees('[aria-label="Tokens"] tbody tr', "scraper")
    await push(looker, row.get_by_role("button", name="Revoke…"), "keyboard")
    await write(looker, looker(".sheet").get_by_label("Reason"), "leaked", "keyboard")
    await looker.press("Enter")
    await expect(row).to_contain_text("revoked")
    [done] = (await LocalDesk(shop.engine.store).audit(action="token.revoke")).items
    assert (done.actor, done.detail.get("reason")) == ("kim", "leaked")


async def test_what_is_typed_key_by_key_keeps_its_spaces(shop, site, looker):
    """A cron and the name of an act have some; what stands around them is not meant."""
    await shop.engine.start(shops.on_record, id="parcel-1")
    await shop.settle()
    await shop.engine.get("parcel-1").set_attributes({"kg": 2.4}, by="kim")
    await looker.open("/audit")
    await write(looker, looker.page.get_by_label("What was done"), " set attributes ", "keyboard")
    await looker.press("Enter")
    await expect(looker("main tbody tr")).to_have_count(1)
    await shop.engine.schedules.put("often", shops.on_record, every=90 * shops.MINUTE)
    await looker.open("/schedules?id=often")
    await push(looker, looker("main").get_by_role("button", name="Edit…"), "keyboard")
    every = looker(".sheet").get_by_label("Or every")
    await write(looker, every, "2 h 15 min", "keyboard")
    await expect(every).to_have_value("2 h 15 min")
    await expect(looker(".sheet pre")).to_contain_text("--every 2h15min")
