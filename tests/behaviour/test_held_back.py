"""Why flow control holds back a run or a step, as data; and what is told when operators act on limits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.support.limit_cases import START, Service, calling
from tests.support.waiting import eventually

from holdfast import Change, Context, Retry, workflow
from holdfast.errors import NoSuchRun, RetryAfter
from holdfast.limits import Limit

MINUTE = timedelta(minutes=1)


@pytest.fixture
def service() -> Service:
    return Service()


async def reasons(engine: Any, run: Any) -> list[tuple[str, str, str]]:
    """Return the code, what holds it back, and the step, of each reason."""
    return [(each.code, f"{each.kind} {each.name}", each.step) for each in await engine.limits.why(run.id)]


async def test_a_step_in_line_waits_for_a_limit_with_and_without_a_queue(make_engine, service):
    """S4-19 S2-39"""
    plain, far = calling(service.stay), calling(service.stay, queue="gpu")
    far.name = "far"
    service.engine = engine = await make_engine(
        plain, far, limits=[Limit(name="service", at_once=1)], queues=["default", "gpu"]
    )
    inside = await engine.start(plain, 1)
    await eventually(lambda: service.inside == 1)
    waits = [await engine.start(plain, 2), await engine.start(far, 3)]

    async def both() -> bool:
        return [await reasons(engine, run) for run in waits] == [[("waiting.limit", "limit service", "call")]] * 2

    await eventually(both)
    assert await reasons(engine, inside) == []
    await engine.limits.pause("service")
    assert await reasons(engine, waits[0]) == [("waiting.paused", "limit service", "call")]
    await engine.limits.resume("service")
    service.go.set()
    for run in (inside, *waits):
        await run.result()
    assert await reasons(engine, waits[0]) == []


async def test_a_rate_and_what_a_service_said_tell_until_when(make_engine, service):
    """S4-19"""
    caller = calling(service.call, retry=Retry.never)
    limit = Limit(name="service", rate=1, per=MINUTE)
    service.engine = engine = await make_engine(caller, start=START, limits=[limit])
    await engine.execute(caller, 0)
    run = await engine.start(caller, 1)
    await engine.settle()
    [reason] = await engine.limits.why(run.id)
    assert (reason.code, reason.until) == ("waiting.rate", START + MINUTE)
    await run.result()
    held = calling(service.call, limit="other")
    held.name = "held"
    service.answers[3] = RetryAfter(MINUTE, "429")
    service.engine = other = await make_engine(
        held, limits=[Limit(name="other")], clock=engine.jumping, database=":memory:"
    )
    told = await other.start(held, 1)
    await other.settle()
    behind = await other.start(held, 2)
    await other.settle()
    [reason] = await other.limits.why(behind.id)
    assert reason.code == "waiting.rate"
    assert reason.until is not None
    for each in (told, behind):
        await each.result()


async def test_an_open_circuit_is_a_reason_of_its_own(make_engine, service):
    """S4-19"""
    caller = calling(service.call, retry=Retry(max_attempts=9, initial_interval=timedelta(seconds=1)))
    limit = Limit(name="service", trip_after=1, cool_down=MINUTE)
    service.answers[1] = ConnectionError("down")
    service.engine = engine = await make_engine(caller, start=START, limits=[limit])
    first = await engine.start(caller, 1)
    await engine.settle()
    second = await engine.start(caller, 2)
    await engine.settle()
    [reason] = await engine.limits.why(second.id)
    assert (reason.code, reason.until) == ("waiting.circuit", START + MINUTE)
    for run in (first, second):
        await run.result()


async def test_a_run_that_is_not_admitted_says_so(make_engine):
    """S2-39"""

    @workflow(at_once=1)
    async def one(ctx: Context) -> None:
        await ctx.receive("go")

    @workflow(key=lambda page: page, debounce=MINUTE)
    async def index(ctx: Context, page: str) -> None:
        pass

    engine = await make_engine(one, index, start=START)
    first = await engine.start(one)
    await engine.settle()
    second = await engine.start(one)
    draft = await engine.start(index, "home")
    await engine.settle()
    assert await reasons(engine, second) == [("pending.admission", "workflow one", "")]
    [reason] = await engine.limits.why(draft.id)
    assert (reason.code, reason.key, reason.until) == ("debounced", "home", START + MINUTE)
    await engine.flow.pause(workflow=one)
    assert await reasons(engine, first) == [("waiting.paused", "workflow one", "")]
    assert (await reasons(engine, second))[0] == ("waiting.paused", "workflow one", "")
    await engine.flow.resume(workflow=one)
    for run in (first, second):
        await run.send("go")
        await run.result()
    with pytest.raises(NoSuchRun):
        await engine.limits.why("none")


async def test_what_operators_do_to_limits_is_told_as_changes(make_engine, service):
    """S2-39"""
    told: list[Change] = []
    caller = calling(service.call)
    service.engine = engine = await make_engine(
        caller, start=START, limits=[Limit(name="service", at_once=1)], on_change=[told.append]
    )
    await engine.limits.pause("service", reason="down")
    await engine.limits.pause("service")
    await engine.limits.resume("service")
    await engine.limits.override("service", Limit(name="service", at_once=3))
    await engine.limits.override("service", None)
    limits = [(change.type, change.data) for change in told if change.type.startswith("limit.")]
    named = {"limit": "service"}
    assert limits == [
        ("limit.paused", {**named, "reason": "down"}),
        ("limit.resumed", named),
        ("limit.overridden", named),
        ("limit.restored", named),
    ]
