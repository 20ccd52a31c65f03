"""What the page asks for beside lists: how far runs have come, code around errors, chains to be checked."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from tests.support.asgi import Browser
from tests.support.waiting import eventually
from tests.web.shop import approve, fail, order, viewer

from holdfast import Engine, Retry, activity, workflow
from holdfast.declarative import graph
from holdfast.web import dashboard


@workflow
async def noted(ctx: Any) -> None:
    ctx.evidence("seen", {"card": "4111"})
    ctx.evidence("left", '\u2028 \x01 " \\ / é')


@activity
async def fetch() -> str:
    return "film"


@activity
async def cut() -> str:
    return "cut"


@activity(retry=Retry(max_attempts=1))
async def show() -> str:
    raise ValueError("no screen")


film = graph("film", {fetch: [], cut: [fetch], show: [cut]})


@pytest.fixture
async def shop():
    async with Engine(":memory:", workflows=[order, approve, fail, noted, film]) as engine:
        yield engine


def page_of(shop: Engine, role: str = "admin") -> Browser:
    return Browser(dashboard(shop, authenticate=viewer(role)))


async def ended(shop: Engine, run_id: str) -> None:
    async def over() -> bool:
        return (await shop.get(run_id).describe()).status.is_terminal

    await eventually(over)


async def test_the_progress_of_runs_counts_their_steps(shop):
    await shop.start(order, "book", id="done")
    await shop.start(fail, id="failed")
    await shop.start(approve, id="waits")
    await shop.start(film, id="film")
    for run_id in ("done", "failed", "film"):
        await ended(shop, run_id)
    reply = await page_of(shop, "viewer").get(
        "/api/v1/progress?run=done&run=none&run=failed&run=waits&run=film&run=done"
    )
    assert [(each["run"], each["done"], each["failed"], each["total"]) for each in reply.json["items"]] == [
        ("done", 1, 0, None),
        ("failed", 0, 1, None),
        ("waits", 0, 0, None),
        ("film", 2, 1, 3),
    ]
    many = "&".join(f"run=r-{number}" for number in range(51))
    assert (await page_of(shop).get(f"/api/v1/progress?{many}")).status == 400


async def test_the_code_around_an_error_is_shown_where_its_file_still_says_what_was_recorded(shop):
    await shop.start(fail, id="failed")
    await ended(shop, "failed")
    raised, called = 'raise ValueError(f"cannot use {secret}")', "await ctx.step(break_down, secret)"
    for query, name, text in (("?step=break_down", "break_down", raised), ("", "fail", called)):
        places = (await page_of(shop, "reader").get(f"/api/v1/runs/failed/frames{query}")).json["items"]
        [own] = [place for place in places if place["file"].endswith("tests/web/shop.py")]
        assert own["name"] == name
        [hit] = [line["text"] for line in own["lines"] if line["n"] == own["line"]]
        assert hit.strip() == text
        assert len(own["lines"]) == 6
    await shop.start(approve, id="waits")

    async def waits() -> bool:
        return bool((await page_of(shop, "reader").get("/api/v1/runs/waits/frames")).json["items"])

    await eventually(waits)
    [place] = (await page_of(shop, "reader").get("/api/v1/runs/waits/frames")).json["items"]
    [hit] = [line["text"] for line in place["lines"] if line["n"] == place["line"]]
    assert hit.strip() == 'return await ctx.receive("approved")'
    assert (await page_of(shop, "viewer").get("/api/v1/runs/failed/frames")).status == 403
    assert (await page_of(shop).get("/api/v1/runs/none/frames")).status == 404
    assert (await page_of(shop).get("/api/v1/runs/failed/frames?step=none")).status == 400


async def test_what_workflows_take_is_told_as_json_schema(shop):
    items = (await page_of(shop, "viewer").get("/api/v1/inputs")).json["items"]
    by_name = {each["workflow"]: each["schema"] for each in items}
    assert by_name.keys() == {"order", "approve", "fail", "noted", "film"}
    assert by_name["order"]["properties"] == {"item": {"type": "string"}}
    assert by_name["order"]["required"] == ["item"]
    assert by_name["fail"]["properties"]["secret"]["type"] == "string"


async def test_the_rows_of_a_chain_are_given_as_they_are_hashed_to_an_admin_only(shop):
    await shop.start(noted, id="noted")
    await ended(shop, "noted")
    await shop.start(approve, id="waits")
    await shop.get("waits").pause(by="kim", reason='a "quoted" reason')
    for query in ("", "?run=noted"):
        rows = (await page_of(shop).get(f"/api/v1/audit/chain{query}")).json["items"]
        assert rows
        previous = ""
        for row in rows:
            text = json.dumps([previous, *row["fields"]], ensure_ascii=False, separators=(",", ":"))
            assert hashlib.sha256(text.encode()).hexdigest() == row["hash"]
            previous = row["hash"]
    first = (await page_of(shop).get("/api/v1/audit/chain?run=noted&limit=1")).json
    assert (len(first["items"]), first["next"]) == (1, 1)
    assert (await page_of(shop, "operator").get("/api/v1/audit/chain")).status == 403


async def test_of_a_long_run_only_the_newest_facts_are_looked_at(shop, monkeypatch):
    """A page that follows it would read all of its history each second otherwise, and so would each page of that."""
    page = page_of(shop)
    await shop.start(film, id="film-1")
    await ended(shop, "film-1")
    whole = (await page.get("/api/v1/runs/film-1")).json
    facts = (await page.get("/api/v1/runs/film-1/history")).json["items"]
    assert {step["path"] for step in whole["steps"]} == {"fetch", "cut", "show"}
    asked: list[tuple[int, int | None]] = []
    history = shop.store.history

    async def noted(key: int, *, after: int = 0, limit: int | None = None, **which: Any) -> Any:
        asked.append((after, limit))
        return await history(key, after=after, limit=limit, **which)

    monkeypatch.setattr(shop.store, "history", noted)
    [begun] = [each["seq"] for each in facts if (each["kind"], each["path"]) == ("step", "show")]
    newest = (await page.get(f"/api/v1/runs/film-1?facts={facts[-1]['seq'] - begun + 1}")).json
    assert (newest["partial"], newest["entries"]) == (True, facts[-1]["seq"])
    assert [step["path"] for step in newest["steps"]] == ["show"]
    assert (await page.get("/api/v1/runs/film-1?facts=1000")).json | {"as_of": ""} == whole | {"as_of": ""}
    assert (await page.get("/api/v1/runs/film-1?facts=0")).status == 400
    asked.clear()
    for fact in facts[:-1]:
        rest = (await page.get(f"/api/v1/runs/film-1/history?after={fact['seq']}&limit=2")).json["items"]
        assert rest[0] == facts[facts.index(fact) + 1]  # a name may stand before it
    assert [limit for _, limit in asked] == [3] * len(asked)  # what names the calls is not read with it


async def test_a_history_that_was_cut_is_named_anew(shop):
    page = page_of(shop)
    run = await shop.start(film, id="film-1")
    await ended(shop, "film-1")
    for again in range(2):
        facts = (await page.get("/api/v1/runs/film-1/history")).json["items"]
        for place in range(len(facts)):
            rest = (await page.get(f"/api/v1/runs/film-1/history?after={facts[place]['seq']}")).json["items"]
            assert rest == facts[place + 1 :]
        if not again:
            await run.rerun(from_step="cut")
            await ended(shop, "film-1")
