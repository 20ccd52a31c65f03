"""Why runs have ended, are stopped, or come to their end."""

from __future__ import annotations

import re

from holdfast.clock import Instant
from holdfast.contract.heads import RunHead
from holdfast.contract.moves import FROM
from holdfast.contract.rows import Status
from holdfast.contract.waits import notes_of
from holdfast.looking.facts import Act, Facts
from holdfast.looking.times import Times, span
from holdfast.looking.views import Help
from holdfast.looking.why.saying import Code, Say, error_of, helping, lower
from holdfast.looking.why.waits import noted

_BLOCKED: dict[str, Code] = {
    "HistoryMismatch": "blocked.mismatch", "BusyLoop": "blocked.busy_loop", "StuckRun": "blocked.stuck",
}  # fmt: skip
_ADVICE = re.compile(r"put the old code back(?:, or [^;]+)?(?=;)")
"""What the message of a mismatch says to write, if it was not cut before that."""
_NEW_CALL = re.compile(
    r"at '(?P<at>[^']+)' history has nothing there but goes on with '(?P<next>[^']+)' \([\w ]+\), "
    r"the code now has a (?P<what>new [\w ]+?)(?P<place> \([^()]+:\d+\))?"
)
"""How the message of a mismatch tells of a call that the code has and history has not."""
_UNDO = re.compile(r"^undo#\d+/")
_POISON = "three workers in a row drove it alone and none got a commit out of it{after}: its code kills or hangs them"


def ended(head: RunHead, facts: Facts, times: Times) -> Say | None:
    """Say how a run ended."""
    if head.ended is None:
        return None
    if head.status is Status.COMPLETED:
        text = f"Completed {times.back(head.ended)}, {span(head.ended - head.created)} after it was started"
        return Say(code="completed", text=text, since=head.ended)
    if head.status is Status.CANCELLED:
        return _cancelled(head, facts, head.ended)
    if head.status is Status.MOVED:
        text = f"Moved to {head.wait} {times.back(head.ended)}: it goes on there"
        return Say(code="moved", text=text, since=head.ended, subject={"address": head.wait})
    return _failed(head, facts, head.ended)


def _cancelled(head: RunHead, facts: Facts, ended: Instant) -> Say:
    act = facts.acts.get(head.id)
    undone = "; what it had done was undone" if head.compensated else "; nothing was undone"
    if head.error_type == "Terminated":
        return Say(code="terminated", text=f"Terminated{_by(act, 'terminate')}", since=ended)
    whom = _by(act, "cancel")
    if not whom and head.error_type == "Superseded":
        whom = f": {head.error_message}"
    elif not whom and head.parent is not None:
        whom = f" with its parent `{head.parent}`"
    help = (helping("let it go on from where it was", "resume", head.id),)
    return Say(code="cancelled", text=f"Cancelled{whom}{undone}", since=ended, help=help)


def _by(act: Act | None, *actions: str) -> str:
    """Return who did it and why, if that is on record and was the last thing done to the run."""
    if act is None or act.action not in actions:
        return ""
    return f" by {act.actor}{f': {act.reason}' if act.reason else ''}"


def _failed(head: RunHead, facts: Facts, ended: Instant) -> Say:
    help = (
        helping("see the whole error", "show", head.id),
        helping("try again from the step that failed", "retry", head.id),
    )
    kind = (head.error_type or "").rpartition(".")[2]
    step = head.failed_step or ""
    if kind == "RunTimeout":
        text = f"Took longer than it was given: {error_of(head)}"
        return Say(code="failed.timeout", text=text, since=ended, help=help)
    if kind == "ChildFailed":
        text = f"Its child failed{f': {head.error_message}' if head.error_message else ''}"
        return Say(code="failed.child", text=text, since=ended, subject={"child": step}, help=help)
    if step:
        attempts = facts.attempts.get((head.id, step))
        after = f" after {attempts} attempt{'s' if attempts != 1 else ''}" if attempts else ""
        text = f"Step `{step}` gave up{after}: {error_of(head)}"
        return Say(code="failed.step", text=text, since=ended, subject={"step": step}, help=help)
    return Say(code="failed.code", text=f"Its code raised {error_of(head)}", since=ended, help=help)


