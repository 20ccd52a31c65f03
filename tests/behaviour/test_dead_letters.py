"""Dead letters from end to end: what was given up on is kept with its cause, and can be tried again, once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import ChildFailed, Context, Event, NonRetryable, Retry, RunFailed, Status, activity, workflow
from holdfast.declarative import sequence, step
from holdfast.errors import BadInput, CannotReopen, Critical, NoSuchLetter, NoSuchRun, Rollback, RunTerminal

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@dataclass
class Order:
    number: int
    address: str


class Shop:
    """A workflow whose second step fails until the shop is mended."""

    def __init__(self, error: type[Exception] = ConnectionError) -> None:
        self.ran: list[str] = []
        self.mended = False
        shop = self

        async def reserve(order: Order) -> str:
            shop.ran.append("reserve")
            return "reserved"

        @activity(retry=Retry(max_attempts=3))
        async def charge(order: Order) -> str:
            shop.ran.append("charge")
            if not shop.mended:
                raise error("the bank does not answer")
            return "charged"

        @workflow
        async def fulfil(ctx: Context, order: Order) -> str:
            await ctx.step(reserve, order)
            return await ctx.step(charge, order)

        self.fulfil = fulfil


async def failed(run: Any) -> None:
    with pytest.raises(RunFailed):
        await run.result()


# Work.


async def test_a_run_that_fails_leaves_a_letter_with_all_that_is_needed(make_engine):
    """S0-9 S4-23 B9 B34 S0-33 S0-3 What failed, where, how often, why, with which input and with which arguments."""
    shop = Shop()
    engine = await make_engine(shop.fulfil, start=START)
    run = await engine.start(shop.fulfil, Order(7, "Oslo"))
    await failed(run)
    (letter,) = await engine.dead_letters.list()
    assert (letter.kind, letter.run_id, letter.workflow) == ("work", run.id, "fulfil")
    assert (letter.step, letter.activity, letter.attempts, letter.failures) == ("charge", "charge", 3, 3)
    assert (letter.compensation, letter.idempotent) == (False, False)
    assert letter.arguments == {"order": {"number": 7, "address": "Oslo"}}
    assert (await run.describe()).failed_step == "charge"
    assert letter.error is not None
    assert (letter.error.type, letter.error.message) == ("ConnectionError", "the bank does not answer")
    assert "charge" in letter.error.traceback
    assert letter.payload == {"order": {"number": 7, "address": "Oslo"}}
    assert letter.at >= START
    assert (letter.acknowledged_at, letter.outcome, letter.retryable) == (None, "", True)
    assert (await engine.stats())["dead_letters"] == 1


async def test_when_those_who_watch_hear_of_a_failure_everything_else_is_done(make_engine):
    """S0-33 Letter, status, error and the release of the unique key are one commit; then it is told."""
    shop = Shop()
    engine = await make_engine(shop.fulfil)
    found: list[Any] = []

    async def look(run_id: str) -> None:
        letters = await engine.dead_letters.list(run=run_id)
        again = await engine.start(shop.fulfil, Order(8, "Bergen"), unique_key="customer 1", delay=DAY)
        found.append((await engine.get(run_id).status(), [letter.activity for letter in letters], again.id))

    tasks: list[asyncio.Task[None]] = []

    def told(change: Any) -> None:
        if change.type == "run.failed":
            assert change.data["error"] == {"type": "ConnectionError", "message": "the bank does not answer"}
            tasks.append(asyncio.get_running_loop().create_task(look(change.run_id)))

    engine.subscribe(told)
    run = await engine.start(shop.fulfil, Order(7, "Oslo"), unique_key="customer 1")
    await failed(run)
    await asyncio.gather(*tasks)
    ((status, activities, again),) = found
    assert (status, activities) == (Status.FAILED, ["charge"])
    assert again != run.id


async def test_a_letter_is_replayed_once_and_says_what_became_of_it(make_engine):
    """S4-24 S4-32 G12 B9 B33 The run goes on where it failed; finished steps do not run again; it is counted."""
    shop = Shop()
    engine = await make_engine(shop.fulfil)
    run = await engine.start(shop.fulfil, Order(7, "Oslo"))
    await failed(run)
    (letter,) = await engine.dead_letters.list()
    shop.ran.clear()
    assert await engine.dead_letters.replay(letter.id, by="kim") is True
    await failed(run)
    assert shop.ran == ["charge"] * 3
    assert await engine.dead_letters.replay(letter.id) is False
    assert (await engine.dead_letters.get(letter.id)).outcome == "failed"
    shop.mended = True
    newer, older = await engine.dead_letters.list()
    assert (older.id, older.outcome, newer.outcome) == (letter.id, "failed", "")
    shop.ran.clear()
    await engine.dead_letters.replay(newer.id, by="kim")
    assert await run.result() == "charged"
    assert shop.ran == ["charge"]
    counts = (await engine.dead_letters.counts())["work"]
    assert (counts["open"], counts["failed"], counts["completed"]) == (0, 1, 1)
    assert [(record.actor, record.action) for record in await engine.audit.records()] == [("kim", "retry")] * 2
    assert (await engine.stats())["dead_letters"] == 0


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_many_ask_for_one_replay_and_it_happens_once(make_engine):
    """S4-24 G12 B33 From two engines at once; the others are told that it was dealt with."""
    shop = Shop()
    first = await make_engine(shop.fulfil)
    second = await make_engine(shop.fulfil, clock=first.jumping)
    run = await first.start(shop.fulfil, Order(7, "Oslo"))
    await failed(run)
    (letter,) = await first.dead_letters.list()
    shop.mended = True
    shop.ran.clear()
    asked = [engine.dead_letters.replay(letter.id) for engine in (first, second) * 5]
    answers = await asyncio.gather(*asked)
    assert sorted(answers) == [False] * 9 + [True]
    assert await asyncio.wait_for(run.result(), LONG) == "charged"
    assert shop.ran == ["charge"]


@pytest.mark.parametrize("mode", ["file"])
async def test_a_slow_replay_does_not_run_what_another_replay_has_run(make_engine):
    """S4-24 G12 It saw the letter open; meanwhile somebody replayed it, and the run failed again."""
    shop = Shop()
    first = await make_engine(shop.fulfil)
    slow = await make_engine(shop.fulfil, run_workflows=False, clock=first.jumping)
    run = await first.start(shop.fulfil, Order(7, "Oslo"))
    await failed(run)
    (letter,) = await first.dead_letters.list()
    reading = slow.faults.hold(at="letters", moment="after")
    late = asyncio.ensure_future(slow.dead_letters.replay(letter.id))
    await reading.happened()
    await first.dead_letters.replay(letter.id)
    await failed(run)
    shop.ran.clear()
    reading.release()
    assert await late is False
    await first.settle()
    assert shop.ran == []


class Saga:
    """Two steps with their compensations and a third that fails; `broken` compensations fail until they are mended."""

    def __init__(self, *broken: str) -> None:
        self.broken = set(broken)
        self.stocked = False
        self.ran: list[str] = []
        saga = self

        async def charge() -> None:
            saga.ran.append("charge")

        async def pack() -> None:
            saga.ran.append("pack")

        @activity(retry=Retry(max_attempts=2))
        async def refund(reason: str) -> None:
            saga.ran.append("refund")
            if "refund" in saga.broken:
                raise ConnectionError("the bank does not answer")

        @activity(retry=Retry.never)
        async def unpack(reason: str) -> None:
            saga.ran.append("unpack")
            if "unpack" in saga.broken:
                raise ConnectionError("the parcel is gone")

        @activity(retry=Retry.never)
        async def ship() -> None:
            saga.ran.append("ship")
            if not saga.stocked:
                raise ValueError("out of stock")

        @workflow
        async def order(ctx: Context) -> str:
            await ctx.step(charge)
            ctx.compensate(refund, "out of stock")
            await ctx.step(pack)
            ctx.compensate(unpack, "out of stock")
            await ctx.step(ship)
            return "shipped"

        self.order = order


async def letters_of(engine: Any) -> dict[str, Any]:
    return {letter.activity: letter for letter in await engine.dead_letters.list()}


async def test_a_failed_compensation_has_a_letter_of_its_own(make_engine):
    """G11 G12 B9 S4-23 With the step that undoes; retrying the run deals with both letters."""
    saga = Saga("refund")
    engine = await make_engine(saga.order)
    run = await engine.start(saga.order)
    await failed(run)
    letters = await letters_of(engine)
    assert sorted(letters) == ["refund", "ship"]
    refund = letters["refund"]
    assert (refund.step, refund.attempts, refund.failures) == ("undo#0/refund", 2, 2)
    assert (refund.compensation, letters["ship"].compensation) == (True, False)
    assert refund.arguments == {"reason": "out of stock"}
    assert refund.error is not None
    assert refund.error.type == "ConnectionError"
    saga.stocked = True
    saga.ran.clear()
    await run.retry()
    assert await run.result() == "shipped"
    assert saga.ran == ["charge", "pack", "ship"]
    assert {letter.outcome for letter in await engine.dead_letters.list()} == {"completed"}
    assert await engine.dead_letters.replay(letters["ship"].id) is False


@pytest.mark.parametrize("broken", [("refund",), ("unpack",), ("unpack", "refund")])
async def test_a_failed_compensation_is_replayed_alone(make_engine, broken):
    """G11 G12 B17 S4-21 S4-24 What was not undone is, and nothing else runs again: no step, nothing that was undone."""
    saga = Saga(*broken)
    engine = await make_engine(saga.order)
    run = await engine.start(saga.order)
    await failed(run)
    assert saga.ran == ["charge", "pack", "ship", "unpack", *["refund"] * (2 if "refund" in broken else 1)]
    letters = await letters_of(engine)
    assert sorted(letters) == sorted([*broken, "ship"])
    saga.broken.clear()
    saga.ran.clear()
    assert await engine.dead_letters.replay(letters[broken[0]].id, by="kim") is True
    await failed(run)
    assert saga.ran == list(broken)
    described = await run.describe()
    assert described.compensation is not None
    assert [(each["name"], each["status"]) for each in described.compensation] == [
        ("unpack", "completed"), ("refund", "completed"),
    ]  # fmt: skip
    assert (described.failed_step, described.error and described.error.message) == ("ship", "out of stock")
    after = await engine.dead_letters.list()
    assert {letter.activity: letter.outcome for letter in after} == {**dict.fromkeys(broken, "completed"), "ship": ""}
    assert len(after) == len(letters), "the failure itself has no second letter"
    saga.stocked = True
    saga.ran.clear()
    assert await engine.dead_letters.replay(letters["ship"].id) is True
    assert await run.result() == "shipped"
    assert saga.ran == ["charge", "pack", "ship"]


async def test_a_compensation_that_fails_again_has_another_letter(make_engine):
    """G11 G12 S4-32 The one that was replayed says that it failed; the new one can be replayed, with the same key."""
    saga = Saga("unpack")
    engine = await make_engine(saga.order)
    run = await engine.start(saga.order)
    await failed(run)
    first = (await letters_of(engine))["unpack"]
    await engine.dead_letters.replay(first.id)
    await failed(run)
    assert (await engine.dead_letters.get(first.id)).outcome == "failed"
    second = (await engine.dead_letters.list(acknowledged=False))[0]
    assert (second.activity, second.attempts, second.failures) == ("unpack", 2, 1)
    saga.broken.clear()
    saga.ran.clear()
    await engine.dead_letters.replay(second.id)
    await failed(run)
    assert saga.ran == ["unpack"]
    assert (await engine.dead_letters.get(second.id)).outcome == "completed"
    with pytest.raises(CannotReopen, match="nothing is left to undo"):
        await engine._client.control.reopener.replay(second, "kim", "")


async def test_what_was_not_undone_when_a_run_was_cancelled_is_undone_alone(make_engine):
    """G11 G12 B17 The run stays cancelled."""

    @workflow
    async def order(ctx: Context) -> None:
        await ctx.step("charge", ask, "charge")
        ctx.compensate(undo, "charge")
        await ctx.step("pack", ask, "pack")
        ctx.compensate(undo, "pack")
        await ctx.receive("never")

    ran: list[str] = []
    broken = {"pack"}

    async def ask(name: str) -> None: ...

    @activity(retry=Retry.never)
    async def undo(name: str) -> None:
        ran.append(name)
        if name in broken:
            raise ConnectionError("not now")

    engine = await make_engine(order)
    run = await engine.start(order)
    await engine.settle()
    await run.cancel(compensate=True)
    await engine.settle()
    assert ran == ["pack", "charge"]
    (letter,) = await engine.dead_letters.list()
    broken.clear()
    ran.clear()
    assert await engine.dead_letters.replay(letter.id) is True
    await engine.settle()
    assert (ran, await run.status()) == (["pack"], Status.CANCELLED)
    assert (await engine.dead_letters.get(letter.id)).outcome == "completed"


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_the_undoing_of_what_is_left_survives_a_stop_in_the_middle(make_engine):
    """G11 B17 G1 Replayed from its history, in the order in which things were undone."""
    held, ran = asyncio.Event(), []

    async def did(name: str) -> None: ...

    @activity(retry=Retry.never)
    async def undo(name: str) -> None:
        ran.append(name)
        if name == "b" and len(ran) == 2:
            raise ConnectionError("not now")
        if name == "b":
            await held.wait()

    @activity(retry=Retry.never)
    async def fail() -> None:
        raise ValueError("no")

    @workflow
    async def work(ctx: Context) -> None:
        for name in "abc":
            await ctx.step(did, name)
            ctx.compensate(undo, name)
        await ctx.step(fail)

    first = await make_engine(work)
    run = await first.start(work, id="r")
    await failed(run)
    assert ran == ["c", "b", "a"]
    letter = next(letter for letter in await first.dead_letters.list() if letter.compensation)
    await first.dead_letters.replay(letter.id)
    await eventually(lambda: ran == ["c", "b", "a", "b"])
    await first.stop(grace=timedelta(0))
    held.set()
    second = await make_engine(work)
    await failed(second.get("r"))
    assert ran == ["c", "b", "a", "b", "b"], "the attempt that was handed back, and no other"
    assert (await second.dead_letters.get(letter.id)).outcome == "completed"


@pytest.mark.parametrize("error", [ConnectionError, NonRetryable, Critical, Rollback])
async def test_a_letter_says_whether_trying_again_is_of_any_use(make_engine, error):
    """S4-32 Bad luck or a bug: the failure is classified by what the body said."""
    shop = Shop(error)
    engine = await make_engine(shop.fulfil)
    await failed(await engine.start(shop.fulfil, Order(7, "Oslo")))
    (letter,) = await engine.dead_letters.list()
    assert letter.retryable is (error is ConnectionError)
    assert letter.attempts == (3 if error is ConnectionError else 1)


async def test_a_failure_that_is_handled_is_no_dead_letter(make_engine):
    """B9 G12 Only what nobody dealt with is; neither is a run that was cancelled, terminated or completed."""
    shop = Shop()

    @workflow
    async def careful(ctx: Context) -> str:
        try:
            await ctx.child(shop.fulfil, Order(7, "Oslo"))
        except ChildFailed as failure:
            return f"child {failure.status}"
        return "?"

    @workflow
    async def waiting(ctx: Context) -> None:
        await ctx.receive("never")

    engine = await make_engine(careful, waiting, shop.fulfil)
    assert await engine.execute(careful) == "child failed"
    for act in ("cancel", "terminate"):
        run = await engine.start(waiting)
        await engine.settle()
        await getattr(run, act)()
    await engine.settle()
    (letter,) = await engine.dead_letters.list()
    assert letter.workflow == "fulfil", "the child itself failed"


async def test_parent_and_child_fail_together_and_are_replayed_together(make_engine):
    """S4-24 G12 Replaying the parent's letter reopens the child that failed it; neither repeats what was done."""
    shop = Shop()

    @workflow
    async def parent(ctx: Context) -> str:
        return await ctx.child(shop.fulfil, Order(7, "Oslo"), id="kid")

    engine = await make_engine(parent, shop.fulfil)
    run = await engine.start(parent)
    await failed(run)
    letters = {letter.workflow: letter for letter in await engine.dead_letters.list()}
    assert sorted(letters) == ["fulfil", "parent"]
    shop.mended = True
    await engine.dead_letters.replay(letters["parent"].id)
    assert await run.result() == "charged"
    assert shop.ran == ["reserve", *["charge"] * 4]
    await engine.settle()
    assert {letter.outcome for letter in await engine.dead_letters.list()} == {"completed"}


