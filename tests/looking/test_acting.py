"""What a desk does beside single runs: each act is on record with who and why, and says what changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, Retry, activity, workflow
from holdfast.errors import (
    BadInput,
    NoSuchLetter,
    NoSuchRun,
    NoSuchSchedule,
    RunConflict,
    UniqueConflict,
    UnknownLimit,
    UnknownQuery,
    UnknownWorkflow,
)
from holdfast.limits import Limit
from holdfast.looking import LocalDesk
from holdfast.looking.acting.limits import LimitNumbers
from holdfast.looking.acting.requests import PurgeRequest, ScheduleRequest, StartRequest
from holdfast.looking.acting.revealing import value_at
from holdfast.testing import JumpingClock, TestEngine

DAY = timedelta(days=1)


@activity(retry=Retry.never)
async def charge(order: str) -> None:
    raise ValueError(f"no card for {order}")


@workflow
async def fulfil(ctx: Context, order: str) -> None:
    await ctx.step(charge, order)


@workflow
async def approval(ctx: Context) -> str:
    return await ctx.receive("approved", str)


@workflow
async def clash(ctx: Context, by: str = "", id: int = 0) -> str:
    """Its parameters have the names of options."""
    return await ctx.receive("approved", str)


@workflow
async def account(ctx: Context) -> int:
    total = 0
    ctx.on_query("total", lambda: total)
    while total < 10:
        request = await ctx.receive_request("add", int)
        total += request.payload
        ctx.reply(request, total)
    return total


@workflow
async def family(ctx: Context, depth: int) -> None:
    ctx.evidence("born", {"depth": depth})
    if depth:
        await ctx.child(family, depth - 1, id=f"{ctx.run_id}.a")
    await ctx.receive("grown")


WORKFLOWS: list[Any] = [fulfil, approval, clash, account, family]


@pytest.fixture
async def engine() -> AsyncIterator[TestEngine]:
    clock = JumpingClock(start=datetime(2026, 11, 16, 12, tzinfo=UTC))
    async with TestEngine(workflows=WORKFLOWS, clock=clock, limits=[Limit(name="bank", at_once=1)]) as engine:
        engine.store.clock = clock
        yield engine


@pytest.fixture
def desk(engine: TestEngine) -> LocalDesk:
    return LocalDesk(engine.store, engine=engine)


async def acts(desk: LocalDesk) -> list[tuple[str, str, str, Any]]:
    page = await desk.audit()
    return [(act.actor, act.action, act.target, act.detail) for act in reversed(page.items) if act.actor != "engine"]


async def test_a_run_is_started_for_a_person_on_record_once(desk, engine):
    request = StartRequest(workflow="clash", arguments={"by": "lena", "id": 7}, id="a-1", attributes={"size": 3})
    first = await desk.start(request, by="kim", reason="INC-7")
    again = await desk.start(request, by="lena")
    assert (first.run, first.changed, again.run, again.changed) == ("a-1", True, "a-1", False)
    assert await acts(desk) == [("kim", "start", "a-1", {"reason": "INC-7", "workflow": "clash"})]
    await engine.settle()
    view = await desk.run("a-1")
    assert (view.input, view.head.actor, view.head.attributes) == ({"by": "lena", "id": 7}, "kim", {"size": 3})
    assert view.head.status == "suspended"  # a worker has begun it, as one that another process started


async def test_a_start_that_is_refused_leaves_nothing_on_record(desk):
    await desk.start(StartRequest(workflow="approval", id="a-1", unique_key="k"), by="kim")
    with pytest.raises(RunConflict):
        await desk.start(StartRequest(workflow="clash", arguments={"id": 2}, id="a-1"), by="kim")
    with pytest.raises(UniqueConflict):
        await desk.start(StartRequest(workflow="approval", unique_key="k"), by="kim")
    shared = StartRequest(workflow="approval", unique_key="k", on_conflict="return")
    assert await desk.start(shared, by="kim") == await desk.start(StartRequest(workflow="approval", id="a-1"), by="kim")
    with pytest.raises(BadInput):
        await desk.start(StartRequest(workflow="clash", arguments={"nothing": 2}), by="kim")
    with pytest.raises(UnknownWorkflow):
        await desk.start(StartRequest(workflow="aproval"), by="kim")
    assert len(await acts(desk)) == 1


async def test_messages_events_and_requests_are_on_record(desk, engine):
    await engine.start(approval, id="a-1")
    await engine.start(approval, id="a-2")
    await engine.start(account, id="acc")
    await engine.settle()
    sent = await desk.send("a-1", "note", 1, by="kim", reason="INC-7", id="m-1")
    twice = await desk.send("a-1", "note", 1, by="kim", id="m-1")
    assert (sent.changed, twice.changed, "m-1 was sent before" in twice.said) == (True, False, True)
    [message] = (await desk.inbox("a-1")).items
    assert (message.name, message.payload, message.id, message.event) == ("note", 1, "m-1", False)
    published = await desk.publish("approved", "yes", by="kim", reason="INC-8")
    assert (published.count, published.changed) == (1, True)
    reply = await desk.ask("acc", "add", 4, by="lena", reason="count", timeout=timedelta(minutes=1))
    assert (reply.answer, (await desk.query("acc", "total")).answer) == (4, 4)
    done = await acts(desk)
    assert len(done[-1][3].pop("message")) == 36  # a request has an id of its own
    assert done == [
        ("kim", "send", "a-1", {"name": "note", "message": "m-1", "reason": "INC-7"}),
        ("kim", "publish", "approved", {"reason": "INC-8"}),
        ("lena", "send", "acc", {"name": "add", "reason": "count"}),
    ]
    with pytest.raises(NoSuchRun):
        await desk.send("nobody", "note", by="kim")
    with pytest.raises(UnknownQuery):
        await desk.query("acc", "sum")


async def test_the_numbers_of_a_limit_are_an_operators_until_they_are_cleared(desk):
    declared = (await desk.limits())[0]
    numbers = LimitNumbers(at_once=2, rate=10, per=timedelta(minutes=1), trip_after=3, cool_down=timedelta(seconds=30))
    changes = [
        await desk.override_limit("bank", numbers, by="kim", reason="INC-7"),
        await desk.override_limit("bank", numbers, by="kim"),
    ]
    [limit] = await desk.limits()
    assert (limit.overridden, limit.numbers, limit.declared) == (True, numbers, declared.allows)
    assert limit.allows == "2 at once, 10 in 1 min, nothing for 30 s after 3 failures in a row"
    changes += [
        await desk.override_limit("bank", None, by="lena", reason="they have room"),
        await desk.override_limit("bank", None, by="lena"),
    ]
    assert await desk.limits() == [declared]
    assert [each.changed for each in changes] == [True, False, True, False]
    said = ["these numbers were put in force before", "its numbers are those that engines declare"]
    assert [each.said for each in changes if not each.changed] == said
    assert [(actor, action) for actor, action, _, _ in await acts(desk)] == [
        ("kim", "limit.override"),
        ("lena", "limit.override"),
    ]
    with pytest.raises(UnknownLimit, match="declares the limit 'bink'"):
        await desk.override_limit("bink", numbers, by="kim")


@pytest.mark.parametrize("kind", ["workflow", "queue", "limit"])
async def test_work_is_paused_and_resumed_as_a_whole(desk, kind):
    name = {"workflow": "approval", "queue": "default", "limit": "bank"}[kind]
    changes = [
        await desk.pause_work(kind, name, by="kim", reason="INC-7"),
        await desk.pause_work(kind, name, by="kim"),
        await desk.resume_work(kind, name, by="lena"),
        await desk.resume_work(kind, name, by="lena"),
    ]
    assert [each.changed for each in changes] == [True, False, True, False]
    assert [each.said for each in changes if not each.changed] == ["it was paused already", "it was not paused"]
    assert [(actor, action) for actor, action, _, _ in await acts(desk)] == [
        ("kim", f"{kind}.pause"),
        ("lena", f"{kind}.resume"),
    ]


async def test_dead_letters_are_looked_at_seen_replayed_and_removed(desk, engine):
    for number in range(3):
        await engine.start(fulfil, f"o-{number}", id=f"o-{number}")
    await engine.settle()
    third, second, first = await desk.letters()
    detail = await desk.letter(first.id)
    assert (detail.letter, detail.error["message"], detail.payload) == (first, "no card for o-0", {"order": "o-0"})
    seen = [await desk.acknowledge(first.id, by="kim", reason="refunded") for _ in range(2)]
    assert [each.changed for each in seen] == [True, False]
    assert (await desk.replay(second.id, by="kim")).changed
    await engine.settle()
    removed = [await desk.remove_letter(third.id, by="kim", reason="a test") for _ in range(2)]
    assert [(each.changed, each.said) for each in removed] == [(True, ""), (False, "there is no such letter")]
    for act in (desk.acknowledge, desk.replay):
        with pytest.raises(NoSuchLetter):
            await act("nothing", by="kim")
    with pytest.raises(NoSuchLetter):
        await desk.letter(third.id)
    assert [action for _, action, _, _ in await acts(desk)] == [
        "deadletter.acknowledge", "retry", "deadletter.remove",
    ]  # fmt: skip


async def test_schedules_are_put_paused_triggered_filled_and_deleted(desk, engine):
    nightly = ScheduleRequest(workflow="clash", arguments={"by": "kim"}, cron="0 2 * * *", timezone="Europe/Berlin")
    put = [await desk.put_schedule("nightly", nightly, by="kim", reason="new") for _ in range(2)]
    assert [each.changed for each in put] == [True, False]
    [shown] = await desk.schedules()
    assert (shown.when, shown.input) == ("0 2 * * * Europe/Berlin", {"by": "kim", "id": 0})
    paused = [await desk.pause_schedule("nightly", by="kim") for _ in range(2)]
    resumed = [await desk.resume_schedule("nightly", by="kim") for _ in range(2)]
    assert [each.changed for each in paused + resumed] == [True, False, True, False]
    triggered = await desk.trigger_schedule("nightly", by="lena", reason="now")
    assert (await desk.run(triggered.run)).head.workflow == "clash"
    start, end = datetime(2026, 11, 10, tzinfo=UTC), datetime(2026, 11, 13, tzinfo=UTC)
    planned = [each.run for each in await desk.past_ticks("nightly", start, end) if not each.status]
    filled = [await desk.backfill_schedule("nightly", start, end, by="kim") for _ in range(2)]
    assert [(len(each.started), each.changed) for each in filled] == [(3, True), (0, False)]
    assert filled[0].started == planned, "the dry run said something else"
    assert not [each.run for each in await desk.past_ticks("nightly", start, end) if not each.status]
    assert (await desk.delete_schedule("nightly", by="kim", reason="old")).changed
    assert await desk.schedules() == []
    assert [(actor, action) for actor, action, _, _ in await acts(desk)] == [
        ("kim", "schedule.put"), ("kim", "schedule.pause"), ("kim", "schedule.resume"), ("lena", "schedule.trigger"),
        *[("kim", "schedule.backfill")] * 3, ("kim", "schedule.delete"),
    ]  # fmt: skip
    for act in (desk.pause_schedule, desk.resume_schedule, desk.trigger_schedule, desk.delete_schedule):
        with pytest.raises(NoSuchSchedule):
            await act("nightly", by="kim")
    with pytest.raises(UnknownWorkflow):
        await desk.put_schedule("x", ScheduleRequest(workflow="nothing", cron="0 2 * * *"), by="kim")


async def test_a_purge_is_counted_first_and_then_does_just_that(desk, engine):
    for number in range(3):
        await engine.start(fulfil, f"o-{number}", id=f"o-{number}")
    await engine.start(approval, id="open")
    await engine.publish("stock", 1)
    await engine.settle()
    await desk.acknowledge((await desk.letters())[0].id, by="kim")
    kinds = ["failed", "completed", "seen_letters", "letters", "events"]
    early = await desk.purge(PurgeRequest(kinds=kinds, older_than=DAY), by="kim", dry_run=False)
    assert set(early.counts.values()) == {0}
    engine.clock.advance(2 * DAY)
    request = PurgeRequest(kinds=kinds, older_than=DAY)
    counted = await desk.purge(request, by="kim", reason="INC-7")
    assert (counted.dry_run, counted.counts, counted.finished) == (
        True, {"failed": 3, "completed": 0, "seen_letters": 1, "letters": 3, "events": 1}, True,
    )  # fmt: skip
    assert (await desk.count("status:failed")).n == 3
    part = await desk.purge(PurgeRequest(kinds=["failed"], older_than=DAY, limit=2), by="kim", dry_run=False)
    assert (part.counts, part.finished) == ({"failed": 2}, False)
    rest = await desk.purge(request, by="kim", reason="INC-7", dry_run=False)
    assert rest.counts == {"failed": 1, "completed": 0, "seen_letters": 1, "letters": 2, "events": 1}
    assert [head.id for head in (await desk.heads()).items] == ["open"]
    purges = [(actor, detail["kind"]) for actor, action, _, detail in await acts(desk) if action == "purge"]
    assert purges == [("kim", kind) for kind in ("failed", "failed", "seen_letters", "letters", "events")]
    with pytest.raises(BadInput, match="say what to purge"):
        await desk.purge(PurgeRequest(kinds=[], older_than=DAY), by="kim")


async def test_a_desk_without_an_engine_acts_on_nothing(engine):
    desk = LocalDesk(engine.store)
    for act in (
        desk.start(StartRequest(workflow="approval"), by="kim"),
        desk.send("a", "b", by="kim"),
        desk.pause_work("queue", "default", by="kim"),
        desk.acknowledge("x", by="kim"),
        desk.delete_schedule("x", by="kim"),
        desk.purge(PurgeRequest(kinds=["failed"], older_than=DAY), by="kim"),
    ):
        with pytest.raises(BadInput, match="this desk only looks"):
            await act


# What belongs to a run.


async def test_children_are_shown_after_their_parents_to_a_depth(desk, engine):
    await engine.start(family, 3, id="root")
    await engine.settle()
    near, deep = await desk.children("root"), await desk.children("root", depth=10)
    assert [(each.depth, each.head.id) for each in near.items] == [(1, "root.a")]
    assert [(each.depth, each.head.id) for each in deep.items] == [(1, "root.a"), (2, "root.a.a"), (3, "root.a.a.a")]
    assert deep.items[0].head.why.code == "waiting.child"
    assert (deep.more, (await desk.children("root.a.a.a")).items) == (False, [])
    with pytest.raises(NoSuchRun):
        await desk.children("nobody")
    with pytest.raises(BadInput, match="depth"):
        await desk.children("root", depth=11)


async def test_evidence_is_paged_and_exported(desk, engine):
    await engine.start(family, 0, id="root")
    await engine.settle()
    page = await desk.evidence("root")
    assert [(each.n, each.kind, each.data) for each in page.items] == [(1, "born", {"depth": 0})]
    assert [line async for line in desk.export_audit("root")] == [line async for line in engine.audit.export("root")]
    told: list[int] = []
    verdict = await desk.verify_audit("root", told=told.append)
    assert verdict.last == page.items[-1].hash
    assert told == [*range(1, verdict.checked + 1)]
    unknown = (desk.evidence("nobody"), desk.verify_audit("nobody"), desk.chain("nobody"))
    for asked in (*unknown, anext(desk.export_audit("nobody"))):
        with pytest.raises(NoSuchRun, match="and no evidence of one"):
            await asked


async def test_versions_say_which_workers_have_them_and_how_many_runs_are_open(desk, engine):
    await engine.start(approval, id="a-1")
    await engine.settle()
    found = {each.workflow: each for each in await desk.versions()}
    assert found.keys() == {"fulfil", "approval", "clash", "account", "family"}
    assert (found["approval"].version, found["approval"].workers, found["approval"].open.n) == ("1", 1, 1)
    assert found["fulfil"].open.n == 0
    assert found["approval"].fingerprints == [approval.fingerprint]


async def test_a_result_is_waited_for_no_longer_than_asked(desk, engine):
    await engine.start(approval, id="a-1")
    await engine.settle()
    waits = await desk.result("a-1")
    assert (waits.ended, waits.status) == (False, "suspended")
    await desk.send("a-1", "approved", "yes", by="kim")
    await engine.settle()
    ended = await desk.result("a-1", wait=DAY)
    assert (ended.ended, ended.output) == (True, "yes")
    assert (await desk.steps("a-1")).items == []


def test_a_pointer_with_a_very_long_number_points_at_nothing():
    assert value_at([1, 2], "/1") == 2
    with pytest.raises(BadInput, match="there is no value at"):
        value_at([1, 2], f"/{'9' * 5_000}")
