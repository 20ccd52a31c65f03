"""Dead letters, workers, queues, limits, events, schedules and the audit trail over HTTP."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.asgi import Browser
from tests.support.waiting import eventually
from tests.web.shop import approve, fail, house, order, viewer

from holdfast import Engine
from holdfast.web import dashboard


@pytest.fixture
async def shop(address):
    async with house(address) as engine:
        yield engine


@pytest.fixture
def page(shop: Engine) -> Browser:
    return Browser(dashboard(shop, authenticate=viewer("reader")))


async def items(page: Browser, path: str):
    reply = await page.get(f"/api/v1{path}")
    assert reply.status == 200, reply.json
    return reply.json["items"]


async def test_dead_letters_are_listed_and_grouped(page, shop):
    await shop.start(fail, id="order-7")

    async def there():
        return len(await items(page, "/letters")) == 1

    await eventually(there)
    [letter] = await items(page, "/letters")
    assert (letter["run"], letter["step"], letter["error"]["type"]) == ("order-7", "break_down", "ValueError")
    assert await items(page, "/letters?seen=true") == []
    assert len(await items(page, "/letters?seen=all")) == 1
    assert await items(page, f"/letters?before={letter['id']}") == []
    assert await items(page, "/letters?workflow=other") == []
    assert len(await items(page, "/letters?workflow=fail&before=~")) == 1
    assert [(group["step"], group["count"]) for group in await items(page, "/letters/groups")] == [("break_down", 1)]


async def test_the_house_is_shown(page, shop, mode):
    [worker] = await items(page, "/workers")
    assert worker["state"] == "alive"
    assert (await page.get(f"/api/v1/workers/{worker['id']}")).json["id"] == worker["id"]
    assert (await page.get("/api/v1/workers/none")).status == 404
    assert await items(page, "/queues") == []
    assert await items(page, "/limits") == []
    assert (await page.get("/api/v1/database")).json["kind"] == ("postgres" if mode == "postgres" else "sqlite")
    assert {finding["level"] for finding in await items(page, "/doctor")}
    await shop.start(approve, id="order-7")
    assert await items(page, "/runs/order-7/held-back") == []


async def test_the_newest_hour_of_figures_is_asked_for_by_its_length(page, shop):
    hour = (await page.get("/api/v1/figures?by=time&last=PT1H")).json
    assert (hour["slot"], len(hour["items"])) == (60, 61)
    assert (await page.get("/api/v1/figures?last=soon")).status == 400


async def test_figures_are_told_by_step_workflow_or_time(page, shop):
    for by, slots in (("step", 0), ("workflow", 0), ("time", 145)):
        reply = await page.get(f"/api/v1/figures?by={by}")
        assert (reply.status, reply.json["by"], len(reply.json["items"])) in ((200, by, slots), (200, by, slots - 1))
    assert (await page.get("/api/v1/figures?by=moon")).status == 400
    assert (await page.get("/api/v1/figures?since=2400-01-01T00:00:00Z")).status == 400


async def test_events_are_listed_by_name(page, shop):
    await shop.publish("stock", {"item": 7})
    assert [(each["name"], each["queued"]) for each in await items(page, "/events")] == [("stock", 1)]
    queued = (await page.get("/api/v1/events/queued?name=stock")).json
    assert [event["payload"] for event in queued["queued"]] == [{"item": 7}]


async def test_schedules_are_listed_with_their_next_ticks(page, shop):
    await shop.schedules.put("nightly", order, "item", every=timedelta(hours=1))
    assert [each["id"] for each in await items(page, "/schedules")] == ["nightly"]
    assert len(await items(page, "/schedules/preview?id=nightly&n=3")) == 3
    assert len(await items(page, "/schedules/preview?cron=0+9+*+*+*&timezone=Europe/Berlin&n=2")) == 2
    assert (await page.get("/api/v1/schedules/preview?id=none")).json["type"].endswith("no-such-schedule")
    assert (await page.get("/api/v1/schedules/preview?cron=61+*+*+*+*")).status == 400
    [past] = await items(page, "/schedules/past?id=nightly&start=2026-01-01T00:00:00Z&end=2026-01-01T01:00:00Z")
    assert past["note"] == "it was before the schedule was put"
    assert (await page.get("/api/v1/schedules/past?id=nightly&start=2020-01-01T00:00:00Z")).status == 400
    assert (await page.get("/api/v1/schedules/past?id=none")).status == 404


async def test_the_audit_trail_is_listed_newest_first_and_checked(page, shop):
    run = await shop.start(approve, id="order-7")
    await run.pause(by="lena", reason="bank down")
    await run.resume(by="kim")
    assert [row["actor"] for row in await items(page, "/audit")] == ["kim", "lena"]
    assert [row["action"] for row in await items(page, "/audit?actor=lena")] == ["pause"]
    assert (await page.get("/api/v1/audit/verify")).json["ok"]
    assert (await page.get("/api/v1/audit?since=yesterday")).status == 400


async def test_bars_are_of_the_runs_that_a_filter_finds(page, shop):
    await (await shop.start(order, "lamp", id="done", attributes={"customer": "c-1"})).result()
    await (await shop.start(order, "lamp", id="other")).result()
    await shop.start(fail, id="failed", attributes={"customer": "c-1"})
    await eventually(lambda: _is(shop, "failed", "failed"))
    found = (await page.get("/api/v1/bars?q=customer=c-1")).json
    assert (sum(each["ended"] for each in found["items"]), sum(each["failed"] for each in found["items"])) == (2, 1)
    assert (found["partial"], found["slot"], len(found["items"])) == (False, 600, pytest.approx(144, abs=1))
    assert sum(each["ended"] for each in (await page.get("/api/v1/bars?q=status:completed")).json["items"]) == 2
    for wrong in ("/api/v1/bars?q=done", "/api/v1/bars?q=is:attention", "/api/v1/bars?q=status:failed&workflow=order"):
        assert (await page.get(wrong)).json["type"] == "/api/v1/problems/bad-filter"
    assert (await page.get("/api/v1/bars?q=status:failed&until=2020-01-01T00:00:00Z")).json["items"]
    assert (await page.get("/api/v1/bars?q=status:failed&since=2990-01-01T00:00:00Z")).status == 400


async def _is(shop: Engine, run_id: str, status: str) -> bool:
    return (await shop.get(run_id).status()).value == status


async def test_long_inputs_of_schedules_and_payloads_of_events_are_cut_where_a_page_asks_for_it(page, shop):
    """Fifty events may have a hundred megabytes, and a page is sent them each time one is published."""
    await shop.schedules.put("nightly", order, "x" * 200_000, cron="30 2 * * *")
    await shop.publish("parcel", {"text": "x" * 200_000})
    for path, value in (
        ("/schedules?", lambda answer: answer["items"][0]["input"]),
        ("/events/queued?name=parcel&", lambda answer: answer["queued"][0]["payload"]),
    ):
        whole = value((await page.get(f"/api/v1{path}")).json)
        assert len(str(whole)) > 200_000
        cut = value((await page.get(f"/api/v1{path}cut=true")).json)
        assert cut["cut_from_bytes"] > 200_000
        assert len(cut["begins"]) == 2_000
