"""Which call a compensation undoes: told when it is registered, and on record with it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.driving import Recording, assert_deterministic, assert_replays, finished, live

from holdfast import Context, workflow
from holdfast.context.api import Break, Continue
from holdfast.errors import BadInput
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry
from holdfast.replay.location import Names

SEEDS = range(8)
SECOND = timedelta(seconds=1)


def work(x: Any = None) -> Any:
    return x


def undo(what: str) -> None: ...


def tell(what: str) -> None: ...


def fail() -> None:
    raise ValueError("no")


def undoes(rows: Any) -> dict[str, str]:
    """Return the path of what each compensation undoes, by the first argument it is given."""
    names = Names()
    for row in rows:
        if row.kind == entries.Name.kind:
            names.add(decode_entry(row.kind, row.data).name)
    added = [decode_entry(row.kind, row.data) for row in rows if row.kind == entries.CompensationAdded.kind]
    return {bytes(each.args).decode()[2:-2]: names.path(each.undoes) for each in added}


def of(flow: Any, seed: int = 0, **options: Any) -> dict[str, str]:
    """Run a workflow in some order of events; it must replay, and go on alike, from every cut of its history."""
    recording: Recording = live(flow, seed=seed, **options)
    assert_replays(recording)
    found = undoes(recording.rows)
    if not options:
        for stored in recording.stored[:-1]:
            again = finished(flow, stored)[1]
            assert {name: path for name, path in undoes(again).items() if name in undoes(stored)} == undoes(stored)
            assert undoes(again).keys() == found.keys()
    return found


def test_it_is_the_step_that_ended_last_in_the_branch():
    """B17 Steps that nothing undoes are passed over; waits and retries between them change nothing."""

    @workflow
    async def order(ctx: Context) -> None:
        await ctx.step("look", work)
        await ctx.step("reserve", work)
        ctx.compensate(undo, "reserve")
        await ctx.step("print", work)
        await ctx.step("charge", work)
        await ctx.sleep(SECOND)
        ctx.compensate(undo, "charge")
        await ctx.step(fail)

    assert of(order) == {"reserve": "reserve", "charge": "charge"}
    assert_deterministic(order)


def test_a_step_is_undone_by_one_compensation_only():
    """B17 What is registered after it stands for no other step."""

    @workflow
    async def order(ctx: Context) -> None:
        await ctx.step("look", work)
        await ctx.step("charge", work)
        ctx.compensate(undo, "charge")
        ctx.compensate(tell, "told")
        await ctx.sleep(SECOND)
        ctx.compensate(tell, "told later")

    assert of(order) == {"charge": "charge", "told": "", "told later": ""}


def test_before_anything_was_done_there_is_nothing_to_undo():
    """B17"""

    @workflow
    async def order(ctx: Context) -> None:
        ctx.compensate(tell, "told")
        await ctx.step("charge", work)
        ctx.compensate(undo, "charge")

    assert of(order) == {"told": "", "charge": "charge"}


@pytest.mark.parametrize("seed", SEEDS)
def test_several_in_a_row_undo_steps_that_ran_side_by_side_in_the_order_of_their_calls(seed: int):
    """B17 Whichever of them ended first."""

    @workflow
    async def order(ctx: Context) -> None:
        await ctx.step("before", work)
        await asyncio.gather(*(ctx.step(name, work) for name in "abc"))
        ctx.compensate(undo, "a")
        ctx.compensate(undo, "b")
        ctx.compensate(undo, "c")
        ctx.compensate(tell, "told")

    assert of(order, seed) == {"a": "a", "b": "b", "c": "c", "told": ""}


@pytest.mark.parametrize("seed", SEEDS)
def test_code_that_runs_side_by_side_registers_for_its_own_step(seed: int):
    """B17 In the order in which the steps end, and whatever ends beside them."""

    @workflow
    async def order(ctx: Context) -> None:
        async def undoable(name: str) -> None:
            await ctx.step(name, work)
            ctx.compensate(undo, name)

        await asyncio.gather(ctx.step("first", work), undoable("a"), ctx.step("between", work), undoable("b"))

    assert of(order, seed) == {"a": "a", "b": "b"}


def test_it_is_the_step_called_last_if_none_has_ended_since():
    """B17 Called, registered, awaited: whatever ended before it."""

    @workflow
    async def order(ctx: Context) -> None:
        await ctx.step("look", work)
        charging = ctx.step("charge", work)
        ctx.compensate(undo, "charge")
        await charging
        ctx.compensate(tell, "told")
        both = [ctx.step("a", work), ctx.step("b", work)]
        ctx.compensate(undo, "a")
        ctx.compensate(undo, "b")
        await asyncio.gather(*both)

    for seed in SEEDS:
        assert of(order, seed) == {"charge": "charge", "told": "", "a": "a", "b": "b"}


def test_a_step_that_was_given_up_is_undone_too():
    """B17 It may have had an effect."""

    @workflow
    async def order(ctx: Context) -> None:
        await ctx.step("look", work)
        try:
            async with asyncio.timeout(0):
                await ctx.step("charge", work)
        except TimeoutError:
            ctx.compensate("charge", undo, "charge")

    assert of(order) == {"charge": "charge"}


def test_a_step_can_be_named():
    """B17 By the name that it goes by in its branch; a repeated one with its number."""

    @workflow
    async def order(ctx: Context) -> None:
        await asyncio.gather(ctx.step("a", work), ctx.step("b", work))
        ctx.compensate("b", undo, "b")
        ctx.compensate(undo, "a")
        for _ in range(3):
            await ctx.step(work)
        ctx.compensate("work#2", undo, "second")
        ctx.compensate("work", undo, "first")

    assert of(order) == {"a": "a", "b": "b", "second": "work#2", "first": "work"}


@pytest.mark.parametrize("name", ["chrage", "charge#2", "charge#x", "charge#0", ""])
def test_a_name_that_was_not_called_is_refused(name: str):
    """B17 A slip of the pen would make a step free of charge."""

    @workflow
    async def order(ctx: Context) -> None:
        await ctx.step("charge", work)
        ctx.compensate(name, undo, "it")

    outcome = live(order).outcome
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.message == f"ctx.compensate({name!r}, ...): no step {name!r} was called in this branch before"


def test_a_name_needs_a_function_after_it():
    @workflow
    async def order(ctx: Context) -> None:
        await ctx.step("charge", work)
        with pytest.raises(BadInput, match=r"ctx.compensate\('charge', ...\) needs a function after the name"):
            ctx.compensate("charge", 500)  # type: ignore[call-overload]

    assert live(order).outcome is not None


def test_a_child_is_undone_as_a_step_is():
    """B17 A completed child is undone only by what its parent registers."""

    @workflow
    async def order(ctx: Context) -> None:
        await ctx.step("look", work)
        await ctx.child("other", id="kid")
        ctx.compensate(undo, "kid")

    assert undoes(live(order).rows) == {"kid": "other"}


def test_branches_are_told_apart_and_a_join_is_undone_as_a_whole():
    """B17 B8 Unless its branches have registered what undoes them."""

    async def pay(branch: Context) -> None:
        await branch.step("pay", work)

    async def pay_and_register(branch: Context) -> None:
        await branch.step("pay", work)
        await branch.sleep(SECOND)
        branch.compensate(undo, "left")

    @workflow
    async def order(ctx: Context) -> None:
        await ctx.step("look", work)
        await ctx.join("own", {"left": pay_and_register, "right": pay})
        ctx.compensate(tell, "told")
        await ctx.join("whole", {"left": pay, "right": pay})
        ctx.compensate(undo, "whole")
        ctx.compensate(tell, "told again")
        await ctx.race("first", {"left": pay, "right": pay})
        ctx.compensate(undo, "first")
        ctx.compensate("own", undo, "own")

    for seed in SEEDS:
        assert of(order, seed) == {
            "left": "own/left/pay",
            "told": "",
            "whole": "whole",
            "told again": "",
            "first": "first",
            "own": "own",
        }


def test_a_loop_is_undone_as_a_whole_and_an_iteration_by_what_it_registers():
    """B17 Both forms of a loop, after their end."""

    @workflow
    async def order(ctx: Context) -> None:
        async def body(ctx: Context, state: int) -> Any:
            await ctx.step(work, state)
            return Continue(state + 1) if state < 2 else Break(state)

        await ctx.loop("function", body, state=0)
        ctx.compensate(undo, "function")
        async for it in ctx.loop("for", state=0):
            await it.step(work, it.index)
            if it.index:
                break
        ctx.compensate(undo, "for")
        async for it in ctx.loop("own", state=0):
            await it.step(work, it.index)
            it.compensate(undo, f"own {it.index}")
            if it.index:
                break
        ctx.compensate(tell, "told")

    found = of(order)
    assert found.pop("own 0") == "own/~0/work"
    assert found == {"function": "function", "for": "for", "own 1": "own/~1/work", "told": ""}


def test_a_new_life_does_not_have_the_steps_of_the_one_before():
    """B17 Its compensations do, without saying what they undo: that history is gone."""

    @workflow
    async def order(ctx: Context) -> None:
        await ctx.step("charge", work)
        ctx.compensate(undo, "charge")
        ctx.continue_as_new()

    turn = finished(order, [])[0]
    assert [each.undoes for each in turn.carried] == [""]
