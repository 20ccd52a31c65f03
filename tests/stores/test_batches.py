"""A batch gives the same result row by row, set-based, and as single commits: random batches, compared."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, Literal, get_args

import pytest
from msgspec.structs import replace

from holdfast.chains import broken_link
from holdfast.clock import Instant
from holdfast.contract.limits import (
    CorrectPlaces,
    GrantTurns,
    HeldPlaces,
    LeaveLimits,
    LimitSpec,
    PauseLimit,
    PutLimit,
    TakeTasks,
)
from holdfast.contract.moves import (
    ArriveRuns,
    Arriving,
    ExpectRuns,
    FinishMove,
    ForgetArrival,
    GiveUpMove,
    Leaving,
    MarkMoving,
)
from holdfast.contract.operations import (
    Acknowledge,
    Beat,
    BeatTask,
    DropSchedule,
    FinishTask,
    KeepResult,
    Nudge,
    Operation,
    Outcome,
    Pause,
    PauseSchedule,
    PauseWork,
    Purge,
    PutOnRecord,
    PutSchedule,
    Reopen,
    ReplayEvent,
    RequestCancel,
    SendMessage,
    SetAttributes,
    Terminate,
    Tick,
    Unblock,
    Unpause,
)
from holdfast.contract.rows import EntryRow, Message, Status
from holdfast.contract.tokens import TokenRow, WriteToken
from holdfast.contract.turns import (
    Audit,
    CommitTurn,
    EnterLimit,
    EventRule,
    Evidence,
    Lane,
    LeaveKey,
    LeaveLimit,
    NewLetter,
    NewRun,
    NewTask,
    Parent,
    PublishEvent,
    Renewal,
    Reply,
    RunEnd,
    RunOptions,
    Send,
    StartChild,
    StartRun,
    State,
    TakeKey,
    TurnEffects,
    Wait,
)
from holdfast.stores.rules import letters as batch_letters
from holdfast.stores.sqlite.statements import SQL
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance import LEASE, NOW

IDS = [f"run-{n}" for n in range(12)]
NAMES = ["x", "y"]
LETTERS = [f"letter-{n}" for n in range(1, 9)]
OPEN = [status for status in Status if not status.is_terminal and status is not Status.MOVING]
ENDS = [Status.COMPLETED, Status.FAILED, Status.CANCELLED]
PURGES = [*ENDS, Status.MOVED, "work", "event", "queued", "keys", "ids"]
AUDIT = Audit(actor="ann", action="did")


NO_WORKER_HAS_IT = -1
"""Stands for the epoch of a run that is moving."""


class Dice:
    """Random operations on a few runs, so that they meet each other often."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.flow = Random(seed)
        self.tokens = Random(f"tokens {seed}")  # so that all else is as it was without them
        self.moves = Random(f"moves {seed}")
        self.step = seed
        """Which step of a move is the next, so that none is left out by chance."""
        self.at = NOW
        self.seq = 0
        self.epochs: dict[object, int] = {}
        """The epochs of runs by key and id, as of the last batch."""

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def some(self, make: Callable[..., object], percent: int = 15) -> list:
        """Return nothing mostly, sometimes one, seldom two."""
        return [make() for _ in range(2) if self.chance(percent)]

    def operation(self) -> Operation:
        self.at += 1
        common: list[Callable[[], Operation]] = [self.start, self.send, self.turn, self.turn, self.turn, self.publish]
        seldom: list[Callable[[], Operation]] = [
            self.cancel, self.terminate, self.pause, self.unpause, self.reopen, self.set_attributes, self.unblock,
            self.acknowledge, self.replay, self.keep, self.beat, self.put_schedule, self.pause_schedule,
            self.drop_schedule, self.tick, self.purge, self.finish_task, self.beat_task, self.leave_limits,
            self.take_tasks, self.correct_places, self.grant_turns, self.put_limit, self.pause_limit, self.pause_work,
            self.nudge,
        ]  # fmt: skip
        return self.random.choice(common if self.chance(65) else seldom)()

    # Limits.

    def lease_now(self) -> int:
        return self.at - NOW + 1_000_000

    def limit(self) -> str:
        return self.random.choice(["api", "bank"])

    def enter(self) -> EnterLimit:
        return EnterLimit(
            limit=self.limit(), key=self.random.choice(["", "a", "b"]), location=self.random.choice(["a0", "a1"]),
            worker=self.random.choice("wv"), now=self.lease_now(), priority=self.random.choice([0, 0, 5]),
        )  # fmt: skip

    def exit(self) -> LeaveLimit:
        return LeaveLimit(
            limit=self.limit(), key=self.random.choice(["", "a", "b"]), worker=self.random.choice("wv"),
            now=self.lease_now(), places=self.random.choice([0, 1, 1, 1]), probe=self.chance(50),
            verdict=self.random.choice(["", "ok", "failed"]), hold=10 if self.chance(10) else None,
        )  # fmt: skip

    def leave_limits(self) -> LeaveLimits:
        return LeaveLimits(leaves=self.some(self.exit, 60), at=self.at)

    def take_tasks(self) -> TakeTasks:
        return TakeTasks(
            worker=self.random.choice("wwx"), limit=self.limit(), room=self.random.randrange(4), queues=["q", "r"],
            activities=["pay", "ship"], at=self.at, now=self.lease_now(), oldest=self.chance(20),
            at_once={"q": 2} if self.chance(30) else {},
        )  # fmt: skip

    def correct_places(self) -> CorrectPlaces:
        held = [HeldPlaces("api", key, 0, self.random.randrange(3)) for key in ("", "a", "b")]
        return CorrectPlaces(worker=self.random.choice("wv"), places=held, at=self.at, now=self.lease_now())

    def grant_turns(self) -> GrantTurns:
        return GrantTurns(at=self.at, now=self.lease_now() + self.random.choice([0, 0, 20_000_000]))

    def put_limit(self) -> PutLimit:
        spec = LimitSpec(
            at_once=self.random.choice([None, 1, 2, 4]), rate=self.random.choice([None, None, 2]), per=20,
            burst=None, per_key_at_once=self.random.choice([None, None, 1]),
            trip_after=self.random.choice([None, 2]), cool_down=30,
        )  # fmt: skip
        return PutLimit(name=self.limit(), spec=spec, at=self.at, now=self.lease_now(), override=self.chance(20))

    def pause_limit(self) -> PauseLimit:
        return PauseLimit(name=self.limit(), paused=self.chance(30), at=self.at, now=self.lease_now())

    # What many do.

    def start(self) -> StartRun:
        run, turn = self.run(), self.turn() if self.chance(60) else None
        return StartRun(run=run, turn=turn if run.options.lane is None else None)

    def lane(self) -> Lane:
        """Return one of a few lanes, whose rules are another each time, as those of several deploys are."""
        end = RunEnd(status=Status.CANCELLED, at=self.at, error="superseded", payload="null")
        key, choice = self.flow.choice("kl"), self.flow.randrange(5)
        if choice == 0:
            return Lane(key=key, window=20, longest=self.flow.choice([0, 50]), end=end)
        if choice == 1:
            return Lane(key=key, at_once=2, on_full="cancel_oldest", end=end)
        on_full: Literal["wait", "reject"] = "reject" if self.flow.randrange(2) else "wait"
        return Lane(
            key=key, at_once=self.flow.choice([1, 3]), on_full=on_full, rate=self.flow.choice([None, 2]), per=30
        )

    def send(self) -> SendMessage:
        return SendMessage(
            target=self.id(), name=self.name(), id=self.random.choice("abc"), payload=str(self.at), at=self.at,
            deduplicate=self.chance(40), dead_letter=self.chance(40), max_pending=self.random.choice([1, 3, 10_000]),
        )  # fmt: skip

    def publish(self) -> PublishEvent:
        entries = self.entry()
        return PublishEvent(
            name=self.name(), id=self.random.choice("abcdef"), payload=str(self.at), at=self.at, rule=self.rule(),
            deduplicate=self.chance(30), location=entries.location, seq=self.random.randrange(1, 9), refusal="full",
        )  # fmt: skip

    def turn(self) -> CommitTurn:
        entries = [self.entry() for _ in range(self.random.randrange(3))]
        location, seq = (entries[0].location, entries[0].seq) if entries else ("a0", 1)
        key = self.key()
        sends = [
            Send(
                target=self.id(), name=self.name(), id="", payload="1", at=self.at, location=location, seq=seq,
                refusals={reason: reason for reason in ("missing", "full", "completed", "failed", "cancelled")},
                max_pending=self.random.choice([1, 3, 10_000]),
            )
            for _ in range(self.random.choice([0, 0, 0, 1, 2]))
        ]  # fmt: skip
        children = [
            StartChild(run=self.run(Parent(key, "x", location)), location=location, seq=seq, taken="taken")
            for _ in range(self.random.choice([0, 0, 0, 1]))
        ]
        return CommitTurn(
            key=key,
            epoch=self.epoch(key),
            at=self.at,
            entries=entries,
            consumed=[n for n in range(1, 6) if self.chance(10)],
            trims=[("a0", "a1")] if self.chance(10) else [],
            sends=sends,
            children=children,
            state=self.state() if self.chance(50) else None,
            end=self.end() if self.chance(8) else None,
            renewal=Renewal(input="next", generation=2) if self.chance(8) else None,
            reset_claims=self.chance(20),
            effects=self.effects() if self.chance(60) else None,
            inbox=self.random.randrange(4) if self.chance(8) else None,
        )

    def effects(self) -> TurnEffects:
        return TurnEffects(
            waits=self.some(self.wait, 30),
            unwaits=self.some(self.place),
            returns=[n for n in range(1, 6) if self.chance(20)],
            publishes=self.some(self.publish),
            attributes=self.attributes() if self.chance(20) else {},
            evidence=self.some(lambda: Evidence(id=str(self.at), kind="k", data="1", at=self.at)),
            replies=self.some(lambda: Reply(message=self.random.choice("abcdef"), payload=str(self.at))),
            letters=self.some(lambda: NewLetter(id=f"w{self.at}", step="s", attempts=1, error="e"), 10),
            takes=self.some(self.take, 30),
            enters=self.some(self.enter, 30),
            exits=self.some(self.exit, 20),
            unlimits=[(location, self.lease_now()) for location in ("a0", "a1") if self.chance(5)],
            leaves=self.some(self.leave, 25),
            tasks=self.some(self.task, 30),
            untasks=self.some(self.place, 10),
            version=self.random.choice(["", "", "2"]),
        )

    # What somebody does.

    def cancel(self, target: str | None = None) -> RequestCancel:
        return RequestCancel(
            target=self.id() if target is None else target, at=self.at, compensate=self.chance(20),
            payload=str(self.at), unread=self.unread(), rules=self.rules(), audit=self.audit(),
        )  # fmt: skip

    def terminate(self) -> Terminate:
        return Terminate(target=self.id(), end=self.end(), audit=self.audit())

    def pause(self) -> Operation:
        until = self.random.choice([None, self.at + 50])
        pause = Pause(target=self.id(), at=self.at, until=until, audit=self.audit())
        return pause if self.moves.random() < 0.2 else self.move(pause)

    def move(self, pause: Pause) -> Operation:
        said: dict[str, Any] = {"target": pause.target, "at": self.at, "token": self.moves.choice("tu")}
        self.step += 1
        if self.step % 6 > 2:
            return self.arrival(said)
        if self.step % 6 == 0:
            epoch = self.moves.choice([self.epochs.get(pause.target, 1), 0, 1, 2])
            leaving = Leaving(id=pause.target, epoch=epoch, paused=self.moves.random() < 0.5, until=pause.until)
            return MarkMoving(runs=[leaving], address="elsewhere", audit=pause.audit, **said)
        if self.step % 6 == 1:
            return FinishMove(seen=self.moves.choice([0, 1, 99]), **said)
        return GiveUpMove(**said)

    def arrival(self, said: dict[str, Any]) -> Operation:
        if self.step % 6 == 3:
            run = NewRun(id=said["target"], workflow="order", version="1", input="1", digest=1, seed=1, at=self.at)
            return ExpectRuns(runs=[run], address="elsewhere", **said)
        if self.step % 6 == 4:
            fields: dict[str, Any] = {"rows": [self.entry()], "inbox": [], "seen": [], "status": Status.PENDING}
            return ArriveRuns(runs=[Arriving(id=said["target"], input="1", **fields)], **said)
        return ForgetArrival(**said)

    def nudge(self) -> Nudge:
        return Nudge(target=self.id(), at=self.at, audit=self.audit())

    def unpause(self) -> Unpause:
        return Unpause(target=self.id(), at=self.at, audit=self.audit())

    def reopen(self, depth: int = 0) -> Reopen:
        target = self.id()
        messages = [Message(0, self.random.choice(["message", "event"]), self.name(), "", "1", self.at)]
        return Reopen(
            target=target, epoch=self.epoch(target), cut=self.random.randrange(1, self.seq + 2), at=self.at,
            entries=self.some(self.entry), messages=messages if self.chance(40) else [],
            lane=self.lane() if self.flow.randrange(2) else None,
            children=[self.reopen(1) for _ in range(self.random.choice([0, 0, 0, 1, 2]))] if not depth else [],
            audit=self.audit(),
        )  # fmt: skip

    def set_attributes(self) -> SetAttributes:
        return SetAttributes(target=self.id(), attributes=self.attributes(), at=self.at, audit=self.audit())

    def unblock(self) -> Unblock:
        target = self.id() if self.chance(50) else ""
        return Unblock(at=self.at, workflow="order", fingerprint="a", target=target, audit=self.audit())

    def acknowledge(self) -> Acknowledge:
        letter = self.random.choice(LETTERS)
        return Acknowledge(letter=letter, at=self.at, remove=self.chance(20), audit=self.audit())

    def replay(self) -> ReplayEvent:
        target = self.id() if self.chance(50) else ""
        letter = self.random.choice(LETTERS)
        return ReplayEvent(letter=letter, at=self.at, target=target, rule=self.rule(), audit=self.audit())

    def keep(self) -> KeepResult:
        return KeepResult(run=self.key(), leave=self.leave())

    def beat(self) -> Beat:
        key = self.key()
        return Beat(key=key, epoch=self.epoch(key), location=self.place(), at=self.at, detail=str(self.at))

    def finish_task(self) -> FinishTask:
        worker, attempt = self.random.choice(["w", "w", "v"]), self.random.choice([1, 1, 2])
        return FinishTask(
            run=self.key(), location=self.place(), attempt=attempt, worker=worker, payload=str(self.at), at=self.at,
            leave=self.exit() if self.chance(50) else None,
        )  # fmt: skip

    def beat_task(self) -> BeatTask:
        worker, attempt = self.random.choice(["w", "w", "v"]), self.random.choice([1, 1, 2])
        return BeatTask(
            run=self.key(), location=self.place(), attempt=attempt, worker=worker, detail=str(self.at), at=self.at
        )

    def put_schedule(self) -> PutSchedule:
        return PutSchedule(
            id="s", workflow="order", spec="", input="1", next=NOW + self.random.randrange(3),
            paused=self.chance(15), at=self.at, audit=self.audit(),
        )  # fmt: skip

    def pause_schedule(self) -> PauseSchedule:
        next = NOW + self.random.randrange(3)
        return PauseSchedule(id="s", paused=self.chance(50), next=next, at=self.at, audit=self.audit())

    def pause_work(self) -> PauseWork | WriteToken | PutOnRecord:
        pause = PauseWork(kind="queue", name=self.name(), at=self.at, paused=self.chance(60), audit=self.audit())
        if self.tokens.random() < 0.5:
            return pause
        if self.tokens.random() < 0.3:
            audit = pause.audit or Audit(actor="kim", action="reveal")
            return PutOnRecord(target=self.tokens.choice(IDS), at=self.at, audit=audit)
        id, expires = pause.name, self.at if self.tokens.random() < 0.5 else None
        new = TokenRow(id=id, name="kim", role="viewer", digest="00", created=self.at, expires=expires, revoked=None)
        return WriteToken(id=id, at=self.at, token=new if self.tokens.random() < 0.6 else None, audit=pause.audit)

    def drop_schedule(self) -> DropSchedule:
        return DropSchedule(id="s", at=self.at, audit=self.audit())

    def tick(self) -> Tick:
        overlap = self.random.choice(["allow", "skip", "cancel"])
        return Tick(
            schedule="s", expected=NOW + self.random.randrange(3), next=NOW + self.random.randrange(3),
            runs=[self.run() for _ in range(self.random.randrange(3))], overlap=overlap, at=self.at,
            cancel=self.cancel("") if overlap == "cancel" else None,
        )  # fmt: skip

    def purge(self) -> Purge:
        return Purge(
            what=self.random.choice(PURGES), before=self.at - self.random.choice([0, 0, 30]), at=self.at,
            limit=self.random.choice([1, 2, 100]), keep_ids=self.at + self.random.choice([0, 40]),
            acknowledged=self.chance(30), unread=self.unread(), audit=self.audit(),
        )  # fmt: skip

    # The pieces.

    def id(self) -> str:
        return self.random.choice(IDS)

    def key(self) -> int:
        return self.random.randrange(1, 14)

    def epoch(self, run: int | str) -> int:
        if self.epochs.get(run) == NO_WORKER_HAS_IT:
            return NO_WORKER_HAS_IT
        return self.epochs.get(run, 1) if self.chance(80) else self.random.choice([0, 1, 2, 3])

    def name(self) -> str:
        return self.random.choice(NAMES)

    def place(self) -> str:
        return self.random.choice(["a0", "a0/~a1", "a1", "b10"])

    def audit(self) -> Audit | None:
        return AUDIT if self.chance(30) else None

    def unread(self) -> dict[str, str]:
        return {name: self.random.choice(["discard", "republish", "dead_letter"]) for name in NAMES}

    def rules(self) -> dict[str, EventRule]:
        return {name: self.rule() for name in NAMES if self.chance(50)}

    def rule(self) -> EventRule:
        return EventRule(
            single=self.chance(60),
            keep=self.chance(70),
            not_before=self.random.choice([0, 0, 0, self.at - 30]),
            expired=self.random.choice([0, 0, 0, self.at - 60]),
            max_pending=self.random.choice([1, 3, 10_000]),
        )

    def wait(self) -> Wait:
        names = {name: self.rule() for name in NAMES if self.chance(70)}
        since = self.at - self.random.randrange(5)
        return Wait(location=self.place(), since=since, names=names, seen=self.random.randrange(4))

    def take(self) -> TakeKey:
        digest = self.random.choice([1, 1, 1, 2])
        return TakeKey(activity="pay", key=self.random.choice("kl"), digest=digest, location=self.place())

    def task(self) -> NewTask:
        queue, activity = self.random.choice(["q", "r"]), self.random.choice(["pay", "ship"])
        return NewTask(
            location=self.place(), attempt=self.random.choice([1, 1, 2]), queue=queue, activity=activity,
            payload=str(self.at), priority=self.random.choice([0, 0, 3]), limit_key=self.random.choice(["", "a"]),
        )  # fmt: skip

    def leave(self) -> LeaveKey:
        result = self.random.choice([None, str(self.at)])
        return LeaveKey(activity="pay", key=self.random.choice("kl"), result=result, expires=self.at + 20)

    def attributes(self) -> dict[str, str | None]:
        return {name: self.random.choice([None, "1", "2"]) for name in ("p", "q") if self.chance(60)}

    def run(self, parent: Parent | None = None) -> NewRun:
        options = RunOptions(
            begins=self.random.choice([None, None, self.at + 40]),
            timeout=self.random.choice([None, 100]),
            priority=self.random.choice([0, 0, 5]),
            unique_key=self.random.choice([None, None, "u", "v"]),
            attributes={"p": "1"} if self.chance(30) else {},
            cancel_with_parent=self.chance(50),
        )
        run = NewRun(
            id=self.id(), workflow="order", version="1", input=str(self.at), digest=self.at, seed=1, at=self.at,
            owner=self.random.choice(["w", "w", None, "stranger"]), parent=parent,
            options=options if self.chance(60) else RunOptions(),
        )  # fmt: skip
        if self.flow.randrange(4):
            return run
        return replace(run, owner=None, options=replace(run.options, lane=self.lane()))

    def entry(self) -> EntryRow:
        self.seq += 1
        return EntryRow(self.place(), self.seq, 1, self.at, "{}")

    def state(self) -> State:
        state = State(
            status=self.random.choice(OPEN),
            seen=self.random.randrange(4),
            wait=self.random.choice(["", "timer", "retry"]),
            due=self.random.choice([None, NOW + 1000]),
            released=self.chance(30),
            error=self.random.choice([None, None, "why"]),
            fingerprint=self.random.choice([None, "a", "b"]),
        )
        # A run that has seen a request to stop acts on it; one that is let go for good, as here, has seen none.
        return replace(state, seen=0) if state.released and state.due is None else state

    def end(self) -> RunEnd:
        return RunEnd(
            status=self.random.choice(ENDS), at=self.at, output=self.random.choice([None, "o"]),
            payload=str(self.at), unread=self.unread(), rules=self.rules(),
        )  # fmt: skip


