"""Starting, sending, asking, publishing, dead letters, schedules and pauses over HTTP."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.asgi import Browser
from tests.support.waiting import eventually
from tests.web.shop import approve, fail, house, order, viewer

from holdfast import Engine
from holdfast.contract.limits import LimitSpec, PutLimit
from holdfast.web import dashboard


@pytest.fixture
async def shop(address):
    async with house(address) as engine:
        yield engine


@pytest.fixture
def page(shop: Engine) -> Browser:
    return Browser(dashboard(shop, authenticate=viewer("admin")))


async def test_a_run_is_started_once(page, shop):
    body = {"workflow": "order", "arguments": {"item": "book"}, "id": "order-7", "reason": "by hand"}
    first = await page.post("/api/v1/runs", body)
    assert (first.status, first.headers["location"]) == (201, "/api/v1/runs/order-7")
    assert await shop.get("order-7").result() == "packed book"
    again = await page.post("/api/v1/runs", body)
    assert (again.status, again.json["changed"]) == (200, False)
    other = await page.post("/api/v1/runs", body | {"arguments": {"item": "pen"}})
    assert (other.status, other.json["run_id"]) == (409, "order-7")
    [row] = (await page.get("/api/v1/runs/order-7/audit")).json["items"]
    assert (row["actor"], row["action"]) == ("kim", "start")


async def test_the_key_of_a_request_is_the_id_of_its_run(page):
    body = {"workflow": "order", "arguments": {"item": "book"}}
    assert (await page.post("/api/v1/runs", body, idempotency_key="key-1")).json["run"] == "key-1"
    assert (await page.post("/api/v1/runs", body, idempotency_key="key-1")).status == 200


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"workflow": "ordr"}, 400, "unknown-workflow"),
        ({"workflow": "order"}, 400, "bad-input"),
        ({"workflow": "order", "arguments": {"item": "a"}, "id": "a b"}, 400, "invalid-id"),
        ({"arguments": {}}, 422, "unprocessable"),
    ],
)
async def test_a_start_that_cannot_be_meant_is_refused(page, body, status, code):
    reply = await page.post("/api/v1/runs", body)
    assert (reply.status, reply.json["type"]) == (status, f"/api/v1/problems/{code}")


async def test_a_payload_that_is_too_large_is_refused(page, shop):
    await shop.start(approve, id="order-7")
    reply = await page.post("/api/v1/runs/order-7/messages", {"name": "approved", "payload": "a" * (2 << 20)})
    assert (reply.status, reply.json["type"]) == (413, "/api/v1/problems/too-large")
    reply = await page.post("/api/v1/runs/order-7/messages", {"name": "approved", "payload": "a" * (3 << 20)})
    assert (reply.status, "body is longer" in reply.json["detail"]) == (413, True)


async def test_a_message_reaches_a_run_and_one_that_ended_takes_none(page, shop):
    run = await shop.start(approve, id="order-7")
    await page.post("/api/v1/runs/order-7/messages", {"name": "other", "payload": 1})
    unread = (await page.get("/api/v1/runs/order-7/inbox")).json["items"]
    assert [(each["name"], each["payload"]) for each in unread] == [("other", 1)]
    assert (await page.post("/api/v1/runs/order-7/messages", {"name": "approved", "payload": {"by": "lena"}})).json[
        "changed"
    ]
    assert await run.result() == {"by": "lena"}
    ended = (await page.get("/api/v1/runs/order-7/result?wait=PT1S")).json
    assert (ended["status"], ended["output"]) == ("completed", {"by": "lena"})
    late = await page.post("/api/v1/runs/order-7/messages", {"name": "approved"})
    assert (late.status, late.json["run_id"]) == (409, "order-7")


async def test_no_reply_in_time_is_said(page, shop):
    await shop.start(approve, id="order-7")
    reply = await page.post("/api/v1/runs/order-7/requests", {"name": "state", "timeout": "PT0.01S"})
    assert (reply.status, reply.json["type"]) == (504, "/api/v1/problems/timed-out")
    assert (await page.post("/api/v1/runs/order-7/requests", {"name": "a", "timeout": "PT2M"})).status == 400
    assert (await page.post("/api/v1/runs/order-7/requests", {"name": "a", "timeout": "PT0S"})).status == 504
    assert (await page.post("/api/v1/runs/order-7/queries", {"name": "state"})).json["type"].endswith("unknown-query")


async def test_an_event_is_published(page):
    assert (await page.post("/api/v1/events", {"name": "stock", "payload": 7})).json["said"] == "stock waits for a run"


async def test_dead_letters_are_seen_replayed_and_forgotten(page, shop):
    await shop.start(fail, id="order-7")

    async def there():
        return (await page.get("/api/v1/letters")).json["items"]

    await eventually(there)
    [letter] = await there()
    where = f"/api/v1/letters/{letter['id']}"
    assert (await page.get(where)).json["letter"]["run"] == "order-7"
    assert (await page.post(f"{where}/acknowledge", {"reason": "known"})).json["changed"]
    assert (await page.post(f"{where}/replay", {})).json["changed"]
    assert (await page.send("DELETE", f"{where}?reason=done")).json["changed"]
    assert (await page.get(where)).json["type"].endswith("no-such-letter")


async def test_a_schedule_is_put_paused_triggered_and_deleted(page):
    body = {"workflow": "order", "arguments": {"item": "book"}, "cron": "0 9 * * *"}
    put = await page.send("PUT", "/api/v1/schedules?id=daily", msgspec.json.encode(body))
    assert put.json["changed"], put.json
    assert (await page.post("/api/v1/schedules/pause", {"id": "daily"})).json["changed"]
    assert (await page.post("/api/v1/schedules/resume", {"id": "daily"})).json["changed"]
    assert (await page.post("/api/v1/schedules/trigger", {"id": "daily"})).json["run"].startswith("daily:")
    span = {"id": "daily", "start": "2026-01-01T00:00:00Z", "end": "2026-01-03T00:00:00Z"}
    assert len((await page.post("/api/v1/schedules/backfill", span)).json["started"]) == 2
    again = {"workflow": "order", "arguments": None, "cron": "0 8 * * *"}
    assert (await page.send("PUT", "/api/v1/schedules?id=daily", msgspec.json.encode(again))).json["changed"]
    [shown] = (await page.get("/api/v1/schedules")).json["items"]
    assert (shown["when"], shown["input"]) == ("0 8 * * * UTC", {"item": "book"}), "the arguments did not stay"
    assert (await page.send("PUT", "/api/v1/schedules?id=none", msgspec.json.encode(again))).status == 404
    assert (await page.send("DELETE", "/api/v1/schedules?id=daily")).json["changed"]
    assert (await page.send("DELETE", "/api/v1/schedules?id=daily")).status == 404


async def test_work_is_paused_as_a_whole(page):
    assert (await page.post("/api/v1/work/pause", {"kind": "queue", "name": "gpu", "reason": "hot"})).json["changed"]
    assert (await page.post("/api/v1/work/resume", {"kind": "queue", "name": "gpu"})).json["changed"]
    assert (await page.post("/api/v1/work/pause", {"kind": "planet", "name": "gpu"})).status == 422
    unknown = await page.post("/api/v1/work/pause", {"kind": "limit", "name": "openai"})
    assert (unknown.status, unknown.json["error"]) == (400, "UnknownLimit")


async def test_other_numbers_of_a_limit_are_put_in_force_and_cleared(page, shop):
    await shop.store.apply([PutLimit(name="openai", spec=LimitSpec(at_once=10), at=0, now=0)])
    put = await page.send("PUT", "/api/v1/limits?name=openai&reason=INC-7", b'{"at_once": 2, "per": "PT1M"}')
    assert (put.status, put.json["changed"]) == (200, True)
    [limit] = (await page.get("/api/v1/limits")).json["items"]
    assert (limit["allows"], limit["declared"], limit["overridden"]) == ("2 at once", "10 at once", True)
    assert (limit["numbers"]["at_once"], limit["numbers"]["per"]) == (2, "PT60S")
    assert (await page.send("PUT", "/api/v1/limits?name=openai", b'{"at_onse": 2}')).status == 422
    assert (await page.send("PUT", "/api/v1/limits?name=openai", b'{"burst": 2}')).status == 400
    assert (await page.send("DELETE", "/api/v1/limits?name=openai")).json["changed"]
    assert not (await page.get("/api/v1/limits")).json["items"][0]["overridden"]


async def test_what_is_old_is_counted_before_it_is_deleted(page, shop):
    await (await shop.start(order, "book", id="order-7")).result()
    body = {"kinds": ["completed"], "older_than": "PT0S"}
    assert (await page.post("/api/v1/purge", body)).json["dry_run"]
    assert (await page.get("/api/v1/runs/order-7")).status == 200


async def test_a_filter_is_completed(page, shop):
    await shop.start(approve, id="order-7", attributes={"customer": "c-1"})

    async def words(q, at=None):
        found = await page.get(f"/api/v1/suggest?q={q}" + (f"&at={at}" if at is not None else ""))
        return [each["text"] for each in found.json["items"]]

    assert await words("st") == ["status:"]
    assert await words("is:open status:fa") == ["status:failed"]
    assert await words("-status:failed,ca") == ["-status:failed,cancelling", "-status:failed,cancelled"]
    assert await words("workflow:app") == ["workflow:approve"]
    assert "customer=" in await words("cus")
    assert await words("customer=c") == ["customer=c-1"]
    assert await words("wor is:open", 3) == ["workflow:"]


async def test_runs_of_a_filter_are_counted_by_status(page, shop):
    await shop.start(approve, id="order-7")
    await (await shop.start(order, "book", id="order-8")).result()
    found = (await page.get("/api/v1/counts?q=id:order-*")).json["items"]
    assert {each["status"]: each["n"] for each in found if each["n"]}.get("completed") == 1
    done = (await page.get("/api/v1/counts?q=id:order-*+status:completed")).json["items"]
    assert sum(each["n"] for each in done) == 1
    assert (await page.get("/api/v1/counts?q=status:nonsense")).status == 400


async def test_a_recording_can_be_replayed(page, shop):
    await (await shop.start(order, "book", id="order-7")).result()
    recorded = (await page.get("/api/v1/runs/order-7/recording")).json
    assert recorded["workflow"] == "order"
