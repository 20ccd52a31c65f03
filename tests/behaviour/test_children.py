"""Child runs: started once, awaited or not, their failures told or kept apart."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import ChildFailed, Context, RunBlocked, RunConflict, RunFailed, Status, StepFailed, activity, workflow
from holdfast.errors import BadInput, InvalidId, UnknownWorkflow

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

restarts = pytest.mark.parametrize("mode", ["file", "evict"])


@dataclass
class Parcel:
    to: str
    weight: int


@workflow
async def double(ctx: Context, number: int) -> int:
    await ctx.sleep(HOUR)
    return number * 2


@workflow
async def fail(ctx: Context, how: str) -> Any:
    await ctx.sleep(HOUR)
    if how == "wait":
        await ctx.receive("never")
    raise ValueError(how)


@workflow
async def pack(ctx: Context, parcel: Parcel) -> Parcel:
    assert type(parcel) is Parcel
    return Parcel(parcel.to.upper(), parcel.weight + 1)


async def test_an_awaited_child_gives_its_result_to_its_parent(make_engine):
    """S2-22 S1-41 G10 The parent suspends on the child and goes on with its result."""

    @workflow
    async def parent(ctx: Context) -> int:
        return await ctx.child(double, 21) + 0

    engine = await make_engine(parent, double)
    run = await engine.start(parent, id="p")
    await engine.settle()
    seen = await run.describe()
    assert seen.status is Status.SUSPENDED
    assert seen.waiting_for == "child p:double"
    assert await run.result() == 42
    assert [(entry.path, entry.kind) for entry in await run.history()] == [
        ("double", "child"),
        ("double", "child ended"),
    ]


async def test_input_and_result_of_a_child_have_their_types(make_engine):
    """S2-22 Dataclasses go in and come out as themselves."""

    @workflow
    async def parent(ctx: Context) -> str:
        parcel = await ctx.child(pack, Parcel("kim", 1))
        await ctx.sleep(HOUR)
        assert type(parcel) is Parcel
        return f"{parcel.to} {parcel.weight}"

    engine = await make_engine(parent, pack)
    assert await engine.execute(parent) == "KIM 2"


async def test_a_child_may_be_named_by_a_string(make_engine):
    """S2-22 A workflow that this module cannot import; its arguments go by keyword."""

    @workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.child("double", number=4)

    engine = await make_engine(parent, double)
    assert await engine.execute(parent) == 8


async def test_a_failed_child_raises_in_its_parent_with_the_cause(make_engine):
    """S2-23 B18 ChildFailed carries id, status and the child's own error, live and replayed alike."""
    seen: list[Any] = []

    async def note(what: list[str]) -> None:
        seen.append(what)

    @workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.child(fail, "broken", id="kid")
        except ChildFailed as error:
            what = [error.child_id, error.status, str(error), repr(error.__cause__)]
        await ctx.step("live", note, what)
        await ctx.sleep(HOUR)
        await ctx.step("later", note, what)
        return "caught"

    engine = await make_engine(parent, fail)
    assert await engine.execute(parent) == "caught"
    assert seen[0] == seen[1]
    assert seen[0][:2] == ["kid", "failed"]
    assert "broken" in seen[0][2]
    assert seen[0][3] == "ValueError('broken')"


async def test_an_uncaught_child_failure_fails_the_parent(make_engine):
    """S2-33 B18 Propagation is the default, and the chain of causes is shown."""

    @workflow
    async def parent(ctx: Context) -> None:
        await ctx.child(fail, "broken")

    engine = await make_engine(parent, fail)
    with pytest.raises(RunFailed, match="broken") as caught:
        await engine.execute(parent)
    assert isinstance(caught.value.__cause__, ChildFailed)
    assert caught.value.__cause__.status == "failed"
    assert isinstance(caught.value.__cause__.__cause__, ValueError)


