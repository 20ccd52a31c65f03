"""How long a call waits for the store: what waits is withdrawn and did not happen, what is on its way is not known."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, Status, workflow
from holdfast.contract.operations import SendMessage
from holdfast.contract.turns import PublishEvent, StartRun
from holdfast.errors import BadInput, OutcomeUnknown, StoreBusy

SHORT = timedelta(seconds=1)
NEVER = timedelta(hours=1)


@workflow
async def nothing(ctx: Context) -> None:
    """End at once."""


@workflow
async def hear(ctx: Context, wanted: int) -> list[str]:
    """Take words in the order in which they come."""
    return [await ctx.receive("word", str) for _ in range(wanted)]


async def test_a_start_that_waits_behind_another_is_withdrawn_and_never_made(make_engine):
    """G2 G14 The first is on its way: nobody can say yet. The second was not begun, and never is."""
    engine = await make_engine(nothing, call_patience=SHORT)
    hold = engine.faults.hold(only=StartRun)
    first = asyncio.create_task(engine.start(nothing, id="first"))
    await asyncio.wait_for(hold.happened(), LONG)
    with pytest.raises(StoreBusy, match="did not happen"):
        await asyncio.wait_for(engine.start(nothing, id="second"), LONG)
    with pytest.raises(OutcomeUnknown, match="not known"):
        await asyncio.wait_for(first, LONG)
    hold.release()
    await (await engine.start(nothing, id="third")).result()
    assert sorted(run.id for run in await engine.runs()) == ["first", "third"]
    await engine.get("first").result()


async def test_what_was_withdrawn_can_be_asked_for_again(make_engine):
    """G14 The same id, the same input: it is as if the first had never been asked for."""
    engine = await make_engine(nothing, call_patience=SHORT)
    hold = engine.faults.hold(only=StartRun)
    first = asyncio.create_task(engine.start(nothing, id="first"))
    await asyncio.wait_for(hold.happened(), LONG)
    with pytest.raises(StoreBusy):
        await asyncio.wait_for(engine.start(nothing, id="second"), LONG)
    with pytest.raises(OutcomeUnknown):
        await asyncio.wait_for(first, LONG)
    hold.release()
    for name in ("first", "second"):
        await (await engine.start(nothing, id=name)).result()
    assert await engine.stats() == {**await engine.stats(), "completed": 2}


async def test_a_message_that_was_withdrawn_is_not_heard_though_its_run_waited_for_it(make_engine):
    """A run in memory is handed a message before its commit; without that commit it has not heard it."""
    engine = await make_engine(nothing, hear, call_patience=SHORT)
    run = await engine.start(hear, 2, id="hearing")
    await engine.settle()
    hold = engine.faults.hold(only=StartRun)
    first = asyncio.create_task(engine.start(nothing, id="first"))
    await asyncio.wait_for(hold.happened(), LONG)
    with pytest.raises(StoreBusy, match="did not happen"):
        await asyncio.wait_for(run.send("word", "withdrawn"), LONG)
    with pytest.raises(OutcomeUnknown):
        await asyncio.wait_for(first, LONG)
    hold.release()
    await run.send("word", "one")
    await run.send("word", "two")
    assert await asyncio.wait_for(run.result(), LONG) == ["one", "two"]


async def test_between_two_tries_of_a_commit_what_it_would_make_is_withdrawn(make_engine):
    """G14 Another process keeps the store locked: nothing is on its way, so the caller is told that for sure."""
    engine = await make_engine(nothing, call_patience=SHORT)
    locked = engine.faults.fail(None, error=StoreBusy("another process keeps the database locked"))
    with pytest.raises(StoreBusy, match="did not happen"):
        await asyncio.wait_for(engine.start(nothing, id="withdrawn"), LONG)
    assert locked.injected > 1
    locked.heal()
    await (await engine.start(nothing, id="made")).result()
    assert [run.id for run in await engine.runs()] == ["made"]


async def test_a_commit_of_a_worker_outlasts_what_callers_have_no_patience_for(make_engine):
    """G3 The step's result is recorded when the store answers again: the step is not run again for it."""
    bodies, go = 0, asyncio.Event()

    async def work() -> int:
        nonlocal bodies
        bodies += 1
        await go.wait()
        return bodies

    @workflow
    async def works(ctx: Context) -> int:
        return await ctx.step("work", work)

    engine = await make_engine(nothing, works, call_patience=SHORT)
    run = await engine.start(works)
    await eventually(lambda: bodies == 1)
    hold = engine.faults.hold()
    go.set()
    await asyncio.wait_for(hold.happened(), LONG)
    with pytest.raises(StoreBusy):
        await asyncio.wait_for(engine.start(nothing), LONG)
    hold.release()
    assert await asyncio.wait_for(run.result(), LONG) == 1


