"""Acting on runs at a desk: which runs an act can change, and changing them; every act is in the audit trail."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Literal, get_args

import msgspec

from holdfast.contract.rows import AWAY, TERMINAL, Status
from holdfast.engine.engine import Engine
from holdfast.engine.handle import RunHandle
from holdfast.errors import BadInput
from holdfast.looking.views import Acted

Action = Literal["cancel", "pause", "resume", "retry", "rerun", "terminate", "recover", "nudge", "attributes"]
ACTIONS: tuple[str, ...] = get_args(Action)

_OPEN = frozenset(Status) - TERMINAL
FITS: dict[str, frozenset[Status]] = {
    "cancel": _OPEN - {Status.CANCELLING, Status.COMPENSATING},
    "pause": _OPEN - {Status.CANCELLING, Status.BLOCKED, Status.PAUSED, Status.MOVING},
    "resume": frozenset({Status.PAUSED, Status.CANCELLED}),
    "retry": frozenset({Status.FAILED}),
    "rerun": TERMINAL - AWAY,
    "terminate": _OPEN - AWAY,
    "recover": frozenset({Status.BLOCKED}),
    "nudge": frozenset({Status.SUSPENDED, Status.CANCELLING, Status.COMPENSATING}),
    "attributes": frozenset(Status) - AWAY,
}
"""In which states a run can be acted on."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How it is done: by whom and why, and what some acts take beside that."""

    by: str
    reason: str = ""
    compensate: bool = False
    duration: timedelta | None = None
    from_step: str | None = None
    step: str = ""
    """Which step a nudge is for; empty for all that wait to be tried again."""
    attributes: dict[str, Any] = {}
    """Which attributes to set, of the act of that name; a value of None removes one."""
    dry_run: bool = False


async def act(engine: Engine, action: str, run_id: str, options: Options) -> Acted:
    """Act on one run.

    Raises:
        NoSuchRun: there is none.
        CannotReopen, UniqueConflict, BadInput: it cannot be done; nothing was changed.
    """
    if action not in ACTIONS:
        raise BadInput(f"there is no act {action!r}; there are {', '.join(ACTIONS)}")
    run, by, reason = engine.get(run_id), options.by, options.reason
    acts: dict[str, Callable[[RunHandle[Any]], Coroutine[Any, Any, bool]]] = {
        "cancel": lambda run: run.cancel(compensate=options.compensate, by=by, reason=reason),
        "pause": lambda run: run.pause(duration=options.duration, by=by, reason=reason),
        "resume": lambda run: run.resume(by=by, reason=reason),
        "terminate": lambda run: run.terminate(by=by, reason=reason),
        "recover": lambda run: run.recover(by=by, reason=reason),
        "nudge": lambda run: run.nudge(options.step, by=by, reason=reason),
    }
    if action in ("retry", "rerun"):
        again = (
            await run.retry(dry_run=options.dry_run, by=by, reason=reason)
            if action == "retry"
            else await run.rerun(from_step=options.from_step, dry_run=options.dry_run, by=by, reason=reason)
        )
        return Acted(
            run=run_id,
            action=action,
            changed=not options.dry_run,
            said=f"goes on from {again.since}" if again.since else "goes on from its beginning",
            steps=list(again.steps),
            children=list(again.children),
            unsure=again.unsure,
            undone=list(again.undone),
        )
    status = await run.status()
    if action == "attributes" and not options.dry_run:
        await run.set_attributes(options.attributes, by=by, reason=reason)
        return Acted(run=run_id, action=action, changed=True)
    if options.dry_run:
        return Acted(run=run_id, action=action, changed=False, said=_fit(action, status))
    if await acts[action](run):
        return Acted(run=run_id, action=action, changed=True)
    said = _fit(action, await run.status())
    if action == "nudge" and not said:
        said = f"no step of it waits to be tried again: see holdfast why {run_id}"
    return Acted(run=run_id, action=action, changed=False, said=said)


def unfit(action: str, status: Status) -> str:
    """Return the status of a run if it cannot be acted on because of it, else nothing."""
    return "" if status in FITS[action] else str(status)


def _fit(action: str, status: Status) -> str:
    return f"it is {status}" if unfit(action, status) else ""
