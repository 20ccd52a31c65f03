"""Retrying families: a parent that failed by its child, the child by itself, and both at once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.acts_cases import Flaky, Gate, moments
from tests.support.waiting import eventually

from holdfast import ChildFailed, Context, Retry, RunFailed, Status, activity, step_context, workflow
from holdfast.contract.operations import Purge
from holdfast.errors import CannotReopen
from holdfast.testing.invariants import violations

restarts = pytest.mark.parametrize("mode", ["file", "evict"])


async def fails(run: Any, match: str | None = None) -> None:
    with pytest.raises(RunFailed, match=match):
        await run.result()


@workflow
async def parent(ctx: Context) -> str:
    return "parent of " + await ctx.child(child, id="kid")


@workflow
async def child(ctx: Context) -> str:
    return await ctx.step("work", family_step, "work")


family = Flaky()
gate = Gate()


@activity(retry=Retry.never)
async def family_step(name: str) -> str:
    if "gated" in family.failing:
        return await gate(name)
    return await family.body(name)


@pytest.fixture
def failing_family() -> Flaky:
    family.failing, family.ran = {"work"}, []
    gate.begun.clear()
    gate._may_end.clear()
    return family


async def test_retry_of_a_parent_retries_the_child_that_failed_it(make_engine, failing_family):
    """B8 G10 The same child goes on where it failed; no second one is started."""
    engine = await make_engine(parent, child)
    run = await engine.start(parent)
    await fails(run, "ChildFailed")
    failing_family.failing.clear()
    await run.retry()
    assert await run.result() == "parent of work"
    assert [each.id for each in await engine.runs(workflow="child")] == ["kid"]
    assert (await engine.get("kid").describe()).reopened == 1


async def test_a_child_that_was_retried_by_itself_is_heard_by_its_parents_retry(make_engine, failing_family):
    """B8 G10 It has completed meanwhile, or is still under way: its result is taken once."""
    engine = await make_engine(parent, child)
    run = await engine.start(parent)
    await fails(run)
    failing_family.failing.clear()
    await engine.get("kid").retry()
    assert await engine.get("kid").result() == "work"
    assert await run.status() is Status.FAILED
    await run.retry()
    assert await run.result() == "parent of work"
    assert (await engine.get("kid").describe()).reopened == 1


async def test_a_child_that_is_under_way_again_is_waited_for(make_engine, failing_family):
    """B8 G10 The parent's retry finds it open."""
    engine = await make_engine(parent, child)
    run = await engine.start(parent)
    await fails(run)
    failing_family.failing = {"gated"}
    await engine.get("kid").retry()
    await gate.entered("work")
    await run.retry()
    await moments()
    gate.open("work")
    assert await run.result() == "parent of work"


@restarts
async def test_a_child_that_ends_while_its_parent_is_retried_is_heard(make_engine, failing_family):
    """B8 G10 It was open when the retry looked and has ended when the retry is written: no lost wake-up."""
    engine = await make_engine(parent, child)
    run = await engine.start(parent)
    await fails(run)
    failing_family.failing = {"gated"}
    await engine.get("kid").retry()
    await gate.entered("work")

    async def end() -> None:
        gate.open("work")
        await engine.get("kid").result()

    looked = engine.faults.call(end, at="get", moment="after", only=lambda row: row is not None and row.id == "kid")
    await run.retry()
    assert looked.injected == 1
    await engine.settle()
    assert await run.status() is Status.COMPLETED


async def test_only_the_children_that_failed_it_are_retried_with_a_parent(make_engine, failing_family):
    """B8 B18 A child that nobody waited for stays as it is."""

    @workflow
    async def starter(ctx: Context) -> str:
        ctx.child(child, id="alone")
        return await ctx.child(child, id="kid")

    engine = await make_engine(starter, child)
    run = await engine.start(starter)
    await fails(run)
    await engine.settle()
    failing_family.failing.clear()
    await run.retry()
    assert await run.result() == "work"
    assert await engine.get("alone").status() is Status.FAILED
    assert (await engine.get("alone").describe()).reopened == 0


async def test_a_whole_line_of_descendants_is_retried_in_one_go(make_engine, failing_family):
    """B8 G10 Down to the step that failed, each run once."""

    @workflow
    async def line(ctx: Context, depth: int) -> str:
        if depth == 0:
            return await ctx.step("work", family_step, "work")
        return f"{depth} " + await ctx.child(line, depth - 1, id=f"depth-{depth - 1}")

    engine = await make_engine(line)
    run = await engine.start(line, 4, id="depth-4")
    await fails(run)
    failing_family.failing.clear()
    await run.retry(by="kim")
    assert await run.result() == "4 3 2 1 work"
    assert failing_family.ran == ["work", "work"]
    found = await engine.runs(workflow="line")
    assert [(each.status, each.reopened) for each in found] == [(Status.COMPLETED, 1)] * 5
    if engine.offers("audit"):
        assert [record.target for record in await engine.audit.records()] == ["depth-4"]


