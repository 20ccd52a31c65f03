"""What is wrong with a database and its workers: findings with their remedies. Only looks, within bounds."""

from __future__ import annotations

import os
import shlex
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Literal

from holdfast.clock import Instant
from holdfast.contract.heads import HeadFilter, WorkerRow
from holdfast.contract.rows import TERMINAL, LetterFilter, Status
from holdfast.contract.store import Store
from holdfast.contract.waits import notes_of
from holdfast.looking.database import bytes_said, size_of
from holdfast.looking.query import OVERDUE
from holdfast.looking.times import span
from holdfast.looking.views import HouseFinding
from holdfast.stores import newest_schema

Level = Literal["ok", "warn", "fail"]

_LARGE_WAL = 256 << 20
_LITTLE_SPACE, _NO_SPACE = 2 << 30, 256 << 20
_MOST_LETTERS = 1_000
_MOST_OVERDUE = 200
_MOST_UNKNOWN = 50
_MOST_KEYS = 20
_CLOCKS_APART = 10_000_000
_SHORT_LEASE = 5_000_000
_MOVES_TAKE = timedelta(minutes=5)
_KEPT = timedelta(days=31)
"""A day longer than Retention keeps completed runs unless it is told."""
_MANY_OLD = 1_000
_MANY_RETRIES = 20
"""How many runs may wait to try the same step again before it is told."""
_OPEN = tuple(status for status in Status if status not in TERMINAL)


async def examine(store: Store) -> list[HouseFinding]:
    """Look at everything and return what was found, in the order in which a person would ask."""
    found: list[HouseFinding] = []
    for look in _LOOKS:
        found += [finding async for finding in look(store)]
    return found


async def _database(store: Store) -> AsyncIterator[HouseFinding]:
    path = getattr(store, "path", None)
    if path is None or not size_of(path):
        schema = newest_schema(str(getattr(store, "kind", "")))
        said = f"answers; schema {schema}, durability {store.durability}"
        yield HouseFinding(level="ok", subject="database", said=said)
        return
    size, wal = size_of(path) or 0, size_of(f"{path}-wal") or 0
    schema = newest_schema(str(getattr(store, "kind", "")))
    said = f"{path}, {bytes_said(size)}, schema {schema}, durability {store.durability}"
    yield HouseFinding(level="ok", subject="database", said=said)
    if wal > _LARGE_WAL:
        yield HouseFinding(
            level="warn",
            subject="wal",
            said=f"{bytes_said(wal)}: some process reads for a long time, and the log cannot start over",
            remedy="end that process, or look which has the file open: fuser",
        )
    free = shutil.disk_usage(os.path.dirname(path)).free
    if free < _LITTLE_SPACE:
        level: Level = "fail" if free < _NO_SPACE else "warn"
        yield HouseFinding(
            level=level,
            subject="disk",
            said=f"{bytes_said(free)} are free; workers stop acknowledging work when it is full",
            remedy="make room, or let old runs go: Engine(retention=Retention(...))",
        )


async def _workers(store: Store) -> AsyncIterator[HouseFinding]:
    workers = await store.workers()
    alive = [worker for worker in workers if worker.state == "alive"]
    if alive:
        yield HouseFinding(level="ok", subject="workers", said=f"{len(alive)} alive{_versions(alive)}")
    else:
        waiting = (await store.count(HeadFilter(statuses=_OPEN), 1)).n
        level: Level = "fail" if waiting else "ok"
        remedy = "start a process with Engine(..., workflows=[...])" if waiting else ""
        said = "none is alive, and runs wait for one" if waiting else "none is alive, and no run waits for one"
        yield HouseFinding(level=level, subject="workers", said=said, remedy=remedy)
    for state in ("silent", "dead"):
        lost = sorted((worker for worker in workers if worker.state == state), key=lambda worker: -worker.heard)
        if lost:
            yield _lost(lost, store.clock.now())


def _lost(workers: Sequence[WorkerRow], now: Instant) -> HouseFinding:
    """Return the finding about workers that are gone, the last of them first."""
    last, *others = workers
    name, ago = f"{last.host}:{last.pid}", f"{span(now - last.heard)} ago"
    if not others:
        said, remedy = f"{last.state}, last heard of {ago}", "look at its log; what it was running goes to another"
        return HouseFinding(level="warn", subject=f"worker {name}", said=said, remedy=remedy)
    return HouseFinding(
        level="warn",
        subject=f"{last.state} workers",
        said=f"{len(workers):,}, the last of them {name}, heard of {ago}",
        remedy="look at their logs, what they were running goes to others: holdfast workers",
    )


