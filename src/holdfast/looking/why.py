"""Why a run is where it is: one sentence with a stable code, made of facts that were read before.

Rules are asked in order and the first that fits speaks. They read nothing themselves: a list gathers the facts of all
its rows in a few questions (`facts.py`), and then every row has its sentence.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

import msgspec

from holdfast.clock import Instant, to_datetime
from holdfast.contract.heads import RunHead
from holdfast.contract.rows import RunPlace, Status
from holdfast.contract.waits import WaitNote, error_head, meant_error, notes_of
from holdfast.looking.facts import Act, Facts
from holdfast.looking.times import Times, span
from holdfast.looking.views import Help, Why

LONGEST = 160
DEPTH = 10
"""How many runs a chain may have."""
_MINUTE = 60_000_000


class _Say(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule says."""

    code: str
    text: str
    since: Instant | None = None
    until: Instant | None = None
    subject: dict[str, str] = {}
    follows: str | None = None
    """The run that it waits for."""
    help: tuple[Help, ...] = ()


def explain(head: RunHead, facts: Facts, times: Times, depth: int = 1) -> Why:
    """Return why a run is where it is, with the chain of runs it waits for as deep as facts go."""
    return _explained(head, facts, times, depth, (head.id,))


def _explained(head: RunHead, facts: Facts, times: Times, depth: int, above: tuple[str, ...]) -> Why:
    said = next(said for rule in _RULES if (said := rule(head, facts, times)) is not None)
    chain: list[Why] = []
    text = said.text
    if said.follows is not None and depth > 0 and said.follows not in above:
        followed = facts.heads.get(said.follows)
        if followed is not None:
            below = _explained(followed, facts, times, depth - 1, (*above, followed.id))
            chain = [msgspec.structs.replace(below, chain=[]), *below.chain]
            text = f"{text}, {_continued(below.sentence)}"
    return Why(
        run=head.id,
        code=said.code,
        sentence=_cut(text),
        since=to_datetime(said.since) if said.since is not None else None,
        until=to_datetime(said.until) if said.until is not None else None,
        subject=said.subject,
        chain=chain[:DEPTH],
        help=list(said.help),
    )