async def test_an_answer_that_comes_in_time_is_the_answer(make_engine):
    """G14 Nobody is told that something is not known when it is."""
    engine = await make_engine(nothing, call_patience=NEVER)
    hold = engine.faults.hold(only=StartRun)
    starting = asyncio.create_task(engine.start(nothing, id="first"))
    await asyncio.wait_for(hold.happened(), LONG)
    hold.release()
    assert await (await asyncio.wait_for(starting, LONG)).result() is None


async def test_a_caller_that_goes_away_leaves_its_operation_as_it_was(make_engine):
    """G14 Cancelling the call is not withdrawing: what it asked for is made, as it always was."""
    engine = await make_engine(nothing, hear, call_patience=NEVER)
    hold = engine.faults.hold(only=StartRun)
    first = asyncio.create_task(engine.start(nothing, id="first"))
    await asyncio.wait_for(hold.happened(), LONG)
    second = asyncio.create_task(engine.start(nothing, id="second"))
    await eventually(lambda: engine._working().committer.waiting >= 2)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    hold.release()
    await first
    await eventually(engine.runs)
    await eventually(lambda: engine._working().committer.waiting == 0)
    assert await engine.get("second").result() is None


async def test_a_look_that_is_not_answered_ends_and_nothing_was_changed(make_engine):
    """G14 Reading has the same patience; so has a call of several parts, once for all of them."""
    engine = await make_engine(nothing, call_patience=SHORT)
    run = await engine.start(nothing, id="there")
    await run.result()
    for method, look in (("runs", engine.runs), ("counts", engine.stats), ("get", run.status), ("history", run.steps)):
        hold = engine.faults.hold(at=method)
        with pytest.raises(StoreBusy, match="nothing was changed"):
            await asyncio.wait_for(look(), LONG)
        assert hold.injected == 1
        hold.release()
    assert await run.status() is Status.COMPLETED


async def test_what_a_call_asked_for_is_not_called_undone_because_a_look_after_it_hangs(make_engine):
    """G14 The pause was made; only telling of it hangs."""
    engine = await make_engine(hear, call_patience=SHORT)
    run = await engine.start(hear, 1, delay=timedelta(days=1))
    stop = engine.subscribe(lambda change: None)
    hold = engine.faults.hold(at="get")
    with pytest.raises(OutcomeUnknown):
        await asyncio.wait_for(run.pause(), LONG)
    hold.release()
    stop()
    assert await run.status() is Status.PAUSED


async def test_an_event_in_flight_is_not_known_and_one_that_waits_is_withdrawn(make_engine):
    """G14 Events and messages as runs."""
    engine = await make_engine(hear, call_patience=SHORT)
    run = await engine.start(hear, 1, id="hearing")
    await engine.settle()
    hold = engine.faults.hold(only=PublishEvent)
    publishing = asyncio.create_task(engine.publish("news", 1))
    await asyncio.wait_for(hold.happened(), LONG)
    with pytest.raises(StoreBusy):
        await asyncio.wait_for(engine.publish("news", 2), LONG)
    with pytest.raises(OutcomeUnknown):
        await asyncio.wait_for(publishing, LONG)
    hold.release()
    sending = engine.faults.hold(only=SendMessage)
    with pytest.raises(OutcomeUnknown):
        await asyncio.wait_for(run.send("word", "heard"), LONG)
    sending.release()
    assert await asyncio.wait_for(run.result(), LONG) == ["heard"]
    assert (await engine.stats())["pending_events"] == 1


async def test_once_the_store_is_silent_acting_on_many_stops(make_engine):
    """G14 A thousand runs are not a thousand times the patience."""
    engine = await make_engine(hear, call_patience=SHORT)
    runs = [await engine.start(hear, 1, delay=timedelta(days=1)) for _ in range(3)]
    hold = engine.faults.hold()
    report = await asyncio.wait_for(engine.bulk("pause", workflow="hear", expect=3), LONG)
    hold.release()
    assert len(report.failed) == len(runs)
    assert sum(said.startswith("not tried") for said in report.failed.values()) == 2


def test_patience_is_longer_than_nothing():
    from holdfast.engine.settings import Settings

    with pytest.raises(BadInput, match="call_patience"):
        Settings(call_patience=timedelta(0))
