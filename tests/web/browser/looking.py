"""What tests do with a page, and what they find when they look at it."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Locator, Page, Request, Response, expect


class Site:
    """Where the dashboard is served, and as whom."""

    def __init__(self, who: Any) -> None:
        self.who = who
        self.port = 0
        self.stop: Any = None
        """Ends the server."""

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}/workflows"


class Looker:
    """A page of a browser, which keeps what went wrong and what was asked for."""

    def __init__(self, site: Site, page: Page) -> None:
        self.site = site
        self.page = page
        self.other = site
        """Where another house is served, if a test has one."""
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.scripts: dict[str, int] = {}
        page.on("pageerror", lambda error: self.wrong.append(f"thrown: {error}"))
        page.on("console", lambda said: self.wrong.append(said.text) if _is_wrong(said) else None)
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        page.on("request", self._request)
        page.on("response", self._response)

    def _request(self, request: Request) -> None:
        self.asked.append(request.url)

    async def _response(self, response: Response) -> None:
        if response.url.endswith((".js", ".mjs")):
            self.scripts[response.url] = int((await response.all_headers()).get("content-length", 0))

    def check(self) -> None:
        """Fail if the page threw, was refused something by its policy, or asked another origin."""
        origin = self.site.root.rpartition("/")[0]
        assert self.wrong == []
        assert [url for url in self.asked if not url.startswith((origin, "data:", "blob:"))] == []

    async def open(self, path: str) -> None:
        await self.page.goto(self.site.root + path)

    def __call__(self, selector: str, text: str | None = None) -> Locator:
        return self.page.locator(selector, has_text=text)

    async def sees(self, selector: str, text: str | None = None) -> Locator:
        """Wait until something is seen, and return it."""
        found = self.page.locator(selector).first if text is None else self.page.locator(selector, has_text=text).first
        await expect(found).to_be_visible()
        return found

    async def row(self, run_id: str) -> Locator:
        return await self.sees(f'tr[data-run="{run_id}"]')

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.page.keyboard.press(key)

    async def tab_to(self, wanted: Locator, *, most: int = 150) -> None:
        """Go to something as people do who have no mouse: with the tabulator."""
        await expect(wanted).to_be_visible()
        for _ in range(most):
            if await wanted.evaluate("each => each === document.activeElement"):
                return
            await self.page.keyboard.press("Tab")
        raise AssertionError(f"the tabulator does not lead to {wanted}")

    async def violations(self) -> list[str]:
        """Return what axe finds wrong with the page as it is."""
        from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]

        found = await Axe().run(self.page)
        return [
            f"{each['id']}: {[node['html'][:160] for node in each['nodes'][:3]]}"
            for each in found.response["violations"]
        ]

    async def overflows(self) -> bool:
        """Return whether the page scrolls sideways."""
        wide: bool = await self.page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
        return wide


def _is_wrong(said: Any) -> bool:
    """Tell a refusal of the policy, or a defect, from a request that was answered with an error."""
    return said.type == "error" and "Failed to load resource" not in said.text
