"""Why flow control holds back a run, or a step of it: as data, for tools that put it into words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import msgspec

from holdfast.clock import Instant, to_datetime
from holdfast.contract.limits import Admission, LimitSpec, LimitWait
from holdfast.contract.rows import EntryRow, RunRow
from holdfast.contract.store import Store
from holdfast.errors import NoSuchRun
from holdfast.replay import entry as entries
from holdfast.replay.location import Names


class HeldBack(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why a run, or a step of it, does not go on.

    `code` is one of
        waiting.limit      all places of a limit are taken, or others are before it in line
        waiting.rate       a limit lets it begin later: its rate is used up, or the service asked to come back
        waiting.circuit    too many failed in a row: nothing begins, or one attempt tries
        waiting.paused     an operator paused the limit, the workflow or the queue
        pending.admission  the run waits for its turn, its rate or a place
        debounced          the run waits for the end of its debounce window
    """

    code: str
    kind: str
    """What holds it back: limit, workflow or queue."""
    name: str
    key: str = ""
    step: str = ""
    """The path of the step; empty if it is the run."""
    since: datetime | None = None
    until: datetime | None = None
    """From when on it may go on, where that is known."""


async def reasons_of(
    store: Store, run_id: str, queue_of: Callable[[str], str | None], now: Instant, lease_now: Instant
) -> list[HeldBack]:
    """Return what holds back a run and its steps: pauses first, then its admission, then the limits of steps.

    Raises:
        NoSuchRun: there is no such run.
    """
    row = await store.get(run_id)
    if row is None:
        raise NoSuchRun(run_id)
    if row.status.is_terminal:
        return []
    pauses = [(each.kind, each.name, each.since) for each in await store.paused()]
    found = of_pauses(pauses, row.workflow, queue_of(row.workflow))
    found += of_run(row.workflow, await store.admission(row.key), now)
    waits = await store.limit_waits(row.key)
    return found + (of_steps(waits, await store.history(row.key), now, lease_now) if waits else [])


async def paused_by(store: Store, row: RunRow, waiting_for: str, queue: str | None) -> str:
    """Return what was paused that holds back a run, or a step of it: the workflow, queues, limits."""
    if row.status.is_terminal:
        return ""
    found = {
        f"{each.kind} {each.name}": None
        for each in await store.paused()
        if (each.kind, each.name) in {("workflow", row.workflow), ("queue", queue)}
        or (each.kind == "queue" and f"(queue {each.name})" in waiting_for)
    }
    waits = await store.limit_waits(row.key)
    return "; ".join([*found, *dict.fromkeys(f"limit {wait.limit}" for wait in waits if wait.paused)])


def of_steps(
    waits: Sequence[LimitWait], history: Sequence[EntryRow], now: Instant, lease_now: Instant
) -> list[HeldBack]:
    """Return why steps of a run wait for limits; `waits` are by the lease's clock."""
    names = Names()
    for row in history:
        if row.kind == entries.Name.kind:
            names.add(entries.decode_entry(row.kind, row.data).name)

    def at(instant: Instant | None) -> datetime | None:
        return to_datetime(now + instant - lease_now) if instant is not None and instant > 0 else None

    found: list[HeldBack] = []
    for wait in waits:
        code, until = _code(wait, lease_now)
        found.append(
            HeldBack(
                code=code,
                kind="limit",
                name=wait.limit,
                key=wait.key,
                step=names.path(wait.location),
                since=at(wait.since),
                until=at(until),
            )
        )
    return found


def _code(wait: LimitWait, now: Instant) -> tuple[str, Instant | None]:
    turn = wait.granted if wait.granted is not None else wait.invited
    later = turn if turn is not None and turn > now else None
    if wait.paused:
        return "waiting.paused", None
    if wait.open_until is not None:
        return "waiting.circuit", wait.open_until if wait.open_until > now else None
    if wait.held_until > now:
        return "waiting.rate", wait.held_until
    if later is not None or (turn is not None and _numbers(wait.spec).rate is not None):
        return "waiting.rate", later
    return "waiting.limit", None


def _numbers(text: str) -> LimitSpec:
    return msgspec.json.decode(text, type=LimitSpec)


def of_run(workflow: str, admission: Admission | None, now: Instant) -> list[HeldBack]:
    """Return why a run has not begun that waits in a lane."""
    if admission is None:
        return []
    later = to_datetime(admission.since) if admission.since > now else None
    debounced = admission.first is not None and later is not None
    code = "debounced" if debounced else "pending.admission"
    since = to_datetime(admission.first if admission.first is not None else admission.since)
    return [HeldBack(code=code, kind="workflow", name=workflow, key=admission.lane, since=since, until=later)]


def of_pauses(pauses: Iterable[tuple[str, str, Instant]], workflow: str, queue: str | None) -> list[HeldBack]:
    """Return which pauses hold back a run."""
    concerned = {("workflow", workflow), ("queue", queue)}
    return [
        HeldBack(code="waiting.paused", kind=kind, name=name, since=to_datetime(since))
        for kind, name, since in pauses
        if (kind, name) in concerned
    ]
