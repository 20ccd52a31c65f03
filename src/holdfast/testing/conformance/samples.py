"""Small runs, turns and messages to test a store with, and the calls every test makes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import count
from typing import TypeVar

from holdfast.clock import Instant
from holdfast.contract.operations import Committed, Operation, Outcome, Published, SendMessage, Started
from holdfast.contract.rows import Claim, EntryRow, Message, RunRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import (
    CommitTurn,
    EventRule,
    NewRun,
    PublishEvent,
    RunEnd,
    RunOptions,
    Send,
    StartRun,
    State,
    TurnEffects,
    Wait,
)

Another = Callable[[], Awaitable[Store]]
OutcomeT = TypeVar("OutcomeT", bound=Outcome)

NOW: Instant = 1_700_000_000_000_000
LEASE = timedelta(minutes=1)
SECOND = 1_000_000
TERMINAL = [Status.COMPLETED, Status.FAILED, Status.CANCELLED]
TO_ONE = EventRule()
TO_ALL = EventRule(single=False)

_numbers = count(1)


def new_run(id: str = "", *, at: Instant = NOW, **fields: object) -> NewRun:
    """Return a run to insert, with an id of its own unless one is given."""
    values: dict[str, object] = {"workflow": "order", "version": "1", "input": "{}", "digest": 7, "seed": 1, **fields}
    return NewRun(id=id or f"run-{next(_numbers)}", at=at, **values)  # type: ignore[arg-type]  # fields of NewRun


def entry(location: str, seq: int, data: str = "{}") -> EntryRow:
    """Return a fact."""
    return EntryRow(location, seq, 1, NOW, data)


def turn(key: int, epoch: int = 1, *, at: Instant = NOW, **fields: object) -> CommitTurn:
    """Return a turn of a run."""
    return CommitTurn(key=key, epoch=epoch, at=at, **fields)  # type: ignore[arg-type]  # fields of CommitTurn


def parked(due: Instant | None = None, *, seen: int = 0, released: bool = False) -> State:
    """Return the state of a run that waits."""
    return State(status=Status.SUSPENDED, seen=seen, wait="message", due=due, released=released)


def ended(status: Status = Status.COMPLETED, **fields: object) -> RunEnd:
    """Return an end."""
    return RunEnd(status=status, at=NOW, **fields)  # type: ignore[arg-type]  # fields of RunEnd


def message(target: str, payload: str = "1", *, at: Instant = NOW, **fields: object) -> SendMessage:
    """Return a message from outside."""
    values: dict[str, object] = {"name": "news", "id": f"m{next(_numbers)}", **fields}
    return SendMessage(target=target, payload=payload, at=at, **values)  # type: ignore[arg-type]  # its fields


def event(payload: str = "1", *, rule: EventRule = TO_ONE, at: Instant = NOW, **fields: object) -> PublishEvent:
    """Return an event."""
    values: dict[str, object] = {"name": "news", "id": f"e{next(_numbers)}", **fields}
    return PublishEvent(payload=payload, rule=rule, at=at, **values)  # type: ignore[arg-type]  # its fields


def wait(location: str = "a0", *names: str, since: Instant = NOW, rule: EventRule = TO_ONE, seen: int = 0) -> Wait:
    """Return a receive that waits for events."""
    return Wait(location=location, since=since, names=dict.fromkeys(names or ("news",), rule), seen=seen)


def extra(key: int, epoch: int = 1, *, at: Instant = NOW, state: State | None = None, **fields: object) -> CommitTurn:
    """Return a turn of a run that asks for what few turns do."""
    return turn(key, epoch, at=at, state=state, effects=TurnEffects(**fields))  # type: ignore[arg-type]  # its fields


def a_send(target: str, location: str = "a0", seq: int = 1, *, max_pending: int = 10_000) -> Send:
    """Return a message that a turn sends."""
    reasons = ("missing", "full", "completed", "failed", "cancelled")
    return Send(
        target=target, name="news", id="", payload="1", at=NOW, location=location, seq=seq, max_pending=max_pending,
        refusals={reason: f'"{reason}"' for reason in reasons},
    )  # fmt: skip


async def unread(store: Store, key: int, after: int = 0) -> list[Message]:
    """Return the unread inbox rows of one run."""
    return (await store.inboxes({key: after}))[key]


async def one(store: Store, operation: Operation, expected: type[OutcomeT]) -> OutcomeT:
    """Apply one operation and return its outcome, which must be of the kind expected."""
    [outcome] = await store.apply([operation])
    assert isinstance(outcome, expected), outcome
    return outcome


async def started(
    store: Store, id: str = "", *, owner: str | None = "w", at: Instant = NOW, **fields: object
) -> RunRow:
    """Start a run that worker `w` (announced here) is running with epoch 1, or a pending one."""
    if owner:
        await store.join(owner, LEASE)
    run = new_run(id, owner=owner, at=at, **fields)
    await one(store, StartRun(run=run), Started)
    return await row(store, run.id)


async def optioned(store: Store, *, owner: str | None = "w", **options: object) -> RunRow:
    """Start a run about which something is said."""
    return await started(store, owner=owner, options=RunOptions(**options))  # type: ignore[arg-type]  # its fields


async def waiting(store: Store, *names: str, since: Instant = NOW, rule: EventRule = TO_ONE) -> RunRow:
    """Start a run that is parked in a receive at location a0."""
    run = await started(store)
    await one(store, extra(run.key, state=parked(), waits=[wait("a0", *names, since=since, rule=rule)]), Committed)
    return await row(store, run.id)


async def queued(store: Store, *payloads: str, **fields: object) -> None:
    """Publish events that nobody waits for."""
    for payload in payloads:
        assert await one(store, event(payload, **fields), Published) == Published(0)  # type: ignore[arg-type]  # its fields


async def given(store: Store, run: RunRow) -> list[tuple[str, str]]:
    """Return kind and payload of what a run has not read."""
    return [(found.kind, found.payload) for found in await unread(store, run.key)]


async def row(store: Store, id: str) -> RunRow:
    """Return a run that must be there."""
    found = await store.get(id)
    assert found is not None
    return found


async def claim(store: Store, worker: str = "w", *, now: Instant = NOW, limit: int = 100) -> list[Claim]:
    """Claim runs of the workflow `order`."""
    return await store.claim(worker, now, limit, ["order"])


async def end(store: Store, run: RunRow, status: Status = Status.COMPLETED) -> None:
    """End a run as its owner would."""
    await one(store, turn(run.key, run.epoch, end=ended(status, output='"result"')), Committed)
