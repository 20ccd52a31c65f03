"""The dashboard by itself: on this machine a link that lets one browser in, elsewhere tokens and TLS."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING

import msgspec
import uvicorn
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.errors import BadInput
from holdfast.looking import LocalDesk
from holdfast.looking.acting.tokens import KnownTokens
from holdfast.web.app import Dashboard
from holdfast.web.auth import Bearers, Principal
from holdfast.web.redaction import Redaction
from holdfast.web.sessions import SessionSignIn

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class CannotServe(BadInput):
    """The address is none that this can serve, or not so."""


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how the dashboard is served."""

    bind: str = "127.0.0.1:7780"
    """An address and a port; port 0 takes a free one."""
    hosts: tuple[str, ...] = ()
    """Names under which browsers reach it beside those of this machine."""
    certificate: str | None = None
    """The file of the certificate for TLS, and that of its key."""
    key: str | None = None
    behind_proxy: bool = False
    """Whether a reverse proxy stands before it, which alone can reach it, speaks TLS and says who asks it."""
    redact: tuple[str, ...] = ()
    """The ends of paths in payloads whose values are masked, beside keys that look like secrets."""

    @property
    def local(self) -> bool:
        """Whether it can be reached from this machine only."""
        return _address(self.bind)[0].is_loopback

    @property
    def secure(self) -> bool:
        """Whether browsers reach it by TLS."""
        return self.certificate is not None or self.behind_proxy


def check_serving(serving: Serving) -> None:
    """Refuse to serve other machines in the clear, or under any name.

    Raises:
        CannotServe: saying what is missing.
    """
    if (serving.certificate is None) != (serving.key is None):
        raise CannotServe("TLS needs both, --tls-cert and --tls-key")
    if serving.certificate is not None and serving.behind_proxy:
        raise CannotServe("give --tls-cert, or --behind-proxy where a proxy speaks TLS, not both")
    if serving.local:
        return
    missing = []
    if not serving.hosts:
        missing.append("--allow-host NAME, under which browsers reach it")
    if not serving.secure:
        missing.append("TLS: --tls-cert and --tls-key, or --behind-proxy where a proxy speaks it")
    if missing:
        raise CannotServe(
            f"--bind {serving.bind}: other machines can reach this address, so it needs {' and '.join(missing)}; or "
            "stay on this machine (127.0.0.1) and reach it from another by ssh -L"
        )


def listen(bind: str) -> socket.socket:
    """Return a socket on an address, as `127.0.0.1:7780`; port 0 takes a free one.

    Raises:
        CannotServe: the address is none, or is in use.
    """
    address, port = _address(bind)
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    # asyncio lets answers go at once (TCP_NODELAY) only where the protocol is said; otherwise each may wait for 40 ms.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((str(address), port))
    except OSError as error:
        made.close()
        raise CannotServe(f"--bind {bind}: {error.strerror}; another port: --bind 127.0.0.1:0") from None
    return made


def _address(bind: str) -> tuple[IPv4Address | IPv6Address, int]:
    host, colon, port = bind.rpartition(":")
    name = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise CannotServe(f"--bind {bind}: write address:port, as 127.0.0.1:7780")
    try:
        return ip_address("127.0.0.1" if name == "localhost" else name), int(port)
    except ValueError:
        raise CannotServe(f"--bind {bind}: write an address, as 127.0.0.1:7780 or [::1]:7780") from None


async def serve(
    engine: Engine, listening: socket.socket, serving: Serving, who: Principal, ready: Callable[[str], None]
) -> None:
    """Serve the dashboard of an open engine until the process is asked to stop.

    `ready` is given the link: on this machine one for one browser, with a token behind the # that no server or log ever
    sees, which lets it in as `who`; elsewhere one that asks for a token.

    Raises:
        CannotServe: other machines can reach it, and there is no token by which they would be known.
    """
    desk = LocalDesk(engine.store, code=engine.registry, engine=engine)
    if not serving.local and not any(each.state == "live" for each in await desk.tokens()):
        raise CannotServe(
            f"--bind {serving.bind}: there is no token by which other machines would be known; make one first: "
            "holdfast token create --role admin"
        )
    host, port = listening.getsockname()[:2]
    gate = SessionSignIn(Bearers(KnownTokens(engine.store)))
    app: ASGIApp = Dashboard(desk, gate, _hosts(serving, port), Redaction(serving.redact))
    server = _Server(
        uvicorn.Config(
            BehindProxy(app) if serving.behind_proxy else app,
            http="h11",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=64 << 10,
            timeout_graceful_shutdown=3,
            ssl_certfile=serving.certificate,
            ssl_keyfile=serving.key,
        )
    )
    link = _link(serving, host, port)
    link = f"{link}#token={gate.one_time_token(who)}" if serving.local else link
    server.when_started = lambda: ready(link)
    await server.serve(sockets=[listening])


def _hosts(serving: Serving, port: int) -> Sequence[str] | None:
    """Return the names that are answered to, None for those of this machine alone."""
    if not serving.hosts:
        return None
    here = [f"{name}:{port}" for name in _LOOPBACK] if serving.local else []
    return [*here, *(_with_port(name, port, serving) for name in serving.hosts)]


def _link(serving: Serving, host: str, port: int) -> str:
    name = f"{f'[{host}]' if ':' in host else host}:{port}"
    if serving.hosts and (serving.behind_proxy or not serving.local):
        name = _with_port(serving.hosts[0], port, serving)
    return f"{'https' if serving.secure else 'http'}://{name}/"


def _with_port(name: str, port: int, serving: Serving) -> str:
    """Return a name with the port under which browsers reach it: behind a proxy that is the proxy's own."""
    return name if serving.behind_proxy or name.rpartition(":")[2].isdigit() else f"{name}:{port}"


class BehindProxy:
    """Takes from the proxy before it how and by whom that was asked: of what is listed, what the proxy added itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            scope = dict(scope)
            scheme = _last(headers, "x-forwarded-proto").lower()
            scope["scheme"] = scheme if scheme in ("http", "https") else "https"
            address = _last(headers, "x-forwarded-for")
            if address:
                scope["client"] = (address, 0)
        await self._app(scope, receive, send)


def _last(headers: Headers, name: str) -> str:
    return ",".join(headers.getlist(name)).rpartition(",")[2].strip()


class _Server(uvicorn.Server):
    """A server that says when it listens."""

    when_started: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.when_started()