def _cut(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= LONGEST else f"{one_line[: LONGEST - 3]}..."


def _continued(sentence: str) -> str:
    """Return a sentence as it goes on after the run that it is about."""
    lower = sentence[:1].lower() + sentence[1:]
    if sentence.startswith("Step "):
        return f"whose {lower}"
    if sentence.startswith(("Cancelled", "Paused", "Blocked", "Terminated", "Being", "Undoing")):
        return f"which is {lower}"
    if sentence.startswith(("Its ", "It ", "No ", "A ")):
        return f"of which: {lower}"
    return f"which {lower}"


def _help(say: str, *words: str) -> Help:
    return Help(say=say, command=" ".join(["holdfast", *map(shlex.quote, words)]))


def _error(head: RunHead) -> str:
    return error_head(*meant_error(head.error_type or "an error", head.error_message or ""))


# Runs that have ended.


def _ended(head: RunHead, facts: Facts, times: Times) -> _Say | None:
    if head.ended is None:
        return None
    if head.status is Status.COMPLETED:
        text = f"Completed {times.back(head.ended)}, {span(head.ended - head.created)} after it was started"
        return _Say(code="completed", text=text, since=head.ended)
    if head.status is Status.CANCELLED:
        return _cancelled(head, facts, head.ended)
    return _failed(head, facts, head.ended)


def _cancelled(head: RunHead, facts: Facts, ended: Instant) -> _Say:
    act = facts.acts.get(head.id)
    undone = "; what it had done was undone" if head.compensated else "; nothing was undone"
    if head.error_type == "Terminated":
        return _Say(code="terminated", text=f"Terminated{_by(act, 'terminate')}", since=ended)
    whom = _by(act, "cancel")
    if not whom and head.parent is not None:
        whom = f" with its parent `{head.parent}`"
    help = (_help("let it go on from where it was", "resume", head.id),)
    return _Say(code="cancelled", text=f"Cancelled{whom}{undone}", since=ended, help=help)


def _by(act: Act | None, *actions: str) -> str:
    """Return who did it and why, if that is on record and was the last thing done to the run."""
    if act is None or act.action not in actions:
        return ""
    return f" by {act.actor}{f': {act.reason}' if act.reason else ''}"


def _failed(head: RunHead, facts: Facts, ended: Instant) -> _Say:
    retry = _help("try again from the step that failed", "retry", head.id)
    kind = (head.error_type or "").rpartition(".")[2]
    step = head.failed_step or ""
    if kind == "RunTimeout":
        return _Say(
            code="failed.timeout", text=f"Took longer than it was given: {_error(head)}", since=ended, help=(retry,)
        )
    if kind == "ChildFailed":
        text = f"Its child failed: {head.error_message or ''}"
        return _Say(code="failed.child", text=text, since=ended, subject={"child": step}, help=(retry,))
    if step:
        attempts = facts.attempts.get(head.id)
        after = f" after {attempts} attempt{'s' if attempts != 1 else ''}" if attempts else ""
        text = f"Step `{step}` gave up{after}: {_error(head)}"
        return _Say(code="failed.step", text=text, since=ended, subject={"step": step}, help=(retry,))
    return _Say(code="failed.code", text=f"Its code raised {_error(head)}", since=ended, help=(retry,))


# Runs that a person must look at, or has stopped.


def _blocked(head: RunHead, facts: Facts, times: Times) -> _Say | None:
    if head.status is not Status.BLOCKED:
        return None
    kind = (head.error_type or "").rpartition(".")[2]
    codes = {"HistoryMismatch": "mismatch", "BusyLoop": "busy_loop", "StuckRun": "stuck"}
    poison = kind not in codes and head.fingerprint is None
    code = codes.get(kind, "poison" if poison else "code")
    message = " ".join((head.error_message or "its code cannot continue its history").split())
    if poison:
        message = "three workers in a row drove it alone and none got a commit out of it: its code kills or hangs them"
    help = [_help("see the recorded calls beside the code", "show", head.id)]
    help.append(_help("try again once the code is put right", "recover", head.id))
    return _Say(code=f"blocked.{code}", text=f"Blocked: {message}", since=head.updated, help=tuple(help))


def _paused(head: RunHead, facts: Facts, times: Times) -> _Say | None:
    if head.status is not Status.PAUSED:
        return None
    act = facts.acts.get(head.id)
    whom = f" by {act.actor} {times.back(act.at)}" if act is not None and act.action == "pause" else ""
    reason = f": {act.reason}" if act is not None and act.action == "pause" and act.reason else ""
    then = f"; goes on by itself {times.ahead(head.due)}" if head.due is not None else ""
    help = (_help("let it go on", "resume", head.id),)
    return _Say(code="paused", text=f"Paused{whom}{reason}{then}", since=head.updated, until=head.due, help=help)


def _ending(head: RunHead, facts: Facts, times: Times) -> _Say | None:
    if head.conclusion in (Status.COMPLETED, Status.FAILED, Status.CANCELLED):
        text = f"Ends {head.conclusion}: its hook for that is being called"
        return _Say(code="ending.hook", text=text, since=head.updated)
    if head.status is Status.CANCELLING:
        whom = _by(facts.acts.get(head.id), "cancel")
        then = f"; it is ended {times.ahead(head.due)} whatever it does" if head.due is not None else ""
        help = (_help("end it here and now, undoing nothing", "terminate", head.id, "--reason", "..."),)
        text = f"Being cancelled{whom}: its code has not come to its end yet{then}"
        return _Say(code="cancelling", text=text, since=head.updated, until=head.due, help=help)
    if head.status is Status.COMPENSATING:
        waits = notes_of(head.wait)
        now = f"; {_lower(_note(waits[0], head, facts, times).text)}" if waits else ""
        return _Say(code="compensating", text=f"Undoing what it has done{now}", since=head.updated, until=head.due)
    return None


# Runs that want a worker.


def _pending(head: RunHead, facts: Facts, times: Times) -> _Say | None:
    if head.status is not Status.PENDING:
        return None
    if head.begins is not None and head.begins > times.now and not head.epoch:
        return _Say(code="pending.later", text=f"Begins {times.until(head.begins)}", until=head.begins)
    if paused := _held_back(head, facts, times):
        return paused
    if head.place == RunPlace.WAITS:
        text = f"Waits for its turn: the runs of workflow `{head.workflow}` take turns, or have no free place"
        return _Say(code="pending.admission", text=text, since=head.created, subject={"workflow": head.workflow})
    return _unclaimed(head, facts, times)


def _held_back(head: RunHead, facts: Facts, times: Times) -> _Say | None:
    since = facts.paused.get(("workflow", head.workflow))
    if since is None:
        return None
    help = (_help("let its runs go on", "resume", "--workflow", head.workflow),)
    text = f"Waits: workflow `{head.workflow}` was paused {times.back(since)}"
    return _Say(code="waiting.paused", text=text, since=since, subject={"workflow": head.workflow}, help=help)


def _unclaimed(head: RunHead, facts: Facts, times: Times) -> _Say:
    due = head.due if head.due is not None else head.updated
    late = f"was due {times.back(due)}" if due <= times.now else f"is due {times.ahead(due)}"
    if not facts.alive:
        dead = max(facts.workers.values(), key=lambda worker: worker.heard, default=None)
        last = f"; `{dead.id}` was last heard of {times.back(dead.heard)}" if dead is not None else ""
        help = (Help(say="start a worker: a process with Engine(..., workflows=[...])"),)
        if times.now - due > _MINUTE:
            text = f"It {late} and no worker took it: none is alive{last}"
            return _Say(code="overdue", text=text, since=due, help=help)
        return _Say(code="pending.nobody", text=f"No worker can take it: none is alive{last}", since=due, help=help)
    workers = f"{len(facts.alive)} worker{'s are' if len(facts.alive) != 1 else ' is'} alive"
    if times.now - due > _MINUTE:
        help = (Help(say=f"see whether a worker knows workflow `{head.workflow}`", command="holdfast workers"),)
        text = f"It {late} and no worker took it; {workers}: does one know workflow `{head.workflow}`?"
        return _Say(code="overdue", text=text, since=due, subject={"workflow": head.workflow}, help=help)
    return _Say(code="pending.busy", text=f"Waits for a worker: it {late}, and {workers}", since=due)


def _running(head: RunHead, facts: Facts, times: Times) -> _Say | None:
    if head.status is not Status.RUNNING and not (head.status in _OWNED and not head.wait):
        return None
    if head.owner is None:
        return _unclaimed(head, facts, times)
    worker = facts.workers.get(head.owner)
    if worker is None or worker.state == "dead":
        heard = f" was last heard of {times.back(worker.heard)} and" if worker is not None else ""
        text = f"Its worker `{head.owner}`{heard} is dead; another takes over as soon as one looks"
        return _Say(code="running.dead", text=text, since=head.updated, subject={"worker": head.owner})
    if worker.state == "silent":
        text = f"Its worker `{head.owner}` was last heard of {times.back(worker.heard)}, longer than its lease"
        return _Say(code="running.silent", text=text, since=worker.heard, subject={"worker": head.owner})
    step = facts.steps.get(head.id)
    if step is not None:
        beat = (
            f"; heartbeat {times.back(step.beat)}{f': {step.progress}' if step.progress else ''}" if step.beat else ""
        )
        text = f"Step `{step.path}`, attempt {step.attempt}, {times.ago(step.began)} on `{head.owner}`{beat}"
        return _Say(code="running.step", text=text, since=step.began, subject={"step": step.path, "worker": head.owner})
    text = f"Runs on worker `{head.owner}` {times.ago(head.updated)}"
    return _Say(code="running.step", text=text, since=head.updated, subject={"worker": head.owner})


_OWNED = (Status.CANCELLING, Status.COMPENSATING)


# Runs that wait.


def _waiting(head: RunHead, facts: Facts, times: Times) -> _Say | None:
    if head.due is not None and times.now - head.due > _MINUTE and not _owner_alive(head, facts):
        return _unclaimed(head, facts, times)
    waits = notes_of(head.wait)
    real = [wait for wait in waits if wait.kind != "timer"]
    if not waits:
        return _Say(code="waiting.unknown", text="Waits; what for is not on record", since=head.updated)
    if len(real) > 1:
        return _several(real, head, facts, times)
    if len(real) == 1 and len(waits) == 2 and real[0].kind != "message":
        first = _note(real[0], head, facts, times)
        return msgspec.structs.replace(first, until=first.until or head.due)
    return _note(real[0] if real else waits[0], head, facts, times)


def _owner_alive(head: RunHead, facts: Facts) -> bool:
    return head.owner in facts.alive


def _several(waits: list[WaitNote], head: RunHead, facts: Facts, times: Times) -> _Say:
    kinds = {wait.kind for wait in waits}
    said = [_note(wait, head, facts, times) for wait in waits]
    if len(kinds) == 1:
        rest = f" (and {len(waits) - 1} more of the kind)"
        return msgspec.structs.replace(said[0], text=f"{said[0].text}{rest}")
    timer = [f"a timer ({times.ahead(head.due)})"] if head.due is not None else []
    text = f"Waits for {' or '.join([*map(_named, waits[:3]), *timer])}; whichever comes first moves it"
    help = tuple(each for one in said for each in one.help)[:3]
    return _Say(code="waiting.several", text=text, since=head.updated, until=head.due, help=help)


def _named(wait: WaitNote) -> str:
    words = {
        "message": f"message `{' or '.join(wait.names)}`",
        "child": f"child `{''.join(wait.names)}`",
        "retry": f"the next attempt of step `{wait.step}`",
        "queue": f"step `{wait.step}` in queue `{wait.queue}`",
        "key": f"the key of step `{wait.step}`",
        "limit": f"limit `{wait.limit}`",
    }
    return words.get(wait.kind, wait.kind)


def _note(wait: WaitNote, head: RunHead, facts: Facts, times: Times) -> _Say:
    """Return what is to be said of one thing that a run waits for."""
    rules = {
        "message": _message, "child": _child, "retry": _retry, "queue": _queue, "key": _key, "limit": _limit,
    }  # fmt: skip
    rule = rules.get(wait.kind)
    if rule is not None:
        return rule(wait, head, facts, times)
    if wait.kind == "timer" and head.due is not None:
        text = f"Sleeps until {times.until(head.due)}"
        text += f", for {span(head.due - times.now)} more" if times.relative and head.due > times.now else ""
        return _Say(code="waiting.sleep", text=text, since=head.updated, until=head.due)
    if wait.kind == "callback":
        return _Say(code="ending.hook", text="Its hook is being called", since=head.updated)
    return _Say(code="waiting.unknown", text=f"Waits for {wait.kind}", since=head.updated, until=head.due)


def _message(wait: WaitNote, head: RunHead, facts: Facts, times: Times) -> _Say:
    names, since = " or ".join(f"`{name}`" for name in wait.names), facts.since.get(head.key, head.updated)
    then = f"; gives up {times.ahead(wait.until)}" if wait.until is not None else ""
    similar = next(_similar(wait.names, facts.unread.get(head.id, ())), None)
    subject = {"message": ",".join(wait.names)}
    help = [_help("send it", "send", head.id, wait.names[0], "{}")]
    code = "waiting.message"
    if similar is not None:
        code, then = "waiting.message.similar", f"; a message `{similar}` is in its inbox unread: is that the one?"
        subject["similar"] = similar
    text = f"Waits for message {names} {times.ago(since)}{then}"
    return _Say(code=code, text=text, since=since, until=wait.until, subject=subject, help=tuple(help))


def _similar(wanted: tuple[str, ...], unread: tuple[str, ...]) -> Iterator[str]:
    """Yield names of unread messages that are nearly one that is waited for."""
    for name in unread:
        if name not in wanted and any(_distance(name, other) <= 2 for other in wanted):
            yield name


def _distance(one: str, other: str) -> int:
    """Return how many letters must be changed, added or left out to make one word of another; 3 stands for more."""
    if abs(len(one) - len(other)) > 2:
        return 3
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, wanted in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != wanted))
    return row[-1]


