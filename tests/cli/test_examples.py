"""Every example of `--help` and of the page on the command line is run, on a shop in the state that it is for."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from tests.cli.test_shell import every_command
from tests.support.command_cases import Answer, working
from tests.support.example_shop import STATES, furnish
from tests.support.paths import ROOT

PAGE = ROOT / "docs/production/command-line.md"
FOR = {
    "why": "waiting", "cancel": "waiting", "pause": "waiting", "nudge": "waiting", "terminate": "waiting",
    "send": "waiting", "resume": "paused", "recover": "blocked", "check": "waiting",
}  # fmt: skip
"""What `order-88405` is when a command is run; it has failed for all others."""
ENDS = {
    "result": 1, "watch": 1, "doctor": 1, "schedules resume": 6, "limits restore": 6, "purge": 6, "letters purge": 6,
    "token revoke": 6,
}  # fmt: skip
"""Commands that do not end with 0: the run has failed, there is something to look at, nothing was paused, or is old."""
RUN_ELSEWHERE = (
    "holdfast demo", "holdfast new shop", "holdfast top", "holdfast top status:failed", "holdfast ui",
    "holdfast ui --no-open --bind 127.0.0.1:0",
    "holdfast move shop.db temporal://localhost:7233/default --app shop.main:engine --dry-run",
)  # fmt: skip
"""Those of the first five minutes are run by tests/cli/test_begin.py and the tests of examples, `ui` by tests/web and
`top` by tests/tui; `move` needs a cluster, and is run by tests/temporal."""


def examples_of_help() -> list[str]:
    """Return what `--help` of every command gives as an example."""
    helps = [command.help or "" for _, command in every_command()]
    return [example for text in helps for example in re.findall(r"Example: (holdfast .*)", text)]


def examples_of_the_page() -> list[str]:
    """Return the commands of the page, without what is said of them."""
    inside = [part for number, part in enumerate(PAGE.read_text().split("```")) if number % 2]
    lines = [line.removeprefix("$ ") for part in inside for line in part.splitlines()]
    return [line.partition("  #")[0].strip() for line in lines if line.startswith("holdfast ")]


def test_every_command_has_an_example():
    assert [path for path, command in every_command() if "Example: holdfast " not in (command.help or "")] == []


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {state: tmp_path_factory.mktemp("shops") / f"{state}.db" for state in STATES}
    for state, file in made.items():
        asyncio.run(furnish(f"sqlite:///{file}", state))
    return made


@pytest.mark.parametrize("place", ["help", "page"])
def test_examples_do_what_they_say(shops, place, tmp_path, capsys, monkeypatch):
    """FACES 10, line 8."""
    monkeypatch.setenv("HOLDFAST_ACTOR", "kim")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the processes of `check`
    examples = dict.fromkeys(examples_of_help() if place == "help" else examples_of_the_page())
    assert len(examples) >= 40
    for number, example in enumerate(example for example in examples if example not in RUN_ELSEWHERE):
        words = shlex.split(example)[1:]
        folder = tmp_path / str(number)
        (folder / "shop").mkdir(parents=True)
        (folder / "shop" / "main.py").write_text("from tests.support.example_shop import WORKFLOWS as engine\n")
        shutil.copyfile(shops[FOR.get(words[0], "failed")], folder / "holdfast.db")
        monkeypatch.chdir(folder)
        for name in ("shop.main", "shop"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        _run(example, words, capsys)


@pytest.mark.slow
def test_examples_do_on_a_server_what_they_say(kept_schema, tmp_path, capsys, monkeypatch):
    """FACES 10, line 8: but for those that name a file."""
    monkeypatch.setenv("HOLDFAST_ACTOR", "kim")
    monkeypatch.setenv("HOLDFAST_URL", kept_schema.address)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "main.py").write_text("from tests.support.example_shop import WORKFLOWS as engine\n")
    monkeypatch.chdir(tmp_path)
    every = dict.fromkeys([*examples_of_help(), *examples_of_the_page()])
    examples = [each for each in every if each not in RUN_ELSEWHERE and ".db" not in each]
    assert len(examples) >= 90
    for example in examples:
        for name in ("shop.main", "shop"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        words = shlex.split(example)[1:]
        asyncio.run(furnish(kept_schema.address, FOR.get(words[0], "failed")))
        try:
            _run(example, words, capsys, kept_schema.address)
        finally:
            kept_schema.empty()


def _run(
    example: str, words: list[str], capsys: pytest.CaptureFixture[str], database: str = "sqlite:///holdfast.db"
) -> None:
    restores = words[0] == "restore" or words[:2] == ["db", "restore"]
    if restores or words[0] == "import":
        before = ["db", "backup", "monday.db"] if restores else ["export", "holdfast.db", "monday.json"]
        assert Answer(capsys, *before).code == 0
    if {"LETTER", "019a8b1c-0000-7000-8000-000000000000"} & {*words}:
        letter = json.loads(Answer(capsys, "letters", "list", "--json").out)["items"][0]["id"]
        words = [letter if word in ("LETTER", "019a8b1c-0000-7000-8000-000000000000") else word for word in words]
    if "--where" in words and "--dry-run" not in words:
        words = [*words[: words.index("--where") + 2], "--yes", "--expect", "1"]  # as a person who has looked
    if words[0] == "tail":
        words = [*words, "--for", "0s"]  # as a person who stops it
    if words[0] == "ask":
        with working(database):
            ended = Answer(capsys, *words)
    else:
        ended = Answer(capsys, *words)
    wanted = ENDS.get(words[0], ENDS.get(" ".join(words[:2]), 0))
    assert ended.code == wanted, f"{example} ended with {ended.code}: {ended.out}{ended.err}"