async def test_without_propagation_a_failure_is_a_value(make_engine):
    """B18 S2-33 propagate=False: the await returns the ChildFailed instead of raising it."""

    @workflow
    async def parent(ctx: Context) -> list[str]:
        failure = await ctx.child(fail, "broken", propagate=False)
        success = await ctx.child(double, 2, propagate=False)
        assert isinstance(failure, ChildFailed)
        return [failure.status, repr(failure.__cause__), str(success)]

    engine = await make_engine(parent, fail, double)
    assert await engine.execute(parent) == ["failed", "ValueError('broken')", "4"]


async def test_a_cancelled_child_counts_as_failed_with_its_status(make_engine):
    """B18 S2-23 ChildFailed(status=cancelled)."""

    @workflow
    async def parent(ctx: Context) -> list[str]:
        try:
            await ctx.child(double, 1, id="kid")
        except ChildFailed as error:
            return [error.child_id, error.status]
        return []

    engine = await make_engine(parent, double)
    run = await engine.start(parent)
    await engine.settle()
    assert await engine.get("kid").cancel()
    assert await run.result() == ["kid", "cancelled"]


async def test_a_child_that_nobody_awaits_runs_on_after_its_parent(make_engine):
    """S2-24 Fire and forget: the parent has the id and ends first."""

    @workflow
    async def parent(ctx: Context) -> str:
        return ctx.child(double, 3).id

    engine = await make_engine(parent, double)
    run = await engine.start(parent)
    child_id = await run.result()
    child = engine.get(child_id, double)
    assert await child.status() in (Status.PENDING, Status.RUNNING, Status.SUSPENDED)
    assert await child.result() == 6
    assert await run.status() is Status.COMPLETED


async def test_the_failure_of_a_child_that_nobody_awaits_concerns_nobody(make_engine):
    """S2-24 B18 Isolated, also while the parent is still there."""

    @workflow
    async def parent(ctx: Context) -> str:
        kid = ctx.child(fail, "alone")
        await ctx.sleep(DAY)
        return kid.id

    engine = await make_engine(parent, fail)
    run = await engine.start(parent)
    child_id = await run.result()
    assert await engine.get(child_id).status() is Status.FAILED
    assert await run.status() is Status.COMPLETED


async def test_a_child_may_be_awaited_long_after_it_ended(make_engine):
    """S2-22 The result waits for the await, and comes at once."""

    @workflow
    async def parent(ctx: Context) -> list[int]:
        kid = ctx.child(double, 5)
        await ctx.sleep(DAY)
        return [await kid, await kid]

    engine = await make_engine(parent, double)
    assert await engine.execute(parent) == [10, 10]


async def test_a_grandchild_reports_to_its_own_parent(make_engine):
    """S2-22 S2-25 G10 Three generations; each link is in the records."""

    @workflow
    async def middle(ctx: Context, number: int) -> int:
        return await ctx.child(double, number) + 1

    @workflow
    async def top(ctx: Context) -> int:
        return await ctx.child(middle, 10) + 1

    engine = await make_engine(top, middle, double)
    run = await engine.start(top, id="top")
    assert await run.result() == 22
    assert (await engine.get("top:middle").describe()).parent == "top"
    assert (await engine.get("top:middle:double").describe()).parent == "top:middle"
    assert (await run.describe()).parent is None


async def test_the_children_of_a_run_can_be_listed(make_engine):
    """S2-25 S2-10 childrenByParent: by the parent's id."""

    @workflow
    async def parent(ctx: Context) -> None:
        await asyncio.gather(*(ctx.child(double, number) for number in range(3)))

    engine = await make_engine(parent, double)
    await engine.execute(parent, id="p")
    assert sorted(run.id for run in await engine.runs(parent="p")) == ["p:double", "p:double=2", "p:double=3"]


async def test_many_children_are_gathered_in_order(make_engine):
    """S2-22 G10 A hundred children at once, results by position."""

    @workflow
    async def parent(ctx: Context) -> list[int]:
        return list(await asyncio.gather(*(ctx.child(double, number) for number in range(100))))

    engine = await make_engine(parent, double)
    assert await engine.execute(parent) == [number * 2 for number in range(100)]