async def test_a_run_that_fails_in_its_very_first_turn_leaves_a_letter_too(make_engine):
    """G12 S4-23 No step was made: the workflow itself is what failed."""

    @workflow
    async def broken(ctx: Context, number: int) -> None:
        raise ValueError("no such thing")

    engine = await make_engine(broken)
    run = await engine.start(broken, 5)
    await failed(run)
    (letter,) = await engine.dead_letters.list()
    assert (letter.step, letter.attempts, letter.payload) == ("", 0, {"number": 5})
    await engine.dead_letters.replay(letter.id)
    await failed(run)
    assert len(await engine.dead_letters.list()) == 2


async def test_a_blocked_run_is_listed_beside_the_letters(make_engine):
    """G12 G13 It has not failed: there is no letter, but it can be found, with its error."""

    @workflow
    async def stuck(ctx: Context) -> None:
        await asyncio.get_running_loop().create_future()

    engine = await make_engine(stuck)
    await engine.start(stuck, id="s")
    await engine.settle()
    assert await engine.dead_letters.list() == []
    (run,) = await engine.runs(status="blocked")
    assert run.id == "s"
    assert run.error is not None
    assert (await engine.stats())["blocked"] == 1


async def test_watchers_are_told_of_every_dead_letter(make_engine):
    """S4-32 S4-22 That of the run and those of its compensations."""

    @activity(retry=Retry.never)
    async def cannot() -> None:
        raise ValueError("no")

    @workflow
    async def work(ctx: Context) -> None:
        ctx.compensate(cannot)
        await ctx.step("fail", cannot)

    engine = await make_engine(work)
    told: list[str] = []
    engine.subscribe(lambda change: told.append(change.run_id) if change.type == "deadletter.added" else None)
    run = await engine.start(work)
    await failed(run)
    assert told == [run.id] * 2