def blocked(head: RunHead, facts: Facts, times: Times) -> Say | None:
    """Say why no worker can go on with a run."""
    if head.status is not Status.BLOCKED:
        return None
    kind = (head.error_type or "").rpartition(".")[2]
    poison = kind not in _BLOCKED and head.fingerprint is None
    code = _BLOCKED.get(kind, "blocked.poison" if poison else "blocked.code")
    message = " ".join((head.error_message or "its code cannot continue its history").split())
    said, _, rest = message.removeprefix(f"run {head.id}: ").partition(". The workflow changed ")
    if (new := _NEW_CALL.fullmatch(said)) is not None:
        said = f"the code has a {new['what']} `{new['at']}` where its history goes on with `{new['next']}`"
        said += new["place"] or ""
    advice = _ADVICE.search(rest)
    help = (
        *([Help(say=advice[0])] if advice is not None else []),
        helping("see its steps and the whole error", "show", head.id),
        helping("try again once the code is put right", "recover", head.id),
        helping("give it up: end it here and now", "terminate", head.id, "--reason", "..."),
    )
    step = facts.last_steps.get(head.id, "") if poison else ""
    if poison:
        said = _POISON.format(after=f" after step `{step}`" if step else "")
    subject = {"step": step} if step else {}
    return Say(code=code, text=f"Blocked: {said}", since=head.updated, subject=subject, help=help)


def moving(head: RunHead, facts: Facts, times: Times) -> Say | None:
    """Say where a run is on its way to."""
    if head.status is not Status.MOVING:
        return None
    if head.wait.startswith(FROM):
        address = head.wait.removeprefix(FROM)
        help = (
            Help(say=f"run the same `holdfast move {address} ...` again, if it was interrupted: it is finished then"),
        )
        text = f"On its way here from {address}: nothing of it happens here yet, what is sent to it waits for it"
        return Say(code="moving", text=text, since=head.updated, subject={"address": address}, help=help)
    help = (
        Help(say=f"run the same `holdfast move ... {head.wait}` again, if it was interrupted: it is finished then"),
    )
    text = f"On its way to {head.wait}: nothing of it happens here, what is sent to it is forwarded"
    return Say(code="moving", text=text, since=head.updated, subject={"address": head.wait}, help=help)


def paused(head: RunHead, facts: Facts, times: Times) -> Say | None:
    """Say who paused a run, why, and until when."""
    if head.status is not Status.PAUSED:
        return None
    act = facts.acts.get(head.id)
    whom = f" by {act.actor} {times.back(act.at)}" if act is not None and act.action == "pause" else ""
    reason = f": {act.reason}" if act is not None and act.action == "pause" and act.reason else ""
    then = f"; goes on by itself {times.ahead(head.due)}" if head.due is not None else ""
    help = (helping("let it go on", "resume", head.id),)
    return Say(code="paused", text=f"Paused{whom}{reason}{then}", since=head.updated, until=head.due, help=help)


def ending(head: RunHead, facts: Facts, times: Times) -> Say | None:
    """Say what is done before a run ends."""
    if head.conclusion in (Status.COMPLETED, Status.FAILED, Status.CANCELLED):
        text = f"Ends {head.conclusion}: its hook for that is being called"
        return Say(code="ending.hook", text=text, since=head.updated)
    if head.status is Status.CANCELLING:
        whom = _by(facts.acts.get(head.id), "cancel")
        then = f"; it is ended {times.ahead(head.due)} whatever it does" if head.due is not None else ""
        help = (helping("end it here and now, undoing nothing", "terminate", head.id, "--reason", "..."),)
        text = f"Being cancelled{whom}: its code has not come to its end yet{then}"
        return Say(code="cancelling", text=text, since=head.updated, until=head.due, help=help)
    if head.status is Status.COMPENSATING:
        return _compensating(head, facts, times)
    return None


def _undone_because(head: RunHead, facts: Facts) -> str:
    """Say who cancelled a run, or which of its steps failed last: what its own code raised is on record at its end."""
    whom, undone = _by(facts.acts.get(head.id), "cancel"), facts.undone.get(head.id)
    if whom:
        return f", cancelled{whom}"
    return f" after step `{undone.after}` failed with {undone.error}" if undone is not None and undone.after else ""


def _compensating(head: RunHead, facts: Facts, times: Times) -> Say:
    waits, step, undone = notes_of(head.wait), facts.steps.get(head.id), facts.undone.get(head.id)
    said = [f"{undone.done} of {undone.of} undone"] if undone is not None else []
    if waits:
        said.append(lower(noted(waits[0], head, facts, times).text))
    elif step is not None:
        said.append(f"`{_UNDO.sub('', step.path)}` is running")
    subject = {"step": step.path} if step is not None else {}
    text = f"Undoing what it has done{_undone_because(head, facts)}"
    text += f"{'; ' if ': ' in text else ': '}{', '.join(said)}" if said else ""
    return Say(code="compensating", text=text, since=head.updated, until=head.due, subject=subject)
