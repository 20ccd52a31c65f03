"""The gate before a deploy: its words, formats and codes, on a database and on an export, and the recipe for CI."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from tests.support.paths import ROOT

from holdfast.cli.main import main
from holdfast.cli.ship import check
from holdfast.histories import checking
from holdfast.histories.misfits import CheckReport
from holdfast.stores import open_store

PAGE = ROOT / "docs" / "production" / "deploys.md"
OLD = """
from datetime import timedelta

from holdfast import Context, Engine, workflow


async def charge(order: int) -> str:
    return f"charged {order}"


async def check_fraud(order: int) -> bool:
    raise RuntimeError("a check executes no body")


@workflow
async def fulfil(ctx: Context, order: int) -> str:
    receipt = await ctx.step(charge, order)
    await ctx.receive("packed")
    return receipt


engine = Engine("sqlite:///production.db", workflows=[fulfil])
workflows = [fulfil]


def make():
    return engine


number = 7
"""
NEW = OLD.replace("    receipt =", "    await ctx.step(check_fraud, order)\n    receipt =")
PATCHED = OLD.replace(
    "    receipt =", '    if ctx.patched("add-check_fraud"):\n        await ctx.step(check_fraud, order)\n    receipt ='
)
FILL = """
import asyncio
from shop.main import fulfil
from holdfast.testing import TestEngine

async def fill():
    async with TestEngine("sqlite:///production.db", workflows=[fulfil]) as engine:
        for number in range(3):
            await engine.start(fulfil, number, id=f"order-{number}")
        await engine.settle()

asyncio.run(fill())
"""


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example as it was deployed, and a database with three open runs of it."""
    folder = tmp_path_factory.mktemp("production")
    (folder / "shop").mkdir()
    (folder / "shop" / "main.py").write_text(OLD)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", FILL], cwd=folder, env=environment, check=True, timeout=300)
    return folder


@pytest.fixture
def run(production, monkeypatch, capsys):
    """Return what runs a command in that folder, with a version of the example."""
    monkeypatch.chdir(production)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # A version that is written within a second of another, and as long, would be taken for it.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    def run(version: str, *arguments: str) -> tuple[int, str, str]:
        (production / "shop" / "main.py").write_text(version)
        for name in ("shop", "shop.main"):
            sys.modules.pop(name, None)
        code = main(["check", "--url", "production.db", "--jobs", "1", *arguments])
        return (code, *capsys.readouterr())

    yield run
    for name in ("shop", "shop.main"):
        sys.modules.pop(name, None)


def test_runs_that_fit_and_runs_that_would_be_blocked_are_told_apart(run, production):
    before = hashlib.sha256((production / "production.db").read_bytes()).digest()
    code, out, err = run(OLD, "--app", "shop.main:engine")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"Replayed 3 open runs of 1 workflow against this code in \d+\.\d s: all fit\.\n", out)
    code, out, err = run(NEW, "--app", "shop.main:make")
    assert (code, err) == (5, "")
    assert "0 fit, 3 would be blocked" in out
    assert "fulfil  3 runs, such as order-2, order-1, order-0" in out
    assert "! charge (step)             check_fraud (step)  shop/main.py:17" in out
    assert "+   17      await ctx.step(check_fraud, order)" in out
    assert 'Put the new call under `if ctx.patched("add-check_fraud"):`' in out
    assert "With that, 3 of 3 fit (tried)." in out
    assert out.endswith("Not fit to deploy.\n")
    assert hashlib.sha256((production / "production.db").read_bytes()).digest() == before