async def test_a_letter_of_a_sequence_has_the_state_that_its_step_was_given(make_engine):
    """S0-9 S4-23 S0-31 Not the input of the run: what had been added to it by then."""

    async def weigh(state: dict[str, Any]) -> dict[str, Any]:
        return {"grams": 300}

    async def stamp(state: dict[str, Any]) -> None:
        raise ValueError("no stamps")

    post = sequence("post", [step(weigh, compensate=unweigh), stamp])
    engine = await make_engine(post)
    run = await engine.start(post, {"to": "Oslo"})
    await failed(run)
    (letter,) = await engine.dead_letters.list()
    assert letter.payload == {"input": {"to": "Oslo"}, "begin_at": None}
    assert letter.arguments == {"state": {"to": "Oslo", "grams": 300}}


async def unweigh(state: dict[str, Any]) -> None: ...


@pytest.mark.parametrize("mode", ["memory"])
async def test_arguments_that_json_has_no_form_of_are_left_out_of_the_letter(make_engine):
    """G12 S0-9 An activity that takes anything gets its letter all the same."""

    @activity(check_args=False, retry=Retry.never)
    async def odd(thing: object) -> None:
        raise ValueError("odd")

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(odd, object)

    engine = await make_engine(work)
    await failed(await engine.start(work))
    (letter,) = await engine.dead_letters.list()
    assert (letter.step, letter.arguments) == ("odd", None)


