"""What runs put on record, and what people did to them: once, in order, in chains that anybody can check."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.paths import SCRIPTS
from tests.support.waiting import LONG

from holdfast import Context, NoSuchRun, Retry, RunCancelled, RunFailed, Status, activity, workflow
from holdfast.errors import BadInput

HOUR = timedelta(hours=1)
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
SCRIPT = SCRIPTS / "killed_operators.py"

shared = pytest.mark.parametrize("mode", ["file", "evict"])
anywhere = pytest.mark.parametrize("mode", ["memory"])


@workflow
async def loan(ctx: Context, amount: int) -> str:
    """A decision whose every step leaves evidence."""
    ctx.evidence("init", {"amount": amount})
    await ctx.sleep(HOUR)
    ctx.evidence("prequalification", {"passed": True})
    word = await ctx.receive("authorization", str)
    ctx.evidence("authorization", word)
    async for turn in ctx.loop("factors", state=0, commit_interval=1, history_every=1, history_keep=1):
        turn.evidence("assessment", {"factor": turn.state})
        if turn.state == 2:
            break
        turn.state += 1
    ctx.evidence("decision", "granted")
    return "granted"


@activity(retry=Retry.never)
async def refuses() -> None:
    raise OSError("no answer")


@workflow
async def ask(ctx: Context) -> Any:
    return await ctx.receive("word")


@workflow
async def always_fails(ctx: Context) -> None:
    await ctx.step(refuses)


KINDS = ["init", "prequalification", "authorization", "assessment", "assessment", "assessment", "decision"]


async def test_a_run_leaves_evidence_of_each_transition_once_however_often_it_is_replayed(make_engine):
    """S3-19 Evidence emitted at every state transition, in order, with the run's own time, and in its timeline."""
    engine = await make_engine(loan, start=BEGIN)
    run = await engine.start(loan, 500, id="loan")
    await run.send("authorization", "kim")
    assert await run.result() == "granted"
    items = await engine.audit.evidence("loan")
    assert [item.kind for item in items] == KINDS
    assert [item.data for item in items[:3]] == [{"amount": 500}, {"passed": True}, "kim"]
    assert [item.at for item in items[:2]] == [BEGIN, BEGIN + HOUR]
    assert len({item.id for item in items}) == len(items)
    assert (await engine.audit.verify_evidence("loan")).checked == len(items)
    timeline = await run.timeline()
    assert [item.detail["kind"] for item in timeline if "evidence" in item.what] == KINDS


@shared
async def test_evidence_is_neither_lost_nor_doubled_when_an_engine_stops(make_engine):
    """S3-19 G3 One engine after another, and a chain that goes on where it was."""
    first = await make_engine(loan)
    await first.start(loan, 500, id="loan")
    await first.settle()
    await first.stop()
    second = await make_engine(loan, clock=first.jumping)
    await second.advance(2 * HOUR)
    await second.stop()
    third = await make_engine(loan, clock=first.jumping)
    await third.get("loan").send("authorization", "lee")
    assert await third.get("loan").result() == "granted"
    assert [item.kind for item in await third.audit.evidence("loan")] == KINDS
    assert (await third.audit.verify_evidence("loan")).ok


@pytest.mark.parametrize("mode", ["file"])
async def test_evidence_is_recorded_with_the_turn_that_gave_it_or_not_at_all(make_engine, monkeypatch):
    """S3-19 G3 Every third commit fails, half of them after it was made."""
    monkeypatch.setattr("holdfast.engine.worker.worker._TAKE_OVER_EVERY", 0.25)
    monkeypatch.setattr("holdfast.engine.runs.departures._FIRST_PAUSE", 0.001)
    engine = await make_engine(loan)
    refused = lost = 0
    for number in range(5):
        engine.faults.heal()
        run = await engine.start(loan, 500, id=f"loan{number}")
        await run.send("authorization", "kim")
        faults = engine.faults.fail(None, every=6), engine.faults.lose_answer(None, skip=number % 3, every=6)
        assert await asyncio.wait_for(run.result(), LONG) == "granted"
        assert [item.kind for item in await engine.audit.evidence(run.id)] == KINDS
        assert (await engine.audit.verify_evidence(run.id)).ok
        refused, lost = refused + faults[0].injected, lost + faults[1].injected
    engine.faults.heal()
    assert refused >= 5
    assert lost >= 3


