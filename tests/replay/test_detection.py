"""What a turn notices: I/O, dead ends, endless loops, clocks and dice."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.driving import START, answer, assert_replays, execution, live, resumed

from holdfast import Context, workflow
from holdfast.definitions import Registry
from holdfast.determinism.guard import guard
from holdfast.errors import NonDeterministic
from holdfast.replay.turn import Ending


def work(x: int) -> int:
    return x


def _calls_for_io() -> dict[str, Any]:
    async def executor() -> None:
        await asyncio.get_running_loop().run_in_executor(None, print)

    async def server() -> None:
        await asyncio.start_server(print, "localhost", 0)

    async def bare_socket() -> None:
        with socket.socket() as sock:
            await asyncio.get_running_loop().sock_connect(sock, ("localhost", 1))

    return {
        "to_thread": lambda: asyncio.to_thread(print),
        "run_in_executor": executor,
        "open_connection": lambda: asyncio.open_connection("localhost", 1),
        "start_server": server,
        "create_subprocess_exec": lambda: asyncio.create_subprocess_exec("true"),
        "create_subprocess_shell": lambda: asyncio.create_subprocess_shell("true"),
        "sock_connect": bare_socket,
        "getaddrinfo": lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
    }


IO = _calls_for_io()


@pytest.mark.parametrize("call", IO)
@pytest.mark.parametrize("swallow", [False, True], ids=["raised", "swallowed"])
def test_asyncio_io_in_workflow_code_is_refused_with_file_and_line(call, swallow):
    """S1-1 Even where the code swallows the error the run is blocked, and the next turn is not driven."""

    @workflow(check=False)
    async def tries(ctx: Context) -> str:
        await ctx.step(work, 1)
        try:
            await IO[call]()
        except Exception:
            if not swallow:
                raise
        await ctx.step("after", work, 2)
        return "never"

    outcome = live(tries).outcome
    assert outcome.ending is Ending.BLOCKED
    assert "put it in a step" in outcome.error.message
    assert "test_detection.py:" in outcome.error.message


def test_bare_coroutines_given_to_as_completed_are_refused_with_the_fix():
    """Python starts them in an order that differs from run to run."""

    @workflow(check=False)
    async def mistaken(ctx: Context) -> None:
        coroutines: list[Any] = [asyncio.sleep(x) for x in range(3)]
        try:
            for each in asyncio.as_completed(coroutines):
                await each
        except NonDeterministic:
            pass
        finally:
            for coroutine in coroutines:
                coroutine.close()

    outcome = live(mistaken).outcome
    assert outcome.ending is Ending.BLOCKED
    assert "asyncio.create_task(c) for c in" in outcome.error.message
    assert "test_detection.py:" in outcome.error.message


BLOCKING = {
    "a file": lambda: open("/tmp/holdfast-never", "w"),  # noqa: SIM115  # never opened
    "a socket": lambda: socket.create_connection(("localhost", 1)),
    "a process": lambda: subprocess.Popen(["true"]),
}


@pytest.mark.parametrize("what", BLOCKING)
def test_blocking_io_inside_a_turn_is_caught_by_the_audit_hook(what):
    guard.install()

    @workflow(check=False)
    async def tries(ctx: Context) -> None:
        try:
            BLOCKING[what]()
        except NonDeterministic:
            pass
        await ctx.step(work, 1)

    outcome = live(tries).outcome
    assert outcome.ending is Ending.BLOCKED
    assert "put it in a step" in outcome.error.message
    assert "test_detection.py:" in outcome.error.message
    assert guard.violation is None


def test_a_run_that_nothing_can_wake_is_said_to_be_stuck_with_the_line_it_waits_at():
    @workflow
    async def stuck(ctx: Context) -> None:
        await ctx.step(work, 1)
        await asyncio.Event().wait()

    outcome = live(stuck).outcome
    assert outcome.ending is Ending.BLOCKED
    assert "waits for something that nothing can bring about" in outcome.error.message
    assert "test_detection.py:" in outcome.error.message


def test_a_loop_that_never_waits_is_ended_and_named():
    @workflow
    async def spins(ctx: Context) -> None:
        await ctx.step(work, 1)
        while True:  # noqa: ASYNC110  # the very thing under test
            await asyncio.sleep(0)

    run = execution(spins)
    (verb,) = run.begin().started
    turn = run.apply(verb.location, answer(verb), START)
    assert turn.outcome.ending is Ending.BLOCKED
    assert turn.outcome.error.type.endswith("BusyLoop")
    assert "test_detection.py:" in turn.outcome.error.message
    assert len(run.loop._ready) == 0
    run.drop()


def test_a_turn_is_not_driven_from_inside_a_task():
    async def main() -> None:
        with pytest.raises(RuntimeError, match="plain callback"):
            execution(workflow(_waits)).begin()

    asyncio.run(main())


async def _waits(ctx: Context) -> None:
    await ctx.receive("x")


def _clocks_and_dice() -> list[Any]:
    @workflow
    async def clock(ctx: Context) -> float:
        return time.time()

    @workflow
    async def calendar(ctx: Context) -> str:
        return datetime.now(UTC).isoformat()

    @workflow
    async def dice(ctx: Context) -> float:
        return random.random()

    @workflow
    async def unique(ctx: Context) -> str:
        return str(uuid.uuid4())

    @workflow
    async def naps(ctx: Context) -> None:
        time.sleep(1)

    return [clock, calendar, dice, unique, naps]


@pytest.mark.parametrize("definition", _clocks_and_dice(), ids=lambda definition: definition.name)
def test_clocks_and_dice_in_workflow_code_are_refused_when_it_is_registered(definition):
    """S1-1 The message names the line and the verb to use."""
    with pytest.raises(NonDeterministic, match=r"test_detection.py:\d+.*ctx\."):
        Registry([definition])


@workflow
async def draws(ctx: Context) -> list:
    async def branch(ctx: Context) -> list:
        await ctx.step(work, 1)
        return [ctx.random().random(), str(ctx.uuid())]

    first = [ctx.random().random(), str(ctx.uuid()), ctx.now().isoformat()]
    await ctx.step(str, first)
    inner = await ctx.join({"a": branch, "b": branch})
    await ctx.sleep(timedelta(hours=1))
    last = [ctx.random().random(), str(ctx.uuid()), ctx.now().isoformat()]
    await ctx.step(str, last)
    await ctx.receive("never")
    return [first, inner, last]


def test_time_randomness_and_uuids_are_the_same_on_replay_and_different_by_scope():
    """S1-1 Each scope has its own, so the order of branches does not matter."""
    seen = []
    for seed in range(3):
        recording = live(draws, seed=seed)
        assert_replays(recording)
        _, run = resumed(recording, draws)
        seen.append([run.journal.root.random.random(), run.journal.root.uuids])
        run.drop()
    assert seen[0] == seen[1] == seen[2]


def test_dice_differ_from_run_to_run_and_between_branches():
    @workflow
    async def two(ctx: Context) -> list:
        async def branch(ctx: Context) -> list:
            return [ctx.random().random(), str(ctx.uuid()), str(ctx.uuid())]

        both = await ctx.join({"a": branch, "b": branch})
        return [ctx.random().random(), str(ctx.uuid()), str(ctx.uuid()), *both["a"], *both["b"]]

    result = live(two).result
    assert len({*map(str, result)}) == 9
    assert all(uuid.UUID(each).version == 4 for each in result if isinstance(each, str))


def test_the_log_is_heard_once_and_silent_on_replay():
    """S1-32 A line belongs to the turn that wrote it."""

    @workflow
    async def talks(ctx: Context) -> None:
        ctx.log.warning("started %s", "here")
        async for it in ctx.loop("loop"):
            it.log.warning("iteration %d", it.index)
            await it.step(work, it.index)
            if it.index == 2:
                break
        try:
            raise LookupError("lost")
        except LookupError:
            ctx.log.exception("it failed")
        await ctx.receive("never")

    recording = live(talks)
    assert recording.logs[:4] == ["started here", "iteration 0", "iteration 1", "iteration 2"]
    assert recording.logs[4].startswith("it failed\nTraceback")
    assert "LookupError: lost" in recording.logs[4]
    assert_replays(recording)


def test_time_is_that_of_the_fact_the_code_went_on_from():
    @workflow
    async def times(ctx: Context) -> list:
        first = ctx.now()
        await ctx.sleep(timedelta(days=3))
        return [(ctx.now() - first).days, first.isoformat()]

    began = datetime.fromtimestamp(START // 1_000_000, UTC)
    assert live(times).result == [3, began.isoformat()]
