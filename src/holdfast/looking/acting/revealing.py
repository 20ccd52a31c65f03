"""Showing an operator a value that faces mask: found first, then put on record, then shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import BadInput
from holdfast.looking.acting.requests import RevealedView, RevealRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.engine import Engine
    from holdfast.looking.desk import Desk
    from holdfast.looking.views import StepView

_NUMBER = re.compile("[0-9]{1,9}")


async def reveal(desk: Desk, engine: Engine, run_id: str, request: RevealRequest, by: str, reason: str) -> RevealedView:
    """Do what `Desk.reveal` does."""
    if not reason.strip():
        raise BadInput("revealing a value needs a reason: say why it has to be seen")
    value = value_at(await _payload(desk, run_id, request), request.pointer)
    said = {name: value for name, value in msgspec.structs.asdict(request).items() if value}
    await engine.audit.shown(run_id, "reveal", by=by, reason=reason, detail=said)
    return RevealedView(run=run_id, value=value, **msgspec.structs.asdict(request))


async def _payload(desk: Desk, run_id: str, request: RevealRequest) -> Any:
    """Return the payload in which the value stands."""
    if request.field == "fact":
        facts = (await desk.history(run_id, after=request.n - 1, limit=1)).items if request.n > 0 else []
        return _only([each.data for each in facts if each.seq == request.n], f"run {run_id} has no fact {request.n}")
    if request.field == "message":
        unread = (await desk.inbox(run_id, after=request.n - 1, limit=1)).items if request.n > 0 else []
        said = f"run {run_id} has no unread message {request.n}"
        return _only([each.payload for each in unread if each.n == request.n], said)
    if request.field == "arguments":
        return msgspec.to_builtins((await desk.arguments(run_id, request.step)).arguments)
    view = await desk.run(run_id)
    if request.field == "attributes":
        return view.head.attributes
    if request.field in ("result", "progress"):
        return getattr(_step(view.steps, run_id, request.step), request.field)
    return msgspec.to_builtins(getattr(view, request.field))


def _step(steps: Sequence[StepView], run_id: str, path: str) -> StepView:
    found = [step for step in steps if step.path == path]
    return _only(found, f"run {run_id} has called no step {path[:200]!r}")  # type: ignore[no-any-return]  # one of them


def _only(found: Sequence[Any], otherwise: str) -> Any:
    if not found:
        raise BadInput(otherwise)
    return found[0]


def value_at(payload: Any, pointer: str) -> Any:
    """Return what stands at a JSON pointer (RFC 6901).

    Raises:
        BadInput: it is none, or nothing stands there.
    """
    if pointer and not pointer.startswith("/"):
        raise BadInput(f"pointer must be empty or begin with /, as /card/number, not {pointer[:200]!r}")
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(payload, dict) and name in payload:
            payload = payload[name]
        elif isinstance(payload, list) and _NUMBER.fullmatch(name) and int(name) < len(payload):
            payload = payload[int(name)]
        else:
            there = f"; there are: {', '.join(map(str, list(payload)[:20]))}" if isinstance(payload, dict) else ""
            raise BadInput(f"there is no value at {pointer[:200]!r} in this value{there}")
    return payload
