"""Every screen for everyone: nothing that axe finds wrong, in both themes, narrow, in forced colours, at 200 % zoom."""

from __future__ import annotations

from typing import Any

import pytest
from tests.web.browser import shop as shops

from holdfast.web import Principal

pytestmark = pytest.mark.web

SCREENS = [
    "/runs",
    "/runs?q=status%3Afailed&span=7d",
    *(f"/runs/order-88405{more}" for more in ("", "?tab=steps", "?tab=history", "?tab=messages", "?tab=children")),
    "/runs/order-88405?tab=record",
    "/runs/order-88409",
    "/runs/order-88405?tab=graph",
    "/runs/order-88405?tab=state",
    "/schedules?id=nightly",
    "/",
    "/letters",
    "/schedules",
    "/workers",
    "/events",
    "/deploys",
    "/audit",
    "/start?workflow=fulfil",
    "/settings",
    "/runs?cols=progress,started,tenant,actor,version,priority,worker",
    "/runs?q=statis%3Afailed",
    "/runs/order-1",
    "/nowhere",
]
EMPTY = [
    "/",
    *(f"/{name}" for name in ("runs", "letters", "schedules", "workers", "events", "deploys", "audit", "start")),
]
SHEETS = [
    ("/schedules?id=nightly", "Backfill…"),
    ("/schedules?id=nightly", "Edit…"),
    ("/events", "Publish…"),
    ("/settings", "New token…"),
]
MODES: dict[str, tuple[int, dict[str, Any]]] = {
    "light": (1440, {"color_scheme": "light"}),
    "dark": (1440, {"color_scheme": "dark"}),
    "narrow": (420, {"color_scheme": "light"}),
    "narrow and dark": (420, {"color_scheme": "dark"}),
    "forced colours": (1440, {"forced_colors": "active"}),
    "twice as large": (720, {"color_scheme": "light"}),
}


@pytest.mark.parametrize("mode", MODES)
async def test_no_screen_has_anything_that_axe_finds_wrong(shop, site, looker, mode):
    """FACES 10, line 22. At 200 % zoom a window of 1,440 is laid out as one of 720."""
    await shop.engine.schedules.put("nightly", shops.quick, {"order": "o-1"}, cron="30 2 * * *")
    await shops.fill(shop)
    width, media = MODES[mode]
    await looker.page.set_viewport_size({"width": width, "height": 900})
    await looker.page.emulate_media(**media)
    found: dict[str, list[str]] = {}
    for screen in SCREENS:
        await looker.open(screen)
        await looker.sees(".panel")
        await looker.page.wait_for_load_state("networkidle")
        found[screen] = await looker.violations()
        if await looker.overflows():
            found[screen].append("it scrolls sideways")
    for screen, keys in (("/runs/order-88405", "p"), ("/runs", "?")):
        await looker.open(screen)
        await looker.sees(".panel")
        await looker.press(keys)
        await looker.sees(".sheet")
        found[f"{screen} with a sheet"] = await looker.violations()
    for screen, button in SHEETS:
        await looker.open(screen)
        await looker("main").get_by_role("button", name=button).first.click()
        await looker.sees(".sheet")
        await looker.page.wait_for_load_state("networkidle")
        found[f"{screen} {button}"] = await looker.violations()
        if await looker.overflows():
            found[f"{screen} {button}"].append("it scrolls sideways")
    wrong = [f"{screen}: {each}" for screen, all_of in found.items() for each in all_of]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("mode", MODES)
async def test_no_screen_of_a_shop_without_runs_has_anything_that_axe_finds_wrong(shop, site, looker, mode):
    """FACES 10, line 22, and for who may only look."""
    width, media = MODES[mode]
    site.who = Principal("vic", "viewer")
    await looker.page.set_viewport_size({"width": width, "height": 900})
    await looker.page.emulate_media(**media)
    found: dict[str, list[str]] = {}
    for screen in EMPTY:
        await looker.open(screen)
        await looker.sees(".panel")
        await looker.page.wait_for_load_state("networkidle")
        found[screen] = await looker.violations()
        if await looker.overflows():
            found[screen].append("it scrolls sideways")
    wrong = [f"{screen}: {each}" for screen, all_of in found.items() for each in all_of]
    assert not wrong, "\n".join(wrong)


async def test_where_colours_are_forced_the_chosen_tab_and_what_a_legend_means_can_be_told(shop, site, looker):
    """FACES 10, line 22: axe does not see what is drawn in other colours than its legend."""
    await shops.count(shop, 10 * shops.MINUTE, 5, 2)
    await shops.order(shop, 88391, 1_200)
    await shop.settle()
    await looker.page.emulate_media(forced_colors="active")
    await looker.open("/")
    await looker.sees(".hist rect.bad")
    for bar, legend in ((".hist rect.ok", ".legend .i-ok"), (".hist rect.bad", ".legend .i-bad")):
        assert await _style(looker, bar, "fill") == await _style(looker, legend, "backgroundColor")
    await looker.open("/runs/order-88391?tab=steps")
    await looker.sees("[role=tab][aria-selected=true]")
    ground = await _style(looker, "body", "backgroundColor")
    for chosen, seen in (("true", True), ("false", False)):
        line = await _style(looker, f"[role=tab][aria-selected={chosen}]", "borderBottomColor")
        assert (line != ground) is seen, chosen


async def _style(looker: Any, selector: str, name: str) -> str:
    found: str = await looker(selector).first.evaluate("(each, name) => getComputedStyle(each)[name]", name)
    return found
