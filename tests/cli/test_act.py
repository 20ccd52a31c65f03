"""Acting from the command line: on one run and on many, with dry runs, reasons, codes and the audit trail."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.transfer_cases import House, approval, order, sleeper

from holdfast import Context, Retry, activity, workflow
from holdfast.contract.rows import AuditRow
from holdfast.looking import bulk
from holdfast.looking.acts import FITS
from holdfast.looking.views import Acted, BulkProgress, SelectionView
from holdfast.stores import open_store
from holdfast.testing import JumpingClock, TestEngine


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    """A database with runs that completed, failed, sleep and wait, and no worker, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_ACTOR", "kim")
    house = House("sqlite:///holdfast.db", JumpingClock())
    house.bank_open = True

    async def fill() -> None:
        async with house.engine() as engine:
            await engine.execute(order, "lamp", id="done")
            house.bank_open = False
            await engine.start(order, "chair", id="failed")
            await engine.start(sleeper, 3, id="sleeps")
            for number in range(3):
                await engine.start(approval, 2, id=f"waits-{number}")
            await engine.settle()

    asyncio.run(fill())
    return house


async def _looked(work: Any) -> Any:
    store = open_store("sqlite:///holdfast.db")
    await store.open(look_only=True)
    try:
        return await work(store)
    finally:
        await store.close()


def statuses(*run_ids: str) -> list[str]:
    found = asyncio.run(_looked(lambda store: store.heads_of(run_ids)))
    return [str(found[run_id].status) for run_id in run_ids]


def audited(target: str) -> list[AuditRow]:
    rows: list[AuditRow] = asyncio.run(_looked(lambda store: store.audit(target)))
    return rows


def test_each_act_changes_one_run_and_is_on_record_with_the_reason(shop, run):
    for command, run_id, after in (
        (("pause", "--for", "2h"), "sleeps", "paused"),
        (("resume",), "sleeps", "pending"),
        (("cancel",), "waits-0", "cancelling"),
        (("retry",), "failed", "pending"),
        (("rerun", "--from", "keep"), "done", "pending"),
        (("terminate",), "waits-1", "cancelled"),
    ):
        before = len(audited(run_id))
        done = run(command[0], run_id, *command[1:], "--reason", "INC-7")
        assert (done.code, done.err) == (0, ""), command
        assert statuses(run_id) == [after], command
        row = audited(run_id)[-1]
        assert (len(audited(run_id)), row.actor, row.action) == (before + 1, "kim", command[0])
        assert json.loads(row.detail)["reason"] == "INC-7"


def test_what_is_not_in_a_state_for_it_is_left_alone_with_code_six(shop, run):
    for command in (("retry", "done"), ("resume", "sleeps"), ("cancel", "done"), ("recover", "failed")):
        done = run(*command)
        assert (done.code, done.out) == (6, ""), command
        assert "nothing changed" in done.err
        assert audited(command[1]) == []


def test_messages_and_events_of_a_person_are_on_record(shop, run):
    assert run("send", "waits-0", "approval", '{"ok": true}', "--id", "m1", "--reason", "phone call").code == 0
    assert run("send", "waits-0", "approval", '{"ok": true}', "--id", "m1").code == 6  # sent before
    [row] = audited("waits-0")
    assert (row.actor, row.action, json.loads(row.detail)) == (
        "kim",
        "send",
        {"name": "approval", "message": "m1", "reason": "phone call"},
    )
    published = run("publish", "stock", "3")
    assert (published.code, published.out) == (0, "stock waits for a run\n")
    assert [row.action for row in audited("stock")] == ["publish"]
    bad = run("send", "waits-0", "approval", "{bad")
    assert (bad.code, "no JSON" in bad.err, "position 1" in bad.err) == (2, True, True)
    assert run("send", "nobody", "approval").code == 3


