"""Tokens: a hash in the database, a role, an end; what they let in ends with them.

Each of the tests of what is refused was seen failing with its guard removed; the guard is named beside it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.asgi import Browser
from tests.support.streams import listening
from tests.support.waiting import eventually
from tests.web.shop import house, viewer

from holdfast import Engine
from holdfast.errors import BadInput
from holdfast.looking import LocalDesk
from holdfast.looking.acting.tokens import NewToken, TokenRequest
from holdfast.testing import JumpingClock
from holdfast.web import dashboard, live
from holdfast.web.remote import RemoteDesk

HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
async def shop(clock):
    async with house(clock=clock) as engine:
        engine.store.clock = clock
        yield engine


@pytest.fixture
def page(shop: Engine) -> Browser:
    return Browser(dashboard(shop))


async def made(shop: Engine, role: str = "viewer", expires_in: timedelta | None = HOUR) -> NewToken:
    request = TokenRequest(name="kim", role=role, expires_in=expires_in)  # type: ignore[arg-type]  # tests of it too
    return await LocalDesk(shop.store, engine=shop).create_token(request, by="ada", reason="for the board")


def bearing(page: Browser, token: str) -> Browser:
    """Return a program: it has a token, and sends nothing that browsers do."""
    return Browser(page.app, {"authorization": f"Bearer {token}", "origin": "", "x-holdfast": "", "sec-fetch-site": ""})


async def test_a_token_lets_a_program_in_with_its_role(shop, page):
    for role, may in (("viewer", 403), ("operator", 404), ("admin", 404)):
        program = bearing(page, (await made(shop, role)).token)
        assert (await program.get("/api/v1/")).json["role"] == role
        assert (await program.post("/api/v1/runs/none/pause")).status == may
    acts = await shop.store.audit()
    assert [(each.actor, each.action) for each in acts] == [("ada", "token.create")] * 3
    assert "for the board" in str(acts[0].detail)


async def test_only_the_hash_is_in_the_database(tmp_path: Path):
    """Not in its file, its journal, or what the desk and the trail say."""
    async with house(f"sqlite:///{tmp_path}/shop.db") as engine:
        token = (await made(engine)).token
        secret = token.split("_", 2)[2].encode()
        assert len(secret) == 43
        said = f"{await LocalDesk(engine.store).tokens()} {await engine.store.audit()} {await engine.store.tokens()}"
        assert secret.decode() not in said
        files = [each for each in tmp_path.iterdir() if each.is_file()]
        assert files
        assert not [each for each in files if secret in each.read_bytes()]


# Bearers.bearer: `find_token` compares the hash, and the state must be live


async def test_the_id_of_a_token_is_not_enough(shop, page):
    right = await made(shop)
    for wrong in (right.token[:-1], right.token + "x", f"hf_{right.id}_", f"hf_{right.id}", "hf_", "x", "hf_\xff"):
        reply = await bearing(page, wrong).get("/api/v1/")
        assert (reply.status, reply.json["type"]) == (401, "/api/v1/problems/unauthenticated"), wrong
        assert "holdfast token create" in reply.json["detail"]
        assert reply.headers["www-authenticate"] == 'Bearer error="invalid_token"'


# `find_token` compares by hmac


async def test_hashes_are_compared_in_constant_time(shop, page, monkeypatch):
    compared: list[tuple[str, str]] = []
    compare = hmac.compare_digest

    def noted(a: str, b: str) -> bool:
        compared.append((a, b))
        return compare(a, b)

    monkeypatch.setattr("holdfast.ops.tokens.hmac.compare_digest", noted)
    token = (await made(shop)).token
    assert [(await bearing(page, each).get("/api/v1/")).status for each in (token, f"{token}x")] == [200, 401]
    assert [len(a) == len(b) == 64 and token not in a + b for a, b in compared] == [True, True]


async def test_a_token_that_is_over_is_told_so_and_what_to_do(shop, page, clock):
    ends, stays = await made(shop, expires_in=HOUR), await made(shop, expires_in=None)
    assert (await bearing(page, ends.token).get("/api/v1/")).status == 200
    clock.advance(HOUR)
    reply = await bearing(page, ends.token).get("/api/v1/")
    assert (reply.status, reply.json["type"]) == (401, "/api/v1/problems/token-expired")
    assert f"the token {ends.id} of kim expired on " in reply.json["detail"]
    assert "holdfast token create" in reply.json["detail"]
    assert (await bearing(page, stays.token).get("/api/v1/")).status == 200
    assert await shop.tokens.revoke(stays.id, by="ada")
    assert not await shop.tokens.revoke(stays.id, by="ada")
    reply = await bearing(page, stays.token).get("/api/v1/")
    assert (reply.status, reply.json["type"]) == (401, "/api/v1/problems/token-revoked")
    about = {each.id: each.state for each in await LocalDesk(shop.store).tokens()}
    assert about == {ends.id: "expired", stays.id: "revoked"}


# SessionSignIn.who asks whether the token lives


async def test_a_session_dies_with_its_token(shop, page):
    token = await made(shop, "operator")
    opened = await page.post("/api/v1/session", {"token": token.token})
    cookie = opened.headers["set-cookie"].partition(";")[0]
    assert (await page.get("/api/v1/", cookie=cookie)).json["name"] == "kim"
    again = await page.post("/api/v1/session", {"token": token.token})
    assert again.status == 204  # a token of the database opens any number of them
    await shop.tokens.revoke(token.id)
    assert (await page.get("/api/v1/", cookie=cookie)).status == 401
    refused = await page.post("/api/v1/session", {"token": token.token})
    assert (refused.status, refused.json["type"]) == (401, "/api/v1/problems/token-revoked")


# Hub.stream asks whether it is still allowed


@pytest.mark.parametrize("by", ["bearer", "session", "beside authenticate"])
async def test_open_streams_end_when_their_token_is_revoked(shop, page, monkeypatch, by):
    monkeypatch.setattr(live, "EVERY", 0.01)
    token = await made(shop)
    if by == "session":
        opened = await page.post("/api/v1/session", {"token": token.token})
        headers = {"cookie": opened.headers["set-cookie"].partition(";")[0]}
    else:
        headers = {"authorization": f"Bearer {token.token}"}
    if by == "beside authenticate":
        page = Browser(dashboard(shop, authenticate=lambda request: None, tokens=True))
    async with listening(page, "/api/v1/live?view=counts", **headers) as stream:
        await stream.hears(lambda name, data: name == "counts")
        await asyncio.sleep(0)
        assert not stream.over
        await shop.tokens.revoke(token.id)
        await eventually(lambda: stream.over)
        assert stream.events[-1][0] == "bye"


async def test_beside_authenticate_tokens_are_taken_only_if_that_is_said(shop):
    token = (await made(shop, "admin")).token
    for tokens, status in ((False, 401), (True, 200)):
        page = Browser(dashboard(shop, authenticate=lambda request: None, tokens=tokens))
        assert (await bearing(page, token).get("/api/v1/")).status == status
    page = Browser(dashboard(shop, authenticate=viewer("reader"), tokens=True))
    assert (await bearing(page, token).get("/api/v1/")).json["role"] == "reader"  # the application knows who asks
    with pytest.raises(BadInput, match="not both"):
        dashboard(shop, tokens=True, dangerously_open=True)


async def test_admins_make_and_revoke_tokens_over_http(shop, page, clock):
    admin = bearing(page, (await made(shop, "admin")).token)
    clock.advance(timedelta(seconds=1))
    reply = await admin.post("/api/v1/tokens", {"name": "board", "role": "reader", "expires_in": "P7D", "reason": "tv"})
    new = reply.json
    assert (reply.status, new["role"], new["state"]) == (201, "reader", "live")
    assert (await bearing(page, new["token"]).get("/api/v1/")).json["name"] == "board"
    listed = (await admin.get("/api/v1/tokens")).json["items"]
    assert [each["name"] for each in listed] == ["board", "kim"]
    assert "token" not in listed[0]
    for program in (bearing(page, new["token"]), bearing(page, (await made(shop, "operator")).token)):
        assert (await program.get("/api/v1/tokens")).status == 403
        assert (await program.post("/api/v1/tokens", {"name": "x", "role": "admin"})).status == 403
        assert (await program.send("DELETE", f"/api/v1/tokens/{new['id']}")).status == 403
    assert (await admin.send("DELETE", f"/api/v1/tokens/{new['id']}?reason=lost")).json["changed"] is True
    assert (await admin.send("DELETE", f"/api/v1/tokens/{new['id']}")).json["changed"] is False
    assert (await bearing(page, new["token"]).get("/api/v1/")).status == 401
    for wrong in ({"name": ""}, {"name": "x", "role": "root"}, {"name": "x", "expires_in": "-P1D"}):
        assert (await admin.post("/api/v1/tokens", wrong)).status in (400, 422), wrong


def test_a_token_is_sent_to_another_machine_over_https_only():
    with pytest.raises(BadInput, match=r"not sent in the clear: say https://shop\.example\.com"):
        RemoteDesk("http://shop.example.com/workflows", "hf_x")
    for here in ("http://127.0.0.1:7780", "http://localhost:7780", "http://[::1]:7780", "https://shop.example.com"):
        RemoteDesk(here, "hf_x")


async def test_a_token_and_the_cookie_of_its_session_are_told_to_no_one(shop, page, caplog, monkeypatch):
    """Not in a log, an answer, an error, a defect or the page, whatever is asked with them, rightly or not."""
    caplog.set_level(logging.DEBUG)
    right, revoked = await made(shop, "admin"), await made(shop)
    await shop.tokens.revoke(revoked.id)
    opened = await page.post("/api/v1/session", {"token": right.token})
    cookie = opened.headers["set-cookie"].partition(";")[0]
    answers = []
    for program in (bearing(page, right.token), bearing(page, revoked.token), Browser(page.app, {"cookie": cookie})):
        for path in ("/", "/runs", "/api/v1/", "/api/v1/tokens", "/api/v1/audit", "/api/v1/nothing", "/api/v1/docs"):
            answers.append(await program.get(path))
        for body in (b'{"token": "' + right.token.encode() + b'x"}', right.token.encode(), b'{"tokens": 1}'):
            answers.append(await program.send("POST", "/api/v1/session", body))
    monkeypatch.setattr(shop.store, "heads", None)  # a defect
    answers.append(await bearing(page, right.token).get("/api/v1/runs"))
    assert answers[-1].status == 500
    said = "\n".join(f"{each.body!r} {each.headers}" for each in answers) + caplog.text
    for secret in (right.token, revoked.token, cookie.partition("=")[2]):
        assert secret.removeprefix("hf_") not in said  # which may have a "_" itself
