"""Requests, which a run answers and records, and queries, which only look."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import Context, NoSuchRun, ReceiveTimeout, RunBlocked, RunCancelled, RunFailed, RunTerminal, workflow
from holdfast.errors import BadInput, HoldfastError, NonDeterministic, NotSerializable, UndecodablePayload, UnknownQuery

HOUR = timedelta(hours=1)

restarts = pytest.mark.parametrize("mode", ["file", "evict"])
"""For tests with several engines on one file."""


@dataclass
class Money:
    eur: int


@workflow
async def account(ctx: Context) -> int:
    total = 0
    ctx.on_query("total", lambda: total)
    ctx.on_query("plus", lambda more, times=1: total + more * times)
    while True:
        request = await ctx.receive_request("add", int)
        if request.payload < 0:
            return total
        total += request.payload
        ctx.reply(request, total)


# Requests.


async def test_a_request_is_answered_by_the_code_and_recorded(make_engine):
    """S3-12 B28 The reply comes back once the turn that gave it is durable; a replay gives none again."""
    engine = await make_engine(account)
    run = await engine.start(account)
    assert [await run.ask("add", number) for number in (1, 2, 3)] == [1, 3, 6]
    assert await engine.get(run.id).ask("add", 4) == 10
    kinds = [entry.kind for entry in await run.history()]
    assert kinds.count("message") == 4
    await run.send("add", -1)
    assert await run.result() == 10


async def test_requests_asked_at_once_each_get_their_own_reply(make_engine):
    """G7 B13 In the order in which they came."""
    engine = await make_engine(account)
    run = await engine.start(account)
    assert await asyncio.gather(*(run.ask("add", 1) for _ in range(20))) == list(range(1, 21))


async def test_a_request_may_come_before_the_run_waits_for_it(make_engine):
    """S3-13"""

    @workflow
    async def late(ctx: Context) -> None:
        await ctx.receive("go")
        request = await ctx.receive_request("question")
        ctx.reply(request, "yes")

    engine = await make_engine(late)
    run = await engine.start(late)
    asking = asyncio.create_task(run.ask("question"))
    await engine.settle()
    assert not asking.done()
    await run.send("go")
    assert await asyncio.wait_for(asking, LONG) == "yes"


async def test_a_reply_is_decoded_into_the_type_asked_for(make_engine):
    """S3-12"""

    @workflow
    async def bank(ctx: Context) -> None:
        while True:
            request = await ctx.receive_request("double", Money)
            ctx.reply(request, Money(request.payload.eur * 2))

    engine = await make_engine(bank)
    run = await engine.start(bank)
    assert await run.ask("double", Money(3), type=Money) == Money(6)
    assert await run.ask("double", Money(3)) == {"eur": 6}
    with pytest.raises(UndecodablePayload):
        await run.ask("double", Money(3), type=int)


async def test_a_reply_of_none_is_a_reply(make_engine):
    """B13"""

    @workflow
    async def shy(ctx: Context) -> None:
        ctx.reply(await ctx.receive_request("question"))

    engine = await make_engine(shy)
    run = await engine.start(shy)
    assert await asyncio.wait_for(run.ask("question"), LONG) is None


async def test_the_first_reply_counts_and_a_reply_may_be_the_last_word(make_engine):
    """G6 The run ends in the turn that replies."""

    @workflow
    async def hasty(ctx: Context) -> str:
        request = await ctx.receive_request("question")
        ctx.reply(request, "first")
        ctx.reply(request, "second")
        return "done"

    engine = await make_engine(hasty)
    run = await engine.start(hasty)
    assert await asyncio.wait_for(run.ask("question"), LONG) == "first"
    assert await run.result() == "done"


async def test_a_run_may_answer_later_and_in_another_order(make_engine):
    """S3-12 B28 A request is kept like any value, over steps and sleeps."""

    @workflow
    async def queue(ctx: Context) -> None:
        first = await ctx.receive_request("ticket")
        second = await ctx.receive_request("ticket")
        ctx.reply(second, "second")
        await ctx.receive("go")
        ctx.reply(first, "first")
        await ctx.receive("never")

    engine = await make_engine(queue)
    run = await engine.start(queue)
    first = asyncio.create_task(run.ask("ticket"))
    await engine.settle()
    assert await asyncio.wait_for(run.ask("ticket"), LONG) == "second"
    assert not first.done()
    await run.send("go")
    assert await asyncio.wait_for(first, LONG) == "first"


async def test_a_request_that_is_not_answered_in_time_stays(make_engine):
    """B13 Whoever asked is told; the run takes it later."""

    @workflow
    async def slow(ctx: Context) -> Any:
        await ctx.receive("go")
        request = await ctx.receive_request("question", str)
        ctx.reply(request, "too late")
        return request.payload

    engine = await make_engine(slow)
    run = await engine.start(slow)
    with pytest.raises(TimeoutError):
        await run.ask("question", "why", timeout=timedelta(milliseconds=20))
    await run.send("go")
    assert await run.result() == "why"


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
async def test_a_run_that_ends_without_a_reply_leaves_nobody_waiting(make_engine, how):
    """S2-11 RunTerminal says how it ended; so does a request to one that has ended."""

    @workflow
    async def silent(ctx: Context) -> None:
        await ctx.receive_request("question")
        if how == "failed":
            raise ValueError("no")
        if how == "cancelled":
            await ctx.receive("never")

    engine = await make_engine(silent)
    run = await engine.start(silent)
    asking = asyncio.create_task(run.ask("question"))
    await engine.settle()
    await run.cancel()
    with pytest.raises(RunTerminal, match=how):
        await asyncio.wait_for(asking, LONG)
    with pytest.raises(RunTerminal, match=how):
        await run.ask("question")
    with pytest.raises(NoSuchRun):
        await engine.get("nobody").ask("question")


async def test_a_run_that_is_blocked_leaves_nobody_waiting(make_engine):
    """G13 It says so, as result() does; the request stays for when the code is put right."""

    @workflow
    async def wrong(ctx: Context) -> None:
        request = await ctx.receive_request("question")
        await asyncio.to_thread(print)
        ctx.reply(request, 1)

    engine = await make_engine(wrong)
    run = await engine.start(wrong)
    with pytest.raises(RunBlocked):
        await asyncio.wait_for(run.ask("question"), LONG)


async def test_time_passes_while_a_reply_is_awaited(make_engine):
    """S2-40 In a TestEngine, as while a result is awaited."""

    @workflow
    async def thinker(ctx: Context) -> None:
        request = await ctx.receive_request("question")
        await ctx.sleep(HOUR)
        ctx.reply(request, 42)

    engine = await make_engine(thinker)
    run = await engine.start(thinker)
    assert await asyncio.wait_for(run.ask("question"), LONG) == 42


async def test_waiting_for_a_request_has_a_timeout_and_a_default(make_engine):
    """B13"""

    @workflow
    async def patient(ctx: Context) -> list[Any]:
        found = [await ctx.receive_request("question", timeout=HOUR, default="none")]
        try:
            await ctx.receive_request("question", timeout=HOUR)
        except ReceiveTimeout as error:
            found.append(str(error))
        return found

    engine = await make_engine(patient)
    assert await engine.execute(patient) == ["none", "no message 'question' came in time"]


async def test_only_a_request_can_be_answered_and_only_with_what_can_be_stored(make_engine):
    """GUARANTEES 6.1"""

    @workflow
    async def careless(ctx: Context) -> list[str]:
        request = await ctx.receive_request("question")
        said = []
        for subject, value in ((request.id, 1), (request, object())):
            try:
                ctx.reply(subject, value)
            except HoldfastError as error:
                said.append(type(error).__name__)
        return said

    engine = await make_engine(careless)
    run = await engine.start(careless)
    with pytest.raises(RunTerminal):
        await run.ask("question")
    assert await run.result() == [BadInput.__name__, NotSerializable.__name__]


@restarts
async def test_a_request_reaches_a_run_of_another_engine_and_the_reply_comes_back(make_engine):
    """S2-12 B28 Asked by a client, answered by whichever worker has the run; also after a restart in between."""
    client = await make_engine(account, run_workflows=False)
    worker = await make_engine(account, clock=client.jumping)
    run = await client.start(account)
    assert await asyncio.wait_for(run.ask("add", 1), LONG) == 1
    await worker.stop()
    asking = asyncio.create_task(run.ask("add", 2))
    await asyncio.sleep(0.05)
    assert not asking.done()
    await make_engine(account, clock=client.jumping)
    assert await asyncio.wait_for(asking, LONG) == 3


# Queries.


async def test_a_query_reads_the_state_of_the_code_and_records_nothing(make_engine):
    """B28 In memory or replayed, with arguments, between any two turns."""
    engine = await make_engine(account)
    run = await engine.start(account)
    assert await run.query("total") == 0
    await run.ask("add", 4)
    await engine.settle()
    before = await run.history()
    assert await run.query("total") == 4
    assert await run.query("plus", 2, times=3) == 10
    assert await engine.get(run.id).query("total", type=str | int) == 4
    assert await run.history() == before


async def test_a_run_that_has_ended_answers_queries(make_engine):
    """B28 Completed, failed, cancelled or terminated: its history is replayed for it."""

    @workflow
    async def counter(ctx: Context) -> None:
        count = 0
        ctx.on_query("count", lambda: count)
        while True:
            name, _ = await ctx.receive(["up", "end", "fail"])
            count += 1
            if name == "end":
                return
            if name == "fail":
                raise ValueError("no")

    engine = await make_engine(counter)
    completed, failed, cancelled, terminated = [await engine.start(counter) for _ in range(4)]
    for run in (completed, failed, cancelled, terminated):
        await run.send("up")
    await completed.send("end")
    await completed.result()
    await failed.send("fail")
    with pytest.raises(RunFailed):
        await failed.result()
    await engine.settle()
    await cancelled.cancel()
    with pytest.raises(RunCancelled):
        await cancelled.result()
    await terminated.terminate()
    assert [await run.query("count") for run in (completed, failed, cancelled, terminated)] == [2, 2, 1, 1]


async def test_a_paused_or_sleeping_run_answers_queries(make_engine):
    """B28 B25"""

    @workflow
    async def sleeper(ctx: Context) -> None:
        state = "sleeping"
        ctx.on_query("state", lambda: state)
        await ctx.sleep(HOUR)
        state = "awake"
        await ctx.receive("never")

    engine = await make_engine(sleeper)
    run = await engine.start(sleeper)
    await engine.settle()
    assert await run.query("state") == "sleeping"
    await run.pause()
    await engine.settle()
    assert await run.query("state") == "sleeping"
    await run.resume()
    await engine.advance(2 * HOUR)
    assert await run.query("state") == "awake"


async def test_a_run_answers_queries_while_a_step_runs(make_engine):
    """B28"""
    gate = asyncio.Event()

    async def slow() -> None:
        await gate.wait()

    @workflow
    async def busy(ctx: Context) -> None:
        ctx.on_query("state", lambda: "busy")
        await ctx.step(slow)

    engine = await make_engine(busy)
    run = await engine.start(busy)
    assert await run.query("state") == "busy"
    gate.set()
    await run.result()


async def test_an_unknown_query_lists_those_there_are(make_engine):
    """B28"""
    engine = await make_engine(account)
    run = await engine.start(account)
    with pytest.raises(UnknownQuery, match=r"answers no query 'sum'; it answers: 'total', 'plus'"):
        await run.query("sum")
    with pytest.raises(NoSuchRun):
        await engine.get("nobody").query("total")


async def test_a_run_that_has_not_begun_answers_nothing(make_engine):
    """B28 And none of its code is run for the asking."""
    begun = []

    @workflow(check=False)
    async def delayed(ctx: Context) -> None:
        begun.append(ctx.run_id)
        ctx.on_query("state", lambda: "begun")

    engine = await make_engine(delayed)
    run = await engine.start(delayed, delay=HOUR)
    with pytest.raises(UnknownQuery, match="has not begun"):
        await run.query("state")
    assert begun == []


@pytest.mark.parametrize("mode", ["file"])
async def test_a_query_before_the_first_turn_waits_for_it(make_engine):
    """B28 The run is started, and no worker has come to it yet."""

    @workflow(queue="others")
    async def waiting(ctx: Context) -> None:
        ctx.on_query("state", lambda: "begun")
        await ctx.receive("never")

    engine = await make_engine(waiting)
    run = await engine.start(waiting)
    asking = asyncio.create_task(run.query("state"))
    for _ in range(3):
        await run.status()
    assert not asking.done()
    await make_engine(waiting, queues=["others"])
    assert await asking == "begun"


async def test_a_handler_that_acts_fails_or_does_io_disturbs_nothing(make_engine):
    """B28 G13 The error goes to who asked; the run goes on."""

    @workflow(check=False)
    async def strange(ctx: Context) -> str:
        def acts() -> None:
            ctx.send("other", "hello")

        def fails() -> None:
            raise LookupError("nothing there")

        def does_io() -> None:
            open("/etc/hostname").close()

        async def waits() -> None: ...

        for handler in (acts, fails, does_io):
            ctx.on_query(handler.__name__, handler)
        ctx.on_query("waits", lambda: waits())
        ctx.on_query("unstorable", lambda: object())
        return await ctx.receive("word", str)

    engine = await make_engine(strange, development=True)
    run = await engine.start(strange)
    await engine.settle()
    expected = {
        "acts": BadInput,
        "fails": LookupError,
        "does_io": NonDeterministic,
        "waits": BadInput,
        "unstorable": NotSerializable,
    }
    for name, error in expected.items():
        with pytest.raises(error):
            await run.query(name)
    await run.send("word", "fine")
    assert await run.result() == "fine"


@restarts
async def test_an_engine_that_knows_the_workflow_answers_for_runs_of_others(make_engine):
    """B28 By replaying what is durable; one that does not know it says so."""
    worker = await make_engine(account)
    client = await make_engine(account, run_workflows=False, clock=worker.jumping)
    stranger = await make_engine(run_workflows=False, clock=worker.jumping)
    run = await worker.start(account)
    assert await run.ask("add", 5) == 5
    await worker.settle()
    assert await client.get(run.id).query("total") == 5
    with pytest.raises(HoldfastError, match="account"):
        await stranger.get(run.id).query("total")
    await worker.stop()
    assert await client.get(run.id).query("total") == 5
