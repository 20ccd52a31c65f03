"""More of the list and of one run in a browser: bars over time, folds, zoom, code, chains that are checked there."""

from __future__ import annotations

import hashlib
import re
import time
from contextlib import AsyncExitStack
from pathlib import Path

import apsw
import psycopg
import pytest
from playwright.async_api import expect
from tests.support.waiting import eventually
from tests.web.browser import shop as shops
from tests.web.browser.conftest import served

from holdfast.contract.rows import Status
from holdfast.looking import LocalDesk
from holdfast.web import Principal

pytestmark = pytest.mark.web


async def test_bars_show_what_ended_and_a_stretch_is_chosen_by_dragging_or_by_keys(shop, site, looker):
    await shops.count(shop, 2 * shops.MINUTE, 2, 3)
    await shops.count(shop, 20 * shops.HOUR, 7, 0)
    await looker.open("/runs")
    bars = await looker.sees("svg.bars")
    assert "12, of them 3 failed" in (await bars.get_attribute("aria-label") or "")
    box = await bars.bounding_box()
    assert box is not None
    await looker.page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 20)
    await looker.page.mouse.down()
    await looker.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 20)
    await expect(looker(".hist .brush")).to_be_visible()
    await looker.page.mouse.up()
    await expect(looker(".tok", "ended")).to_be_visible()
    await expect(looker("svg.bars")).to_have_attribute("aria-label", re.compile("5, of them 3 failed"))
    await looker.sees(".notice", "No run fits")
    await looker.open("/runs")
    await (await looker.sees("svg.bars")).focus()
    await looker.press("ArrowLeft", "Shift+ArrowLeft", "Enter")
    await expect(looker(".tok", "ended")).to_be_visible()
    assert await looker.violations() == []


async def test_the_list_says_how_far_runs_have_come(shop, site, looker):
    await shops.the_order(shop)
    await looker.open("/runs")
    await expect((await looker.row("order-88405")).locator(".c-prog")).to_contain_text("4 of 5 steps")
    await expect(looker('tr[data-run="order-88405"] .prog .c')).to_have_count(4)
    await looker.page.get_by_role("button", name="Other ways to copy").click()
    await looker.page.get_by_role("menuitem", name="Copy as curl").click()
    copied = await looker.page.evaluate("navigator.clipboard.readText()")
    assert "/workflows/api/v1/runs" in copied


async def test_long_loops_are_folded_and_the_timeline_is_zoomed(shop, site, looker):
    await shop.engine.start(shops.poll, 9, id="poll-1")
    await shop.settle()
    await looker.open("/runs/poll-1")
    await expect(looker(".row.more")).to_have_text("4 earlier…")
    await expect(looker(".row", "iteration")).to_have_count(5)
    await expect(looker(".row", "fetch")).to_have_count(1)
    await looker(".row.more button").click()
    await expect(looker(".row", "iteration")).to_have_count(9)
    await looker.page.get_by_role("button", name="Unfold iteration 2").click()
    await expect(looker(".row", "fetch")).to_have_count(2)
    await looker.page.get_by_role("button", name="Fold ask").click()
    await expect(looker(".row")).to_have_count(1)
    await looker.press("+")
    await expect(looker(".tl.zoomed")).to_be_visible()
    assert "zoom=20-80" in looker.page.url
    await looker.press("ArrowRight")
    await expect(looker.page).to_have_url(re.compile("zoom=35-95"))
    await looker.page.get_by_role("button", name="Whole run").click()
    await expect(looker(".tl.zoomed")).to_have_count(0)
    axis = await looker(".axis svg").first.bounding_box()
    assert axis is not None
    await looker.page.mouse.move(axis["x"] + 100, axis["y"] + 10)
    await looker.page.mouse.down()
    await looker.page.mouse.move(axis["x"] + 300, axis["y"] + 10)
    await looker.page.mouse.up()
    await expect(looker(".tl.zoomed")).to_be_visible()
    assert await looker.violations() == []


async def test_many_calls_of_one_name_are_folded(shop, site, looker):
    await shop.engine.start(shops.lengthy, 30, id="long")
    await shop.settle()
    await looker.open("/runs/long")
    await expect(looker(".row.more")).to_have_text("25 earlier…")
    await expect(looker(".row:not(.more)")).to_have_count(5)
    await looker.open("/runs/long?step=release_stock%233")
    await expect(looker(".step h2")).to_have_text("release_stock#3")
    await expect(looker(".row.sel")).to_contain_text("release_stock#3")


async def test_the_code_of_an_error_and_of_a_wait_is_shown_with_its_lines(shop, site, looker):
    await shops.failed(shop)
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    await looker.open("/runs/order-88409")
    await expect(await looker.sees(".step .code .hit")).to_contain_text('raise CardDeclined("insufficient funds")')
    await expect(looker(".step .code .near").first).to_be_visible()
    await looker.open("/runs/order-88391")
    await expect(await looker.sees(".side .code .hit")).to_contain_text('await ctx.receive("approved"')
    looker.site.who = Principal("vera", "viewer")
    await looker.open("/runs/order-88391")
    await looker.sees(".side")
    await expect(looker(".side .code")).to_have_count(0)


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
async def test_a_blocked_run_is_recovered(blocked_shop, looker, by):
    async with served(blocked_shop) as site:
        looker.site.port = site.port
        await looker.open("/runs/order-88412")
        await expect(await looker.sees(".whybox")).to_contain_text("Blocked")
        recover = looker(".head .end").get_by_role("button", name="Recover…")
        if by == "mouse":
            await recover.click()
        else:
            await looker.tab_to(recover)
            await looker.press("Enter")
        sheet = await looker.sees(".sheet")
        await expect(sheet.locator("pre")).to_contain_text("holdfast recover order-88412")
        await sheet.get_by_label("Reason").fill("v4 is out")
        await sheet.get_by_label("Reason").press("Enter")
        await expect(looker(".toast").first).to_contain_text("order-88412 recovered")
        [row] = (await LocalDesk(blocked_shop.engine.store).audit(target="order-88412", action="recover")).items
        assert (row.actor, row.detail["reason"]) == ("kim", "v4 is out")
        await blocked_shop.until("order-88412", lambda head: head.status is Status.BLOCKED)
        await looker.page.goto("about:blank")


