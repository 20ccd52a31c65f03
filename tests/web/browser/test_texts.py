"""What runs, people and errors say is text in a browser: none of it becomes part of the page, or runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import expect
from tests.support.hostile_texts import HOSTILE
from tests.support.waiting import eventually
from tests.web.browser import shop as shops
from tests.web.browser.looking import Looker

from holdfast.errors import BadInput

SCREENS = [
    "/runs?cols=attributes,tenant,actor,started",
    "/runs?q=said%3D%22%3Cb%3E%22",
    "/",
    "/letters",
    "/workers",
    "/schedules?id=loud",
    "/events?name=%3Cb%3Eparcel",
    "/deploys",
    "/audit",
    "/start?workflow=%3Csvg+onload%3E",
    *(f"/runs/all?tab={tab}" for tab in ("", "steps", "history", "graph", "messages", "children", "record")),
    "/runs/loud-0",
    "/runs/loud-39",
    "/runs/loud-39?tab=history",
]
SHORT = HOSTILE[:39]


async def fill(shop: shops.Shop) -> None:
    """Put the forty texts into everything that a run, a person or an error can say."""
    engine = shop.engine
    attributes = {f"a{number}": text for number, text in enumerate(SHORT[:15]) if "\0" not in text}
    await engine.start(
        shops.talkative,
        SHORT,
        id="all",
        actor=HOSTILE[0],
        tenant=HOSTILE[1],
        attributes={"<b>": "</script>"} | attributes,
    )
    await shop.settle()
    for number, text in enumerate(HOSTILE):
        await engine.start(shops.talkative, text, id=f"loud-{number}")
        try:
            await engine.get("all").set_attributes({"said": text[:900]}, by="<script>", reason=text[:4_000])
        except BadInput:
            pass  # NUL cannot be stored
        await engine.get("all").send("<script>", text[:1_000])
    await engine.schedules.put("loud", shops.talkative, SHORT, cron="30 2 * * *", by=SHORT[2], reason=SHORT[3])
    for text in HOSTILE:
        await engine.publish("<b>parcel", {"said": text[:4_000]}, by=SHORT[4])
    await shop.settle()


async def made_of_text(looker: Looker) -> None:
    """Fail if any element is there that the page does not make itself."""
    foreign = "img, iframe, object, embed, form[action], style, b > svg, a[href^='javascript'], [onerror], [onload]"
    assert await looker(f"#main :is({foreign})").count() == 0
    assert await looker("script").count() == 3  # the theme, the import map, the page itself


@pytest.mark.web
async def test_forty_texts_are_text_on_every_screen(shop, site, looker):
    """FACES 10, line 14: attributes, inputs, results, errors, names of steps and messages, actors, reasons."""
    assert len(HOSTILE) == 40
    await fill(shop)
    for screen in SCREENS:
        await looker.open(screen)
        await looker.sees(".panel")
        await looker.page.wait_for_load_state("networkidle")
        await made_of_text(looker)
    await looker.open("/runs/all")
    shown = await (await looker.sees('.side [aria-label="Input"]')).text_content()
    assert json.loads(shown or "") == {"text": SHORT}
    shown = await looker('.step [aria-label="Result"]').text_content()
    assert json.loads(shown or "") == SHORT
    await looker.open("/runs?q=status%3Afailed")
    for number in (0, 1, 5, 12, 13):
        await expect(await looker.row(f"loud-{number}")).to_contain_text(HOSTILE[number])
    await looker.open("/letters")
    await expect(await looker.sees(".tbl >> nth=1")).to_contain_text(HOSTILE[0])


async def test_texts_of_a_run_are_shown_as_text(shop, site, looker):
    """The same for some of them, in every run of the tests."""
    await shop.engine.start(
        shops.quick, {"order": "o-1", "texts": SHORT}, id="hostile", actor=HOSTILE[0],
        attributes={f"a{number}": text for number, text in enumerate(SHORT[:15])},
    )  # fmt: skip
    await shop.settle()
    await looker.open("/runs")
    await expect(await looker.row("hostile")).to_contain_text(HOSTILE[0])
    await looker.open("/runs/hostile")
    shown: Any = await (await looker.sees('.side [aria-label="Input"]')).text_content()
    assert json.loads(shown)["order"]["texts"] == SHORT
    await looker.page.get_by_role("tab", name="History").click()
    await looker.sees(".fact")
    await made_of_text(looker)


@pytest.mark.web
async def test_what_the_policy_refuses_is_seen_by_the_tests(shop, site, looker):
    """Without this no other test would prove that nothing is refused."""
    await looker.open("/runs")
    await looker.sees(".notice")
    assert looker.wrong == []
    refused = "() => { try { %s; return false } catch { return true } }"
    assert await looker.page.evaluate(refused % "document.body.innerHTML = '<b>x</b>'")
    assert await looker.page.evaluate(refused % "document.body.setAttribute('onclick', 'alert(1)')")
    await looker.page.evaluate("document.head.appendChild(document.createElement('style')).textContent = '* {}'")
    await looker.page.evaluate("fetch('https://elsewhere.example/').catch(() => null)")
    for directive in ("require-trusted-types-for", "style-src-elem", "connect-src"):

        async def told(wanted: str = f"policy: {directive}") -> bool:
            return any(wanted in said for said in looker.wrong)

        await eventually(told)
    looker.wrong.clear()
    looker.asked.clear()
