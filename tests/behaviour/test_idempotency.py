"""Idempotency keys: an effect is brought about by one step at a time, and its result handed to all who ask for it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.support.paths import SCRIPTS
from tests.support.waiting import LONG, eventually

from holdfast import Context, Retry, RunBlocked, RunCancelled, RunFailed, Status, activity, step_context, workflow
from holdfast.contract.operations import Committed, Outcome
from holdfast.errors import BadInput, KeyConflict
from holdfast.replay import entry as entries

HOUR = timedelta(hours=1)
HOLDER = SCRIPTS / "key_holder.py"


class Till:
    """A keyed effect that can be held up: pays, once the gate is open."""

    def __init__(self, **options: Any) -> None:
        self.gate = asyncio.Event()
        self.paid: list[str] = []
        till = self

        async def pay(order: int) -> str:
            till.paid.append(step_context().run_id)
            await till.gate.wait()
            return f"receipt {order}"

        self.pay = pay
        self.activity = activity(idempotency_key=lambda order: f"order {order}", **options)(pay)
        body = self.activity

        @workflow
        async def buy(ctx: Context, order: int) -> str:
            return await ctx.step(body, order)

        self.buy = buy


# Hits and misses.


async def test_a_result_is_kept_for_whoever_asks_next(make_engine):
    """S3-9 S3-10 S4-16 S4-31 B14 A hit runs nothing; another key, or the same of another activity, is a miss."""
    ran: list[str] = []

    def key(order: int) -> str:
        return f"order {order}"

    @activity(idempotency_key=key)
    async def pay(order: int) -> str:
        ran.append(f"pay {step_context().idempotency_key}")
        return f"receipt {len(ran)}"

    @activity(idempotency_key=key)
    async def pack(order: int) -> str:
        ran.append("pack")
        return "box"

    @workflow
    async def buy(ctx: Context, order: int) -> list[str]:
        return [await ctx.step(pay, order), await ctx.step("again", pay, order), await ctx.step(pack, order)]

    engine = await make_engine(buy)
    assert await engine.execute(buy, 7) == ["receipt 1", "receipt 1", "box"]
    run = await engine.start(buy, 7)
    assert await run.result() == ["receipt 1", "receipt 1", "box"]
    assert ran == ["pay order 7", "pack"]
    assert [(step.status, step.attempts) for step in await run.steps()] == [("completed", 1)] * 3
    assert await engine.execute(buy, 8) == ["receipt 3", "receipt 3", "box"]


async def test_none_is_a_result_like_any_other(make_engine):
    """B14 S3-9 A body that returns nothing is not run twice either."""
    ran: list[int] = []

    @activity(idempotency_key=lambda: "k")
    async def tell() -> None:
        ran.append(1)

    @workflow
    async def work(ctx: Context) -> str:
        return repr(await ctx.step(tell))

    engine = await make_engine(work)
    assert [await engine.execute(work) for _ in range(3)] == ["None"] * 3
    assert ran == [1]


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_a_result_is_found_after_a_restart(make_engine):
    """S4-28 S3-9 What one engine did, the next does not repeat."""
    till = Till()
    till.gate.set()
    engine = await make_engine(till.buy)
    assert await engine.execute(till.buy, 7) == "receipt 7"
    await engine.stop()
    engine = await make_engine(till.buy, clock=engine.jumping)
    assert await engine.execute(till.buy, 7) == "receipt 7"
    assert len(till.paid) == 1


async def test_a_result_is_kept_for_its_time_from_success_on(make_engine):
    """S3-10 B14 Success came two hours after the first attempt; from then on it counts for a day and no longer."""
    ran: list[int] = []

    @activity(idempotency_key=lambda: "k", retry=Retry(max_attempts=2, initial_interval=2 * HOUR))
    async def pay() -> int:
        ran.append(1)
        if len(ran) == 1:
            raise ConnectionError
        return len(ran)

    @workflow
    async def work(ctx: Context) -> int:
        return await ctx.step(pay)

    engine = await make_engine(work)
    assert await engine.execute(work) == 2
    await engine.advance(23 * HOUR)  # 25 hours after the first attempt
    assert await engine.execute(work) == 2
    await engine.advance(2 * HOUR)  # a hit does not prolong it
    assert await engine.execute(work) == 3


async def test_the_key_of_a_step_that_failed_is_free(make_engine):
    """B14 A failure is not kept: the next one tries for itself."""
    fail = [True]

    @activity(idempotency_key=lambda: "k", retry=Retry.never)
    async def pay() -> str:
        if fail:
            raise ValueError("no")
        return "paid"

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.step(pay)

    engine = await make_engine(work)
    run = await engine.start(work)
    with pytest.raises(RunFailed):
        await run.result()
    fail.clear()
    assert await engine.execute(work) == "paid"
    await run.retry()
    assert await run.result() == "paid"


# Single flight.


async def test_many_runs_want_one_effect_and_it_happens_once(make_engine):
    """B14 S3-9 One holds the key, the others wait without an attempt under way, and all get its result."""
    till = Till()
    engine = await make_engine(till.buy)
    runs = [await engine.start(till.buy, 7) for _ in range(20)]
    await eventually(lambda: len(till.paid) == 1)
    async with asyncio.timeout(LONG):
        while [(await run.describe()).waiting_for for run in runs].count("key") < 19:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.001)
    assert [await run.status() for run in runs].count(Status.SUSPENDED) == 19
    till.gate.set()
    assert await asyncio.gather(*(run.result() for run in runs)) == ["receipt 7"] * 20
    assert len(till.paid) == 1


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_one_flight_across_two_engines(make_engine):
    """B14 S0-60 Runs of two engines on one file: one body, all results; each order has its own flight."""
    till = Till()
    first = await make_engine(till.buy)
    second = await make_engine(till.buy, clock=first.jumping)
    engines = [first, second]
    runs = [await engines[n % 2].start(till.buy, n % 3) for n in range(18)]
    await eventually(lambda: len(till.paid) == 3)
    await asyncio.sleep(0.05)
    till.gate.set()
    results = await asyncio.wait_for(asyncio.gather(*(first.get(run.id).result() for run in runs)), LONG)
    assert results == [f"receipt {n % 3}" for n in range(18)]
    assert len(till.paid) == 3


async def test_a_step_waits_for_another_of_its_own_run(make_engine):
    """B14 Two steps of one run, called at once with one key."""
    till = Till()

    @workflow
    async def twice(ctx: Context) -> list[str]:
        return list(await asyncio.gather(ctx.step("a", till.activity, 7), ctx.step("b", till.activity, 7)))

    engine = await make_engine(twice)
    run = await engine.start(twice)
    await eventually(lambda: len(till.paid) == 1)
    till.gate.set()
    assert await asyncio.wait_for(run.result(), LONG) == ["receipt 7"] * 2
    assert len(till.paid) == 1


async def test_a_step_waits_for_another_of_its_own_run_beside_a_long_one(make_engine):
    """B14 The second goes on when the first has ended, though a third step takes for ever."""
    till, done, release = Till(), asyncio.Event(), asyncio.Event()

    async def tell() -> None:
        done.set()

    async def long() -> None:
        await release.wait()

    @workflow
    async def work(ctx: Context) -> None:
        async def second() -> None:
            await ctx.step("b", till.activity, 7)
            await ctx.step(tell)

        await asyncio.gather(ctx.step("a", till.activity, 7), second(), ctx.step(long))

    engine = await make_engine(work)
    run = await engine.start(work)
    await eventually(lambda: len(till.paid) == 1)
    till.gate.set()
    try:
        await asyncio.wait_for(done.wait(), LONG)
    finally:
        release.set()
    await run.result()


@pytest.mark.parametrize("mode", ["file", "evict", "postgres"])
async def test_a_key_may_be_said_to_be_free_before_it_is_known_to_be_held(make_engine):
    """B14 The answer to a commit comes late, after another engine has given the key up: its step tries once more."""
    till = Till()

    async def look() -> None:
        pass

    @workflow
    async def visit(ctx: Context, order: int) -> str:
        await ctx.step(look)
        return await ctx.step(till.activity, order)

    holder = await make_engine(till.buy)
    first = await holder.start(till.buy, 7)
    await eventually(lambda: till.paid)
    engine = await make_engine(visit, clock=holder.jumping)
    late = engine.faults.hold(moment="after", only=lambda outcomes: any(_held(outcome) for outcome in outcomes))
    told = engine.faults.call(lambda: None, at="inboxes", moment="after")
    second = await engine.start(visit, 7)
    await asyncio.wait_for(late.happened(), LONG)
    till.gate.set()
    assert await first.result() == "receipt 7"
    await asyncio.wait_for(told.happened(), LONG)
    await eventually(lambda: engine._working().committer.waiting == 2)  # the commit that deletes that row waits behind
    late.release()
    assert await asyncio.wait_for(second.result(), LONG) == "receipt 7"
    assert [step.attempts for step in await second.steps()] == [1, 2]
    assert len(till.paid) == 1


def _held(outcome: Outcome) -> bool:
    return isinstance(outcome, Committed) and any(answer.outcome == "held" for answer in outcome.keys.values())


async def test_those_who_wait_go_on_waiting_while_the_holder_waits_for_its_retry(make_engine):
    """B14 A failed attempt frees nothing while there are more to come."""
    ran: list[str] = []

    @activity(idempotency_key=lambda: "k", retry=Retry(max_attempts=2, initial_interval=HOUR))
    async def pay() -> str:
        ran.append(step_context().run_id)
        if len(ran) == 1:
            raise ConnectionError
        return "paid"

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.step(pay)

    engine = await make_engine(work)
    holder = await engine.start(work, id="holder")
    await engine.settle()
    waiter = await engine.start(work, id="waiter")
    await engine.settle()
    assert ran == ["holder"]
    assert await waiter.result() == await holder.result() == "paid"
    assert ran == ["holder", "holder"]


@pytest.mark.parametrize("how", ["failed", "cancelled", "terminated", "blocked", "paused", "gave up", "renewed"])
async def test_a_key_is_freed_by_whatever_ends_its_holder(make_engine, how):
    """B14 S0-35 S4-25 The next one takes it and acts; what the holder does later finds that result."""
    ran: list[str] = []

    @activity(idempotency_key=lambda: "k", retry=Retry(max_attempts=2, initial_interval=HOUR))
    async def pay() -> str:
        run_id = step_context().run_id
        ran.append(run_id)
        if run_id == "holder" and len(ran) < 3:
            raise ConnectionError("no answer")
        return "paid"

    @workflow
    async def work(ctx: Context, first: bool) -> str:
        if ctx.run_id == "holder" and not first:
            await ctx.sleep(HOUR)
        try:
            async with asyncio.timeout(60 if first and how in ("gave up", "renewed", "blocked") else None):
                return await ctx.step(pay)
        except TimeoutError:
            if how == "renewed":
                ctx.continue_as_new(False)
            elif how == "blocked":
                await asyncio.get_running_loop().create_future()  # nothing will ever resolve it
            await ctx.receive("never")
            return "gave up"

    engine = await make_engine(work)
    holder = await engine.start(work, True, id="holder")
    await engine.settle()
    waiter = await engine.start(work, False, id="waiter")
    await engine.settle()
    assert ran == ["holder"]
    if how == "failed":
        await engine.advance(HOUR)
        assert await holder.status() is Status.FAILED
    elif how == "paused":
        assert await holder.pause()
    elif how in ("cancelled", "terminated"):
        assert await (holder.cancel() if how == "cancelled" else holder.terminate())
    else:
        await engine.advance(timedelta(seconds=61))
    await engine.settle()
    async with asyncio.timeout(LONG):
        assert await waiter.result() == "paid"
    if how == "blocked":
        assert await holder.status() is Status.BLOCKED
    if how == "paused":
        assert await holder.resume()
    if how in ("paused", "renewed"):
        assert await holder.result() == "paid"
    assert [run_id for run_id in ran if run_id != "holder"] == [waiter.id]


async def test_one_of_those_who_wait_may_be_cancelled(make_engine):
    """B14 It waits no more; the holder and the others are not concerned."""
    till = Till()
    engine = await make_engine(till.buy)
    holder, second, third = [await engine.start(till.buy, 7, id=name) for name in ("a", "b", "c")]
    await eventually(lambda: till.paid == ["a"])
    assert await second.cancel()
    with pytest.raises(RunCancelled):
        await second.result()
    till.gate.set()
    assert await holder.result() == await third.result() == "receipt 7"
    assert till.paid == ["a"]


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_the_holder_is_killed_while_another_engine_waits(make_engine, tmp_path):
    """B14 S0-37 S4-28 Whoever takes its run over holds the key from then on, runs the body again, and both have it."""
    ran: list[str] = []

    @activity(name="seize", idempotency_key=lambda: "k")
    async def seize() -> str:
        ran.append(f"{step_context().run_id} {step_context().attempt}")
        return "seized"

    @workflow(name="hold")
    async def hold(ctx: Context) -> str:
        return await ctx.step(seize)

    engine = await make_engine(hold)
    command = [sys.executable, str(HOLDER), str(tmp_path / "test.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "holding\n"
        waiter = await engine.start(hold, id="waiter")
        await engine.settle()
        assert (await waiter.describe()).waiting_for == "key"
        os.kill(process.pid, signal.SIGKILL)
    assert await asyncio.wait_for(waiter.result(), LONG) == "seized"
    assert await asyncio.wait_for(engine.get("holder").result(), LONG) == "seized"
    assert ran == ["holder 2"]


# Other arguments.


async def test_a_key_with_other_arguments_is_refused(make_engine):
    """B14 While it is held and after success; it fails at once, says why, can be caught, and harms nobody else."""
    gate, ran = asyncio.Event(), list[int]()

    @activity(idempotency_key=lambda order, cents: f"order {order}", retry=Retry(max_attempts=5))
    async def pay(order: int, cents: int) -> int:
        ran.append(cents)
        await gate.wait()
        return cents

    @workflow
    async def buy(ctx: Context, cents: int) -> str:
        try:
            return f"paid {await ctx.step(pay, 7, cents)}"
        except KeyConflict as conflict:
            return str(conflict)

    engine = await make_engine(buy)
    first = await engine.start(buy, 100)
    await eventually(lambda: ran == [100])
    refused = "step 'pay': its idempotency key was used with other arguments"
    assert await engine.execute(buy, 200) == refused
    gate.set()
    assert await first.result() == "paid 100"
    assert await engine.execute(buy, 200) == refused
    assert await engine.execute(buy, 100) == "paid 100"
    await engine.advance(25 * HOUR)
    assert await engine.execute(buy, 200) == "paid 200"
    assert ran == [100, 200]


# Bodies that come back late.


async def test_the_retry_of_a_step_that_timed_out_finds_what_the_first_attempt_achieved(make_engine):
    """S3-25 S4-16 B14 The thread went on after its timeout and finished: its result counts, nothing is done twice."""
    release, ran = threading.Event(), list[int]()
    slow = timedelta(seconds=1)  # long enough for the thread to begin

    @activity(idempotency_key=lambda: "k", timeout=slow, retry=Retry(max_attempts=2, initial_interval=HOUR))
    def pay() -> str:
        ran.append(step_context().attempt)
        release.wait(LONG)
        return f"paid by attempt {step_context().attempt}"

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.step(pay)

    engine = await make_engine(work)
    run, other = await engine.start(work), await engine.start(work)
    await eventually(lambda: bool(engine.abandoned))
    await engine.settle()
    assert ran == [1]
    release.set()
    await eventually(lambda: not engine.abandoned)
    await engine.settle()
    assert await other.result() == "paid by attempt 1"
    assert await run.result() == "paid by attempt 1"
    assert ran == [1]
    assert [(step.attempts, step.failures) for step in await run.steps()] == [(2, 1)]


async def test_a_late_result_that_comes_while_the_retry_runs_is_not_mixed_up(make_engine):
    """S3-25 B5 The step gets the result of its second attempt; what is kept under the key is the first that came."""
    release, second, ran = threading.Event(), threading.Event(), list[int]()

    @activity(idempotency_key=lambda: "k", timeout=timedelta(seconds=3), retry=Retry(max_attempts=2))
    def pay() -> str:
        attempt = step_context().attempt
        ran.append(attempt)
        (release if attempt == 1 else second).wait(LONG)
        return f"attempt {attempt}"

    @workflow
    async def work(ctx: Context, patience: bool) -> str:
        return await ctx.step(pay.options(timeout=HOUR) if patience else pay)

    engine = await make_engine(work)
    run = await engine.start(work, False)
    result = asyncio.ensure_future(run.result())
    await eventually(lambda: ran == [1, 2])
    release.set()
    await eventually(lambda: not engine.abandoned)
    second.set()
    assert await result == "attempt 2"
    assert await engine.execute(work, True) == "attempt 1"


# Keys that are wrong.


async def test_a_key_function_that_raises_fails_the_step_and_says_so(make_engine):
    """B14 Retried by the policy like the body; nobody's key is touched."""

    @activity(idempotency_key=lambda order: order["id"], retry=Retry(max_attempts=2))
    async def pay(order: dict[str, int]) -> None: ...

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(pay, {})

    engine = await make_engine(work)
    run = await engine.start(work)
    with pytest.raises(RunFailed) as failed:
        await run.result()
    assert isinstance(failed.value.__cause__, KeyError)
    (step,) = await run.steps()
    assert (step.attempts, step.failures) == (2, 2)
    assert step.error is not None