async def test_each_run_has_a_chain_of_its_own(make_engine):
    """S3-19 Many at once; the ids of equal evidence differ."""
    engine = await make_engine(loan)
    runs = await engine.start_many(loan, [1, 2, 3], id=lambda amount: f"loan{amount}")
    for run in runs:
        await run.send("authorization", "kim")
    for run in runs:
        await run.result()
    ids = {item.id for run in runs for item in await engine.audit.evidence(run.id)}
    assert len(ids) == 3 * len(KINDS)
    assert [(await engine.audit.verify_evidence(run.id)).checked for run in runs] == [len(KINDS)] * 3
    assert await engine.audit.evidence("nobody") == []


@anywhere
async def test_evidence_that_cannot_be_kept_is_refused_where_it_is_given(make_engine):
    """S3-19 GUARANTEES 6.1 The run fails at that line; nothing is on record."""

    @workflow
    async def bad(ctx: Context, kind: str) -> None:
        ctx.evidence(kind, object() if kind == "thing" else None)

    engine = await make_engine(bad)
    for kind, said in (("thing", "evidence 'thing'"), ("", "evidence kind")):
        run = await engine.start(bad, kind)
        with pytest.raises(RunFailed, match=said):
            await run.result()
        assert await engine.audit.evidence(run.id) == []


# What people do.


async def test_everything_people_do_to_runs_is_on_record_with_who_and_why(make_engine):
    """S3-19 GUARANTEES 5 Audit: one row per action, in order, in one chain."""
    tries: list[int] = []

    @activity(retry=Retry.never)
    async def second_time_lucky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("no")

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.receive("word")
        await ctx.step(second_time_lucky)
        await ctx.receive("word")

    engine = await make_engine(work, actor="service", start=BEGIN)
    run = await engine.start(work, id="r")
    await engine.settle()
    await run.pause(by="kim", reason="looking at it")
    await engine.settle()
    await run.resume(by="kim")
    await run.set_attributes({"seen": True, "by": "lee"}, by="lee")
    await run.cancel(by="kim", reason="enough")
    with pytest.raises(RunCancelled):
        await run.result()
    await run.resume(by="lee")
    await engine.settle()
    await run.send("word")
    with pytest.raises(RunFailed):
        await run.result()
    await run.retry()
    await engine.settle()
    await run.terminate(by="root", reason="at last")
    records = await engine.audit.records(target="r")
    assert [(record.actor, record.action) for record in records] == [
        ("kim", "pause"),
        ("kim", "resume"),
        ("lee", "set attributes"),
        ("kim", "cancel"),
        ("lee", "resume"),
        ("service", "retry"),
        ("root", "terminate"),
    ]
    assert [records[index].detail["reason"] for index in (0, 3, 6)] == ["looking at it", "enough", "at last"]
    assert records[2].detail == {"names": ["by", "seen"]}  # no values: they may be nobody's business
    assert {record.at for record in records} == {BEGIN}
    assert (await engine.audit.verify()).checked == 7
    said = [item.detail.get("actor") for item in await run.timeline()]
    assert [who for who in said if who] == [record.actor for record in records]


async def test_what_came_to_nothing_is_not_on_record(make_engine):
    """GUARANTEES 5 G6 A run that has ended, one that is not there, arguments that make no sense."""
    engine = await make_engine(ask)
    run = await engine.start(ask, id="r")
    await run.send("word", "done")
    await run.result()
    assert [await verb(by="kim") for verb in (run.cancel, run.terminate, run.pause, run.resume)] == [False] * 4
    for refused in (engine.get("nobody").cancel(), engine.get("nobody").set_attributes({"a": 1})):
        with pytest.raises(NoSuchRun):
            await refused
    with pytest.raises(BadInput):
        await run.set_attributes({"a": object()})
    assert await engine.audit.records() == []


