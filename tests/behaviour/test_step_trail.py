"""The trail of all steps: one chained item for each end of a step, which no loop and no new life shortens."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import pytest
from tests.support.acts_cases import Flaky

from holdfast import Context, Retry, RunFailed, activity, workflow
from holdfast.declarative import graph, sequence, step
from holdfast.errors import BadInput
from holdfast.ops.retention import Retention

DAY = timedelta(days=1)


async def double(number: int) -> int:
    return number * 2


@workflow(step_trail=True)
async def trimmed(ctx: Context, number: int) -> int:
    """A loop that forgets its iterations, and a new life after it."""
    async for turn in ctx.loop("laps", state=0, commit_interval=1, history_every=1, history_keep=1):
        await turn.step(double, turn.state)
        if turn.state == 3:
            break
        turn.state += 1
    if number:
        ctx.continue_as_new(number - 1)
    return number


async def trail(engine: Any, run_id: str) -> list[tuple[str, str]]:
    return [(item.data["step"], item.kind) for item in await engine.audit.evidence(run_id)]


async def test_the_trail_has_every_step_though_the_history_was_trimmed_and_renewed(make_engine):
    """B31 S3-19 S4-5 S3-17 In order, chained, with the attempt and a hash of the result."""
    engine = await make_engine(trimmed)
    run = await engine.start(trimmed, 1)
    assert await run.result() == 0
    laps = [(f"laps/~{number}/double", "step.completed") for number in range(4)]
    assert await trail(engine, run.id) == laps * 2
    assert len([entry for entry in await run.history() if entry.kind == "step completed"]) < 4
    last = (await engine.audit.evidence(run.id))[-1]
    assert last.data == {
        "step": "laps/~3/double", "attempt": 1, "result": f"sha256:{hashlib.sha256(b'6').hexdigest()}",
    }  # fmt: skip
    verdict = await engine.audit.verify_evidence(run.id)
    assert (verdict.ok, verdict.checked) == (True, 8)


async def test_failures_and_compensations_are_on_the_trail_and_reopening_adds_to_it(make_engine):
    """B31 S3-19 S4-5 What was done again is there twice."""
    body = Flaky("ship")

    async def undo() -> None: ...

    @activity(retry=Retry(max_attempts=2))
    async def ship() -> str:
        return await body.body("ship")

    @workflow
    async def order(ctx: Context) -> str:
        await ctx.step(double, 1)
        ctx.compensate(undo)
        return await ctx.step(ship)

    engine = await make_engine(order, step_trail=True)
    run = await engine.start(order)
    with pytest.raises(RunFailed):
        await run.result()
    failed = [("double", "step.completed"), ("ship", "step.failed"), ("undo#0/undo", "step.completed")]
    assert await trail(engine, run.id) == failed
    failure = (await engine.audit.evidence(run.id))[1].data
    assert (failure["attempt"], failure["error"]["type"]) == (2, "ValueError")
    body.failing.clear()
    await run.retry()
    await run.result()
    assert await trail(engine, run.id) == [*failed, ("double", "step.completed"), ("ship", "step.completed")]


async def test_without_being_asked_for_there_is_no_trail(make_engine):
    """B31 Off by default."""

    @workflow
    async def plain(ctx: Context) -> int:
        return await ctx.step(double, 2)

    engine = await make_engine(plain)
    run = await engine.start(plain)
    await run.result()
    assert await engine.audit.evidence(run.id) == []


@pytest.mark.parametrize("mode", ["memory"])
async def test_declared_workflows_have_a_trail_too(make_engine):
    """B31 S3-19 Of a sequence and of a graph."""

    async def first(state: dict[str, Any]) -> dict[str, Any]:
        return {"a": 1}

    async def fetch(input: int) -> int:
        return input

    listed = sequence("listed", [step(first)], step_trail=True)
    drawn = graph("drawn", {fetch: []}, step_trail=True)
    engine = await make_engine(listed, drawn)
    runs = [await engine.start(listed, {}), await engine.start(drawn, 1)]
    for run in runs:
        await run.result()
    assert [await trail(engine, run.id) for run in runs] == [
        [("first", "step.completed")], [("fetch", "step.completed")],
    ]  # fmt: skip


async def test_only_a_person_purges_the_trail_and_that_is_on_record(make_engine):
    """B31 S4-5 Retention leaves it; the audit trail says who purged it and why."""
    engine = await make_engine(trimmed, retention=Retention(completed=DAY))
    run = await engine.start(trimmed, 0)
    await run.result()
    await engine.advance(2 * DAY)
    await engine.sweep()
    assert await engine.find(run.id) is None
    assert len(await trail(engine, run.id)) == 4
    assert await engine.audit.purge_evidence(run.id, by="kim", reason="asked for by the customer") == 4
    assert await trail(engine, run.id) == []
    assert (await engine.audit.verify_evidence(run.id)).ok
    [record] = await engine.audit.records(target=run.id)
    assert (record.actor, record.action, record.detail) == (
        "kim", "evidence.purge", {"reason": "asked for by the customer"},
    )  # fmt: skip


async def test_the_trail_of_an_open_run_is_not_purged(make_engine):
    """B31 It goes on growing."""

    @workflow(step_trail=True)
    async def waits(ctx: Context) -> None:
        await ctx.step(double, 1)
        await ctx.receive("never")

    engine = await make_engine(waits)
    run = await engine.start(waits)
    await engine.settle()
    with pytest.raises(BadInput, match="suspended"):
        await engine.audit.purge_evidence(run.id, by="kim", reason="?")
    assert len(await trail(engine, run.id)) == 1