@pytest.mark.parametrize("mode", ["file"])
async def test_a_lost_attempt_has_a_number_and_is_no_failure(make_engine):
    """B34 B1 `attempts` is the number of the last one, `failures` how many of them threw."""
    began: list[int] = []

    @activity(retry=Retry(max_attempts=2))
    async def charge(number: int) -> None:
        began.append(number)
        if len(began) == 1:
            await asyncio.Event().wait()
        raise ConnectionError("the bank does not answer")

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(charge, 7)

    first = await make_engine(work)
    run = await first.start(work, id="r")
    await eventually(lambda: len(began) == 1)
    await first.stop(grace=timedelta(0))
    second = await make_engine(work)
    run = second.get("r")
    await failed(run)
    (letter,) = await second.dead_letters.list()
    assert (letter.attempts, letter.failures, letter.arguments) == (3, 2, {"number": 7})


async def test_what_is_asked_for_and_is_not_there_is_none(make_engine):
    """S0-19 S2-4 S2-5 B33 `find` answers None; the output of a run that has not completed is None, too."""
    shop = Shop()
    engine = await make_engine(shop.fulfil)
    assert await engine.find("order-7") is None
    assert await engine.dead_letters.find("no such letter") is None
    run = await engine.start(shop.fulfil, Order(7, "Oslo"), id="order-7")
    await failed(run)
    found = await engine.find("order-7")
    assert found is not None
    assert (found.status, found.output) == (Status.FAILED, None)
    shop.mended = True
    await run.retry()
    await run.result()
    found = await engine.find("order-7")
    assert found is not None
    assert (found.status, found.output) == (Status.COMPLETED, "charged")