def test_programs_get_json_and_test_reports(run):
    code, out, _ = run(NEW, "--app", "shop.main:workflows", "--format", "json", "--sample", "2")
    document = json.loads(out)
    assert (code, document.pop("schema")) == (5, "holdfast.check/1")
    assert set(document) == set(CheckReport.__struct_fields__)
    [group] = document["groups"]
    assert (document["runs"], group["count"], group["fit_patched"]) == (2, 2, 2)
    assert group["example"]["trial"] == {"tried": True, "fits": True, "said": ""}
    code, out, _ = run(NEW, "--app", "shop.main:fulfil", "--format", "junit", "--where", "id:order-1")
    suite = xml.fromstring(out).find("testsuite")
    assert suite is not None
    assert (code, suite.get("tests"), suite.get("failures")) == (5, "2", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "run order-1: at 'check_fraud' history has nothing there" in (failure.get("message") or "")


def test_an_export_is_checked_where_the_database_cannot_be_reached(run, tmp_path):
    file = str(tmp_path / "runs.holdfast.gz")
    assert main(["export", "--snapshot", "production.db", file]) == 0
    (Path.cwd() / "shop" / "main.py").write_text(NEW)
    assert main(["check", "--export", file, "--app", "shop.main:engine", "--jobs", "1"]) == 5
    assert main(["check", "--export", file, "--url", "production.db", "--app", "shop.main:engine"]) == 2


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("shop.main", "write module:attribute"),
        ("shop.mian:engine", "'shop.mian' cannot be imported: ModuleNotFoundError: No module named 'shop.mian'"),
        ("shop.main:engin", "module 'shop.main' has no 'engin'; it has fulfil, engine"),
        ("shop.main:number", "is int; it must be an engine, a list of workflows, or a function"),
    ],
)
def test_code_that_cannot_be_found_is_said_in_one_line(run, app, said):
    code, out, err = run(OLD, "--app", app)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_which_code_must_be_said_and_may_be_said_by_settings(run, production, monkeypatch):
    code, _, err = run(OLD)
    assert (code, "say which code: --app" in err) == (2, True)
    monkeypatch.setenv("HOLDFAST_APP", "shop.main:engine")
    assert run(OLD, "--where", "id:none*")[0] == 0


def test_code_that_asks_the_clock_does_not_fit(run):
    code, out, _ = run(OLD.replace("    receipt =", "    time.time()\n    receipt =").replace("from datetime", "import time\nfrom datetime"), "--app", "shop.main:workflows")  # fmt: skip  # noqa: E501
    assert (code, "NonDeterministic call time.time() at main.py" in out) == (5, True)


def test_runs_that_need_a_queue_which_is_not_served_are_warned_of(run):
    queued = OLD.replace("@workflow\n", '@workflow(queue="gpu")\n')
    code, out, _ = run(queued, "--app", "shop.main:engine")
    assert (code, "all fit" in out) == (0, True)
    warning = "warning: 3 open runs need queue 'gpu', which neither this engine nor a worker that is alive serves\n"
    assert warning in out
    assert warning not in run(queued, "--app", "shop.main:workflows")[1]  # which queues are served is not known


def test_a_check_is_on_record_if_that_is_asked_for(run, production, tmp_path, monkeypatch):
    """The database of the others is left as it is."""
    shutil.copy(production / "production.db", tmp_path / "copy.db")
    monkeypatch.setenv("HOLDFAST_ACTOR", "kim")
    (production / "shop" / "main.py").write_text(NEW)
    command = ["check", "--url", str(tmp_path / "copy.db"), "--app", "shop.main:engine", "--jobs", "1", "--record"]
    assert main(command) == 5

    async def trail() -> list[tuple[str, str, str, str]]:
        store = open_store(tmp_path / "copy.db")
        await store.open(look_only=True)
        try:
            return [(row.actor, row.action, row.target, row.detail) for row in await store.audit()]
        finally:
            await store.close()

    *who, detail = asyncio.run(trail())[-1]
    assert who == ["kim", "check", "shop.main:engine"]
    said = json.loads(detail)
    assert (said["runs"], said["fit"]) == (3, 0)
    [group] = said["groups"]
    assert (group["workflow"], group["count"]) == ("fulfil", 3)
    assert "history has" in group["said"]


def test_what_the_code_prints_is_not_taken_for_the_answer(run):
    code, out, err = run(OLD + '\nprint("hello")\n', "--app", "shop.main:engine", "--format", "json")
    assert (code, err) == (0, "hello\n")
    assert json.loads(out)["fit"] == 3


