"""Every code of `why` is brought about on both stores, and its sentence compared."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import pytest
from tests.support.paths import ROOT
from tests.support.waiting import eventually
from tests.support.why_cases import (
    BRIEF,
    CASES,
    HOUR,
    House,
    before,
    charge,
    encode,
    kill_workers,
    parent,
    quick,
    refund,
    steps,
    train,
    until,
)

from holdfast import Context, workflow
from holdfast.contract.heads import RunHead, WorkerAbout
from holdfast.contract.looking import Looks
from holdfast.contract.rows import EntryRow
from holdfast.engine.handle import RunHandle
from holdfast.looking import LocalDesk
from holdfast.looking.facts import Facts
from holdfast.looking.times import Times
from holdfast.looking.views import HttpRequest
from holdfast.looking.why import CODES, DEPTH, LONGEST, explain
from holdfast.testing import TestEngine
from holdfast.web.routes import routes
from holdfast.web.routing import RouteTable, read_body, read_query

OPERATIONS = RouteTable(routes())
LOOKS = [name for name in vars(Looks) if not name.startswith("_")]
READ_IN_HISTORY = {"running.step", "compensating", "pending.busy", "waiting.child", "waiting.key"}
"""Codes whose sentences say more about one run than in a list: its heartbeat, what is undone, who is before it."""
BLANK = {
    "key": 1, "workflow": "order", "version": "1", "status": "suspended", "due": None, "epoch": 1, "owner": None,
    "generation": 0, "inbox": 0, "claims": 0, "lost": "", "parent": None, "created": 0, "updated": 0, "ended": None,
    "begins": None, "deadline": None, "priority": 0, "unique_key": None, "actor": None, "tenant": None, "reopens": 0,
    "conclusion": None, "place": 0, "fingerprint": None, "attributes": "{}", "error_type": None, "error_message": None,
    "failed_step": None, "compensated": False,
}  # fmt: skip


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, path: Path) -> str:
    return f"sqlite:///{path}" if request.param == "sqlite" else request.getfixturevalue("empty_database")


@pytest.fixture
async def house(address: str) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        yield House(address, stack)


def test_every_code_has_a_case_that_brings_it_about():
    assert set(CASES) == set(CODES)


def test_every_code_is_in_the_documentation():
    page = (ROOT / "docs/production/command-line.md").read_text()
    table = page.partition("## Why")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)`", table)) >= set(CODES)


@pytest.mark.parametrize("code", CODES)
async def test_a_code_is_told_in_a_sentence_and_in_a_list_alike(house, code):
    made = CASES[code]
    run_id = await made.make(house)
    desk = LocalDesk(await house.store())
    why = await desk.why(run_id, relative=True)
    assert (why.code, why.run) == (code, run_id)
    assert why.sentence.startswith(made.sentence), why.sentence
    assert len(why.sentence) <= LONGEST
    assert all(each.command.startswith("holdfast ") for each in why.help if each.command)
    for each in why.help:
        assert (each.request is not None) == bool(each.command), "what moves it can be asked for over HTTP, too"
        assert each.request is None or is_operation(each.request), each.request
    [head] = (await desk.heads(run_id)).items
    said = await desk.why(run_id)
    assert head.why.code == said.code == code
    assert head.why.sentence == said.sentence or code in READ_IN_HISTORY, "a list says the same"
    assert not re.search(r"\d (s|min|h|d) ago|\bin \d+ (s|min|h)\b", said.sentence), "programs are told instants"


def is_operation(request: HttpRequest) -> bool:
    """Tell whether the HTTP API has such an operation, and takes these parameters and this body."""
    path, _, query = request.path.removeprefix("/api/v1").partition("?")
    route = OPERATIONS.find(path).routes[request.method]
    read_query(route.query, parse_qsl(query, strict_parsing=bool(query)))
    if request.body is not None:
        read_body(route.body, msgspec.json.encode(request.body))
    return request.path.startswith("/api/v1/") and (request.body is None) == (route.body is None)


async def test_a_poison_run_says_which_step_it_called_last(house):
    async with TestEngine(house.database, workflows=[before], clock=house.clock) as engine:
        await engine.start(before, id="order-1")
        await engine.settle()
    client = await house.engine([before], run_workflows=False)
    await client.get("order-1").send("approved")
    store = await house.store()
    await store.join("w", HOUR)
    await kill_workers(store, house.clock.now(), "changing")
    why = await LocalDesk(store).why("order-1")
    assert (why.code, why.subject) == ("blocked.poison", {"step": "restock"})
    assert why.sentence.endswith("got a commit out of it after step `restock`: its code kills or hangs them")


async def test_what_is_undone_is_counted_in_what_a_long_history_has_last(house, monkeypatch):
    monkeypatch.setattr("holdfast.looking.facts._LAST_FACTS", 6)
    run_id = await CASES["compensating"].make(house)
    desk = LocalDesk(await house.store())
    assert (await desk.why(run_id)).sentence == CASES["compensating"].sentence
    [progress] = await desk.progress([run_id])
    assert (progress.undone, progress.to_undo) == (1, 2)


async def count(n: int) -> int:
    return n


@workflow
async def counts(ctx: Context, *, beside: bool) -> None:
    """Have one step under way: begun before sixty others, or after them."""
    encoding = [ctx.step(encode)] if beside else []
    for n in range(60):
        await ctx.step(count, n)
    await (encoding[0] if beside else ctx.step(encode))


@pytest.mark.parametrize("beside", [False, True], ids=["at its end", "at its beginning"])
async def test_the_step_under_way_is_found_in_a_long_history_of_which_the_end_is_read_first(house, beside, monkeypatch):
    engine = await house.engine([counts])
    run = await engine.start(counts, beside=beside, id="order-1")
    await eventually(lambda: _encodes_after_all(run))
    store = await house.store()
    history, read = store.history, []

    async def counted(*args: Any, **options: Any) -> list[EntryRow]:
        rows = await history(*args, **options)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(store, "history", counted)
    assert (await LocalDesk(store).why("order-1")).sentence.startswith("Step `encode`, attempt 1, since ")
    if beside:
        assert read[0] == 100 < read[1], read
    else:
        assert read == [100], "what a sentence costs does not grow with the history"


async def _encodes_after_all(run: RunHandle[None]) -> bool:
    steps = {step.path: step.status for step in await run.steps()}
    return len(steps) == 61 and steps["encode"] == "running" and set(steps.values()) == {"running", "completed"}


@workflow
async def charged(ctx: Context) -> None:
    ctx.compensate(refund)
    await ctx.step(charge)


@workflow
async def awaited(ctx: Context) -> None:
    ctx.compensate(refund)
    await ctx.receive("approved")


async def test_why_a_run_undoes_is_told_by_the_step_that_failed_or_by_who_cancelled_it(house):
    engine = await house.engine([charged, awaited])
    failed, cancelled = await engine.start(charged, id="order-1"), await engine.start(awaited, id="order-2")
    await until(house, engine, "order-2", lambda head: head.wait)
    await cancelled.cancel(compensate=True, by="kim", reason="ordered twice")
    for run in (failed, cancelled):
        await eventually(lambda run=run: _undoes(run))
    desk = LocalDesk(await house.store())
    undone = "0 of 1 undone, `refund` is running"
    because = "after step `charge` failed with CardDeclinedError"
    assert (await desk.why("order-1")).sentence == f"Undoing what it has done {because}: {undone}"
    because = "cancelled by kim: ordered twice"
    assert (await desk.why("order-2")).sentence == f"Undoing what it has done, {because}; {undone}"


async def _undoes(run: RunHandle[None]) -> bool:
    return any(step.name == "refund" and step.status == "running" for step in await run.steps())


async def test_the_pauses_of_a_workflow_and_of_a_limit_are_told(house):
    engine = await house.engine()
    await engine.limits.pause("openai", by="lena")
    await engine.flow.pause(workflow="quick", by="lena")
    await engine.start(steps["embed"], id="order-1")
    await until(house, engine, "order-1", lambda head: head.wait)
    await engine.start(quick, id="order-2")
    desk = LocalDesk(engine.store)
    limit, flow = await desk.why("order-1"), await desk.why("order-2")
    assert (limit.code, limit.sentence) == ("waiting.paused", "Step `embed` waits: limit `openai` is paused")
    assert limit.help[0].command == "holdfast resume --limit openai"
    assert (flow.code, flow.help[0].command) == ("waiting.paused", "holdfast resume --workflow quick")


async def test_what_no_worker_serves_is_told_though_some_are_alive(house):
    engine = await house.engine([steps["train"]])
    await engine.start(steps["train"], id="order-1")
    await engine.settle()
    desk = LocalDesk(engine.store)
    why = await desk.why("order-1")
    assert (why.code, "no worker that is alive serves it" in why.sentence) == ("waiting.queue.nobody", True)
    client = await house.engine(run_workflows=False)
    await client.start(quick, id="order-2")
    why = await desk.why("order-2", relative=True)
    begin = "No worker can take it: 1 worker is alive, and none has workflow `quick`; it was due "
    assert (why.code, why.sentence.startswith(begin)) == ("pending.nobody", True), why.sentence


async def test_a_run_whose_queue_no_worker_serves_says_which_though_workers_know_its_workflow(house):
    """A worker that serves other queues alone knows the workflow, and never advances it."""
    engine = await house.engine([quick], queues=["gpu"])
    await engine.start(quick, id="order-1")
    desk = LocalDesk(await house.store())
    why = await desk.why("order-1", relative=True)
    begin = "No worker can take it: 1 worker is alive, and none serves queue `default` of workflow `quick`; it was due "
    assert (why.code, why.sentence.startswith(begin)) == ("pending.nobody", True), why.sentence
    assert why.help[0].say == "start a worker that serves it: Engine(queues=['default', ...])"
    [worker] = await desk.workers()
    assert (worker.workflows, worker.unserved) == ({}, {"quick": "default"})
    assert [version.workers for version in await desk.versions() if version.workflow == "quick"] == [0]


async def test_a_run_that_no_worker_can_take_says_which_had_its_workflow_last(house):
    client = await house.engine(run_workflows=False)
    await client.start(quick, id="order-1")
    about = WorkerAbout(holdfast="1", queues=["default"], workflows={"quick": "1"})
    await client.store.join("worker-3", BRIEF, msgspec.json.encode(about).decode())
    other = await house.store()
    await other.join("worker-4", HOUR, msgspec.json.encode(WorkerAbout(holdfast="1")).decode())

    async def said() -> bool:
        why = await LocalDesk(other).why("order-1", relative=True)
        begin = "No worker can take it: 1 worker is alive, and none has workflow `quick`; "
        last = f"`{socket.gethostname()}:{os.getpid()}` had it, last heard of "
        return why.sentence.startswith(begin + last)

    await eventually(said)


async def test_a_wait_in_a_queue_says_how_many_wait_and_which_worker_took_it(house):
    engine = await house.engine()
    for number in range(3):
        await engine.start(steps["train"], id=f"order-{number}")
    await engine.settle()
    store = await house.store()
    await store.join("worker-3", HOUR, msgspec.json.encode(WorkerAbout(holdfast="1", queues=["gpu"])).decode())
    desk = LocalDesk(store)
    why = await desk.why("order-0")
    assert why.sentence == "Step `train` waits in queue `gpu`, where 2 others wait, too; 1 worker serves it"
    await store.claim_tasks("worker-3", store.clock.now(), 1, ["gpu"], [train.name])
    found = {head.id: head.why for head in (await desk.heads("workflow:train")).items}
    [taken] = [why for why in found.values() if "worker" in why.subject]
    assert taken.sentence == f"Step `train` was taken from queue `gpu` by worker `{socket.gethostname()}:{os.getpid()}`"
    assert (taken.code, taken.subject["worker"]) == ("waiting.queue", "worker-3")
    assert [why.sentence for why in found.values() if why is not taken] == [
        "Step `train` waits in queue `gpu`, where 1 other waits, too; 1 worker serves it"
    ] * 2


async def test_a_chain_is_followed_ten_deep_on_request_and_one_deep_in_lists(house):
    engine = await house.engine()
    await engine.start(parent, 12, id="order-1")
    await engine.settle()
    desk = LocalDesk(engine.store)
    why = await desk.why("order-1")
    assert [below.run for below in why.chain] == [f"ship-{number}" for number in range(11, 1, -1)]
    assert len(why.chain) == DEPTH
    [head] = (await desk.heads("order-1")).items
    assert [below.run for below in head.why.chain] == ["ship-11"]


async def test_a_list_asks_for_all_its_runs_at_once(house):
    """What runs wait for is asked in one question for all of them."""
    engine = await house.engine()
    desk = LocalDesk(engine.store)
    asked = [engine.faults.watch(name) for name in LOOKS]
    for number in range(12):
        await engine.start(parent, 1, f"ship-{number}", id=f"order-{number}")
    await engine.settle()
    before = [len(calls) for calls in asked]
    page = await desk.heads("workflow:parent")
    assert len(page.items) > 10
    now = {name: len(calls) - was for name, calls, was in zip(LOOKS, asked, before, strict=True)}
    assert now["heads_of"] == 1, "all the children in one question"
    assert max(now.values()) <= 2, now


@pytest.mark.parametrize("state", ["silent", "dead"])
async def test_a_run_whose_worker_is_silent_or_dead_needs_attention(house, state):
    store = await house.held_by("worker-4", HOUR, run_id="order-2")
    run_id = await CASES[f"running.{state}"].make(house)
    desk = LocalDesk(store)
    for text, found in {"": [run_id], "status:running": [run_id], "status:paused": [], "workflow:none": []}.items():
        assert [head.id for head in (await desk.heads(f"is:attention {text}")).items] == found, text
        assert (await desk.count(f"is:attention {text}")).n == len(found)


async def test_a_step_that_waits_in_a_queue_is_not_shown_as_under_way(house):
    run_id = await CASES["waiting.queue.nobody"].make(house)
    view = await LocalDesk(await house.store()).run(run_id)
    assert [(step.path, step.status, step.reason) for step in view.steps] == [("train", "waiting", "in queue gpu")]


async def test_a_worker_that_has_a_run_is_named_by_its_process(house):
    run_id = await CASES["running.step"].make(house)
    view = await LocalDesk(await house.store()).run(run_id)
    assert [step.status for step in view.steps] == ["running"]
    assert view.head.process == f"{socket.gethostname()}:{os.getpid()}"


@pytest.mark.parametrize(
    "code", ["waiting.queue.nobody", "waiting.key", "running.dead", "pending.busy", "waiting.circuit"]
)
async def test_where_no_command_moves_a_run_one_says_more(code, house):
    run_id = await CASES[code].make(house)
    why = await LocalDesk(await house.store()).why(run_id)
    assert why.code == code
    assert any(help.command for help in why.help), why.help


def test_a_circle_of_runs_is_cut():
    def waits_for(run_id: str, other: str) -> RunHead:
        return msgspec.convert({**BLANK, "id": run_id, "wait": f"child {other}"}, RunHead)

    heads = {"a": waits_for("a", "b"), "b": waits_for("b", "a")}
    why = explain(heads["a"], Facts(heads=heads), Times(0, UTC, True), DEPTH)
    assert why.sentence == "Waits for child `b`, which waits for child `a`"
    assert [below.run for below in why.chain] == ["b"]
