"""Steps with a condition: skipped while it says not now, asked again later, and no attempt is used up by that."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, NotReady, Retry, RunCancelled, RunFailed, Status, activity, step_context, workflow
from holdfast.bodies.context import StepContext
from holdfast.errors import BadInput, StepSkipped

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class Condition:
    """Answers as it is told, one after the other, then yes; remembers when it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, str]] = []

    def __call__(self, step: StepContext) -> Any:
        self.asked.append((step.attempt, step.step))
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer


def calling(body: Any) -> Any:
    @workflow
    async def caller(ctx: Context) -> Any:
        return await ctx.step(body)

    return caller


async def test_a_step_whose_condition_says_no_is_skipped_and_asked_again(make_engine):
    """B10 False means in half a minute, NotReady says why and when; no attempt is consumed by it."""
    condition = Condition(False, NotReady("offline", 5 * MINUTE))

    @activity(run_when=condition, retry=Retry.never)
    async def upload() -> int:
        return step_context().attempt

    caller = calling(upload)
    engine = await make_engine(caller, start=START)
    told: list[tuple[str, str]] = []
    engine.subscribe(lambda change: told.append((change.type, change.data.get("reason", ""))))
    run = await engine.start(caller)
    await engine.settle()
    (step,) = await run.steps()
    assert (step.status, step.skips, step.attempts) == ("skipped", 1, 0)
    assert step.next_attempt_at == START + timedelta(seconds=30)
    assert await run.status() is Status.SUSPENDED
    assert (await run.describe()).due_at == START + timedelta(seconds=30)
    await engine.advance(timedelta(seconds=30))
    (step,) = await run.steps()
    assert (step.status, step.skips, step.attempts) == ("skipped", 2, 0)
    assert step.next_attempt_at == START + timedelta(seconds=330)
    assert await run.result() == 1
    (step,) = await run.steps()
    assert (step.status, step.skips, step.attempts, step.failures) == ("completed", 2, 1, 0)
    assert condition.asked == [(1, "upload")] * 3
    assert [each for each in told if each[0] == "step.skipped"] == [("step.skipped", ""), ("step.skipped", "offline")]


async def test_a_step_may_be_skipped_without_end(make_engine):
    """B10 There is no limit unless one is set; the run only waits."""
    condition = Condition(*[NotReady("", MINUTE)] * 100)

    @activity(run_when=condition, retry=Retry.never)
    async def upload() -> str:
        return "uploaded"

    caller = calling(upload)
    engine = await make_engine(caller)
    run = await engine.start(caller)
    assert await run.result() == "uploaded"
    assert len(condition.asked) == 101
    (step,) = await run.steps()
    assert (step.skips, step.attempts) == (100, 1)


async def test_too_many_skips_fail_the_step_and_are_a_dead_letter(make_engine):
    """B10 G12 With the last reason; the body never ran. A retry begins to count again."""
    ready: list[int] = []

    @activity(run_when=lambda step: bool(ready) or NotReady("no network", MINUTE), max_skips=2)
    async def upload() -> str:
        return "uploaded"

    caller = calling(upload)
    engine = await make_engine(caller)
    run = await engine.start(caller)
    with pytest.raises(RunFailed) as failed:
        await run.result()
    assert isinstance(failed.value.__cause__, StepSkipped)
    assert "step 'upload' was skipped 3 times, more than max_skips allows: no network" in str(failed.value)
    (letter,) = await engine.dead_letters.list()
    assert (letter.kind, letter.step, letter.run_id) == ("work", "upload", run.id)
    await run.retry()
    await engine.advance(MINUTE)
    (step,) = await run.steps()
    assert step.status == "skipped"
    ready.append(1)
    assert await run.result() == "uploaded"
    assert (await engine.dead_letters.get(letter.id)).outcome == "completed"


async def test_a_workflow_can_catch_that_a_step_was_skipped_too_often(make_engine):
    """B10 Like any failure of a step."""

    @activity(run_when=lambda step: False, max_skips=0)
    async def upload() -> None: ...

    @workflow
    async def work(ctx: Context) -> str:
        try:
            await ctx.step(upload)
        except StepSkipped:
            return "later"
        return "?"

    engine = await make_engine(work)
    assert await engine.execute(work) == "later"
    assert await engine.dead_letters.list() == []


