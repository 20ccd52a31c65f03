"""The command line: what it says, with which code it ends, and what it never shows."""

from __future__ import annotations

import asyncio
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import tomllib
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.paths import ROOT
from tests.support.transfer_cases import House, contents, order, sleeper

from holdfast.cli.main import commands, main
from holdfast.stores import open_store
from holdfast.testing import JumpingClock
from holdfast.texts import masked, passwords, printable


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    """A database with a run that ended and one that sleeps, in the current folder."""
    monkeypatch.chdir(tmp_path)
    house = House("sqlite:///shop.db", JumpingClock())
    house.bank_open = True

    async def fill() -> None:
        async with house.engine() as engine:
            await engine.execute(order, "lamp", id="order-7")
            await engine.start(sleeper, 3, id="order-8")
            await engine.settle()

    asyncio.run(fill())
    return house


def test_the_command_is_installed_under_its_name():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, function = scripts["holdfast"].split(":")
    assert getattr(import_module(module), function) is main


def test_it_says_what_it_is_and_what_it_can(run):
    assert re.fullmatch(r"holdfast \d+\.\d+\.\d+\n", run("--version").out)
    help = run("--help")
    assert help.code == 0
    for name in every_command():
        assert name in help.out
        assert run(name, "--help").code == 0


def every_command() -> dict[str, click.Command]:
    """Return every command by its name, those of groups as `db upgrade`."""
    context = click.Context(commands)
    found: dict[str, click.Command] = {}
    for name in commands.list_commands(context):
        command = commands.get_command(context, name)
        assert command is not None
        found[name] = command
    return found


def test_every_command_and_option_is_documented():
    written = "\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    for name, command in every_command().items():
        assert f"holdfast {name}" in written
        for part in command.commands if isinstance(command, click.Group) else ():
            assert f"holdfast {name} {part}" in written
        for parameter in command.params:
            for option in parameter.opts:
                assert not option.startswith("--") or option in written, f"{name} {option}"


def test_a_house_is_moved_by_two_commands(shop, run):
    """G1, S0-48"""
    out = run("export", "shop.db", "all.holdfast.gz")
    assert (out.code, out.err) == (0, "")
    assert re.fullmatch(r"exported 2 runs \(1 open\) and \d+ rows to all\.holdfast\.gz\n", out.out)
    come = run("import", "all.holdfast.gz", "sqlite:///new.db")
    assert (come.code, come.err) == (0, "")
    assert re.fullmatch(r"imported 2 runs \(1 open\) and \d+ rows from all\.holdfast\.gz\n", come.out)
    again = run("import", "all.holdfast.gz", "new.db")
    assert (again.code, again.out[:37]) == (0, "nothing to do: all.holdfast.gz was im")
    new = House("sqlite:///new.db", shop.clock)

    async def result() -> str:
        async with new.engine() as engine:
            return await engine.get("order-8").result()

    assert asyncio.run(result()) == "kept sleep-3"


def test_an_export_to_stdout_is_the_file_and_nothing_else(shop, run):
    """What it says of it goes to stderr; an export that fails leaves nothing there."""
    out = run("export", "shop.db", "-")
    assert (out.code, out.out.count("\n") > 2) == (0, True)
    assert re.fullmatch(r"exported 2 runs \(1 open\) and \d+ rows to stdout\n", out.err)
    Path("piped.holdfast").write_text(out.out)
    assert run("import", "piped.holdfast", "new.db").code == 0
    assert not Path("-").exists()
    refused = run("export", "shop.db", "-", "--run", "no-such-run")
    assert (refused.code, refused.out) == (3, "")


def test_a_house_is_moved_to_postgresql_and_back(shop, run, database):
    """G3, S0-48"""
    address = database.replace("postgresql://postgres@", "postgresql://postgres:s3cret@")  # which trusts everybody
    assert address != database
    assert run("export", "shop.db", "there.holdfast").code == 0
    there = run("import", "there.holdfast", address)
    assert (there.code, there.err) == (0, "")
    back = run("export", address, "back.holdfast")
    assert (back.code, back.err) == (0, "")
    assert run("import", "back.holdfast", "back.db").code == 0
    assert contents("sqlite:///back.db")["entries"] == contents("sqlite:///shop.db")["entries"]
    again = run("export", address, "back.holdfast")
    assert (again.code, "s3cret" in again.err + again.out + there.out) == (2, False)


def test_one_run_is_copied_for_looking(shop, run):
    out = run("export", "shop.db", "order-8.holdfast", "--run", "order-8")
    assert out.code == 0
    assert "this is a copy for looking" in out.out
    come = run("import", "order-8.holdfast", "scratch.db")
    assert "its open runs are paused" in come.out
    assert [dict(row)["status"] for row in contents("sqlite:///scratch.db")["runs"]] == ["paused"]


