"""What the HTTP API shows, and what it says when it cannot."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from tests.support.asgi import Browser
from tests.web.shop import approve, house, order, viewer

from holdfast import Engine
from holdfast.errors import BadInput
from holdfast.web import Principal, dashboard
from holdfast.web.auth import HostSignIn
from holdfast.web.routes import routes


@pytest.fixture
async def shop(address):
    async with house(address) as engine:
        yield engine


@pytest.fixture
def page(shop: Engine) -> Browser:
    return Browser(dashboard(shop, authenticate=viewer("admin")))


async def test_the_server_says_what_it_is_and_who_asks(page, mode, address):
    reply = await page.get("/api/v1/")
    assert reply.status == 200
    assert reply.json | {"version": ""} == {
        "version": "",
        "store": "postgres" if mode == "postgres" else "sqlite",
        "durability": "power",
        "name": "kim",
        "role": "admin",
        "features": reply.json["features"],
        "database": urlsplit(address).path.strip("/") if mode == "postgres" else "",
        "open": False,
        "logs_url": "",
    }


async def test_runs_are_listed_with_why_page_by_page(page, shop):
    for n in range(3):
        await (await shop.start(order, f"item-{n}", id=f"order-{n}")).result()
    first = (await page.get("/api/v1/runs?q=workflow:order&limit=2")).json
    assert [run["id"] for run in first["items"]] == ["order-2", "order-1"]
    assert first["items"][0]["why"]["code"] == "completed"
    rest = (await page.get(f"/api/v1/runs?q=workflow:order&limit=2&cursor={first['next']}")).json
    assert [run["id"] for run in rest["items"]] == ["order-0"]
    assert rest["next"] is None
    other = await page.get(f"/api/v1/runs?q=status:failed&cursor={first['next']}")
    assert (other.status, other.json["type"]) == (400, "/api/v1/problems/bad-cursor")


async def test_runs_are_counted(page, shop):
    await (await shop.start(order, "item", id="order-7")).result()
    assert (await page.get("/api/v1/counts/runs?q=status:completed")).json == {"n": 1, "exact": True}
    counts = {each["status"]: each["n"] for each in (await page.get("/api/v1/counts")).json["items"]}
    assert counts["completed"] == 1


async def test_a_run_is_shown_from_all_its_sides(page, shop):
    await (await shop.start(order, "item", id="order-7")).result()
    run = (await page.get("/api/v1/runs/order-7")).json
    assert (run["head"]["status"], run["input"], run["output"]) == ("completed", {"item": "item"}, "packed item")
    assert (await page.get("/api/v1/runs/order-7/why")).json["code"] == "completed"
    steps = (await page.get("/api/v1/runs/order-7/steps")).json
    assert [(step["name"], step["result"]) for step in steps["items"]] == [("pack", "packed item")]
    history = (await page.get("/api/v1/runs/order-7/history?limit=2")).json
    assert [fact["path"] for fact in history["items"]] == ["pack"]
    rest = (await page.get(f"/api/v1/runs/order-7/history?after={history['next']}")).json
    assert rest["items"]
    assert rest["next"] is None


async def test_a_run_that_did_not_change_is_not_sent_again(page, shop):
    run = await shop.start(approve, id="order-7")
    await page.app._desk.heads("id:order-7")  # it is there
    first = await page.get("/api/v1/runs/order-7")
    again = await page.get("/api/v1/runs/order-7", if_none_match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    await run.send("approved", True)
    await run.result()
    assert (await page.get("/api/v1/runs/order-7", if_none_match=first.headers["etag"])).status == 200


async def test_sentences_say_times_as_they_are_asked_to(page, shop):
    await shop.start(approve, id="order-7")
    exact = (await page.get("/api/v1/runs/order-7/why")).json
    relative = (await page.get("/api/v1/runs/order-7/why?relative=true&zone=Europe/Berlin")).json
    assert exact["code"] == relative["code"] == "waiting.message"
    assert exact["sentence"] != relative["sentence"]


@pytest.mark.parametrize(
    ("path", "status", "code", "said"),
    [
        ("/api/v1/runs/none", 404, "no-such-run", "there is no run 'none'"),
        ("/api/v1/runs/a%20b", 400, "invalid-id", "A-Z a-z 0-9"),
        ("/api/v1/runs/..", 400, "invalid-id", "not only dots"),
        ("/api/v1/runs/a%2Fwhy", 404, "no-such-run", "'a'"),
        ("/api/v1/runs?q=status:nonsense", 400, "bad-filter", "nonsense"),
        ("/api/v1/runs?q=workflo:order", 400, "bad-filter", "workflow"),
        ("/api/v1/runs?cursor=abc", 400, "bad-cursor", "begin without it"),
        ("/api/v1/runs?limit=0", 400, "bad-input", "between 1 and 200"),
        ("/api/v1/runs?limit=many", 400, "bad-request", "limit"),
        ("/api/v1/runs?colour=red", 400, "bad-request", "q, limit, cursor"),
        ("/api/v1/runs?q=a&q=b", 400, "bad-request", "twice"),
        ("/api/v1/runs?q=%FF", 400, "bad-request", "cannot be read"),
        ("/api/v1/runs?zone=Mars", 400, "bad-input", "Europe/Berlin"),
        ("/api/v1/nothing", 404, "no-such-path", "openapi.json"),
        ("/nothing", 404, "not-found", "nothing here"),
    ],
)
async def test_what_cannot_be_answered_is_a_problem_that_says_why(page, path, status, code, said):
    reply = await page.get(path)
    assert (reply.status, reply.headers["content-type"]) == (status, "application/problem+json")
    assert reply.json["type"] == f"/api/v1/problems/{code}"
    assert reply.json["status"] == status
    assert said in reply.json["detail"]
    assert reply.json["instance"] == reply.headers["x-request-id"]
    assert (await page.get(reply.json["type"])).body.startswith(code.encode())


async def test_to_a_browser_an_address_that_is_none_is_the_page_which_says_so(page):
    reply = await page.get("/nothing", accept="text/html,*/*;q=0.8")
    assert (reply.status, reply.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "script-src 'self'" in reply.headers["content-security-policy"]


@pytest.mark.parametrize("path", sorted({route.path for route in routes() if "{" in route.path}))
async def test_an_id_that_none_can_be_is_refused_by_every_route_before_anything_is_asked(page, monkeypatch, path):
    """Also where the engine would only say that there is no such worker, letter or token."""
    monkeypatch.setattr(page.app, "_desk", None)
    for wrong in ("a%20b", "...", "%C3%A9", "a%00", "<b>", "x" * 256):
        reply = await page.get("/api/v1" + path.replace("{id}", wrong))
        assert (reply.status, reply.json["type"]) == (400, "/api/v1/problems/invalid-id"), wrong


async def test_what_cannot_be_done_here_is_said(page):
    reply = await page.send("DELETE", "/api/v1/runs")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, POST")


async def test_a_defect_tells_the_log_and_not_the_client(page, caplog):
    page.app._sign_in = HostSignIn(lambda request: 1 / 0)
    reply = await page.get("/api/v1/runs")
    assert (reply.status, reply.json["type"]) == (500, "/api/v1/problems/defect")
    assert "ZeroDivisionError" not in reply.body.decode()
    assert reply.headers["x-request-id"] in caplog.text
    assert "ZeroDivisionError" in caplog.text


async def test_it_is_mounted_under_any_path(shop):
    page = Browser(dashboard(shop, authenticate=viewer("admin")), root="/house/workflows")
    assert (await page.get("/api/v1/runs")).json["items"] == []
    assert (await page.get("/api/v1/runs/none")).json["type"] == "/house/workflows/api/v1/problems/no-such-run"
    shown = (await page.get("/runs")).body.decode()
    assert "/house/workflows/static/" in shown
    assert "{{" not in shown
    bare = await page.get("")
    assert (bare.status, bare.headers["location"]) == (307, "/house/workflows/")


async def test_authenticate_may_be_async(shop):
    async def who(request):
        return Principal("kim", "viewer") if request.headers.get("x-user") == "kim" else None

    page = Browser(dashboard(shop, authenticate=who))
    assert (await page.get("/api/v1/", x_user="kim")).json["role"] == "viewer"
    refused = await page.get("/api/v1/")
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    with pytest.raises(BadInput, match="not both"):
        dashboard(shop, authenticate=who, dangerously_open=True)


async def test_an_open_dashboard_says_so_in_the_log(shop, caplog):
    page = Browser(dashboard(shop, dangerously_open=True))
    assert {"role": "admin", "open": True}.items() <= (await page.get("/api/v1/")).json.items()
    assert "anyone who reaches it is an admin" in caplog.text


async def test_it_says_where_the_logs_of_a_run_are(shop):
    there = "https://logs.example.com/?q={run_id}"
    page = Browser(dashboard(shop, authenticate=viewer(), logs_url=there))
    assert (await page.get("/api/v1/")).json["logs_url"] == there
    for wrong in ("javascript:alert('{run_id}')", "logs.example.com/{run_id}", "https://logs.example.com/"):
        with pytest.raises(BadInput, match="logs_url must be an address with"):
            dashboard(shop, authenticate=viewer(), logs_url=wrong)
