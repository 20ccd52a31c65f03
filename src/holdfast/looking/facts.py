"""The facts by which a desk says why runs wait: a few queries of the store for a whole page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.clock import Instant, from_datetime
from holdfast.contract.figures import CLAIMED, MINUTE, FigureFilter
from holdfast.contract.heads import Counted, HeadFilter, RunHead, WorkerRow
from holdfast.contract.house import EventQueueRow, KeyHolder
from holdfast.contract.limits import Admission, LimitSpec
from holdfast.contract.rows import AuditRow, RunPlace, Status
from holdfast.contract.store import Store
from holdfast.contract.waits import WaitNote, notes_of
from holdfast.errors import BadInput
from holdfast.looking.times import span
from holdfast.payloads import codec

if TYPE_CHECKING:
    from holdfast.engine.views.steps import Step

_DEEPEST = 10
_STOPPING = ("pause", "resume", "cancel", "terminate", "retry", "rerun")
"""Acts that stop a run, or let it go on; others say nothing of why it stands."""
_OF_LATE = 5
"""How many minutes the rate is of at which workers take runs."""
_KEYS = 20
_OTHERS = 4_000
"""How many rows are looked at to count the runs that wait for the same."""
_LAST_FACTS = 2_000
"""How much of a history is read for the step that a run is at, at most."""
_AT_FIRST = 100
"""How much of it is read at first: most often the step under way began there."""
_MANY_FACTS = 300
"""Of more than so many facts steps are made in a thread."""
_DRIVEN = (Status.RUNNING, Status.COMPENSATING)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Act:
    """The last thing that was done to a run, and by whom."""

    actor: str
    action: str
    at: Instant
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RunningStep:
    """The step that a run is at."""

    path: str
    attempt: int
    began: Instant
    beat: Instant | None = None
    progress: str = ""


@dataclass(frozen=True, slots=True)
class Undone:
    """How many compensations a run has called that were asked for, and how many there are."""

    done: int
    of: int
    after: str = ""
    """The path of the step that failed last before that."""
    error: str = ""
    """The class of its error."""


@dataclass(frozen=True, slots=True)
class LimitFact:
    """A limit that a step waits for; `open_until` is when its circuit lets the next attempt through."""

    paused: bool
    used: int
    waiting: int
    open_until: Instant | None = None
    numbers: str = ""
    """What it allows, in words."""
    next: Instant | None = None
    """When it lets the next begin, if that is later than now."""


@dataclass(slots=True)
class Facts:
    """What is known about the runs of a page."""

    workers: dict[str, WorkerRow] = field(default_factory=dict)
    heads: dict[str, RunHead] = field(default_factory=dict)
    """The runs of the page, and those that they wait for."""
    acts: dict[str, Act] = field(default_factory=dict)
    paused: dict[tuple[str, str], Instant] = field(default_factory=dict)
    """Workflows and queues of which nothing begins, and since when."""
    since: dict[int, Instant] = field(default_factory=dict)
    """Since when receives wait, by the key of their run."""
    holders: dict[tuple[str, str], KeyHolder] = field(default_factory=dict)
    """Which runs hold idempotency keys, by activity and key."""
    limits: dict[str, LimitFact] = field(default_factory=dict)
    admissions: dict[int, Admission] = field(default_factory=dict)
    """How runs wait to be begun, by their keys."""
    published: dict[str, EventQueueRow] = field(default_factory=dict)
    """Names under which events were published."""
    unread: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Names of messages that runs, by their keys, have not received."""
    attempts: dict[tuple[str, str], int] = field(default_factory=dict)
    """How often the step was tried whose failure ended a run, by run and path."""
    queued: dict[str, int] = field(default_factory=dict)
    """How many attempts wait in queues."""
    takers: dict[tuple[int, str], str] = field(default_factory=dict)
    """The workers that took attempts of runs from queues."""
    steps: dict[str, RunningStep] = field(default_factory=dict)
    """The steps that runs are at: as their workers told last, and of one run by itself as its history says."""
    # What only the question about one run asks for:
    undone: dict[str, Undone] = field(default_factory=dict)
    """How far runs have come that undo what they have done."""
    last_steps: dict[str, str] = field(default_factory=dict)
    """The steps that blocked runs called last."""
    others: dict[str, Counted] = field(default_factory=dict)
    """How many runs wait to try a step again that a run waits to try again, this one among them."""
    taken: float | None = None
    """How many runs workers took a second of late."""
    ahead: dict[str, str] = field(default_factory=dict)
    """How many runs that no worker has taken were due before a run, in words."""

    @property
    def alive(self) -> list[str]:
        """Workers that may take runs."""
        return [worker.id for worker in self.workers.values() if worker.state == "alive"]

    def worker(self, worker_id: str) -> str:
        """Return where a worker is: its host and process, which a person finds, or its id where that is not known."""
        worker = self.workers.get(worker_id)
        return f"{worker.host}:{worker.pid}" if worker is not None and worker.host else worker_id

    def serving(self, queue: str) -> int:
        """Return how many workers that are alive serve a queue, as far as they told."""
        return sum(queue in worker.about.queues for worker in self.workers.values() if worker.state == "alive")

    def none_has(self, workflow: str) -> bool:
        """Whether every worker that is alive has told what it serves, and none of them advances this workflow."""
        told = [worker.about for worker in self.workers.values() if worker.state == "alive"]
        return bool(told) and all(about.holdfast and not about.advances(workflow) for about in told)

    def unserved_queue(self, workflow: str) -> str | None:
        """Return the queue of a workflow that a worker which is alive knows and does not serve."""
        told = [worker.about for worker in self.workers.values() if worker.state == "alive"]
        return next((about.unserved[workflow] for about in told if workflow in about.unserved), None)

    def last_with(self, workflow: str) -> WorkerRow | None:
        """Return the worker that was heard of last of those that are gone and advanced a workflow."""
        gone = (each for each in self.workers.values() if each.state != "alive" and each.about.advances(workflow))
        return max(gone, key=lambda worker: worker.heard, default=None)

    def none_serves(self, queue: str) -> bool:
        """The same of a queue."""
        told = [worker.about for worker in self.workers.values() if worker.state == "alive"]
        return bool(told) and all(about.holdfast and queue not in about.queues for about in told)


