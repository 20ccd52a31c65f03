"""Sessions, and the dashboard by itself: one link lets one browser in, and only on this machine."""

from __future__ import annotations

import asyncio
import http.client
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from tests.support.asgi import Browser
from tests.web.shop import house, order

from holdfast.cli.main import main
from holdfast.looking import LocalDesk
from holdfast.looking.acting.tokens import KnownTokens
from holdfast.web.app import Dashboard
from holdfast.web.auth import Bearers, Principal
from holdfast.web.redaction import Redaction
from holdfast.web.sessions import MOST_FAILURES, SessionSignIn
from holdfast.web.standalone import BehindProxy, CannotServe, Serving, check_serving, listen, serve


@pytest.fixture
async def gate_and_page():
    async with house() as engine:
        gate = SessionSignIn(Bearers(KnownTokens(engine.store)))
        yield gate, Browser(Dashboard(LocalDesk(engine.store, engine=engine), gate, None, Redaction()))


async def test_a_token_opens_one_session(gate_and_page):
    gate, page = gate_and_page
    token = gate.one_time_token(Principal("kim", "operator"))
    opened = await page.post("/api/v1/session", {"token": token})
    cookie = opened.headers["set-cookie"]
    assert opened.status == 204
    assert cookie.endswith("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict")
    seen = await page.get("/api/v1/", cookie=cookie.partition(";")[0])
    assert (seen.json["name"], seen.json["role"]) == ("kim", "operator")
    again = await page.post("/api/v1/session", {"token": token})
    assert (again.status, again.json["type"]) == (401, "/api/v1/problems/unauthenticated")
    assert token not in again.body.decode()
    closed = await page.send("DELETE", "/api/v1/session", b"", {"cookie": cookie.partition(";")[0]})
    assert "Max-Age=0" in closed.headers["set-cookie"]
    assert (await page.get("/api/v1/", cookie=cookie.partition(";")[0])).status == 401


async def test_a_session_is_over_when_its_time_is(gate_and_page, monkeypatch):
    """Whatever the browser thinks of the age of its cookie."""
    gate, page = gate_and_page
    monkeypatch.setattr("holdfast.web.sessions.LASTS", -1)
    opened = await page.post("/api/v1/session", {"token": gate.one_time_token(Principal("kim"))})
    assert opened.status == 204
    cookie = opened.headers["set-cookie"].partition(";")[0]
    assert (await page.get("/api/v1/", cookie=cookie)).status == 401


async def test_only_hashes_of_tokens_and_cookies_are_kept(gate_and_page):
    gate, page = gate_and_page
    token = gate.one_time_token(Principal("kim"))
    assert token not in str(vars(gate))
    cookie = (await page.post("/api/v1/session", {"token": token})).headers["set-cookie"]
    secret = cookie.partition(";")[0].partition("=")[2]
    assert len(secret) == 43
    assert secret not in str(vars(gate))


async def test_over_https_the_cookie_is_for_this_host_alone(gate_and_page):
    gate, page = gate_and_page
    page = Browser(page.app, scheme="https")
    opened = await page.post("/api/v1/session", {"token": gate.one_time_token(Principal("kim"))})
    assert opened.headers["set-cookie"].startswith("__Host-holdfast=")
    assert "; Path=/; Secure; " in opened.headers["set-cookie"]


async def test_tokens_cannot_be_guessed_for_long(gate_and_page):
    gate, page = gate_and_page
    for _ in range(MOST_FAILURES):
        assert (await page.post("/api/v1/session", {"token": "hf_guess"})).status == 401
    refused = await page.post("/api/v1/session", {"token": gate.one_time_token(Principal("kim"))})
    assert (refused.status, int(refused.headers["retry-after"]) > 0) == (429, True)


async def test_another_site_opens_no_session(gate_and_page):
    gate, page = gate_and_page
    token = gate.one_time_token(Principal("kim"))
    for headers in ({"origin": "https://evil.example"}, {"content-type": "text/plain"}, {"x-holdfast": None}):
        body = msgspec.json.encode({"token": token})
        assert (await page.send("POST", "/api/v1/session", body, headers)).status == 403
    assert (await page.get("/api/v1/session")).status == 405


@pytest.mark.parametrize("bind", ["0.0.0.0:7780", "192.168.1.5:7780", "[::]:7780"])
def test_other_machines_are_served_under_a_name_and_by_tls_only(bind):
    with pytest.raises(CannotServe, match=r"--allow-host NAME, .* and TLS"):
        check_serving(Serving(bind=bind))
    with pytest.raises(CannotServe, match="it needs TLS: --tls-cert"):
        check_serving(Serving(bind=bind, hosts=("a.example",)))
    with pytest.raises(CannotServe, match="it needs --allow-host NAME"):
        check_serving(Serving(bind=bind, behind_proxy=True))
    with pytest.raises(CannotServe, match="both, --tls-cert and --tls-key"):
        check_serving(Serving(bind=bind, hosts=("a.example",), certificate="a.pem"))
    check_serving(Serving(bind=bind, hosts=("a.example",), behind_proxy=True))
    check_serving(Serving(bind=bind, hosts=("a.example",), certificate="a.pem", key="a.pem"))


@pytest.mark.parametrize(
    ("bind", "said"),
    [
        ("example.com:7780", "write an address"),
        ("127.0.0.1", "write address:port"),
        ("127.0.0.1:99999", "write address:port"),
    ],
)
def test_an_address_is_an_address_and_a_port(bind, said):
    with pytest.raises(CannotServe, match=said):
        listen(bind)


