"""Make the pictures of the documentation: `python -m tests.web.browser.pictures [folder]`, with Chromium and Inter."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from playwright.async_api import Browser, async_playwright
from tests.support.paths import ROOT
from tests.web.browser import shop as shops
from tests.web.browser.conftest import PATIENCE, chromium, served

SHOTS = [
    ("runs-light", "/runs", "light", 1440, 900),
    ("runs-dark", "/runs", "dark", 1440, 900),
    ("runs-narrow", "/runs", "light", 420, 860),
    ("run-light", "/runs/order-88405", "light", 1440, 1000),
    ("run-dark", "/runs/order-88405", "dark", 1440, 1000),
    ("run-narrow", "/runs/order-88405", "dark", 420, 860),
    ("letters-light", "/letters", "light", 1440, 560),
    ("letters-dark", "/letters", "dark", 1440, 560),
    ("letters-narrow", "/letters", "light", 420, 860),
    ("workers-light", "/workers", "light", 1440, 620),
    ("workers-dark", "/workers", "dark", 1440, 620),
    ("workers-narrow", "/workers", "dark", 420, 860),
    ("sheet-light", "/runs?q=status%3Afailed", "light", 1440, 760),
]
"""Which screens: name, path, theme, width, height."""


async def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        async with AsyncExitStack() as stack:
            shop = await shops.block(stack, f"sqlite:///{place}/shop.db")
            await shops.fill(shop)
            site = await stack.enter_async_context(served(shop))
            playwright = await stack.enter_async_context(async_playwright())
            browser = await playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            for name, path, theme, width, height in SHOTS:
                await picture(browser, site.root, folder / f"{name}.png", path, theme, (width, height))
            await browser.close()


async def picture(browser: Browser, root: str, file: Path, path: str, theme: str, size: tuple[int, int]) -> None:
    context = await browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if theme == "dark" else "light",
        timezone_id="Europe/Berlin",
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE)
    page = await context.new_page()
    await page.goto(f"{root}/runs")  # the first answer tells the page what time it is in this shop
    await page.wait_for_selector("tbody tr")
    if path in ("/letters", "/workers"):
        await page.click(f'nav a[href$="{path}"]')
    elif path != "/runs":
        await page.evaluate("address => history.pushState({}, '', address)", f"{root}{path}")
        await page.reload()
    await page.wait_for_selector(".panel")
    await page.wait_for_timeout(1_500)
    if file.stem.startswith("sheet"):
        for key in ("j", "x", "j", "x", "j", "x"):
            await page.keyboard.press(key)
        await page.click("text=Retry…")
        await page.wait_for_selector("[data-plan]")
    await page.screenshot(path=file)
    await context.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "how-to" / "images"))