def test_options_of_keys_are_checked():
    """S3-10 A time that means nothing is refused where it is written."""
    with pytest.raises(BadInput, match="idempotency_ttl of activity 'body' is negative"):

        @activity(idempotency_key=lambda: "k", idempotency_ttl=timedelta(seconds=-1))
        async def body() -> None: ...


async def test_a_key_of_none_means_no_key(make_engine):
    """S4-31 The key comes from business identity when there is one; when there is none, each step stands for itself."""
    keys: list[str] = []

    @activity(idempotency_key=lambda order: None if order < 0 else f"order {order}")
    async def pay(order: int) -> int:
        keys.append(step_context().idempotency_key)
        return order

    @workflow
    async def buy(ctx: Context, order: int) -> int:
        return await ctx.step(pay, order)

    engine = await make_engine(buy)
    first, second = await engine.start(buy, -1), await engine.start(buy, -2)
    assert [await first.result(), await second.result()] == [-1, -2]
    assert sorted(keys) == sorted([f"{first.id}:pay", f"{second.id}:pay"])


async def test_a_kept_result_that_does_not_fit_fails_the_step(make_engine):
    """S3-9 The code declares another type now: it says so instead of handing on what does not fit."""

    @activity(name="pay", idempotency_key=lambda: "k")
    async def pay_before() -> str:
        return "text"

    @activity(name="pay", idempotency_key=lambda: "k")
    async def pay_now() -> int:
        return 1

    @workflow
    async def before(ctx: Context) -> str:
        return await ctx.step(pay_before)

    @workflow
    async def now(ctx: Context) -> int:
        return await ctx.step(pay_now)

    engine = await make_engine(before, now)
    assert await engine.execute(before) == "text"
    run = await engine.start(now)
    with pytest.raises(RunFailed, match="declared to return"):
        await asyncio.wait_for(run.result(), LONG)


