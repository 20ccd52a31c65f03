"""Two who act on one run at the same time: one wins, the other is told so by a typed outcome, and the run is whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from holdfast.contract.operations import (
    Committed,
    Delivered,
    Fenced,
    Operation,
    Outcome,
    Pause,
    Refused,
    RequestCancel,
    SendMessage,
    Started,
)
from holdfast.contract.rows import EntryRow, RunRow, Status
from holdfast.contract.turns import CommitTurn, RunEnd, RunOptions, StartRun, State
from holdfast.replay import entry as entries
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance.samples import LEASE, NOW, SECOND, claim, new_run, one, row, unread
from holdfast.testing.invariants import violations

DUE = NOW + SECOND
LOSS = "lease loss"
ENDS = {"complete": Status.COMPLETED, "fail": Status.FAILED, "timeout": Status.FAILED}
TURNS = [*ENDS, "timer"]
REQUESTS = ["message", "cancel", "pause"]
ACTORS = [*TURNS, *REQUESTS, LOSS]

HISTORY = [
    EntryRow("!a0", 1, entries.Name.kind, NOW, entries.encode_entry(entries.Name("sleep"))),
    EntryRow("a0", 2, entries.SleepBegun.kind, NOW, entries.encode_entry(entries.SleepBegun(DUE))),
]
FIRED = EntryRow("a0", 3, entries.TimerFired.kind, DUE, entries.encode_entry(entries.TimerFired()))


class Ring:
    """One run at a time, owned by a worker of its own whose lease is about to lapse; another worker looks on."""

    def __init__(self, path: Path, inline_limit: int) -> None:
        self.judge, self.owner = (SQLiteStore(path, durability="process", inline_limit=inline_limit) for _ in range(2))
        self._numbers = count()

    async def open(self) -> None:
        for store in (self.judge, self.owner):
            await store.open()
        await self.judge.join("w", LEASE)

    async def close(self) -> None:
        for store in (self.judge, self.owner):
            await store.close()

    async def run(self, *, parked: bool) -> RunRow:
        """Return a run in a sleep that is over at DUE: in its worker's memory and driven, or parked."""
        worker = f"d{next(self._numbers)}"
        await self.owner.join(worker, timedelta(microseconds=1))
        status, wait = (Status.SUSPENDED, "timer") if parked else (Status.RUNNING, "")
        state = State(status=status, seen=0, wait=wait, due=DUE if parked else None)
        first = CommitTurn(key=0, epoch=1, at=NOW, entries=HISTORY, state=state)
        run = new_run(owner=worker, options=RunOptions(timeout=SECOND))
        await one(self.owner, StartRun(run=run, turn=first), Started)
        return await row(self.judge, run.id)

    async def act(self, actor: str, run: RunRow) -> Outcome | bool:
        """Let one act; whoever takes the run over tells whether it got it."""
        if actor == LOSS:
            await self.judge.take_over(DUE)
            return run.key in [taken.key for taken in await claim(self.judge, now=DUE)]
        [outcome] = await (self.owner if actor in TURNS else self.judge).apply([prepared(actor, run)])
        return outcome


def prepared(actor: str, run: RunRow) -> Operation:
    """Return what an actor decided on when it looked at the run."""
    match actor:
        case "timer":
            state = State(status=Status.SUSPENDED, seen=0, wait="message", due=DUE + SECOND)
            return CommitTurn(key=run.key, epoch=run.epoch, at=DUE, entries=[FIRED], state=state)
        case "message":
            return SendMessage(target=run.id, name="news", id="m", payload="1", at=DUE)
        case "cancel":
            return RequestCancel(target=run.id, at=DUE)
        case "pause":
            return Pause(target=run.id, at=DUE)
        case _:
            assert run.deadline == DUE
            end = RunEnd(status=ENDS[actor], at=DUE, output=f'"{actor}"', error=f'"{actor}"')
            return CommitTurn(key=run.key, epoch=run.epoch, at=DUE, end=end)