async def _clocks(store: Store) -> AsyncIterator[HouseFinding]:
    """Compare what was written last with the time it is now: nothing comes from the future."""
    now = store.clock.now()
    page = await store.heads(HeadFilter(limit=1))
    ahead = max((max(head.created, head.updated) - now for head in page.heads), default=0)
    if ahead > _CLOCKS_APART:
        yield HouseFinding(
            level="fail",
            subject="clock",
            said=f"run {page.heads[0].id} was written {span(ahead)} in the future: clocks are not the same",
            remedy="set the clocks of all machines by NTP; timers and leases go by them",
        )
    else:
        yield HouseFinding(level="ok", subject="clock", said="nothing was written in the future")


def _versions(workers: Sequence[WorkerRow]) -> str:
    """Return with which holdfast workers run, if they told."""
    found = sorted({worker.about.holdfast for worker in workers if worker.about.holdfast})
    return f", holdfast {' and '.join(found)}" if found else ""


async def _code(store: Store) -> AsyncIterator[HouseFinding]:
    """Compare the code of the workers that are alive, and what they know with what is open."""
    alive = [worker for worker in await store.workers() if worker.state == "alive" and worker.about.holdfast]
    if len({worker.about.holdfast for worker in alive}) > 1:
        yield HouseFinding(
            level="warn",
            subject="versions",
            said=f"workers have more than one{_versions(alive)}",
            remedy="finish the rollout; workers of one minor series may share a database meanwhile",
        )
    codes: dict[tuple[str, str], set[str]] = {}
    for worker in alive:
        for name, version in worker.about.workflows.items():
            codes.setdefault((name, version), set()).add(worker.about.fingerprints.get(name, ""))
    for (name, version), found in sorted(codes.items()):
        if len(found) > 1:
            yield HouseFinding(
                level="warn",
                subject=f"workflow {name}",
                said=f"workers have {len(found)} different codes of version {version}: a run may meet either",
                remedy="finish the rollout, or give the new code a version of its own",
            )
    if alive:
        async for finding in _unknown(store, alive):
            yield finding


async def _unknown(store: Store, alive: Sequence[WorkerRow]) -> AsyncIterator[HouseFinding]:
    """Find workflows with open runs that no worker knows, or whose queue none serves."""
    known = _advanced(alive)
    queues = {name: queue for worker in alive for name, queue in worker.about.unserved.items()}
    for name in [name for name in await store.workflow_names() if name not in known][:_MOST_UNKNOWN]:
        counted = await store.count(HeadFilter(statuses=_OPEN, workflows=(name,)))
        if counted.n:
            runs = f"{counted.n:,}{'' if counted.exact else '+'} open run{'' if counted.n == 1 else 's'}"
            lacks, given = "knows it", f"workflows=[{name}]"
            if name in queues:
                lacks, given = f"serves its queue {queues[name]}", f"queues=[{queues[name]!r}, ...]"
            yield HouseFinding(
                level="fail",
                subject=f"workflow {name}",
                said=f"{runs}, and no worker that is alive {lacks}",
                remedy=f"start a worker with Engine(..., {given})",
            )


def _advanced(alive: Sequence[WorkerRow]) -> set[str]:
    """Return the workflows that workers advance."""
    return {name for worker in alive for name in worker.about.workflows if worker.about.advances(name)}


async def _leases(store: Store) -> AsyncIterator[HouseFinding]:
    """Compare the settings of workers that are alive."""
    leases = sorted({worker.lease for worker in await store.workers() if worker.state == "alive"})
    if len(leases) > 1:
        said = " and ".join(span(lease) for lease in leases)
        yield HouseFinding(
            level="warn",
            subject="settings",
            said=f"workers have leases of {said}: those with the longer ones are missed later when they hang",
            remedy="give all engines the same lease=",
        )
    for lease in leases[:1]:
        if lease < _SHORT_LEASE:
            yield HouseFinding(
                level="warn",
                subject="settings",
                said=f"a lease of {span(lease)} is lost by any pause of its process or the database",
                remedy="Engine(lease=...) of 10 s or more",
            )