async def test_a_step_that_was_undone_runs_again_though_it_has_a_key(make_engine):
    """B17 B14 A compensated step counts as not completed: what is kept under its key is no longer true."""
    ran: list[str] = []
    broken = [True]

    @activity(idempotency_key=lambda: "k")
    async def charge() -> str:
        ran.append("charge")
        return "receipt"

    async def refund() -> None:
        ran.append("refund")

    @activity(retry=Retry.never)
    async def ship() -> None:
        if broken:
            raise ValueError("out of stock")

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(charge)
        ctx.compensate(refund)
        await ctx.step(ship)

    engine = await make_engine(work)
    run = await engine.start(work)
    with pytest.raises(RunFailed):
        await run.result()
    broken.clear()
    await run.retry()
    await run.result()
    assert ran == ["charge", "refund", "charge"]


async def test_an_effect_that_was_undone_is_done_again_for_the_next_run(make_engine):
    """B17 B14 The order is placed again after the first run refunded it: the receipt of the first is worth nothing."""
    till, refunded = Till(), list[str]()
    till.gate.set()

    async def refund(receipt: str) -> None:
        refunded.append(receipt)

    @workflow
    async def regret(ctx: Context, order: int) -> None:
        ctx.compensate(refund, await ctx.step(till.activity, order))
        raise ValueError("out of stock")

    engine = await make_engine(regret, till.buy)
    run = await engine.start(regret, 7)
    with pytest.raises(RunFailed):
        await run.result()
    assert await engine.execute(till.buy, 7) == "receipt 7"
    assert (len(refunded), len(till.paid)) == (1, 2)