def test_a_person_at_a_terminal_is_told_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(check, "_PROGRESS_EVERY", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    check._Progress(200)(50)
    assert re.fullmatch(r"replayed 50 of 200 runs, [\d,]+ a second, [\d,]+ s left\n", capsys.readouterr().err)


KILLER = OLD.replace("    receipt =", "    if order == 1: import os; os._exit(3)\n    receipt =")


def test_runs_with_which_the_code_ends_its_process_are_findings_and_the_others_are_replayed(run):
    """A poison run of production is no reason not to know how the others fare."""
    code, out, _ = run(KILLER, "--app", "shop.main:engine")
    assert (code, "3 open runs of 1 workflow" in out, "2 fit, 1 would be blocked" in out) == (5, True, True)
    assert "fulfil  1 run, such as order-1\n" in out
    assert "  the code kills or hangs the process that replays them: it ended with 3\n" in out


def test_a_run_with_which_the_code_hangs_is_a_finding(run, monkeypatch):
    monkeypatch.setattr(checking, "_PATIENCE", 1.0)
    hangs = KILLER.replace("import os; os._exit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    code, out, _ = run(hangs, "--app", "shop.main:engine", "--where", "order-1")
    assert (code, "0 fit, 1 would be blocked" in out, "it did not answer for 1 s" in out) == (5, True, True), out


def test_code_that_kills_again_and_again_is_given_up(run, monkeypatch):
    monkeypatch.setattr(checking, "_MOST_KILLED", 2)
    code, _, err = run(KILLER.replace("order == 1", "order >= 0"), "--app", "shop.main:engine")
    said = "3 processes that replayed runs did not answer; the last had 1, run order-1 the first: it ended with 3"
    assert (code, said in err) == (1, True), err


def test_a_run_that_began_a_new_life_while_it_was_read_is_judged_by_what_it_is_now(run, production):
    from holdfast.histories.app import load_app
    from holdfast.histories.checking import check_runs
    from holdfast.histories.recorded import RecordedRun

    assert main(["record", "order-1", "--url", "production.db", "-o", "one.json", "--replace"]) == 0
    (production / "shop" / "main.py").write_text(NEW)
    recorded = RecordedRun.from_file("one.json")
    renewed = RecordedRun(recorded.id, "fulfil", recorded.input, 1, recorded.seed, recorded.created, [])

    async def source():
        yield [recorded]

    def fit_of(now: RecordedRun | None) -> int:
        async def again(run_id: str) -> RecordedRun | None:
            return now

        app = "shop.main:engine"
        report = asyncio.run(check_runs(app, load_app(app), source(), jobs=1, again=again))
        assert report.runs == 1
        return report.fit

    assert (fit_of(recorded), fit_of(renewed), fit_of(None)) == (0, 1, 1)


def test_the_recipe_for_ci_refuses_the_version_that_would_block_runs_and_takes_the_patched_one(production):
    """The command of the page's job, on three versions of an example."""
    recipe = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert recipe is not None
    [line] = re.findall(r"- run: (holdfast .*)$", recipe[1], re.MULTILINE)
    environment = {**os.environ, "PRODUCTION": "sqlite:///production.db", "PYTHONDONTWRITEBYTECODE": "1"}
    found = {}
    for name, version in (("old", OLD), ("new", NEW), ("patched", PATCHED)):
        (production / "shop" / "main.py").write_text(version)
        words = shlex.split(line.replace("$PRODUCTION", environment["PRODUCTION"]))
        command = [sys.executable, "-m", *words, "--jobs", "1"]
        done = subprocess.run(command, cwd=production, env=environment, capture_output=True, text=True, timeout=300)
        found[name] = (done.returncode, done.stdout, done.stderr)
    assert found["old"] == (0, "::notice title=holdfast check::3 open runs fit\n", "")
    assert found["patched"] == found["old"]
    code, out, _ = found["new"]
    assert code == 5
    assert out.startswith(
        "::error file=shop/main.py,line=17,title=3 open runs of fulfil would be blocked::fulfil  3 runs"
    )
    assert out.count("\n") == 1


def test_runs_of_postgresql_are_checked_alike(production, empty_database, capsys, monkeypatch):
    monkeypatch.chdir(production)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (production / "shop" / "main.py").write_text(OLD)
    subprocess.run(
        [sys.executable, "-c", FILL.replace("sqlite:///production.db", empty_database)],
        cwd=production, check=True, timeout=300,
    )  # fmt: skip
    (production / "shop" / "main.py").write_text(NEW)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("shop", "shop.main"):
        sys.modules.pop(name, None)
    assert main(["check", "--url", empty_database, "--app", "shop.main:engine", "--jobs", "1"]) == 5
    assert "With that, 3 of 3 fit (tried)." in capsys.readouterr().out
    assert main(["record", "order-1", "--url", empty_database]) == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("c\n"))
    assert main(["debug", "order-1", "--url", empty_database, "--app", "shop.main:engine"]) == 5
    assert "check_fraud" in capsys.readouterr().out
    assert main(["db", "status", "--url", empty_database]) == 0
    assert "suspended 3" in capsys.readouterr().out
