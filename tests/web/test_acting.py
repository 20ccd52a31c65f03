"""Acts over HTTP: on one run and on many, by whom, with a dry run first, and on record."""

from __future__ import annotations

import pytest
from tests.support.asgi import Browser
from tests.support.waiting import eventually
from tests.web.shop import approve, fail, house, order, viewer

from holdfast import Engine
from holdfast.web import dashboard
from holdfast.web.auth import ROLES
from holdfast.web.resources import bulk
from holdfast.web.routes import routes


@pytest.fixture
async def shop(address):
    async with house(address) as engine:
        yield engine


@pytest.fixture
def page(shop: Engine) -> Browser:
    return Browser(dashboard(shop, authenticate=viewer("admin")))


async def acts_on(page: Browser, run_id: str) -> list[tuple[str, str, object]]:
    items = (await page.get(f"/api/v1/audit?target={run_id}")).json["items"]
    return [(row["actor"], row["action"], (row["detail"] or {}).get("reason")) for row in items]


async def test_a_run_is_paused_and_resumed_by_the_one_who_asks(page, shop):
    await shop.start(approve, id="order-7")
    reply = await page.post("/api/v1/runs/order-7/pause", {"reason": "bank down"})
    assert (reply.status, reply.json["changed"]) == (200, True)
    await eventually(lambda: _is(shop, "order-7", "paused"))
    assert (await acts_on(page, "order-7"))[0] == ("kim", "pause", "bank down")
    other = await page.post("/api/v1/runs/order-7/recover", {})
    assert (other.json["changed"], other.json["said"]) == (False, "it is paused")
    assert (await page.post("/api/v1/runs/order-7/resume", {})).json["changed"]
    assert (await acts_on(page, "order-7"))[0][:2] == ("kim", "resume")


async def test_a_dry_run_changes_nothing(page, shop):
    await shop.start(approve, id="order-7")
    reply = await page.post("/api/v1/runs/order-7/cancel", {"dry_run": True})
    assert (reply.json["changed"], reply.json["said"]) == (False, "")
    assert await acts_on(page, "order-7") == []


async def test_a_failed_run_is_retried_cancelled_terminated_and_done_again(page, shop):
    run = await shop.start(fail, id="order-7")
    await eventually(lambda: _is(shop, "order-7", "failed"))
    planned = (await page.post("/api/v1/runs/order-7/retry", {"dry_run": True})).json
    assert (planned["changed"], planned["steps"]) == (False, ["break_down"])
    assert (await page.post("/api/v1/runs/order-7/retry", {"reason": "again"})).json["changed"]
    await eventually(lambda: _is(shop, "order-7", "failed"))
    wrong = await page.post("/api/v1/runs/order-7/rerun", {"from_step": "break_dwn"})
    assert wrong.status == 409
    assert "break_down" in wrong.json["detail"]
    assert (await page.post("/api/v1/runs/order-7/rerun", {"from_step": "break_down"})).json["changed"]
    await eventually(lambda: _is(shop, "order-7", "failed"))
    assert not (await page.post("/api/v1/runs/order-7/terminate", {"reason": "late"})).json["changed"]
    assert (await run.status()).value == "failed"


async def test_attributes_are_merged(page, shop):
    await shop.start(approve, id="order-7", attributes={"colour": "red", "size": 3})
    patch = b'{"colour": null, "customer": "c-1"}'
    reply = await page.send("PATCH", "/api/v1/runs/order-7/attributes?reason=wrong", patch)
    assert reply.json["changed"]
    run = (await page.get("/api/v1/runs/order-7")).json
    assert run["head"]["attributes"] == {"size": 3, "customer": "c-1"}