def _child(wait: WaitNote, head: RunHead, facts: Facts, times: Times) -> _Say:
    child = wait.names[0]
    help = (_help("see why the child waits", "why", child),)
    return _Say(
        code="waiting.child", text=f"Waits for child `{child}`", since=head.updated, subject={"child": child},
        follows=child, help=help,
    )  # fmt: skip


def _retry(wait: WaitNote, head: RunHead, facts: Facts, times: Times) -> _Say:
    again = times.ahead(wait.until) if wait.until is not None else "soon"
    subject = {"step": wait.step} if wait.step else {}
    help = [_help("see the whole error", "show", head.id)] if wait.step and not wait.skipped else []
    if wait.skipped:
        reason = f', "{wait.error}",' if wait.error else ""
        text = f"Step `{wait.step}` is put off{reason} and asked again {again}"
        return _Say(
            code="waiting.condition", text=text, since=head.updated, until=wait.until, subject=subject, help=tuple(help)
        )
    if not wait.step:
        text = f"A step failed and is tried again {times.ahead(head.due)}" if head.due else "A step is tried again"
        return _Say(code="waiting.retry", text=text, since=head.updated, until=head.due)
    number = f"{wait.attempt} time{'s' if wait.attempt != 1 else ''}"
    of = f" of {wait.of}" if wait.of is not None else ""
    text = f"Step `{wait.step}` failed {number}{of}, next attempt {again}: {wait.error}"
    return _Say(
        code="waiting.retry", text=text, since=head.updated, until=wait.until, subject=subject, help=tuple(help)
    )


