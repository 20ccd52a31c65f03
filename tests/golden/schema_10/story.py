"""How the runs in these files came about, and how they are brought to their end; never changed, like their code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from tests.golden.schema_10 import workflows as code
from tests.support.waiting import eventually

from holdfast import RunHandle
from holdfast.contract.operations import Delivered, FinishTask, KeepResult, Purge
from holdfast.contract.turns import LeaveKey
from holdfast.engine.steps.queue.wire import TaskEnd
from holdfast.testing import JumpingClock, TestEngine

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = code.DAY


class House:
    """A database and the engines that are opened on it, one after another, at one clock."""

    def __init__(self, database: str, clock: JumpingClock) -> None:
        self.database = database
        self.clock = clock
        self.bank_open = False

    def engine(self, workflows: list[Any] = code.WORKFLOWS, **options: Any) -> TestEngine:
        """Return an engine; the steps of its runs find the bank open or closed."""
        return TestEngine(
            self.database, workflows=workflows, events=code.EVENTS, clock=self.clock, stop_grace=timedelta(0),
            cancel_grace=30 * DAY, context=lambda: {"bank_open": self.bank_open}, **options,
        )  # fmt: skip


async def make(database: str, keep: Callable[[], Awaitable[None]]) -> JumpingClock:
    """Make runs in every state, keep the database as a killed worker would leave it, and return the clock."""
    house = House(database, JumpingClock(START))
    async with house.engine() as engine:
        await _purged(house, engine)
        await _ended(house, engine)
        await _waiting(engine)
        await _told(engine)
    async with house.engine([*code.WORKFLOWS[:-1], code.changed]) as engine:
        await engine.get("blocked").send("note", "so that a worker looks at it")
        await engine.settle()
        assert (await engine.get("blocked").describe()).status == "blocked"
        await _under_way(engine)
        await keep()
    return house.clock


async def _purged(house: House, engine: TestEngine) -> None:
    house.bank_open = True
    await engine.execute(code.order, "gone", id="gone-1")
    house.bank_open = False
    await engine.start(code.order, "gone", id="gone-2")
    await engine.settle()
    await engine.advance(code.HOUR)
    now = house.clock.now()
    for status in ("completed", "failed"):
        await engine.store.apply([Purge(what=status, before=now, at=now, keep_ids=now + 10**15)])


async def _ended(house: House, engine: TestEngine) -> None:
    house.bank_open = True
    await engine.execute(code.order, "lamp", id="completed", attributes={"region": "south"}, actor="kim", tenant="acme")
    house.bank_open = False
    for id in ("failed", "retried"):
        await engine.start(code.patient, id, id=id, actor="lee")
    await engine.start(code.order, "chair", id="compensated")
    await engine.start(code.lonely, id="cancelled")
    await engine.settle()
    await engine.get("cancelled").cancel(by="kim")
    await engine.settle()
    house.bank_open = True
    await engine.get("retried").retry(by="lee")
    await engine.settle()
    house.bank_open = False


async def _waiting(engine: TestEngine) -> None:
    await engine.start(code.sleeper, 30, id="sleeping", priority=7)
    await engine.start(code.sleeper, 1, id="delayed", delay=3 * DAY)
    await engine.start(code.approval, 3, id="waiting", unique_key="desk-1", timeout=90 * DAY)
    await engine.start(code.hurried, id="hurried")
    await engine.start(code.sleeper, 20, id="paused")
    await engine.start(code.sleeper, 20, id="paused-a-while")
    await engine.start(code.reader, 3, id="reader-1")
    await engine.start(code.undone, "table", id="compensating")
    await engine.start(code.retrying, "sofa", id="retrying")
    await engine.start(code.queued, "q", id="queued")
    await engine.start(code.family, 10, id="family")
    await engine.start(code.branches, id="branches")
    await engine.start(code.counting, id="counting")
    await engine.start(code.account, id="account")
    await engine.start(code.renewed, 0, id="renewed")
    await engine.start(code.stubborn, id="cancelling")
    await engine.start(code.patching, id="patching")
    await engine.start(code.sender, "hurried", id="sender")
    await engine.start(code.photo, {"subject": "cat"}, id="sequence")
    await engine.start(code.changing, id="blocked")
    # What waits for these is put into their inboxes when their worker is gone.
    await engine.start(code.approval, id="told")
    await engine.start(code.lonely, id="given-an-event")
    await engine.start(code.stubborn, id="asked-to-stop")
    await engine.start(code.family, 10, id="bereaved")
    await engine.start(code.queued, "done", id="queued-and-done")
    await engine.start(code.queued, "lost", id="queued-and-lost")
    await engine.settle()


async def _told(engine: TestEngine) -> None:
    """Send, publish, pause, cancel and schedule."""
    await engine.publish("news", "first")
    await engine.settle()
    await engine.start(code.reader, 3, id="reader-2")
    await engine.start(code.late_reader, id="late-reader")
    await engine.start(code.lonely, id="lonely")
    await engine.settle()
    await engine.publish("news", "second", id="event-7")
    for number in range(3):
        await engine.publish("parcel", number)
    await engine.get("waiting").send("approval", "yes", id="m-1")
    await engine.get("waiting").send("note", "unread", id="m-2")
    assert await engine.get("account").ask("add", 4) == 4
    await engine.get("paused").pause(by="kim")
    await engine.get("paused-a-while").pause(duration=5 * DAY)
    await engine.get("cancelling").cancel()
    await engine.schedules.put("nightly", code.sleeper, 0, cron="0 2 * * *")
    await engine.schedules.put("resting", code.sleeper, 0, every=DAY)
    await engine.schedules.pause("resting")
    await engine.settle()


async def _under_way(engine: TestEngine) -> None:
    """Leave runs with an owner, and steps in the middle, each with its key held and another waiting for it."""
    await engine.start(code.sleeper, 20, id="told-to-pause")
    await engine.start(code.sleeper, 20, id="told-to-go-on")
    await engine.settle()
    for what in ("thing", "other"):
        holder = await engine.start(code.single, what, id=f"holder-of-{what}")

        async def beats(holder: RunHandle[Any] = holder) -> bool:
            return any(step.progress is not None for step in await holder.steps())

        await eventually(beats)
        second = await engine.start(code.single, what, id=f"waits-for-{what}")

        async def waits(second: RunHandle[Any] = second) -> bool:
            return (await second.describe()).waiting_for == "key"

        await eventually(waits)


async def tell(database: str, clock: JumpingClock) -> None:
    """Put a row of every kind into inboxes, which no worker takes any more."""
    house = House(database, clock)
    async with house.engine(run_workflows=False) as client:
        await client.get("told").send("approval", "unread")
        await client.publish("lost", "unread")
        await client.publish("news", "unread")
        await client.get("asked-to-stop").cancel()
        await client.get("told-to-pause").pause()
        await client.get("told-to-go-on").pause()
        await client.get("told-to-go-on").resume()
        await client.get("child-of-bereaved").terminate(reason="by an operator")
        store, now = client.store, clock.now()
        await store.join("another-worker", timedelta(minutes=1))
        for task in await store.claim_tasks("another-worker", now, 10, ["far"], ["far"]):
            if task.run_id == "queued-and-done":
                done = FinishTask(
                    run=task.run, location=task.location, attempt=task.attempt, worker="another-worker", at=now,
                    payload=TaskEnd(result=msgspec.Raw(b'"far and done"')).encoded(),
                )  # fmt: skip
                [told] = await store.apply([done])
                assert isinstance(told, Delivered), told
        holder = await store.get("holder-of-other")
        assert holder is not None
        late = LeaveKey(activity="slow", key="one-other", result='"did other before"', expires=now + 10**15)
        await store.apply([KeepResult(run=holder.key, leave=late)])


async def finish(database: str, now: datetime) -> dict[str, Any]:
    """Let everything that is open come to its end, and tell how each run ended."""
    house = House(database, JumpingClock(now))
    house.bank_open = True
    async with house.engine(queues=["default", "far"]) as engine:
        await engine.recover()
        await engine.schedules.pause("nightly")
        await engine.settle()
        for id in ("paused", "told-to-pause"):
            await engine.get(id).resume()
        for id in ("waiting", "waiting", "retried", "renewed", "blocked", "patching"):
            await engine.get(id).send("approval", "go on")
        await engine.get("branches").send("branch", "joined")
        await engine.get("counting").send("more", 20)
        await engine.publish("news", "third")
        await engine.publish("lost", "here it is")
        assert await engine.get("account").ask("add", 7) == 11
        await engine.get("failed").retry()
        await engine.settle()
        await engine.get("failed").send("approval", "at last")
        await engine.advance(45 * DAY)
        assert (await engine.audit.verify()).ok
        assert (await engine.audit.verify_evidence("completed")).ok
        return {
            run.id: {"status": str(run.status), "output": run.output, "error": run.error and run.error.message}
            for run in await engine.runs(limit=1000)
        }