async def gather(store: Store, heads: Sequence[RunHead], depth: int = 1) -> Facts:
    """Ask what the sentences of a page need, in a few questions whatever the number of runs."""
    facts = Facts(heads={head.id: head for head in heads})
    if any(head.ended is None for head in heads):
        facts.workers = {worker.id: worker for worker in await store.workers()}
        facts.paused = {(row.kind, row.name): row.since for row in await store.paused()}
        facts.steps = _carried(facts.workers.values())
    frontier = list(heads)
    for _ in range(min(depth, _DEEPEST)):
        await _about(store, frontier, facts)
        following = _followed(frontier, facts) - facts.heads.keys()
        if not following:
            break
        found = await store.heads_of(sorted(following))
        facts.heads |= found
        frontier = list(found.values())
    else:
        await _about(store, frontier, facts)
    return facts


async def gather_one(store: Store, head: RunHead, facts: Facts) -> None:
    """Ask what only the sentence of a single run is worth."""
    waits = notes_of(head.wait)
    if len(waits) == 1 and (path := _tried_again(waits[0])):
        which = HeadFilter(statuses=(head.status,), workflows=(head.workflow,), waiting=path, budget=_OTHERS)
        facts.others[head.id] = await store.count(which)
    poison = head.status is Status.BLOCKED and head.fingerprint is None
    if head.status in _DRIVEN or poison:
        await _steps(store, head, facts)
    if head.status is Status.PENDING and head.due is not None and head.place != RunPlace.WAITS:
        which = HeadFilter(statuses=(Status.PENDING,), due_until=head.due - 1)
        n, exact, _ = await store.count(which)
        facts.ahead[head.id] = f"{n:,}{'' if exact else '+'} run{' is' if n == 1 else 's are'}" if n else ""
        facts.taken = await _taken(store) if n else None


