"""Programs of a world of many runs: sagas that do, undo, publish, wait and fail by plan, and who serves them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

from tests.simulation.many_books import Books
from tests.simulation.world import Plan

from holdfast import Context, NotReady, Retry, activity, step_context, workflow
from holdfast.errors import ChildFailed, QueueFull

COLLECTORS = ["collector-1", "collector-2"]
CLERK = "clerk"
NAMES = ["job", "rare", "word", "news"]
KEYS = ["key-1", "key-2"]
_QUICK = Retry(max_attempts=2, initial_interval=timedelta(milliseconds=2))
_PATIENT = Retry(max_attempts=50, initial_interval=timedelta(milliseconds=2), max_interval=timedelta(milliseconds=5))


def milliseconds(number: float) -> timedelta:
    return timedelta(milliseconds=number)


def make_workflows(books: Books) -> list[Any]:
    """Return saga, collector, clerk and ticked."""

    @activity(retry=_QUICK)
    async def work(token: str, failures: int, pause: float) -> str:
        step = step_context()
        books.begin(step.run_id, token, step.attempt)
        await asyncio.sleep(pause)
        if books.fails(token, failures):
            raise ValueError(token)
        return token

    @activity(retry=_QUICK)
    async def undo(token: str, broken: bool) -> str:
        step = step_context()
        books.begin(step.run_id, f"undo {token}", step.attempt)
        await asyncio.sleep(books.random.choice([0, 0.001, 0.02]))
        if broken:
            raise ValueError(token)
        return token

    @activity(retry=_PATIENT, idempotency_key=lambda key: key)
    async def keyed(key: str) -> str:
        books.enter_key(key)
        try:
            await asyncio.sleep(books.random.choice([0, 0.002, 0.02]))
        finally:
            books.leave_key(key)
        if books.bites("a keyed body", 0.2):
            raise ValueError(key)
        return f"{key}={books.token()}"

    def is_open(step: Any) -> bool | NotReady:
        books.gates[step.run_id, step.step] += 1
        return books.gates[step.run_id, step.step] > 2 or NotReady("closed", milliseconds(3))

    @activity(retry=_QUICK, run_when=is_open)
    async def gated(token: str) -> str:
        return token

    @workflow
    async def saga(ctx: Context, plan: Plan, done: list[Any]) -> list[Any]:
        for at, (verb, *rest) in enumerate(plan):
            if verb == "renew":
                ctx.continue_as_new(plan=plan[at + 1 :], done=done)
            done.append(await _do(ctx, verb, *rest))
        return done

    async def _all(ctx: Context, plan: Plan) -> list[Any]:
        return [await _do(ctx, *each) for each in plan]

    async def _do(ctx: Context, verb: str, *rest: Any) -> Any:
        match verb:
            case "step":
                return await ctx.step(work, *rest)
            case "saga":
                token, failures, broken = rest
                await ctx.step(work, token, failures, 0)
                ctx.compensate(undo, token, broken)
                return token
            case "keyed":
                return (await ctx.step(keyed, *rest)).partition("=")[0]
            case "gated":
                return await ctx.step(gated, *rest)
            case "sleep":
                return await ctx.sleep(milliseconds(*rest))
            case "guard":
                return await _guard(ctx, *rest)
            case "receive":
                names, limit = rest
                await ctx.receive(names, timeout=milliseconds(limit), default=None)
                return None
            case "both":
                first = ctx.receive(["news", "job"], timeout=milliseconds(rest[0]), default=None)
                second = ctx.receive("job", timeout=milliseconds(rest[0]), default=None)
                await second
                await first
                return None
            case "publish":
                return await _publish(ctx, *rest)
            case "note":
                ctx.set_attributes(mark=rest[0])
                ctx.evidence("note", rest[0])
                return rest[0]
            case "child" | "spawn":
                return await _child(ctx, verb, *rest)
            case "join":
                return await ctx.join({str(at): partial(_all, plan=part) for at, part in enumerate(rest[0])})
            case "race":
                await ctx.race({str(at): partial(_all, plan=part) for at, part in enumerate(rest[0])})
                return None
        assert verb == "loop", verb
        async for it in ctx.loop(state=[], commit_interval=2, history_every=2, history_keep=1):
            if len(it.state) == len(rest[0]):
                return it.state
            it.state = [*it.state, await _all(it, rest[0][len(it.state)])]

    async def _guard(ctx: Context, token: str, limit: float) -> str:
        try:
            await ctx.sleep(milliseconds(limit))
        except asyncio.CancelledError:
            await ctx.step(work, f"{token} cleanup", 0, 0.001)
            await ctx.sleep(milliseconds(2))
            raise
        return token

    async def _publish(ctx: Context, name: str, token: str, once: bool) -> None:
        try:
            await ctx.publish(name, token, id=token if once else None)
        except QueueFull:
            return

    async def _child(ctx: Context, verb: str, id: str | None, follows: bool, plan: Plan) -> Any:
        child = ctx.child(saga, plan, [], id=id, cancel_with_parent=follows)
        if verb == "spawn":
            return None
        try:
            return await child
        except ChildFailed as error:
            return f"child {error.status}"

    @workflow
    async def collector(ctx: Context, words: int) -> int:
        for _ in range(5):
            name, _word = await ctx.receive([*NAMES, "stop"])
            if name == "stop":
                return words
            words += 1
        ctx.continue_as_new(words)

    @workflow
    async def clerk(ctx: Context, answered: int) -> int:
        for _ in range(5):
            request = await ctx.receive_request("ask", str)
            if request.payload == "stop":
                return answered
            answered += 1
            ctx.reply(request, f"re {request.payload}")
        ctx.continue_as_new(answered)

    @workflow
    async def ticked(ctx: Context) -> str:
        return await ctx.step(work, ctx.run_id, 0, 0)

    return [saga, collector, clerk, ticked]


def make_plan(books: Books, depth: int = 0) -> Plan:
    """Return random verbs."""
    draw = books.random

    def part() -> Plan:
        return [each for each in make_plan(books, depth + 1) if each[0] != "renew"]

    verbs = [
        "step",
        "saga",
        "saga",
        "keyed",
        "gated",
        "sleep",
        "guard",
        "receive",
        "both",
        "publish",
        "publish",
        "note",
        "doom",
    ]
    if depth < 2:
        verbs += ["child", "spawn", "join", "join", "race", "loop", "loop", "renew", "renew"]
    plan: Plan = []
    for _ in range(draw.randint(1, 5 if depth == 0 else 3)):
        verb = draw.choice(verbs)
        match verb:
            case "step":
                plan.append([verb, books.token(), draw.choice([0, 0, 1]), draw.choice([0, 0, 0.001, 0.02])])
            case "doom":  # fails its run, once or twice
                if draw.random() < 0.5:
                    plan.append(["step", books.token(), draw.choice([2, 2, 3, 4]), 0])
            case "saga":
                plan.append([verb, books.token(), draw.choice([0, 0, 0, 1]), draw.random() < 0.2])
            case "keyed":
                plan.append([verb, draw.choice(KEYS)])
            case "gated" | "note":
                plan.append([verb, books.token()])
            case "guard":
                plan.append([verb, books.token(), draw.choice([1, 20, 60])])
            case "sleep" | "both":
                plan.append([verb, draw.choice([0, 1, 5, 30])])
            case "receive":
                plan.append([verb, draw.sample(NAMES, draw.randint(1, 3)), draw.choice([0, 0, 1, 5, 30, 60])])
            case "publish":
                plan.append([verb, draw.choice(NAMES), books.token(), draw.random() < 0.5])
            case "child" | "spawn":
                id = f"kid-{books.token()}" if draw.random() < 0.2 else None
                plan.append([verb, id, draw.random() < 0.5, make_plan(books, depth + 1)])
            case "join" | "race" | "loop":
                plan.append([verb, [part() for _ in range(draw.randint(1, 4))]])
            case _:
                plan.append([verb])
    return plan


def fits(plan: Plan, result: Any) -> bool:
    """Whether a result is one that the plan may have; None stands for whatever depends on time."""
    plan = [each for each in plan if each[0] != "renew"]
    return len(plan) == len(result) and all(
        _fits_one(*each, result=got) for each, got in zip(plan, result, strict=True)
    )


def _fits_one(verb: str, *rest: Any, result: Any) -> bool:
    if verb in ("step", "saga", "keyed", "gated", "guard", "note"):
        return bool(result == rest[0])
    if verb == "child":
        return isinstance(result, str) or fits(rest[2], result)
    if verb == "join":
        return all(fits(part, result[str(at)]) for at, part in enumerate(rest[0]))
    if verb == "loop":
        return len(result) == len(rest[0]) and all(map(fits, rest[0], result))
    return result is None