async def test_an_effect_that_is_undone_by_a_run_that_was_retried_is_done_again_too(make_engine):
    """B17 B14 It was made before the run first failed, and undone after somebody let the run go on."""
    till, broken = Till(), [True]
    till.gate.set()

    async def refund(receipt: str) -> None: ...

    @activity(retry=Retry.never)
    async def pack() -> None:
        if broken:
            raise ValueError("no box")

    @workflow
    async def regret(ctx: Context) -> None:
        receipt = await ctx.step(till.activity, 7)
        await ctx.step(pack)
        ctx.compensate(refund, receipt)
        raise ValueError("out of stock")

    engine = await make_engine(regret, till.buy)
    run = await engine.start(regret)
    with pytest.raises(RunFailed, match="no box"):
        await run.result()
    broken.clear()
    await run.retry()
    with pytest.raises(RunFailed, match="out of stock"):
        await run.result()
    await engine.execute(till.buy, 7)
    assert len(till.paid) == 2


async def test_an_effect_that_is_being_undone_is_not_handed_out_any_more(make_engine):
    """B17 B14 The refund is made, another compensation takes its time: who asks meanwhile does not get the receipt."""
    till, refunded, gate = Till(), asyncio.Event(), asyncio.Event()
    till.gate.set()

    async def refund() -> None:
        refunded.set()

    async def slow() -> None:
        await gate.wait()

    @workflow
    async def regret(ctx: Context) -> None:
        await ctx.step(till.activity, 7)
        ctx.compensate(slow)
        ctx.compensate(refund)
        raise ValueError("out of stock")

    engine = await make_engine(regret, till.buy)
    run = await engine.start(regret)
    await refunded.wait()
    other = await engine.start(till.buy, 7)
    try:
        assert await asyncio.wait_for(other.result(), LONG) == "receipt 7"
        assert len(till.paid) == 2
    finally:
        gate.set()
    with pytest.raises(RunFailed):
        await run.result()