async def aside(size: int, work: Callable[[], T]) -> T:
    """Do work on so many facts, in a thread where they are many: the loop goes on meanwhile."""
    return await asyncio.to_thread(work) if size > _MANY_FACTS else work()


async def _taken(store: Store) -> float:
    """Return how many runs workers took a second in the last whole minutes."""
    now = store.clock.now() // MINUTE * MINUTE
    which = FigureFilter(since=now - _OF_LATE * MINUTE, until=now, by="workflow", span=MINUTE, slot=MINUTE)
    rows = (await store.figures(which)).rows
    return sum(row.n for row in rows if row.outcome == CLAIMED) / (_OF_LATE * 60)


def _tried_again(wait: WaitNote) -> str:
    """Return how runs are found whose step waits to be tried again, too."""
    return f"step {wait.step}" if wait.kind == "retry" and wait.step and not wait.skipped and not wait.limit else ""


def _carried(workers: Iterable[WorkerRow]) -> dict[str, RunningStep]:
    """Return the steps that runs are at as their workers told last, of each run the one that began last."""
    bodies = [body for worker in workers if worker.state == "alive" for body in worker.load.bodies]
    bodies.sort(key=lambda body: body.since)
    return {body.run: RunningStep(body.step, body.attempt, body.since) for body in bodies}


async def _steps(store: Store, head: RunHead, facts: Facts) -> None:
    """Find the step that a run is at, and how many were undone, in what its history has last."""
    from holdfast.engine.views.steps import steps_of
    from holdfast.replay.entry import CompensationAdded, Name

    beats = await store.beats(head.key)
    for limit in (_AT_FIRST, _LAST_FACTS) if head.status is Status.RUNNING else (_LAST_FACTS,):
        rows = await store.history(head.key, newest=True, limit=limit)
        whole = len(rows) < limit
        if not whole:
            rows = [*await store.facts_of_kind(head.key, Name.kind, rows[0].seq), *rows]
        steps = await aside(len(rows), partial(steps_of, head.id, rows, beats, None, head.generation))
        now = [step for step in steps if step.status == "running" and step.started_at is not None]
        if now or whole:
            break
    if head.status is Status.BLOCKED:
        if steps:
            facts.last_steps[head.id] = steps[-1].path
        return
    if head.status is Status.COMPENSATING and rows:
        added = await store.facts_of_kind(head.key, CompensationAdded.kind, rows[-1].seq + 1)
        done = sum(step.compensation and step.status == "completed" for step in steps)
        failed = [
            step for step in steps if step.status == "failed" and not step.compensation and step.error is not None
        ]
        after, error = (failed[-1].path, _error_class(failed[-1])) if failed else ("", "")
        facts.undone[head.id] = Undone(done, len({row.location for row in added}), after, error)
    if now:
        facts.steps[head.id] = _running(now[-1])


def _error_class(step: Step) -> str:
    """Return the class of the error of a step, without its module."""
    return step.error.type.rpartition(".")[2] if step.error is not None else ""


def _running(step: Step) -> RunningStep:
    beat = from_datetime(step.heartbeat_at) if step.heartbeat_at is not None else None
    said = "" if step.progress is None else codec.encode(step.progress).decode()[:60]
    assert step.started_at is not None
    return RunningStep(step.path, step.attempts, from_datetime(step.started_at), beat, said)