class Stores:
    """One store that commits row by row, one set-based, one a commit per operation; letters are numbered in each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plain, self.bulk, self.single = (SQLiteStore(":memory:", inline_limit=n) for n in (10**6, 0, 10**6))
        self.all = (self.single, self.plain, self.bulk)
        self._numbers = {store: count(1) for store in self.all}
        self._current = self.single
        monkeypatch.setattr(batch_letters, "new_id", lambda: f"letter-{next(self._numbers[self._current])}")

    async def open(self) -> None:
        for store in self.all:
            await store.open()
            await store.join("w", LEASE)

    async def apply(self, batch: list[Operation]) -> list[list[Outcome]]:
        """Apply a batch everywhere."""
        found: list[list[Outcome]] = []
        for store in self.all:
            self._current = store
            if store is self.single:
                found.append([outcome for operation in batch for outcome in await store.apply([operation])])
            else:
                found.append(await store.apply(batch))
        return found

    async def claim(self, at: Instant, limit: int) -> list[list]:
        return [await store.claim("w", at, limit, ["order"]) for store in self.all]

    async def claim_waiting(self, at: Instant, limit: int, lane: Lane) -> list[list]:
        return [await store.claim_waiting("w", at, limit, {"order": lane}) for store in self.all]

    async def claim_tasks(self, at: Instant, limit: int) -> list[list]:
        queues, activities = ["q", "r"], ["pay", "ship"]
        return [await store.claim_tasks("w", at, limit, queues, activities) for store in self.all]

    async def close(self) -> None:
        for store in self.all:
            await store.close()


def contents(store: SQLiteStore) -> dict[str, list[tuple[Any, ...]]]:
    db = store._connections.reader
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
    found = {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
    found["workers"] = db.execute("SELECT id, state FROM workers").fetchall()
    return found


NEVER = {
    "a queue whose count is wrong": """
        SELECT name FROM event_queues
        WHERE pending <> (SELECT count(*) FROM events WHERE events.name = event_queues.name)""",
    "a queue that is not counted": "SELECT name FROM events WHERE name NOT IN (SELECT name FROM event_queues)",
    "something an ended run left behind": """
        SELECT key FROM runs WHERE ended IS NOT NULL AND (
            owner IS NOT NULL OR due IS NOT NULL OR side_rows <> 0
            OR key IN (SELECT run FROM event_waiters) OR key IN (SELECT run FROM idempotency_waiters)
            OR key IN (SELECT run FROM inbox WHERE status = 'completed' OR kind NOT IN ('message', 'notice'))
            OR key IN (SELECT run FROM heartbeats) OR key IN (SELECT run FROM tasks)
            OR key IN (SELECT run FROM idempotency_keys WHERE result IS NULL))""",
    "a limit whose counters are wrong": SQL["wrong_limits"],
    "a place or a step of a limit that has no row": """
        SELECT name FROM limit_counts WHERE (name, key) NOT IN (SELECT name, key FROM limit_keys) UNION ALL
        SELECT name FROM limit_waiters WHERE (name, key) NOT IN (SELECT name, key FROM limit_keys)""",
    "a step that waits though it could begin": """
        SELECT limits.name FROM limits JOIN limit_keys ON limit_keys.name = limits.name WHERE paused = 0 AND ready = 1
        AND stale = 0 AND (coalesce(override, spec) ->> 'at_once' IS NULL
                           OR limits.used + limits.granted < coalesce(override, spec) ->> 'at_once')""",
    "a first in line that is not": """
        SELECT name FROM limit_keys WHERE head IS NOT (
            SELECT n FROM limit_waiters WHERE limit_waiters.name = limit_keys.name
            AND limit_waiters.key = limit_keys.key AND granted IS NULL ORDER BY priority DESC, n LIMIT 1)""",
    "a step of an ended run in line": """
        SELECT run FROM limit_waiters JOIN runs ON runs.key = limit_waiters.run WHERE ended IS NOT NULL""",
    "an ended run that is not terminal": """
        SELECT key FROM runs WHERE (ended IS NULL) = (status IN ('completed', 'failed', 'cancelled', 'moved'))""",
    "a run that nobody will ever drive": """
        SELECT key FROM runs WHERE owner IS NULL AND due IS NULL AND place <> 1
        AND status IN ('pending', 'running', 'cancelling', 'compensating')""",
    "a request to stop or go on that nobody will see": """
        SELECT key FROM runs WHERE owner IS NULL AND due IS NULL AND status <> 'blocked' AND place <> 1
        AND key IN (SELECT run FROM inbox WHERE kind IN ('cancel', 'resume')) AND status NOT IN ('paused', 'moving')""",
    "a move that no run is on, or a run on no move": """
        SELECT run FROM moves LEFT JOIN runs ON key = run WHERE status IS NULL OR status NOT IN ('moving', 'moved')
        UNION ALL SELECT key FROM runs WHERE status IN ('moving', 'moved') AND key NOT IN (SELECT run FROM moves)""",
    "a run that is moving and acts": """
        SELECT key FROM runs WHERE status = 'moving' AND (owner IS NOT NULL OR due IS NOT NULL OR side_rows <> 0)""",
    "a run that waits and is due": "SELECT key FROM runs WHERE place = 1 AND (due IS NOT NULL OR owner IS NOT NULL)",
    "a place that is not its run's": """
        SELECT run FROM run_places LEFT JOIN runs ON key = run
        WHERE ended IS NOT NULL OR place IS NULL OR place <> CASE WHEN held = 1 THEN 2 ELSE 1 END""",
    "a run without the place that it has": """
        SELECT key FROM runs WHERE place > 0 AND key NOT IN (SELECT run FROM run_places)""",
    "a run that waits in no lane": """
        SELECT run FROM run_places WHERE held = 0 AND NOT EXISTS (
            SELECT 1 FROM lanes WHERE lanes.lane = run_places.lane AND lanes.priority = run_places.priority)""",
    "a lane that nothing lets join the line": """
        SELECT lane FROM lanes WHERE number IS NULL AND ready IS NULL AND NOT EXISTS (
            SELECT 1 FROM run_places WHERE run_places.lane = lanes.lane AND held = 1)""",
    "an inbox row beyond the last number": "SELECT run FROM inbox JOIN runs ON key = run WHERE n > runs.inbox",
    "rows of a run that is not there": """
        SELECT run FROM (SELECT run FROM inputs UNION SELECT run FROM entries UNION SELECT run FROM inbox
                         UNION SELECT run FROM attributes UNION SELECT run FROM event_waiters
                         UNION SELECT run FROM results)
        WHERE run NOT IN (SELECT key FROM runs)""",
}


def broken(store: SQLiteStore) -> list[str]:
    db = store._connections.reader
    return [what for what, sql in NEVER.items() if db.execute(sql).fetchall()]


@pytest.mark.parametrize("start", [0, 10, 20, *(pytest.param(n, marks=pytest.mark.slow) for n in range(30, 100, 10))])
async def test_a_batch_gives_what_its_operations_give_one_by_one(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2-29, G2, G8: every operation and every outcome, with whatever else a turn may ask for; in every table."""
    outcomes: set[type[Outcome]] = set()
    operations: set[type[Operation]] = set()
    taken: list[tuple[int, int]] = []
    for seed in range(start, start + 10):
        taken.append(await compare(seed, monkeypatch, operations, outcomes))
    assert outcomes == set(get_args(Outcome))
    assert operations == set(get_args(Operation))
    assert all(map(sum, zip(*taken, strict=True)))


