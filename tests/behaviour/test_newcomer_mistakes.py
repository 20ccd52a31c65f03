"""Mistakes that everybody makes once: each is told at once, in words that say what to write instead."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Engine, Retry, RunBlocked, RunConflict, RunFailed, activity, workflow
from holdfast.errors import BadInput, DefinitionError, StoreClosed
from holdfast.testing import TestEngine


async def charge(order: str) -> str:
    return f"paid {order}"


async def only_named(*, order: str) -> str:
    return f"paid {order}"


@workflow
async def asks(ctx: Context) -> str:
    answer: Any = ctx.receive("ok", bool, timeout=timedelta(days=1), default=False)
    return "approved!" if answer else "no"


@workflow
async def formats(ctx: Context) -> str:
    return f"{ctx.step(charge, 'a')}"


@workflow
async def uses(ctx: Context) -> str:
    return ctx.step(charge, "a").upper()  # type: ignore[attr-defined]


@workflow
async def hands_on(ctx: Context) -> str:
    receipt: Any = ctx.step(charge, "a")
    return await ctx.step(charge, receipt)


@pytest.mark.parametrize("definition", [asks, formats, uses, hands_on], ids=lambda definition: definition.name)
async def test_a_forgotten_await_is_an_error_that_says_so(make_engine, definition: Any):
    """A verb is neither true nor false, has no text and no attributes: nothing is decided by one not awaited."""
    engine = await make_engine(definition)
    with pytest.raises(RunFailed, match=r"was not awaited at .*test_newcomer_mistakes\.py:\d+: write `await ctx\."):
        await engine.execute(definition)


async def test_a_coroutine_among_the_arguments_of_a_step_is_told(make_engine):
    """The hint is for whatever can be awaited."""

    @workflow
    async def hands_on_a_coroutine(ctx: Context) -> str:
        receipt: Any = charge("a")
        try:
            return await ctx.step(charge, receipt)
        finally:
            receipt.close()

    engine = await make_engine(hands_on_a_coroutine)
    with pytest.raises(RunFailed, match=r"object of type coroutine at \$\[0\] .*: write `await` before the call"):
        await engine.execute(hands_on_a_coroutine)


def misspelt(function: Any) -> Any:
    @workflow
    async def ordering(ctx: Context, right: bool) -> str:
        try:
            return await (ctx.step(function, order="a") if right else ctx.step(function, ordr="a"))
        except BadInput as error:
            await ctx.step(note, str(error))
            raise

    return ordering


async def note(text: str) -> None: ...


class Till:
    async def charge(self, order: str) -> str:
        return f"paid {order}"


@pytest.mark.parametrize("function", [charge, activity(charge), partial(charge), Till().charge])
async def test_a_step_whose_arguments_do_not_fit_is_refused_where_it_is_called(make_engine, function: Any):
    """It takes no attempt, and the run goes on once the code is right."""
    engine = await make_engine(misspelt(function))
    run = await engine.start("ordering", False)
    fits_not = r"'charge' \(test_newcomer_mistakes.py:\d+\) .* do not fit charge\(order\): it has no parameter 'ordr'"
    with pytest.raises(RunFailed, match=fits_not):
        await run.result()
    assert [step.name for step in await run.steps()] == ["note"]


async def test_a_run_that_failed_for_arguments_that_do_not_fit_goes_on_once_they_do(make_engine, mode):
    """Nothing of the call was recorded, so nothing of it has to be kept."""
    if mode == "memory":
        pytest.skip("nothing is left of it")

    def declared(right: bool) -> Any:
        @workflow(name="ordering")
        async def ordering(ctx: Context) -> str:
            await ctx.step(note, "first")
            named: Any = {"order" if right else "ordr": "a"}
            return await ctx.step(charge, **named)

        return ordering

    engine = await make_engine(declared(False))
    run = await engine.start("ordering")
    with pytest.raises(RunFailed, match="it has no parameter 'ordr'"):
        await run.result()
    await engine.stop()
    mended = await make_engine(declared(True), clock=engine.jumping)
    await mended.get(run.id).retry()
    assert await mended.get(run.id).result() == "paid a"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda ctx: ctx.step(charge), "missing a required argument: 'order'"),
        (lambda ctx: ctx.step(charge, "a", "b"), "too many positional arguments"),
        (lambda ctx: ctx.step(only_named), "missing a required"),
        (lambda ctx: ctx.compensate(charge, ordr="a"), "it has no parameter 'ordr'"),
    ],
)
async def test_arguments_that_do_not_fit_are_told_by_name(make_engine, call: Any, told: str):
    """Whatever is wrong with them."""

    @workflow
    async def ordering(ctx: Context) -> None:
        await ctx.step(note, "first")
        await call(ctx)

    engine = await make_engine(ordering)
    with pytest.raises(RunFailed, match=told):
        await engine.execute(ordering)


async def test_calls_that_fit_are_taken_however_the_function_is_made(make_engine):
    """A decorator may pass other arguments than it is given; what does not tell its parameters is not judged."""

    def with_till(function: Any) -> Any:
        @functools.wraps(function)
        async def called(order: str) -> str:
            return await function("till", order)

        return called

    @with_till
    async def paid(till: str, order: str) -> str:
        return f"{till} {order}"

    async def many(*orders: str, sep: str = " ") -> str:
        return sep.join(orders)

    @workflow
    async def ordering(ctx: Context) -> list[str]:
        return [
            await ctx.step(paid, "a"),
            await ctx.step(many),
            await ctx.step(many, "a", "b", "c"),
            await ctx.step(many, "a", "b", sep="+"),
            await ctx.step(only_named, order="a"),
            await ctx.step(partial(charge, order="a")),
            await ctx.step(partial(charge, "a")),
            await ctx.step(Till().charge, "a"),
            await ctx.step(str, "a"),
        ]

    engine = await make_engine(ordering)
    pay = "paid a"
    assert await engine.execute(ordering) == ["till a", "", "a b c", "a+b", pay, pay, pay, pay, "a"]


@pytest.mark.parametrize("mode", ["memory"])
async def test_a_connection_that_is_missing_is_told_and_nothing_is_sent(make_engine):
    """`connection=None` is what a session that has no connection yet says; the message would outlive its rollback."""

    @workflow
    async def hears(ctx: Context) -> str:
        return await ctx.receive("word", str)

    engine = await make_engine(hears)
    run = await engine.start(hears)
    with pytest.raises(BadInput, match="connection=None names no transaction"):
        await run.send("word", "inside", connection=None)
    await run.send("word", "outside")
    assert await run.result() == "outside"


async def test_tasks_and_task_groups_take_verbs(make_engine):
    """S1-12 asyncio insists on coroutines there; a verb is taken all the same."""

    @workflow
    async def parallel(ctx: Context) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.step(charge, name)) for name in ("a", "b")]  # type: ignore[arg-type,var-annotated]
        alone = asyncio.create_task(ctx.step(charge, "c"))  # type: ignore[arg-type,var-annotated]
        return [*(task.result() for task in tasks), await alone]

    engine = await make_engine(parallel)
    assert await engine.execute(parallel) == ["paid a", "paid b", "paid c"]


async def test_a_failed_run_says_where_it_failed(make_engine, caplog):
    """S2-33 In the log, even if nobody asks for the result, and on the error that result() raises."""

    @workflow
    async def broken(ctx: Context) -> str:
        prices: dict[str, str] = {}
        return prices["nope"]

    engine = await make_engine(broken)
    caplog.set_level(logging.WARNING, "holdfast.engine")
    with pytest.raises(RunFailed) as failed:
        await engine.execute(broken)
    assert any("test_newcomer_mistakes.py" in note for note in failed.value.__cause__.__notes__)
    assert any("failed: KeyError" in line and "prices" in line for line in caplog.messages)


@workflow
async def hasty(ctx: Context) -> str:
    ctx.step(charge, "a")
    await ctx.sleep(timedelta(hours=1))
    return "done"


async def test_a_step_that_is_never_awaited_fails_the_run(make_engine):
    """B37 Also one that was evicted meanwhile. With the `await` put in, a retry goes on from what was recorded."""
    engine = await make_engine(hasty)
    run = await engine.start(hasty)
    with pytest.raises(
        RunFailed, match=r"step 'charge' was called at .*test_newcomer_mistakes\.py:\d+ and never awaited"
    ):
        await run.result()
    assert [step.status for step in await run.steps()] == ["completed"]


@pytest.mark.parametrize("mode", ["file"])
async def test_a_run_that_failed_for_a_forgotten_await_goes_on_once_that_is_put_in(make_engine):
    """B37 B8 What the call came to is there, and is given to the `await` that waits for it now."""

    @workflow(name="hasty")
    async def mended(ctx: Context) -> str:
        paid = ctx.step(charge, "a")
        await ctx.sleep(timedelta(hours=1))
        return await paid

    engine = await make_engine(hasty)
    run = await engine.start(hasty, id="hasty")
    with pytest.raises(RunFailed, match="never awaited"):
        await run.result()
    await engine.stop()
    engine = await make_engine(mended)
    await engine.get("hasty").retry()
    assert await engine.get("hasty").result() == "paid a"


async def no_parameters() -> None: ...


async def no_context(order: str) -> None: ...


async def only_by_name(*, ctx: Context) -> None: ...


async def a_list(orders: list[str], ctx: Context) -> None: ...


@pytest.mark.parametrize("function", [no_parameters, no_context, only_by_name, a_list])
def test_a_workflow_without_a_context_is_refused_when_it_is_declared(function: Any):
    """S1-1 Else its input would be taken for the Context, and each run would fail at its first verb."""
    with pytest.raises(DefinitionError, match=rf"{function.__name__}.*must take a Context as its first argument"):
        workflow(function)


def test_a_context_may_be_annotated_in_any_way_or_not_at_all():
    async def plain(ctx, order: str) -> None: ...

    async def anything(ctx: Any) -> None: ...

    async def unknown(ctx: NotImportedHere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    async def either(ctx: Context | None) -> None: ...

    for function in (plain, anything, unknown, either):
        assert workflow(function).function is function


async def test_the_engine_is_refused_in_workflow_code():
    """Started from there a run would be started again by every replay."""
    engines: list[Engine] = []

    @workflow(check=False)
    async def nested(ctx: Context) -> None:
        await engines[0].start("nested")

    async with TestEngine(workflows=[nested]) as engine:
        engines.append(engine)
        with pytest.raises(RunBlocked, match=r"use ctx\.child, ctx\.send or a step"):
            await engine.execute(nested)


async def test_an_engine_inherited_through_a_fork_refuses_to_work(tmp_path: Path):
    """GUARANTEES 2 It raises rather than waiting for a thread that the child does not have."""
    async with Engine(tmp_path / "fork.db", workflows=[asks]) as engine:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                engine._working()
            except StoreClosed:
                os.write(writer, b"refused")
            os._exit(0)
        await asyncio.to_thread(os.waitpid, child, 0)
        assert os.read(reader, 100) == b"refused"
        os.close(reader)
        os.close(writer)


def test_a_first_delay_longer_than_the_usual_cap_is_kept():
    """B4 The default cap of thirty seconds is for delays that grow, not for those that begin longer."""
    assert Retry(initial_interval=timedelta(hours=1)).delay(1) == timedelta(hours=1)
    assert Retry(initial_interval=timedelta(hours=1), max_interval=timedelta(seconds=5)).delay(1) == timedelta(
        seconds=5
    )


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: workflow("name"), "write @workflow"),  # type: ignore[call-overload]
        (lambda: Engine(workflows=asks), "must be a list"),  # type: ignore[arg-type]
        (lambda: activity(raises=ValueError)(charge), "must be a list"),  # type: ignore[call-overload]
        (lambda: activity(charge).options(retries=3), "the options are name, retry, timeout"),
        (lambda: Engine(max_step=3), "the settings are max_resident"),
    ],
)
def test_a_definition_that_is_nearly_right_is_told_what_would_be(mistake: Any, words: str):
    with pytest.raises((BadInput, DefinitionError), match=words):
        mistake()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda ctx: ctx.step(asks), "is a workflow: start it with ctx.child"),
        (lambda ctx: ctx.step(charge("a")), "without calling it"),
        (lambda ctx: ctx.receive("x", timedelta(days=1)), "write timeout="),
    ],
)
async def test_a_verb_that_is_nearly_right_is_told_what_would_be(make_engine, call: Any, words: str):
    @workflow(check=False)
    async def nearly(ctx: Context) -> None:
        await call(ctx)

    engine = await make_engine(nearly)
    with pytest.raises(RunFailed, match=words):
        await engine.execute(nearly)


async def test_a_result_that_does_not_fit_its_annotation_fails_the_run(make_engine):
    """GUARANTEES 6.1 Told where it is returned, not to everybody who asks for the result for ever after."""

    @workflow
    async def five(ctx: Context) -> int:
        return "five"  # type: ignore[return-value]

    engine = await make_engine(five)
    with pytest.raises(RunFailed, match="the result of workflow 'five': Expected `int`, got `str`"):
        await engine.execute(five)


async def test_starting_a_run_that_exists_runs_none_of_its_code(make_engine):
    """G2 S1-43 Whatever its input, and whether it is under way or has ended."""
    began: list[int] = []

    @workflow
    async def once(ctx: Context, number: int) -> int:
        began.append(number)
        return number

    engine = await make_engine(once)
    assert await engine.execute(once, 1, id="x") == 1
    assert await engine.execute(once, 1, id="x") == 1
    with pytest.raises(RunConflict):
        await engine.start(once, 2, id="x")
    assert began == [1]


async def test_a_child_nobody_here_knows_is_reported(make_engine, caplog):
    """B20 It waits for an engine that does; a missing name in workflows=[...] must not look like a hang."""

    @workflow
    async def stranger(ctx: Context) -> None: ...

    @workflow
    async def parent(ctx: Context) -> None:
        await ctx.child(stranger)

    engine = await make_engine(parent)
    await engine.start(parent)
    await engine.settle()
    assert any("knows workflow 'stranger'" in line for line in caplog.messages)
