"""What screens say at the edges: a database without anything, and a run with a hundred thousand facts."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import apsw
import pytest
from playwright.async_api import expect
from tests.web.browser import shop as shops
from tests.web.browser.conftest import served

pytestmark = pytest.mark.web

FACTS = 100_000
SCROLLED = """async () => {
  const box = document.querySelector(".virtual"), made = { formats: 0, read: 0 };
  Intl.DateTimeFormat = new Proxy(Intl.DateTimeFormat, {
    apply: (real, self, given) => (made.formats++, new real(...given)),
    construct: (real, given) => (made.formats++, new real(...given)),
  });
  for (const name of ["find", "filter"]) {
    const real = Array.prototype[name];
    Array.prototype[name] = function (...given) { made.read += this.length; return real.apply(this, given); };
  }
  while (box.scrollTop < 120_000) {
    box.scrollTop += 400;
    await new Promise(requestAnimationFrame);
  }
  return { ...made, top: box.scrollTop };
}"""
"""Scrolls, and counts what is made and gone through meanwhile."""
EMPTY = {
    "/": "There are no runs yet",
    "/runs": "There are no runs yet",
    "/letters": "No dead letters",
    "/schedules": "There is no schedule. await engine.schedules.put(",
    "/workers": "alive",
    "/events": "No event is queued, and no run waits for one",
    "/deploys": "None is on record. holdfast check --record",
    "/audit": "declare limit",
    "/start": "choose one",
    "/settings": "None yet. Save view",
    "/runs/nobody": "no run",
}
"""What each screen says of a database that an engine has just made; its limits are on record."""


async def test_every_screen_of_an_empty_database_says_what_would_be_there(shop, site, looker):
    for path, said in EMPTY.items():
        await looker.open(path)
        await looker.sees("main", said)
        assert await looker.violations() == [], path
        assert not await looker.overflows(), path


async def test_a_long_name_of_a_database_widens_no_page(tmp_path: Path, looker):
    async with AsyncExitStack() as stack:
        name = "a-database-with-a-name-as-long-as-those-of-schemas-are"
        shop = await shops.opened(stack, f"sqlite:///{tmp_path / name}.db")
        site = await stack.enter_async_context(served(shop))
        looker.site.port = site.port
        await looker.open("/letters")
        for width in (1440, 1300, 1200):
            await looker.page.set_viewport_size({"width": width, "height": 900})
            await expect(await looker.sees(".store .db")).to_contain_text(name)
            assert not await looker.overflows(), width
        await looker.page.goto("about:blank")


def lengthen(file: Path, steps: int) -> None:
    """Give the only run of a database so many steps more, each like its second: two facts."""
    with apsw.Connection(str(file)) as database:
        rows = [*database.execute("SELECT * FROM entries")]
        last = max(row[2] for row in rows)
        begin, end = [row for row in rows if row[1].endswith("#a2")]
        more = (
            (row[0], f"{row[1].removesuffix('a2')}{'abcdef'[len(str(n)) - 1]}{n}", last + 2 * n - 5 + which, row[3],
             row[4] + 1_000 * n, row[5])
            for n in range(3, steps + 3)
            for which, row in enumerate((begin, end))
        )  # fmt: skip
        database.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", more)
    database.close()


async def test_a_run_of_a_hundred_thousand_facts_says_what_is_shown_of_it(tmp_path: Path, looker):
    """FACES 10, line 2: the page stays small, and says where it shows a part."""
    async with AsyncExitStack() as stack:
        file = tmp_path / "shop.db"
        shop = await shops.opened(stack, f"sqlite:///{file}")
        await shop.engine.start(shops.lengthy, 2, id="long")
        await shop.settle()
        lengthen(file, FACTS // 2)
        site = await stack.enter_async_context(served(shop))
        looker.site.port = site.port
        for tab, said in {
            "": "The newest 1,000 of 100,005 facts are drawn",
            "graph": "Of its first facts",
            "steps": "1 to 100 of 1,000 steps",
            "history": "100,005",
        }.items():
            await looker.open(f"/runs/long?tab={tab}")
            await expect(await looker.sees("main .panel .tabs")).to_be_visible()
            await looker.sees("main", said)
            assert await looker.page.evaluate("document.querySelectorAll('*').length") < 3_000, tab
            if tab == "steps":
                await looker.page.get_by_role("button", name="After").click()
                await looker.sees("main", "101 to 200 of 1,000 steps")
                await looker.sees("main", "Steps that began in the newest facts; History has all.")
                assert await looker.violations() == []
            if tab == "history":
                scrolled = await looker.page.evaluate(SCROLLED)
                assert scrolled["top"] > 100_000
                assert scrolled["read"] < 3 * FACTS, "rows that are not drawn are not gone through for each step"
                assert scrolled["formats"] <= 3, "a time is written without an object that has to be collected"
        await looker.page.goto("about:blank")


async def test_lists_of_many_names_stay_small_and_are_found_by_a_word(shop, site, looker):
    """A schedule for each customer, an event for each order: fifty rows are drawn, and a word finds the others."""
    for number in range(120):
        await shop.engine.schedules.put(f"customer-{number:03}", shops.on_record, cron="30 2 * * *")
        await shop.engine.publish(f"paid-{number:03}", number)
    for path, what, last in (("/schedules", "a schedule", "customer-119"), ("/events", "an event", "paid-119")):
        await looker.open(path)
        rows = looker("main table tbody tr")
        await expect(rows).to_have_count(50)
        assert await looker.page.evaluate("document.querySelectorAll('*').length") < 3_000
        await looker.tab_to(looker.page.get_by_role("button", name="Show 50 more of 120"), most=400)
        await looker.press("Enter")
        await expect(rows).to_have_count(100)
        await looker.page.get_by_label(f"Find {what}").fill("-119")
        await expect(rows).to_have_count(1)
        await expect(rows.first).to_contain_text(last)
        assert await looker.violations() == []
        await looker.page.get_by_label(f"Find {what}").fill("nothing like it")
        await looker.sees("main .empty", "None of these 120 has nothing like it in it.")
