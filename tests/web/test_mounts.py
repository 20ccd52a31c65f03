"""Mounted under a path of another application: the page, its deep links, the API, acts and live views work there."""

from __future__ import annotations

import asyncio
import http.client
import importlib
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import uvicorn
from tests.support.waiting import LONG, eventually
from tests.web.shop import approve, house, viewer

from holdfast.web import dashboard
from holdfast.web.app import Dashboard

ROOT = "/house/workflows"


def in_starlette(workflows: Dashboard) -> Any:
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Mount, Route

    return Starlette(routes=[Mount(ROOT, workflows), Route("/own", lambda request: PlainTextResponse("own"))])


def in_fastapi(workflows: Dashboard) -> Any:
    from fastapi import FastAPI
    from fastapi.responses import PlainTextResponse

    app = FastAPI()
    app.mount(ROOT, workflows)
    app.get("/own", response_class=PlainTextResponse)(lambda: "own")
    return app


def in_litestar(workflows: Dashboard) -> Any:
    from litestar import Litestar, asgi, get
    from litestar.types import Receive, Scope, Send

    @asgi(ROOT, is_mount=True, copy_scope=True)
    async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
        await workflows(scope, receive, send)  # type: ignore[arg-type]  # Litestar has its own names for the same types

    @get("/own")
    async def own() -> str:
        return "own"

    names = {"Scope": Scope, "Receive": Receive, "Send": Send}
    return Litestar([mounted, own], signature_namespace=names, logging_config=None)  # which would start a thread


def _quart() -> Any:
    from quart import Quart

    app = Quart(__name__)

    @app.get("/own")
    async def own() -> str:
        return "own"

    return app


def in_quart(workflows: Dashboard) -> Any:
    from hypercorn.middleware import DispatcherMiddleware

    return DispatcherMiddleware({ROOT: workflows, "": _quart()})  # type: ignore[dict-item]


def beside_quart(workflows: Dashboard) -> Any:
    return _beside(workflows, _quart())


def beside_django(workflows: Dashboard) -> Any:
    from django.conf import settings
    from django.core.handlers.asgi import ASGIHandler
    from django.http import HttpResponse
    from django.urls import path

    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="of a test")
    urlpatterns[:] = [path("own", lambda request: HttpResponse("own"))]
    import django

    django.setup(set_prefix=False)
    return _beside(workflows, ASGIHandler())


urlpatterns: list[Any] = []
"""What Django looks for in the module that it is told to."""


def _beside(workflows: Dashboard, app: Any) -> Any:
    """Mount both into a Starlette, which the extra has brought."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    return Starlette(routes=[Mount(ROOT, workflows), Mount("/", app)])


FRAMEWORKS = {
    in_starlette: "starlette.applications",
    in_fastapi: "fastapi",
    in_litestar: "litestar.app",
    in_quart: "quart",
    beside_quart: "quart",
    beside_django: "django.core.handlers.asgi",
}
"""How each is mounted into, and what that loads: before an engine is open, for some take seconds."""


@pytest.fixture(params=FRAMEWORKS, ids=lambda mount: mount.__name__)
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    importlib.import_module(FRAMEWORKS[request.param])
    async with house() as engine:
        await engine.start(approve, id="order-7")
        async with _served(request.param(dashboard(engine, authenticate=viewer("operator")))) as site:
            yield site


@asynccontextmanager
async def _served(app: Any) -> AsyncIterator[Site]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1, access_log=False)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await eventually(lambda: server.started)
        yield Site(listening.getsockname()[1])
    finally:
        server.should_exit = True
        await serving
        listening.close()


class Site:
    """What a browser does with a server."""

    def __init__(self, port: int) -> None:
        self.host = f"127.0.0.1:{port}"

    async def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        return await asyncio.to_thread(self._exchange, "GET", path, None)

    async def post(self, path: str, value: Any) -> tuple[int, dict[str, str], bytes]:
        return await asyncio.to_thread(self._exchange, "POST", path, msgspec.json.encode(value))

    async def first_event(self, path: str) -> bytes:
        """Return the first event of a stream, and leave."""

        def read() -> bytes:
            connection = http.client.HTTPConnection(self.host, timeout=LONG)
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                assert (answer.status, answer.headers.get_content_type()) == (200, "text/event-stream")
                lines = [answer.readline() for _ in range(3)]
                return b"".join(lines)
            finally:
                connection.close()

        return await asyncio.to_thread(read)

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.host, timeout=LONG)
        headers = {"Origin": f"http://{self.host}", "X-Holdfast": "1", "Content-Type": "application/json"}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()
        finally:
            connection.close()


async def test_all_of_it_works_under_the_path_it_is_mounted_at(site, request):
    assert (await site.get("/own"))[2] == b"own"
    pages = [await site.get(f"{ROOT}{path}") for path in ("/", "/runs", "/runs/order-7?tab=history", "/letters")]
    assert {(status, headers["content-type"]) for status, headers, _ in pages} == {(200, "text/html; charset=utf-8")}
    assert len({page for _, _, page in pages}) == 1
    linked = re.findall(rb'(?:src|href)="([^"]+)"', pages[0][2])
    assert linked
    for link in linked:
        assert link.startswith(ROOT.encode()), link
        assert (await site.get(link.decode()))[0] == 200, link
    if "beside" not in request.node.name:  # where a path without its slash is that of the other application
        status, headers, _ = await site.get(ROOT)
        assert status == 200 or (status == 307 and headers["location"].endswith(f"{ROOT}/"))

    found = msgspec.json.decode((await site.get(f"{ROOT}/api/v1/runs?q=id:order-*"))[2])
    assert [run["id"] for run in found["items"]] == ["order-7"]
    status, _, problem = await site.get(f"{ROOT}/api/v1/runs/none")
    assert (status, msgspec.json.decode(problem)["type"]) == (404, f"{ROOT}/api/v1/problems/no-such-run")
    described = msgspec.json.decode((await site.get(f"{ROOT}/api/v1/openapi.json"))[2])
    assert described["servers"] == [{"url": f"{ROOT}/api/v1"}]

    status, _, answer = await site.post(f"{ROOT}/api/v1/runs/order-7/pause", {"reason": "bank down"})
    assert (status, msgspec.json.decode(answer)["changed"]) == (200, True)
    status, headers, _ = await site.post(f"{ROOT}/api/v1/runs", {"workflow": "approve", "id": "order-8"})
    assert (status, headers["location"]) == (201, f"{ROOT}/api/v1/runs/order-8")
    event = await site.first_event(f"{ROOT}/api/v1/live?view=run/order-7")
    assert event.startswith(b"event: run\n")
    assert b'"order-7"' in event
