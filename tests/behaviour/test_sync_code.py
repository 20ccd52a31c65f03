"""Code that is not async: an engine on a thread of its own, and plain functions as steps."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import Context, Engine, RunFailed, Status, step_context, workflow
from holdfast.errors import BadInput, HoldfastError, StoreError
from holdfast.testing import TestEngine

HOUR = timedelta(hours=1)


def double(number: int) -> int:
    return number * 2


@workflow
async def work(ctx: Context, number: int) -> int:
    return await ctx.step(double, number)


@workflow
async def ask(ctx: Context) -> Any:
    return await ctx.receive("word")


@workflow
async def broken(ctx: Context) -> None:
    raise ValueError("no")


@pytest.fixture(params=["memory", "file"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    database = ":memory:" if request.param == "memory" else str(tmp_path / "sync.db")
    return Engine(database, workflows=[work, ask, broken], durability="process", stop_grace=timedelta(seconds=1))


def test_an_engine_serves_code_that_is_not_async(engine):
    """S3-11 startWorkflow and executeWorkflowSync: start, talk, wait, from a plain function."""
    with engine.in_thread() as call:
        assert call(engine.execute(work, 21)) == 42
        run = call(engine.start(ask, id="r"))
        assert call(run.status()) in (Status.RUNNING, Status.SUSPENDED)
        call(run.send("word", "hello"))
        assert call(run.result(timeout=timedelta(seconds=LONG))) == "hello"
        with pytest.raises(RunFailed, match="ValueError: no"):
            call(engine.execute(broken))
        with pytest.raises(BadInput, match="number"):
            call(engine.start(work))


def test_many_threads_may_call_at_once(engine):
    """S3-11 S0-60"""
    with engine.in_thread() as call, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda number: call(engine.execute(work, number)), range(40)))
    assert results == [number * 2 for number in range(40)]


def test_what_the_block_raises_comes_out_after_the_engine_has_stopped(engine):
    """S2-8"""
    with pytest.raises(KeyError), engine.in_thread() as call:
        run = call(engine.start(ask))
        raise KeyError(run.id)
    with pytest.raises(HoldfastError, match="not open"):
        call(engine.start(ask))
    assert not any(thread.name == "holdfast engine" for thread in threading.enumerate())


def test_an_engine_on_a_file_may_be_opened_again_and_goes_on(tmp_path):
    """G1 S3-24"""
    engine = Engine(tmp_path / "again.db", workflows=[ask], durability="process")
    with engine.in_thread() as call:
        call(engine.start(ask, id="r"))
    with engine.in_thread() as call:
        call(engine.get("r").send("word", "after"))
        assert call(engine.get("r").result()) == "after"


def test_an_engine_that_cannot_be_opened_says_so_and_leaves_no_thread(tmp_path):
    """GUARANTEES 6.18"""
    (tmp_path / "text.db").write_text("this is no database, but it is long enough to look like one" * 20)
    engine = Engine(tmp_path / "text.db", workflows=[ask])
    with pytest.raises(StoreError), engine.in_thread():
        raise AssertionError("it was opened")
    assert not any(thread.name == "holdfast engine" for thread in threading.enumerate())


def test_a_call_from_the_engine_s_own_thread_is_refused_rather_than_waiting_for_itself(engine):
    """S3-11 From a callback of the loop, where it would never return."""
    said: list[str] = []

    def from_within(change: Any) -> None:
        try:
            call(engine.stats())
        except HoldfastError as error:
            said.append(str(error))

    with engine.in_thread() as call:
        stop = engine.subscribe(from_within)
        call(engine.execute(work, 1))
        stop()
    assert "use await" in said[0]


def test_an_engine_is_opened_only_once_at_a_time(engine):
    """S0-60 A second worker in its place would leave the first without anybody to stop it."""
    with engine.in_thread() as call:
        with pytest.raises(HoldfastError, match="open already"), engine.in_thread():
            raise AssertionError("it was opened")
        with pytest.raises(HoldfastError, match="open already"):
            call(engine.open())
        assert call(engine.execute(work, 1)) == 2


def test_a_call_under_way_in_another_thread_ends_when_the_block_is_left(engine):
    """S2-8 Neither one that waits for a run nor one that waits for anything else may hang for ever."""
    ends: list[BaseException] = []
    waiting = threading.Barrier(3)

    def wait_for(coro: Any) -> None:
        async def signalled() -> Any:
            await asyncio.get_running_loop().run_in_executor(None, waiting.wait)
            return await coro

        try:
            call(signalled())
        except BaseException as error:
            ends.append(error)
        finally:
            coro.close()  # the block may be left before it was awaited

    with engine.in_thread() as call:
        run = call(engine.start(ask))
        threads = [
            threading.Thread(target=wait_for, args=(coro,), daemon=True) for coro in (run.result(), asyncio.sleep(3600))
        ]
        for thread in threads:
            thread.start()
        waiting.wait(LONG)
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
    assert [isinstance(end, HoldfastError) for end in ends] == [True, True]


def in_child(act: Callable[[], object]) -> str:
    """Do something in a forked child, and return what it raised; a child that hangs is killed by its own alarm."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(LONG))
        try:
            said = str(act())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        said = told.read()
    os.waitpid(child, 0)
    return said


forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that it has threads is the point


@forks
def test_a_call_after_a_fork_raises_at_once_and_says_what_to_do(tmp_path):
    """gunicorn --preload and uWSGI load the program, then fork: threads stay behind, and a call would wait for ever."""
    engine = Engine(tmp_path / "fork.db", workflows=[work], durability="process")

    def leave() -> str:
        call.close()
        return "left"

    def open_again() -> None:
        with engine.in_thread():
            raise AssertionError("it was opened")

    with engine.in_thread() as call:
        assert call(engine.execute(work, 1)) == 2
        said = in_child(lambda: call(engine.execute(work, 2)))
        assert said.startswith("StoreClosed: ")
        assert "post_worker_init" in said
        assert in_child(call.open) == in_child(open_again) == said
        assert in_child(leave) == "left"
        assert call(engine.execute(work, 3)) == 6


@forks
def test_an_engine_that_is_made_before_a_fork_may_be_opened_after_it(tmp_path):
    """S3-24 A module of a program declares it; each process opens it for itself."""
    engine = Engine(tmp_path / "fork.db", workflows=[work], durability="process")

    def use() -> int:
        with engine.in_thread() as call:
            return call(engine.execute(work, 21))

    assert in_child(use) == "42"
    assert use() == 42


def test_an_engine_is_opened_and_closed_where_a_server_says_when(engine):
    """Without a block: in hooks that are called after a worker was forked, and before it exits."""
    call = engine.in_thread()
    with pytest.raises(HoldfastError, match="not open"):
        call(engine.stats())
    call.open()
    with pytest.raises(HoldfastError, match="open already"):
        call.open()
    assert call(engine.execute(work, 21)) == 42
    call.close()
    call.close()
    with pytest.raises(HoldfastError, match="not open"):
        call(engine.stats())


def test_the_engine_for_tests_works_there_too():
    """S2-40 Time jumps while a result is awaited."""

    @workflow
    async def slow(ctx: Context) -> str:
        await ctx.sleep(timedelta(days=30))
        return "done"

    engine = TestEngine(workflows=[slow])
    with engine.in_thread() as call:
        assert call(engine.execute(slow)) == "done"


# Plain functions as steps.


async def test_a_plain_function_is_a_step_like_any_other(make_engine):
    """S0-5 S3-11 In a thread of its own, with its context, its error and its attempt number."""
    seen: list[tuple[str, int, bool]] = []

    def body(number: int) -> int:
        step = step_context()
        seen.append((step.step, step.attempt, threading.current_thread() is threading.main_thread()))
        if step.attempt == 1:
            raise OSError("not yet")
        return number

    @workflow
    async def job(ctx: Context) -> int:
        return sum(await asyncio.gather(*(ctx.step(f"s{number}", body, number) for number in range(3))))

    engine = await make_engine(job)
    assert await engine.execute(job) == 3
    assert sorted(seen) == [(f"s{number}", attempt, False) for number in range(3) for attempt in (1, 2)]
