"""What a viewer does not see, and what no one sees.

Seen failing with `Redaction.shown` returning its argument, and with the desk of a viewer that is not discreet.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from tests.support.asgi import Browser
from tests.support.waiting import eventually
from tests.web.shop import approve, fail, house, order, viewer

from holdfast import Engine
from holdfast.web import Principal, dashboard
from holdfast.web.redaction import MASKED, Redaction
from holdfast.web.routes import routes

CANARY = "4111-canary-1111"


@pytest.fixture
async def shop(address):
    async with house(address) as engine:
        yield engine


async def everything(page: Browser, ids: list[str]) -> dict[str, bytes]:
    """Return the answers of every route that only looks."""
    found = {}
    for route in routes():
        for run_id in ids if "{id}" in route.path else [""]:
            path = f"/api/v1{route.path.replace('{id}', run_id)}"
            if route.method == "GET":
                for more in (
                    "",
                    "?relative=true",
                    "?name=stock",
                    "?newest=true",
                    "?seen=all",
                    "?name=iban",
                    "?q=iban=",
                ):
                    found[path + more] = (await page.get(path + more)).body
    return found


async def test_a_viewer_sees_no_payload_and_no_text_of_an_error(shop):
    await (await shop.start(order, CANARY, id="done")).result()
    await shop.start(fail, CANARY, id="failed")
    waiting = await shop.start(approve, id="waiting")
    await waiting.send("other", {"card": CANARY})
    await shop.publish("stock", CANARY)
    await eventually(lambda: _is(shop, "failed", "failed"))
    ids = ["done", "failed", "waiting"]
    for path, body in (
        await everything(Browser(dashboard(shop, authenticate=viewer("viewer"), rates=None)), ids)
    ).items():
        assert CANARY.encode() not in body, path
    page = Browser(dashboard(shop, authenticate=viewer("viewer")))
    assert (await page.get("/api/v1/runs/failed")).json["error"] == {"type": "ValueError", "message": "hidden"}
    assert (await page.get("/api/v1/runs/failed/why")).json["sentence"].endswith("attempt: ValueError")
    seen = await everything(Browser(dashboard(shop, authenticate=viewer("reader"), rates=None)), ids)
    assert sum(CANARY.encode() in body for body in seen.values()) > 5


async def _is(shop: Engine, run_id: str, status: str) -> bool:
    return (await shop.get(run_id).status()).value == status


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ({"password": "x"}, {"password": MASKED}),
        ({"a": [{"dbPassword": "x", "b": 1}]}, {"a": [{"dbPassword": MASKED, "b": 1}]}),
        ({"Authorization": {"a": "x"}}, {"Authorization": MASKED}),
        ({"card": 4111}, {"card": MASKED}),
        ({"cardNumber": 4111, "discard": 1}, {"cardNumber": MASKED, "discard": 1}),
        ({"api_key": "x", "API-KEY": "y"}, {"api_key": MASKED, "API-KEY": MASKED}),
        ({"token": None}, {"token": None}),
        ({"customer": {"name": "x"}, "name": "y"}, {"customer": {"name": MASKED}, "name": "y"}),
        ({"a": {"headers": {"cookie": "x"}}}, {"a": {"headers": {"cookie": MASKED}}}),
    ],
)
def test_values_at_marked_paths_are_masked_for_everyone(path, shown):
    redaction = Redaction(["customer.name", "headers.*"])
    assert redaction.masked(path, "RunView") == shown


def test_a_function_may_say_what_is_shown():
    redaction = Redaction(function=lambda kind, path, value: f"{kind} {path}" if path == "a.b" else value)
    assert redaction.masked({"a": {"b": 1, "c": 2}}, "RunView") == {"a": {"b": "RunView a.b", "c": 2}}


KEYS = some.text(some.sampled_from("abc"), min_size=1, max_size=3)


@given(some.lists(KEYS, min_size=1, max_size=4), some.integers(0, 3), some.booleans())
def test_a_value_at_a_marked_path_occurs_nowhere(keys: list[str], depth: int, in_list: bool):
    value: Any = CANARY
    for key in reversed(keys):
        value = {key: [value] if in_list else value, "other": 1}
    marked = ".".join(keys[-(depth % len(keys)) - 1 :])
    shown = Redaction([marked]).masked(value, "RunView")
    assert CANARY not in str(shown)


async def test_a_marked_path_is_masked_in_every_answer_to_a_reader(shop):
    run = await shop.start(approve, id="order-7", attributes={"iban": CANARY})
    await run.send("approved", {"deep": [{"password": CANARY}]})
    await run.result()
    page = Browser(dashboard(shop, authenticate=lambda request: Principal("kim", "reader"), rates=None))
    for path, body in (await everything(page, ["order-7"])).items():
        assert CANARY.encode() not in body, path


async def test_a_large_answer_is_written_beside_the_loop(shop):
    """Walking through a payload of megabytes takes longer than the runs and requests of the same process may wait."""
    threads: dict[int, set[int]] = {}

    def noted(kind: str, path: str, value: Any) -> Any:
        threads[size].add(threading.get_ident())
        return value

    page = Browser(dashboard(shop, authenticate=viewer("reader"), redact_with=noted))
    for size in (10, 10_000):
        threads[size] = set()
        run = await shop.start(approve, id=f"order-{size}")
        await run.send("other", list(range(size)))
        [message] = (await page.get(f"/api/v1/runs/order-{size}/inbox")).json["items"]
        assert message["payload"] == list(range(size))
    assert threads[10] == {threading.get_ident()}
    assert threading.get_ident() not in threads[10_000]
    assert threads[10_000]


async def test_long_values_are_cut_where_that_is_asked_for_and_are_whole_otherwise(shop):
    """A page is sent a run at each change of it, which may have megabytes of results; programs are sent all of it."""
    long = [f"line {n}" for n in range(20_000)]
    run = await shop.start(approve, id="order-7")
    await run.send("other", long)
    page = Browser(dashboard(shop, authenticate=viewer("reader"), rates=None))
    seen: dict[str, list[int]] = {}
    for path in ("/inbox?limit=100", "", "/history?limit=100"):
        if not path:
            await run.send("approved", {"lines": long, "password": CANARY})
            await run.result()
        for cut in ("false", "true"):
            reply = await page.get(f"/api/v1/runs/order-7{path}{'&' if path else '?'}cut={cut}")
            assert reply.status == 200
            assert CANARY.encode() not in reply.body
            seen.setdefault(path, []).append(len(reply.body))
    assert all(whole > 200_000 and cut < 15_000 for whole, cut in seen.values()), seen
    output = (await page.get("/api/v1/runs/order-7?cut=true")).json["output"]
    assert output["cut_from_bytes"] > 200_000
    assert output["begins"].startswith('{"lines":["line 0","line 1"')
    assert (await page.get("/api/v1/runs/order-7?cut=true")).json["input"] == {}
    hidden = await Browser(dashboard(shop, authenticate=viewer("viewer"))).get("/api/v1/runs/order-7?cut=true")
    assert hidden.json["output"] == "hidden"
