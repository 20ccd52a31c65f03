"""Make pictures of every screen: `python -m tests.web.browser.pictures [folder] [part of a name]`, with Inter.

Without a folder only those of the documentation are made, where they belong.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from playwright.async_api import Browser, Page, async_playwright
from tests.support.paths import ROOT
from tests.web.browser import shop as shops
from tests.web.browser.conftest import COLLECTOR, PATIENCE, chromium, served

from holdfast import Engine
from holdfast.contract.rows import Status
from holdfast.web import Principal

RUN = "/runs/order-88405"
SCREENS = {
    "overview": ("/", 1180),
    "runs": ("/runs", 900),
    "run": (RUN, 1000),
    "blocked": ("/runs/order-88412", 760),
    "failed": ("/runs/order-88409", 1000),
    "loop": ("/runs/poll-1", 860),
    "cut": ("/runs/order-88407", 1000),
    "steps": (f"{RUN}?tab=steps", 860),
    "history": (f"{RUN}?tab=history", 860),
    "messages": (f"{RUN}?tab=messages", 860),
    "children": (f"{RUN}?tab=children", 860),
    "family": ("/runs/caravan?tab=children", 700),
    "record": ("/runs/parcel-1?tab=record", 860),
    "letters": ("/letters", 560),
    "graph": (f"{RUN}?tab=graph", 860),
    "schedules": ("/schedules?id=hourly", 900),
    "workers": ("/workers", 760),
    "events": ("/events?name=parcel", 560),
    "deploys": ("/deploys", 760),
    "audit": ("/audit", 760),
    "start": ("/start?workflow=fulfil", 700),
    "settings": ("/settings", 900),
    "fits": ("/runs?q=workflow%3Aquick+status%3Acompleted&span=7d", 760),
    "sheet": ("/runs?q=status%3Afailed", 760),
    "group": ("/letters", 760),
    "purge": ("/letters", 760),
    "keys": ("/runs", 760),
    "state": (f"{RUN}?tab=state", 760),
    "permit": ("/runs/permit-1?tab=messages", 760),
    "one": (RUN, 900),
    "acts": (RUN, 900),
    "send": (RUN, 900),
    "rerun": ("/runs/order-88409", 900),
    "retry": ("/runs/order-88409", 900),
    "undone": ("/runs/order-88398", 860),
    "done": ("/runs/order-88350", 760),
    "held": ("/runs/embed-6641", 760),
    "encode": ("/runs/film-5520", 860),
    "edit": ("/schedules?id=nightly", 900),
    "backfill": ("/schedules?id=hourly", 900),
    "publish": ("/events", 760),
    "token": ("/settings", 900),
    "columns": ("/runs?cols=progress,started,took,tenant,actor,version,priority,worker,%3Dcustomer", 900),
    "worker": ("/workers?worker=", 900),
    "typed": ("/runs", 760),
    "wrong": ("/runs?q=statis%3Afailed", 560),
    "nobody": ("/runs?q=workflow%3Anobody", 560),
    "missing": ("/runs/order-1", 560),
    "lost": ("/nowhere", 560),
}
"""Where each screen is, and how high a picture of it is."""
SEEN_BY_VIEWERS = {f"viewer-{name}": SCREENS[name] for name in ("run", "letters", "schedules", "events", "settings")}
EMPTY = {
    f"empty-{name or 'overview'}": (f"/{name}", 560)
    for name in ("", "runs", "letters", "schedules", "workers", "events", "deploys", "audit", "start", "settings")
}
"""What is looked at in a shop that has nothing yet, too."""
DONE_THERE: dict[str, tuple[str, ...]] = {
    "sheet": ("j", "x", "j", "x", "click .bulk >> text=Retry…", "see [data-plan]"),
    "group": ("click text=Replay 2…", "see [data-plan]"),
    "purge": ("click text=Purge…", "see [data-plan]"),
    "keys": ("?", "see .sheet"),
    "one": ("p", "see .sheet"),
    "acts": ("a", "see .menu"),
    "send": ("s", "see .sheet"),
    "rerun": ("click text=Rerun from here…", "see .sheet"),
    "retry": ("click .head >> text=Retry…", "see .sheet"),
    "edit": ("click text=Edit…", "see .sheet .plan, .sheet [data-plan]"),
    "backfill": ("click text=Backfill…", "see .plan b"),
    "publish": ("click text=Publish…", "see .sheet"),
    "token": ("click text=New token…", "see .sheet"),
    "worker": ("click table a >> nth=0",),
    "typed": ("/", "type sta"),
}
"""What is done before a picture is taken: a key, or a click, a wait for something seen, or something typed."""
LOOKS: dict[str, tuple[int, dict[str, Any]]] = {
    "light": (1440, {"color_scheme": "light"}),
    "dark": (1440, {"color_scheme": "dark"}),
    "narrow": (420, {"color_scheme": "light"}),
    "forced": (1440, {"color_scheme": "light", "forced_colors": "active"}),
    "zoom": (720, {"color_scheme": "light", "device_scale_factor": 2}),
}
"""How wide a window is, and what its browser is like; at 200 % zoom a window of 1,440 is laid out as one of 720."""
DOCUMENTED = ["overview-light", "runs-light", "runs-narrow", "run-dark", "sheet-light"]


async def main(folder: Path, wanted: list[str] | None, part: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        async with AsyncExitStack() as stack:
            playwright = await stack.enter_async_context(async_playwright())
            browser = await playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            shop = await shops.block(stack, f"sqlite:///{place}/shop.db")
            await furnish(shop)
            site = await stack.enter_async_context(served(shop, now=shop.clock.now()))
            await _every(browser, site.root, SCREENS, folder, wanted, part)
            if wanted is None:
                site.who = Principal("vic", "viewer")
                await _every(browser, site.root, SEEN_BY_VIEWERS, folder, None, part)
                nothing = await stack.enter_async_context(Engine(":memory:"))
                empty = await stack.enter_async_context(served(SimpleNamespace(engine=nothing)))
                await _every(browser, empty.root, EMPTY, folder, None, part)
            await browser.close()


async def _every(
    browser: Browser, root: str, screens: dict[str, tuple[str, int]], folder: Path, wanted: list[str] | None, part: str
) -> None:
    for look, (width, media) in LOOKS.items():
        named = [name for name in screens if part in f"{name}-{look}" and (not wanted or f"{name}-{look}" in wanted)]
        if not named:
            continue
        page = await opened(browser, root, width, media)
        for name in named:
            path, height = screens[name]
            await page.set_viewport_size({"width": width, "height": height if width > 720 else 860})
            await picture(page, root + path, folder / f"{name}-{look}.png", whole=not wanted)
        await page.context.close()


async def furnish(shop: shops.Shop) -> None:
    """Fill the shop, with what only pictures need: a day of figures, a loop, evidence, events, a schedule."""
    await shop.engine.start(shops.poll, 9, id="poll-1")
    await shop.engine.start(shops.on_record, id="parcel-1")
    await shop.engine.start(shops.permits, id="permit-1")
    await shop.settle()
    await shop.engine.get("parcel-1").set_attributes({"kg": 2.4}, by="kim", reason="weighed again")
    await shop.engine.publish("parcel", {"id": 7}, by="kim")
    order = {"order": "o-night"}
    await shop.engine.schedules.put("nightly", shops.quick, order, cron="30 2 * * *", timezone="Europe/Berlin")
    await shop.engine.schedules.put("hourly", shops.on_record, cron="0 * * * *", timezone="America/New_York")
    await shop.engine.start(shops.caravan, id="caravan")
    await shops.fill(shop)
    await shop.engine.get("order-88407").retry(by="kim", reason="another card")
    await shop.until("order-88407", lambda head: head.status is not Status.FAILED)  # others never settle
    for slot in range(144):
        busy = 22 + 16 * (1 - abs(slot - 62) / 72) + slot * 7 % 5
        bad = max(0, 9 - abs(slot - 100)) * 1.4 if 92 < slot < 108 else 0.5
        await shops.count(shop, timedelta(minutes=10 * (144 - slot)), round(busy - bad), round(bad + slot % 3 / 4))
    for slot in range(0, 144, 3):
        for name, done, retried in (
            ("charge", 9, 2),
            ("book_carrier", 6, slot % 5),
            ("reserve_stock", 14, slot // 141),
        ):
            await shops.count_step(shop, timedelta(minutes=10 * (144 - slot)), name, done, retried)
    await shop.engine._working().runner.figures.add()


async def opened(browser: Browser, root: str, width: int, media: dict[str, Any]) -> Page:
    context = await browser.new_context(
        viewport={"width": width, "height": 900}, timezone_id="Europe/Berlin", reduced_motion="reduce", **media
    )
    context.set_default_timeout(PATIENCE / 6)
    await context.add_init_script(COLLECTOR)
    page = await context.new_page()
    page.on("pageerror", lambda error: _tell(page, f"thrown: {error}"))
    page.on("console", lambda said: _tell(page, said.text) if said.type == "error" else None)
    await page.goto(f"{root}/runs")  # the first answer tells the page what time it is in this shop
    await page.wait_for_selector(".panel")
    return page


def _tell(page: Page, said: str) -> None:
    sys.stderr.write(f"{page.url} {said}\n")


async def picture(page: Page, address: str, file: Path, *, whole: bool) -> None:
    await page.goto("about:blank")
    await page.goto(address)
    await page.wait_for_selector("main")
    await page.wait_for_load_state("networkidle")
    await page.wait_for_timeout(500)
    for each in DONE_THERE.get(file.stem.rpartition("-")[0], ()):
        verb, _, what = each.partition(" ")
        if verb == "click":
            await page.click(what)
        elif verb == "see":
            await page.wait_for_selector(what)
        elif verb == "type":
            await page.keyboard.type(what)
        else:
            await page.keyboard.press(verb)
    await page.wait_for_load_state("networkidle")
    await page.screenshot(path=file, full_page=whole)


if __name__ == "__main__":
    given = sys.argv[1:]
    images = ROOT / "docs" / "how-to" / "images"
    asyncio.run(main(Path(given[0]) if given else images, None if given else DOCUMENTED, given[1] if given[1:] else ""))
