"""What runs, people and errors say is shown as text: no command lets any of it steer a terminal."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from tests.support.command_cases import APP, Answer, furnished, looks
from tests.support.hostile_texts import HOSTILE
from tests.support.paths import ROOT
from tests.support.transfer_cases import House

from holdfast import Context, Retry, activity, step_context, workflow
from holdfast.cli import output
from holdfast.errors import BadInput
from holdfast.testing import JumpingClock

STEERING = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


@activity(name="<img onerror>", retry=Retry(max_attempts=1))
async def says(text: str) -> str:
    if step_context().bank_open:
        raise ValueError(text)
    return text


@workflow(name="<svg onload>")
async def talkative(ctx: Context, text: str) -> str:
    await ctx.step(says, text)
    await ctx.receive("<b>approved")
    return text


WORKFLOWS = [talkative]
CODE = "tests.cli.test_hostile_texts:WORKFLOWS"


async def _fill(address: str) -> None:
    house = House(address, JumpingClock())
    async with house.engine([talkative]) as engine:
        quiet = [await engine.start(talkative, text, id=f"quiet-{n}") for n, text in enumerate(HOSTILE)]
        await engine.settle()
        for run, text in zip(quiet, HOSTILE, strict=True):
            try:
                await run.set_attributes({"said": text, "<b>": "</script>"}, by="<script>", reason=text[:4_000])
            except BadInput:
                pass  # NUL cannot be stored, and an attribute has a length
            try:
                await run.pause(by="<img src=x>", reason=text[:4_000])
            except BadInput:
                await run.pause(by="<img src=x>", reason=text.replace("\0", "")[:4_000] or "none")
            await run.send("<script>", text)
        await engine.settle()
        house.bank_open = True  # from here on the step fails
        for n, text in enumerate(HOSTILE):
            await engine.start(talkative, text, id=f"loud-{n}", actor="<script>", tenant="</b>")
            await engine.publish("<event>", text)
        await engine.settle()


@pytest.fixture(scope="module")
def loud_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("loud") / "holdfast.db"
    furnished(f"sqlite:///{file}")
    asyncio.run(_fill(f"sqlite:///{file}"))
    return file


def test_no_text_steers_a_terminal(loud_file, tmp_path, capsys, monkeypatch):
    """FACES 10, line 14: forty texts in inputs, results, errors, names, attributes, messages, actors and reasons."""
    assert len(HOSTILE) == 40
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shutil.copyfile(loud_file, "holdfast.db")
    steers_nothing(capsys)


@pytest.mark.slow
def test_no_text_of_a_database_on_a_server_steers_a_terminal(empty_database, tmp_path, capsys, monkeypatch):
    """FACES 10, line 14."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HOLDFAST_URL", empty_database)
    furnished(empty_database)
    asyncio.run(_fill(empty_database))
    steers_nothing(capsys)


def steers_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Give every command that looks, and see what it writes."""
    chosen = [("loud-18", "quiet-18"), ("loud-27", "quiet-27"), ("loud-31", "quiet-31"), ("loud-39", "quiet-39")]
    every = [command for pair in chosen for command in looks(*pair) if command[0] != "check"]
    commands = dict.fromkeys(tuple(CODE if word == APP else word for word in command) for command in every)
    for number in range(len(HOSTILE)):
        commands |= dict.fromkeys([("why", f"loud-{number}"), ("show", f"quiet-{number}")])
    for command in [
        *commands,
        ("list", "--limit", "200"),
        ("list", "is:open", "--limit", "200"),
        ("events", "<event>"),
    ]:
        answer = Answer(capsys, *command)
        assert answer.code in (0, 1, 3, 5, 6), (command, answer.err[:500])
        assert "defect" not in answer.err, (command, answer.err[:500])
        for said in (answer.out, answer.err):
            found = STEERING.search(said)
            assert found is None, (command, said[max(found.start() - 40, 0) : found.end() + 40])
        if "--json" in command:
            json.loads(answer.out)
        elif command[0] != "record":
            assert max(map(len, answer.out.splitlines()), default=0) < 10_000, command


def test_colours_are_all_that_a_terminal_is_told(loud_file, tmp_path, capsys, monkeypatch):
    """Where colours are asked for, nothing but colours gets through."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert output.coloured()
    shutil.copyfile(loud_file, "holdfast.db")
    for command in (("list", "--limit", "200"), ("show", "loud-18"), ("why", "quiet-18"), ("doctor",), ("stats",)):
        out = Answer(capsys, *command).out
        assert STEERING.search(re.sub(r"\x1b\[\d*(;\d+)*m", "", out)) is None, command
