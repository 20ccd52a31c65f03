"""Live views: what is seen in one browser is seen in others, and one look serves them all."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from tests.support.asgi import Browser
from tests.support.streams import listening
from tests.support.waiting import eventually
from tests.web.shop import approve, fail, house, order, viewer

from holdfast.looking import LocalDesk
from holdfast.looking.acting.tokens import KnownTokens
from holdfast.web import dashboard, live
from holdfast.web.app import Dashboard
from holdfast.web.auth import Bearers, Principal
from holdfast.web.redaction import Redaction
from holdfast.web.sessions import SessionSignIn


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(live, "EVERY", 0.01)


@pytest.fixture
async def shop(address):
    async with house(address) as engine:
        yield engine


async def test_a_change_reaches_a_page_that_is_open(shop):
    page = Browser(dashboard(shop, authenticate=viewer("reader")))
    async with listening(
        page, "/api/v1/live?view=runs%3Fq%3Dworkflow%253Aapprove&view=counts&view=run/order-7"
    ) as stream:
        first = await stream.hears(lambda name, data: name == "rows")
        assert (first["view"], first["value"]["items"]) == ("runs?q=workflow%3Aapprove", [])
        await stream.hears(lambda name, data: name == "gone" and data["view"] == "run/order-7")
        run = await shop.start(approve, id="order-7")
        await stream.hears(lambda name, data: name == "rows" and len(data["value"]["items"]) == 1)
        await stream.hears(lambda name, data: name == "run" and data["value"]["head"]["id"] == "order-7")
        await run.send("approved", True)
        await stream.hears(lambda name, data: name == "run" and data["value"]["head"]["status"] == "completed")
        await stream.hears(lambda name, data: name == "counts")
    assert page.app._hub._pictures == {}


async def test_one_look_serves_all_that_watch_a_view(shop, monkeypatch):
    looks = 0
    heads = LocalDesk.heads

    async def counted(self, *arguments, **options):
        nonlocal looks
        looks += 1
        return await heads(self, *arguments, **options)

    monkeypatch.setattr(LocalDesk, "heads", counted)
    page = Browser(dashboard(shop, authenticate=viewer("reader")))
    monkeypatch.setattr(live, "EVERY", 3600)
    async with listening(page, "/api/v1/live?view=runs") as first, listening(page, "/api/v1/live?view=runs") as second:
        await first.hears(lambda name, data: name == "rows")
        await second.hears(lambda name, data: name == "rows")
        assert looks == 1
        assert len(page.app._hub._pictures) == 1


async def test_what_is_sent_to_all_that_watch_is_written_once(shop, monkeypatch):
    written = Counter[str]()
    event = live._event

    def counted(name, view, value, version):
        written[view] += 1
        return event(name, view, value, version)

    monkeypatch.setattr(live, "_event", counted)
    page = Browser(dashboard(shop, authenticate=viewer("reader")))
    async with AsyncExitStack() as stack:
        path = "/api/v1/live?view=schedules"
        streams = [await stack.enter_async_context(listening(page, path)) for _ in range(10)]
        for stream in streams:
            await stream.hears(lambda name, data: name == "schedules")
        await shop.schedules.put("nightly", approve, cron="30 2 * * *")
        for stream in streams:
            await stream.hears(lambda name, data: "nightly" in str(data))
    assert written == {"schedules": 2}


async def test_sentences_with_relative_times_are_told_when_a_run_changes_and_not_each_second(shop, monkeypatch):
    """However many pages are open: a list shows what the stream brings, and asks for nothing."""
    asked = Counter[bool]()
    heads = LocalDesk.heads

    async def counted(self, *arguments, relative=False, **options):
        asked[relative] += 1
        return await heads(self, *arguments, relative=relative, **options)

    monkeypatch.setattr(LocalDesk, "heads", counted)
    await shop.start(approve, id="order-7")
    page = Browser(dashboard(shop, authenticate=viewer("reader")))
    async with listening(page, "/api/v1/live?view=runs&relative=true&zone=Europe/Berlin") as stream:
        await stream.hears(lambda name, data: name == "rows" and "Waits for message" in str(data))
        told = asked[True]
        looks = asked[False]
        await eventually(lambda: asked[False] > looks + 20)
        assert asked[True] == told
        seen = [data for name, data in stream.events if name == "rows"][-1]["value"]["items"][0]["why"]["sentence"]
        assert seen.startswith("Waits for message `approved` since ")
        assert "+0" not in seen
        await shop.get("order-7").pause(by="lena")
        await stream.hears(lambda name, data: name == "rows" and "Paused by lena" in str(data))
    assert asked[True] > told


async def test_nothing_is_sent_while_nothing_changes(shop):
    page = Browser(dashboard(shop, authenticate=viewer("reader")))
    await (await shop.start(order, "book", id="order-7")).result()
    async with listening(page, "/api/v1/live?view=run/order-7") as stream:
        await stream.hears(lambda name, data: name == "run")
        looked = page.app._hub._pictures
        assert len(looked) == 1
        await asyncio.sleep(0.1)  # ten looks
        assert [name for name, _ in stream.events] == ["run"]


async def test_a_viewer_watches_no_payload(shop):
    page = Browser(dashboard(shop, authenticate=viewer("viewer")))
    await (await shop.start(order, "4111-canary", id="order-7")).result()
    async with listening(page, "/api/v1/live?view=run/order-7") as stream:
        seen = await stream.hears(lambda name, data: name == "run")
    assert "4111-canary" not in str(seen)


async def test_a_viewer_who_watches_beside_a_reader_sees_no_payload_and_no_text_of_an_error(shop):
    """The key of a picture has the role, and what a viewer watches is told by a desk that is discreet."""
    await shop.start(fail, "4111-canary", id="order-7")

    async def failed() -> bool:
        return (await shop.get("order-7").status()).value == "failed"

    await eventually(failed)
    page = Browser(dashboard(shop, authenticate=lambda request: Principal("kim", request.headers["x-role"])))
    path = "/api/v1/live?view=run/order-7&view=runs"
    async with (
        listening(page, path, **{"x-role": "reader"}) as one,
        listening(page, path, **{"x-role": "viewer"}) as other,
    ):
        for stream in (one, other):
            for kind in ("run", "rows"):
                await stream.hears(lambda name, data, kind=kind: name == kind)
    assert str(one.events).count("4111-canary") > 1
    assert "4111-canary" not in str(other.events)


async def test_a_session_that_is_closed_ends_its_streams(shop):
    sign_in = SessionSignIn(Bearers(KnownTokens(shop.store)))
    page = Browser(Dashboard(LocalDesk(shop.store, engine=shop), sign_in, None, Redaction()))
    token = sign_in.one_time_token(Principal("kim"))
    cookie = (await page.post("/api/v1/session", {"token": token})).headers["set-cookie"].partition(";")[0]
    async with listening(page, "/api/v1/live?view=counts", cookie=cookie) as stream:
        await stream.hears(lambda name, data: name == "counts")
        await page.send("DELETE", "/api/v1/session", b"", {"cookie": cookie})
        await eventually(lambda: stream.over)
        assert stream.events[-1][0] == "bye"


async def test_a_stream_ends_with_its_engine():
    async with house() as engine:
        page = Browser(dashboard(engine, authenticate=viewer()))
        async with listening(page, "/api/v1/live?view=runs") as stream:
            await stream.hears(lambda name, data: name == "rows")
            await engine.stop()
            await eventually(lambda: stream.over)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/live", 400),
        ("/api/v1/live?view=planets", 400),
        ("/api/v1/live?view=runs%3Fcolour%3Dred", 400),
        ("/api/v1/live?view=run/a%20b", 400),
        ("/api/v1/live?view=runs/x/y", 404),
        ("/api/v1/live?" + "&".join(["view=runs"] * 11), 400),
        ("/api/v1/live?view=bulk/x", 403),
    ],
)
async def test_a_view_that_there_is_none_of_is_refused(shop, path, status):
    page = Browser(dashboard(shop, authenticate=viewer("viewer")))
    assert (await page.get(path)).status == status


async def test_one_principal_has_so_many_streams(shop, monkeypatch):
    monkeypatch.setattr(live, "MOST_OF_ONE", 1)
    page = Browser(dashboard(shop, authenticate=viewer("viewer")))
    async with listening(page, "/api/v1/live?view=counts") as stream:
        await stream.hears(lambda name, data: name == "counts")
        assert (await page.get("/api/v1/live?view=counts")).status == 429


async def test_a_server_has_so_many_streams_of_all(shop, monkeypatch):
    """live.MOST_STREAMS, however many there are who ask."""
    monkeypatch.setattr(live, "MOST_STREAMS", 2)
    page = Browser(dashboard(shop, authenticate=lambda request: Principal(request.headers["x-user"])))
    path = "/api/v1/live?view=counts"
    async with listening(page, path, **{"x-user": "ada"}) as one, listening(page, path, **{"x-user": "kim"}) as other:
        for stream in (one, other):
            await stream.hears(lambda name, data: name == "counts")
        assert (await page.get(path, x_user="lena")).status == 429


async def test_what_the_screens_of_the_house_show_is_watched_too(shop):
    """Also what changes no number of runs: an event that is queued, a schedule that is paused, what was done."""
    page = Browser(dashboard(shop, authenticate=viewer("reader")))
    await shop.schedules.put("nightly", approve, cron="30 2 * * *")
    names = ("schedules", "events", "audit", "figures", "versions", "checks", "doctor", "database")
    lists = {"newest-letters": "letters", "queues": "workers", "limits": "workers"}
    async with listening(page, "/api/v1/live?" + "&".join(f"view={each}" for each in lists)) as stream:
        for view, name in lists.items():
            await stream.hears(lambda said, data, view=view, name=name: (said, data["view"]) == (name, view))
    more = {"audit": "%3Flimit=5", "figures": "%3Fby=time%26last=PT1H"}
    async with listening(
        page, "/api/v1/live?" + "&".join(f"view={each}{more.get(each, '')}" for each in names)
    ) as stream:
        for name in names:
            await stream.hears(lambda said, data, name=name: said == name)
        await shop.publish("parcel", {"id": 7}, by="kim")
        await stream.hears(lambda name, data: name == "events" and "parcel" in str(data))
        await stream.hears(lambda name, data: name == "audit" and "publish" in str(data))
        await shop.schedules.pause("nightly", by="kim")
        await stream.hears(lambda name, data: name == "schedules" and "'paused': True" in str(data))


async def test_figures_are_sent_when_they_are_others_and_not_when_time_went_by(shop):
    page = Browser(dashboard(shop, authenticate=viewer("reader")))
    async with listening(page, "/api/v1/live?view=figures&view=counts") as stream:
        await stream.hears(lambda name, data: name == "figures")
        await asyncio.sleep(0.3)  # six looks
        assert [name for name, _ in stream.events].count("figures") == 1


@pytest.mark.parametrize("view", ["audit/export", "bulk", "run/order-7/cancel"])
async def test_what_is_no_picture_cannot_be_watched(shop, view):
    page = Browser(dashboard(shop, authenticate=viewer("admin")))
    assert (await page.get(f"/api/v1/live?view={view}")).status == 404
