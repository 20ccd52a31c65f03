"""What else the server answers: arguments of steps, bars, checks, the trail as lines, readiness, a page of itself."""

from __future__ import annotations

from html.parser import HTMLParser

import msgspec
import pytest
from tests.support.asgi import Browser
from tests.support.waiting import eventually
from tests.web.shop import fail, house, order, viewer

from holdfast import Engine, activity, workflow
from holdfast.contract.turns import Audit
from holdfast.errors import StoreUnreachable
from holdfast.looking import LocalDesk
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.transfer.backup import put_on_record
from holdfast.web import dashboard
from holdfast.web.routes import routes


@pytest.fixture
async def shop():
    async with house() as engine:
        yield engine


def page_of(shop: Engine, role: str = "admin") -> Browser:
    return Browser(dashboard(shop, authenticate=viewer(role)))


async def test_the_arguments_of_a_step_are_replayed_with_the_code_at_hand(shop):
    await (await shop.start(order, "a lamp", id="order-1")).result()
    found = await page_of(shop, "reader").get("/api/v1/runs/order-1/arguments?step=pack")
    assert found.json == {
        "run": "order-1", "step": "pack", "source": "replayed", "arguments": {"item": "a lamp"}, "said": "",
        "retry": "0.1 s x 2, at most 30 s, 3 attempts", "queue": "", "limit": "", "timeout": None,
        "heartbeat_timeout": None,
    }  # fmt: skip
    hidden = await page_of(shop, "viewer").get("/api/v1/runs/order-1/arguments?step=pack")
    assert (hidden.json["arguments"], "a lamp" in hidden.body.decode()) == ("hidden", False)
    wrong = await page_of(shop).get("/api/v1/runs/order-1/arguments?step=pakc")
    assert (wrong.status, "did you mean pack?" in wrong.json["detail"]) == (400, True)
    assert (await page_of(shop).get("/api/v1/runs/none/arguments?step=pack")).status == 404


async def test_secrets_among_arguments_are_masked(shop):
    run = await shop.start(fail, "4711", id="f")
    await eventually(lambda: _ended(shop, run.id))
    found = (await page_of(shop, "reader").get("/api/v1/runs/f/arguments?step=break_down")).json
    assert (found["source"], "4711" in str(found)) == ("replayed", False)


async def _ended(shop: Engine, run_id: str) -> bool:
    return (await shop.get(run_id).status()).is_terminal


async def test_without_its_code_arguments_are_those_that_were_recorded():
    @activity(record_arguments=True)
    async def keep(item: str) -> None: ...

    @activity
    async def forget(item: str) -> None: ...

    @workflow
    async def both(ctx) -> None:
        await ctx.step(keep, "a lamp")
        await ctx.step(forget, "a chair")

    async with Engine(":memory:", workflows=[both]) as engine:
        await (await engine.start(both, id="b")).result()
        desk = LocalDesk(engine.store)
        kept = await desk.arguments("b", "keep")
        assert (kept.source, kept.arguments) == ("recorded", {"item": "a lamp"})
        gone = await desk.arguments("b", "forget")
        assert (gone.source, gone.arguments) == ("unknown", None)
        assert "not at hand" in gone.said


async def test_bars_tell_how_many_runs_ended_and_failed_over_time(shop):
    for n in range(3):
        await (await shop.start(order, "x", id=f"order-{n}")).result()
    run = await shop.start(fail, id="f")
    await eventually(lambda: _ended(shop, run.id))
    await shop.stop()
    async with shop:
        page = page_of(shop)
        bars = (await page.get("/api/v1/bars")).json
        figures = (await page.get("/api/v1/figures?by=time")).json
    assert sum(each["ended"] for each in bars["items"]) == sum(
        each["completed"] + each["failed"] + each["cancelled"] for each in figures["items"]
    )
    assert len(bars["items"]) == len(figures["items"]) > 0
    assert (bars["since"], bars["slot"]) == (figures["since"], figures["slot"])


async def test_checks_that_were_put_on_record_are_listed(tmp_path):
    """As `holdfast check --record` does; another act of that name, without figures, is none."""
    database = f"{tmp_path}/shop.db"
    async with house(database) as engine:
        await engine.flow.pause(workflow="order", by="ada")
    for detail in ('{"runs":12,"fit":11}', "{}"):
        act = Audit(actor="ada", action="check", detail=detail)
        await put_on_record(SQLiteStore(database), act, "shop.main:engine")
    async with house(database) as engine:
        [check] = (await page_of(engine).get("/api/v1/checks")).json["items"]
    assert (check["by"], check["app"], check["runs"], check["fit"]) == ("ada", "shop.main:engine", 12, 11)


async def test_the_audit_trail_is_exported_as_lines_that_can_be_checked(shop):
    await shop.start(order, "x", id="order-1")
    for _ in range(3):
        await shop.flow.pause(workflow="order", by="ada")
        await shop.flow.resume(workflow="order", by="ada")
    reply = await page_of(shop).get("/api/v1/audit/export")
    lines = [msgspec.json.decode(line) for line in reply.body.splitlines()]
    assert (reply.status, reply.headers["content-type"], len(lines)) == (200, "application/x-ndjson", 6)
    here = b"".join([line async for line in LocalDesk(shop.store).export_audit()])
    assert reply.body == here
    assert (await page_of(shop, "operator").get("/api/v1/audit/export")).status == 403


async def test_ready_says_whether_the_database_answers_and_nothing_else(shop, monkeypatch):
    page = Browser(dashboard(shop, authenticate=lambda request: None))
    for path in ("/readyz", "/healthz"):
        reply = await page.get(path)
        assert (reply.status, reply.body) == (200, b"ok\n")
        assert (await page.get(path, host="evil.example")).status == 421
    page = Browser(dashboard(shop, authenticate=lambda request: None))
    asked = []

    async def away(*given, **options):
        asked.append(given)
        raise StoreUnreachable("postgresql://kim:secret@db is away")

    monkeypatch.setattr(LocalDesk, "letters", away)
    for _ in range(20):
        reply = await page.get("/readyz")
        assert (reply.status, reply.body) == (503, b"not ready\n")
    assert len(asked) < 20  # it looks once a second, however often it is asked
    assert (await page.send("POST", "/readyz")).status == 405


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.urls += [value or "" for name, value in attrs if name in ("href", "src")]


async def test_the_page_about_the_api_has_every_route_and_nothing_of_another_origin(shop):
    page = Browser(dashboard(shop, authenticate=viewer("viewer")), root="/workflows")
    reply = await page.get("/api/v1/docs")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    text = reply.body.decode()
    for route in routes():
        assert f"<code>{route.method} {route.path}</code>" in text
    links = _Links()
    links.feed(text)
    assert all(url.startswith("/workflows/") for url in links.urls), links.urls
    assert "script" not in links.tags
    for url in links.urls:
        if "/static/" in url:
            assert (await page.get(url.removeprefix("/workflows"))).status == 200, url
    nobody = Browser(dashboard(shop, authenticate=lambda request: None))
    assert (await nobody.get("/api/v1/docs")).status == 401