def test_a_rerun_is_previewed_and_a_wrong_step_named(shop, run):
    preview = run("rerun", "done", "--from", "bank", "--dry-run")
    assert preview.code == 0
    assert "steps that run again: bank" in preview.out
    assert statuses("done") == ["completed"]
    wrong = run("rerun", "done", "--from", "bnak")
    assert (wrong.code, "did you mean 'bank'?" in wrong.err) == (6, True)


def test_a_retry_says_first_which_steps_were_undone_and_which_may_have_had_an_effect(shop, run):
    preview = run("retry", "failed", "--dry-run")
    assert "steps that run again: keep, bank\n" in preview.out
    assert "of these were undone, and get new idempotency keys: keep\n" in preview.out
    assert "may have had an effect" not in preview.out
    document = json.loads(run("retry", "failed", "--dry-run", "--json").out)
    assert (document["undone"], document["unsure"]) == (["keep"], {})
    document = json.loads(run("rerun", "done", "--dry-run", "--json").out)
    assert (document["undone"], set(document["unsure"].values())) == ([], {"it had completed"})
    assert "may have had an effect" not in run("rerun", "done", "--dry-run").out
    assert statuses("failed", "done") == ["failed", "completed"]


@activity(retry=Retry.never, timeout=timedelta(seconds=1))
async def slow() -> None:
    await asyncio.Event().wait()


@workflow
async def lost(ctx: Context) -> None:
    await ctx.step(slow)


def test_a_retry_says_first_which_step_timed_out(shop, run):
    async def fill() -> None:
        async with TestEngine("sqlite:///holdfast.db", workflows=[lost], clock=shop.clock) as engine:
            await engine.start(lost, id="lost")
            await engine.settle()

    asyncio.run(fill())
    assert "slow may have had an effect: its last attempt timed out\n" in run("retry", "lost", "--dry-run").out


MEANT = "They begin no step until they are resumed; what is under way finishes.\n"


def test_many_are_acted_on_by_the_number_of_a_dry_run(shop, run):
    where = ("--where", "workflow:approval")
    looked = run("pause", *where, "--dry-run")
    assert (looked.code, looked.out) == (0, "3 runs match: 3 can be paused.\n" + MEANT)
    assert statuses("waits-0", "waits-1", "waits-2") == ["suspended"] * 3
    for refused in (("pause", *where), ("pause", *where, "--yes"), ("pause", *where, "--yes", "--expect", "2")):
        answer = run(*refused)
        assert (answer.code, "--yes --expect 3" in answer.err) == (2, True)
    assert run("pause", *where, "--yes", "--expect", "3", "--reason", "INC-7").out.endswith("paused 3\n")
    assert statuses("waits-0", "waits-1", "waits-2") == ["paused"] * 3
    again = run("pause", *where, "--yes", "--expect", "3")
    assert (again.code, again.out) == (6, "3 runs match: 0 can be paused, 3 cannot (paused).\n")
    mixed = run("retry", "--where", "status:failed,completed", "--dry-run", "--json")
    document = json.loads(mixed.out)
    assert document.pop("schema") == "holdfast.selection/1"
    plan = msgspec.convert(document, SelectionView)
    assert (plan.matched, plan.can, plan.sample, plan.cannot) == (2, 1, ["failed"], {"completed": 1})


def test_runs_are_named_on_stdin_and_a_missing_one_stops_everything(shop, run, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("waits-0\nwaits-1\n"))
    assert run("cancel", "-", "--yes", "--expect", "2").code == 0
    assert statuses("waits-0", "waits-1") == ["cancelling", "cancelling"]
    missing = run("cancel", "waits-2", "nobody", "--yes", "--expect", "2")
    assert (missing.code, "'nobody'" in missing.err, "nothing was changed" in missing.err) == (3, True, True)
    assert statuses("waits-2") == ["suspended"]


