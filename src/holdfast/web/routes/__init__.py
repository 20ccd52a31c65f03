"""The table of routes: every operation of the API, who may use it, what it takes and what it answers."""

from __future__ import annotations

from holdfast.web.resources import server, tokens
from holdfast.web.routes import acts, house, runs
from holdfast.web.routing import LiveQuery, Route, get


def routes() -> list[Route]:
    """Return every route, for one server: acts on many runs are kept by the server that was asked for them."""
    return [*runs.ROUTES, *acts.acting_routes(), *house.ROUTES, *tokens.ROUTES, *_SERVER]


_SERVER = [
    get("/live", server.live, str, "Send views as they change, as events", query=LiveQuery, problems=(404,)),
    get("/", server.server, server.ServerView, "Say what answers here, and to whom"),
]