TAMPERED = {
    "nothing": "",
    "one byte of what a run put on record": "UPDATE evidence SET data = replace(data, '1', '2') WHERE n = 2",
    "one byte of the audit trail": "UPDATE audit SET actor = 'kin' WHERE actor = 'kim' AND n = 2",
}


def tamper(database: str, statement: str) -> None:
    """Change what is stored behind the back of the engine."""
    if database.startswith("postgresql"):
        url, _, schema = database.rpartition("schema=")
        with psycopg.connect(url.rstrip("?&"), options=f"-c search_path={schema}") as server:
            server.execute(statement.encode() or b"SELECT 1")
        return
    with apsw.Connection(database.removeprefix("sqlite:///")) as file:
        file.execute(statement)
    file.close()


@pytest.fixture(params=["file", "server"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the address of a database that others than the engine can open."""
    found: str = f"sqlite:///{tmp_path / 'shop.db'}"
    return found if request.param == "file" else request.getfixturevalue("empty_database")


@pytest.mark.parametrize("change", TAMPERED)
async def test_chains_are_checked_in_the_browser_and_agree_with_what_the_engine_says(database: str, looker, change):
    """FACES 10, line 12."""
    async with AsyncExitStack() as stack:
        shop = await shops.opened(stack, database)
        site = await stack.enter_async_context(served(shop))
        looker.site.port = site.port
        await shop.engine.start(shops.on_record, id="parcel-1")
        await shop.settle()
        for number in range(3):
            await shop.engine.get("parcel-1").set_attributes({"n": number}, by="kim", reason='\u2028 "é" \\')
        tamper(database, TAMPERED[change])
        await looker.open("/runs/parcel-1?tab=record")
        await looker.sees("#tabpanel .seal >> nth=1")
        seals = await looker("#tabpanel .seal").all_text_contents()
        verdicts = [await shop.engine.audit.verify(), await shop.engine.audit.verify_evidence("parcel-1")]
        assert [verdict.ok for verdict in verdicts] == [change != "one byte of the audit trail", "run" not in change]
        for said, verdict in zip(seals, verdicts, strict=True):
            words = "chain verified" if verdict.ok else f"chain broken at row {verdict.broken_at},"
            assert said.startswith(words)
            assert said.endswith("in this browser")
        await looker.open("/audit")
        assert await (await looker.sees("main .seal")).text_content() == seals[0]
        await looker.open("/runs/parcel-1?tab=record")
        looker.site.who = site.who = Principal("rita", "reader")
        await looker.page.reload()
        await looker.sees("#tabpanel .seal >> nth=1")
        for said in await looker("#tabpanel .seal").all_text_contents():
            assert said.endswith("by the server")
        await looker.page.goto("about:blank")


async def test_the_hash_of_the_browser_is_that_of_everyone(shop, site, looker):
    await looker.open("/runs")
    await looker.sees(".notice")
    for text in ("", "abc", "é\u2028", "x" * 55, "x" * 56, "x" * 64, "y" * 1_000):
        made = await looker.page.evaluate(
            "async text => (await import(document.querySelector('script[type=module]').src.replace('main.js', "
            "'run/chain.js'))).sha256(text)",
            text,
        )
        assert made == hashlib.sha256(text.encode()).hexdigest()


async def test_opening_the_list_asks_for_each_thing_once_and_for_the_rows_first(shop, site, looker):
    """Nothing stands before the rows, and what the stream begins with is not read again."""
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    began = time.monotonic()
    await looker.open("/runs")
    await looker.sees('[data-live="live"]')
    late = time.monotonic() - began > 3  # a page that has no stream for some seconds reads again
    await looker.sees(".hist rect, .list .prog, .list .small")
    await looker.page.wait_for_timeout(1_500)  # in which a page that reads again would have
    asked = [url.partition("/api/v1")[2].partition("?")[0] for url in looker.asked if "/api/v1" in url]
    once = ["/", "/counts", "/counts/runs", "/figures", "/letters/groups", "/live", "/progress", "/runs"]
    assert sorted(set(asked) if late else asked) == once
    assert set(asked[:3]) == {"/", "/letters/groups", "/runs"}


async def test_a_list_that_is_looked_at_counts_no_step_twice(shop, site, looker):
    """What is over is asked for once: a page that only changes elsewhere asks for the progress of open runs."""
    await shop.engine.start(shops.quick, {"order": "o-1"}, id="order-1")
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    await looker.open("/runs")
    await looker.sees('tr[data-run="order-1"] .prog')
    await looker.sees('[data-live="live"]')
    before = len(looker.asked)
    await shop.engine.get("order-88391").pause(by="lena")
    await expect(await looker.row("order-88391")).to_contain_text("Paused by lena")

    async def asked_again() -> bool:
        return any("/progress" in url for url in looker.asked[before:])

    await eventually(asked_again)
    later = [url for url in looker.asked[before:] if "/progress" in url]
    assert all("order-1&" not in url and not url.endswith("run=order-1") for url in later)
