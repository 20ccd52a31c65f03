"""Runs that wait for their turn and for a place: keys, at_once, rate, on_full."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import ChildFailed, Context, RunCancelled, Status, workflow
from holdfast.changes import Change
from holdfast.errors import BadInput, DefinitionError, RunRejected

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class Bank:
    """Steps that tell when they begin, and end when they are let."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go = asyncio.Event()

    async def pay(self, name: str) -> str:
        self.begun.append(name)
        await self.go.wait()
        return name


def paying(bank: Bank, **options: Any) -> Any:
    """Return a workflow of one step, which takes a customer and a name."""

    async def pay(name: str) -> str:
        return await bank.pay(name)

    @workflow(name="paying", **options)
    async def flow(ctx: Context, customer: str, name: str) -> str:
        return await ctx.step(pay, name)

    return flow


async def test_runs_of_different_keys_take_turns(make_engine):
    """B22 One tenant's many runs do not keep another's one waiting; priorities come before turns."""
    bank = Bank()
    flow = paying(bank, key=lambda customer, name: customer)
    engine = await make_engine(flow, max_steps=2)
    runs = [await engine.start(flow, "a", f"a{n}") for n in range(12)]
    await eventually(lambda: len(bank.begun) == 2)
    runs += [await engine.start(flow, "b", f"b{n}") for n in range(3)]
    runs.append(await engine.start(flow, "c", "urgent", priority=1))
    assert (await runs[-2].describe()).waiting_for == "place"
    bank.go.set()
    for run in runs:
        await run.result()
    assert bank.begun.index("urgent") <= 4
    assert [name for name in bank.begun if name < "c"][2:8] in (
        ["a2", "b0", "a3", "b1", "a4", "b2"],
        ["b0", "a2", "b1", "a3", "b2", "a4"],
    )
    assert await engine.store.lane_workflows() in ([], ["paying"])


async def test_at_once_holds_from_the_first_turn_to_the_end(make_engine):
    """A run that sleeps, is paused or continues as new keeps its place."""
    turns: list[str] = []

    @workflow(at_once=1)
    async def single(ctx: Context, name: str, life: int = 0) -> str:
        await ctx.step("note", note, f"{name}{life}")
        await ctx.sleep(HOUR)
        if life == 0:
            await ctx.continue_as_new(name, 1)
        return name

    async def note(name: str) -> None:
        turns.append(name)

    engine = await make_engine(single)
    first, second = await engine.start(single, "a", id="a"), await engine.start(single, "b", id="b")
    await engine.advance(MINUTE)
    assert turns == ["a0"]
    assert (await second.describe()).status is Status.PENDING
    await first.pause()
    await engine.advance(2 * HOUR)
    assert turns == ["a0"]
    await first.resume()
    assert await second.result() == "b"
    assert turns == ["a0", "a1", "b0", "b1"]


@pytest.mark.parametrize("mode", ["file"])
async def test_a_blocked_run_keeps_its_place(make_engine):
    """Until code that fits its history lets it go on, and it ends."""

    def single(step: str) -> Any:
        @workflow(name="single", at_once=1)
        async def flow(ctx: Context) -> str:
            await ctx.step(step, note)
            return await ctx.receive("go", str)

        return flow

    async def note() -> None: ...

    engine = await make_engine(single("old"))
    await engine.start("single", id="first")
    await engine.settle()
    await engine.stop()
    engine = await make_engine(single("new"), clock=engine.jumping)
    await engine.get("first").send("go", "gone")
    await eventually(lambda: _is(engine.get("first"), Status.BLOCKED))
    second = await engine.start("single", id="second")
    await engine.settle()
    assert ((await second.describe()).status, (await second.describe()).waiting_for) == (Status.PENDING, "place")
    assert [(each.waiting, each.holding) for each in await engine.flow.waiting()] == [(1, 1)]
    await engine.stop()
    engine = await make_engine(single("old"), clock=engine.jumping)
    assert await engine.get("first").recover()
    assert await asyncio.wait_for(engine.get("first").result(), LONG) == "gone"
    await engine.get("second").send("go", "too")
    assert await asyncio.wait_for(engine.get("second").result(), LONG) == "too"


async def _is(run: Any, status: Status) -> bool:
    return await run.status() is status


async def test_places_count_for_each_key(make_engine):
    bank = Bank()
    flow = paying(bank, key=lambda customer, name: customer, at_once=1)
    engine = await make_engine(flow)
    runs = [await engine.start(flow, tenant, tenant + n) for n in "12" for tenant in "ab"]
    await eventually(lambda: sorted(bank.begun) == ["a1", "b1"])
    await engine.advance(MINUTE)
    assert sorted(bank.begun) == ["a1", "b1"]
    bank.go.set()
    assert [await run.result() for run in runs] == ["a1", "b1", "a2", "b2"]


