"""Acts on one run, each by the principal of the request and with a reason, for the audit trail."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.looking.acts import Options
from holdfast.web.problems import Problem
from holdfast.web.resources.runs import etag_of, tags_of
from holdfast.web.routing import ApiAnswer, ApiCall, Handler


class ActBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a run is acted on."""

    reason: str = ""
    dry_run: bool = False
    """Only say what would come of it."""


class CancelBody(ActBody, frozen=True, kw_only=True):
    """How a run is asked to stop."""

    compensate: bool = False
    """Undo what its steps did that can be undone."""


class PauseBody(ActBody, frozen=True, kw_only=True):
    """How a run is paused."""

    duration: timedelta | None = None
    """For how long, as PT30M; until it is resumed if it is not said."""


class RerunBody(ActBody, frozen=True, kw_only=True):
    """From where an ended run is done again."""

    from_step: str | None = None
    """The path of a step; from the beginning if it is not said."""


class NudgeBody(ActBody, frozen=True, kw_only=True):
    """Which step is tried now."""

    step: str = ""
    """Its path; all that wait to be tried again if it is not said."""


class AttributesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How attributes are set."""

    reason: str = ""
    dry_run: bool = False


BODIES: dict[str, type[ActBody]] = {
    "cancel": CancelBody,
    "pause": PauseBody,
    "resume": ActBody,
    "retry": ActBody,
    "rerun": RerunBody,
    "terminate": ActBody,
    "recover": ActBody,
    "nudge": NudgeBody,
}
"""What each act takes."""
SAID = (
    "Ask a run to stop",
    "Let a run begin nothing more",
    "Let a run that was paused or cancelled go on",
    "Let a failed run go on from the step that failed",
    "Let an ended run do a step, and all after it, again",
    "End a run here and now, without asking its code",
    "Try a blocked run again with the code there is now",
    "Let steps that wait to be tried again be tried now",
)
"""What each act does."""


def acting(action: str) -> Handler:
    """Return the handler of an act."""

    async def act(call: ApiCall) -> ApiAnswer:
        return await _act(call, action, lambda: Options(by=call.who.name, **msgspec.structs.asdict(call.body)))

    return act


async def set_attributes(call: ApiCall) -> ApiAnswer:
    def options() -> Options:
        given: dict[str, Any] = msgspec.structs.asdict(call.query)
        return Options(by=call.who.name, attributes=call.body, **given)

    return await _act(call, "attributes", options)


async def _act(call: ApiCall, action: str, options: Callable[[], Options]) -> ApiAnswer:
    run_id, wanted = call.path["id"], call.headers.get("if-match")
    if wanted is not None and wanted.strip() != "*" and etag_of(await call.desk.run(run_id)) not in tags_of(wanted):
        raise Problem(
            412, "precondition-failed", f"run {run_id!r} has changed since it was looked at; look again", run_id=run_id
        )
    return ApiAnswer(await call.desk.act(action, run_id, options()))
