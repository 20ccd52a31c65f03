"""How often a principal may ask, which other origins may, and what a monitor reads.

Each refusal was seen missing with its guard removed; the guard is named beside it.
"""

from __future__ import annotations

from functools import partial

import pytest
from tests.support.asgi import Browser
from tests.support.waiting import eventually
from tests.web.shop import approve, fail, house, viewer

from holdfast.errors import BadInput
from holdfast.web import Principal, Rates, dashboard


@pytest.fixture
async def shop(address):
    async with house(address) as engine:
        yield engine


@pytest.fixture
def moment(monkeypatch) -> list[float]:
    """Give what the clock of rates says in a list of one, to be moved."""
    at = [1000.0]
    monkeypatch.setattr("holdfast.web.guards.rates.monotonic", lambda: at[0])
    return at


# Pace.take


async def test_a_principal_asks_as_often_as_it_may(shop, moment):
    """100 at once and 50 a second after that; acts by themselves: 20 and 10."""
    page = Browser(dashboard(shop, authenticate=lambda request: Principal(request.headers["x-user"], "operator")))
    kim, lee = Browser(page.app, {"x-user": "kim"}), Browser(page.app, {"x-user": "lee"})
    assert [(await kim.get("/api/v1/")).status for _ in range(100)] == [200] * 100
    refused = await kim.get("/api/v1/")
    assert (refused.status, refused.json["type"]) == (429, "/api/v1/problems/too-many")
    assert refused.headers["retry-after"] == "1"
    assert refused.json["detail"] == "'kim' may ask 50 times a second here; wait 1 s"
    assert (await lee.get("/api/v1/")).status == 200
    assert [(await kim.post("/api/v1/runs/none/pause")).status for _ in range(21)] == [404] * 20 + [429]
    moment[0] += 0.1
    assert [(await kim.get("/api/v1/")).status for _ in range(6)] == [200] * 5 + [429]
    assert [(await kim.post("/api/v1/runs/none/pause")).status for _ in range(2)] == [404, 429]
    moment[0] += 3600
    assert [(await kim.get("/api/v1/")).status for _ in range(101)] == [200] * 100 + [429]


async def test_what_was_refused_by_its_rate_was_not_done(shop, moment):
    page = Browser(dashboard(shop, authenticate=viewer("operator"), rates=Rates(writes=1, burst=1)))
    body = {"workflow": "approve", "arguments": {}}
    assert [(await page.post("/api/v1/runs", body)).status for _ in range(2)] == [201, 429]
    assert len(await shop.runs()) == 1


async def test_rates_are_given_or_left_out(shop, moment):
    slow = Browser(dashboard(shop, authenticate=viewer(), rates=Rates(reads=2, burst=1)))
    assert [(await slow.get("/api/v1/")).status for _ in range(3)] == [200, 200, 429]
    free = Browser(dashboard(shop, authenticate=viewer(), rates=None))
    assert {(await free.get("/api/v1/")).status for _ in range(300)} == {200}
    for wrong in ({"reads": 0}, {"writes": -1}, {"burst": 0}):
        with pytest.raises(BadInput, match="above 0"):
            Rates(**wrong)


async def test_a_monitor_asks_as_often_as_any_other(shop, moment):
    """What it is told costs several looks into the database."""
    page = Browser(dashboard(shop, authenticate=viewer(), rates=Rates(reads=2, burst=1)))
    assert [(await page.get("/metrics")).status for _ in range(3)] == [200, 200, 429]


async def test_of_very_many_principals_the_oldest_are_forgotten(shop, moment, monkeypatch):
    monkeypatch.setattr("holdfast.web.guards.rates._MOST_KNOWN", 3)
    app = dashboard(shop, authenticate=lambda request: Principal(request.headers["x-user"]))
    for n in range(10):
        assert (await Browser(app, {"x-user": f"user-{n}"}).get("/api/v1/")).status == 200
    assert len(app._pace._full_at) == 3


# Origins


BOARD = "https://board.example.com"