def _queue(wait: WaitNote, head: RunHead, facts: Facts, times: Times) -> _Say:
    subject = {"step": wait.step, "queue": wait.queue}
    paused = facts.paused.get(("queue", wait.queue))
    if paused is not None:
        help = (_help("let the queue go on", "resume", "--queue", wait.queue),)
        text = f"Step `{wait.step}` waits in queue `{wait.queue}`, which was paused {times.back(paused)}"
        return _Say(code="waiting.paused", text=text, since=paused, subject=subject, help=help)
    if not facts.alive:
        text = f"Step `{wait.step}` waits in queue `{wait.queue}`, and no worker is alive"
        return _Say(code="waiting.queue.nobody", text=text, since=head.updated, subject=subject)
    text = f"Step `{wait.step}` waits in queue `{wait.queue}`, or runs on the worker that took it"
    return _Say(code="waiting.queue", text=text, since=head.updated, subject=subject)


def _key(wait: WaitNote, head: RunHead, facts: Facts, times: Times) -> _Say:
    if not wait.step:
        return _Say(
            code="waiting.key", text="A step waits for an idempotency key that another holds", since=head.updated
        )
    holder = facts.holders.get((wait.activity, wait.key))
    held = f", held by `{holder}`" if holder is not None else ", which was just given up"
    subject = {"step": wait.step, "key": wait.key}
    text = f"Step `{wait.step}` waits for idempotency key `{wait.key}`{held}"
    return _Say(code="waiting.key", text=text, since=head.updated, subject=subject, follows=holder)


