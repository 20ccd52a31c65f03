"""Which pages of other origins may ask, with a token that they bring themselves: none, unless they are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from holdfast.errors import BadInput
from holdfast.web.guards.requests import has_bearer

_METHODS = "GET, POST, PUT, PATCH, DELETE"
_HEADERS = "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match"
_EXPOSED = "ETag, Location, Retry-After, WWW-Authenticate, X-Request-Id"


class Origins:
    """The origins whose pages may read answers. Cookies are never taken from them.

    Raises:
        BadInput: one is no origin, as https://board.example.com.
    """

    def __init__(self, cors: Sequence[str]) -> None:
        if isinstance(cors, str):
            raise BadInput("cors must be a list of origins, not a text")
        for each in cors:
            parts = urlsplit(each)
            if (
                parts.scheme not in ("https", "http")
                or not parts.hostname
                or each != f"{parts.scheme}://{parts.netloc}"
            ):
                raise BadInput(f"cors: {each!r} is no origin; write one as https://board.example.com")
        self._origins = frozenset(each.lower() for each in cors)

    def preflight(self, scope: Scope, headers: Mapping[str, str]) -> Response | None:
        """Return the answer to a browser that asks whether a page of another origin may; None for what is none."""
        if not _asks(scope, headers) or not self._has(headers):
            return None
        more = {
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": _HEADERS,
            "Access-Control-Max-Age": "600",
        }
        return Response(None, 204, more)

    def granted(self, scope: Scope) -> dict[str, str]:
        """Return the headers by which a browser lets the page of another origin read an answer.

        Of requests that bring a token, and never `Access-Control-Allow-Credentials`: an answer to cookies stays here.
        """
        headers = Headers(scope=scope)
        if not self._origins:
            return {}
        if not self._has(headers) or not (has_bearer(headers) or _asks(scope, headers)):
            return {"Vary": "Origin"}
        return {
            "Access-Control-Allow-Origin": headers["origin"],
            "Access-Control-Expose-Headers": _EXPOSED,
            "Vary": "Origin",
        }

    def _has(self, headers: Mapping[str, str]) -> bool:
        return headers.get("origin", "").lower() in self._origins


def _asks(scope: Scope, headers: Mapping[str, str]) -> bool:
    return scope["method"] == "OPTIONS" and "access-control-request-method" in headers
