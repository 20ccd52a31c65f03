"""Why runs wait, as recorded by the commit that parked them: for messages, children, queues, keys, limits, timers."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.contract.heads import RunHead
from holdfast.contract.house import KeyHolder
from holdfast.contract.waits import WaitNote, notes_of
from holdfast.looking.facts import Facts
from holdfast.looking.times import Times, span
from holdfast.looking.views import Help
from holdfast.looking.why.saying import Code, Say, helping
from holdfast.looking.why.workers import MINUTE, WORKERS, unclaimed


def waiting(head: RunHead, facts: Facts, times: Times) -> Say:
    """Say what a run waits for."""
    if head.due is not None and times.now - head.due > MINUTE and not _owner_alive(head, facts):
        return unclaimed(head, facts, times)
    waits = notes_of(head.wait)
    real = [wait for wait in waits if wait.kind != "timer"]
    if not waits:
        return Say(code="waiting.unknown", text="Waits; what for is not on record", since=head.updated)
    if len(real) > 1:
        return _several(real, head, facts, times)
    if len(real) == 1 and len(waits) == 2 and real[0].kind != "message":
        first = noted(real[0], head, facts, times)
        return msgspec.structs.replace(first, until=first.until or head.due)
    return noted(real[0] if real else waits[0], head, facts, times)


def _owner_alive(head: RunHead, facts: Facts) -> bool:
    return head.owner in facts.alive


def _several(waits: list[WaitNote], head: RunHead, facts: Facts, times: Times) -> Say:
    kinds = {wait.kind for wait in waits}
    said = [noted(wait, head, facts, times) for wait in waits]
    if len(kinds) == 1:
        rest = f" (and {len(waits) - 1} more of the kind)"
        return msgspec.structs.replace(said[0], text=f"{said[0].text}{rest}")
    help = tuple(each for one in said for each in one.help)[:3]
    failed = next(
        (wait for wait in waits if wait.kind == "retry" and wait.step and wait.error and not _held(wait)), None
    )
    others = [_named(wait, times) for wait in waits if wait is not failed][:3]
    if head.due is not None and head.due not in {wait.until for wait in waits if wait.kind == "retry"}:
        others.append(f"a timer ({times.ahead(head.due)})")
    if failed is not None:  # what went wrong comes first: it is what people look for
        first = _retry(msgspec.structs.replace(failed, error=""), head, facts, times).text
        return Say(
            code="waiting.several", text=f"{first}; it waits for {' or '.join(others)}, too: {failed.error}",
            since=head.updated, until=failed.until or head.due, subject={"step": failed.step}, help=help,
        )  # fmt: skip
    text = f"Waits for {' or '.join(others)}; whichever comes first moves it"
    return Say(code="waiting.several", text=text, since=head.updated, until=head.due, help=help)


def _held(wait: WaitNote) -> bool:
    """Whether a step is put off, and has not failed."""
    return wait.skipped or bool(wait.limit)


def _named(wait: WaitNote, times: Times) -> str:
    again = f" ({times.ahead(wait.until)})" if wait.until is not None else ""
    words = {
        "message": f"message `{' or '.join(wait.names)}`",
        "child": f"child `{''.join(wait.names)}`",
        "retry": f"limit `{wait.limit}`" if wait.limit else f"the next attempt of step `{wait.step}`{again}",
        "queue": f"step `{wait.step}` in queue `{wait.queue}`",
        "key": f"the key of step `{wait.step}`",
        "limit": f"limit `{wait.limit}`",
    }
    return words.get(wait.kind, wait.kind)


def noted(wait: WaitNote, head: RunHead, facts: Facts, times: Times) -> Say:
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
        return Say(code="waiting.sleep", text=text, since=head.updated, until=head.due)
    if wait.kind == "callback":
        return Say(code="ending.hook", text="Its hook is being called", since=head.updated)
    return Say(code="waiting.unknown", text=f"Waits for {wait.kind}", since=head.updated, until=head.due)


def _message(wait: WaitNote, head: RunHead, facts: Facts, times: Times) -> Say:
    since, events = facts.since.get(head.key, head.updated), [name in facts.published for name in wait.names]
    kind = "event" if all(events) else "message or event" if any(events) else "message"
    names = " or ".join(f"`{name}`" for name in wait.names)
    then = f"; gives up {times.ahead(wait.until)}" if wait.until is not None else ""
    similar = next(_similar(wait.names, facts.unread.get(head.key, ())), None)
    subject = {"event" if kind == "event" else "message": ",".join(wait.names)}
    code: Code = "waiting.event" if kind == "event" else "waiting.message"
    help = [helping("send it", "send", head.id, wait.names[0], "{}")]
    if any(events):
        name = wait.names[events.index(True)]
        help.insert(0, helping("publish it to a run that waits", "publish", name, "{}"))
    if similar is not None:
        code, then = "waiting.message.similar", f"; a message `{similar}` is in its inbox unread: is that the one?"
        subject["similar"] = similar
    if code == "waiting.event":
        then += _last_taken(wait.names, head, facts, times)
    text = f"Waits for {kind} {names} {times.ago(since)}{then}"
    return Say(code=code, text=text, since=since, until=wait.until, subject=subject, help=tuple(help))


def _last_taken(names: tuple[str, ...], head: RunHead, facts: Facts, times: Times) -> str:
    """Say which run was given the last event of the names, where that is known."""
    rows = [(row.taken, name, row.taker) for name in names if (row := facts.published[name]).taken is not None]
    if not rows:
        return ""
    taken, name, taker = max(rows)
    assert taken is not None
    return f"; the last `{name}` went to {'it' if taker == head.id else f'`{taker}`'} {times.back(taken)}"


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


def _child(wait: WaitNote, head: RunHead, facts: Facts, times: Times) -> Say:
    child = wait.names[0]
    help = (helping("see why the child waits", "why", child),)
    return Say(
        code="waiting.child", text=f"Waits for child `{child}`", since=head.updated, subject={"child": child},
        follows=child, help=help,
    )  # fmt: skip


def _retry(wait: WaitNote, head: RunHead, facts: Facts, times: Times) -> Say:
    if wait.limit:
        return _limit(wait, head, facts, times)
    again = times.ahead(wait.until) if wait.until is not None else "soon"
    subject = {"step": wait.step} if wait.step else {}
    help = [helping("try it now", "nudge", head.id)] if wait.step else []
    if wait.step and not wait.skipped:
        help.append(helping("see the whole error", "show", head.id))
    many = facts.others.get(head.id)
    if many is not None and many.n > 1:
        which = f'workflow:{head.workflow} waiting:"step {wait.step}"'
        help.append(helping("let none try until they are resumed", "pause", "--where", which, "--reason", "..."))
    if wait.skipped:
        reason = f', "{wait.error}",' if wait.error else ""
        text = f"Step `{wait.step}` is put off{reason} and asked again {again}"
        return Say(
            code="waiting.condition", text=text, since=head.updated, until=wait.until, subject=subject, help=tuple(help)
        )
    if not wait.step:
        text = f"A step failed and is tried again {times.ahead(head.due)}" if head.due else "A step is tried again"
        return Say(code="waiting.retry", text=text, since=head.updated, until=head.due)
    number = f"{wait.attempt} time{'s' if wait.attempt != 1 else ''}"
    of = f" of {wait.of}" if wait.of is not None else ""
    text = f"Step `{wait.step}` failed {number}{of}, next attempt {again}{f': {wait.error}' if wait.error else ''}"
    return Say(code="waiting.retry", text=text, since=head.updated, until=wait.until, subject=subject, help=tuple(help))


def _queue(wait: WaitNote, head: RunHead, facts: Facts, times: Times) -> Say:
    subject = {"step": wait.step, "queue": wait.queue}
    paused = facts.paused.get(("queue", wait.queue))
    if paused is not None:
        help: tuple[Help, ...] = (helping("let the queue go on", "resume", "--queue", wait.queue),)
        text = f"Step `{wait.step}` waits in queue `{wait.queue}`, which was paused {times.back(paused)}"
        return Say(code="waiting.paused", text=text, since=paused, subject=subject, help=help)
    if not facts.alive or facts.none_serves(wait.queue):
        help = (Help(say=f"start a worker that serves it: Engine(queues=[{wait.queue!r}, ...])"), WORKERS)
        served = "no worker is alive" if not facts.alive else "no worker that is alive serves it"
        text = f"Step `{wait.step}` waits in queue `{wait.queue}`, and {served}"
        return Say(code="waiting.queue.nobody", text=text, since=head.updated, subject=subject, help=help)
    taker = facts.takers.get((head.key, wait.queue))
    if taker is not None:
        text = f"Step `{wait.step}` was taken from queue `{wait.queue}` by worker `{facts.worker(taker)}`"
        subject |= {"worker": taker}
        return Say(code="waiting.queue", text=text, since=head.updated, subject=subject, help=(WORKERS,))
    serving, others = facts.serving(wait.queue), facts.queued.get(wait.queue, 1) - 1
    behind = f", where {others:,} other{'s wait' if others != 1 else ' waits'}, too" if others > 0 else ""
    workers = f"; {serving} worker{'s serve' if serving != 1 else ' serves'} it" if serving else ""
    text = f"Step `{wait.step}` waits in queue `{wait.queue}`{behind}{workers}"
    help = (helping("see what waits in it", "queues"), WORKERS)
    return Say(code="waiting.queue", text=text, since=head.updated, subject=subject, help=help)


def _key(wait: WaitNote, head: RunHead, facts: Facts, times: Times) -> Say:
    if not wait.step:
        return Say(
            code="waiting.key", text="A step waits for an idempotency key that another holds", since=head.updated
        )
    holder = facts.holders.get((wait.activity, wait.key))
    held = f", held by `{holder.run}`{_held_for(holder, times)}" if holder is not None else ", which was just given up"
    subject = {"step": wait.step, "key": wait.key} | ({"holder": holder.run} if holder is not None else {})
    text = f"Step `{wait.step}` waits for idempotency key `{wait.key}`{held}"
    follows = holder.run if holder is not None else None
    help = (helping("see why the run that holds it keeps it", "why", holder.run),) if holder is not None else ()
    return Say(code="waiting.key", text=text, since=head.updated, subject=subject, follows=follows, help=help)


def _held_for(holder: KeyHolder, times: Times) -> str:
    if holder.since is None:
        return ""
    return f" for {span(times.now - holder.since)}" if times.relative else f" since {times.moment(holder.since)}"


def _limit(wait: WaitNote, head: RunHead, facts: Facts, times: Times) -> Say:
    subject = {"limit": wait.limit} | ({"step": wait.step} if wait.step else {})
    step = f"Step `{wait.step}`" if wait.step else "A step"
    limit = facts.limits.get(wait.limit)
    if limit is not None and limit.paused:
        help = (helping("let the limit go on", "resume", "--limit", wait.limit),)
        text = f"{step} waits: limit `{wait.limit}` is paused"
        return Say(code="waiting.paused", text=text, since=head.updated, subject=subject, help=help)
    if limit is not None and limit.open_until is not None:
        then = times.until(limit.open_until)
        text = f"{step} waits: the circuit of limit `{wait.limit}` is open after failures, until {then}"
        help = (helping("see what it allows, and who waits", "limits", "show", wait.limit),)
        return Say(
            code="waiting.circuit", text=text, since=head.updated, until=limit.open_until, subject=subject, help=help
        )
    numbers = f" ({limit.numbers})" if limit is not None and limit.numbers else ""
    behind = f"; {_so_many(limit.waiting, 'wait')}, {_so_many(limit.used, 'run')}" if limit is not None else ""
    turn = wait.until or (limit.next if limit is not None else None) or head.due
    then = f", next {times.ahead(turn)}" if turn is not None else ""
    text = f"{step} waits for its turn: limit `{wait.limit}`{numbers} is used up{then}{behind}"
    help = (helping("see who uses it", "limits", "show", wait.limit),)
    return Say(code="waiting.limit", text=text, since=head.updated, until=turn, subject=subject, help=help)


def _so_many(n: int, verb: str) -> str:
    return f"{n:,} {verb}{'s' if n == 1 else ''}"