async def test_a_mixture_of_good_and_bad_children_is_told_apart(make_engine):
    """S2-23 B18 gather(return_exceptions=True) sees each child's own end."""

    @workflow
    async def parent(ctx: Context) -> list[str]:
        ends = await asyncio.gather(
            ctx.child(double, 1), ctx.child(fail, "x"), ctx.child(double, 2), return_exceptions=True
        )
        return [end.status if isinstance(end, ChildFailed) else str(end) for end in ends]

    engine = await make_engine(parent, double, fail)
    assert await engine.execute(parent) == ["2", "failed", "4"]


async def test_the_id_of_a_child_that_is_taken_is_a_failure_of_that_child_alone(make_engine):
    """G2 G10 The other run is left alone; the parent may catch the conflict, live and replayed alike."""

    @workflow
    async def parent(ctx: Context) -> list[str]:
        try:
            await ctx.child(double, 1, id="taken")
        except ChildFailed as error:
            what = [error.child_id, type(error.__cause__).__name__]
        await ctx.sleep(HOUR)
        return what

    engine = await make_engine(parent, double)
    other = await engine.start(double, 50, id="taken")
    assert await engine.execute(parent) == ["taken", RunConflict.__name__]
    assert await other.result() == 100


async def test_a_refused_child_is_told_to_a_run_that_begins_to_wait_by_the_same_commit(make_engine):
    """A run that is let go for want of room is not let go before its code knows of the refusal."""
    gate = asyncio.Event()

    @activity(idempotency_key=lambda: "k")
    async def pay() -> None:
        await gate.wait()

    @workflow
    async def hold(ctx: Context) -> None:
        await ctx.step(pay)

    @workflow
    async def parent(ctx: Context) -> str:
        child, waiting = ctx.child(double, 1, id="taken"), asyncio.ensure_future(ctx.step(pay))
        try:
            await child
        except ChildFailed as failed:
            waiting.cancel()
            return failed.status
        return "never"

    engine = await make_engine(double, hold, parent)
    await engine.start(hold, id="taken")
    await eventually(lambda: engine._working().executor.active)
    run = await engine.start(parent)
    try:
        assert await asyncio.wait_for(run.result(), LONG) == "taken"
    finally:
        gate.set()


async def test_two_children_with_one_id_are_one_child_and_one_conflict(make_engine):
    """G10 B18 The first gets its result, the second is refused; nobody waits for ever."""

    @workflow
    async def parent(ctx: Context) -> list[str]:
        first, second = ctx.child(double, 1, id="same"), ctx.child(double, 2, id="same")
        ends = await asyncio.gather(first, second, return_exceptions=True)
        return [str(ends[0]), type(ends[1]).__name__]

    engine = await make_engine(parent, double)
    run = await engine.start(parent)
    await engine.advance(DAY)
    assert await run.status() is Status.COMPLETED
    assert await run.result() == ["2", "ChildFailed"]


async def test_the_id_of_a_child_is_the_same_on_every_replay(make_engine):
    """G10 Derived from the parent's id and the place of the call, or given."""
    seen: list[list[str]] = []

    async def note(ids: list[str]) -> None:
        seen.append(ids)

    @workflow
    async def parent(ctx: Context) -> None:
        kids = [ctx.child(double, 1), ctx.child(double, 2), ctx.child(double, 3, id="own")]
        ids = [kid.id for kid in kids]
        await ctx.step(note, ids)
        await ctx.sleep(DAY)
        await ctx.step("again", note, [kid.id for kid in kids])

    engine = await make_engine(parent, double)
    await engine.execute(parent, id="p")
    assert seen == [["p:double", "p:double=2", "own"]] * 2


