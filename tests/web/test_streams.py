"""Clients that are slow, leave, or are many: what is held for them is bounded, and nothing is missed."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from tests.support.asgi import Browser, exchange
from tests.support.streams import Stream, listening
from tests.support.waiting import eventually
from tests.web.shop import approve, house, viewer

from holdfast import Engine
from holdfast.web import Principal, dashboard, live
from holdfast.web.guards import requests as guard


@pytest.fixture
async def shop():
    async with house() as engine:
        yield engine


# guard.BODY_SECONDS


async def test_a_body_that_does_not_come_is_not_waited_for(shop, monkeypatch):
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.05)
    page = Browser(dashboard(shop, authenticate=viewer("operator")))
    pairs = [(name.encode(), value.encode()) for name, value in page.headers.items()]
    begun, sent = asyncio.Event(), []

    async def receive():
        if begun.is_set():
            await asyncio.Event().wait()  # a byte has come, and no other ever does
        begun.set()
        return {"type": "http.request", "body": b"{", "more_body": True}

    async def send(message):
        sent.append(message)

    await page.app(page.scope("POST", "/api/v1/events", pairs), receive, send)
    assert sent[0]["status"] == 408
    assert b"did not come within" in sent[1]["body"]


async def test_a_client_that_leaves_in_the_middle_of_its_body_changes_nothing(shop):
    page = Browser(dashboard(shop, authenticate=viewer("operator")))
    pairs = [(name.encode(), value.encode()) for name, value in page.headers.items()]
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    await page.app(page.scope("POST", "/api/v1/events", pairs), receive, send)
    assert sent[0]["status"] == 400
    assert await shop.store.audit() == []


# live.SLOWEST


async def test_a_client_that_reads_nothing_is_cut_off(shop, monkeypatch):
    """Its stream would outlive its rights otherwise, and take a place for ever."""
    monkeypatch.setattr(live, "SLOWEST", 0.05)
    app = dashboard(shop, authenticate=viewer())
    page = Browser(app)
    pairs = [(name.encode(), value.encode()) for name, value in page.headers.items()]
    finished: list[bool] = []

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        if message["type"] == "http.response.body":
            finished.append(not message.get("more_body"))
            await asyncio.Event().wait()  # the buffers of the connection are full

    async with asyncio.timeout(60):
        await app(page.scope("GET", "/api/v1/live?view=counts", pairs), receive, send)
    assert finished == [False]  # so that the server cuts the connection
    assert (app._hub._streams.total(), app._hub._pictures) == (0, {})


async def test_a_stream_that_was_cut_is_taken_up_again_and_misses_nothing(shop, monkeypatch):
    """Views are looked at again, whatever the client has seen last: it is sent all of what there is now."""
    monkeypatch.setattr(live, "EVERY", 0.01)
    app = dashboard(shop, authenticate=viewer("reader"))
    page = Browser(app)
    path = "/api/v1/live?view=run/order-7&view=counts"
    await shop.start(approve, id="order-7")
    for n in range(3):
        async with listening(page, path, **({"last-event-id": str(n)} if n else {})) as stream:
            await stream.hears(lambda name, data: name == "run" and data["value"]["head"]["id"] == "order-7")
            await stream.hears(lambda name, data: name == "counts")
        assert (app._hub._streams.total(), app._hub._pictures) == (0, {})
        if n == 1:  # while no stream is open
            await shop.get("order-7").pause()
    paused = stream.events[[name for name, _ in stream.events].index("run")][1]
    assert paused["value"]["head"]["status"] == "paused"  # the very first that it heard


async def test_streams_that_are_asked_for_at_once_are_counted(shop, monkeypatch):
    """Each by itself would be one of the number that a principal may have."""
    monkeypatch.setattr(live, "MOST_OF_ONE", 2)
    app, over = dashboard(shop, authenticate=viewer()), asyncio.Event()
    streams: list[Stream] = []

    async def one() -> None:
        async with listening(Browser(app), "/api/v1/live?view=counts") as stream:
            streams.append(stream)
            await over.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(one())
        await eventually(lambda: len(streams) == 5 and all(stream.status for stream in streams))
        over.set()
    assert sorted(stream.status for stream in streams) == [200, 200, 429, 429, 429]
    assert app._hub._streams.total() == 0


def _memory() -> int:
    """Return how many bytes this process has in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.slow
