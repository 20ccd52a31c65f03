"""Why runs need a worker, or what is known about the worker that they have."""

from __future__ import annotations

from holdfast.clock import Instant
from holdfast.contract.heads import RunHead
from holdfast.contract.rows import RunPlace, Status
from holdfast.looking.facts import Facts
from holdfast.looking.times import Times
from holdfast.looking.views import Help
from holdfast.looking.why.saying import Say, helping

MINUTE = 60_000_000
WORKERS = helping("see which workers there are, and what they serve", "workers")
_OWNED = (Status.CANCELLING, Status.COMPENSATING)


def pending(head: RunHead, facts: Facts, times: Times) -> Say | None:
    """Say why a run has not begun."""
    if head.status is not Status.PENDING:
        return None
    if head.begins is not None and head.begins > times.now and not head.epoch:
        return Say(code="pending.later", text=f"Begins {times.until(head.begins)}", until=head.begins)
    if held_back := _held_back(head, facts, times):
        return held_back
    if head.place == RunPlace.WAITS:
        return _admission(head, facts, times)
    return unclaimed(head, facts, times)


def _held_back(head: RunHead, facts: Facts, times: Times) -> Say | None:
    since = facts.paused.get(("workflow", head.workflow))
    if since is None:
        return None
    help = (helping("let its runs go on", "resume", "--workflow", head.workflow),)
    text = f"Waits: workflow `{head.workflow}` was paused {times.back(since)}"
    return Say(code="waiting.paused", text=text, since=since, subject={"workflow": head.workflow}, help=help)


def _admission(head: RunHead, facts: Facts, times: Times) -> Say:
    admission, subject = facts.admissions.get(head.key), {"workflow": head.workflow}
    later = admission.since if admission is not None and admission.since > times.now else None
    if admission is not None and admission.first is not None and later is not None:
        text = f"Begins {times.until(later)} unless another is started under its key by then"
        return Say(code="debounced", text=text, since=admission.first, until=later, subject=subject)
    lane = f" with key `{admission.lane}`" if admission is not None and admission.lane else ""
    then = f", not before {times.until(later)}" if later is not None else ""
    text = f"Waits for its turn: the runs of workflow `{head.workflow}`{lane} take turns, or have no free place{then}"
    help = (helping("see those that have begun", "list", f"workflow:{head.workflow}", "is:open", "-status:pending"),)
    return Say(code="pending.admission", text=text, since=head.created, until=later, subject=subject, help=help)


def unclaimed(head: RunHead, facts: Facts, times: Times) -> Say:
    """Say why no worker has taken a run that wants one."""
    due = head.due if head.due is not None else head.updated
    late = f"was due {times.back(due)}" if due <= times.now else f"is due {times.ahead(due)}"
    if not facts.alive:
        dead = max(facts.workers.values(), key=lambda worker: worker.heard, default=None)
        last = f"; `{facts.worker(dead.id)}` was last heard of {times.back(dead.heard)}" if dead is not None else ""
        help: tuple[Help, ...] = (Help(say="start a worker: a process with Engine(..., workflows=[...])"),)
        if times.now - due > MINUTE:
            text = f"It {late} and no worker took it: none is alive{last}"
            return Say(code="overdue", text=text, since=due, help=help)
        return Say(code="pending.nobody", text=f"No worker can take it: none is alive{last}", since=due, help=help)
    workers = f"{len(facts.alive)} worker{'s are' if len(facts.alive) != 1 else ' is'} alive"
    if facts.none_has(head.workflow):
        return _not_served(head, facts, times, workers, f"it {late}", due)
    if times.now - due > MINUTE:
        help = (helping(f"see whether a worker knows workflow `{head.workflow}`", "workers"),)
        text = f"It {late} and no worker took it; {workers}: does one know workflow `{head.workflow}`?"
        return Say(code="overdue", text=text, since=due, subject={"workflow": head.workflow}, help=help)
    ahead = facts.ahead.get(head.id)
    others = f", {ahead} pending before it" if ahead else ""
    text = f"Waits for a worker: it {late}{others}, and {workers}{_rate(facts.taken)}"
    return Say(code="pending.busy", text=text, since=due, help=(WORKERS,))