async def _overdue(store: Store) -> AsyncIterator[HouseFinding]:
    now = store.clock.now()
    late = HeadFilter(due_until=now - int(OVERDUE / timedelta(microseconds=1)), limit=_MOST_OVERDUE, thorough=True)
    counted = await store.count(late)
    if not counted.n:
        yield HouseFinding(level="ok", subject="overdue", said="no run waits for a worker for more than a minute")
        return
    oldest = await store.next_due()
    since = f", the oldest for {span(now - oldest)}" if oldest is not None and oldest < now else ""
    runs = "1 run wants" if counted.n == 1 else f"{counted.n:,}{'' if counted.exact else '+'} runs want"
    yield HouseFinding(
        level="fail",
        subject="overdue",
        said=f"{runs} a worker for more than a minute{since}",
        remedy="holdfast list is:overdue",
    )
    alive = [worker for worker in await store.workers() if worker.state == "alive"]
    known = _advanced(alive)
    waiting: dict[str, list[int]] = {}
    for head in (await store.heads(late)).heads if alive else []:
        if head.workflow in known:
            waiting.setdefault(head.workflow, []).append(head.due if head.due is not None else head.updated)
    for workflow, dues in sorted(waiting.items()):
        yield HouseFinding(
            level="fail",
            subject=f"workflow {workflow}",
            said=f"{len(dues):,} runs wait since {span(now - min(dues))}, though a worker that is alive knows it",
            remedy="see whether workers are busy, or serve its queue: holdfast workers",
        )


async def _queues(store: Store) -> AsyncIterator[HouseFinding]:
    """Find queues in which steps wait that no worker serves, or takes."""
    now, paused = store.clock.now(), {row.name for row in await store.paused() if row.kind == "queue"}
    served = {name for each in await store.workers() if each.state == "alive" for name in each.about.queues}
    late = int(OVERDUE / timedelta(microseconds=1))
    waiting: dict[str, tuple[int, int]] = {}
    taken: set[str] = set()
    for row in await store.queues():
        if row.taken:
            taken.add(row.queue)
        if row.waiting and row.oldest is not None:
            count, oldest = waiting.get(row.queue, (0, row.oldest))
            waiting[row.queue] = (count + row.waiting, min(oldest, row.oldest))
    for queue, (count, oldest) in sorted(waiting.items()):
        if queue not in taken and queue not in paused and now - oldest > late:
            steps = f"{count:,} step{'s wait' if count != 1 else ' waits'}"
            does = "takes them" if queue in served else "serves it"
            yield HouseFinding(
                level="fail",
                subject=f"queue {queue}",
                said=f"{steps} since {span(now - oldest)}, and no worker {does}",
                remedy=f"start a worker with Engine(..., queues=[{queue!r}, ...])",
            )


async def _retries(store: Store) -> AsyncIterator[HouseFinding]:
    """Find the step that most of the newest runs wait to try again: what it calls may be down."""
    steps: Counter[tuple[str, str]] = Counter()
    errors: dict[tuple[str, str], str] = {}
    for head in (await store.heads(HeadFilter(waiting="retry", limit=_MANY_RETRIES))).heads:
        for note in notes_of(head.wait):
            if note.kind == "retry" and note.step and not note.limit and not note.skipped:
                steps[head.workflow, note.step] += 1
                errors.setdefault((head.workflow, note.step), note.error)
    for (workflow, step), _ in steps.most_common(1):
        counted = await store.count(HeadFilter(workflows=(workflow,), waiting=f"step {step}"))
        if counted.n >= _MANY_RETRIES:
            error = errors[workflow, step]
            which = f'workflow:{workflow} waiting:"step {step}"'
            yield HouseFinding(
                level="warn",
                subject=f"step {step}",
                said=f"{counted.n:,}{'' if counted.exact else '+'} runs of {workflow} wait to try it again"
                f"{f', last after {error}' if error else ''}",
                remedy=f"holdfast list {shlex.quote(which)}",
            )