def test_a_database_is_backed_up_and_restored_by_two_commands(shop, run):
    """G1"""
    made = run("backup", "shop.db", "monday.db")
    assert (made.code, made.err) == (0, "")
    assert re.fullmatch(r"backed up 2 runs \(1 open\) to monday\.db, [\d,]+ bytes\n", made.out)
    assert run("backup", "shop.db", "monday.db").code == 2
    assert run("backup", "shop.db", "monday.db", "--replace").code == 0
    again = run("restore", "monday.db", "new.db")
    assert (again.code, again.err, again.out) == (0, "", "restored 2 runs (1 open) from monday.db\n")
    refused = run("restore", "monday.db", "shop.db")
    assert (refused.code, refused.out) == (2, "")
    assert "--replace" in refused.err
    replaced = run("restore", "monday.db", "shop.db", "--replace")
    assert replaced.code == 0
    assert re.search(r"the database that was there is \S+/shop\.db\.replaced-1\n", replaced.out)
    assert contents("sqlite:///shop.db")["entries"] == contents("sqlite:///shop.db.replaced-1")["entries"]


def test_a_postgresql_database_is_backed_up_and_restored(shop, run, database):
    """G1"""
    assert run("export", "shop.db", "all.holdfast").code == 0
    assert run("import", "all.holdfast", database).code == 0
    assert run("backup", database, "monday.holdfast.gz").out.startswith("backed up 2 runs (1 open)")
    assert run("restore", "monday.holdfast.gz", database).code == 2
    assert run("restore", "monday.holdfast.gz", f"{database}_new").out.startswith("restored 2 runs (1 open)")
    assert run("restore", "monday.holdfast.gz", "back.db").code == 0
    assert contents("sqlite:///back.db")["entries"] == contents("sqlite:///shop.db")["entries"]


def test_runs_that_were_there_are_counted(shop, run):
    run("export", "shop.db", "one.holdfast", "--status", "completed", "--workflow", "order")
    run("export", "shop.db", "all.holdfast", "--snapshot")
    run("import", "one.holdfast", "new.db")
    come = run("import", "all.holdfast", "new.db", "--skip-existing")
    assert "imported 1 run (1 open)" in come.out
    assert "left alone, because they are there already: 1" in come.out


REFUSALS = [
    ([], 2, "Usage"),
    (["nonsense"], 2, "No such command 'nonsense'"),
    (["export"], 2, "Missing argument 'DATABASE'"),
    (["export", "shop.db", "x", "--colour"], 2, "No such option"),
    (["export", "nothing.db", "x"], 4, "there is no such database"),
    (["export", "mysql://host/db", "x"], 2, "cannot tell what"),
    (["export", ":memory:", "x"], 2, "in memory"),
    (["export", "shop.db", "x", "--status", "asleep"], 2, "'asleep' is not one of"),
    (["export", "shop.db", "x", "--run", "order-9"], 3, "there is no run 'order-9'"),
    (["export", "shop.db", "x", "--run", "bad id"], 2, "run id 'bad id' must be"),
    (["export", "shop.db", "shop.db"], 2, "there is a file already"),
    (["export", "shop.db", "nowhere/x"], 2, "cannot be written"),
    (["export", "plain.txt", "x"], 4, "not an SQLite database"),
    (["backup", "shop.db", "plain.txt"], 2, "there is a file already"),
    (["backup", "shop.db", "plain.txt", "--replace"], 2, "is not a backup"),
    (["backup", "shop.db", "shop.db", "--replace"], 2, "belongs to the database itself"),
    (["backup", "nothing.db", "x"], 4, "there is no such database"),
    (["restore", "missing", "new.db"], 2, "does not exist"),
    (["restore", "plain.txt", "new.db"], 2, "not an export of holdfast"),
    (["restore", "shop.db", ":memory:"], 2, "not to memory"),
    (["import", "missing", "new.db"], 2, "does not exist"),
    (["import", "plain.txt", "new.db"], 2, "not an export of holdfast"),
    (["import", "empty", "new.db"], 2, "not an export of holdfast"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), REFUSALS, ids=lambda value: str(value)[:40])
def test_what_is_refused_takes_one_line_and_leaves_nothing(shop, run, arguments, code, words):
    Path("plain.txt").write_text("hello\n" * 100)
    Path("empty").write_text("")
    before = {path.name for path in Path().iterdir()}
    answer = run(*arguments)
    assert answer.code == code
    assert words in answer.err + answer.out
    assert "Traceback" not in answer.err
    if arguments:
        assert answer.out == ""
        assert re.fullmatch(r"holdfast: [^\n]+\n", answer.err)
    assert {path.name for path in Path().iterdir() if "-wal" not in path.name and "-shm" not in path.name} <= before


