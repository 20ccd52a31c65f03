"""What a desk shows beside runs: queues, events, names for the filter language, the audit trail, letters by cause."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.support.transfer_cases import House, approval, order
from tests.support.waiting import eventually

from holdfast import Context, Engine, Event, activity, workflow
from holdfast.errors import BadInput
from holdfast.looking import LocalDesk
from holdfast.testing import JumpingClock, TestEngine


@activity(queue="gpu")
async def train() -> None: ...


@workflow
async def training(ctx: Context) -> None:
    await ctx.step(train)


async def test_a_queue_is_shown_with_what_waits_and_whether_it_is_paused():
    async with TestEngine(workflows=[training], clock=JumpingClock()) as engine:
        desk = LocalDesk(engine.store)
        assert await desk.queues() == []
        await engine.start(training, id="train-1")
        await engine.settle()
        [view] = await desk.queues()
        assert (view.queue, view.activity, view.waiting, view.taken, view.paused) == ("gpu", "train", 1, 0, False)
        assert view.oldest is not None
        await engine.flow.pause(queue="gpu", by="lena")
        assert [view.paused for view in await desk.queues()] == [True]


async def test_events_are_shown_with_what_is_queued_and_who_waits():
    async with TestEngine(workflows=[approval], clock=JumpingClock()) as engine:
        desk = LocalDesk(engine.store)
        for number in range(3):
            await engine.publish("stock", {"n": number})
        await engine.start(approval, 1, id="order-1")
        await engine.settle()
        shown = {view.name: (view.queued, view.waiting) for view in await desk.event_names()}
        assert shown.pop("stock") == (3, 0)
        [(name, counted)] = shown.items()
        assert counted == (0, 1)
        page = await desk.events("stock", limit=2)
        assert [event.payload for event in page.queued] == [{"n": 0}, {"n": 1}]
        rest = await desk.events("stock", after=page.next or 0)
        assert ([event.payload for event in rest.queued], rest.next) == ([{"n": 2}], None)
        assert [waiter.run for waiter in (await desk.events(name)).waiting] == ["order-1"]


async def test_the_rule_of_an_event_is_told_where_an_engine_declares_another_than_the_usual():
    rules = [Event(name="price", consume_on_read=False, expire_after=timedelta(minutes=90)), Event(name="stock")]
    async with TestEngine(workflows=[approval], events=rules) as engine:
        for name in ("price", "stock", "other"):
            await engine.publish(name, 1)
        shown = {view.name: view.rule for view in await LocalDesk(engine.store, engine=engine).event_names()}
        assert shown == {"price": "to every run that waits, for 1 h 30 min", "stock": "", "other": ""}
        assert {view.rule for view in await LocalDesk(engine.store).event_names()} == {""}


async def test_a_schedule_says_how_its_last_run_stands():
    async with TestEngine(workflows=[training]) as engine:
        await engine.schedules.put("hourly", training, every=timedelta(hours=1))
        [before] = await LocalDesk(engine.store).schedules()
        await engine.advance(timedelta(hours=1))
        [after] = await LocalDesk(engine.store).schedules()
        assert (before.last_run, before.last_status) == (None, "")
        assert after.last_run is not None
        assert after.last_status == "suspended"


async def test_names_and_values_complete_a_filter():
    async with TestEngine(workflows=[approval], clock=JumpingClock()) as engine:
        desk = LocalDesk(engine.store)
        for number, customer in enumerate(["c-1", "c-2", "7", "a b", 7]):
            await engine.start(approval, 1, id=f"order-{number}", attributes={"customer": customer})
        assert await desk.workflows() == ["approval"]
        assert await desk.workflows("x") == []
        assert await desk.attributes("cu") == ["customer"]
        assert await desk.attribute_values("customer") == ['"7"', '"a b"', "7", "c-1", "c-2"]
        assert await desk.attribute_values("customer", "c-") == ["c-1", "c-2"]
        for value in await desk.attribute_values("customer"):
            assert len((await desk.heads(f"customer={value}")).items) == 1


async def test_the_audit_trail_is_shown_from_its_end(path):
    clock = JumpingClock()
    async with House(f"sqlite:///{path}", clock).engine() as engine:
        desk = LocalDesk(engine.store)
        run = await engine.start(approval, 1, id="order-1")
        await engine.settle()
        await run.pause(by="lena", reason="INC-7")
        clock.advance(timedelta(hours=2))
        await run.resume(by="kim")
        page = await desk.audit()
        assert [(view.actor, view.action) for view in page.items] == [("kim", "resume"), ("lena", "pause")]
        assert page.items[1].detail["reason"] == "INC-7"
        assert [view.actor for view in (await desk.audit(actor="lena")).items] == ["lena"]
        until = page.items[0].at - timedelta(hours=1)
        assert [view.actor for view in (await desk.audit(until=until)).items] == ["lena"]
        assert [view.actor for view in (await desk.audit(since=until)).items] == ["kim"]
        first = await desk.audit(limit=1)
        assert [view.actor for view in (await desk.audit(before=first.next)).items] == ["lena"]
        with pytest.raises(BadInput, match="limit must be between 1 and 1,000"):
            await desk.audit(limit=0)


async def test_letters_are_grouped_by_the_error_that_is_meant(path):
    async with House(f"sqlite:///{path}", JumpingClock()).engine() as engine:
        for number in range(3):
            await engine.start(order, "lamp", id=f"order-{number}")  # the bank is closed
        await engine.settle()
        desk = LocalDesk(engine.store)
        [group] = await desk.letter_groups()
        assert group.count == 3
        assert group.example == (await desk.letters())[0].id
        assert "StepFailed" not in group.error


async def test_a_worker_is_shown_with_what_it_serves_and_carries(path):
    """The lease is short, so that what it carries is told soon; a body runs until it is let go."""
    go = asyncio.Event()

    @activity
    async def slow() -> None:
        await go.wait()

    @workflow(version="7")
    async def slowly(ctx: Context) -> None:
        await ctx.step(slow)

    lease = timedelta(seconds=1)
    async with Engine(f"sqlite:///{path}", workflows=[slowly], queues=["default", "gpu"], lease=lease) as engine:
        run = await engine.start(slowly, id="order-1")
        desk = LocalDesk(engine.store)

        async def told() -> bool:
            [view] = await desk.workers()
            return [(body.run, body.step, body.attempt) for body in view.bodies] == [("order-1", "slow", 1)]

        await eventually(told)
        [view] = await desk.workers()
        assert (view.queues, view.workflows, view.steps, view.runs) == (["default", "gpu"], {"slowly": "7"}, 1, 1)
        assert view.holdfast
        [head] = (await desk.heads("order-1")).items
        assert (head.why.subject["step"], head.why.sentence.startswith("Step `slow`, attempt 1, since ")) == (
            "slow",
            True,
        )
        go.set()
        await run.result()


async def test_ended_runs_are_counted_seldom_and_open_ones_now():
    clock = JumpingClock()
    async with TestEngine(workflows=[approval], clock=clock) as engine:
        engine.store.clock = clock
        desk = LocalDesk(engine.store)

        async def counted() -> tuple[int, int]:
            by_status = {count.status: count.n for count in await desk.counts()}
            return by_status["suspended"], by_status["cancelled"]

        runs = [await engine.start(approval, 1, id=f"order-{number}") for number in range(3)]
        await engine.settle()
        assert await counted() == (3, 0)
        await runs[0].terminate()
        assert await counted() == (2, 0)
        clock.advance(timedelta(seconds=11))
        assert await counted() == (2, 1)


async def test_a_page_of_a_history_names_its_calls_and_reads_no_other_page(monkeypatch):
    @activity
    async def pick(number: int) -> int:
        return number

    @workflow
    async def picking(ctx: Context) -> None:
        for number in range(40):
            await ctx.step(pick, number)

    async with TestEngine(workflows=[picking]) as engine:
        await engine.execute(picking, id="order-1")
        desk = LocalDesk(engine.store)
        whole = (await desk.history("order-1", limit=1_000)).items
        read: list[int] = []
        for name in ("history", "facts_of_kind"):
            asked = getattr(engine.store, name)

            async def counted(*given, asked=asked, **more):
                rows = await asked(*given, **more)
                read.append(len(rows))
                return rows

            monkeypatch.setattr(engine.store, name, counted)
        page = await desk.history("order-1", after=whole[50].seq, limit=10)
        assert page.items == whole[51:61]
        assert {entry.path.partition("#")[0] for entry in page.items} == {"pick"}
        newest = await desk.history("order-1", limit=10, newest=True)
        assert newest.items == whole[-10:]
        assert sum(read) < 30, "two pages and the name"


FAILED_ON_PURPOSE = ["order-1", "order-2"]


@pytest.mark.parametrize(
    ("filter", "found"),
    [
        ("", FAILED_ON_PURPOSE),
        ("workflow:order", FAILED_ON_PURPOSE),
        ("workflow:approval", []),
        ("-workflow:order", []),
        ("customer=c-1", ["order-1"]),
        ("size=3", ["order-2"]),
        ('size="3"', []),
        ("id:order-2*", ["order-2"]),
        ("order-2", ["order-2"]),
        ("order", FAILED_ON_PURPOSE),
        ("nothing", []),
        ("tenant:acme", ["order-1"]),
        ("actor:kim", []),
        ("version:9", []),
        ("created:..-1d", []),
        ("created:-1d..", FAILED_ON_PURPOSE),
        ("ended:..-1d", []),
        ("status:failed", FAILED_ON_PURPOSE),
        ("status:blocked", []),
        ("is:overdue", []),
    ],
)
async def test_what_needs_attention_meets_the_other_conditions_too(path, filter, found):
    async with House(f"sqlite:///{path}", JumpingClock()).engine() as engine:
        await engine.start(order, "lamp", id="order-1", attributes={"customer": "c-1"}, tenant="acme")
        await engine.start(order, "lamp", id="order-2", attributes={"size": 3})  # the bank is closed
        await engine.settle()
        desk = LocalDesk(engine.store)
        page = await desk.heads(f"is:attention {filter}")
        assert sorted(head.id for head in page.items) == found
        assert (await desk.count(f"is:attention {filter}")).n == len(found)


async def nothing() -> None: ...


@workflow
async def long(ctx: Context) -> str:
    for _ in range(60):
        await ctx.step(nothing)
    return "done"


async def test_a_run_is_shown_by_its_newest_facts_however_many_it_has(monkeypatch):
    """FACES, decision 3: nothing is scanned without a bound."""
    monkeypatch.setattr("holdfast.looking.local.MOST_FACTS", 40)
    async with TestEngine(workflows=[long], clock=JumpingClock()) as engine:
        await engine.execute(long, id="film-1")
        desk, history, read = LocalDesk(engine.store), engine.store.history, []

        def noted(key, **options):
            read.append(options["limit"])
            return history(key, **options)

        monkeypatch.setattr(engine.store, "history", noted)
        view, steps = await desk.run("film-1"), await desk.steps("film-1")
        assert (view.partial, steps.partial, view.entries > 120) == (True, True, True)
        assert 10 < len(view.steps) < 41
        assert [step.path for step in view.steps] == [step.path for step in steps.items]
        assert view.steps[-1].path == "nothing#60"
        newest = await desk.run("film-1", facts=10)
        assert newest.steps == view.steps[-len(newest.steps) :]
        with pytest.raises(BadInput, match="between 1 and 40, not 41"):
            await desk.run("film-1", facts=41)
        assert set(read) == {41, 11}
        read.clear()
        assert (await desk.result("film-1")).output == "done"
        assert not read, "how it ended stands in its row"