async def _retention(store: Store) -> AsyncIterator[HouseFinding]:
    old = store.clock.now() - int(_KEPT / timedelta(microseconds=1))
    counted = await store.count(HeadFilter(statuses=(Status.COMPLETED,), ended_until=old))
    if counted.n >= _MANY_OLD:
        yield HouseFinding(
            level="warn",
            subject="retention",
            said=f"{counted.n:,}{'' if counted.exact else '+'} completed runs ended more than {_KEPT.days} days ago",
            remedy="let old runs go: Engine(retention=Retention(completed=...))",
        )
    else:
        yield HouseFinding(level="ok", subject="retention", said="old runs are swept, or there are not many")


async def _blocked(store: Store) -> AsyncIterator[HouseFinding]:
    counted = await store.count(HeadFilter(statuses=(Status.BLOCKED,)))
    if counted.n:
        runs = "1 run" if counted.n == 1 else f"{counted.n:,}{'' if counted.exact else '+'} runs"
        yield HouseFinding(
            level="fail",
            subject="blocked",
            said=f"{runs} cannot go on with the code that workers have",
            remedy="holdfast list status:blocked",
        )


async def _moving(store: Store) -> AsyncIterator[HouseFinding]:
    quiet = store.clock.now() - int(_MOVES_TAKE / timedelta(microseconds=1))
    counted = await store.count(HeadFilter(statuses=(Status.MOVING,), quiet_since=quiet))
    if counted.n:
        runs = "1 run is" if counted.n == 1 else f"{counted.n:,}{'' if counted.exact else '+'} runs are"
        yield HouseFinding(
            level="fail",
            subject="moving",
            said=f"{runs} on the way to or from another runtime, untouched for more than "
            f"{span(store.clock.now() - quiet)}",
            remedy="run the same `holdfast move` again; where to: holdfast list status:moving",
        )


async def _letters(store: Store) -> AsyncIterator[HouseFinding]:
    rows = await store.letters(LetterFilter(acknowledged=False, limit=_MOST_LETTERS))
    unseen = [row for row in rows if not row.outcome]
    if unseen:
        more = "+" if len(rows) == _MOST_LETTERS else ""
        yield HouseFinding(
            level="warn",
            subject="letters",
            said=f"{len(unseen):,}{more} that no person has seen: work or messages given up on",
            remedy="holdfast letters groups",
        )


async def _paused(store: Store) -> AsyncIterator[HouseFinding]:
    now = store.clock.now()
    for row in await store.paused():
        yield HouseFinding(
            level="warn",
            subject=f"{row.kind} {row.name}",
            said=f"paused since {span(now - row.since)}: nothing of it begins",
            remedy=f"holdfast resume --{row.kind} {shlex.quote(row.name)}",
        )


async def _limits(store: Store) -> AsyncIterator[HouseFinding]:
    """Find limits that are paused, and those of whose keys the circuit is open: what they guard fails."""
    now = store.lease_clock.now()
    for limit in await store.limits():
        wait = f"{limit.waiting:,} step{'s wait' if limit.waiting != 1 else ' waits'}"
        name = shlex.quote(limit.name)
        if limit.paused:
            said, remedy = f"paused: {wait}", f"holdfast resume --limit {name}"
        else:
            keys = await store.limit_keys(limit.name, _MOST_KEYS)
            opened = {key.key: key.open_until for key in keys if key.open_until is not None and key.open_until > now}
            if not opened:
                continue
            of = f" of {len(opened):,} keys" if len(keys) > 1 else ""
            lasts = span(max(opened.values()) - now)
            said = f"its circuit{of} is open after failures, for {lasts} more: {wait}"
            remedy = f"see whether what it guards is back: holdfast limits show {name}"
        yield HouseFinding(level="warn", subject=f"limit {limit.name}", said=said, remedy=remedy)


async def _schedules(store: Store) -> AsyncIterator[HouseFinding]:
    late = store.clock.now() - int(OVERDUE / timedelta(microseconds=1))
    for row in await store.schedules(late):
        yield HouseFinding(
            level="fail",
            subject=f"schedule {row.id}",
            said=f"its tick is late by {span(store.clock.now() - (row.next or late))}: no engine advances schedules",
            remedy="start a process with Engine(..., workflows=[...])",
        )


_LOOKS = (
    _database, _clocks, _workers, _code, _leases, _overdue, _queues, _retries, _blocked, _moving, _letters, _paused,
    _limits, _schedules, _retention,
)  # fmt: skip