def test_a_worker_at_work_is_named(shop, run):
    store = open_store("shop.db")

    async def join() -> None:
        await store.open()
        await store.join("w", timedelta(minutes=1))

    asyncio.run(join())
    answer = run("export", "shop.db", "all.holdfast")
    asyncio.run(store.close())
    assert answer.code == 2
    assert re.search(rf"worker w \(pid {os.getpid()} on \S+\) is at work: stop it first", answer.err)


def test_what_goes_wrong_beyond_that_ends_with_1(shop, run):
    run("export", "shop.db", "all.holdfast")
    run("import", "all.holdfast", "broken.db")
    broken = Path("broken.db")
    data = broken.read_bytes()
    broken.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    answer = run("export", "broken.db", "x")
    assert answer.code == 1
    assert re.fullmatch(r"holdfast: [^\n]*broken\.db[^\n]*\n", answer.err)
    assert "defect" not in answer.err


def test_passwords_are_never_shown(run):
    secret = "s3cr%40t"
    for address in (
        f"postgresql://kim:{secret}@nowhere.invalid:1/shop",
        f"postgresql://nowhere.invalid/shop?user=kim&password={secret}",
        f"mysql://kim:{secret}@host/db",
    ):
        answer = run("export", address, "x.holdfast")
        assert answer.code in (1, 2, 4)
        assert not [word for word in (secret, "s3cr@t") if word in answer.err + answer.out]


@given(st.text(), st.text(alphabet="\x1b\r\n\t\x00\u202e\u2066\x9b"))
def test_what_is_printed_obeys_nobody(text, controls):
    shown = printable(text + controls)
    assert shown.isprintable()
    if text.isprintable() and not controls:
        assert shown == text


def test_secrets_are_found_as_written_and_as_meant():
    found = list(passwords(["postgresql://kim:a%40b@host/db", "sqlite:///x.db", "x?password=b%20c&y=1"]))
    assert set(found) == {"a%40b", "a@b", "b%20c", "b c"}
    assert masked("connecting as a@b failed", found) == "connecting as *** failed"


def test_generated_arguments_never_give_a_traceback(shop, run):
    dice = random.Random(3)
    words = [
        "export", "import", "shop.db", "x", "--run", "--status", "failed", "--snapshot", "--", "-h", "\x1b[31m",
        "order-7", "--skip-existing", "postgresql://a:b@c", "--workflow", "", "é\u202e", "--version", ".",
    ]  # fmt: skip
    for _ in range(500):
        Path("x").unlink(missing_ok=True)
        arguments = dice.choices(words, k=dice.randrange(7))
        answer = run(*arguments)
        assert answer.code in (0, 1, 2, 4), arguments
        assert "Traceback" not in answer.err
        assert "defect" not in answer.err
        assert answer.err.removesuffix("\n").replace("\n", "").isprintable()


PROGRAM = "import sys; from holdfast.cli.main import main; sys.exit(main())"


def test_progress_is_shown_on_a_terminal_only(shop):
    slow = "import holdfast.cli.transfer as m; m.PROGRESS_EVERY = -1; " + PROGRAM
    piped = subprocess.run(
        [sys.executable, "-c", slow, "export", "shop.db", "a.holdfast"], capture_output=True, text=True, check=True
    )
    assert piped.stderr == ""
    mine, terminal = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", slow, "export", "shop.db", "b.holdfast"],
            stdout=subprocess.PIPE, stderr=terminal, check=True,
        )  # fmt: skip
        assert select.select([mine], [], [], 10)[0]
        assert re.match(rb"exported [\d,]+ runs, [\d,]+ rows \.\.\.\r?\n", os.read(mine, 1000))
    finally:
        os.close(mine)
        os.close(terminal)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_import_changes_nothing(shop, number):
    """G1"""
    subprocess.run([sys.executable, "-c", PROGRAM, "export", "shop.db", "all.holdfast"], check=True)
    stopping = (
        "import os, signal, time, holdfast.cli.transfer as m\n"
        "def slowly(self, runs, rows, before=m._Progress.__call__):\n"
        f"    os.kill(os.getpid(), {int(number)}); time.sleep(0.2); before(self, runs, rows)\n"
        "m._Progress.__call__ = slowly\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", stopping + PROGRAM, "import", "all.holdfast", "new.db"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "holdfast: interrupted; nothing was changed\n")
    assert contents("sqlite:///new.db")["runs"] == []