async def test_what_changed_since_it_was_looked_at_is_not_acted_on(page, shop):
    run = await shop.start(approve, id="order-7")
    seen = (await page.get("/api/v1/runs/order-7")).headers["etag"]
    await run.set_attributes({"seen": True})
    reply = await page.post("/api/v1/runs/order-7/cancel", {}, if_match=seen)
    assert (reply.status, reply.json["type"]) == (412, "/api/v1/problems/precondition-failed")
    now = (await page.get("/api/v1/runs/order-7")).headers["etag"]
    assert (await page.post("/api/v1/runs/order-7/cancel", {}, if_match=now)).json["changed"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "no JSON at byte 1"),
        (b'{"reason": "a", "reason": "b"}', 400, "'reason' stands twice"),
        (b'{"reason": NaN}', 400, "NaN"),
        (b'{"reason": 1e999}', 400, "too large"),
        (b'{"reason": ' + b"9" * 5_000 + b"}", 400, "too long"),
        (b'{"reason": "\xff"}', 400, "no UTF-8 at byte 12"),
        (b"{} {}", 400, "no JSON at byte 3"),
        (b"[" * 100_000, 413, "longer than"),
        (b'{"reason": ' + b"[" * 70 + b"]" * 70 + b"}", 400, "nested deeper than 64"),
        (b"[" * 60_000, 400, "nested deeper than 64"),
        (b'{"colour": "red"}', 422, "colour"),
        (b'{"reason": 7}', 422, "reason"),
        (b"[]", 422, "object"),
        (b'{"reason": "\\ud800"}', 400, "reason"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_body_that_cannot_be_read_changes_nothing(page, shop, body, status, said):
    await shop.start(approve, id="order-7")
    reply = await page.send("POST", "/api/v1/runs/order-7/cancel", body)
    assert (reply.status, said in reply.json["detail"]) == (status, True), reply.json
    assert await acts_on(page, "order-7") == []


@pytest.mark.parametrize("kind", ["text/plain", "application/json; charset=latin-1", None])
async def test_a_body_with_a_token_must_be_json_too(page, shop, kind):
    await shop.start(approve, id="order-7")
    headers = {"authorization": "Bearer hf_x", "content-type": kind}
    assert (await page.send("POST", "/api/v1/runs/order-7/cancel", b"{}", headers)).status == 415


async def test_a_compressed_body_is_refused(page):
    reply = await page.send("POST", "/api/v1/runs/x/cancel", b"{}", {"content-encoding": "gzip"})
    assert reply.status == 415


# Many runs.


async def test_many_runs_are_counted_first_and_then_acted_on(page, shop):
    for n in range(5):
        await shop.start(approve, id=f"order-{n}")
    await (await shop.start(order, "item", id="order-done")).result()
    chosen = (await page.post("/api/v1/bulk", {"action": "pause", "q": "id:order-*"})).json
    assert (chosen["matched"], chosen["can"], chosen["cannot"]) == (6, 5, {"completed": 1})
    await shop.start(approve, id="order-later")
    begun = await page.post(
        "/api/v1/bulk", {"action": "pause", "selection": chosen["selection"], "dry_run": False, "reason": "bank"}
    )
    assert (begun.status, begun.headers["location"]) == (202, f"/api/v1/bulk/{begun.json['id']}")
    done = await finished(page, begun.json["id"])
    assert (done["progress"]["changed"], done["progress"]["cannot"]) == (5, {"completed": 1})
    assert (await page.get("/api/v1/counts/runs?q=status:paused")).json["n"] == 5
    assert (await acts_on(page, "order-0"))[0] == ("kim", "pause", "bank")


async def test_runs_are_named_one_by_one(page, shop):
    for n in range(2):
        await shop.start(approve, id=f"order-{n}")
    ids = ["order-0", "order-1"]
    gone = await page.post("/api/v1/bulk", {"action": "cancel", "ids": [*ids, "none"]})
    assert (gone.status, gone.json["run_id"]) == (404, "none")
    chosen = (await page.post("/api/v1/bulk", {"action": "cancel", "ids": ids})).json
    assert (chosen["can"], chosen["cannot"]) == (2, {})
    begun = await page.post("/api/v1/bulk", {"action": "cancel", "selection": chosen["selection"], "dry_run": False})
    assert (await finished(page, begun.json["id"]))["progress"]["changed"] == 2


async def test_any_process_on_the_database_uses_a_selection(page, shop):
    """The one that a request comes to need not be the one that counted."""
    await shop.start(approve, id="order-7")
    chosen = (await page.post("/api/v1/bulk", {"action": "pause", "q": "id:order-*"})).json["selection"]
    other = Browser(dashboard(shop, authenticate=viewer("operator")))
    begun = await other.post("/api/v1/bulk", {"action": "pause", "selection": chosen, "dry_run": False})
    assert (begun.status, (await finished(other, begun.json["id"]))["progress"]["changed"]) == (202, 1)


async def test_only_an_admin_acts_on_more_than_a_thousand(shop, monkeypatch):
    """What was counted is in the selection, and signed."""
    for n in range(3):
        await shop.start(approve, id=f"order-{n}")
    monkeypatch.setattr(bulk, "MOST_OF_OPERATORS", 2)
    operator, admin = (Browser(dashboard(shop, authenticate=viewer(role))) for role in ("operator", "admin"))
    chosen = (await operator.post("/api/v1/bulk", {"action": "pause", "q": "id:order-*"})).json["selection"]
    act = {"action": "pause", "selection": chosen, "dry_run": False}
    refused = await operator.post("/api/v1/bulk", act)
    assert (refused.status, refused.json["role"]) == (403, "admin")
    assert (await admin.post("/api/v1/bulk", act)).status == 202


async def finished(page: Browser, bulk_id: str):
    view = {}

    async def over():
        view.update((await page.get(f"/api/v1/bulk/{bulk_id}")).json)
        return view["state"] != "running"

    await eventually(over)
    assert view["state"] == "finished", view
    return view


async def test_an_act_on_many_is_stopped_after_the_page_in_hand(page, shop):
    await shop.start(approve, id="order-7")
    chosen = (await page.post("/api/v1/bulk", {"action": "pause", "q": "id:order-*"})).json
    begun = await page.post("/api/v1/bulk", {"action": "pause", "selection": chosen["selection"], "dry_run": False})
    stopped = await page.send("DELETE", f"/api/v1/bulk/{begun.json['id']}")
    assert stopped.json["state"] in ("stopped", "finished")


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"action": "pause", "q": ""}, 400, "needs a filter"),
        ({"action": "explode", "q": "id:a*"}, 400, "there is no act"),
        ({"action": "pause"}, 400, "give q or ids"),
        ({"action": "pause", "q": "id:a*", "ids": ["a"]}, 400, "give q or ids"),
        ({"action": "pause", "q": "id:a*", "dry_run": False}, 400, "give q or ids"),
        ({"action": "pause", "selection": "abc", "dry_run": False}, 409, "no selection that a dry run made"),
        ({"action": "pause", "ids": []}, 400, "needs a filter"),
        ({"action": "pause", "ids": ["a b"]}, 400, "'a b'"),
    ],
)
async def test_an_act_on_many_that_cannot_be_meant_is_refused(page, body, status, said):
    reply = await page.post("/api/v1/bulk", body)
    assert (reply.status, said in reply.json["detail"]) == (status, True), reply.json


