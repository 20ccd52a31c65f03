"""The dashboard as an ASGI application: guards first, then who asks, then the route."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from holdfast.errors import BadInput
from holdfast.looking import Desk, LocalDesk
from holdfast.looking.acting.tokens import KnownTokens
from holdfast.web.assets import assets
from holdfast.web.auth import ANYONE, Authenticate, Bearers, HostSignIn, Principal, SignIn, unauthenticated
from holdfast.web.guards import requests as guard
from holdfast.web.guards.origins import Origins
from holdfast.web.guards.rates import Pace, Rates
from holdfast.web.live import Hub, Watched
from holdfast.web.openapi import openapi
from holdfast.web.problems import TITLES, Problem, problem_of, written
from holdfast.web.redaction import Redaction, Redactor
from holdfast.web.resources.docs import docs_page
from holdfast.web.resources.metrics import metrics_text
from holdfast.web.resources.ready import Readiness
from holdfast.web.routes import routes
from holdfast.web.routing import (
    SMALL_BODY,
    ApiCall,
    LiveQuery,
    Route,
    RouteTable,
    TellingQuery,
    read_body,
    read_query,
)
from holdfast.web.sessions import SessionBody, SessionSignIn

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

_log = logging.getLogger("holdfast.web")
_API = "/api/v1"
_PAGES = frozenset({"", "runs", "letters", "schedules", "workers", "events", "deploys", "audit", "settings", "start"})
"""With what the path of a page begins: they are all the same file, which holds nothing of the database."""
_VIEWS = {
    "runs": ("rows", "/runs", 1),
    "run": ("run", "/runs", 1),
    "counts": ("counts", "/counts", 1),
    "letters": ("letters", "/letters/groups", 1),
    "newest-letters": ("letters", "/letters", 1),
    "workers": ("workers", "/workers", 1),
    "queues": ("workers", "/queues", 1),
    "limits": ("workers", "/limits", 1),
    "bulk": ("bulk", "/bulk", 1),
    "schedules": ("schedules", "/schedules", 1),
    "events": ("events", "/events", 1),
    "audit": ("audit", "/audit", 1),
    "figures": ("figures", "/figures", 5),
    "versions": ("versions", "/versions", 5),
    "checks": ("checks", "/checks", 5),
    "doctor": ("doctor", "/doctor", 15),
    "database": ("database", "/database", 15),
}
"""What can be watched: the name of its events, the path of what they tell, and how many seconds lie between looks."""
_FOREVER = "public, max-age=31536000, immutable"


def dashboard(
    engine: Engine,
    *,
    authenticate: Authenticate | None = None,
    allowed_hosts: Sequence[str] | None = None,
    redact: Sequence[str] = (),
    redact_with: Redactor | None = None,
    reveal: bool = True,
    tokens: bool = False,
    logs_url: str = "",
    rates: Rates | None = Rates(),  # noqa: B008  # it is frozen
    cors: Sequence[str] = (),
    metrics: Literal["viewer", "open"] = "viewer",
    dangerously_open: bool = False,
) -> Dashboard:
    """Return the dashboard and its HTTP API on an engine, to be mounted under any path.

        app.mount("/workflows", dashboard(engine, authenticate=who, allowed_hosts=["shop.example.com"]))

    Args:
        engine: which one; it must be open when the first request comes.
        authenticate: a function of a Starlette request, async or not, that returns a `Principal`, or None for a
            request of no one it knows. Without it tokens are asked for (`holdfast token create`): browsers exchange
            one for a session, programs send theirs with each request.
        allowed_hosts: the names under which browsers reach it, with a port where that is not 80 or 443; by default
            those of this machine.
        redact: paths of values in payloads that are masked, as `card` or `headers.authorization`; keys that look like
            secrets (password, token, ...) are masked in any case.
        redact_with: a function of the class of a view, the path in a payload and the value: what is shown instead.
        reveal: whether an operator may see a masked value after all: one at a time, for a reason, and on record.
        tokens: beside `authenticate`, let bearers of tokens in, as the command line.
        logs_url: where the logs of a run are found, as `https://logs.example.com/?q={run_id}`; its page links there.
        rates: how many requests a second each principal may make; None for as many as come.
        cors: origins whose pages may ask with a token that they bring, as `https://board.example.com`; cookies are
            never taken from them.
        metrics: who may read `/metrics`: a viewer, or (`open`) anyone who reaches it.
        dangerously_open: let anyone in as an admin, without `authenticate`. Each start logs a warning.
    """
    if (authenticate is not None or tokens) and dangerously_open:
        raise BadInput("give authenticate= or tokens=, or dangerously_open=True, not both")
    bearers = Bearers(KnownTokens(engine.store))
    sign_in: SignIn = SessionSignIn(bearers)
    if authenticate is not None:
        sign_in = HostSignIn(authenticate, bearers if tokens else None)
    elif dangerously_open:
        sign_in = HostSignIn(lambda request: ANYONE)
        _log.warning("the dashboard is open: anyone who reaches it is an admin (dangerously_open=True)")
    desk = LocalDesk(engine.store, code=engine.registry, engine=engine)
    redaction = Redaction(redact, redact_with, reveal)
    return Dashboard(desk, sign_in, allowed_hosts, redaction, logs_url, rates=rates, cors=cors, metrics=metrics)


class Dashboard:
    """An ASGI application; made by `dashboard`."""

    def __init__(
        self,
        desk: Desk,
        sign_in: SignIn,
        allowed_hosts: Sequence[str] | None,
        redaction: Redaction,
        logs_url: str = "",
        *,
        rates: Rates | None = Rates(),  # noqa: B008  # it is frozen
        cors: Sequence[str] = (),
        metrics: str = "viewer",
    ) -> None:
        if isinstance(allowed_hosts, str):
            raise BadInput("allowed_hosts must be a list of names, not a text")
        if logs_url and not (logs_url.startswith(("https://", "http://")) and "{run_id}" in logs_url):
            raise BadInput(f"logs_url must be an address with {{run_id}} in it, as https://..., not {logs_url!r}")
        if metrics not in ("viewer", "open"):
            raise BadInput(f"metrics must be 'viewer' or 'open', not {metrics!r}")
        self._logs_url = logs_url
        self._desk = desk
        self._redaction = redaction
        self._table = RouteTable(routes())
        self._sign_in = sign_in
        self._hub = Hub()
        self._ready = Readiness(desk)
        self._pace = Pace(rates)
        self._origins = Origins(cors)
        self._open_metrics = metrics == "open"
        self._hosts = tuple(allowed_hosts) if allowed_hosts is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        scope = _as_sent(scope)
        answering = _Answering(scope, send, self._origins.granted(scope))
        try:
            response = await self._answered(scope, receive)
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                _log.exception("request %s failed: a defect of the dashboard", answering.request_id)
                problem = Problem(500, "defect", f"the log of the server has it as request {answering.request_id}")
            response = Response(
                written(problem, answering.request_id, _root(scope)),
                problem.status,
                problem.headers,
                "application/problem+json",
            )
        if scope["method"] == "HEAD":
            response.body = b""
        await response(scope, receive, answering.send)

    async def _answered(self, scope: Scope, receive: Receive) -> Response:
        guard.check_size(scope)
        host = guard.host_of(scope)
        guard.check_host(scope, host, self._hosts)
        path = _inner_path(scope)
        headers = Headers(scope=scope)
        preflight = self._origins.preflight(scope, headers)
        if preflight is not None:
            return preflight
        if path == "/readyz" and scope["method"] in ("GET", "HEAD"):
            return await self._ready.answered()
        if path == "/metrics" and scope["method"] in ("GET", "HEAD"):
            return await self._metrics(scope, headers, host)
        if not path.startswith(f"{_API}/") and path != _API:
            return _outside_api(scope, path, headers)
        guard.check_site(scope, headers, host)
        return await self._api(scope, receive, path.removeprefix(_API) or "/", headers)

    async def _metrics(self, scope: Scope, headers: Headers, host: str) -> Response:
        if not self._open_metrics:
            guard.check_site(scope, headers, host)
            self._pace.take((await self._who(scope)).name, "GET")
        return Response(await metrics_text(self._desk), 200, media_type="text/plain; version=0.0.4")

    async def _api(self, scope: Scope, receive: Receive, path: str, headers: Headers) -> Response:
        if path == "/session" and isinstance(self._sign_in, SessionSignIn):
            return await _session(self._sign_in, Request(scope, receive), headers)
        who = await self._who(scope)
        self._pace.take(who.name, scope["method"])
        if path.startswith("/problems/") and path.removeprefix("/problems/") in TITLES:
            code = path.removeprefix("/problems/")
            return Response(f"{code}: {TITLES[code]}.\n", 200, media_type="text/plain")
        if path == "/docs" and scope["method"] in ("GET", "HEAD"):
            return Response(docs_page(self._table.routes, _root(scope)), 200, media_type="text/html")
        if path == "/openapi.json" and scope["method"] in ("GET", "HEAD"):
            described = openapi(self._table.routes, _root(scope))
            return Response(msgspec.json.encode(described), 200, media_type="application/json")
        found = self._table.find(path)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        route = found.routes.get(method)
        if route is None:
            there = ", ".join(sorted(found.routes))
            raise Problem(405, "method-not-allowed", f"here there is {there}", headers={"Allow": there})
        who.need(route.role, route.summary[:1].lower() + route.summary[1:])
        query: Any = read_query(route.query, _pairs(scope))
        body = await _body(route, receive, headers)
        if route.path == "/live":
            return self._live(scope, who, query)
        desk = self._desk if who.may("reader") else self._desk.discreet()
        answer = await route.handler(
            ApiCall(desk, who, found.path, query, body, headers, self._redaction, _root(scope), self._logs_url)
        )
        if isinstance(answer.value, AsyncGenerator):
            return StreamingResponse(answer.value, answer.status, answer.headers, "application/x-ndjson")
        if answer.value is None:
            return Response(None, answer.status, answer.headers)
        shown = await self._redaction.written(answer.value, who, getattr(query, "cut", False))
        return Response(shown, answer.status, answer.headers, "application/json")

    def _live(self, scope: Scope, who: Principal, query: LiveQuery) -> Response:
        """Answer with views as they change."""
        views = [self._watched(view, who, query) for view in query.view]
        return self._hub.stream(who.name, views, partial(self._sign_in.still, Request(scope)))

    def _watched(self, view: str, who: Principal, query: LiveQuery) -> Watched:
        """Return a view as something to look at again and again: what GET of its path answers."""
        name, _, rest = view.partition("?")
        kind = name.partition("/")[0]
        if kind not in _VIEWS:
            there = ", ".join(_VIEWS)
            raise Problem(400, "bad-request", f"there is no view {view[:60]!r}; there are {there}", field="view")
        event, path, apart = _VIEWS[kind]
        found = self._table.find(path + name[len(kind) :])
        route = found.routes.get("GET")
        if route is None or route.answers is str:
            raise Problem(404, "no-such-path", f"{view[:60]!r} is nothing that can be watched", field="view")
        who.need(route.role, route.summary[:1].lower() + route.summary[1:])
        asked = dict(_parsed(rest.encode("utf-8")))
        telling = issubclass(route.query, TellingQuery)
        if telling:
            asked |= {"relative": "false", "zone": query.zone}
        parameters = read_query(route.query, list(asked.items()))
        desk = self._desk if who.may("reader") else self._desk.discreet()
        call = ApiCall(desk, who, found.path, parameters, None, {}, self._redaction)

        async def look(call: ApiCall = call) -> msgspec.Raw:
            answer = await route.handler(call)
            return msgspec.Raw(await self._redaction.written(answer.value, who, getattr(parameters, "cut", False)))

        tell = None
        if telling and query.relative:  # what is told with instants is another only when the run is
            words = msgspec.structs.replace(parameters, relative=True)
            tell = partial(look, msgspec.structs.replace(call, query=words))
        key = f"{view}\n{query.relative}\n{query.zone}\n{who.may('reader')}"
        return Watched(event, view, key, look, apart, tell)

    async def _who(self, scope: Scope) -> Principal:
        who = await self._sign_in.who(Request(scope))
        if who is None:
            raise unauthenticated("sign in first, or send a token: Authorization: Bearer hf_...")
        return who


async def _session(gate: SessionSignIn, request: Request, headers: Mapping[str, str]) -> Response:
    """Open a session by a token, or close the one of this browser."""
    https, root = request.scope.get("scheme") == "https", _root(request.scope)
    if request.method == "POST":
        if not guard.is_json(headers):
            raise Problem(415, "not-json", "a body must be application/json in UTF-8, and not compressed")
        body: SessionBody = read_body(SessionBody, await guard.read_limited(request.receive, SMALL_BODY))
        address = request.client.host if request.client is not None else ""
        return Response(None, 204, {"Set-Cookie": await gate.open(body.token, address, request, https, root)})
    if request.method == "DELETE":
        return Response(None, 204, {"Set-Cookie": gate.close(request, https, root)})
    raise Problem(405, "method-not-allowed", "here there is DELETE, POST", headers={"Allow": "DELETE, POST"})


class _Answering:
    """The way out: every answer leaves with the headers that all have, and the id of its request."""

    def __init__(self, scope: Scope, send: Send, granted: Mapping[str, str]) -> None:
        self.request_id = secrets.token_hex(8)
        self._granted = granted
        self._scope = scope
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            has = {name.lower() for name, _ in message["headers"]}
            wanted = {**guard.HEADERS, **self._granted, "X-Request-Id": self.request_id}
            if self._scope.get("scheme") == "https":
                wanted |= guard.HTTPS_ONLY
            more = [(name.lower().encode(), value.encode("latin-1")) for name, value in wanted.items()]
            message["headers"] = [*message["headers"], *(each for each in more if each[0] not in has)]
        await self._send(message)


def _outside_api(scope: Scope, path: str, headers: Mapping[str, str]) -> Response:
    """ApiAnswer what holds nothing of the database: the page, its files, and whether the server is there."""
    if scope["method"] not in ("GET", "HEAD"):
        raise Problem(405, "method-not-allowed", "here there is GET, HEAD", headers={"Allow": "GET, HEAD"})
    if path == "/healthz":
        return Response("ok\n", media_type="text/plain")
    if path == "":
        return Response(None, 307, {"Location": f"{_root(scope)}/"})
    if not path.startswith("/") or path.startswith("//"):
        raise Problem(404, "not-found", "there is nothing here")  # a target that is no path
    if path.startswith("/static/"):
        return _static(path.removeprefix("/static/"), headers)
    there = path.split("/")[1] in _PAGES
    if there or "text/html" in headers.get("accept", ""):  # to a browser the page says that nothing is there
        page, script_hash = assets().page_at(_root(scope))
        return Response(
            page,
            200 if there else 404,
            headers={"Content-Security-Policy": guard.content_security(script_hash)},
            media_type="text/html",
        )
    raise Problem(404, "not-found", "there is nothing here")


def _static(path: str, headers: Mapping[str, str]) -> Response:
    known = assets()
    prefix, _, name = path.partition("/")
    asset = known.files.get(name) if prefix == known.hash else None
    if asset is None:
        raise Problem(404, "not-found", "there is no such file")
    more = {"Cache-Control": _FOREVER, "Vary": "Accept-Encoding", "Content-Type": asset.content_type}
    encodings = {each.partition(";")[0].strip() for each in headers.get("accept-encoding", "").split(",")}
    if asset.compressed is not None and "gzip" in encodings:
        return Response(asset.compressed, headers={**more, "Content-Encoding": "gzip"})
    return Response(asset.plain, headers=more)


def _as_sent(scope: Scope) -> Scope:
    """Return a request with its whole path, and where the application is mounted.

    Litestar cuts that place off the path without saying which it was, and lets the rest end with a slash.
    """
    sent = unquote((scope.get("raw_path") or b"").decode("latin-1"))
    whole, rest = sent.rstrip("/"), scope["path"].rstrip("/")
    if scope.get("root_path") or len(whole) <= len(rest) or not whole.endswith(rest):
        return scope
    return {**scope, "path": sent, "root_path": whole[: len(whole) - len(rest)]}


def _root(scope: Scope) -> str:
    """Return where the application is mounted."""
    root: str = scope.get("root_path", "")
    return root.rstrip("/")


def _inner_path(scope: Scope) -> str:
    """Return the path inside the application; some servers leave the place where it is mounted in it."""
    path: str = scope["path"]
    root = _root(scope)
    return path[len(root) :] if root and (path == root or path.startswith(f"{root}/")) else path


def _pairs(scope: Scope) -> list[tuple[str, str]]:
    return _parsed(scope["query_string"])


def _parsed(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise Problem(400, "bad-request", "the parameters of the URL cannot be read") from None


async def _body(route: Route, receive: Receive, headers: Mapping[str, str]) -> Any:
    if route.body is None:
        return None
    if not guard.is_json(headers) or headers.get("content-encoding", "identity") != "identity":
        raise Problem(415, "not-json", "a body must be application/json in UTF-8, and not compressed")
    body = await guard.read_limited(receive, route.largest)
    if len(body) > SMALL_BODY:
        return await asyncio.to_thread(read_body, route.body, body)
    return read_body(route.body, body)


async def _lifespan(receive: Receive, send: Send) -> None:
    """ApiAnswer a server that tells its application when it starts and stops; nothing depends on that."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
