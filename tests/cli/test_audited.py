"""Every verb that acts, from the command line, on both databases: the same rows, and one of the audit trail by name."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_shell import every_command
from tests.support.command_cases import APP, LIMITS, Answer, training
from tests.support.example_shop import CHANGED, PATIENT
from tests.support.transfer_cases import WORKFLOWS, House, approval, order, sleeper
from tests.support.waiting import eventually

from holdfast.testing import JumpingClock

VERBS: dict[str, list[tuple[str, ...]]] = {
    "start": [("sleeper", '{"days": 3}', "--id", "started", "--app", APP)],
    "cancel": [("waits-0",)], "ask": [("waits-3", "add", "1", "--timeout", "0s")],
    "pause": [("waits-1",), ("--workflow", "approval"), ("--queue", "gpu"), ("--limit", "openai")],
    "resume": [("paused",), ("--workflow", "approval"), ("--queue", "gpu"), ("--limit", "openai")],
    "retry": [("failed-0",)], "rerun": [("done", "--from", "keep")], "terminate": [("waits-2",)],
    "recover": [("blocked",)], "nudge": [("retrying",)], "send": [("waits-3", "approval", "1")],
    "set": [("waits-4", "customer=c-7")], "reveal": [("done", "input")],
    "publish": [("parcel", '{"item": "lamp"}')], "letters ack": [("LETTER 0",)], "letters replay": [("LETTER 1",)],
    "limits override": [("openai", "--at-once", "3", "--rate", "10", "--per", "1min")], "limits restore": [("openai",)],
    "schedules pause": [("nightly",)], "schedules resume": [("nightly",)],
    "schedules trigger": [("nightly", "--app", APP)],
    "schedules backfill": [("nightly", "--from", "2026-01-01T00:00Z", "--until", "2026-01-01T12:00Z", "--app", APP)],
    "schedules put": [("hourly", "sleeper", '{"days": 1}', "--every", "1h", "--app", APP)],
    "schedules delete": [("hourly",)], "letters remove": [("LETTER 2",)],
    "token create": [("--name", "board", "--role", "reader")], "token revoke": [("TOKEN",)],
    "letters purge": [("--older-than", "0s", "--all", "--yes", "--expect", "N")],
    "purge": [("cancelled", "--older-than", "0s", "--yes", "--expect", "N")],
}  # fmt: skip
"""Every command that takes a reason, as it is called."""
MADE = re.compile(r"(?<=token )[0-9a-f]{12}|[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)?")
"""Ids and instants that differ from one time to another."""


async def fill(database: str) -> None:
    """Leave a run in every state that an act is for, dead letters, and a schedule."""
    house = House(database, JumpingClock())
    options: dict[str, Any] = {"limits": LIMITS, "stop_grace": timedelta(0)}
    async with house.engine([*WORKFLOWS, training, PATIENT], **options) as engine:
        house.bank_open = True
        await engine.execute(order, "lamp", id="done")
        house.bank_open = False
        for number in range(4):
            await engine.start(order, "chair", id=f"failed-{number}")
        for number in range(5):
            await engine.start(approval, 2, id=f"waits-{number}")
        await engine.start(approval, 2, id="paused")
        await engine.start(PATIENT, "lamp", id="retrying")
        await engine.start(PATIENT, "lamp", id="blocked")
        await engine.start(training, id="trains")
        await engine.schedules.put("nightly", sleeper, 1, cron="0 2 * * *", timezone="Europe/Berlin")
        await engine.settle()
        await engine.get("paused").pause(by="lena")
        await engine.settle()
    async with house.engine([CHANGED], **options) as engine:
        run = engine.get("blocked")
        await run.send("note", 1)

        async def is_blocked() -> bool:
            return await run.status() == "blocked"

        await eventually(is_blocked)


def test_every_command_that_takes_a_reason_is_tried_here():
    taking = {path for path, command in every_command() if any("--reason" in each.opts for each in command.params)}
    assert taking - {"db restore", "move"} == VERBS.keys()  # those are in test_db.py and test_move.py


def acted(run: Callable[..., Answer], letters: list[str]) -> list[Any]:
    """Act by every verb, see that each leaves one row with the name, and return what was left."""

    def trail() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(run("audit", "list", "--json", "--limit", "200").out)["items"]
        return found

    rows = trail()
    for path, calls in VERBS.items():
        for given in calls:
            before = len(rows)
            words = [letters[int(word[-1])] if word.startswith("LETTER") else word for word in given]
            if "TOKEN" in words:
                words = [json.loads(run("token", "list", "--json").out)["items"][0]["id"]]
            if "N" in words:  # as many as a dry run says
                [said] = re.findall(r"^\d+", run(*path.split(), *words[:-3], "--dry-run").out)
                words[-1] = said
            ended = run(*path.split(), *words, "--by", "kim", "--reason", "INC-7")
            assert ended.code == (124 if path == "ask" else 0), (path, given, ended.err)  # no worker replies
            rows = trail()
            assert len(rows) == before + 1, (path, given)
            assert (rows[0]["actor"], rows[0]["detail"]["reason"]) == ("kim", "INC-7"), (path, given)
    heads = json.loads(run("list", "--json", "--limit", "200").out)["items"]
    left = [[head[name] for name in ("id", "workflow", "status", "attributes", "waiting_for")] for head in heads]
    acts = [[row[name] for name in ("actor", "action", "target", "detail")] for row in trail()]
    schedules = [[row["id"], row["paused"]] for row in json.loads(run("schedules", "list", "--json").out)["items"]]
    return [sorted(left, key=lambda one: MADE.sub("...", str(one[0]))), acts, schedules]


def test_every_act_leaves_the_same_on_both_databases_and_one_row_with_its_actor(
    tmp_path: Path, empty_database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FACES 10, line 7: every verb of the command line, by the person who is named."""
    found: list[list[Any]] = []
    for database in (f"sqlite:///{tmp_path / 'shop.db'}", empty_database):
        asyncio.run(fill(database))
        monkeypatch.setenv("HOLDFAST_URL", database)

        def run(*words: str) -> Answer:
            return Answer(capsys, *words)

        listed = json.loads(run("letters", "list", "--json").out)["items"]
        of = {letter["run"]: letter["id"] for letter in listed}
        left = acted(run, [of[f"failed-{number}"] for number in (1, 2, 3)])
        found.append(json.loads(MADE.sub("...", json.dumps(left))))
    assert found[0] == found[1]
    assert json.loads(json.dumps(found[0])) != [[], [], []]