async def test_a_family_is_retried_as_a_whole_or_not_at_all(make_engine, failing_family):
    """B8 The child was deleted meanwhile: its parent stays failed, and the error says why."""

    @workflow
    async def patient(ctx: Context) -> None:
        try:
            await ctx.child(child, id="kid")
        except ChildFailed:
            await ctx.sleep(timedelta(hours=1))
            raise

    engine = await make_engine(patient, child)
    run = await engine.start(patient)
    await fails(run)
    await engine.store.apply([Purge(what="failed", before=engine.clock.now(), at=engine.clock.now())])
    before = await run.describe()
    assert await engine.store.get("kid") is None
    failing_family.failing.clear()
    with pytest.raises(CannotReopen, match="child 'kid'"):
        await run.retry()
    assert await run.describe() == before
    assert await engine.audit.records() == []


@pytest.mark.parametrize("follows", [True, False])
async def test_a_resumed_parent_goes_on_with_a_child_that_was_cancelled_meanwhile(make_engine, follows):
    """G10 B8 The child is let go on with its parent, whose cancel it was, or who waits for it again."""

    @workflow
    async def kid(ctx: Context) -> int:
        return await ctx.receive("go", int)

    @workflow
    async def parent(ctx: Context) -> int:
        return await ctx.child(kid, id="kid", cancel_with_parent=follows)

    engine = await make_engine(parent, kid)
    run = await engine.start(parent)
    await engine.settle()
    await run.cancel()
    await engine.settle()
    await engine.get("kid").cancel()
    await engine.settle()
    await run.resume()
    await engine.settle()
    await engine.get("kid").send("go", 7)
    assert await run.result() == 7


# Fan-outs.


nightly = Flaky()


@workflow
async def import_one(ctx: Context, name: str) -> str:
    return await ctx.step("load", nightly.step, name)


@workflow
async def import_all(ctx: Context, names: list[str], from_failure: bool) -> list[str]:
    started = [ctx.child(import_one, name, id=f"import-{name}") for name in names]
    done = await asyncio.gather(*started, return_exceptions=True)
    failed = [each for each in done if isinstance(each, ChildFailed)]
    if failed and from_failure:
        raise RuntimeError(f"{len(failed)} imports failed") from ExceptionGroup("imports", failed)
    if failed:
        raise RuntimeError(f"{len(failed)} imports failed")
    return [await ctx.step("sum up", nightly.step, f"sum of {len(done)}")]


async def test_a_run_that_names_the_failures_it_collected_is_retried_with_those_children_alone(make_engine):
    """B8 S4-24 What is done again is told before, with `dry_run`, and after; siblings keep their results."""
    nightly.failing, nightly.ran = {"b", "d"}, []
    engine = await make_engine(import_all, import_one)
    run = await engine.start(import_all, ["a", "b", "c", "d"], True)
    await fails(run, "2 imports failed")
    nightly.failing.clear()
    nightly.ran.clear()
    shown = await run.retry(dry_run=True)
    assert sorted(shown.children) == ["import-b", "import-d"]
    assert (shown.steps, shown.unsure) == ((), {})
    assert shown.since.startswith("the failure of child ")
    assert await run.status() is Status.FAILED
    assert not engine.offers("audit") or await engine.audit.records() == []
    assert await run.retry() == shown
    assert await run.result() == ["sum of 4"]
    assert sorted(nightly.ran[:2]) == ["b", "d"]
    assert nightly.ran[2:] == ["sum of 4"]


async def test_a_retry_that_could_only_fail_again_says_what_to_write(make_engine):
    """B8 S4-24 The code raised its own error from failures that it took and does not name."""
    nightly.failing, nightly.ran = {"b"}, []
    engine = await make_engine(import_all, import_one)
    run = await engine.start(import_all, ["a", "b"], False)
    await fails(run, "1 imports failed")
    nightly.failing.clear()
    nightly.ran.clear()
    for dry in (True, False):
        with pytest.raises(CannotReopen, match=r"after child 'import_one#2' had failed.*`raise ... from failure`"):
            await run.retry(dry_run=dry)
    assert await engine.audit.records() == []
    redo = await run.rerun(from_step="import_one#2")
    assert redo.children == ("import-b",)
    assert await run.result() == ["sum of 2"]
    assert nightly.ran == ["b", "sum of 2"]


@pytest.mark.parametrize("mode", ["file"])
async def test_code_that_was_put_right_is_retried_whatever_it_collected(make_engine):
    """B8 Its fingerprint says that it has changed: it may go another way now."""
    nightly.failing, nightly.ran = {"b"}, []

    async def collect(ctx: Context, names: list[str]) -> int:
        done = await asyncio.gather(*(ctx.child(import_one, name) for name in names), return_exceptions=True)
        return sum(isinstance(each, ChildFailed) for each in done)

    @workflow(name="collects")
    async def wrong(ctx: Context, names: list[str]) -> int:
        failed = await collect(ctx, names)
        raise RuntimeError(f"{failed} failed")

    @workflow(name="collects")
    async def right(ctx: Context, names: list[str]) -> int:
        return await collect(ctx, names)

    first = await make_engine(wrong, import_one)
    run = await first.start(wrong, ["a", "b"], id="r")
    await fails(run)
    await first.stop()
    second = await make_engine(right, import_one)
    redo = await second.get("r").retry()
    assert (redo.steps, redo.children) == ((), ())
    assert await second.get("r", right).result() == 1


