"""Acting on all dead letters of a cause: counted first, done by the server, and on none that came since.

Seen failing with one request for each letter, which a principal may not make so often, with `until` not looked at, and
with `_check_number` left out.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.asgi import Browser
from tests.support.waiting import eventually
from tests.web.shop import approve, fail, house, viewer

from holdfast import Engine
from holdfast.looking import LocalDesk
from holdfast.looking.acting import causes
from holdfast.looking.acting.requests import PurgeRequest
from holdfast.web import Principal, dashboard
from holdfast.web.resources import bulk

CAUSE = {"workflow": "fail", "step": "break_down", "error": "ValueError"}


@pytest.fixture
async def shop(address):
    async with house(address) as engine:
        yield engine


@pytest.fixture
def page(shop: Engine) -> Browser:
    return Browser(dashboard(shop, authenticate=viewer("operator")))


async def given_up(shop: Engine, n: int, first: int = 0) -> None:
    """Leave so many dead letters of one cause."""
    for number in range(first, first + n):
        await shop.start(fail, id=f"order-{number}")

    async def there() -> bool:
        return sum(each.count for each in await LocalDesk(shop.store).letter_groups()) == n

    await eventually(there)


async def over(page: Browser, begun: dict) -> dict:
    """Return how an act on many went, once it is over."""
    found = begun

    async def is_over() -> bool:
        nonlocal found
        reply = await page.get(f"/api/v1/bulk/{begun['id']}")
        found = reply.json
        return reply.status == 200 and found["state"] != "running"  # who asks too often is told to wait

    await eventually(is_over)
    return found


async def test_more_letters_than_a_principal_may_ask_for_one_by_one_are_replayed_at_once(page, shop):
    await given_up(shop, 45)
    plan = (await page.post("/api/v1/letters/bulk", {"action": "replay", **CAUSE})).json
    assert (plan["matched"], plan["exact"], plan["can"], plan["cannot"]) == (45, True, 45, {})
    reply = await page.post(
        "/api/v1/letters/bulk",
        {"action": "replay", **CAUSE, "until": plan["until"], "dry_run": False, "reason": "the bank is back"},
    )
    assert (reply.status, reply.headers["location"]) == (202, f"/api/v1/bulk/{reply.json['id']}")
    done = await over(page, reply.json)
    assert (done["state"], done["by"]) == ("finished", "kim")
    assert (done["progress"]["changed"], done["progress"]["failed"]) == (45, {})
    rows = (await LocalDesk(shop.store).audit(action="retry", limit=100)).items
    assert {(row.actor, row.detail["reason"]) for row in rows} == {("kim", "the bank is back")}
    assert len(rows) == 45


async def test_letters_that_came_since_they_were_counted_are_left_alone(page, shop):
    await given_up(shop, 3)
    plan = (await page.post("/api/v1/letters/bulk", {"action": "acknowledge", **CAUSE})).json
    await given_up_later(page, shop)
    body = {"action": "acknowledge", **CAUSE, "until": plan["until"], "dry_run": False, "reason": "known"}
    done = await over(page, (await page.post("/api/v1/letters/bulk", body)).json)
    assert done["progress"]["changed"] == 3
    assert [each["run"] for each in (await page.get("/api/v1/letters")).json["items"]] == ["later"]


async def given_up_later(page: Browser, shop: Engine) -> None:
    await shop.start(fail, id="later")

    async def four() -> bool:
        return len((await page.get("/api/v1/letters")).json["items"]) == 4

    await eventually(four)


async def test_letters_whose_runs_are_gone_cannot_be_replayed(page, shop):
    await given_up(shop, 2)
    request = PurgeRequest(kinds=["failed"], older_than=timedelta(0))
    purged = await LocalDesk(shop.store, engine=shop).purge(request, by="kim", dry_run=False)
    assert purged.counts["failed"] == 2
    plan = (await page.post("/api/v1/letters/bulk", {"action": "replay", **CAUSE})).json
    assert (plan["can"], plan["cannot"]) == (0, {"the run is gone": 2})


async def test_events_that_no_run_could_take_are_a_cause_too(page, shop):
    run = await shop.start(approve, id="order-7")
    await run.send("approved", 1)
    await run.result()
    await run.send("approved", 2, dead_letter=True)
    [group] = (await page.get("/api/v1/letters/groups")).json["items"]
    cause = {name: group[name] for name in ("workflow", "step", "error")}
    plan = (await page.post("/api/v1/letters/bulk", {"action": "replay", **cause})).json
    assert (plan["matched"], plan["can"], plan["cannot"]) == (1, 0, {"the run is completed": 1})
    plan = (await page.post("/api/v1/letters/bulk", {"action": "remove", **cause})).json
    body = {"action": "remove", **cause, "until": plan["until"], "dry_run": False}
    assert (await over(page, (await page.post("/api/v1/letters/bulk", body)).json))["progress"]["changed"] == 1
    assert (await page.get("/api/v1/letters/groups")).json["items"] == []


async def test_a_page_of_letters_is_done_before_an_act_is_stopped(page, shop, monkeypatch):
    monkeypatch.setattr(causes, "PAGE", 2)
    await given_up(shop, 5)
    desk = LocalDesk(shop.store, engine=shop)
    cause = causes.LetterCause(**CAUSE)
    plan = await desk.plan_letters("acknowledge", cause)
    pages = desk.act_on_letters("acknowledge", cause, plan.until, by="kim")
    told = await anext(pages)
    await pages.aclose()
    assert (told.changed, told.finished) == (2, False)
    assert (await desk.plan_letters("acknowledge", cause)).matched == 3
    told_again = [page async for page in desk.act_on_letters("acknowledge", cause, plan.until, by="kim")]
    assert (told_again[-1].changed, told_again[-1].finished) == (3, True)


async def test_only_an_admin_acts_on_more_letters_than_an_operator_may(shop, monkeypatch):
    monkeypatch.setattr(bulk, "MOST_OF_OPERATORS", 2)
    await given_up(shop, 3)
    who = Principal("kim", "operator")
    page = Browser(dashboard(shop, authenticate=lambda request: who))
    plan = (await page.post("/api/v1/letters/bulk", {"action": "acknowledge", **CAUSE})).json
    body = {"action": "acknowledge", **CAUSE, "until": plan["until"], "dry_run": False}
    refused = await page.post("/api/v1/letters/bulk", body)
    assert (refused.status, refused.json["role"]) == (403, "admin")
    who = Principal("lena", "admin")
    assert (await page.post("/api/v1/letters/bulk", body)).status == 202


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"action": "retry", **CAUSE}, "there is no act 'retry'"),
        ({"action": "replay", **CAUSE, "dry_run": False}, "`until`"),
    ],
)
async def test_an_act_on_letters_that_cannot_be_meant_is_refused(page, body, said):
    reply = await page.post("/api/v1/letters/bulk", body)
    assert (reply.status, said in reply.json["detail"]) == (400, True), reply.json