def test_what_is_masked_is_read_from_settings_as_the_database_is(tmp_path: Path, monkeypatch):
    """Otherwise a person who looks by `holdfast ui` would see what the dashboard of the application masks."""
    seen: list[tuple[str, ...]] = []

    async def served(engine: Any, listening: Any, serving: Serving, *others: Any) -> None:
        seen.append(serving.redact)

    monkeypatch.setattr("holdfast.web.standalone.serve", served)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.toml").write_text('url = "sqlite:///shop.db"\nredact = ["customer.name", "headers.*"]\n')
    command = ("ui", "--no-open", "--bind", "127.0.0.1:0")
    assert main(command) == 0
    monkeypatch.setenv("HOLDFAST_REDACT", "iban")
    assert main(command) == 0
    assert main((*command, "--redact", "card.number, name")) == 0
    assert seen == [("customer.name", "headers.*"), ("iban",), ("card.number", "name")]


async def test_a_server_by_itself_masks_what_it_is_told_to():
    async with house() as engine:
        await (await engine.start(order, "lamp", id="order-7")).result()
        with listen("127.0.0.1:0") as listening:
            links: asyncio.Queue[str] = asyncio.Queue()
            serving = serve(engine, listening, Serving(redact=("item",)), Principal("kim", "reader"), links.put_nowait)
            task = asyncio.create_task(serving)
            try:
                link = await links.get()
                host, _, token = link.removeprefix("http://").partition("/#token=")
                headers = {"Content-Type": "application/json", "X-Holdfast": "1", "Origin": f"http://{host}"}
                said = await asyncio.to_thread(_read, host, token, headers)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
    assert msgspec.json.decode(said)["input"] == {"item": "\u2022" * 6}


def _read(host: str, token: str, headers: dict[str, str]) -> bytes:
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.request("POST", "/api/v1/session", msgspec.json.encode({"token": token}), headers)
        opened = connection.getresponse()
        opened.read()
        cookie = str(opened.headers["set-cookie"]).partition(";")[0]
        connection.request("GET", "/api/v1/runs/order-7", headers={"Cookie": cookie})
        return connection.getresponse().read()
    finally:
        connection.close()


async def test_other_machines_are_not_served_without_a_token():
    async with house() as engine:
        with listen("127.0.0.1:0") as listening, pytest.raises(CannotServe, match="make one first: holdfast token"):
            serving = Serving(bind="0.0.0.0:7780", hosts=("a.example",), behind_proxy=True)
            await serve(engine, listening, serving, Principal("kim"), lambda link: None)


async def test_a_proxy_says_how_and_by_whom_it_was_asked():
    """Of a list that a client began the last one counts, which the proxy added."""
    seen = []

    async def app(scope, receive, send):
        seen.append((scope["scheme"], scope["client"][0]))

    page = Browser(BehindProxy(app))
    for headers in (
        {"x-forwarded-proto": "http, https", "x-forwarded-for": "10.0.0.9, 192.0.2.7"},
        {"x-forwarded-proto": "http", "x-forwarded-for": None},
        {"x-forwarded-proto": "gopher", "x-forwarded-for": "192.0.2.8"},
        {},
    ):
        with pytest.raises(IndexError):  # the application answered nothing
            await page.send("GET", "/", headers=headers)
    assert seen == [("https", "192.0.2.7"), ("http", "127.0.0.1"), ("https", "192.0.2.8"), ("https", "127.0.0.1")]


def test_a_port_in_use_is_said():
    with listen("127.0.0.1:0") as first:
        first.listen()
        with pytest.raises(CannotServe, match="in use"):
            listen(f"127.0.0.1:{first.getsockname()[1]}")


def test_the_command_makes_the_database_and_serves_it(tmp_path: Path):
    """As a person sees it: a link, which opens one session; nothing without it; an interrupt ends it."""
    database = tmp_path / "new.db"
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "ui",
        "--no-open",
        "--bind",
        "127.0.0.1:0",
        "--url",
        f"sqlite:///{database}",
    ]
    serving = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert serving.stdout is not None
        assert serving.stderr is not None
        link = serving.stdout.readline().strip()
        token = re.fullmatch(r"http://127\.0\.0\.1:\d+/#token=(hf_[\w-]{43})", link)
        assert token is not None, serving.stderr.read() if serving.poll() is not None else link
        assert database.exists()
        host = urlsplit(link).netloc
        assert _ask(host, "GET", "/")[0] == 200
        assert _ask(host, "GET", "/api/v1/runs")[0] == 401
        body = f'{{"token": "{token[1]}"}}'
        headers = {"Content-Type": "application/json", "X-Holdfast": "1", "Origin": f"http://{host}"}
        status, answer = _ask(host, "POST", "/api/v1/session", headers, body)
        assert status == 204
        cookie = str(answer["set-cookie"]).partition(";")[0]
        assert _ask(host, "GET", "/api/v1/runs", {"Cookie": cookie})[0] == 200
        assert _ask(host, "GET", "/api/v1/runs", {"Cookie": cookie, "Host": "evil.example"})[0] == 421
    finally:
        serving.send_signal(signal.SIGINT)
        out, err = serving.communicate(timeout=60)
    assert serving.returncode == 0, err
    assert token[1] not in out + err
    assert f"there was no such database; made sqlite:///{database}" in " ".join(err.split())


def _ask(host: str, method: str, path: str, headers: dict[str, str] | None = None, body: str | None = None):
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        reply.read()
        return reply.status, reply.headers
    finally:
        connection.close()


async def test_answers_leave_at_once():
    """Where the protocol of the socket is not said, asyncio does not set this, and answers wait for up to 40 ms."""
    at_once: list[int] = []

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        at_once.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listening = listen("127.0.0.1:0")
    async with await asyncio.start_server(met, sock=listening):
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        await reader.read()
        writer.close()
    assert at_once == [1]