def _not_served(head: RunHead, facts: Facts, times: Times, workers: str, late: str, due: Instant) -> Say:
    """Say that no worker which is alive advances a workflow: none knows it, or none serves its queue."""
    queue, subject, lacks = facts.unserved_queue(head.workflow), {"workflow": head.workflow}, "has"
    start = f"start a worker with it: Engine(workflows=[{head.workflow}, ...])"
    if queue is not None:
        lacks, subject = f"serves queue `{queue}` of", subject | {"queue": queue}
        start = f"start a worker that serves it: Engine(queues=[{queue!r}, ...])"
    gone = facts.last_with(head.workflow)
    last = f"`{facts.worker(gone.id)}` had it, last heard of {times.back(gone.heard)}" if gone is not None else late
    text = f"No worker can take it: {workers}, and none {lacks} workflow `{head.workflow}`; {last}"
    return Say(code="pending.nobody", text=text, since=due, subject=subject, help=(Help(say=start), WORKERS))


def _rate(taken: float | None) -> str:
    if not taken:
        return ""
    return f"; about {taken:,.0f} are taken a second" if taken >= 1 else f"; about {taken * 60:,.0f} are taken a minute"


def running(head: RunHead, facts: Facts, times: Times) -> Say | None:
    """Say what a run does, or what became of the worker that does it."""
    if head.status is not Status.RUNNING and not (head.status in _OWNED and not head.wait):
        return None
    if head.owner is None:
        return unclaimed(head, facts, times)
    return lost(head, facts, times) or _at_work(head, facts, times)


def lost(head: RunHead, facts: Facts, times: Times) -> Say | None:
    """Say that the worker of a run is dead or silent."""
    if head.owner is None:
        return None
    worker, subject, name = facts.workers.get(head.owner), {"worker": head.owner}, facts.worker(head.owner)
    others = [name for name in facts.alive if name != head.owner]
    then = "another takes over as soon as it looks" if others else "no other worker is alive to take over"
    if worker is None or worker.state == "dead":
        heard = f" was last heard of {times.back(worker.heard)} and" if worker is not None else ""
        text = f"Its worker `{name}`{heard} is dead; {then}"
        return Say(
            code="running.dead", text=text, since=head.updated, subject=subject, help=(*_another(others), WORKERS)
        )
    if worker.state == "silent":
        text = f"Its worker `{name}` was last heard of {times.back(worker.heard)}, longer than its lease; {then}"
        hangs = Help(say=f"end process {worker.pid} on {worker.host}, if it hangs: its runs are freed then")
        help = (hangs, *_another(others), _runs_on(head.owner))
        return Say(code="running.silent", text=text, since=worker.heard, subject=subject, help=help)
    return None


def _another(others: list[str]) -> tuple[Help, ...]:
    return () if others else (Help(say="start a worker: a process with Engine(..., workflows=[...])"),)


def _runs_on(worker: str) -> Help:
    return helping("see what its worker runs", "workers", worker)


def _at_work(head: RunHead, facts: Facts, times: Times) -> Say:
    assert head.owner is not None
    step = facts.steps.get(head.id)
    if step is None:
        text = f"Runs on worker `{facts.worker(head.owner)}` {times.ago(head.updated)}"
        subject, help = {"worker": head.owner}, (_runs_on(head.owner),)
        return Say(code="running.step", text=text, since=head.updated, subject=subject, help=help)
    progress = f": {step.progress}" if step.progress and not times.discreet else ""
    beat = f"; heartbeat {times.back(step.beat)}{progress}" if step.beat else ""
    text = f"Step `{step.path}`, attempt {step.attempt}, {times.ago(step.began)} on `{facts.worker(head.owner)}`{beat}"
    subject, help = {"step": step.path, "worker": head.owner}, (_runs_on(head.owner),)
    return Say(code="running.step", text=text, since=step.began, subject=subject, help=help)