async def compare(
    seed: int, monkeypatch: pytest.MonkeyPatch, kinds: set[type[Operation]], outcomes: set[type[Outcome]]
) -> tuple[int, int]:
    """Compare what three stores make of random operations; return how many attempts, and runs in lanes, were taken."""
    dice, stores = Dice(seed), Stores(monkeypatch)
    await stores.open()
    tasks = waited = 0
    for number in range(12):
        size = dice.random.choice([1, 2, 5, 25, 60])
        batch: list[Operation] = [dice.operation() if number else dice.start() for _ in range(size if number else 15)]
        batch.sort(key=lambda each: type(each) is ExpectRuns)  # what follows would guess the epoch of what is new
        single, plain, bulk = await stores.apply(batch)
        assert plain == single, seed
        assert bulk == single, seed
        expected = contents(stores.single)
        for store in (stores.plain, stores.bulk):
            for table, rows in contents(store).items():
                assert rows == expected[table], (seed, table)
        assert broken(stores.single) == [], seed
        known = stores.single._connections.reader.execute("SELECT key, id, epoch, status = 'moving' FROM runs")
        for key, run_id, epoch, moves in known:
            dice.epochs[key] = dice.epochs[run_id] = NO_WORKER_HAS_IT if moves else epoch
        first, *others = await stores.claim(dice.at + dice.random.choice([0, 50]), dice.random.randrange(4))
        assert others == [first, first], seed
        lane = Lane(at_once=dice.flow.choice([2, 5]), rate=dice.flow.choice([None, 3]), per=30)
        first, *others = await stores.claim_waiting(dice.at + 50, dice.flow.randrange(4), lane)
        assert others == [first, first], seed
        waited += len(first)
        some, *others = await stores.claim_tasks(dice.at, dice.random.randrange(4))
        assert others == [some, some], seed
        tasks += len(some)
        kinds |= {type(operation) for operation in batch}
        outcomes |= {type(outcome) for outcome in single}
    assert broken_link(await stores.bulk.audit()) is None
    await stores.close()
    return tasks, waited
