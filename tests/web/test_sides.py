"""A run from more sides, and only as much of a list or of a count as was asked for.

Seen failing before the routes were there, with any name of a field taken, and with `count=false` counting all.
"""

from __future__ import annotations

import pytest
from tests.support.asgi import Browser
from tests.support.waiting import eventually
from tests.web.shop import approve, fail, house, order, viewer

from holdfast import Engine
from holdfast.looking.about.arguments import retry_words
from holdfast.looking.bulk import PAGE
from holdfast.policy import Retry
from holdfast.web import dashboard


@pytest.fixture
async def shop(address):
    async with house(address) as engine:
        yield engine


def page_of(shop: Engine, role: str = "admin") -> Browser:
    return Browser(dashboard(shop, authenticate=viewer(role), rates=None))


async def test_a_list_has_only_the_fields_that_were_asked_for_and_the_id(shop):
    page = page_of(shop)
    await shop.start(approve, id="waits", attributes={"iban": "DE1", "customer": "c-1"})
    found = (await page.get("/api/v1/runs?fields=status,attributes")).json
    assert [sorted(item) for item in found["items"]] == [["attributes", "id", "status"]]
    assert found["items"][0]["attributes"] == {"iban": "\u2022" * 6, "customer": "c-1"}
    assert (found["next"], found["partial"], "as_of" in found) == (None, False, True)
    wrong = await page.get("/api/v1/runs?fields=statu")
    assert (wrong.status, wrong.json["field"]) == (400, "fields")
    assert "did you mean status?" in wrong.json["detail"]


async def test_a_run_is_told_by_its_calls_and_by_what_happened(shop):
    page = page_of(shop)
    run = await shop.start(approve, id="waits")
    await run.send("approved", {"by": "lena"}, by="lena", reason="seen")
    await run.result()
    await shop.start(fail, "4711", id="fails")

    async def failed() -> bool:
        return (await page.get("/api/v1/runs/fails")).json["head"]["status"] == "failed"

    await eventually(failed)
    [call] = (await page.get("/api/v1/runs/waits/bars")).json["items"]
    assert (call["kind"], call["name"], call["status"]) == ("message", "approved", "completed")
    assert [mark["name"] for mark in call["marks"]] == ["approved"]
    [broken] = (await page.get("/api/v1/runs/fails/bars")).json["items"]
    assert [(bar["state"], bar["attempt"]) for bar in broken["bars"]] == [("failed", 1)]
    assert "4711" in broken["bars"][0]["error"]
    steps = (await page.get("/api/v1/runs/fails/steps")).json["items"]
    assert [(each["path"], each["attempts"], each["status"]) for each in steps] == [
        (broken["path"], broken["attempts"], broken["status"])
    ]
    told = (await page.get("/api/v1/runs/waits/timeline")).json["items"]
    assert told[0]["what"] == "run started"
    assert "send" in [each["what"] for each in told]
    assert told[-1]["what"] == "run completed"


async def test_a_long_run_is_told_by_its_newest_facts(shop):
    page = page_of(shop)
    await (await shop.start(order, "lamp", id="done")).result()
    whole = (await page.get("/api/v1/runs/done/bars?facts=5")).json
    assert (len(whole["items"]), whole["partial"]) == (1, False)
    for side in ("bars", "timeline"):
        part = (await page.get(f"/api/v1/runs/done/{side}?facts=1")).json
        assert part["partial"] is True
        for wrong in ("0", "10001"):
            assert (await page.get(f"/api/v1/runs/done/{side}?facts={wrong}")).status == 400
        assert (await page.get(f"/api/v1/runs/none/{side}")).status == 404


async def test_it_is_on_record_which_message_a_person_sent(shop):
    page = page_of(shop)
    await shop.start(approve, id="waits")
    await page.post("/api/v1/runs/waits/messages", {"name": "approved", "payload": 1})
    await shop.get("waits").result()
    [sent] = (await page.get("/api/v1/runs/waits/audit")).json["items"]
    facts = (await page.get("/api/v1/runs/waits/history")).json["items"]
    [taken] = [each["data"][1] for each in facts if each["kind"] == "message"]
    assert (sent["detail"]["name"], sent["detail"]["message"]) == ("approved", taken)


