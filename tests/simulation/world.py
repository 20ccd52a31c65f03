"""What the random world is made of: a store that fails, programs of every verb, and books of what was acknowledged."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import Context, NoSuchRun, Retry, RunTerminal, activity, step_context, workflow
from holdfast.contract.operations import Committed, Operation, Outcome, Started
from holdfast.contract.turns import CommitTurn, StartRun
from holdfast.errors import ChildFailed, StoreBusy, StoreError, StoreFull
from holdfast.replay import entry as entries
from holdfast.stores.sqlite.store import SQLiteStore

COLLECTORS = ["collector-1", "collector-2"]
Plan = list[Any]


class World:
    """What happened, as far as the store acknowledged it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.calm = False
        self.rate = self.random.choice([0.0, 0.02, 0.1])
        self.faults = Counter[str]()
        self.bodies = Counter[tuple[str, int]]()
        self.failed = Counter[str]()
        self.recorded: dict[str, int] = {}
        self.sent: set[str] = set()
        self.perhaps: set[str] = set()
        self.wrong: list[str] = []
        self.tokens = 0

    def token(self) -> str:
        self.tokens += 1
        return f"t{self.tokens}"

    def bites(self, what: str, rate: float | None = None) -> bool:
        if self.calm or self.random.random() >= (self.rate if rate is None else rate):
            return False
        self.faults[what] += 1
        return True

    def begin_body(self, token: str, attempt: int) -> None:
        self.bodies[token, attempt] += 1
        if self.bodies[token, attempt] > 1:
            self.wrong.append(f"attempt {attempt} of {token} was executed twice")
        if attempt > self.recorded.get(token, 1 << 30):
            self.wrong.append(f"attempt {attempt} of {token} began after its result was recorded")

    def note(self, operations: Sequence[Operation], outcomes: list[Outcome] | None) -> list[Outcome] | None:
        for operation, outcome in zip(operations, outcomes or (), strict=False):
            turn: CommitTurn | None = None
            refused: dict[str, str] = {}
            if isinstance(operation, CommitTurn) and isinstance(outcome, Committed):
                turn, refused = operation, outcome.refused
            elif isinstance(operation, StartRun) and isinstance(outcome, Started) and outcome.committed:
                turn, refused = operation.turn, outcome.committed.refused
            if turn is None:
                continue
            for send in turn.sends:
                self.perhaps.add(send.payload.strip('"'))
                if send.location not in refused and send.target in COLLECTORS:
                    self.sent.add(send.payload.strip('"'))
            for row in turn.entries:
                if row.kind == entries.StepCompleted.kind:
                    done: Any = entries.decode_entry(row.kind, row.data)
                    self.recorded[bytes(done.result).decode().strip('"')] = done.attempt
        return outcomes


class TroubledStore(SQLiteStore):
    """A store that fails before or after the deed, or takes its time."""

    def __init__(self, path: Path, world: World) -> None:
        super().__init__(path, durability="process", inline_limit=world.random.choice([0, 1, 8]))
        self.world = world
        self.dead = False
        self._inside: Sequence[Operation] | None = None

    def _fail(self, what: str) -> None:
        if self.dead:
            raise StoreError(f"{what}: this process is dead")
        if self.world.bites(what):
            raise self.world.random.choice([StoreBusy, StoreFull, StoreError])(f"{what}: injected")

    async def _trouble(self, what: str) -> None:
        if self.world.bites("delay", 0.1):
            await asyncio.sleep(self.world.random.random() * 0.01)
        self._fail(what)

    def apply_now(self, operations: Sequence[Operation]) -> list[Outcome] | None:
        if operations is self._inside:  # by way of apply
            self._inside = None
            return super().apply_now(operations)
        self._fail("apply_now")
        if self.world.bites("not now", 0.2):
            return None
        return self.world.note(operations, super().apply_now(operations))

    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        await self._trouble("apply")
        self._inside = operations
        outcomes = await super().apply(operations)
        self.world.note(operations, outcomes)
        if self.world.bites("unknown outcome"):
            raise StoreError("the outcome is unknown")
        return outcomes

    def renew(self, worker: str, load: str = "{}") -> bool:
        self._fail("renew")
        return super().renew(worker, load)


def _troubled(name: str) -> Callable[..., Any]:
    async def method(self: TroubledStore, *args: Any, **kwargs: Any) -> Any:
        await self._trouble(name)
        answer = await getattr(SQLiteStore, name)(self, *args, **kwargs)
        if name == "claim" and answer and self.world.bites("claimed, but nobody heard"):
            raise StoreError("the outcome is unknown")
        return answer

    return method