def test_many_are_acted_on_page_by_page_and_those_that_fail_are_named(shop, run, monkeypatch):
    monkeypatch.setattr(bulk, "PAGE", 2)
    lines = run("cancel", "--where", "workflow:approval", "--yes", "--expect", "3", "--json").out.splitlines()
    assert [(page["changed"], page["finished"]) for page in map(json.loads, lines)] == [(2, False), (3, True)]
    wrong = run("rerun", "done", "failed", "--from", "bnak", "--yes", "--expect", "2")
    assert (wrong.code, wrong.out.splitlines()[-1]) == (6, "run again 0, failed 2")
    assert [line.split(":")[0] for line in wrong.err.splitlines()[-2:]] == ["  done", "  failed"]
    part = run("rerun", "done", "failed", "--from", "bank", "--yes", "--expect", "2")
    assert (part.code, part.out.splitlines()[-1]) == (0, "run again 2")


def test_the_first_interrupt_stops_after_the_page_in_hand_and_says_what_was_done(shop, run, monkeypatch):
    """What was done is said, and the same command does the rest."""
    monkeypatch.setattr(bulk, "PAGE", 1)
    act_on = bulk._act_on

    async def interrupted(*given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return await act_on(*given)

    monkeypatch.setattr(bulk, "_act_on", interrupted)
    stopped = run("pause", "--where", "workflow:approval", "--yes", "--expect", "3")
    assert (stopped.code, stopped.err.splitlines()[-1]) == (
        130, "stopped: paused 1 of 3, the same command does the rest",
    )  # fmt: skip
    assert sorted(statuses("waits-0", "waits-1", "waits-2")) == ["paused", "suspended", "suspended"]
    monkeypatch.setattr(bulk, "_act_on", act_on)
    assert run("pause", "--where", "workflow:approval", "--yes", "--expect", "2").code == 0


def test_a_workflow_and_a_queue_are_paused_as_a_whole(shop, run):
    for what in ("--workflow", "--queue"):
        assert run("pause", what, "approval", "--reason", "INC-7").code == 0
        assert run("pause", what, "approval").code == 6
        assert run("resume", what, "approval").code == 0
        assert run("resume", what, "approval").code == 6
    assert run("pause", "--workflow", "a", "--queue", "b").code == 2
    assert [row.action for row in audited("workflow approval")] == ["workflow.pause", "workflow.resume"]
    assert run("pause", "--limit", "openai").code == 2  # no engine declared it


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("cancel",), "name runs by their ids, or with --where"),
        (("cancel", "waits-0", "--where", "is:open"), "one of the two"),
        (("cancel", "--where", ""), "name runs by their ids"),
        (("cancel", "--where", "is:attention"), "needs a filter"),
        (("cancel", "--where", "statsu:failed"), "did you mean status?"),
        (("terminate", "waits-0"), "terminate needs --reason"),
        (("pause", "sleeps", "--for", "2 weeks"), "write a number and s, min, h or d"),
        (("cancel", "bad id"), "U+0020 at position 3"),
    ],
)
def test_what_cannot_be_understood_changes_nothing(shop, run, command, said):
    refused = run(*command)
    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err
    assert statuses("waits-0", "sleeps") == ["suspended", "suspended"]


def test_json_of_an_act_fits_its_record(shop, run):
    document = json.loads(run("pause", "sleeps", "--json").out)
    assert document.pop("schema") == "holdfast.acted/1"
    assert msgspec.convert(document, Acted) == Acted(run="sleeps", action="pause", changed=True)
    [line] = run("cancel", "--where", "workflow:approval", "--yes", "--expect", "3", "--json").out.splitlines()
    many = json.loads(line)
    assert many.pop("schema") == "holdfast.bulk/1"
    done = msgspec.convert(many, BulkProgress)
    assert (done.changed, done.finished, done.failed) == (3, True, {})
    assert set(FITS) >= {"cancel", "pause", "resume", "retry", "rerun", "terminate", "recover"}