async def test_a_dry_run_need_not_count(shop):
    page, operator = page_of(shop), page_of(shop, "operator")
    for n in range(PAGE + 1):
        await shop.start(approve, id=f"many-{n}")
    body = {"action": "pause", "q": "id:many-*"}
    assert (await page.post("/api/v1/bulk", body)).json["matched"] == PAGE + 1
    part = (await page.post("/api/v1/bulk", {**body, "count": False})).json
    assert (part["matched"], part["exact"], part["can"]) == (PAGE, False, PAGE)
    act = {"action": "pause", "selection": part["selection"], "dry_run": False, "reason": "bank"}
    assert (await operator.post("/api/v1/bulk", act)).status == 403  # it may be more than an operator may act on
    begun = (await page.post("/api/v1/bulk", act)).json["id"]

    async def over() -> bool:
        return (await page.get(f"/api/v1/bulk/{begun}")).json["state"] == "finished"

    await eventually(over)
    assert (await page.get(f"/api/v1/bulk/{begun}")).json["progress"]["changed"] == PAGE + 1
    whole = (await page.post("/api/v1/bulk", {"action": "pause", "q": "id:many-2", "count": False})).json
    assert (whole["matched"], whole["exact"]) == (1, True)


def test_how_patiently_a_step_is_tried_again_is_said_in_words():
    minutes = Retry.default.max_interval and Retry.default.max_interval * 10
    assert retry_words(
        Retry(max_attempts=8, initial_interval=Retry.default.initial_interval * 20, max_interval=minutes)
    ) == ("2 s x 2, at most 5 min, 8 attempts")
    assert retry_words(Retry(max_attempts=None, coefficient=1.0)) == "0.1 s, without end"
    assert retry_words(Retry.never) == ""


async def test_the_newest_facts_that_a_retry_cut_away_are_told_alone(shop):
    """With the names of calls that are in facts which were kept."""
    await shop.start(fail, id="order-7")
    await eventually(lambda: _is(shop, "order-7", "failed"))
    await shop.get("order-7").retry()
    await eventually(lambda: _is(shop, "order-7", "failed"))
    page = page_of(shop)
    whole = (await page.get("/api/v1/runs/order-7/history?archived=true")).json["items"]
    assert {each["path"] for each in whole if each["kind"] == "step failed"} == {"break_down"}
    assert all(each["archived"] for each in whole)
    newest = (await page.get("/api/v1/runs/order-7/history?archived=true&newest=true&limit=1")).json["items"]
    assert newest == whole[-1:]


async def test_an_error_names_what_is_nearest_and_each_part_that_does_not_fit(shop):
    page = page_of(shop)
    near = (await page.get("/api/v1/runs?limt=3")).json
    assert (near["nearest"], near["field"]) == ("limit", "limt")
    assert (await page.get("/api/v1/runs?q=statsu:failed")).json["nearest"] == "status"
    wrong = (await page.post("/api/v1/runs", {"workflow": "order", "attributes": [1]})).json
    assert wrong["errors"] == [{"pointer": "/attributes", "detail": "Expected `object | null`, got `array`"}]
    deep = (await page.post("/api/v1/bulk", {"action": "pause", "ids": ["a", 7]})).json
    assert deep["errors"] == [{"pointer": "/ids/1", "detail": "Expected `str`, got `int`"}]
    assert (await page.post("/api/v1/bulk", {"colour": 1})).json["errors"][0]["pointer"] == ""


async def test_one_schedule_is_shown_by_its_id(shop):
    page = page_of(shop)
    await shop.schedules.put("nightly", order, "lamp", cron="30 2 * * *")
    await shop.schedules.put("hourly", order, "lamp", cron="0 * * * *")
    assert [each["id"] for each in (await page.get("/api/v1/schedules?id=nightly")).json["items"]] == ["nightly"]
    gone = await page.get("/api/v1/schedules?id=weekly")
    assert (gone.status, gone.json["type"]) == (404, "/api/v1/problems/no-such-schedule")


async def _is(shop: Engine, run_id: str, status: str) -> bool:
    return (await shop.get(run_id).status()).value == status
