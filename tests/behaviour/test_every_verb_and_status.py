"""Every verb against every status a run can have: what it answers, what follows, and whether it is audited."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.acts_cases import Gate, moments
from tests.support.waiting import eventually

from holdfast import Context, NoSuchRun, Retry, RunHandle, Status, activity, step_context, workflow
from holdfast.clock import new_id
from holdfast.contract.operations import Done
from holdfast.contract.rows import AWAY
from holdfast.engine.client.reopen import Redo
from holdfast.errors import CannotReopen, InvalidId, Moved, StoreError
from holdfast.ops.audit import AuditRecord
from holdfast.testing import TestEngine
from holdfast.testing.conformance.moving import finish, mark
from holdfast.testing.conformance.samples import one

HOUR = timedelta(hours=1)
VERBS = ("cancel", "terminate", "pause", "resume", "retry", "rerun", "set_attributes", "recover")

# What each verb answers (an error is a CannotReopen) and the status that follows once the engine is quiet.
TABLE: dict[str, dict[str, tuple[object, str]]] = {
    "pending": {
        "cancel": (True, "cancelled"),
        "terminate": (True, "cancelled"),
        "pause": (True, "paused"),
        "resume": (False, "pending"),
        "retry": ("refused", "pending"),
        "rerun": ("refused", "pending"),
        "set_attributes": (None, "pending"),
        "recover": (False, "pending"),
    },
    "running": {
        "cancel": (True, "cancelled"),
        "terminate": (True, "cancelled"),
        "pause": (True, "paused"),
        "resume": (False, "running"),
        "retry": ("refused", "running"),
        "rerun": ("refused", "running"),
        "set_attributes": (None, "running"),
        "recover": (False, "running"),
    },
    "suspended": {
        "cancel": (True, "cancelled"),
        "terminate": (True, "cancelled"),
        "pause": (True, "paused"),
        "resume": (False, "suspended"),
        "retry": ("refused", "suspended"),
        "rerun": ("refused", "suspended"),
        "set_attributes": (None, "suspended"),
        "recover": (False, "suspended"),
    },
    "paused": {
        "cancel": (True, "cancelled"),
        "terminate": (True, "cancelled"),
        "pause": (True, "paused"),
        "resume": (True, "suspended"),
        "retry": ("refused", "paused"),
        "rerun": ("refused", "paused"),
        "set_attributes": (None, "paused"),
        "recover": (False, "paused"),
    },
    "cancelling": {
        "cancel": (True, "cancelling"),
        "terminate": (True, "cancelled"),
        "pause": (False, "cancelling"),
        "resume": (False, "cancelling"),
        "retry": ("refused", "cancelling"),
        "rerun": ("refused", "cancelling"),
        "set_attributes": (None, "cancelling"),
        "recover": (False, "cancelling"),
    },
    "compensating": {
        "cancel": (False, "compensating"),
        "terminate": (True, "cancelled"),
        "pause": (True, "paused"),
        "resume": (False, "compensating"),
        "retry": ("refused", "compensating"),
        "rerun": ("refused", "compensating"),
        "set_attributes": (None, "compensating"),
        "recover": (False, "compensating"),
    },
    "blocked": {
        "cancel": (True, "cancelled"),
        "terminate": (True, "cancelled"),
        "pause": (False, "blocked"),
        "resume": (False, "blocked"),
        "retry": ("refused", "blocked"),
        "rerun": ("refused", "blocked"),
        "set_attributes": (None, "blocked"),
        "recover": (True, "blocked"),
    },
    "completed": {
        "cancel": (False, "completed"),
        "terminate": (False, "completed"),
        "pause": (False, "completed"),
        "resume": (False, "completed"),
        "retry": ("refused", "completed"),
        "rerun": (None, "completed"),
        "set_attributes": (None, "completed"),
        "recover": (False, "completed"),
    },
    "failed": {
        "cancel": (False, "failed"),
        "terminate": (False, "failed"),
        "pause": (False, "failed"),
        "resume": (False, "failed"),
        "retry": (None, "failed"),
        "rerun": (None, "failed"),
        "set_attributes": (None, "failed"),
        "recover": (False, "failed"),
    },
    "cancelled": {
        "cancel": (False, "cancelled"),
        "terminate": (False, "cancelled"),
        "pause": (False, "cancelled"),
        "resume": (True, "suspended"),
        "retry": ("refused", "cancelled"),
        "rerun": (None, "suspended"),
        "set_attributes": (None, "cancelled"),
        "recover": (False, "cancelled"),
    },
    "moving": {"cancel": (True, "moving"), **{verb: ("moved", "moving") for verb in VERBS if verb != "cancel"}},
    "moved": dict.fromkeys(VERBS, ("moved", "moved")),
}

gate = Gate()


async def wait_here() -> None:
    await gate(step_context().run_id)


@activity(retry=Retry(max_attempts=None))
async def undo() -> None:
    await gate(step_context().run_id)


@workflow
async def waiting(ctx: Context) -> None:
    await ctx.receive("word")


@workflow
async def working(ctx: Context) -> None:
    await ctx.step(wait_here)
    await ctx.receive("word")


@workflow
async def lingering(ctx: Context) -> None:
    try:
        await ctx.receive("word")
    finally:
        await ctx.sleep(timedelta(seconds=30))


@workflow
async def undoing(ctx: Context) -> None:
    ctx.compensate(undo)
    raise ValueError("no")


@workflow
async def stuck(ctx: Context) -> None:
    await asyncio.Event().wait()


@workflow
async def quick(ctx: Context) -> None:
    ctx.log.info("done")


@workflow
async def broken(ctx: Context) -> None:
    raise ValueError("no")


WORKED_ON = ("running", "compensating")
WORKFLOWS = [waiting, working, lingering, undoing, stuck, quick, broken]


async def brought_to(engine: TestEngine, status: str, id: str = "") -> RunHandle[None]:
    """Return a run that has a status."""
    which = {
        "running": working,
        "cancelling": lingering,
        "compensating": undoing,
        "blocked": stuck,
        "completed": quick,
        "failed": broken,
    }.get(status, waiting)
    run = await engine.start(which, id=id or new_id(), delay=HOUR if status == "pending" else None)
    if status in WORKED_ON:
        await gate.entered(run.id)
        return run
    await engine.settle()
    if status == "paused":
        await run.pause()
    elif status in ("cancelling", "cancelled"):
        await run.cancel()
    elif status in AWAY:
        await send_away(engine, run, status)
    await engine.settle()
    assert await run.status() == status
    return run


async def send_away(engine: TestEngine, run: RunHandle[None], status: str) -> None:
    """Let a run be on its way to another runtime, or have arrived there."""
    await run.pause()
    await engine.settle()
    row = await engine.store.get(run.id)
    assert row is not None
    await one(engine.store, mark(row, at=engine.clock.now()), Done)
    if status == "moved":
        await one(engine.store, finish(row, 9), Done)


async def do(engine: TestEngine, run: RunHandle[None], verb: str) -> object:
    """Do something to a run and return what it answered."""
    try:
        if verb == "set_attributes":
            return await run.set_attributes({"seen": True}, by="kim")  # type: ignore[func-returns-value]
        if verb == "recover":
            return await engine.get(run.id).recover(by="kim")
        answer: object = await getattr(run, verb)(by="kim")
        return None if isinstance(answer, Redo) else answer
    except Moved as error:
        return "moved" if error.run_id == run.id and error.address in str(error) else error
    except CannotReopen as error:
        return "refused" if error.run_id == run.id and run.id in str(error) else error


@pytest.mark.parametrize("status", TABLE)
async def test_every_verb_answers_by_the_status_of_the_run(make_engine, status):
    """S0-4 S2-6 S4-2 S4-25 B7 B8 B25 B32 G6 True or nothing: done and audited. False or refused: nothing changed."""
    engine = await make_engine(*WORKFLOWS)
    for verb, (answer, following) in TABLE[status].items():
        run = await brought_to(engine, status)
        before = await run.describe()
        audited = len(await acts_on(engine, run))
        assert await do(engine, run, verb) == answer, verb
        done = answer in (True, None)
        if engine.offers("audit"):
            records = (await acts_on(engine, run))[audited:]
            assert [(each.actor, each.action) for each in records] == [("kim", verb.replace("_", " "))] * done, verb
        if not done:
            assert await run.describe() == before, verb
        if following in WORKED_ON:
            assert await run.status() == following, verb
        gate.open(run.id)
        await engine.settle()
        if following not in WORKED_ON:
            assert await run.status() == following, verb
    assert not engine.offers("audit") or (await engine.audit.verify()).ok


async def acts_on(engine: TestEngine, run: RunHandle[None]) -> list[AuditRecord]:
    """Return what is on record about a run, where there is a record."""
    return await engine.audit.records(target=run.id) if engine.offers("audit") else []


async def test_every_status_is_in_the_table():
    """S4-2 The table above is whole."""
    assert set(TABLE) == set(Status)
    assert all(set(row) == set(VERBS) for row in TABLE.values())


async def test_a_refusal_says_which_verb_fits(make_engine):
    """B8 The error names the status and the way out."""
    engine = await make_engine(quick, waiting, stuck)
    done, waits, blocked = await engine.start(quick), await engine.start(waiting), await engine.start(stuck)
    await engine.settle()
    with pytest.raises(CannotReopen, match=r"is completed, and retry takes a run that is failed: rerun\(from_step"):
        await done.retry()
    with pytest.raises(CannotReopen, match=r"is suspended.*wait for it to end, or cancel it"):
        await waits.rerun()
    with pytest.raises(CannotReopen, match=r"is blocked.*put its code right, or recover\(\) it"):
        await blocked.retry()
    await waits.pause()
    await engine.settle()
    with pytest.raises(CannotReopen, match=r"is paused.*resume\(\) lets a paused run go on"):
        await waits.retry()
    await waits.cancel()
    await engine.settle()
    with pytest.raises(CannotReopen, match=r"is cancelled.*resume\(\) lets a cancelled run go on"):
        await waits.retry()


async def test_nobody_can_act_on_a_run_that_does_not_exist(make_engine):
    """B33 GUARANTEES 6.11 NoSuchRun or InvalidId; nothing is audited."""
    engine = await make_engine(quick)
    for verb in VERBS:
        with pytest.raises(NoSuchRun):
            await do(engine, engine.get("nobody"), verb)
    with pytest.raises(InvalidId):
        engine.get("no/body")
    assert not engine.offers("audit") or await engine.audit.records() == []


ACTS = [
    ("suspended", "cancel", "cancelled"),
    ("suspended", "terminate", "cancelled"),
    ("suspended", "pause", "paused"),
    ("paused", "resume", "suspended"),
    ("cancelled", "resume", "suspended"),
    ("failed", "retry", "failed"),
    ("completed", "rerun", "completed"),
    ("suspended", "set_attributes", "suspended"),
    ("blocked", "recover", "blocked"),
]


@pytest.mark.parametrize("mode", ["evict"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("status", "verb", "following"), ACTS, ids=[f"{verb}-{status}" for status, verb, _ in ACTS])
async def test_a_process_that_dies_while_acting_has_done_all_or_nothing(make_engine, moment, status, verb, following):
    """B8 G6 GUARANTEES 5 Audit: the deed and its audit record are one commit, whatever dies around it."""
    engine = await make_engine(*WORKFLOWS)
    faults = engine.faults
    run = await brought_to(engine, status, "r")
    reopened = (await run.describe()).reopened
    audited = len(await engine.audit.records())
    await moments(3)
    asked = 2 if (status, verb) == ("cancelled", "resume") else 1  # it is asked first whether it is paused
    faults.die(asked, moment)
    with pytest.raises(StoreError):
        await do(engine, run, verb)
    await engine.crash()
    engine = await make_engine(*WORKFLOWS, clock=engine.jumping)
    run = engine.get("r")
    await engine.settle()
    done = moment == "after"
    records = (await engine.audit.records())[audited:]
    assert [each.action for each in records] == [verb.replace("_", " ")] * done
    found = await run.describe()
    assert found.status == (following if done else status)
    assert found.reopened == reopened + (done and status in ("cancelled", "failed", "completed"))
    assert found.attributes == ({"seen": True} if done and verb == "set_attributes" else {})
    assert (await engine.audit.verify()).ok


@pytest.mark.parametrize("mode", ["file"])
@pytest.mark.parametrize(("status", "verb", "following"), ACTS, ids=[f"{verb}-{status}" for status, verb, _ in ACTS])
async def test_a_client_acts_on_the_runs_of_another_engine(make_engine, status, verb, following):
    """B7 B8 B25 S0-60 An engine that runs nothing itself does all of it, and the worker of the run notices."""
    worker = await make_engine(*WORKFLOWS)
    client = await make_engine(run_workflows=False, clock=worker.jumping, actor="console")
    run = await brought_to(worker, status)
    mine: RunHandle[Any] = client.get(run.id)
    before = (await mine.describe()).updated_at
    worker.jumping.advance(timedelta(seconds=1))
    await do(client, mine, verb)

    async def done() -> bool:
        found = await mine.describe()
        return found.status == following and found.updated_at != before

    await eventually(done)
    if client.offers("audit"):
        assert [each.actor for each in await client.audit.records(target=run.id)][-1] == "kim"
