"""Errors as RFC 9457 problems: which exception has which status and code, and what is told of it."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from holdfast import errors
from holdfast.looking.bulk import UnusableSelection
from holdfast.looking.query import BadCursor


class Problem(Exception):
    """What is answered instead of what was asked for; `more` are further fields of it."""

    def __init__(self, status: int, code: str, detail: str, *, headers: dict[str, str] | None = None, **more: Any):
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers or {}
        self.more = more


class MisfitPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a body that does not fit, and why."""

    pointer: str
    """Where it stands, as a JSON pointer: `/arguments/item`; empty for the whole."""
    detail: str


class ProblemView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error, as `application/problem+json` says it. `type` is stable, the words of `detail` are not."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    """The id of the request, which the log of the server has, too."""
    error: str = ""
    """The class of the error, as holdfast.errors names it."""
    run_id: str = ""
    field: str = ""
    role: str = ""
    """The role that was needed."""
    nearest: str = ""
    """What there is that is written nearly as what was asked for."""
    errors: list[MisfitPart] = []


TITLES = {
    "bad-request": "The request cannot be read",
    "bad-input": "What was given does not fit",
    "bad-filter": "The filter cannot be read",
    "bad-cursor": "The cursor belongs to another filter, or to none",
    "invalid-id": "No id looks like this",
    "unknown-workflow": "There is no such workflow at hand",
    "unknown-query": "The run answers no query of that name",
    "unauthenticated": "It is not known who asks",
    "token-expired": "The token has expired",
    "token-revoked": "The token was revoked",
    "forbidden": "The role does not allow it",
    "cross-site": "The request came from another site",
    "wrong-host": "This server does not answer to that name",
    "no-such-run": "There is no such run",
    "no-such-letter": "There is no such dead letter",
    "no-such-schedule": "There is no such schedule",
    "not-found": "There is nothing here",
    "no-such-path": "This server has no such path",
    "method-not-allowed": "That cannot be done here",
    "conflict": "It is not in a state for that",
    "precondition-failed": "It has changed since",
    "too-large": "That is too large",
    "not-json": "A body must be JSON",
    "unprocessable": "The body does not fit its schema",
    "too-many": "Too many requests",
    "queue-full": "Too many wait already",
    "store-unavailable": "The database does not answer at present",
    "outcome-unknown": "It is not known whether it happened",
    "timed-out": "There was no answer in time",
    "defect": "This is a defect of the server",
}
"""Every code there is, and what it is called."""

RETRY_AFTER = {"Retry-After": "1"}

# The first class that fits decides; subclasses stand before their bases.
_MEANT: tuple[tuple[type[BaseException], int, str], ...] = (
    (errors.InvalidId, 400, "invalid-id"),
    (BadCursor, 400, "bad-cursor"),
    (errors.BadFilter, 400, "bad-filter"),
    (errors.UnknownWorkflow, 400, "unknown-workflow"),
    (errors.UnknownQuery, 400, "unknown-query"),
    (UnusableSelection, 409, "conflict"),
    (errors.PayloadTooLarge, 413, "too-large"),
    (errors.NotSerializable, 422, "unprocessable"),
    (errors.UndecodablePayload, 422, "unprocessable"),
    (errors.BadInput, 400, "bad-input"),
    (errors.UnknownLimit, 400, "bad-input"),
    (errors.NoSuchRun, 404, "no-such-run"),
    (errors.NoSuchLetter, 404, "no-such-letter"),
    (errors.NoSuchSchedule, 404, "no-such-schedule"),
    (errors.RunError, 409, "conflict"),
    (errors.QueueFull, 429, "queue-full"),
    (errors.ReceiveTimeout, 504, "timed-out"),
    (errors.OutcomeUnknown, 503, "outcome-unknown"),
    (errors.BadData, 422, "unprocessable"),
    (errors.StoreError, 503, "store-unavailable"),
)


def problem_of(error: BaseException) -> Problem | None:
    """Return what is answered for an exception, None for a defect."""
    if isinstance(error, Problem):
        return error
    for kind, status, code in _MEANT:
        if isinstance(error, kind):
            more = {"error": type(error).__name__}
            more |= {"run_id": error.run_id} if isinstance(error, errors.RunError) else {}
            headers = RETRY_AFTER if status in (429, 503) else {}
            return Problem(status, code, str(error) or type(error).__name__, headers=headers, **more)
    return None


_PLACE = re.compile(r"(?P<said>.*) - at `(?P<place>[^`]*)`", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<number>\d+|\.\.\.)\]")
_NEAREST = re.compile(r"did you mean (?P<quote>['\"]?)(?P<word>.+?)(?P=quote)\?")


def misfit(error: msgspec.ValidationError) -> MisfitPart:
    """Return what part of a body does not fit: msgspec says so as ``Expected `str` - at `$.a[0]` ``."""
    found = _PLACE.fullmatch(str(error))
    if found is None:
        return MisfitPart(pointer="", detail=str(error))
    steps = (step["name"] or step["number"] for step in _STEP.finditer(found["place"]))
    return MisfitPart(pointer="".join(f"/{step}" for step in steps), detail=found["said"])


def _nearest(detail: str) -> str:
    """Return what an error offers instead, which all of them say in the same words."""
    found = _NEAREST.search(detail)
    return found["word"] if found is not None else ""


def written(problem: Problem, request_id: str, root: str) -> bytes:
    """Return a problem as JSON; `root` is where the application is mounted, as the client sees it."""
    fields = {name: value for name, value in problem.more.items() if name in ProblemView.__struct_fields__}
    return msgspec.json.encode(
        ProblemView(
            type=f"{root}/api/v1/problems/{problem.code}",
            title=TITLES[problem.code],
            status=problem.status,
            detail=problem.detail,
            instance=request_id,
            nearest=_nearest(problem.detail),
            **fields,
        )
    )