@restarts
async def test_a_child_is_started_once_however_often_the_parent_is_replayed(make_engine):
    """G10 S2-28 Exactly once per call site across restarts; its result is recorded once."""
    bodies: list[int] = []

    async def work(number: int) -> int:
        bodies.append(number)
        return number

    @workflow
    async def kid(ctx: Context, number: int) -> int:
        await ctx.sleep(DAY)
        return await ctx.step(work, number)

    @workflow
    async def parent(ctx: Context) -> int:
        first = await ctx.child(kid, 1)
        return first + await ctx.child(kid, 2)

    engine = await make_engine(parent, kid)
    run = await engine.start(parent, id="p")
    for _ in range(6):
        await engine.advance(HOUR * 10)
        await engine.stop()
        engine = await make_engine(parent, kid, clock=engine.jumping)
        run = engine.get("p")
    assert await run.result() == 3
    assert bodies == [1, 2]
    assert not engine.offers("lists") or len(await engine.runs(parent="p")) == 2
    ends = [entry for entry in await run.history() if entry.kind == "child ended"]
    assert len(ends) == 2


@restarts
async def test_a_child_that_ends_while_its_parent_is_down_wakes_it_later(make_engine):
    """G10 S2-27 The end is in the parent's inbox although no engine could run the parent."""

    @workflow
    async def parent(ctx: Context) -> int:
        return await ctx.child(double, 4)

    first = await make_engine(parent, double)
    run = await first.start(parent)
    await first.settle()
    await first.stop()
    only_children = await make_engine(double, clock=first.jumping)
    await only_children.advance(DAY)
    assert await only_children.get(run.id).status() is Status.SUSPENDED
    await only_children.stop()
    second = await make_engine(parent, double, clock=first.jumping)
    assert await second.get(run.id).result() == 8


async def test_cancelling_the_parent_leaves_its_children_alone(make_engine):
    """B18 B7 The policy by default: children go on."""

    @workflow
    async def parent(ctx: Context) -> int:
        return await ctx.child(double, 4, id="kid")

    engine = await make_engine(parent, double)
    run = await engine.start(parent)
    await engine.settle()
    assert await run.cancel()
    await engine.settle()
    assert await run.status() is Status.CANCELLED
    assert await engine.get("kid", double).result() == 8


async def test_a_parent_that_gave_up_waiting_goes_on_and_the_child_too(make_engine):
    """B18 G10 A timeout around the await gives up the wait, not the child."""

    @workflow
    async def parent(ctx: Context) -> str:
        try:
            async with asyncio.timeout(60):
                await ctx.child(double, 4, id="kid")
        except TimeoutError:
            await ctx.sleep(DAY)
            return "gave up"
        return "waited"

    engine = await make_engine(parent, double)
    assert await engine.execute(parent) == "gave up"
    assert await engine.get("kid", double).result() == 8


async def test_a_child_of_an_unknown_workflow_waits_for_an_engine_that_knows_it(make_engine):
    """GUARANTEES 6.12 B20 Nothing fails; the parent waits too."""

    @workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.child("stranger", number=1)

    engine = await make_engine(parent)
    run = await engine.start(parent, id="p")
    await engine.advance(DAY)
    assert await run.status() is Status.SUSPENDED
    assert await engine.get("p:stranger").status() is Status.PENDING


async def test_bad_children_are_refused_at_the_call(make_engine):
    """GUARANTEES 6.11 6.14 Wrong arguments, a bad id and something that is no workflow; the parent may catch each."""

    async def plain(ctx: Context) -> None: ...

    no_workflow: Any = plain
    untyped: Any = double

    @workflow
    async def parent(ctx: Context) -> list[str]:
        errors: list[str] = []
        for call in (
            lambda: ctx.child(untyped),
            lambda: ctx.child(untyped, "three"),
            lambda: ctx.child(double, 1, id="a/b"),
            lambda: ctx.child(no_workflow),
            lambda: ctx.child("double", 1),
        ):
            try:
                await call()
            except (BadInput, InvalidId, UnknownWorkflow) as error:
                errors.append(type(error).__name__)
        return errors

    engine = await make_engine(parent, double)
    assert len(await engine.execute(parent, id="p")) == 5
    assert not engine.offers("lists") or await engine.runs(parent="p") == []


