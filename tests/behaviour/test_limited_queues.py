"""Limits of steps in queues: counted in the database, for all workers that serve the queue, in one line with others."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.support.limit_cases import START, Service, calling
from tests.support.waiting import LONG, eventually

from holdfast import Context, NotReady, Retry, RunCancelled, RunFailed, Status, activity, workflow
from holdfast.contract.limits import CorrectPlaces, TakeTasks, TasksTaken
from holdfast.contract.operations import FinishTask
from holdfast.engine.steps.queue import incoming
from holdfast.engine.worker import committer
from holdfast.errors import DefinitionError, RetryAfter, UnknownLimit
from holdfast.limits import Limit

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
BOTH = ["default", "gpu"]
ONE = [Limit(name="service", at_once=1)]
TWO = [Limit(name="service", at_once=2)]


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def make(make_engine: Any) -> Any:
    async def make(*workflows: Any, **options: Any) -> Any:
        return await make_engine(*workflows, queues=BOTH, **options)

    return make


def queued(body: Any, **options: Any) -> Any:
    return calling(body, queue="gpu", **options)


async def used(engine: Any) -> tuple[int, int, int]:
    """Return how many places of the limit are used, are granted, and how many wait."""
    [row] = await engine.store.limits()
    return row.used, row.granted, row.waiting


async def counts(engine: Any, *wanted: int) -> None:
    async def right() -> bool:
        return await used(engine) == wanted

    await eventually(right)


async def test_no_more_than_allowed_run_at_once_and_the_others_are_in_line(make, service):
    """S4-19 They run in the order in which they came."""
    caller = queued(service.stay)
    service.engine = engine = await make(caller, limits=TWO)
    runs = [await engine.start(caller, number) for number in range(8)]
    await counts(engine, 2, 0, 6)
    await eventually(lambda: service.inside == 2)  # a place is taken before its body begins
    assert (service.inside, engine.bodies) == (2, 2)
    service.go.set()
    assert [await run.result() for run in runs] == list(range(8))
    assert service.most == 2
    assert [name for _, name in service.calls] == list(range(8))
    await counts(engine, 0, 0, 0)


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_two_engines_share_the_limit_of_a_queue(make, service):
    """S4-19 S0-60 "2 at once" are two, however many workers serve the queue."""
    caller = queued(service.stay)
    service.engine = first = await make(caller, limits=TWO, start=START)
    second = await make(caller, limits=TWO, clock=first.jumping)
    runs = [await engine.start(caller, number) for number in range(4) for engine in (first, second)]
    await counts(first, 2, 0, 6)
    await eventually(lambda: service.inside == 2)  # a place is taken before its body begins
    assert service.inside == 2
    service.go.set()
    for run in runs:
        await asyncio.wait_for(run.result(), LONG)
    assert service.most == 2
    await counts(first, 0, 0, 0)


async def test_steps_with_and_without_a_queue_share_one_limit(make, service):
    """S4-19"""
    plain, far = calling(service.stay), queued(service.stay)
    far.name = "far"
    service.engine = engine = await make(plain, far, limits=ONE)
    runs = [await engine.start(plain, 0)]
    await eventually(lambda: service.inside == 1)
    for number, kind in enumerate((far, plain, far), 1):
        runs.append(await engine.start(kind, number))
        await counts(engine, 1, 0, number)
    service.go.set()
    for run in runs:
        await run.result()
    assert service.most == 1
    assert [name for _, name in service.calls] == [0, 1, 2, 3]


async def test_a_rate_spreads_the_begins_of_tasks_over_time(make, service):
    """S4-19 Without a slot, without a skip, and by the same attempt number."""
    caller = queued(service.call, retry=Retry.never, max_skips=0)
    limit = Limit(name="service", rate=2, per=10 * SECOND)
    service.engine = engine = await make(caller, start=START, limits=[limit])
    runs = [await engine.start(caller, number) for number in range(6)]
    await engine.settle()
    assert service.times == [0, 0]
    for run in runs:
        await run.result()
    assert service.times == [0, 0, 10, 10, 20, 20]
    (step,) = await runs[5].steps()
    assert (step.attempts, step.failures, step.skips) == (1, 0, 0)


async def test_each_key_has_a_budget_of_its_own(make, service):
    """S4-19"""

    @activity(queue="gpu", limit="service", limit_key=lambda tenant, number: tenant)
    async def call(tenant: str, number: int) -> None:
        await service.call(tenant)

    @workflow
    async def tenants(ctx: Context, tenant: str, number: int) -> None:
        await ctx.step(call, tenant, number)

    limit = Limit(name="service", rate=1, per=MINUTE)
    service.engine = engine = await make(tenants, start=START, limits=[limit])
    runs = [await engine.start(tenants, tenant, number) for number in range(2) for tenant in ("a", "b")]
    for run in runs:
        await run.result()
    by_tenant = {tenant: [at for at, name in service.calls if name == tenant] for tenant in ("a", "b")}
    assert by_tenant == {"a": [0, 60], "b": [0, 60]}


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_what_a_service_said_to_one_worker_holds_for_all(make, service):
    """S4-19 One is told 429; everything under that limit waits, on every worker and after a restart."""
    caller = queued(service.call, retry=Retry.never)
    limits = [Limit(name="service")]
    service.answers[1] = RetryAfter(MINUTE, "429")
    service.engine = engine = await make(caller, start=START, limits=limits)
    await engine.start(caller, 1, id="told")
    await engine.settle()
    await engine.stop()
    service.engine = second = await make(caller, clock=engine.jumping, limits=limits)
    assert await second.execute(caller, 2) == 2
    assert await second.get("told").result() == 1
    assert service.times == [0, 60, 60]


async def test_a_service_that_is_down_is_asked_by_one_while_the_others_wait(make, service):
    """S4-19 Two failures in a row: nothing begins for a minute, then one tries."""
    caller = queued(service.call, retry=Retry(max_attempts=50, initial_interval=SECOND, coefficient=1.0))
    limit = Limit(name="service", trip_after=2, cool_down=MINUTE)
    service.answers.update({number: ConnectionError("down") for number in range(1, 4)})
    service.engine = engine = await make(caller, start=START, limits=[limit])
    runs = []
    for number in range(2):
        runs.append(await engine.start(caller, number))
        await engine.settle()
    runs.append(await engine.start(caller, 2))
    await engine.settle()
    assert len(service.calls) == 2, "the circuit is open"
    assert sorted([await run.result() for run in runs]) == [0, 1, 2]
    assert service.times[:4] == [0, 0, 60, 120]


@pytest.mark.parametrize("how", ["cancel", "terminate", "pause"])
async def test_a_task_in_line_can_be_stopped_and_leaves_nothing_behind(make, service, how):
    """S4-19 B7 B25 The one that waited never runs; the one behind it does."""
    caller = queued(service.stay)
    service.engine = engine = await make(caller, limits=ONE)
    inside = await engine.start(caller, 1)
    await eventually(lambda: service.inside == 1)
    stopped = await engine.start(caller, 2)
    await counts(engine, 1, 0, 1)
    last = await engine.start(caller, 3)
    await counts(engine, 1, 0, 2)
    await getattr(stopped, how)()
    await counts(engine, 1, 0, 1)
    service.go.set()
    assert [await inside.result(), await last.result()] == [1, 3]
    assert await stopped.status() is (Status.PAUSED if how == "pause" else Status.CANCELLED)
    assert [name for _, name in service.calls] == [1, 3]
    if how == "pause":
        await stopped.resume()
        assert await stopped.result() == 2
    await counts(engine, 0, 0, 0)


async def test_one_that_is_cancelled_inside_gives_its_place_to_the_next(make, service):
    """S4-19 B7"""
    caller = queued(service.stay)
    service.engine = engine = await make(caller, limits=ONE)
    inside = await engine.start(caller, 1)
    await eventually(lambda: service.inside == 1)
    following = await engine.start(caller, 2)
    await counts(engine, 1, 0, 1)
    await inside.cancel()
    await eventually(lambda: len(service.calls) == 2)
    service.go.set()
    assert await following.result() == 2
    with pytest.raises(RunCancelled):
        await inside.result()
    assert service.most == 1
    await counts(engine, 0, 0, 0)


@pytest.mark.parametrize("mode", ["evict"])
async def test_the_places_of_a_worker_that_dies_are_free(make, service):
    """S4-19 G4 Its attempt is made again, and another waits no longer than that takes."""
    caller = queued(service.stay)
    service.engine = office = await make(caller, limits=ONE, start=START)
    runs = [await office.start(caller, number) for number in range(3)]
    await counts(office, 1, 0, 2)
    await office.crash()
    service.inside, service.most = 0, 0
    service.go.set()
    second = await make(caller, limits=ONE, clock=office.jumping)
    for run in runs:
        await asyncio.wait_for(second.get(run.id).result(), LONG)
    assert service.most == 1
    await counts(second, 0, 0, 0)


async def test_a_thread_that_was_given_up_keeps_its_place_until_it_returns(make):
    """S4-19 Its attempt has timed out; what it does to the service goes on."""
    go = threading.Event()
    inside, most = 0, 0

    def call(name: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if name == 1:
            go.wait()
        inside -= 1
        return name

    options: dict[str, Any] = {"queue": "gpu", "limit": "service", "retry": Retry.never}
    given_up = activity(name="given_up", timeout=timedelta(milliseconds=50), **options)(call)
    waited_for = activity(name="waited_for", **options)(call)

    @workflow
    async def caller(ctx: Context, name: int) -> int:
        return await ctx.step(given_up if name == 1 else waited_for, name)

    engine = await make(caller, limits=ONE)
    while not inside:  # on a busy machine a body may time out before its thread begins
        first = await engine.start(caller, 1)
        with pytest.raises(RunFailed):
            await first.result()
    second = await engine.start(caller, 2)
    await counts(engine, 1, 0, 1)
    go.set()
    assert await second.result() == 2
    assert most == 1
    await counts(engine, 0, 0, 0)


async def test_a_limit_that_no_engine_declares_fails_the_step_by_name(make, service):
    """S4-19"""
    caller = queued(service.call)
    service.engine = engine = await make(caller, start=START)
    run = await engine.start(caller, 1)
    with pytest.raises(RunFailed) as caught:
        await run.result()
    assert isinstance(caught.value.__cause__, UnknownLimit)
    assert service.calls == []


@pytest.mark.parametrize("bad", [lambda name: 7, lambda name: 1 / 0])
async def test_a_key_that_cannot_be_made_fails_the_step_and_takes_no_place(make, service, bad):
    """S4-19"""
    caller = queued(service.call, limit_key=bad, retry=Retry.never)
    service.engine = engine = await make(caller, start=START, limits=ONE)
    run = await engine.start(caller, 1)
    with pytest.raises(RunFailed) as caught:
        await run.result()
    assert isinstance(caught.value.__cause__, DefinitionError | ZeroDivisionError)
    assert service.calls == []
    assert await used(engine) == (0, 0, 0)


@pytest.mark.parametrize("mode", ["evict", "postgres"])
@pytest.mark.parametrize("answer", ["lost", "failed"])
async def test_the_end_of_a_task_that_is_told_twice_gives_its_place_back_once(make, service, answer):
    """S4-19 G4 Whether its first telling was written or not, the counts are right in the end."""
    caller = queued(service.stay)
    service.engine = engine = await make(caller, limits=TWO)
    runs = [await engine.start(caller, number) for number in range(4)]
    await counts(engine, 2, 0, 2)
    await eventually(lambda: service.inside == 2)  # a place is taken before its body begins
    fault = (engine.faults.lose_answer if answer == "lost" else engine.faults.fail)(None, only=FinishTask)
    service.go.set()
    await fault.happened()
    fault.heal()
    for run in runs:
        await asyncio.wait_for(run.result(), LONG)
    assert service.most == 2
    await counts(engine, 0, 0, 0)


@pytest.mark.parametrize("mode", ["evict"])
async def test_a_correction_of_counts_that_fails_is_made_again_soon(make, service):
    """S4-19 The store fails when an attempt ends, and again when the worker says what it has: its lease is long."""
    caller = queued(service.call)
    service.engine = engine = await make(caller, limits=ONE, lease=timedelta(hours=1))
    ending = engine.faults.fail(None, only=FinishTask)
    run = await engine.start(caller, 1)
    await ending.happened()
    correcting = engine.faults.fail(None, only=CorrectPlaces)
    await eventually(lambda: correcting.injected > len(committer._RETRIES))  # then it is given up
    ending.heal()
    correcting.heal()
    assert await asyncio.wait_for(run.result(), LONG) == 1
    await counts(engine, 0, 0, 0)


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_a_place_that_was_taken_without_its_worker_knowing_is_given_back(make, service):
    """S4-19 G4 The claim was written, but its answer was lost."""
    caller = queued(service.call)
    service.engine = engine = await make(caller, limits=ONE, start=START)
    lost = engine.faults.lose_answer(None, only=TakeTasks)
    run = await engine.start(caller, 1)
    await lost.happened()
    lost.heal()
    assert await asyncio.wait_for(run.result(), LONG) == 1
    await counts(engine, 0, 0, 0)


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_an_end_whose_answer_was_lost_does_not_end_the_next_attempt_that_has_its_number(
    make_engine, service, monkeypatch
):
    """S4-19 G1 G5 It was put off, so that it keeps its number. A second body would begin beside that of the first."""
    monkeypatch.setattr(incoming, "_FIRST_PAUSE", 0.3)
    answers = [NotReady("offline", timedelta(milliseconds=1)), True, True]
    caller = queued(service.stay, run_when=lambda context: answers.pop(0))
    first = await make_engine(caller, limits=TWO, queues=["default"], start=START)
    service.engine = second = await make_engine(caller, limits=TWO, queues=["gpu"], clock=first.jumping)
    lost = second.faults.lose_answer(only=FinishTask)
    result = asyncio.create_task((await first.start(caller, 1)).result())
    await eventually(lambda: service.inside == 1)
    assert lost.injected == 1
    await asyncio.sleep(0.5)  # in which it would be told again
    service.go.set()
    assert await asyncio.wait_for(result, LONG) == 1
    await counts(first, 0, 0, 0)
    assert len(service.calls) == 1


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_an_end_is_not_told_again_while_a_claim_that_may_bring_the_next_attempt_is_under_way(
    make_engine, service, monkeypatch
):
    """G1 G5 That attempt has its number, and this worker does not know of it yet."""
    monkeypatch.setattr(incoming, "_FIRST_PAUSE", 0.2)
    answers = [NotReady("offline", timedelta(milliseconds=1)), True, True]
    caller = calling(service.stay, queue="gpu", limit=None, run_when=lambda context: answers.pop(0))
    first = await make_engine(caller, queues=["default"], start=START)
    service.engine = second = await make_engine(caller, queues=["gpu"], clock=first.jumping)
    lost = second.faults.lose_answer(only=FinishTask)
    slow = second.faults.hold(at="claim_tasks", moment="after", skip=1)
    result = asyncio.create_task((await first.start(caller, 1)).result())
    await slow.happened()
    assert lost.injected == 1
    before = second.faults.commits  # on a slow machine it was told again before the claim, which may be
    await asyncio.sleep(0.3)  # in which it would be told again
    told = [each for batch in second.faults.batches[before:] for each in batch if isinstance(each, FinishTask)]
    assert told == []
    slow.release()
    await eventually(lambda: service.inside == 1)
    service.go.set()
    assert await asyncio.wait_for(result, LONG) == 1
    assert len(service.calls) == 1


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_an_attempt_is_not_handed_back_while_the_claim_that_takes_it_is_under_way(make, service):
    """S4-19 G1 G5 A worker hands back what the store gave it without its knowing; the answer may only be slow."""
    caller = queued(service.stay)
    service.engine = engine = await make(caller, limits=TWO)
    slow = engine.faults.hold(moment="after", only=lambda outcomes: any(map(_took, outcomes)))
    run = await engine.start(caller, 1)
    await slow.happened()
    worker = engine._link.worker
    for _ in range(3):
        await worker.tasks.check(worker.id)
    slow.release()
    await eventually(lambda: service.inside == 1)
    service.go.set()
    assert await asyncio.wait_for(run.result(), LONG) == 1
    await counts(engine, 0, 0, 0)
    assert len(service.calls) == 1
    (step,) = await run.steps()
    assert step.attempts == 1


def _took(outcome: Any) -> bool:
    return isinstance(outcome, TasksTaken) and bool(outcome.tasks)
