"""Queries: a look at a run's state that records nothing and changes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.driving import START, execution, live, resumed, store

from holdfast import Context, activity, workflow
from holdfast.contract.rows import Message
from holdfast.determinism.guard import guard
from holdfast.errors import BadInput, NonDeterministic, NotSerializable, RunBlocked, UnknownQuery


@activity
def work(x: int) -> int:
    return x


@workflow
async def counting(ctx: Context) -> int:
    total = 0
    ctx.on_query("total", lambda: total)
    ctx.on_query("add", lambda x, *, more=0: total + x + more)
    while total < 10:
        total += await ctx.receive("n", int)
    return total


def deliver(run: Any, n: int) -> Any:
    return run.deliver([Message(n, "message", "n", f"m{n}", str(n), START)], START)


def test_a_query_reads_the_state_of_a_run_and_records_nothing():
    """B28"""
    run = execution(counting)
    run.begin()
    assert run.query("total") == b"0"
    turn = deliver(run, 3)
    assert run.query("total") == b"3"
    assert run.query("add", [4], {"more": 1}) == b"8"
    turn = deliver(run, 4)
    assert [row.seq for row in turn.entries] == [5, 6]


def test_a_run_that_has_ended_answers_too():
    """B28"""
    recording = live(counting, messages=[("n", 6), ("n", 5)])
    assert recording.result == 11
    _, run = resumed(recording, counting)
    assert run.query("total") == b"11"


def test_an_unknown_query_lists_those_there_are():
    """B28"""
    run = execution(counting)
    with pytest.raises(UnknownQuery, match="it answers: none"):
        run.query("total")
    run.begin()
    with pytest.raises(UnknownQuery, match="no query 'totl'; it answers: 'total', 'add'"):
        run.query("totl")


def asking(handler: Any) -> Any:
    """Return a run that waits, with a handler that is given its context."""

    @workflow
    async def flow(ctx: Context) -> str:
        event = asyncio.Event()
        ctx.on_query("ask", lambda: handler(ctx, event))
        waiter = asyncio.create_task(event.wait())
        await ctx.receive("go")
        waiter.cancel()
        return "done"

    return flow


async def coroutine() -> None: ...


ACTS: dict[str, Any] = {
    "step": lambda ctx, event: ctx.step(work, 1),
    "sleep": lambda ctx, event: ctx.receive("x"),
    "evidence": lambda ctx, event: ctx.evidence("x"),
    "compensate": lambda ctx, event: ctx.compensate(work, 1),
    "attributes": lambda ctx, event: ctx.set_attributes(x=1),
    "patched": lambda ctx, event: ctx.patched("x"),
    "uuid": lambda ctx, event: ctx.uuid(),
    "random": lambda ctx, event: ctx.random().random(),
    "renew": lambda ctx, event: ctx.continue_as_new(),
    "query": lambda ctx, event: ctx.on_query("x", work.function),
    "task": lambda ctx, event: asyncio.create_task(asyncio.sleep(1)),
    "timer": lambda ctx, event: asyncio.get_running_loop().call_later(1, print),
    "wake": lambda ctx, event: event.set(),
    "await": lambda ctx, event: coroutine(),
}


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("act", ACTS)
def test_a_handler_that_acts_is_refused_and_nothing_comes_of_it(act, ended):
    """B28"""
    if ended and act in ("wake", "timer", "task"):
        pytest.skip("the loop of a run that has ended takes nothing")
    flow = asking(ACTS[act])
    run = execution(flow)
    rows = store([], run.begin())
    go = [Message(1, "message", "go", "m1", "1", START)]
    if ended:
        rows = store(rows, run.deliver(go, START))
        run = execution(flow)
        assert run.begin(rows).outcome is not None
    before = (run.journal.next_seq, dict(run.journal.open), run.next_due())
    with pytest.raises(BadInput):
        run.query("ask")
    assert (run.journal.next_seq, dict(run.journal.open), run.next_due()) == before
    assert not run.journal.silent
    if not ended:
        turn = run.deliver(go, START)
        assert turn.outcome is not None
        assert turn.outcome.payload == '"done"'
        assert (turn.effects, turn.started) == (None, ())


@pytest.mark.parametrize(
    "handler",
    [lambda ctx, event: open("/dev/null"), lambda ctx, event: work(1)],  # noqa: SIM115
    ids=["open", "activity"],
)
def test_a_handler_that_does_io_is_refused_and_the_run_goes_on(handler):
    """B28"""
    guard.install()
    run = execution(asking(handler))
    run.begin()
    with pytest.raises(NonDeterministic):
        run.query("ask")
    turn = run.deliver([Message(1, "message", "go", "m1", "1", START)], START)
    assert turn.outcome is not None
    assert turn.outcome.payload == '"done"'


def test_errors_of_a_handler_reach_who_asked():
    """B28"""
    run = execution(asking(lambda ctx, event: 1 / 0))
    run.begin()
    with pytest.raises(ZeroDivisionError):
        run.query("ask")
    run = execution(asking(lambda ctx, event: object()))
    run.begin()
    with pytest.raises(NotSerializable):
        run.query("ask")


def test_a_handler_may_ask_for_the_time_and_its_log_lines_are_dropped():
    """B28"""

    def look(ctx: Context, event: Any) -> str:
        ctx.log.warning("seen")
        return ctx.now().isoformat()

    run = execution(asking(look))
    run.begin()
    assert b"2023-11-14" in run.query("ask")
    assert not run.fire(START).logs


def test_a_handler_must_be_a_plain_function_and_a_blocked_run_answers_nothing():
    """B28"""

    @workflow
    async def flow(ctx: Context) -> None:
        with pytest.raises(BadInput):
            ctx.on_query("ask", coroutine)
        with pytest.raises(BadInput):
            ctx.on_query("a/b", print)
        ctx.on_query("ask", lambda: 1)
        await asyncio.get_running_loop().create_future()

    run = execution(flow)
    assert run.begin().outcome is not None  # stuck
    with pytest.raises(RunBlocked):
        run.query("ask")