for _name in (
    "claim", "load", "inboxes", "due", "held", "next_due", "take_over", "schedules", "replies", "get", "history",
):  # fmt: skip
    setattr(TroubledStore, _name, _troubled(_name))


def make_workflows(world: World) -> list[Any]:
    """Return the workflows of a world: `program` does what its input says, `collector` keeps every message."""

    @activity(retry=Retry(max_attempts=4, initial_interval=timedelta(milliseconds=2)))
    async def body(token: str, failures: int, pause: float) -> str:
        attempt = step_context().attempt
        world.begin_body(token, attempt)
        await asyncio.sleep(pause)
        if world.failed[token] < failures:
            world.failed[token] += 1
            raise ValueError(token)
        return token

    @workflow
    async def program(ctx: Context, plan: Plan, done: list[Any]) -> list[Any]:
        for at, (verb, *rest) in enumerate(plan):
            if verb == "renew":
                ctx.continue_as_new(plan=plan[at + 1 :], done=done)
            done.append(await _do(ctx, verb, *rest))
        return done

    async def _all(ctx: Context, plan: Plan) -> list[Any]:
        return [await _do(ctx, *each) for each in plan]

    async def _do(ctx: Context, verb: str, *rest: Any) -> Any:
        if verb == "step":
            return await ctx.step(body, *rest)
        if verb == "sleep":
            return await ctx.sleep(timedelta(milliseconds=rest[0]))
        if verb == "receive":
            await ctx.receive("word", timeout=timedelta(milliseconds=rest[0]), default=None)
            return None
        if verb == "send":
            try:
                return await ctx.send(rest[0], "word", rest[1])
            except (NoSuchRun, RunTerminal):
                return None
        if verb == "child":
            try:
                return await ctx.child(program, rest[1], [], id=rest[0])
            except ChildFailed as error:
                return f"child {error.status}"
        if verb == "join":
            return await ctx.join({str(at): partial(_all, plan=part) for at, part in enumerate(rest[0])})
        if verb == "race":
            await ctx.race({str(at): partial(_all, plan=part) for at, part in enumerate(rest[0])})
            return None
        assert verb == "loop", verb
        async for it in ctx.loop(state=[], commit_interval=2, history_every=2, history_keep=1):
            if len(it.state) == len(rest[0]):
                return it.state
            it.state = [*it.state, await _all(it, rest[0][len(it.state)])]

    @workflow
    async def collector(ctx: Context, words: list[str]) -> list[str]:
        for _ in range(5):
            word = await ctx.receive("word", str)
            if word == "stop":
                return words
            words.append(word)
        ctx.continue_as_new(words)

    return [program, collector]


def make_plan(world: World, runs: list[str], depth: int = 0) -> Plan:
    """Return random verbs; `runs` are the ids of top-level runs and collectors."""
    draw = world.random

    def part() -> Plan:
        return [each for each in make_plan(world, runs, depth + 1) if each[0] != "renew"]

    verbs = ["step", "step", "sleep", "receive", "send"]
    if depth < 2:
        verbs += ["child", "join", "race", "loop", "renew"]
    plan: Plan = []
    for _ in range(draw.randint(1, 4)):
        verb = draw.choice(verbs)
        if verb == "step":
            plan.append([verb, world.token(), draw.choice([0, 0, 0, 1, 2]), draw.choice([0, 0, 0.001, 0.02])])
        elif verb in ("sleep", "receive"):
            plan.append([verb, draw.choice([0, 1, 5, 30])])
        elif verb == "send":
            plan.append([verb, draw.choice(runs), world.token()])
        elif verb == "child":
            plan.append([verb, draw.choice([f"child-{world.token()}"] * 5 + COLLECTORS), part()])
        elif verb in ("join", "race", "loop"):
            plan.append([verb, [part() for _ in range(draw.randint(1, 4))]])
        else:
            plan.append([verb])
    return plan


def fits(plan: Plan, result: Any) -> bool:
    """Whether a result is one that the plan may have; None stands for whatever depends on time."""
    plan = [each for each in plan if each[0] != "renew"]
    pairs = zip(plan, result, strict=True)
    return len(plan) == len(result) and all(_fits_one(*each, result=got) for each, got in pairs)


def _fits_one(verb: str, *rest: Any, result: Any) -> bool:
    if verb == "step":
        return bool(result == rest[0])
    if verb == "child":
        return isinstance(result, str) or fits(rest[1], result)
    if verb == "join":
        return all(fits(part, result[str(at)]) for at, part in enumerate(rest[0]))
    if verb == "loop":
        return len(result) == len(rest[0]) and all(map(fits, rest[0], result))
    return result is None
