"""A shop that is open, served under a path, and a browser that looks at it: all in the loop of one test."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import with_schema
from tests.postgres.servers import fresh_schema
from tests.web.browser import shop as shops
from tests.web.browser.looking import Looker, Site

from holdfast.clock import to_datetime

PATIENCE = 180_000
"""Milliseconds that a browser waits for what takes a few: a machine may be busy, and only a failure takes as long."""

COLLECTOR = """document.addEventListener("securitypolicyviolation", (event) => {
    console.error(`policy: ${event.violatedDirective} refused ${event.blockedURI || event.sample}`);
});"""
"""Tells the test of everything that the policy of the page refuses, or would: none of it is meant."""


def chromium() -> str:
    """Return the browser; without one the test is skipped, or fails where HOLDFAST_BROWSER=required."""
    found = os.environ.get("HOLDFAST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        reason = "there is no Chromium: `make browsers` installs it, or HOLDFAST_CHROMIUM names it"
        if os.environ.get("HOLDFAST_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> str:
    """Give the address of an empty database: in memory, and where all tests are run on PostgreSQL, too."""
    if request.param == "memory":
        return ":memory:"
    address: str = request.getfixturevalue("empty_database")
    return address


@pytest.fixture
async def shop(place: str) -> AsyncIterator[shops.Shop]:
    async with AsyncExitStack() as stack:
        yield await shops.opened(stack, place)


@pytest.fixture
def own_place(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the address of a database of the same kind that can be opened twice, and that the usual shop has not."""
    if place == ":memory:":
        yield f"sqlite:///{tmp_path / 'shop.db'}"
        return
    server = request.getfixturevalue("postgres")
    with fresh_schema(server) as schema:
        yield with_schema(server, schema)


@pytest.fixture
async def blocked_shop(own_place: str) -> AsyncIterator[shops.Shop]:
    """A shop in which a run is blocked, because it was begun with other code."""
    async with AsyncExitStack() as stack:
        yield await shops.block(stack, own_place)


@pytest.fixture
async def site(shop: shops.Shop) -> AsyncIterator[Site]:
    """Serve the shop under a path, as an application would that mounts it; kim is an admin unless a test says else."""
    async with served(shop) as site:
        yield site


@asynccontextmanager
async def served(
    shop: Any, port: int = 0, hosts: list[str] | None = None, now: int | None = None
) -> AsyncIterator[Site]:
    """Serve a shop; `now` is the time that pages are told, if it is not that of this machine."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from holdfast.web import Principal, dashboard
    from holdfast.web.standalone import listen

    site = Site(Principal("kim", "admin"))
    page = dashboard(shop.engine, authenticate=lambda request: site.who, allowed_hosts=hosts)
    app = Starlette(routes=[Mount("/workflows", page)])
    held = listen(f"127.0.0.1:{port}")  # no other process takes the port while the server is away
    site.port = held.getsockname()[1]
    listening = listen(f"127.0.0.1:{site.port}")
    listening.listen()
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1, access_log=False,
            date_header=now is None,
            headers=[("Date", format_datetime(to_datetime(now), usegmt=True))] if now is not None else [],
        )
    )  # fmt: skip
    serving = asyncio.create_task(server.serve(sockets=[listening]))

    async def stop() -> None:
        server.should_exit = True
        await serving
        listening.close()

    site.stop = stop
    try:
        yield site
    finally:
        await stop()
        held.close()


@pytest.fixture
async def looker(site: Site) -> AsyncIterator[Looker]:
    """A browser with one page, which fails the test if anything was refused by the policy, or thrown."""
    path = chromium()
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        context = await browser.new_context(
            viewport={"width": 1440, "height": 1000}, timezone_id="Europe/Berlin", reduced_motion="reduce"
        )
        context.set_default_timeout(PATIENCE)
        await context.add_init_script(COLLECTOR)
        await context.grant_permissions(["clipboard-read", "clipboard-write"])
        looker = Looker(site, await context.new_page())
        try:
            yield looker
            looker.check()
        finally:
            await browser.close()


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest) -> Any:
    from playwright.async_api import expect

    expect.set_options(timeout=PATIENCE)