# Looking after them.


async def test_letters_are_acknowledged_replayed_in_bulk_and_purged(make_engine):
    """S0-38 S4-24 S4-32 B38 Many only by the number of a dry run, one by one; what was not looked at is not purged."""
    shop = Shop()
    engine = await make_engine(shop.fulfil)
    runs = [await engine.start(shop.fulfil, Order(number, "Oslo"), id=f"order-{number}") for number in range(4)]
    for run in runs:
        await failed(run)
    letters = {letter.run_id: letter for letter in await engine.dead_letters.list()}
    assert await engine.dead_letters.acknowledge(letters["order-0"].id, by="kim")
    assert not await engine.dead_letters.acknowledge(letters["order-0"].id)
    unseen = await engine.dead_letters.list(acknowledged=False)
    assert sorted(letter.run_id for letter in unseen) == ["order-1", "order-2", "order-3"]
    with pytest.raises(BadInput, match="dry_run=True"):
        await engine.dead_letters.replay_all()
    shop.mended = True
    await engine.get("order-3").retry()  # another operator was quicker
    listed = await engine.dead_letters.replay_all(dry_run=True, acknowledged=False)
    report = await engine.dead_letters.replay_all(expect=len(listed.matched), acknowledged=False)
    assert (len(report.replayed), report.failed) == (2, {})
    for run in runs[1:]:
        assert await run.result() == "charged"
    assert await runs[0].status() is Status.FAILED
    counts = (await engine.dead_letters.counts())["work"]
    assert (counts["acknowledged"], counts["completed"]) == (1, 3)
    purged: list[str] = []
    assert await engine.dead_letters.purge(older_than=DAY) == 0
    await engine.advance(2 * DAY)
    assert await engine.dead_letters.purge(older_than=DAY, on_purged=purged.append) == 4
    assert sorted(purged) == sorted(letter.id for letter in letters.values())
    assert await engine.dead_letters.list() == []
    with pytest.raises(NoSuchLetter):
        await engine.dead_letters.get(letters["order-0"].id)