async def test_what_undoes_may_have_a_key_and_undoes_as_often_as_it_was_done(make_engine):
    """B17 B14 Charged, refunded, retried: charged and refunded again; and so in the next run of that order."""
    ran: list[str] = []

    @activity(idempotency_key=lambda order: f"charge {order}")
    async def charge(order: int) -> None:
        ran.append("charge")

    @activity(idempotency_key=lambda order: f"refund {order}")
    async def refund(order: int) -> None:
        ran.append("refund")

    @workflow
    async def regret(ctx: Context) -> None:
        await ctx.step(charge, 7)
        ctx.compensate(refund, 7)
        raise ValueError("out of stock")

    engine = await make_engine(regret)
    run = await engine.start(regret)
    with pytest.raises(RunFailed):
        await run.result()
    await run.retry()
    with pytest.raises(RunFailed):
        await run.result()
    with pytest.raises(RunFailed):
        await engine.execute(regret)
    assert ran == ["charge", "refund"] * 3


async def test_a_rerun_does_a_keyed_step_again(make_engine):
    """B8 B14 Somebody asked for that step to be done again: the kept result is no answer to that."""
    till = Till()
    till.gate.set()
    engine = await make_engine(till.buy)
    run = await engine.start(till.buy, 7)
    await run.result()
    await run.rerun(from_step="pay")
    assert await run.result() == "receipt 7"
    assert len(till.paid) == 2


async def test_a_blocked_run_keeps_what_its_step_achieved(make_engine):
    """B14 G13 The step is done and recorded though the code then cannot go on; its result is there for others."""
    till = Till()
    till.gate.set()

    @workflow
    async def stuck(ctx: Context) -> None:
        await ctx.step(till.activity, 7)
        await asyncio.get_running_loop().create_future()

    engine = await make_engine(stuck, till.buy)
    run = await engine.start(stuck)
    with pytest.raises(RunBlocked):
        await run.result()
    assert await engine.execute(till.buy, 7) == "receipt 7"
    assert len(till.paid) == 1
    assert [fact.kind for fact in await run.history() if isinstance(fact.entry, entries.StepCompleted)] != []
