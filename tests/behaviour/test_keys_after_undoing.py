"""What was undone and is done again is new to the outside world; what was not undone is still the same work."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.support.acts_cases import Gate, dead_or_done, moments
from tests.support.waiting import eventually

from holdfast import Context, Retry, RunCancelled, RunFailed, activity, step_context, workflow
from holdfast.declarative import graph, sequence, step


class Provider:
    """A payment provider that knows idempotency keys: a key that it has seen does nothing."""

    def __init__(self) -> None:
        self.charged: list[str] = []
        self.refunded: list[str] = []
        self.shipped: list[str] = []
        self.asked: list[str] = []
        self.failing: set[str] = set()
        self._seen: set[str] = set()

    def ask(self, books: list[str], what: str) -> None:
        key = step_context().idempotency_key
        self.asked.append(key)
        if what in self.failing:
            raise ConnectionError(f"no {what} today")
        if key not in self._seen:
            self._seen.add(key)
            books.append(what)

    def has(self, what: str) -> int:
        """Return how often something was charged and not refunded since."""
        return self.charged.count(what) - self.refunded.count(what)


provider = Provider()


@pytest.fixture(autouse=True)
def fresh():
    provider.__init__()
    return provider


async def charge(what: str = "it") -> str:
    provider.ask(provider.charged, what)
    return what


@activity(retry=Retry.never)
async def refund(what: str = "it") -> None:
    provider.ask(provider.refunded, what)


@activity(retry=Retry.never)
async def ship() -> str:
    provider.ask(provider.shipped, "parcel")
    return "shipped"


@workflow
async def order(ctx: Context) -> str:
    await ctx.step("look", charge, "look")
    await ctx.step(charge)
    ctx.compensate(refund)
    return await ctx.step(ship)


async def fails(run: Any) -> None:
    with pytest.raises(RunFailed):
        await run.result()


async def test_an_order_that_was_refunded_and_is_retried_is_paid_again(make_engine):
    """B8 B14 B17 The provider does nothing for a key it knows: both the charge and the refund need new ones."""
    engine = await make_engine(order)
    provider.failing = {"parcel"}
    run = await engine.start(order, id="o")
    await fails(run)
    assert (provider.has("it"), provider.charged.count("it"), provider.refunded) == (0, 1, ["it"])
    await run.retry()
    await fails(run)
    assert (provider.has("it"), provider.charged.count("it"), provider.refunded) == (0, 2, ["it", "it"])
    provider.failing = set()
    await run.retry()
    assert await run.result() == "shipped"
    assert (provider.has("it"), provider.charged.count("it"), provider.shipped) == (1, 3, ["parcel"])
    assert [key for key in provider.asked if "charge" in key] == ["o:charge", "o:charge~2", "o:charge~3"]
    assert [key for key in provider.asked if "refund" in key] == ["o:compensate@refund", "o:compensate@refund~2"]
    assert set(provider.asked) >= {"o:look", "o:ship"}
    assert not any(key.startswith(("o:look~", "o:ship~")) for key in provider.asked)


async def test_a_retry_without_anything_undone_asks_with_the_same_key(make_engine):
    """B8 B14 The answer may have been lost: the provider can tell that it is the same work."""

    @activity(retry=Retry(max_attempts=2))
    async def pay() -> None:
        provider.ask(provider.charged, "it")
        if len(provider.asked) < 4:
            raise ConnectionError("the answer was lost")

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(pay)

    engine = await make_engine(work)
    run = await engine.start(work, id="w")
    await fails(run)
    await run.retry()
    await run.result()
    await run.rerun()
    await run.result()
    assert provider.charged == ["it"]
    assert provider.asked == ["w:pay"] * 5


async def test_what_steps_shows_is_the_key_the_body_was_given(make_engine):
    """B14 In a later life and after it was undone, too."""

    @workflow
    async def lives(ctx: Context, life: int) -> str:
        if life == 0:
            ctx.continue_as_new(1)
        await ctx.step(charge)
        ctx.compensate(refund)
        return await ctx.step(ship)

    engine = await make_engine(lives)
    provider.failing = {"parcel"}
    run = await engine.start(lives, 0, id="l")
    for life in range(3):
        if life:
            provider.asked.clear()
            await run.retry()
        await fails(run)
        shown = [step.idempotency_key for step in await run.steps()]
        assert sorted(shown) == sorted(set(provider.asked))
    provider.failing = set()
    await run.retry()
    await run.result()
    assert "l:1:charge~4" in [step.idempotency_key for step in await run.steps()]


async def test_what_could_not_be_undone_keeps_its_key_and_so_does_what_should_have_undone_it(make_engine):
    """B17 B14 The money was not given back, so that it must not be taken twice; nor given back twice later."""
    engine = await make_engine(order)
    provider.failing = {"parcel"}
    run = await engine.start(order, id="o")
    engine.substitute(refund, refuses)
    await fails(run)
    await run.retry()
    await fails(run)
    assert provider.charged == ["look", "it"]
    engine.substitute(refund, refund)
    await run.retry()
    await fails(run)
    assert (provider.has("it"), provider.charged, provider.refunded) == (0, ["look", "it"], ["it"])
    await run.retry()
    await fails(run)
    assert (provider.has("it"), provider.charged.count("it"), provider.refunded) == (0, 2, ["it", "it"])


async def refuses(what: str = "it") -> None:
    raise ConnectionError("not now")


async def test_a_cancelled_order_that_was_refunded_is_paid_again_when_it_is_resumed(make_engine):
    """B8 B17 Resume and rerun do again what was undone, like retry."""

    @workflow
    async def waiting(ctx: Context) -> None:
        await ctx.step(charge)
        ctx.compensate(refund)
        await ctx.receive("go")

    engine = await make_engine(waiting)
    run = await engine.start(waiting, id="w")
    for again in (run.resume, run.rerun):
        await engine.settle()
        await run.cancel(compensate=True)
        with pytest.raises(RunCancelled):
            await run.result()
        assert provider.has("it") == 0
        await again()
    await run.send("go")
    await run.result()
    assert (provider.has("it"), len(provider.charged), len(provider.refunded)) == (1, 3, 2)


async def test_work_beside_what_was_undone_keeps_its_key(make_engine):
    """B8 B17 Results cut away in other branches are made again under the keys they had."""

    @workflow
    async def both(ctx: Context) -> None:
        async def left(branch: Context) -> None:
            await branch.step("pay", charge, "left")
            branch.compensate(refund, "left")

        async def right(branch: Context) -> None:
            await branch.step("pay", charge, "right")

        await ctx.join({"left": left, "right": right})
        await ctx.step(ship)

    engine = await make_engine(both)
    provider.failing = {"parcel"}
    run = await engine.start(both)
    await fails(run)
    provider.failing = set()
    await run.retry()
    await run.result()
    assert (provider.has("left"), provider.has("right")) == (1, 1)
    assert (provider.charged.count("left"), provider.charged.count("right")) == (2, 1)


async def test_of_two_paid_side_by_side_only_the_refunded_one_is_paid_again(make_engine):
    """B17 B14 One refund went wrong: its order is still paid."""

    @workflow
    async def both(ctx: Context) -> None:
        await asyncio.gather(ctx.step("a", charge, "a"), ctx.step("b", charge, "b"))
        ctx.compensate(refund, "a")
        ctx.compensate(refund, "b")
        await ctx.step(ship)

    engine = await make_engine(both)
    provider.failing = {"parcel"}
    run = await engine.start(both)
    engine.substitute(refund, only_a)
    await fails(run)
    assert (provider.has("a"), provider.has("b")) == (0, 1)
    provider.failing = set()
    await run.retry()
    await run.result()
    assert (provider.has("a"), provider.has("b")) == (1, 1)
    assert (provider.charged.count("a"), provider.charged.count("b")) == (2, 1)


async def only_a(what: str) -> None:
    if what != "a":
        raise ConnectionError("not now")
    provider.ask(provider.refunded, what)


async def test_a_step_whose_undoing_was_registered_before_its_end_is_told_apart(make_engine):
    """B17 B14 It failed after it had an effect, which was undone: called, registered, awaited."""
    lost = [True]

    @activity(retry=Retry.never)
    async def pay() -> None:
        provider.ask(provider.charged, "it")
        if lost:
            raise ConnectionError("the answer was lost")

    @workflow
    async def careful(ctx: Context) -> None:
        await ctx.step("look", charge, "look")
        paying = ctx.step(pay)
        ctx.compensate(refund)
        await paying

    engine = await make_engine(careful)
    run = await engine.start(careful, id="c")
    await fails(run)
    assert (provider.charged, provider.refunded) == (["look", "it"], ["it"])
    lost.clear()
    await run.retry()
    await run.result()
    assert (provider.charged, provider.refunded) == (["look", "it", "it"], ["it"])
    assert provider.asked.count("c:look") == 1  # it was not undone, and nothing says that it was


async def test_a_pause_while_both_are_paid_confuses_nothing(make_engine):
    """B25 B17 B14 Both ends are recorded before the code registers what undoes the first; only that is paid again."""
    gate = Gate()

    async def pay(what: str) -> None:
        await gate(what)
        provider.ask(provider.charged, what)

    @workflow
    async def both(ctx: Context) -> None:
        async def first() -> None:
            await ctx.step("a", pay, "a")
            ctx.compensate(refund, "a")

        await asyncio.gather(first(), ctx.step("b", pay, "b"))
        await ctx.step(ship)

    engine = await make_engine(both)
    provider.failing = {"parcel"}
    run = await engine.start(both)
    await gate.entered("a")
    await gate.entered("b")
    await run.pause()
    await moments()
    for name in ("a", "b"):
        gate.open(name)
        await eventually(partial(completed, run, name))
    await run.resume()
    await fails(run)
    provider.failing = set()
    await run.retry()
    await run.result()
    assert (provider.has("a"), provider.has("b")) == (1, 1)
    assert (provider.charged.count("a"), provider.charged.count("b")) == (2, 1)


async def test_what_a_loop_has_forgotten_is_paid_again_too(make_engine):
    """B17 B14 S1-29 The history of the first iterations is gone, but not that they were undone."""

    @workflow
    async def laps(ctx: Context) -> None:
        await ctx.step("look", charge, "look")
        async for lap in ctx.loop("laps", state=0, commit_interval=1, history_every=1, history_keep=1):
            await lap.step(charge, f"lap {lap.index}")
            lap.compensate(refund, f"lap {lap.index}")
            if lap.index == 3:
                break
        await ctx.step(ship)

    engine = await make_engine(laps)
    provider.failing = {"parcel"}
    run = await engine.start(laps, id="l")
    for times in (1, 2):
        await fails(run)
        assert [provider.charged.count(f"lap {number}") for number in range(4)] == [times] * 4
        assert sum(provider.has(f"lap {number}") for number in range(4)) == 0
        await run.retry()
    await fails(run)
    assert len(provider.refunded) == 12
    assert set(provider.asked) >= {"l:laps/~0/charge", "l:laps/~0/charge~2", "l:laps/~0/charge~3"}
    assert provider.charged.count("look") == 1


async def completed(run: Any, name: str) -> bool:
    return any(each.name == name and each.status == "completed" for each in await run.steps())


async def test_a_key_of_the_activity_s_own_tells_it_apart_too(make_engine):
    """B14 B17 The service sees the key that the body hands on."""

    @activity(idempotency_key=lambda number: f"order {number}")
    async def pay(number: int) -> None:
        provider.ask(provider.charged, "it")

    @activity(idempotency_key=lambda number: f"back {number}")
    async def pay_back(number: int) -> None:
        provider.ask(provider.refunded, "it")

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(pay, 7)
        ctx.compensate(pay_back, 7)
        await ctx.step(ship)

    engine = await make_engine(work)
    provider.failing = {"parcel"}
    run = await engine.start(work)
    await fails(run)
    await run.retry()
    await fails(run)
    assert (len(provider.charged), len(provider.refunded)) == (2, 2)
    keys = [key for key in provider.asked if "ship" not in key]
    assert keys == ["order 7", "back 7", "order 7~2", "back 7~2"]


async def test_declared_workflows_pay_again_what_they_refunded(make_engine):
    """S0-55 B17 B14 In a sequence and in a graph; a node beside it that nothing undoes keeps its key."""

    async def pay(input: Any) -> dict[str, str]:
        provider.ask(provider.charged, "it")
        return {"paid": "yes"}

    async def note(input: Any) -> dict[str, str]:
        provider.ask(provider.charged, "note")
        return {"noted": "yes"}

    async def send(pay: Any, note: Any) -> None:
        provider.ask(provider.shipped, "parcel")

    async def back(value: Any) -> None:
        provider.ask(provider.refunded, "it")

    async def send_last(state: Any) -> None:
        provider.ask(provider.shipped, "parcel")

    never = Retry.never
    listed = sequence("listed", [step(pay, compensate=back), note, step(send_last, retry=never)])
    paying = step(pay, compensate=back)
    drawn = graph("drawn", {paying: [], note: [], step(send, retry=never): [paying, note]})
    engine = await make_engine(listed, drawn)
    for flow in (listed, drawn):
        provider.__init__()
        provider.failing = {"parcel"}
        run = await engine.start(flow, {})
        await fails(run)
        provider.failing = set()
        await run.retry()
        await run.result()
        assert (provider.has("it"), provider.charged.count("it"), provider.charged.count("note")) == (1, 2, 1)


@pytest.mark.parametrize("mode", ["file", "evict"])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_whenever_the_worker_dies_a_retried_order_is_paid_and_refunded_as_often_as_it_should(
    make_engine, tmp_path, moment
):
    """B14 B17 G3 Killed at each commit of the second doing in turn: it is charged and refunded twice, never more."""
    died = 0
    for dies_at in range(1, 12):
        provider.__init__()
        provider.failing = {"parcel"}
        path = str(tmp_path / f"{moment}{dies_at}.db")
        engine = await make_engine(order, database=path)
        faults = engine.faults
        run = await engine.start(order, id="o")
        await fails(run)
        faults.die(dies_at, moment)
        again = asyncio.create_task(retried(run))
        await dead_or_done(faults, again)
        died += faults.dead
        again.cancel()
        await asyncio.wait([again])
        if faults.dead:
            await engine.crash()
            engine = await make_engine(order, database=path, clock=engine.jumping)
            run = engine.get("o")
            if (dies_at, moment) == (1, "before"):
                await run.retry()
        await fails(run)
        assert (provider.charged.count("it"), provider.refunded) == (2, ["it", "it"])
        assert {key for key in provider.asked if "charge" in key} == {"o:charge", "o:charge~2"}
        await engine.stop()
        if not faults.dead:
            break
    assert died >= 4, "the worker must have died at each commit of the retry"


async def retried(run: Any) -> None:
    await run.retry()
    await fails(run)