# Messages.


@workflow
async def reader(ctx: Context) -> str:
    await ctx.receive("begin")
    return await ctx.receive("note", str, timeout=DAY)


NOTE = Event(name="note", on_target_ended="dead_letter")


async def unread(engine: Any, run_id: str) -> Any:
    """Let a run end without reading its note, and return the letter."""
    run = await engine.start(reader, id=run_id)
    await engine.settle()
    await run.send("note", "remember the milk")
    await engine.settle()
    assert await run.terminate()
    (letter,) = await engine.dead_letters.list(run=run_id)
    return letter


async def test_a_message_that_nobody_read_is_a_letter_with_all_about_it(make_engine):
    """B9 G12 S4-23 What it carried, for whom, how that run ended, and when it was sent."""
    engine = await make_engine(reader, events=[NOTE], start=START)
    letter = await unread(engine, "r")
    assert (letter.kind, letter.name, letter.payload) == ("event", "note", "remember the milk")
    assert (letter.run_id, letter.workflow, letter.target_status) == ("r", "reader", "cancelled")
    assert letter.sent_at is not None
    assert START <= letter.sent_at <= letter.at
    assert (letter.step, letter.attempts, letter.error) == ("", 0, None)
    assert [each.id for each in await engine.dead_letters.list(kind="event")] == [letter.id]
    assert await engine.dead_letters.list(kind="work") == []