def _limit(wait: WaitNote, head: RunHead, facts: Facts, times: Times) -> _Say:
    subject = {"limit": wait.limit} | ({"step": wait.step} if wait.step else {})
    step = f"Step `{wait.step}`" if wait.step else "A step"
    limit = facts.limits.get(wait.limit)
    if limit is not None and limit.paused:
        help = (_help("let the limit go on", "resume", "--limit", wait.limit),)
        text = f"{step} waits: limit `{wait.limit}` is paused"
        return _Say(code="waiting.paused", text=text, since=head.updated, subject=subject, help=help)
    if limit is not None and limit.open_until is not None:
        then = times.until(limit.open_until)
        text = f"{step} waits: the circuit of limit `{wait.limit}` is open after failures, until {then}"
        return _Say(code="waiting.circuit", text=text, since=head.updated, until=limit.open_until, subject=subject)
    behind = f"; {limit.waiting} wait, {limit.used} run" if limit is not None else ""
    text = f"{step} waits for its turn: limit `{wait.limit}` is used up{behind}"
    return _Say(code="waiting.limit", text=text, since=head.updated, until=head.due, subject=subject)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


_RULES: tuple[Callable[[RunHead, Facts, Times], _Say | None], ...] = (
    _ended, _blocked, _paused, _ending, _pending, _running, _waiting,
)  # fmt: skip