async def test_the_condition_is_asked_before_every_attempt(make_engine):
    """B10 B2 Skips and failures are counted apart, whichever comes first; a skip between two attempts costs neither."""
    condition = Condition(False, True, False, False, True, True)
    ran: list[int] = []

    @activity(run_when=condition, retry=Retry(max_attempts=3))
    async def upload() -> str:
        ran.append(step_context().attempt)
        if len(ran) < 3:
            raise ConnectionError
        return "uploaded"

    caller = calling(upload)
    engine = await make_engine(caller)
    run = await engine.start(caller)
    assert await run.result() == "uploaded"
    assert ran == [1, 2, 3]
    assert [attempt for attempt, _ in condition.asked] == [1, 1, 2, 2, 2, 3]
    (step,) = await run.steps()
    assert (step.attempts, step.failures, step.skips) == (3, 2, 3)


async def test_a_condition_that_raises_is_a_failed_attempt(make_engine):
    """B10 Retried by the policy of the activity; the error says where it came from."""
    condition = Condition(ValueError("no such sensor"), ValueError("no such sensor"))

    @activity(run_when=condition, retry=Retry(max_attempts=2))
    async def upload() -> None: ...

    caller = calling(upload)
    engine = await make_engine(caller)
    run = await engine.start(caller)
    with pytest.raises(RunFailed, match="no such sensor"):
        await run.result()
    (step,) = await run.steps()
    assert (step.attempts, step.failures, step.skips) == (2, 2, 0)
    assert "raised by run_when of activity 'upload'" in (step.error.traceback if step.error else "")


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_skips_are_remembered_across_restarts(make_engine):
    """B10 S0-37 The count goes on, the time of the next check stays, and no attempt is counted as lost."""
    condition = Condition(*[NotReady("offline", HOUR)] * 2)

    @activity(run_when=condition, max_skips=2, retry=Retry.never)
    async def upload() -> int:
        return step_context().attempt

    caller = calling(upload)
    engine = await make_engine(caller)
    await engine.start(caller, id="r")
    for expected in (1, 1, 2):
        await engine.settle()
        (step,) = await engine.get("r").steps()
        assert (step.skips, step.attempts) == (expected, 0)
        await engine.stop()
        engine = await make_engine(caller, clock=engine.jumping)
        await engine.advance(31 * MINUTE)
    assert await engine.get("r").result() == 1


async def test_a_skipped_step_can_be_cancelled(make_engine):
    """B7 B10 Like any wait."""

    @activity(run_when=lambda step: False)
    async def upload() -> None: ...

    caller = calling(upload)
    engine = await make_engine(caller)
    run = await engine.start(caller)
    await engine.settle()
    assert await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    (step,) = await run.steps()
    assert (step.status, step.attempts) == ("cancelled", 0)


async def test_a_compensation_may_be_skipped_too(make_engine):
    """B10 B17 What undoes waits for its condition; then the others follow."""
    condition, log = Condition(False, False), list[str]()

    @activity(run_when=condition)
    async def refund() -> None:
        log.append("refund")

    async def release() -> None:
        log.append("release")

    @workflow
    async def work(ctx: Context) -> None:
        ctx.compensate(release)
        ctx.compensate(refund)
        raise ValueError("no")

    engine = await make_engine(work)
    run = await engine.start(work)
    with pytest.raises(RunFailed):
        await run.result()
    assert log == ["refund", "release"]
    assert len(condition.asked) == 3


async def test_a_skipped_step_lets_others_have_its_key(make_engine):
    """B10 B14 It does not hold an idempotency key while it only waits, whatever wakes its run meanwhile."""
    ran: list[str] = []
    ready: list[int] = []

    @activity(idempotency_key=lambda: "k", run_when=lambda step: step.run_id != "a" or bool(ready))
    async def pay() -> str:
        ran.append(step_context().run_id)
        return f"paid by {step_context().run_id}"

    @workflow
    async def work(ctx: Context) -> str:
        poked = asyncio.ensure_future(ctx.receive("poke"))
        paid = await ctx.step(pay)
        poked.cancel()
        return paid

    engine = await make_engine(work)
    first = await engine.start(work, id="a")
    await engine.settle()
    await first.send("poke")
    await engine.settle()
    second = await engine.start(work, id="b")
    await engine.settle()
    assert ran == ["b"]
    assert await second.result() == "paid by b"
    ready.append(1)
    assert await first.result() == "paid by b"
    assert ran == ["b"]


def test_options_of_conditions_are_checked():
    """B10 A mistake is refused where it is written."""
    with pytest.raises(BadInput, match="run_when of activity 'body' must be a function, not True"):
        activity(run_when=True)(_body)
    for limit in (-1, "3"):
        with pytest.raises(BadInput, match="max_skips of activity 'body' must be a whole number or None"):
            activity(max_skips=limit)(_body)
    with pytest.raises(BadInput, match="retry_in is negative"):
        NotReady("later", timedelta(seconds=-1))


async def _body() -> None: ...


_body.__name__ = "body"
