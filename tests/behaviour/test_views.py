"""Looking at runs: what they are, what their steps did, all that happened to them, and which ones there are."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import pytest
from tests.support.acts_cases import Flaky, Gate
from tests.support.paths import ROOT
from tests.support.waiting import eventually

from holdfast import Context, Engine, NoSuchRun, Retry, RunCancelled, RunFailed, Status, activity, workflow
from holdfast.clock import Clock
from holdfast.errors import BadInput
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing import Faults, TestEngine
from holdfast.testing.clock import JumpingClock

HOUR = timedelta(hours=1)
START = datetime(2026, 1, 1, tzinfo=UTC)


@workflow
async def waits(ctx: Context, name: str) -> str:
    return await ctx.receive("word", str)


async def test_a_run_shows_what_it_is_and_where_it_stands(make_engine):
    """S3-17 S4-3 S0-19 Identity, input, output, error, status, times, who started it, what it waits for."""
    engine = await make_engine(waits, start=START)
    run = await engine.start(
        waits, "Ann", id="r", actor="kim", tenant="acme", unique_key="k", priority=3, attributes={"n": 1}, timeout=HOUR
    )
    await engine.settle()
    seen = await run.describe()
    assert (seen.id, seen.workflow, seen.version) == ("r", "waits", waits.version)
    assert (seen.status, seen.waiting_for) == (Status.SUSPENDED, "message word; timer")
    assert (seen.actor, seen.tenant, seen.unique_key, seen.priority) == ("kim", "acme", "k", 3)
    assert seen.attributes == {"n": 1}
    assert seen.input == {"name": "Ann"}
    assert (seen.created_at, seen.deadline_at, seen.due_at) == (START, START + HOUR, START + HOUR)
    assert (seen.output, seen.error, seen.ended_at, seen.reopened) == (None, None, None, 0)
    engine.jumping.advance(HOUR / 2)
    await run.send("word", "hello")
    await run.result()
    seen = await run.describe()
    assert (seen.status, seen.output, seen.ended_at) == (Status.COMPLETED, "hello", START + HOUR / 2)
    assert (seen.updated_at, seen.due_at, seen.owner) == (START + HOUR / 2, None, None)
    with pytest.raises(NoSuchRun):
        await engine.get("nobody").describe()


@pytest.mark.parametrize("whole", [True, False])
async def test_arguments_of_steps_are_shown_where_they_are_recorded(make_engine, whole):
    """S0-6 S3-18 For one activity, or all of an engine; otherwise a step takes no more bytes than it did."""

    async def plain(number: int, *rest: str) -> int:
        return number

    recorded = activity(name="recorded", record_arguments=True)(plain)

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(plain, 1, "a", "b")
        await ctx.step(recorded, number=2)

    engine = await make_engine(work, record_arguments=whole)
    run = await engine.start(work)
    await run.result()
    first, second = await run.steps()
    assert first.arguments == ({"number": 1, "rest": ["a", "b"]} if whole else None)
    assert second.arguments == {"number": 2}
    begun = [entry for entry in await engine.store.history((await run.describe()).key) if entry.kind == 1]
    assert begun[0].data.count(",") == (4 if whole else 1)


async def test_steps_that_have_not_ended_are_found_over_all_runs(make_engine):
    """S0-19 S0-6 B22 Pending activities: what waits, is skipped or runs, the most urgent first."""
    body = Flaky("low", "high")

    @activity(retry=Retry(initial_interval=HOUR, max_attempts=4), timeout=HOUR)
    async def low() -> str:
        return await body.body("low")

    @activity(retry=Retry(initial_interval=2 * HOUR), priority=5)
    async def high() -> str:
        return await body.body("high")

    async def begin() -> None: ...

    @workflow
    async def slow(ctx: Context) -> None:
        await ctx.step(begin)
        await ctx.step(low)

    @workflow
    async def fast(ctx: Context) -> None:
        await ctx.step(begin)
        await ctx.step(high)

    engine = await make_engine(slow, fast, waits, start=START)
    await engine.start(slow, id="slow-1")
    await engine.start(fast, id="fast-1")
    await engine.start(waits, "Ann")
    await engine.settle()
    found = await engine.pending_steps()
    assert [(step.run_id, step.name, step.status) for step in found] == [
        ("fast-1", "high", "waiting"), ("slow-1", "low", "waiting"),
    ]  # fmt: skip
    assert [(step.priority, step.max_attempts, step.timeout) for step in found] == [(5, 3, None), (0, 4, HOUR)]
    assert [(step.created_at, step.next_attempt_at) for step in found] == [
        (START, START + 2 * HOUR), (START, START + HOUR),
    ]  # fmt: skip
    assert [step.name for step in await engine.pending_steps(workflow="slow")] == ["low"]
    assert [step.name for step in await engine.pending_steps(limit=1)] == ["high"]
    with pytest.raises(BadInput, match="limit"):
        await engine.pending_steps(limit=0)


async def test_the_request_to_cancel_and_the_last_error_can_be_seen(make_engine):
    """S4-3 S3-23 cancel_requested_at, next_run_at and last_error: the run, its steps and its timeline have them."""
    body = Flaky("pay")

    @activity(retry=Retry(initial_interval=HOUR))
    async def pay() -> str:
        return await body.body("pay")

    @workflow
    async def order(ctx: Context) -> None:
        await ctx.step(pay)

    engine = await make_engine(order, start=START)
    run = await engine.start(order)
    await engine.settle()
    seen = await run.describe()
    assert (seen.waiting_for, seen.due_at) == ("retry", START + HOUR)
    (step,) = await run.steps()
    assert step.error is not None
    assert step.error.message == "pay is out of order"
    engine.jumping.advance(HOUR / 2)
    await run.cancel(by="kim")
    with pytest.raises(RunCancelled):
        await run.result()
    told = {item.what: item.at for item in await run.timeline()}
    assert told["cancel requested"] == told["cancel"] == told["run cancelled"] == START + HOUR / 2


async def test_steps_show_attempts_errors_results_and_times(make_engine):
    """S0-58 S4-4 S3-18 S3-23 S0-19 The last error and when that attempt ended stay on record."""
    body = Flaky("pay")

    @activity(retry=Retry(max_attempts=3, initial_interval=HOUR, coefficient=1.0))
    async def pay() -> str:
        return await body.body("pay")

    @workflow
    async def order(ctx: Context) -> str:
        picked = await ctx.step("pick", body.body, "pick")
        return picked + await ctx.step(pay)

    engine = await make_engine(order, start=START)
    run = await engine.start(order, id="r")
    await engine.settle()
    pick, paying = await run.steps()
    assert (pick.name, pick.status, pick.result, pick.error) == ("pick", "completed", "pick", None)
    assert pick.finished_at == START
    assert (paying.status, paying.attempts, paying.failures) == ("waiting", 1, 1)
    assert (paying.last_attempt_at, paying.next_attempt_at, paying.finished_at) == (START, START + HOUR, None)
    assert paying.error is not None
    assert (paying.error.type, "raise ValueError" in paying.error.traceback) == ("ValueError", True)
    assert paying.idempotency_key == "r:pay"
    await engine.advance(HOUR)
    body.failing.clear()
    assert await run.result() == "pickpay"
    _, paying = await run.steps()
    assert (paying.status, paying.attempts, paying.failures, paying.result) == ("completed", 3, 2, "pay")
    assert (paying.first_started_at, paying.started_at) == (START, START + 2 * HOUR)
    assert paying.error is not None
    assert len({step.idempotency_key for step in await run.steps()}) == 2


async def test_a_step_under_way_is_seen_running(make_engine):
    """S0-19 S4-4 S0-58 started_at is there, finished_at is not."""
    gate = Gate()

    @workflow
    async def work(ctx: Context) -> None:
        await asyncio.gather(*(ctx.step(name, gate, name) for name in ("a", "b")))

    engine = await make_engine(work, start=START)
    run = await engine.start(work)
    await gate.entered("b")
    steps = await run.steps()
    assert [(step.path, step.status, step.started_at, step.finished_at) for step in steps] == [
        ("a", "running", START, None),
        ("b", "running", START, None),
    ]
    gate.open("a", "b")
    await run.result()


@pytest.mark.parametrize("how", ["terminate", "grace"])
async def test_no_step_of_an_ended_run_is_shown_as_running(make_engine, how):
    """S0-34 S3-23 Active tasks get the status cancelled, however the run was ended."""
    gate = Gate()

    @workflow
    async def work(ctx: Context) -> None:
        if how == "grace":
            try:
                await ctx.receive("never")
            finally:
                await ctx.step("one", gate, "one")
        await ctx.step("one", gate, "one")

    engine = await make_engine(work)
    run = await engine.start(work)
    if how == "grace":
        await engine.settle()
        await run.cancel()
    await gate.entered("one")
    if how == "terminate":
        await run.terminate()
    else:
        engine.jumping.advance(HOUR)
    with pytest.raises(RunCancelled):
        await run.result()
    assert [step.status for step in await run.steps()] == ["cancelled"]


async def test_the_timeline_merges_history_people_letters_and_evidence(make_engine):
    """S3-17 S4-5 S3-23 Everything in order of time, nothing of it lost by a retry, in words."""
    body = Flaky("pay")

    @workflow
    async def order(ctx: Context) -> str:
        ctx.evidence("checked", {"by": "rule 7"})
        await ctx.sleep(HOUR)
        return await ctx.step("pay", body.step, "pay")

    engine = await make_engine(order)
    run = await engine.start(order, actor="ann")
    await engine.settle()
    await run.pause(by="kim")
    await engine.settle()
    await run.resume(by="kim")
    with pytest.raises(RunFailed):
        await run.result()
    await engine.advance(HOUR)
    body.failing.clear()
    await run.retry(by="kim")
    await run.result()
    items = await run.timeline()
    assert [item.what for item in items] == [
        "run started",
        "sleep begun",
        "evidence",
        "pause",
        "resume",
        "sleep over",
        "attempt begun",
        "step failed",
        "run failed",
        "dead letter",
        "run reopened",
        "attempt begun",
        "step completed",
        "retry",
        "run completed",
    ]
    assert [item.at for item in items] == sorted(item.at for item in items)
    by_word = {item.what: item for item in items}
    assert by_word["step failed"].where == "pay"
    assert by_word["step failed"].detail["cut_away"]
    assert by_word["retry"].detail["actor"] == "kim"
    assert by_word["run started"].detail["actor"] == "ann"
    assert by_word["evidence"].detail["data"] == {"by": "rule 7"}


async def test_runs_are_listed_by_status_workflow_tenant_and_time(make_engine):
    """S0-19 S3-14 S2-39 Newest first, page by page; what is asked for wrongly is refused."""
    engine = await make_engine(waits, start=START)
    for number in range(5):
        await engine.start(waits, "x", id=f"r{number}", tenant="even" if number % 2 == 0 else "odd")
        engine.jumping.advance(HOUR)
    await engine.settle()
    await engine.get("r1").terminate()

    async def ids(**which: object) -> list[str]:
        return [run.id for run in await engine.runs(**which)]

    assert await ids() == ["r4", "r3", "r2", "r1", "r0"]
    assert await ids(status="cancelled") == ["r1"]
    assert await ids(status=Status.SUSPENDED, tenant="odd") == ["r3"]
    assert await ids(workflow="waits", created_from=START + HOUR, created_until=START + 3 * HOUR) == ["r2", "r1"]
    page = await engine.runs(limit=2)
    assert [run.id for run in await engine.runs(limit=2, before=page[-1])] == ["r2", "r1"]
    with pytest.raises(BadInput, match="cannot be chosen by state"):
        await engine.runs(state="failed")


async def test_recover_reports_what_it_found(make_engine):
    """S2-7 B24 Workers that died, blocked runs to try again, whether anything waited; harmless when all is well."""
    engine = await make_engine(waits)
    run = await engine.start(waits, "x")
    await engine.settle()
    report = await engine.recover()
    assert (report.dead_workers, report.unblocked, report.due) == (0, 0, False)
    assert await run.status() is Status.SUSPENDED


@pytest.mark.parametrize("mode", ["file"])
async def test_recover_reports_dead_workers_and_blocked_runs_that_have_other_code_now(make_engine):
    """S2-7 B24 Asked of a client, which takes over nothing by itself: each is reported once, then a worker goes on."""
    gate = Gate()

    @workflow(name="work")
    async def blocking(ctx: Context) -> str:
        await asyncio.Event().wait()
        return "never"

    @workflow(name="work")
    async def working(ctx: Context) -> str:
        return await ctx.step(gate, "body")

    first = await make_engine(blocking)
    blocked = [await first.start(blocking) for _ in range(2)]
    await first.settle()
    assert [await run.status() for run in blocked] == [Status.BLOCKED] * 2
    await first.stop()
    client = await make_engine(working, run_workflows=False, clock=first.jumping)
    report = await client.recover()
    assert (report.dead_workers, report.unblocked, report.due) == (0, 2, True)
    dying = await make_engine(working, clock=first.jumping)
    await gate.entered("body", 2)
    await dying.crash()
    report = await client.recover()
    assert (report.dead_workers, report.unblocked, report.due) == (1, 0, True)
    report = await client.recover()
    assert (report.dead_workers, report.unblocked, report.due) == (0, 0, True)
    gate.open("body")
    await make_engine(working, clock=first.jumping)
    assert [await client.get(run.id).result() for run in blocked] == ["body"] * 2
    report = await client.recover()
    assert (report.dead_workers, report.unblocked, report.due) == (0, 0, False)


@pytest.mark.parametrize("mode", ["file"])
async def test_recover_finds_the_work_of_the_dead_and_tries_blocked_runs_again(make_engine):
    """S2-7 B24 By a new engine it happens when it opens; asked again there is nothing left to report."""
    stuck = True

    @workflow
    async def work(ctx: Context) -> str:
        if stuck:
            await asyncio.Event().wait()
        return "done"

    engine = await make_engine(work)
    run = await engine.start(work)
    await engine.settle()
    assert await run.status() is Status.BLOCKED
    stuck = False
    assert (await engine.recover()).unblocked == 0  # the same code, as far as its text tells
    assert await run.recover(by="kim")
    assert await run.result() == "done"
    assert [record.action for record in await engine.audit.records(target=run.id)] == ["recover"]


def test_there_are_runbooks_for_pause_resume_replay_and_incident():
    """S4-27 Their Python is run with the rest of the documentation; here, that each of the four is there."""
    page = ROOT / "docs" / "production" / "runbooks.md"
    headings = [line.rpartition(": ")[2] for line in page.read_text().splitlines() if line.startswith("## ")]
    assert {"pause", "resume", "replay", "incident"} <= set(headings)


async def test_clock_and_store_are_parts_that_can_be_replaced():
    """S2-40 The test engine is an engine with another clock; a store is given like a database."""

    class SlowClock(Clock):
        def now(self) -> int:
            return 1_000_000

    store = SQLiteStore(":memory:")
    faults = Faults(store)
    async with Engine(workflows=[waits], store=store, clock=SlowClock(), retention=None) as engine:
        run = await engine.start(waits, "x")
        await run.send("word", "hello")
        assert await run.result() == "hello"
        assert (await run.describe()).ended_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert faults.calls["get"]
    async with TestEngine(workflows=[waits], clock=JumpingClock(START)) as engine:
        assert engine.clock.now() == engine.jumping.now()


def test_the_questions_asked_all_the_time_are_answered_by_an_index(tmp_path: Path):
    """S4-6 S4-30 Due runs (paused ones alike), runs of a status, the history of a run: no table is scanned."""
    path = tmp_path / "plans.db"

    async def create() -> None:
        store = SQLiteStore(str(path))
        await store.open()
        await store.close()

    asyncio.run(create())
    questions = {
        "due": "SELECT key FROM runs WHERE ended IS NULL AND owner IS NULL AND priority = 0 AND due <= 1 ORDER BY due",
        "status": "SELECT key FROM runs WHERE status = 'paused' ORDER BY key DESC LIMIT 10",
        "workflow": "SELECT key FROM runs WHERE workflow = 'x' ORDER BY key DESC LIMIT 10",
        "history": "SELECT * FROM entries WHERE run = 1",
        "audit": "SELECT * FROM audit WHERE target = 'x' AND n > 0 ORDER BY n",
    }
    with apsw.Connection(str(path)) as database:
        for name, question in questions.items():
            plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {question}")]
            assert all("SEARCH" in line for line in plan if not line.startswith("USE TEMP")), (name, plan)
    database.close()


@pytest.mark.parametrize("mode", ["memory"])
async def test_what_a_run_waits_for_is_said_in_the_words_that_are_documented(make_engine):
    """S3-17 Each kind of wait, as the page on observability lists it."""

    @activity(retry=Retry(initial_interval=HOUR))
    async def fails() -> None:
        raise OSError

    @activity(queue="gpu")
    async def train() -> None:
        raise AssertionError("no worker serves that queue")

    begun, held = asyncio.Event(), asyncio.Event()

    @activity(idempotency_key=lambda: "one")
    async def keyed() -> None:
        begun.set()
        await held.wait()

    @workflow
    async def everything(ctx: Context, what: str) -> None:
        if what == "timer":
            await ctx.sleep(HOUR)
        elif what == "message":
            await ctx.receive(["word", "other"])
        elif what == "child":
            await ctx.child(everything, "timer")
        else:
            await ctx.step({"retry": fails, "queue": train, "key": keyed}[what])

    engine = await make_engine(everything)
    holder = await engine.start(everything, "key")
    await eventually(begun.is_set)
    kinds = ("timer", "retry", "key", "message", "child", "queue")
    runs = {what: await engine.start(everything, what, id=what) for what in kinds}

    async def said() -> dict[str, str]:
        return {what: (await run.describe()).waiting_for for what, run in runs.items()}

    async def all_wait() -> bool:
        return all((await said()).values())

    await eventually(all_wait)
    assert await said() == {
        "timer": "timer",
        "retry": "retry",
        "key": "key",
        "message": "message word,other",
        "child": "child child:everything",
        "queue": "step train (queue gpu)",
    }
    page = (ROOT / "docs" / "production" / "observability.md").read_text()
    [row] = [line for line in page.splitlines() if line.startswith("| `describe().waiting_for`")]
    for form in ("timer", "retry", "key", "message NAME", "child ID", "step PATH (queue NAME)"):
        assert f"`{form}`" in row
    held.set()
    await holder.result()