async def test_a_run_is_rejected_when_all_places_are_taken(make_engine):
    """Nothing is stored; a repeated start by its id still returns its own run; a free place is given away again."""
    bank = Bank()
    flow = paying(bank, at_once=1, on_full="reject")
    engine = await make_engine(flow)
    run = await engine.start(flow, "a", "1", id="one")
    with pytest.raises(RunRejected, match=r"1 go on at once.*'reject'") as raised:
        await engine.start(flow, "a", "2", id="two")
    assert raised.value.run_id == "two"
    assert await engine.find("two") is None
    assert (await engine.start(flow, "a", "1", id="one")).id == "one"
    bank.go.set()
    assert await run.result() == "1"
    assert await engine.execute(flow, "a", "2", id="two") == "2"


async def test_the_oldest_is_cancelled_when_all_places_are_taken(make_engine):
    """It is asked to stop if it has begun, and ended if it has not; the new one begins when its place is free."""
    bank = Bank()
    flow = paying(bank, at_once=1, on_full="cancel_oldest")
    engine = await make_engine(flow)
    runs = [await engine.start(flow, "a", "1", id="r1")]
    await eventually(lambda: bank.begun == ["1"])
    runs.append(await engine.start(flow, "a", "2", id="r2"))
    with pytest.raises(RunCancelled):
        await runs[0].result()
    await eventually(lambda: bank.begun == ["1", "2"])
    await engine.flow.pause(workflow=flow)
    runs += [await engine.start(flow, "a", str(n), id=f"r{n}") for n in (3, 4)]
    superseded = await runs[2].describe()
    assert superseded.status is Status.CANCELLED
    assert superseded.error is not None
    assert (superseded.error.type, "r4" in superseded.error.message) == ("Superseded", True)
    await engine.flow.resume(workflow=flow)
    bank.go.set()
    assert await runs[3].result() == "4"


async def test_a_rejected_child_raises_in_its_parent(make_engine):
    bank = Bank()
    flow = paying(bank, at_once=1, on_full="reject")

    @workflow
    async def parent(ctx: Context) -> str:
        try:
            return await ctx.child(flow, "a", "2")
        except ChildFailed as error:
            return f"{error.status}: {error.__cause__}"

    engine = await make_engine(flow, parent)
    await engine.start(flow, "a", "1")
    said = await engine.execute(parent)
    assert said.startswith("rejected: ")
    assert "as many runs of its workflow go on as may" in said
    bank.go.set()


@pytest.mark.parametrize("mode", ["memory"])
async def test_a_rejected_tick_is_on_record_as_skipped(make_engine):
    """The schedule goes on with its next tick; a run that is started by hand is refused."""

    @workflow(at_once=1, on_full="reject")
    async def nightly(ctx: Context) -> str:
        return await ctx.receive("go", str)

    engine = await make_engine(nightly)
    told: list[Change] = []
    engine.subscribe(told.append)
    await engine.schedules.put("night", nightly, every=HOUR, overlap="allow")
    await engine.advance(2 * HOUR)
    first, *others = await engine.runs(workflow="nightly")
    assert others == []
    [skipped, *_] = [
        record for record in await engine.audit.records(target="night") if record.action == "schedule.skip"
    ]
    assert skipped.actor == "schedule:night"
    [change, *_] = [each for each in told if each.type == "schedule.skipped"]
    assert (change.workflow, change.data) == ("nightly", {"schedule": "night", "reason": "full"})
    assert change.run_id != first.id
    with pytest.raises(RunRejected):
        await engine.schedules.trigger("night")
    await engine.get(first.id).send("go", "gone")
    await engine.settle()
    await engine.advance(HOUR)
    assert len(await engine.runs(workflow="nightly")) == 2


async def test_a_child_whose_ancestors_hold_all_places_is_refused(make_engine):
    """It would wait for its own parent for ever."""

    @workflow(at_once=1)
    async def family(ctx: Context, depth: int) -> str:
        if depth == 0:
            return "leaf"
        try:
            return await ctx.child(family, depth - 1)
        except ChildFailed as error:
            return str(error.__cause__)

    engine = await make_engine(family)
    assert "held by runs that wait for it" in await engine.execute(family, 1)
    assert await engine.execute(family, 0) == "leaf"


