"""The dashboard by itself: a server on this machine, and a link that lets one browser in."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING

import uvicorn

from holdfast.errors import BadInput
from holdfast.looking import LocalDesk
from holdfast.web.app import Dashboard
from holdfast.web.auth import Principal
from holdfast.web.redaction import Redaction
from holdfast.web.sessions import SessionSignIn

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


class CannotServe(BadInput):
    """The address is none that this can serve."""


def listen(bind: str) -> socket.socket:
    """Return a socket on an address of this machine, as `127.0.0.1:7780`; port 0 takes a free one.

    Raises:
        CannotServe: the address is none, is not of this machine alone, or is in use.
    """
    host, colon, port = bind.rpartition(":")
    name = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise CannotServe(f"--bind {bind}: write address:port, as 127.0.0.1:7780")
    try:
        address = ip_address("127.0.0.1" if name == "localhost" else name)
    except ValueError:
        raise CannotServe(f"--bind {bind}: write an address, as 127.0.0.1:7780 or [::1]:7780") from None
    if not address.is_loopback:
        raise CannotServe(
            f"--bind {bind}: this serves browsers on this machine only; reach it from another by ssh -L, or mount "
            "dashboard(engine, authenticate=...) into an application that signs people in, behind TLS"
        )
    made = socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((str(address), int(port)))
    except OSError as error:
        made.close()
        raise CannotServe(f"--bind {bind}: {error.strerror}; another port: --bind 127.0.0.1:0") from None
    return made


async def serve(engine: Engine, listening: socket.socket, who: Principal, ready: Callable[[str], None]) -> None:
    """Serve the dashboard of an open engine until the process is asked to stop.

    `ready` is given the link for one browser, with a token behind the # that no server or log ever sees.
    """
    gate = SessionSignIn()
    desk = LocalDesk(engine.store, code=engine.registry, engine=engine)
    app = Dashboard(desk, gate, None, Redaction())
    server = _Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=64 << 10,
            timeout_graceful_shutdown=3,
        )
    )
    host, port = listening.getsockname()[:2]
    link = f"http://{f'[{host}]' if ':' in host else host}:{port}/#token={gate.one_time_token(who)}"

    server.when_started = lambda: ready(link)
    await server.serve(sockets=[listening])


class _Server(uvicorn.Server):
    """A server that says when it listens."""

    when_started: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.when_started()
