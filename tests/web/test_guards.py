"""What every request must pass before it is looked at, and what every answer carries.

Each of these was seen failing with its guard removed; the guard is named beside it.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.asgi import HOST, Browser, exchange
from tests.web.shop import house, viewer

from holdfast import Engine
from holdfast.web import dashboard
from holdfast.web.guards import requests as guard
from holdfast.web.routes import routes


@pytest.fixture
async def shop():
    async with house() as engine:
        yield engine


@pytest.fixture
def page(shop: Engine) -> Browser:
    return Browser(dashboard(shop, authenticate=viewer("admin")))


# guard.check_host

FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:7780",
    "localhost.evil:7780",
    "localhost",
    "localhost:80",
    "localhost:7781",
    "localhost.:7780",
    "127.0.0.1.:7780",
    "127.0.0.1.nip.io:7780",
    "127.1:7780",
    "0177.0.0.1:7780",
    "2130706433:7780",
    "0.0.0.0:7780",
    "[::]:7780",
    "[::ffff:127.0.0.1]:7780",
    "[0:0:0:0:0:0:0:1]:7780",
    "::1:7780",
    "localhost:7780@evil.example",
    "evil.example#localhost:7780",
    "localhost:7780:80",
    "localhost:07780",
    "localhost:",
    " localhost:7780",
    "",
]


@pytest.mark.parametrize("path", ["/api/v1/runs", "/", "/healthz", "/static/x/y"])
async def test_a_request_to_another_name_is_refused(page, path):
    for host in FOREIGN_HOSTS:
        assert (await page.get(path, host=host)).status == 421, host


async def test_this_machine_has_its_usual_names(page):
    for host in ("127.0.0.1:7780", "localhost:7780", "LOCALHOST:7780", "[::1]:7780"):
        assert (await page.get("/api/v1/runs", host=host)).status == 200, host


async def test_names_that_were_given_are_the_only_ones(shop):
    page = Browser(dashboard(shop, authenticate=viewer(), allowed_hosts=["shop.example.com", "inside.example:8443"]))
    assert (await page.get("/api/v1/runs", host="shop.example.com")).status == 200
    assert (await page.get("/api/v1/runs", host="shop.example.com:443")).status == 200
    assert (await page.get("/api/v1/runs", host="inside.example:8443")).status == 200
    for host in ("inside.example", "shop.example.com:7780", "localhost:7780", "ashop.example.com", "example.com"):
        assert (await page.get("/api/v1/runs", host=host)).status == 421, host


async def test_a_request_has_one_host(page):
    assert (await page.get("/api/v1/runs", host=None)).status == 400
    two = [(b"host", HOST.encode()), (b"host", HOST.encode())]
    assert (await exchange(page.app, page.scope("GET", "/api/v1/runs", two), [b""])).status == 400


# guard.check_site

CROSS_SITE = [
    {"origin": None},
    {"origin": "null"},
    {"origin": "https://evil.example"},
    {"origin": f"http://{HOST}.evil.example"},
    {"origin": f"http://evil.example@{HOST}"},
    {"origin": "http://127.0.0.1:7781"},
    {"origin": "http://127.0.0.1"},
    {"origin": f"ftp://{HOST}"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {"x-holdfast": None},
    {"x-holdfast": "yes"},
    {"content-type": None},
    {"content-type": "text/plain"},
    {"content-type": "application/x-www-form-urlencoded"},
    {"content-type": "multipart/form-data; boundary=x"},
    {"content-type": "application/json-patch"},
    {"content-type": "text/plain; application/json"},
]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "QUERY"])
async def test_what_another_site_makes_a_browser_send_is_refused(page, method):
    for headers in CROSS_SITE:
        reply = await page.send(method, "/api/v1/runs", b"{}", headers)
        assert (reply.status, reply.json["type"]) == (403, "/api/v1/problems/cross-site"), headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_another_site_reads_nothing_with_the_cookies_of_this_one(page, site):
    assert (await page.get("/api/v1/runs", sec_fetch_site=site)).status == 403


async def test_the_method_cannot_be_overridden(page):
    reply = await page.send("GET", "/api/v1/runs", b"", {"x-http-method-override": "DELETE"})
    assert reply.status == 200


async def test_no_answer_lets_another_origin_in(page):
    for method in ("GET", "OPTIONS", "POST"):
        reply = await page.send(
            method, "/api/v1/runs", b"{}", {"origin": "https://evil.example", "access-control-request-method": "POST"}
        )
        assert [name for name in reply.headers if name.startswith("access-control")] == []


# guard.HEADERS

ANSWERS = [
    "/",
    "/readyz",
    "/api/v1/docs",
    "/api/v1/audit/export",
    "/runs/x",
    "/healthz",
    "/api/v1/",
    "/api/v1/runs/none",
    "/nothing",
    "/api/v1/runs?limit=x",
    "/static/x",
]


@pytest.mark.parametrize("host", [HOST, "evil.example"])
async def test_every_answer_has_the_headers_that_keep_a_browser_safe(page, host):
    for path in ANSWERS:
        check_headers((await page.get(path, host=host)).headers)


def check_headers(headers: dict[str, str]) -> None:
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy
    for part in (
        "default-src 'none'",
        "script-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ):
        assert part in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert headers["permissions-policy"]
    assert headers["x-request-id"]
    assert "strict-transport-security" not in headers


async def test_over_https_a_browser_is_told_to_stay_there(shop):
    page = Browser(dashboard(shop, authenticate=viewer()), scheme="https")
    assert "strict-transport-security" in (await page.get("/api/v1/")).headers


async def test_the_import_map_of_the_page_is_allowed_by_its_hash(page):
    policy = (await page.get("/")).headers["content-security-policy"]
    assert "script-src 'self' 'sha256-" in policy


# app._who: before any route

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"]


async def test_no_route_answers_before_it_is_known_who_asks(shop):
    page = Browser(dashboard(shop, authenticate=lambda request: None))
    paths = [*sorted({route.path.replace("{id}", "order-7") for route in routes()}), "/nothing", "/problems/defect"]
    for path in paths:
        for method in METHODS:
            reply = await page.send(method, f"/api/v1{path}", b"{}")
            assert reply.status == 401, (method, path)


@pytest.mark.parametrize("token", ["none", "wrong", "expired", "revoked"])
async def test_without_a_token_that_may_be_used_no_route_answers(shop, token):
    """Bearers.bearer, where tokens are asked for; the page, its files and the probes hold nothing of the database."""
    brought, row = await shop.tokens.create("kim", "admin", expires_in=timedelta(microseconds=1))
    if token == "revoked":
        await shop.tokens.revoke(row.id)
    given = {"none": None, "wrong": "Bearer hf_wrong"}.get(token, f"Bearer {brought}")
    page = Browser(dashboard(shop))
    paths = [*sorted({route.path.replace("{id}", "order-7") for route in routes()}), "/docs", "/openapi.json"]
    for path in paths:
        for method in METHODS:
            reply = await page.send(method, f"/api/v1{path}", b"{}", {"authorization": given})
            assert reply.status == 401, (method, path)
    for path in ("/", "/healthz", "/readyz"):
        assert (await page.get(path)).status == 200
    assert (await page.get("/api/v1/session")).status == 405


async def test_a_websocket_is_closed(page):
    sent = []

    async def send(message):
        sent.append(message)

    await page.app({"type": "websocket", "path": "/api/v1/live"}, None, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


# guard.check_size


async def test_urls_and_headers_have_a_length_they_may_not_pass(page):
    assert (await page.get("/api/v1/runs?q=" + "a" * guard.LONGEST_URL)).status == 414
    assert (await page.get("/api/v1/runs", x_more="a" * guard.MOST_HEADERS)).status == 431


# assets: a fixed map, no path is joined

TRAVERSALS = [
    "../app.py",
    "..%2fapp.py",
    "..%2Fapp.py",
    "%2e%2e/app.py",
    "%2e%2e%2fapp.py",
    "%252e%252e%252fapp.py",
    "..%5capp.py",
    "..\\app.py",
    "....//app.py",
    "....\\/app.py",
    ".%2e/app.py",
    "..;/app.py",
    "..%00/app.py",
    "%c0%ae%c0%ae/app.py",
    "..%c0%afapp.py",
    "..%ef%bc%8fapp.py",
    "%uff0e%uff0e/app.py",
    "/etc/passwd",
    "//etc/passwd",
    "%2fetc%2fpasswd",
    "file:///etc/passwd",
    "./app.py",
    "./../app.py",
    "a/../../app.py",
    "..",
    ".",
    "",
    "index.html%00",
    "index.html/",
    "~root",
    "C:/windows",
    "__init__.py",
]


async def test_no_path_leads_out_of_the_files_of_the_dashboard(page):
    from holdfast.web.assets import assets

    for path in TRAVERSALS:
        for prefix in (f"/static/{assets().hash}/", "/static/"):
            assert (await page.get(prefix + path)).status == 404, path


async def test_a_file_is_served_under_the_hash_of_all_files_only(page):
    """Browsers keep it for ever: under another hash it would be taken for that of another version."""
    from holdfast.web.assets import assets

    for prefix, status in ((assets().hash, 200), ("0" * 16, 404), ("", 404)):
        assert (await page.get(f"/static/{prefix}/js/main.js")).status == status
