"""Requests of the HTTP API that do the same as the commands of `why`, for faces other than the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.looking.views import HttpRequest

_ACTS = ("cancel", "pause", "resume", "retry", "terminate", "recover", "nudge")
_WORK = {"--queue": "queue", "--workflow": "workflow", "--limit": "limit"}


def request_of(words: tuple[str, ...]) -> HttpRequest | None:
    """Return the request that does what a command does, None if there is none.

    Ids of runs stand in paths as they are: they have no letter that would have to be written otherwise there.
    """
    verb, *given = words
    if verb in _ACTS:
        return _act(verb, given)
    made = _REQUESTS.get(verb)
    return made(given) if made is not None else None


def _act(verb: str, given: list[str]) -> HttpRequest:
    if given[0] in _WORK:
        return _post(f"/work/{verb}", {"kind": _WORK[given[0]], "name": given[1]})
    if given[0] == "--where":
        # A dry run: its answer has the selection that does it.
        return _post("/bulk", {"action": verb, "q": given[1], "dry_run": True})
    reason = {"reason": given[2]} if given[1:2] == ["--reason"] else {}
    return _post(f"/runs/{given[0]}/{verb}", reason)


def _get(path: str) -> HttpRequest:
    return HttpRequest(method="GET", path=f"/api/v1{path}")


def _list(which: str) -> HttpRequest:
    from urllib.parse import quote  # it takes a while to load, and few ask

    return _get(f"/runs?q={quote(which, safe='')}")


def _post(path: str, body: Mapping[str, Any]) -> HttpRequest:
    return HttpRequest(method="POST", path=f"/api/v1{path}", body=dict(body))


_REQUESTS: dict[str, Callable[[list[str]], HttpRequest]] = {
    "show": lambda given: _get(f"/runs/{given[0]}"),
    "why": lambda given: _get(f"/runs/{given[0]}/why"),
    "list": lambda given: _list(" ".join(given)),
    "workers": lambda given: _get(f"/workers/{given[0]}" if given else "/workers"),
    "queues": lambda given: _get("/queues"),
    "limits": lambda given: _get("/limits"),
    "send": lambda given: _post(f"/runs/{given[0]}/messages", {"name": given[1], "payload": {}}),
    "publish": lambda given: _post("/events", {"name": given[0], "payload": {}}),
}
