"""What screens say, and how they are laid out: advice beside a reason, true numbers, columns that can be read."""

from __future__ import annotations

import pytest
from playwright.async_api import expect
from tests.web.browser import shop as shops
from tests.web.browser.conftest import served

from holdfast.contract.rows import Status
from holdfast.web import Principal

pytestmark = pytest.mark.web


async def test_beside_the_reason_of_a_blocked_run_stands_what_to_write(blocked_shop, looker):
    async with served(blocked_shop) as site:
        looker.site.port = site.port
        await looker.open("/runs/order-88412")
        why = await looker.sees(".whybox")
        await expect(why.locator("p")).to_contain_text(
            "has a new step charge where its history goes on with reserve_stock"
        )
        await expect(why).to_contain_text(
            'Put the old code back, or put the new call under if ctx.patched("add-charge"):'
        )


async def test_a_queue_that_no_worker_serves_says_what_would(shop, site, looker):
    await shop.engine.start(shops.improve, "digits", id="train-0192")
    await shop.until("train-0192", lambda head: head.wait)
    await looker.open("/runs/train-0192")
    await expect(await looker.sees(".whybox")).to_contain_text("Engine(queues=['gpu', ...])")


async def test_a_run_says_how_many_steps_it_has_only_if_it_has_any(shop, site, looker):
    await shop.engine.start(shops.ship, id="ship-1")
    await shop.engine.start(shops.quick, {"order": "o-1"}, id="quick-1")
    await shop.settle()
    await looker.open("/runs/ship-1")
    await expect(await looker.sees(".s-run .head .wf")).to_contain_text("no steps yet")
    await looker.open("/runs/quick-1")
    await expect(await looker.sees(".s-run .head .wf")).to_contain_text("1 of 1 step")


async def test_an_attempt_that_waits_for_its_limit_has_not_begun(shop, site, looker):
    for number in (0, 1):
        await shop.engine.start(shops.index_docs, "handbook", id=f"embed-{number}")
    await shop.until("embed-0", lambda head: head.status is Status.RUNNING)
    await shop.until("embed-1", lambda head: head.wait)
    await looker.open("/runs/embed-1?step=embed")
    step = await looker.sees(".step")
    await expect(step.locator(".att td").first).to_have_text("1")
    await expect(step.locator("header")).to_contain_text("limit openai")
    await expect(step.locator("header")).not_to_contain_text("'openai'")


async def test_a_viewer_is_told_that_something_is_hidden_not_given_a_blank(shop, site, looker):
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    looker.site.who = Principal("vic", "viewer")
    await looker.open("/runs/order-88391")
    await expect(looker('.row[data-path="receive approved"]')).to_contain_text("approved")
    await expect(looker('.row[data-path="receive approved"]')).not_to_contain_text("receive")
    await expect(looker(".side .undo li").first).to_have_text("hidden")


async def test_with_many_columns_the_reason_can_still_be_read(shop, site, looker):
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    await looker.open("/runs?cols=progress,started,took,tenant,actor,version,priority,worker,updated,%3Dcustomer")
    row = await looker.row("order-88391")
    box = await row.locator(".c-why").bounding_box()
    assert box is not None
    assert box["width"] > 200
    assert not await looker.overflows()
    assert (
        len(await row.locator(".c-other code").first.inner_text()) == 13
    )  # as much of a worker's id as one knows it by


@pytest.mark.parametrize("q", ["", "?q=status%3Afailed"])
async def test_what_stands_above_the_bars_does_not_lie_over_one(shop, site, looker, q):
    await shops.failed(shop)
    await shop.engine._working().runner.figures.add()
    await looker.open(f"/runs{q}")
    await looker.sees(".hist rect.bad")
    legend = await looker(".hist .legend").bounding_box()
    assert legend is not None
    for bar in await looker(".hist rect").all():
        box = await bar.bounding_box()
        assert box is not None
        assert box["y"] >= legend["y"] + legend["height"] - 1


async def test_an_address_that_is_none_is_said_by_the_page(shop, site, looker):
    await looker.open("/nowhere")
    await expect(await looker.sees("main")).to_contain_text("There is no such page")
    assert await looker.violations() == []


async def test_what_is_to_be_typed_is_shown_as_code(shop, site, looker):
    await looker.open("/schedules")
    await expect(await looker.sees(".empty code")).to_contain_text("engine.schedules.put")


async def test_an_act_on_a_limit_is_on_record_in_words(shop, site, looker):
    await looker.open("/audit")
    declared = await looker.sees("tbody tr", "declare limit")
    await expect(declared).to_contain_text("at_once 1")
    await expect(declared).not_to_contain_text("1000000")


async def test_at_twice_the_size_the_names_of_calls_are_whole(shop, site, looker):
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    await looker.page.set_viewport_size({"width": 720, "height": 900})
    await looker.open("/runs/order-88391")
    name = (await looker.sees('.row[data-path="reserve_stock"]')).locator("code")
    assert await name.evaluate("each => each.scrollWidth <= each.clientWidth")


async def test_where_colours_are_forced_the_line_that_matters_is_still_marked(blocked_shop, looker):
    await looker.page.emulate_media(forced_colors="active")
    async with served(blocked_shop) as site:
        looker.site.port = site.port
        await looker.open("/deploys")
        for marked in (".parted .differs", ".blockedgroup .hit"):
            line = await looker.sees(marked)
            assert await line.evaluate("each => getComputedStyle(each).outlineStyle") == "solid"
