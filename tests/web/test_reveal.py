"""A masked value is seen by one person, once, for a reason, and on record.

Seen failing without the row in the audit trail, with the role of a reader, and with `reveal=False` not looked at.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.asgi import Browser
from tests.support.waiting import eventually
from tests.web.shop import viewer

from holdfast import Engine, activity, workflow
from holdfast.web import dashboard
from holdfast.web.redaction import MASKED

SECRET = "hunter2"


@activity(record_arguments=True)
async def pay(card: dict[str, Any]) -> dict[str, Any]:
    return {"receipt": "r-1", "token": SECRET}


@workflow
async def buy(ctx: Any, order: dict[str, Any]) -> Any:
    await ctx.step(pay, {"card": order["customers"][0]["card"]})
    return await ctx.receive("approved")


@pytest.fixture
async def shop(address):
    async with Engine(address, workflows=[buy]) as engine:
        await engine.start(buy, {"customers": [{"card": SECRET}], "a/b": {"pin": 7}}, id="buys")
        await engine.get("buys").send("other", {"password": SECRET})
        page = Browser(dashboard(engine, authenticate=viewer("reader"), rates=None))

        async def paid() -> bool:
            return any(
                step["status"] == "completed" for step in (await page.get("/api/v1/runs/buys/steps")).json["items"]
            )

        await eventually(paid)
        yield engine


def page_of(shop: Engine, role: str = "operator", **more: Any) -> Browser:
    return Browser(dashboard(shop, authenticate=viewer(role), rates=None, **more))


async def ask(page: Browser, **what: Any) -> Any:
    return await page.post("/api/v1/runs/buys/reveal", {"reason": "INC-7", **what})


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ({"field": "input", "pointer": "/order/customers/0/card"}, SECRET),
        ({"field": "input", "pointer": "/order/a~1b/pin"}, 7),
        ({"field": "result", "step": "pay", "pointer": "/token"}, SECRET),
        ({"field": "arguments", "step": "pay", "pointer": "/card/card"}, SECRET),
        ({"field": "message", "n": 1, "pointer": "/password"}, SECRET),
        ({"field": "attributes"}, {}),
    ],
)
async def test_a_masked_value_is_shown_once_and_it_is_on_record_who_saw_it_and_why(shop, what, value):
    page = page_of(shop)
    shown = await ask(page, **what)
    assert (shown.status, shown.json["value"]) == (200, value), shown.json
    [row] = (await page.get("/api/v1/runs/buys/audit")).json["items"]
    assert (row["actor"], row["action"], row["target"]) == ("kim", "reveal", "buys")
    assert row["detail"] == {**what, "reason": "INC-7"}
    assert SECRET.encode() not in (await page.get("/api/v1/runs/buys/audit")).body
    assert (await page.get("/api/v1/runs/buys")).json["input"]["order"]["customers"] == [{"card": MASKED}]


async def test_a_fact_of_the_history_is_shown_by_its_number(shop):
    page = page_of(shop)
    facts = (await page.get("/api/v1/runs/buys/history")).json["items"]
    [done] = [each["seq"] for each in facts if each["kind"] == "step completed"]
    assert SECRET in str((await ask(page, field="fact", n=done)).json["value"])


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ({"field": "input", "reason": "  "}, 400, "needs a reason"),
        ({"field": "input", "pointer": "order"}, 400, "must be empty or begin with /"),
        ({"field": "input", "pointer": "/ordr"}, 400, "there are: order"),
        ({"field": "input", "pointer": "/order/customers/01x"}, 400, "there is no value at"),
        ({"field": "input", "pointer": "/order/customers/1"}, 400, "there is no value at"),
        ({"field": "result", "step": "none"}, 400, "has called no step"),
        ({"field": "arguments", "step": "none"}, 400, "has called no step"),
        ({"field": "fact", "n": 99}, 400, "has no fact 99"),
        ({"field": "message", "n": -1}, 400, "has no unread message"),
        ({"field": "secret"}, 422, "does not fit"),
    ],
)
async def test_what_cannot_be_shown_is_not_put_on_record(shop, what, status, said):
    page = page_of(shop)
    reply = await ask(page, **what)
    assert (reply.status, said in reply.json["detail"]) == (status, True), reply.json
    assert (await page.get("/api/v1/runs/buys/audit")).json["items"] == []
    missing = await page.post("/api/v1/runs/none/reveal", {"reason": "x", "field": "input"})
    assert missing.status == 404


async def test_a_reader_reveals_nothing_and_no_one_where_the_host_forbids_it(shop):
    for page, said in ((page_of(shop, "reader"), "operator"), (page_of(shop, "admin", reveal=False), "reveal=False")):
        reply = await ask(page, field="input")
        assert (reply.status, said in reply.json["detail"], SECRET in str(reply.json)) == (403, True, False)
    assert "reveal" in (await page_of(shop).get("/api/v1/")).json["features"]
    assert "reveal" not in (await page_of(shop, reveal=False).get("/api/v1/")).json["features"]
    assert (await page_of(shop).get("/api/v1/audit")).json["items"] == []


async def test_a_recording_which_holds_all_of_a_run_is_on_record(shop):
    page = page_of(shop, "admin")
    assert SECRET in str((await page.get("/api/v1/runs/buys/recording")).json)
    [row] = (await page.get("/api/v1/runs/buys/audit")).json["items"]
    assert (row["actor"], row["action"]) == ("kim", "record")
