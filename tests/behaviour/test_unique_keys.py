"""Unique keys: one open run of a workflow has a key; an id is for ever, a key for as long as its run is open."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, RunCancelled, RunFailed, Status, workflow
from holdfast.errors import UniqueConflict

HOUR = timedelta(hours=1)

shared = pytest.mark.parametrize("mode", ["file", "evict"])


@workflow
async def move(ctx: Context, number: int = 0) -> Any:
    word = await ctx.receive("word")
    if word == "fail":
        raise ValueError("no")
    return word


@workflow
async def other(ctx: Context, number: int = 0) -> Any:
    return await ctx.receive("word")


async def test_a_key_that_an_open_run_has_is_refused_with_the_id_of_that_run(make_engine):
    """S0-15 UniqueConstraintError with existingRunId; no code of the new run ran and nothing of it is stored."""
    ran: list[int] = []

    @workflow
    async def work(ctx: Context, number: int) -> None:
        ran.append(number)
        await ctx.receive("word")

    engine = await make_engine(work)
    first = await engine.start(work, 1, unique_key="k")
    with pytest.raises(UniqueConflict, match=f"{first.id}.*on_conflict") as refused:
        await engine.start(work, 2, unique_key="k")
    assert refused.value.run_id == first.id
    await engine.settle()
    assert set(ran) == {1}
    assert [run.id for run in await engine.runs()] == [first.id]
    assert [run.id for run in await engine.runs(unique_key="k")] == [first.id]


async def test_the_run_that_has_the_key_is_returned_when_that_is_wanted(make_engine):
    """S0-16 onConflict ignore: the run there is, whatever its input; no new one."""
    engine = await make_engine(move)
    first = await engine.start(move, 1, unique_key="k")
    again = await engine.start(move, 2, unique_key="k", on_conflict="return")
    assert again.id == first.id
    await again.send("word", "hello")
    assert await again.result() == "hello"
    assert not engine.offers("lists") or len(await engine.runs()) == 1


async def test_a_key_belongs_to_its_workflow(make_engine):
    """S0-17 The same key of another workflow is another key."""
    engine = await make_engine(move, other)
    runs = [await engine.start(each, unique_key="k") for each in (move, other)]
    assert runs[0].id != runs[1].id


async def ended(run: Any, how: str) -> Status:
    if how == "cancel":
        await run.cancel()
    elif how == "terminate":
        await run.terminate()
    elif how in ("fail", "done"):
        await run.send("word", how)
    with suppress(RunCancelled, RunFailed):
        await run.result()
    return await run.status()


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("done", "completed"),
        ("fail", "failed"),
        ("timeout", "failed"),
        ("cancel", "cancelled"),
        ("terminate", "cancelled"),
    ],
)
async def test_a_key_is_free_again_after_every_kind_of_end(make_engine, how, status):
    """S0-17 S0-18 Completed, failed and cancelled, each of which leaves it to the next run."""
    engine = await make_engine(move)
    first = await engine.start(move, unique_key="k", timeout=HOUR)
    assert await ended(first, how) == status
    second = await engine.start(move, unique_key="k")
    assert second.id != first.id
    with pytest.raises(UniqueConflict) as refused:
        await engine.start(move, unique_key="k")
    assert refused.value.run_id == second.id


async def test_a_run_has_its_key_for_as_long_as_it_is_open_whatever_it_does(make_engine):
    """S0-17 Before it begins, while it waits, is paused, or begins a new life."""

    @workflow
    async def lives(ctx: Context, left: int) -> str:
        await ctx.receive("word")
        if left:
            ctx.continue_as_new(left - 1)
        return "done"

    async def held() -> None:
        with pytest.raises(UniqueConflict) as refused:
            await engine.start(lives, 9, unique_key="k")
        assert refused.value.run_id == "holder"

    engine = await make_engine(lives)
    run = await engine.start(lives, 1, id="holder", unique_key="k", delay=HOUR)
    await held()
    await engine.advance(HOUR)
    assert await run.status() is Status.SUSPENDED
    await held()
    await run.pause()
    await engine.settle()
    assert await run.status() is Status.PAUSED
    await held()
    await run.resume()
    await run.send("word")
    await engine.settle()
    assert (await run.describe()).generation == 1
    await held()
    await run.send("word")
    assert await run.result() == "done"
    await engine.start(lives, 0, unique_key="k")


@shared
async def test_a_key_outlives_the_engine(make_engine):
    """S0-17 B16 It is in the store, not in a process."""
    first = await make_engine(move)
    run = await first.start(move, unique_key="k")
    await first.stop()
    second = await make_engine(move, clock=first.jumping)
    with pytest.raises(UniqueConflict) as refused:
        await second.start(move, unique_key="k")
    assert refused.value.run_id == run.id


async def test_an_id_and_a_key_are_two_things(make_engine):
    """B16 G2 The same id gets its run back, ended or not, though the key is taken; a key alone never does."""
    engine = await make_engine(move)
    first = await engine.start(move, 1, id="one", unique_key="k")
    assert (await engine.start(move, 1, id="one", unique_key="k")).id == "one"
    with pytest.raises(UniqueConflict):
        await engine.start(move, 1, id="two", unique_key="k")
    await ended(first, "done")
    second = await engine.start(move, 1, id="two", unique_key="k")
    assert (await engine.start(move, 1, id="one", unique_key="k")).id == "one"
    assert await second.status() in (Status.RUNNING, Status.SUSPENDED, Status.PENDING)


@shared
@pytest.mark.parametrize("on_conflict", ["raise", "return"])
async def test_fifty_starts_of_one_key_from_two_engines_give_one_run(make_engine, on_conflict):
    """S0-15 S0-16 G2 One winner; everybody else is told of it, or given it."""
    first = await make_engine(move)
    second = await make_engine(move, clock=first.jumping)
    starts = [
        (first, second)[number % 2].start(move, number, unique_key="k", on_conflict=on_conflict) for number in range(50)
    ]
    ends = await asyncio.gather(*starts, return_exceptions=True)
    (winner,) = await first.runs()
    if on_conflict == "return":
        assert [end.id for end in ends] == [winner.id] * 50
    else:
        refused = [end for end in ends if isinstance(end, UniqueConflict)]
        assert len(refused) == 49
        assert {end.run_id for end in refused} == {winner.id}


@shared
async def test_a_start_that_meets_the_end_of_the_holder_is_refused_or_first_in_line(make_engine):
    """S0-18 G6 Whatever the order of the commits: never two open runs with one key, and every end is as it was told."""
    first = await make_engine(move)
    second = await make_engine(move, clock=first.jumping)
    run = await first.start(move, unique_key="k")
    for number in range(10):
        *_, next_run = await asyncio.gather(
            run.send("word", "done"),
            run.result(),
            second.start(move, number, unique_key="k", on_conflict="return"),
        )
        if next_run.id == run.id:  # the holder was still open
            next_run = await second.start(move, number, unique_key="k")
        assert [each.id for each in await second.runs(unique_key="k") if not each.status.is_terminal] == [next_run.id]
        assert await first.get(run.id).status() is Status.COMPLETED
        run = next_run
    assert len(await first.runs()) == 11