def elsewhere(app, token: str | None = "Bearer hf_x", origin: str = BOARD) -> Browser:
    """Return a page of another origin, as a browser sends for it."""
    return Browser(app, {"origin": origin, "sec-fetch-site": "cross-site", "authorization": token or ""})


async def test_pages_of_named_origins_may_ask_with_a_token(shop):
    app = dashboard(shop, authenticate=viewer("operator"), cors=[BOARD])
    page = elsewhere(app)
    asked = await page.send(
        "OPTIONS", "/api/v1/runs", headers={"access-control-request-method": "POST", "authorization": None}
    )
    assert (asked.status, asked.headers["access-control-allow-origin"]) == (204, BOARD)
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert "Authorization" in asked.headers["access-control-allow-headers"]
    for reply in (
        await page.get("/api/v1/runs"),
        await page.get("/api/v1/runs/none"),
        await page.post("/api/v1/events", {}),
    ):
        assert reply.headers["access-control-allow-origin"] == BOARD
        assert reply.headers["vary"] == "Origin"
        assert "access-control-allow-credentials" not in reply.headers
        assert reply.status in (200, 404, 422)


async def test_no_other_origin_may_and_no_cookie_is_taken_from_a_named_one(shop):
    app = dashboard(shop, authenticate=viewer("operator"), cors=[BOARD])
    for origin in ("https://evil.example", "http://board.example.com", f"{BOARD}.evil", f"{BOARD}:8443", "null", ""):
        for method in ("GET", "POST", "OPTIONS"):
            reply = await elsewhere(app, origin=origin).send(
                method, "/api/v1/runs", b"{}", {"access-control-request-method": "POST"}
            )
            assert not [each for each in reply.headers if each.startswith("access-control")], (origin, method)
    reply = await elsewhere(app, token=None).get("/api/v1/runs")
    assert reply.status == 403
    assert "access-control-allow-origin" not in reply.headers


async def test_an_origin_is_written_as_browsers_write_it(shop):
    for wrong in ("*", "board.example.com", f"{BOARD}/", f"{BOARD}/path", "null", "ftp://x", "https://"):
        with pytest.raises(BadInput, match="is no origin"):
            dashboard(shop, cors=[wrong])
    with pytest.raises(BadInput, match="must be a list"):
        dashboard(shop, cors=BOARD)


# /metrics


async def test_a_monitor_reads_how_the_house_is(shop):
    await shop.start(approve, id="order-7")
    await shop.start(fail, id="order-8")
    page = Browser(dashboard(shop, authenticate=viewer()))
    for line in ('holdfast_runs{status="suspended"} 1', 'holdfast_runs{status="failed"} 1'):
        await eventually(partial(_says, page, line))
    reply = await page.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = reply.body.decode().splitlines()
    assert "holdfast_unseen_dead_letters 1" in lines
    assert "holdfast_overdue_runs 0" in lines
    assert 'holdfast_workers{state="alive"} 1' in lines
    assert "# TYPE holdfast_runs gauge" in lines


async def _says(page: Browser, line: str) -> bool:
    return line in (await page.get("/metrics")).body.decode().splitlines()


async def test_a_monitor_needs_to_be_known_unless_it_is_said_otherwise(shop):
    for metrics, status in (("viewer", 401), ("open", 200)):
        page = Browser(dashboard(shop, authenticate=lambda request: None, metrics=metrics))
        assert (await page.get("/metrics")).status == status
        assert (await page.get("/api/v1/runs")).status == 401
    page = Browser(dashboard(shop, authenticate=viewer()))
    assert (await page.get("/metrics", sec_fetch_site="cross-site")).status == 403
    assert (await page.send("POST", "/metrics", b"{}")).status == 405
    with pytest.raises(BadInput, match="'viewer' or 'open'"):
        dashboard(shop, metrics="everyone")


def test_labels_are_escaped():
    from holdfast.web.resources.metrics import _gauge

    assert _gauge("x", "y", [({"queue": 'a"b\\c\nd'}, 1)]).endswith('holdfast_x{queue="a\\"b\\\\c\\nd"} 1\n')