@pytest.mark.parametrize(("path", "named"), [("import_one", "a"), ("import_one#2", "b"), ("import_one#3", "c")])
async def test_one_child_of_a_fan_out_is_done_again_and_its_siblings_keep_their_results(make_engine, path, named):
    """B8 Whichever ended first; what follows all of them is done again."""
    nightly.failing, nightly.ran = set(), []
    engine = await make_engine(import_all, import_one)
    run = await engine.start(import_all, ["a", "b", "c"], True)
    assert await run.result() == ["sum of 3"]
    nightly.ran.clear()
    redo = await run.rerun(from_step=path, by="kim", reason="the file was wrong")
    assert (redo.children, redo.steps) == ((f"import-{named}",), ("sum up",))
    assert await run.result() == ["sum of 3"]
    assert nightly.ran == [named, "sum of 3"]
    assert [each.reopened for each in await engine.runs(workflow="import_one")].count(1) == 1


async def test_one_step_of_a_fan_out_is_done_again_and_the_others_keep_their_results(make_engine):
    """B8 B36 Results of calls made before the cut are delivered again; a failure that the code handled stays, too."""
    body = Flaky("c")

    @workflow
    async def fan(ctx: Context) -> list[str]:
        calls = [ctx.step(name, body.step, name) for name in ("a", "b", "c", "d")]
        done = await asyncio.gather(*calls, return_exceptions=True)
        last = await ctx.step("last", body.step, "last")
        return [*(each if isinstance(each, str) else "failed" for each in done), last]

    engine = await make_engine(fan)
    run = await engine.start(fan)
    assert await run.result() == ["a", "b", "failed", "d", "last"]
    body.ran.clear()
    body.failing.clear()
    redo = await run.rerun(from_step="b")
    assert redo.steps == ("b", "last")
    assert redo.unsure == {"b": "it had completed", "last": "it had completed"}
    assert await run.result() == ["a", "b", "failed", "d", "last"]
    assert body.ran == ["b", "last"]
    assert [(step.name, step.attempts, step.status) for step in await run.steps()] == [
        ("a", 1, "completed"), ("b", 2, "completed"), ("c", 1, "failed"), ("d", 1, "completed"),
        ("last", 2, "completed"),
    ]  # fmt: skip


async def test_a_retry_keeps_what_completed_beside_the_step_that_failed(make_engine):
    """B8 B36 S0-20 Though it was recorded later, and the run is stopped and replayed in between."""
    body, gates = Flaky("bad"), Gate()

    @workflow
    async def both(ctx: Context) -> str:
        async def left(branch: Context) -> str:
            return await branch.step("bad", body.step, "bad")

        async def right(branch: Context) -> str:
            await branch.step("slow", gates, "slow")
            return await branch.step("after", body.step, "after")

        done = await ctx.join("both", {"left": left, "right": right})
        return f"{done['left']} {done['right']}"

    engine = await make_engine(both)
    run = await engine.start(both)
    await gates.entered("slow")
    await eventually(lambda: "bad" in body.ran)
    gates.open("slow")
    await fails(run)
    assert body.ran == ["bad", "after"]
    body.failing.clear()
    body.ran.clear()
    redo = await run.retry()
    assert (redo.steps, redo.unsure) == (
        ("both/left/bad", "both/right/after"),
        {"both/right/after": "it had completed"},
    )
    assert await run.result() == "bad after"
    assert gates.begun == ["slow"], "what was called before the failure keeps its result"


async def test_a_result_that_came_after_a_reopening_is_kept_through_one_that_cuts_further_back(make_engine):
    """B8 B1 What is kept of the step tells of attempts that follow one another, though the first were cut away."""
    release, attempts = asyncio.Event(), []

    async def quick(name: str) -> str:
        return name

    @activity(retry=Retry(max_attempts=2))
    async def slow() -> str:
        await release.wait()
        attempts.append(step_context().attempt)
        if len(attempts) < 3:
            raise ConnectionError
        return "slow"

    @workflow
    async def fan(ctx: Context) -> list[str]:
        return await asyncio.gather(ctx.step("first", quick, "1"), ctx.step("second", quick, "2"), ctx.step(slow))

    async def others_ended() -> bool:
        return [step.status for step in await run.steps()][:2] == ["completed"] * 2

    engine = await make_engine(fan)
    run = await engine.start(fan)
    await eventually(others_ended)
    release.set()
    await fails(run, "ConnectionError")
    await run.rerun(from_step="second")
    assert await run.result() == ["1", "2", "slow"]
    await run.rerun(from_step="first")
    assert await run.result() == ["1", "2", "slow"]
    assert attempts == [1, 2, 3]
    assert await violations(engine.store) == []
    [step] = [step for step in await run.steps() if step.name == "slow"]
    assert (step.status, step.attempts, step.failures) == ("completed", 3, 2)