async def _about(store: Store, heads: Sequence[RunHead], facts: Facts) -> None:
    stopped = (Status.PAUSED, Status.CANCELLED, Status.CANCELLING, Status.COMPENSATING)
    acted = [head.id for head in heads if head.status in stopped]
    if acted:
        facts.acts |= {target: _act(row) for target, row in (await store.last_acts(acted, _STOPPING)).items()}
    waits = {head.key: notes_of(head.wait) for head in heads if head.wait}
    receiving = [key for key, notes in waits.items() if any(note.kind == "message" for note in notes)]
    if receiving:
        facts.since |= await store.waiting_since(receiving)
        facts.unread |= await store.unread_names(receiving)
    failed = [(head.id, head.failed_step) for head in heads if head.status is Status.FAILED and head.failed_step]
    if failed:
        facts.attempts |= await store.attempts_given_up(failed)
    await _about_queues(store, waits, facts)
    keys = {(note.activity, note.key) for note in _all(waits, "key") if note.key}
    if keys:
        facts.holders |= await store.key_holders(sorted(keys))
    limits = {note.limit for notes in waits.values() for note in notes if note.limit} - facts.limits.keys()
    if limits:
        facts.limits |= await _limits(store, limits)
    names = {name for note in _all(waits, "message") for name in note.names}
    if names:
        facts.published |= await store.event_queues(sorted(names))
    in_lanes = [head.key for head in heads if head.place == RunPlace.WAITS]
    if in_lanes:
        facts.admissions |= await store.admissions(in_lanes)


async def _about_queues(store: Store, waits: Mapping[int, list[WaitNote]], facts: Facts) -> None:
    """Ask which attempts were taken from queues, and how many wait there."""
    places = {(key, note.queue) for key, notes in waits.items() for note in notes if note.kind == "queue"}
    if not places:
        return
    facts.takers |= await store.takers(sorted(places))
    if not facts.queued:
        for row in await store.queues():
            facts.queued[row.queue] = facts.queued.get(row.queue, 0) + row.waiting


def _all(waits: Mapping[int, list[WaitNote]], kind: str) -> Iterable[WaitNote]:
    return (note for notes in waits.values() for note in notes if note.kind == kind)


def _followed(heads: Iterable[RunHead], facts: Facts) -> set[str]:
    """Return the runs that these wait for."""
    notes = [note for head in heads for note in notes_of(head.wait)]
    children = {note.names[0] for note in notes if note.kind == "child" and note.names}
    holders = {facts.holders.get((note.activity, note.key)) for note in notes if note.kind == "key"}
    return children | {holder.run for holder in holders if holder is not None}


async def _limits(store: Store, names: set[str]) -> dict[str, LimitFact]:
    found: dict[str, LimitFact] = {}
    moved = store.clock.now() - store.lease_clock.now()
    for row in await store.limits():
        if row.name in names:
            keys = await store.limit_keys(row.name, _KEYS)
            opened = max((key.open_until for key in keys if key.open_until is not None), default=None)
            still = opened + moved if opened is not None and opened > store.lease_clock.now() else None
            turns = [key.invited for key in keys if key.invited is not None and key.invited > store.lease_clock.now()]
            turn = min(turns) + moved if turns else None
            numbers = limit_words(row.override or row.spec)
            found[row.name] = LimitFact(row.paused, row.used, row.waiting, still, numbers, turn)
    return found


def limit_words(spec: str, *, trips: bool = False) -> str:
    """Return what a limit allows, in words: `4 at once, 100 in 1 min`; with `trips` after how many failures nothing."""
    allowed = msgspec.json.decode(spec, type=LimitSpec)
    at_once = [f"{allowed.at_once:,} at once"] if allowed.at_once is not None else []
    rate = [f"{allowed.rate:,} in {span(allowed.per)}"] if allowed.rate is not None else []
    after = allowed.trip_after if trips else None
    fail = f"failure{'s in a row' if after != 1 else ''}"
    nothing = [f"nothing for {span(allowed.cool_down)} after {after:,} {fail}"] if after is not None else []
    return ", ".join([*at_once, *rate, *nothing])


def _act(row: AuditRow) -> Act:
    detail: Any = None
    try:
        detail = codec.decode(row.detail) if row.detail else None
    except BadInput:
        pass  # a text that is no JSON says nothing of a reason
    reason = detail.get("reason") if isinstance(detail, dict) else None
    return Act(row.actor, row.action, row.at, str(reason) if reason else "")