async def test_no_more_runs_begin_in_a_time_than_the_rate_says(make_engine):
    begun: list[Any] = []

    async def note(n: int) -> None:
        begun.append((n, engine.clock.now()))

    @workflow(name="often", rate=2, per=MINUTE)
    async def steps(ctx: Context, n: int) -> None:
        await ctx.step(note, n)

    engine = await make_engine(steps)
    runs = [await engine.start(steps, n) for n in range(5)]
    for run in runs:
        await run.result()
    assert [n for n, _ in begun] == [0, 1, 2, 3, 4]
    times = [at for _, at in begun]
    assert all(later - sooner >= 60_000_000 for sooner, later in zip(times, times[2:], strict=False))
    assert times[-1] - times[0] < 180_000_000


async def test_a_run_that_waits_can_be_cancelled_paused_and_sent_messages(make_engine):
    bank = Bank()

    @workflow(at_once=1)
    async def listener(ctx: Context, name: str) -> str:
        await ctx.step("pay", bank.pay, name)
        return await ctx.receive("word", str)

    engine = await make_engine(listener)
    first, gone, paused, last = [await engine.start(listener, name, id=name) for name in "abcd"]
    await eventually(lambda: bank.begun == ["a"])
    await paused.pause()
    await gone.cancel()
    for run in (first, paused, last):
        await run.send("word", f"hello {run.id}")
    with pytest.raises(RunCancelled):
        await gone.result()
    bank.go.set()
    assert await last.result() == "hello d"
    assert (await paused.describe()).status is Status.PAUSED
    await paused.resume()
    assert await paused.result() == "hello c"
    assert bank.begun == ["a", "d", "c"]


async def test_a_reopened_run_waits_for_a_place(make_engine):
    bank = Bank()
    fail = True

    async def maybe(name: str) -> str:
        if fail:
            raise ValueError("not yet")
        return await bank.pay(name)

    @workflow(at_once=1)
    async def single(ctx: Context, name: str) -> str:
        if name == "bad":
            return await ctx.step("maybe", maybe, name)
        return await ctx.step("pay", bank.pay, name)

    engine = await make_engine(single)
    bad = await engine.start(single, "bad")
    while not (await bad.status()).is_terminal:
        await engine.advance(HOUR)
    fail = False
    good = await engine.start(single, "good")
    await eventually(lambda: bank.begun == ["good"])
    await bad.retry()
    await engine.advance(MINUTE)
    found = await bad.describe()
    assert (found.status, found.waiting_for, bank.begun) == (Status.PENDING, "place", ["good"])
    bank.go.set()
    assert await good.result() == "good"
    assert await bad.result() == "bad"


@pytest.mark.parametrize("mode", ["file", "postgres"])
async def test_a_run_started_without_its_code_waits_in_its_lane_all_the_same(make_engine):
    """A client does not know the key; the first worker that claims the run puts it in its lane."""
    bank = Bank()
    flow = paying(bank, at_once=1)
    engine = await make_engine(flow)
    client = await make_engine(run_workflows=False, clock=engine.jumping)
    first = await engine.start(flow, "a", "1")
    await eventually(lambda: bank.begun == ["1"])
    second = await client.start("paying", customer="a", name="2")
    await eventually(lambda: waits_for_place(engine, second.id))
    bank.go.set()
    assert [await first.result(), await asyncio.wait_for(engine.get(second.id).result(), LONG)] == ["1", "2"]


@pytest.mark.parametrize("mode", ["file", "postgres"])
async def test_a_run_started_without_its_code_may_be_rejected_there(make_engine):
    """There is no caller to be told: it ends cancelled, and says why."""
    bank = Bank()
    flow = paying(bank, at_once=1, on_full="reject")
    engine = await make_engine(flow)
    client = await make_engine(run_workflows=False, clock=engine.jumping)
    await engine.start(flow, "a", "1")
    await eventually(lambda: bank.begun == ["1"])
    second = await client.start("paying", customer="a", name="2")
    await eventually(lambda: has_ended(engine, second.id))
    error = (await engine.get(second.id).describe()).error
    assert (error.type, "'reject'" in error.message) == ("RunRejected", True)
    bank.go.set()


async def waits_for_place(engine: Any, run_id: str) -> bool:
    return (await engine.get(run_id).describe()).waiting_for == "place"


async def has_ended(engine: Any, run_id: str) -> bool:
    return (await engine.get(run_id).status()).is_terminal


