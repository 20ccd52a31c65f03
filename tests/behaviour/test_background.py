"""Steps in the background through an engine: the run ends after them, and their failure is a dead letter."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.acts_cases import Gate
from tests.support.waiting import eventually

from holdfast import Context, Retry, RunCancelled, RunFailed, Status, activity, workflow


@activity(retry=Retry(max_attempts=2))
async def refuse(order: int) -> None:
    raise ConnectionError(f"no mail for {order}")


async def work(order: int) -> int:
    return order


async def test_a_run_ends_after_its_background_and_its_result_is_that_of_its_code(make_engine):
    """B37 Until then it is running."""
    gate = Gate()

    @workflow
    async def orders(ctx: Context) -> int:
        ctx.background(gate, "mail")
        return await ctx.step(work, 7)

    engine = await make_engine(orders)
    run = await engine.start(orders)
    await gate.entered("mail")
    await eventually(lambda: _completed(run, "work"))
    assert (await run.status()) is Status.RUNNING
    gate.open("mail")
    assert await run.result() == 7
    assert {step.name: step.status for step in await run.steps()} == {"gate": "completed", "work": "completed"}


async def _completed(run, name: str) -> bool:
    return any(step.name == name and step.status == "completed" for step in await run.steps())


async def test_a_failure_in_the_background_is_a_dead_letter_and_does_not_fail_the_run(make_engine):
    """B37 It is retried by its policy first, after the code has returned, too."""

    @workflow
    async def orders(ctx: Context) -> str:
        ctx.background(refuse, 7)
        return "ordered"

    engine = await make_engine(orders)
    run = await engine.start(orders, id="order-7")
    assert await run.result() == "ordered"
    [letter] = await engine.dead_letters.list()
    assert (letter.run_id, letter.step, letter.attempts) == ("order-7", "refuse", 2)
    assert "no mail for 7" in str(letter.error)


@pytest.mark.parametrize("mode", ["memory"])
async def test_the_letter_of_a_background_step_stays_open_until_that_step_is_done_again(make_engine):
    """B37 B8 B33 A rerun from another step leaves its failure as it is, and so its letter."""
    closed = [True]

    @activity(retry=Retry.never)
    async def mail(order: int) -> None:
        if closed:
            raise ConnectionError("no mail")

    @workflow
    async def orders(ctx: Context) -> int:
        ctx.background(mail, 7)
        return await ctx.step(work, 7)

    engine = await make_engine(orders)
    run = await engine.start(orders)
    await run.result()
    await run.rerun(from_step="work")
    await run.result()
    [letter] = await engine.dead_letters.list()
    assert (letter.step, letter.outcome, letter.acknowledged_at) == ("mail", "", None)
    closed.clear()
    await run.rerun(from_step="mail")
    await run.result()
    [letter] = await engine.dead_letters.list()
    assert letter.outcome == "completed"
    assert await engine.dead_letters.list(acknowledged=False) == []


async def test_a_run_that_fails_or_is_cancelled_with_steps_in_the_background(make_engine):
    """B37 B7 A failure waits for them; a cancel stops them."""
    gate = Gate()

    @workflow
    async def fails(ctx: Context) -> None:
        ctx.background(gate, "failing")
        raise ValueError("no")

    @workflow
    async def waits(ctx: Context) -> None:
        ctx.background(gate, "waiting")
        await ctx.sleep(timedelta(days=1))

    engine = await make_engine(fails, waits)
    run = await engine.start(fails)
    await gate.entered("failing")
    assert (await run.status()) is Status.RUNNING
    gate.open("failing")
    with pytest.raises(RunFailed, match="no"):
        await run.result()
    run = await engine.start(waits)
    await gate.entered("waiting")
    assert await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()


@pytest.mark.parametrize("mode", ["file"])
async def test_a_background_step_is_finished_by_the_next_worker(make_engine):
    """B37 G1 The code has returned already; what it returned comes out all the same."""
    gate = Gate()

    @workflow
    async def orders(ctx: Context) -> str:
        ctx.background(gate, "mail")
        return "ordered"

    engine = await make_engine(orders)
    run = await engine.start(orders, id="order-7")
    await gate.entered("mail")
    await engine.stop()
    gate.open("mail")
    engine = await make_engine(orders)
    assert await engine.get(run.id).result() == "ordered"
    assert gate.begun == ["mail", "mail"]