@shared
async def test_two_engines_write_one_chain(make_engine):
    """S3-19 Whoever commits second links to the first; nothing forks and nothing is lost."""
    first = await make_engine(ask)
    second = await make_engine(ask, clock=first.jumping)
    runs = await first.start_many(ask, [()] * 40)
    await asyncio.gather(
        *(
            (first, second)[number % 2].get(run.id).set_attributes({"number": number}, by=f"p{number}")
            for number, run in enumerate(runs)
        )
    )
    records = await second.audit.records()
    assert [record.n for record in records] == list(range(1, 41))
    assert {record.actor for record in records} == {f"p{number}" for number in range(40)}
    verdicts = [await engine.audit.verify() for engine in (first, second)]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0].ok


def test_an_operator_killed_at_any_statement_leaves_action_and_record_or_neither(tmp_path):
    """S3-19 GUARANTEES 5 Audit: kill -9 between the action and its record, at every statement of seven actions."""
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lives = [json.loads(line) for line in done.stdout.splitlines()]
    killed = [life for life in lives if life["killed"]]
    whole = [life for life in lives if not life["killed"]]
    assert len(killed) >= 40
    assert [life for life in killed if life["changed"] != bool(life["audited"])] == []
    assert len(whole) == 7
    for life in whole:
        assert life["finished"], life
        assert life["changed"], life
        ((actor, action, _),) = life["audited"]
        assert actor == "kim"
        assert life["action"] in action


async def test_another_program_can_check_what_is_exported(make_engine):
    """S3-19 With the rule in the documentation of `holdfast.ops.audit` and nothing of ours."""
    engine = await make_engine(loan)
    run = await engine.start(loan, 5, id="loan")
    await run.send("authorization", "Zoë \u2028 \x00 \U0001f600")
    await run.result()
    await run.set_attributes({"größe": 1}, by="Zoë")
    rules = {
        None: ["n", "at", "actor", "action", "target", "detail"],
        run.id: ["run", "n", "id", "kind", "data", "at"],
    }
    for which, fields in rules.items():
        previous, count = "", 0
        async for line in engine.audit.export(which):
            row = json.loads(line)
            text = json.dumps([previous, *(row[field] for field in fields)], ensure_ascii=False, separators=(",", ":"))
            assert hashlib.sha256(text.encode()).hexdigest() == row["hash"]
            previous, count = row["hash"], count + 1
        assert count == (1 if which is None else len(KINDS))


async def test_a_terminated_run_keeps_what_it_put_on_record(make_engine):
    """S3-19 G6"""
    engine = await make_engine(loan)
    run = await engine.start(loan, 5)
    await engine.settle()
    await run.terminate(by="kim")
    assert await run.status() is Status.CANCELLED
    assert [item.kind for item in await engine.audit.evidence(run.id)] == ["init"]


@anywhere
async def test_every_act_is_on_record_with_its_reason(make_engine):
    """The trail says who did what, and why, of runs, of dead letters and of schedules."""
    engine = await make_engine(ask, always_fails)
    why = {"by": "kim", "reason": "asked by phone"}
    run = await engine.start(ask, id="asks")
    await engine.settle()
    await run.set_attributes({"a": 1}, **why)
    await run.pause(**why)
    await run.resume(**why)
    await run.recover(**why)
    await run.cancel(**why)
    with pytest.raises(RunFailed):
        await engine.execute(always_fails, id="fails")
    [letter] = await engine.dead_letters.list()
    await engine.dead_letters.acknowledge(letter.id, **why)
    await engine.dead_letters.replay(letter.id, **why)
    with pytest.raises(RunFailed):
        await engine.get("fails").result()
    await engine.dead_letters.replay_all(**why)
    with pytest.raises(RunFailed):
        await engine.get("fails").result()
    newest = (await engine.dead_letters.list())[0]
    await engine.dead_letters.remove(newest.id, **why)
    await engine.dead_letters.purge(older_than=timedelta(0), **why)
    await engine.schedules.put("daily", ask, cron="@daily", **why)
    await engine.schedules.pause("daily", **why)
    await engine.schedules.resume("daily", **why)
    await engine.schedules.trigger("daily", **why)
    await engine.schedules.backfill("daily", BEGIN, BEGIN + HOUR * 30, **why)
    await engine.schedules.delete("daily", **why)
    records = await engine.audit.records(limit=1000)
    assert len({record.action for record in records}) >= 13
    assert [(record.action, record.actor) for record in records if record.actor != "kim"] == []
    assert [record.action for record in records if record.detail.get("reason") != "asked by phone"] == []