async def test_a_selection_cannot_be_changed_by_a_client(page, shop):
    await shop.start(approve, id="order-7")
    chosen = (await page.post("/api/v1/bulk", {"action": "pause", "q": "id:order-*"})).json["selection"]
    for wrong in (chosen[:-4], "A" + chosen[1:], chosen[:60] + ("A" if chosen[60] != "A" else "B") + chosen[61:]):
        reply = await page.post("/api/v1/bulk", {"action": "pause", "selection": wrong, "dry_run": False})
        assert reply.status == 409
    other = await page.post("/api/v1/bulk", {"action": "cancel", "selection": chosen, "dry_run": False})
    assert (other.status, "is for pause" in other.json["detail"]) == (400, True)


# Principal.need, in app._api


async def test_each_route_is_for_the_roles_that_the_table_says(shop):
    for role in ROLES:
        page = Browser(dashboard(shop, authenticate=viewer(role), rates=None))
        for route in routes():
            reply = await page.send(route.method, f"/api/v1{route.path.replace('{id}', 'none')}", b"!")
            allowed = ROLES.index(role) >= ROLES.index(route.role)
            assert (reply.status == 403) != allowed, (role, route.method, route.path, reply.status)
            if not allowed:
                assert reply.json["role"] == route.role


async def test_only_an_admin_terminates_many(shop):
    page = Browser(dashboard(shop, authenticate=viewer("operator")))
    assert (await page.post("/api/v1/bulk", {"action": "terminate", "q": "id:a*"})).status == 403


async def _is(shop: Engine, run_id: str, status: str) -> bool:
    return (await shop.get(run_id).status()).value == status