async def test_an_unread_message_is_replayed_to_its_run_once_that_is_open_again(make_engine):
    """B9 G12 Refused while the run is over; then it is delivered, once."""
    engine = await make_engine(reader, events=[NOTE])
    letter = await unread(engine, "r")
    with pytest.raises(RunTerminal):
        await engine.dead_letters.replay(letter.id)
    run = engine.get("r")
    assert await run.resume()
    await engine.settle()
    await engine.dead_letters.replay(letter.id, by="kim")
    await run.send("begin")
    assert await run.result() == "remember the milk"
    assert await engine.dead_letters.replay(letter.id) is False
    assert (await engine.dead_letters.counts())["event"]["delivered"] == 1


async def test_an_unread_message_is_replayed_to_another_run(make_engine):
    """B9 G12 Whoever is named gets it; a target that does not exist or is over leaves it a letter."""
    engine = await make_engine(reader, events=[NOTE])
    letter = await unread(engine, "r")
    with pytest.raises(NoSuchRun):
        await engine.dead_letters.replay(letter.id, to="nobody")
    with pytest.raises(BadInput, match="not both"):
        await engine.dead_letters.replay(letter.id, to="x", broadcast=True)
    other = await engine.start(reader, id="other")
    await other.send("begin")
    await engine.dead_letters.replay(letter.id, to="other")
    assert await other.result() == "remember the milk"
    assert (await engine.dead_letters.get(letter.id)).outcome == "delivered"


@pytest.mark.parametrize("waiters", [0, 1, 3])
async def test_an_unread_message_is_replayed_to_whoever_waits(make_engine, waiters):
    """B9 G12 As an event: to one of those who wait, or to all, as its Event says; to the next if nobody does."""
    event = Event(name="note", on_target_ended="dead_letter", consume_on_read=waiters < 3)
    engine = await make_engine(reader, events=[event])
    letter = await unread(engine, "r")
    runs = [await engine.start(reader) for _ in range(waiters)]
    for run in runs:
        await run.send("begin")
    await engine.settle()
    await engine.dead_letters.replay(letter.id, broadcast=True)
    if not waiters:
        runs = [await engine.start(reader)]
        await runs[0].send("begin")
    assert [await run.result() for run in runs] == ["remember the milk"] * max(waiters, 1)
    assert await engine.dead_letters.replay(letter.id, broadcast=True) is False


async def test_a_message_to_a_run_that_is_over_is_kept_if_its_sender_says_so(make_engine):
    """B9 G12 Without that it is refused, and the sender knows."""
    engine = await make_engine(reader)
    run = await engine.start(reader, id="r")
    await engine.settle()
    await run.terminate()
    with pytest.raises(RunTerminal):
        await engine.get("r").send("note", "too late")
    assert await engine.get("r").send("note", "too late", dead_letter=True)
    (letter,) = await engine.dead_letters.list()
    assert (letter.kind, letter.run_id, letter.payload, letter.target_status) == ("event", "r", "too late", "cancelled")
    with pytest.raises(NoSuchRun):
        await engine.get("nobody").send("note", "too late", dead_letter=True)


async def test_work_cannot_be_replayed_elsewhere(make_engine):
    """B9 Two queues: a step belongs to its run."""
    shop = Shop()
    engine = await make_engine(shop.fulfil)
    await failed(await engine.start(shop.fulfil, Order(7, "Oslo")))
    (letter,) = await engine.dead_letters.list()
    for elsewhere in ({"to": "other"}, {"broadcast": True}):
        with pytest.raises(BadInput, match="and no event to send"):
            await engine.dead_letters.replay(letter.id, **elsewhere)
    with pytest.raises(NoSuchLetter):
        await engine.dead_letters.replay("no such letter")
    assert (await engine.dead_letters.get(letter.id)).outcome == ""