@pytest.mark.parametrize("mode", ["file", "postgres"])
async def test_places_are_held_across_engines_and_restarts(make_engine):
    """Two engines never have more than at_once between them, and one that is opened later finds the places taken."""
    bank = Bank()
    one, two = await make_engine(paying(bank, at_once=2)), await make_engine(paying(bank, at_once=2))
    runs = []
    for n in range(6):
        runs.append(await (one, two)[n % 2].start("paying", customer="a", name=str(n), id=str(n)))
    await eventually(lambda: len(bank.begun) == 2)
    for engine in (one, two):
        await engine._settle_but_for_bodies()
    assert len(bank.begun) == 2
    bank.go.set()
    for run in runs:
        assert await asyncio.wait_for(two.get(run.id).result(), LONG) == run.id


@pytest.mark.parametrize("mode", ["file"])
async def test_what_waits_is_counted_and_goes_on_when_a_deploy_takes_the_places_away(make_engine):
    """Workers take what still waits in lanes, without limits."""
    bank = Bank()
    engine = await make_engine(paying(bank, key=lambda customer, name: customer, at_once=1))
    for n in range(3):
        await engine.start("paying", customer="a", name=str(n), id=str(n))
    await eventually(lambda: bank.begun == ["0"])
    [waiting] = await engine.flow.waiting()
    assert (waiting.workflow, waiting.key, waiting.waiting, waiting.holding) == ("paying", "a", 2, 1)
    with pytest.raises(BadInput, match="limit must be between 1 and 10,000, not 0"):
        await engine.flow.waiting(limit=0)
    await engine.stop()
    bank.go.set()
    later = await make_engine(paying(bank), clock=engine.jumping)
    assert [await asyncio.wait_for(later.get(str(n)).result(), LONG) for n in range(3)] == ["0", "1", "2"]
    assert await later.flow.waiting() == []


# Bad input.


@pytest.mark.parametrize("mode", ["memory"])
@pytest.mark.parametrize(
    ("returned", "said"),
    [(7, "the key of workflow"), ("", "the key of workflow"), (None, "the key of workflow"), ("a\nb", "the key of")],
)
async def test_a_key_that_is_no_text_is_refused(make_engine, returned, said):
    @workflow(key=lambda name: returned)
    async def keyed(ctx: Context, name: str) -> None: ...

    engine = await make_engine(keyed)
    with pytest.raises(BadInput, match=said):
        await engine.start(keyed, "a")
    assert await engine.runs() == []


@pytest.mark.parametrize("mode", ["memory"])
async def test_a_key_function_that_raises_is_told_to_the_caller(make_engine):
    @workflow(key=lambda name: name["tenant"])
    async def keyed(ctx: Context, name: str) -> None: ...

    engine = await make_engine(keyed)
    with pytest.raises(BadInput, match="the key of workflow 'keyed' cannot be made of this input: TypeError"):
        await engine.start(keyed, "a")


async def _key(name: str) -> str:
    return name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"at_once": 0}, "at_once of workflow 'w' must be a whole number from 1 to 100,000, not 0"),
        ({"at_once": -3}, "at_once"),
        ({"at_once": True}, "at_once"),
        ({"at_once": 10**9}, "at_once"),
        ({"rate": 1001, "per": SECOND}, "rate of workflow 'w' must be a whole number from 1 to 1,000"),
        ({"rate": 5}, "rate and per of workflow 'w' go together"),
        ({"per": SECOND}, "rate and per"),
        ({"rate": 5, "per": timedelta(0)}, "per of workflow 'w' must be longer than zero"),
        ({"rate": 5, "per": 3}, "per"),
        ({"key": "tenant"}, "key of workflow 'w' must be a plain function"),
        ({"key": _key}, "key"),
        (
            {"on_full": "drop", "at_once": 1},
            "on_full of workflow 'w' is 'wait', 'reject' or 'cancel_oldest', not 'drop'",
        ),
        ({"on_full": "reject"}, "needs at_once or rate"),
        ({"on_full": "cancel_oldest", "rate": 1, "per": SECOND}, "needs at_once"),
        ({"debounce": timedelta(0)}, "debounce of workflow 'w' must be longer than zero"),
        ({"debounce": -SECOND}, "debounce"),
        ({"debounce": SECOND, "debounce_at_most": timedelta(milliseconds=1)}, "shorter than its debounce"),
        ({"debounce_at_most": SECOND}, "needs a debounce"),
        ({"debounce": SECOND, "at_once": 1, "on_full": "reject"}, "debounce of workflow 'w' ends what waits"),
    ],
)
def test_what_cannot_be_declared_is_named(options, said):
    with pytest.raises(DefinitionError, match=said):

        @workflow(name="w", **options)
        async def declared(ctx: Context) -> None: ...


def test_an_option_that_there_is_not_is_refused():
    with pytest.raises(TypeError, match="@workflow takes no 'limit'"):

        @workflow(limit=3)
        async def declared(ctx: Context) -> None: ...
