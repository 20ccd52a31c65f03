"""The turn that takes the result of a step is made where the step ended, and counts if nothing else came first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.waiting import eventually
from tests.temporal import flows
from tests.temporal.server import missing

if missing():
    pytest.skip(missing(), allow_module_level=True)

from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, Interceptor
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput
from temporalio.worker import Interceptor as WorkerInterceptor

from holdfast import Context, RunCancelled, workflow
from holdfast.temporal import interpreter
from holdfast.temporal.client import starting
from holdfast.temporal.client.connecting import address_of
from holdfast.temporal.wire import VERSION

pytestmark = pytest.mark.leaves("process")  # the server that the tests of the file share


@workflow
async def listening(ctx: Context) -> list[str]:
    made = [await ctx.step("a", flows.mark, "a")]
    made.append(await ctx.receive("word", str))
    made.append(await ctx.step("b", flows.mark, "b"))
    return made


class Between(Interceptor, WorkerInterceptor):
    """Does something once between the end of a body, when its turn is made, and what Temporal is told of it."""

    def __init__(self) -> None:
        self.do: list[Callable[[], Awaitable[object]]] = []

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return Watched(next, self.do)


class Watched(ActivityInboundInterceptor):
    """One activity of a worker that is watched."""

    def __init__(self, next: ActivityInboundInterceptor, do: list[Callable[[], Awaitable[object]]]) -> None:
        super().__init__(next)
        self.do = do

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        result = await self.next.execute_activity(input)
        if self.do and not activity.info().is_local:
            assert "holdfast-ahead" in result.payload.metadata
            await self.do.pop()()
        return result


@pytest.fixture
async def between() -> Between:
    return Between()


@pytest.fixture
async def engine(make_engine, server, between, tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_TEST_NOTES", str(tmp_path))
    place = address_of(server)
    client = await Client.connect(place.target, namespace=place.namespace, interceptors=[between])
    return await make_engine(listening, flows.count, client=client)


def notes(folder) -> list[str]:
    return (folder / "notes").read_text().split()


async def events_of(engine, run) -> list[Any]:
    return [event async for event in engine._client.handle(run.id).fetch_history_events()]


def turns_of(events) -> int:
    return sum(event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED for event in events)


async def test_a_step_is_at_most_7_events_and_1300_bytes(engine):
    """S3-16: of a run of ten steps, its beginning and end included; only the first turn is asked for by Temporal."""
    run = await engine.start(flows.count, 10)
    assert await run.result() == 10
    events = await events_of(engine, run)
    assert turns_of(events) == 1
    assert len(events) <= 72
    assert sum(event.ByteSize() for event in events) <= 13_000


async def test_a_message_that_came_first_is_taken_first(engine, between, tmp_path):
    run = engine.get("first", listening)

    async def send() -> None:
        await run.send("word", "said")
        await eventually(run.messages)

    between.do.append(send)
    await engine.start(listening, id=run.id)
    assert await run.result() == ["a", "said", "b"]
    assert notes(tmp_path) == ["a", "b"]
    assert turns_of(await events_of(engine, run)) == 3  # the first, that of the message, that of the step


async def test_a_run_that_was_paused_first_takes_the_result_when_it_goes_on(engine, between, tmp_path):
    run = engine.get("paused", listening)

    async def is_paused() -> bool:
        return await run.status() == "paused"

    paused = asyncio.Event()

    async def pause() -> None:
        await run.pause()
        await eventually(is_paused)
        paused.set()  # only now may the test let it go on: looked for twice, it could have gone on between the two

    between.do.append(pause)
    await engine.start(listening, id=run.id)
    await paused.wait()
    await run.send("word", "said")
    assert [entry.kind for entry in await run.history()] == ["step"]
    await run.resume()
    assert await run.result() == ["a", "said", "b"]
    assert notes(tmp_path) == ["a", "b"]


async def test_a_run_that_was_cancelled_first_is_cancelled(engine, between, tmp_path):
    run = engine.get("cancelled", listening)

    async def cancel() -> None:
        await run.cancel()

    between.do.append(cancel)
    await engine.start(listening, id=run.id)
    with pytest.raises(RunCancelled):
        await run.result()
    assert notes(tmp_path) == ["a"]


async def test_a_run_that_a_newer_holdfast_began_waits_for_newer_workers(engine, monkeypatch):
    monkeypatch.setattr(starting, "VERSION", VERSION + 1)
    run = await engine.start(flows.count, 1)

    async def is_refused() -> bool:
        failed = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
        return any(
            "begun by a newer holdfast" in event.workflow_task_failed_event_attributes.failure.message
            for event in await events_of(engine, run)
            if event.event_type == failed
        )

    await eventually(is_refused)
    monkeypatch.setattr(interpreter, "VERSION", VERSION + 1)
    assert await run.result() == 1