async def test_a_thousand_streams_at_once_are_half_refused_and_cost_little(shop, caplog):
    """Of 100 principals with 10 streams each: 500 are served, by one look a second, and 500 are told to wait."""
    looks = 0
    app = dashboard(shop, authenticate=lambda request: Principal(request.headers["x-user"], "reader"))
    heads = shop.store.heads

    async def counted(which):
        nonlocal looks
        looks += 1
        return await heads(which)

    shop.store.heads = counted
    before = _memory()
    async with asyncio.TaskGroup() as group, asyncio.timeout(300):
        over = asyncio.Event()
        streams: list[Stream] = []

        async def one(user: int) -> None:
            async with listening(Browser(app), "/api/v1/live?view=runs", **{"x-user": f"user-{user}"}) as stream:
                streams.append(stream)
                await over.wait()

        for n in range(1_000):
            group.create_task(one(n % 100))
        await eventually(lambda: len(streams) == 1_000 and all(stream.status for stream in streams), within=200)
        served = [stream for stream in streams if stream.status == 200]
        await eventually(lambda: all(stream.events for stream in served), within=200)
        more = _memory() - before
        over.set()
    assert (len(served), sorted({stream.status for stream in streams})) == (500, [200, 429])
    logging.getLogger(__name__).warning("%.1f MiB more, %d looks", more / (1 << 20), looks)
    assert more < 50 << 20, caplog.text
    assert looks < 250, caplog.text  # not one for each of them


# What a server hands on that no browser sends.


@pytest.mark.parametrize("path", ["http://evil.example/api/v1/runs", "//evil.example/api/v1/runs", "*", ""])
async def test_a_target_that_is_no_path_of_ours_is_refused(shop, path):
    page = Browser(dashboard(shop, authenticate=viewer("admin")))
    scope = page.scope("GET", "/", [(name.encode(), value.encode()) for name, value in page.headers.items()])
    reply = await exchange(page.app, {**scope, "path": path, "raw_path": path.encode()}, [b""])
    assert reply.status in (307, 404), reply
    assert "evil" not in reply.headers.get("location", "")
    assert "content-security-policy" in reply.headers


@pytest.mark.parametrize("value", ["a\r\nset-cookie: x=1", "a\nb", "\x00", "\xff" * 300])
async def test_no_header_of_an_answer_is_made_of_what_was_sent(shop: Engine, value):
    page = Browser(dashboard(shop, authenticate=viewer("admin")))
    body = b'{"workflow": "order", "arguments": {"item": "x"}}'
    for headers in ({"idempotency-key": value}, {"if-none-match": value}, {"x-request-id": value}, {"if-match": value}):
        for reply in (
            await page.send("POST", "/api/v1/runs", body, headers),
            await page.send("GET", "/api/v1/runs/none", b"", headers),
        ):
            assert "set-cookie" not in reply.headers
            assert not [each for each in reply.headers.values() if set(each) & set("\r\n\x00\xff")]
            assert reply.status < 500


@pytest.mark.speed
async def test_whatever_is_sent_the_loop_of_the_engine_goes_on(shop):
    """FACES 10, line 17: 50 ms at most, and 50 MB."""
    page = Browser(dashboard(shop, authenticate=viewer("admin")))
    longest, before = 0.0, _memory()

    async def beat() -> None:
        nonlocal longest
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.002)
            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()

    beating = asyncio.create_task(beat())
    size = 2 << 20
    bodies = [
        b"[" * size,
        b"{" + b'"same":1,' * 20_000 + b'"last":1}',
        b'{"a":' * 60_000 + b"1" + b"}" * 60_000,
        b"[" + b"NaN," * (size // 5) + b"1]",
        b"9" * size,
        b'"' + b"\xff" * size + b'"',
        b'{"workflow": "' + b"<" * size + b'"}',
    ]
    for body in bodies:
        assert 400 <= (await page.send("POST", "/api/v1/runs", body)).status < 500
    beating.cancel()
    assert longest < 0.05
    assert _memory() - before < 50 << 20