def expected(first: str | None, second: str, run: RunRow) -> Outcome | bool | type[Outcome]:
    """Return the outcome the second has, given who was first; a type where no more is promised."""
    if first in ENDS:
        if second in TURNS:
            return Fenced(run.key)
        return False if second == LOSS else Refused(ENDS[first])
    if first == LOSS and second in TURNS:
        return Fenced(run.key)
    if second == LOSS and first in (LOSS, "timer"):
        return False  # it is taken already; or it was parked again, and is taken when it is due
    if first == "cancel" and second == "pause":
        return Refused(Status.CANCELLING)
    allowed: dict[str, type[Outcome]] = {"message": Delivered, "cancel": Delivered, "pause": Delivered}
    return True if second == LOSS else allowed.get(second, Committed)


def fits(outcome: Outcome | bool, wanted: Outcome | bool | type[Outcome]) -> bool:
    return isinstance(outcome, wanted) if isinstance(wanted, type) else outcome == wanted


@pytest.fixture(params=[0, 8], ids=["set-based", "row-by-row"])
async def ring(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ring]:
    ring = Ring(tmp_path / "test.db", request.param)
    await ring.open()
    yield ring
    await ring.close()


@pytest.mark.parametrize("parked", [False, True], ids=["driven", "parked"])
@pytest.mark.parametrize("first", ACTORS)
async def test_of_two_who_race_on_one_run_one_wins_and_the_other_is_told(ring: Ring, first: str, parked: bool) -> None:
    """S2-30, G5, G6: every pair of {complete, fail, timeout, timer, message, cancel, pause, lease loss} racing on one
    run has one winner and a typed outcome for the other.

    Each decides on the same state; then they act one after the other, in both orders (over all parameters), and,
    where both are operations, in one batch.
    """
    for second in ACTORS:
        run = await ring.run(parked=parked)
        outcomes = [await ring.act(actor, run) for actor in (first, second)]
        assert fits(outcomes[0], expected(None, first, run)), (first, outcomes[0])
        assert fits(outcomes[1], expected(first, second, run)), (first, second, outcomes[1])
        await check(ring, run, first, second)
        if LOSS not in (first, second):
            run = await ring.run(parked=parked)
            both = await ring.judge.apply([prepared(actor, run) for actor in (first, second)])
            assert fits(both[0], expected(None, first, run)), (first, both[0])
            assert fits(both[1], expected(first, second, run)), (first, second, both[1])
            await check(ring, run, first, second)
    assert await violations(ring.judge) == []


async def check(ring: Ring, run: RunRow, first: str, second: str) -> None:
    """Check that the run is in the one state that the race allows, and that nothing was lost or done twice."""
    found, actors = await row(ring.judge, run.id), (first, second)
    told = [message.kind for message in await unread(ring.judge, run.key)]
    winner = first if first in ENDS else second if second in ENDS and first != LOSS else None
    fired = [actor for actor in actors if actor == "timer"] and not (first in ENDS or first == LOSS)
    assert (FIRED in await ring.judge.history(run.key)) is bool(fired), actors
    if winner is not None:
        assert (found.status, found.output, found.ended) == (ENDS[winner], f'"{winner}"', DUE), actors
        # What a run that did not complete has not read waits for when it is reopened.
        kept = ["message"] if first == "message" and ENDS[winner] is not Status.COMPLETED else []
        assert (found.owner, found.due, told) == (None, None, kept), actors
        return
    assert found.ended is None, actors
    assert (found.output, found.error) == (None, None), actors
    if "cancel" in actors:
        assert found.status is Status.CANCELLING, actors
    elif "pause" in actors and second != LOSS:
        assert found.status is Status.PAUSED, actors
    requests = [actor for actor in actors if actor in REQUESTS]
    if requests == ["cancel", "cancel"] or requests == ["cancel", "pause"]:
        requests = ["cancel"]
    assert told == requests, actors
    if actors == ("timer", LOSS):
        assert (found.owner, found.due, found.epoch) == (run.owner, DUE + SECOND, run.epoch), actors
        assert run.key in [taken.key for taken in await claim(ring.judge, now=DUE + SECOND)]
        found = await row(ring.judge, run.id)
    if LOSS in actors:
        assert (found.owner, found.epoch > run.epoch) == ("w", True), actors
        [late] = await ring.owner.apply([prepared("timer", run)])
        assert late == Fenced(run.key), actors
    else:
        assert (found.owner, found.epoch) == (run.owner, run.epoch), actors
    if requests and second != LOSS:
        assert found.due is not None, actors
        assert found.due <= DUE, actors
