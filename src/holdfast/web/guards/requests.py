"""What every request must pass before it is looked at (Host, origin, size), and the headers of every answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.types import Receive, Scope

from holdfast.web.problems import Problem

LONGEST_URL = 8 << 10
MOST_HEADERS = 64 << 10
BODY_SECONDS = 30.0
"""How long a body may take to arrive."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(?P<name>[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}


def content_security(script_hash: str = "") -> str:
    """Return the policy of what a page may load: its own files, and nothing that text could become."""
    scripts = f"'self' {script_hash}".strip()
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


HEADERS = {
    "Content-Security-Policy": content_security(),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cache-Control": "no-store",
}
"""What every answer has, unless it says otherwise itself."""
HTTPS_ONLY = {"Strict-Transport-Security": "max-age=31536000"}


def check_size(scope: Scope) -> None:
    """Refuse a URL or headers that are longer than any of ours.

    Raises:
        Problem: 414 or 431.
    """
    if len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"]) > LONGEST_URL:
        raise Problem(414, "too-large", f"the URL is longer than {LONGEST_URL:,} bytes")
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEADERS:
        raise Problem(431, "too-large", f"the headers are longer than {MOST_HEADERS:,} bytes")


def host_of(scope: Scope) -> str:
    """Return the Host of a request, as it was sent but in small letters.

    Raises:
        Problem: 400 for none, or more than one.
    """
    given: list[bytes] = [value for name, value in scope["headers"] if name == b"host"]
    if len(given) != 1:
        raise Problem(400, "bad-request", "a request has exactly one Host header")
    return given[0].decode("latin-1").lower()


def check_host(scope: Scope, host: str, allowed: Iterable[str] | None) -> None:
    """Refuse a request that was sent to another name: a page of another site may have let its name point here.

    Without a list of names those of this machine are allowed, and the address that was connected to, with its port.

    Raises:
        Problem: 421.
    """
    match = _HOST.fullmatch(host)
    if match is not None:
        usual = _DEFAULT_PORTS[_scheme(scope)]
        name, port = match["name"], match["port"] or usual
        for each in allowed if allowed is not None else _own_names(scope):
            wanted = _HOST.fullmatch(each.lower())
            if wanted is None or wanted["name"] != name:
                continue
            if port == wanted["port"] or (wanted["port"] is None and port in _DEFAULT_PORTS.values()):
                return
    raise Problem(
        421,
        "wrong-host",
        f"this server does not answer to the name {host[:100]!r}; "
        'name it if it should: dashboard(engine, allowed_hosts=["..."]) or holdfast ui --allow-host',
    )


def _own_names(scope: Scope) -> Iterable[str]:
    server = scope.get("server")
    if server is None or server[1] is None:
        return _LOOPBACK
    address = f"[{server[0]}]" if ":" in server[0] else server[0]
    return [f"{name}:{server[1]}" for name in (*_LOOPBACK, address)]


def _scheme(scope: Scope) -> str:
    return "https" if scope.get("scheme") in ("https", "wss") else "http"


def has_bearer(headers: Mapping[str, str]) -> bool:
    """Whether a request brings a token itself, which no browser adds to what another site makes it send."""
    return headers.get("authorization", "").lower().startswith("bearer ")


def check_site(scope: Scope, headers: Mapping[str, str], host: str) -> None:
    """Refuse what another site made a browser send.

    Raises:
        Problem: 403.
    """
    if has_bearer(headers):
        return
    site = headers.get("sec-fetch-site")
    if site is not None and site != "same-origin" and not (site == "none" and scope["method"] in SAFE):
        raise Problem(403, "cross-site", "a browser sent this for another site")
    if scope["method"] in SAFE:
        return
    if not is_json(headers):
        raise Problem(403, "cross-site", "without a bearer token this needs Content-Type: application/json")
    if headers.get("x-holdfast") != "1":
        raise Problem(403, "cross-site", "without a bearer token this needs the header X-Holdfast: 1")
    origin = urlsplit(headers.get("origin", "null"))
    schemes = ("https",) if _scheme(scope) == "https" else ("http", "https")
    if origin.scheme not in schemes or origin.netloc.lower() != host or origin.path:
        raise Problem(403, "cross-site", "without a bearer token the Origin must be this server")


def is_json(headers: Mapping[str, str]) -> bool:
    """Whether a body is said to be JSON, and not compressed."""
    kind, _, parameters = headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower()
    return kind.strip().lower() == "application/json" and charset in ("", "charset=utf-8")


async def read_limited(receive: Receive, largest: int) -> bytes:
    """Return the body of a request, however long it says it is.

    Raises:
        Problem: 413 when it is longer than `largest`, 408 when it takes too long, 400 when the client left.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message: Any = await receive()
                if message["type"] == "http.disconnect":
                    raise Problem(400, "bad-request", "the client left before its body had come")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > largest:
                    raise Problem(413, "too-large", f"the body is longer than {largest:,} bytes")
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        raise Problem(408, "timed-out", f"the body did not come within {BODY_SECONDS:.0f} s") from None
