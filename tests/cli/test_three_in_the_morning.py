"""The page for three in the morning is true: in each broken house its commands say what it says, and mend it."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
from collections import namedtuple

import pytest
from tests.support.broken_houses import DATABASE, HOUSES, broken
from tests.support.paths import ROOT
from tests.support.waiting import eventually

from holdfast.cli.main import main

PAGE = (ROOT / "docs" / "production" / "at-three-in-the-morning.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
NOT_MENDED = {"A full disk"}
Usage = namedtuple("Usage", "total used free")


def commands(section: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a section, each with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", section, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def pattern(lines: list[str]) -> str:
    """Return what fits lines in which ... stands for anything, and a line of it for any lines."""
    made = [re.escape(line.rstrip()).replace(re.escape("..."), "[^\n]*") for line in lines]
    return "".join("(?:[^\n]*\n)*" if line == "[^\n]*" else f"{line} *\n" for line in made)


def test_the_page_has_a_section_for_each_house_and_no_more_commands_than_it_says():
    assert set(SECTIONS) == set(HOUSES)
    for name, section in SECTIONS.items():
        assert len(commands(section)) == (2 if name in NOT_MENDED else 3), name


@pytest.mark.parametrize("name", HOUSES)
async def test_a_broken_house_is_understood_with_two_commands_and_mended_with_a_third(
    name, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    await mended(name, DATABASE, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in HOUSES if name != "A full disk"])
async def test_a_broken_house_on_a_server_is_understood_and_mended_by_the_same_commands(
    name, empty_database, tmp_path, monkeypatch, capsys
):
    """The disk of a server is not that of the command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_URL", empty_database)
    await mended(name, empty_database, monkeypatch, capsys)


IN_SHORT = {
    "A queue that no worker serves": "queue gpu +fail +12 steps wait since .*, and no worker serves it",
    "A deploy that diverged": "order-2 +blocked +Blocked: .* a new step `check_fraud` .* \\(broken_houses.py:\\d+\\)",
    "A bank that is down": "step charge +warn +400 runs of fulfil wait to try it again, last after BankDown: 503",
    "A poison run": "picture-7 +blocked +Blocked: three workers in a row drove it alone",
    "A full disk": "disk +fail +12.0 MB are free; workers stop acknowledging",
}


@pytest.mark.parametrize("on", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", IN_SHORT)
async def test_what_is_broken_is_said_without_a_question(name, on, request, tmp_path, monkeypatch, capsys):
    """`holdfast` alone names it, in full at a terminal of 80 columns."""
    if (name, on) == ("A full disk", "postgres"):
        pytest.skip("the disk of a server is not that of the command")
    monkeypatch.chdir(tmp_path)
    database = DATABASE if on == "sqlite" else request.getfixturevalue("empty_database")
    monkeypatch.setenv("HOLDFAST_URL", database)
    if name == "A full disk":
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 30, 1 << 30, 12 << 20))
    async with broken(name, database):
        monkeypatch.setattr("holdfast.cli.output.width", lambda **_: 80)
        capsys.readouterr()
        await asyncio.to_thread(main, [])
        lines = capsys.readouterr().out.splitlines()[1:]
        assert max(map(len, lines)) <= 80
        said = " ".join(" ".join(lines).split())
        assert re.search(f"Needs attention {IN_SHORT[name]}", said), said


async def mended(name: str, database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Give the commands of a section in its broken house; they say what the page says, and mend it."""
    if name == "A full disk":
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 30, 1 << 30, 12 << 20))
    async with broken(name, database) as house:
        capsys.readouterr()
        for line, lines in commands(SECTIONS[name]):
            words = shlex.split(line)
            if words[0] == "holdfast":
                await asyncio.to_thread(main, words[1:])
            else:
                assert house.mend is not None
                await house.mend()
            said = "".join(capsys.readouterr())
            assert not lines or re.fullmatch(pattern(lines), said), f"{line}\n{said}"
        assert (house.repaired is None) == (name in NOT_MENDED)
        if house.repaired is not None:
            await eventually(house.repaired)