async def test_a_child_with_an_error_class_of_its_own_tells_its_name(make_engine):
    """S2-23 S2-33 A class that is neither builtin nor registered comes as StepFailed with its name, never imported."""

    class Odd(Exception):
        pass

    @workflow
    async def kid(ctx: Context) -> None:
        raise Odd("strange")

    @workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.child(kid)
        except ChildFailed as error:
            return f"{isinstance(error.__cause__, StepFailed)} {error}"
        return ""

    engine = await make_engine(parent, kid)
    text = await engine.execute(parent)
    assert text.startswith("True ")
    assert "Odd" in text
    assert "strange" in text


async def test_a_blocked_child_keeps_its_parent_waiting(make_engine):
    """G13 B6 Blocked is not an end: the parent goes on when the child does."""
    fixed: list[bool] = []

    @workflow
    async def kid(ctx: Context) -> str:
        if not fixed:
            await asyncio.Event().wait()
        return "done"

    @workflow
    async def parent(ctx: Context) -> str:
        return await ctx.child(kid, id="kid")

    engine = await make_engine(parent, kid)
    run = await engine.start(parent)
    await engine.settle()
    with pytest.raises(RunBlocked):
        await engine.get("kid").result()
    assert await run.status() is Status.SUSPENDED
    fixed.append(True)
    await engine.get("kid").recover()
    assert await run.result() == "done"


async def test_children_in_the_branches_of_a_join_have_ids_of_their_own(make_engine):
    """G10 S1-46 The path of the branch is part of the id."""

    @workflow
    async def parent(ctx: Context) -> list[str]:
        async def branch(inner: Context) -> str:
            kid = inner.child(double, 1)
            await kid
            return kid.id

        ids = await ctx.join("both", {"a": branch, "b": branch})
        return [ids["a"], ids["b"]]

    engine = await make_engine(parent, double)
    first, second = await engine.execute(parent, id="p")
    assert first != second
    assert not engine.offers("lists") or len(await engine.runs(parent="p")) == 2


async def test_a_very_long_parent_id_still_has_children(make_engine):
    """GUARANTEES 6.11 The derived id would be too long: it is replaced by a short one, the same on every replay."""

    @workflow
    async def parent(ctx: Context) -> list[Any]:
        kid = ctx.child(double, 1)
        await ctx.sleep(DAY)
        return [kid.id, await kid]

    engine = await make_engine(parent, double)
    child_id, result = await engine.execute(parent, id="p" * 255)
    assert result == 2
    assert (await engine.get(child_id).describe()).parent == "p" * 255


async def test_a_child_run_can_be_started_again_from_outside_only_with_its_own_input(make_engine):
    """G2 B16 A child's id is an id like any other."""

    @workflow
    async def parent(ctx: Context) -> int:
        return await ctx.child(double, 4, id="kid")

    engine = await make_engine(parent, double)
    run = await engine.start(parent)
    await engine.settle()
    assert (await engine.start(double, 4, id="kid")).id == "kid"
    with pytest.raises(RunConflict):
        await engine.start(double, 5, id="kid")
    assert await run.result() == 8


async def test_an_engine_may_let_failures_of_children_come_as_values(make_engine):
    """S2-35 S2-33 B18 For all children whose call does not say."""

    @workflow
    async def parent(ctx: Context) -> list[str]:
        said = [type(await ctx.child(fail, "no")).__name__]
        try:
            await ctx.child(fail, "no", propagate=True)
        except ChildFailed:
            said.append("raised")
        return said

    engine = await make_engine(parent, fail, propagate_child_failures=False)
    assert await engine.execute(parent) == ["ChildFailed", "raised"]
