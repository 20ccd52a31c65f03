"""Looking from the command line: what it says, its JSON, its codes, and that it changes nothing."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
import re
import shlex
import socket
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from tests.support.json_schema import faults
from tests.support.paths import ROOT
from tests.support.transfer_cases import House, approval, order, sleeper
from tests.support.why_cases import steps

from holdfast.cli.shell.schemas import records, schema_of
from holdfast.contract.heads import CarriedStep, WorkerAbout, WorkerLoad
from holdfast.contract.operations import Started
from holdfast.contract.turns import StartRun
from holdfast.looking.views import Count, HistoryPage, Page, RunView, Why, WorkerView
from holdfast.stores import open_store
from holdfast.testing import JumpingClock, TestEngine
from holdfast.testing.conformance.samples import new_run, one

carried = steps["book_carrier"]

COMMANDS = [
    ("list",), ("list", "is:open"), ("list", "--count"), ("why", "order-8"), ("show", "order-7"), ("show", "order-9"),
    ("history", "order-7"), ("history", "order-7", "--newest", "--limit", "2"), ("workers",), ("list", "is:attention"),
]  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    """A database with a run that ended, one that sleeps, one that waits and one that failed, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_TZ", "UTC")
    house = House("sqlite:///holdfast.db", JumpingClock())
    house.bank_open = True

    async def fill() -> None:
        async with house.engine() as engine:
            await engine.execute(order, "lamp", id="order-7")
            await engine.start(sleeper, 3, id="order-8")
            await engine.start(approval, 2, id="order-10")
            house.bank_open = False
            await engine.start(order, "\x1b[31mlamp", id="order-9")
            await engine.settle()

    asyncio.run(fill())
    return house


def test_a_word_that_excludes_is_no_option(shop, run):
    """As `--help` writes it, before and after options."""
    assert run("list", "-status:failed", "--count").out == "3\n"
    assert run("list", "--count", "is:ended", "-status:failed").out == "1\n"
    assert run("list", "--count", "--", "-status:failed").out == "3\n"
    assert "No such option '-x'" in run("list", "-x").err


def test_runs_are_listed_with_why_they_wait(shop, run):
    found = run("list")
    assert found.code == 0
    lines = found.out.splitlines()
    assert lines[0].split() == ["STATUS", "RUN", "WORKFLOW", "STARTED", "TOOK", "NOW,", "AND", "WHY"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["failed", "order-9", "order"], ["suspended", "order-10", "approval"], ["suspended", "order-8", "sleeper"],
        ["completed", "order-7", "order"],
    ]  # fmt: skip
    assert "Step `bank` gave up after 1 attempt: ValueError: the bank is closed for \\x1b[31mlamp" in lines[1]
    assert "Waits for message `approval` since" in lines[2]
    assert "Sleeps until" in lines[3]
    assert "\x1b" not in found.out  # colours are for terminals, and what runs say never steers one
    assert "did you mean status:paused?" in run("list", "paused").err
    assert run("list", "nothing").err == "no run fits\n"
    assert run("ls", "status:completed").out.splitlines()[1].startswith("completed  order-7  order")


def test_pages_of_a_list_follow_each_other_and_a_cursor_belongs_to_its_filter(shop, run):
    first = run("list", "is:open", "--limit", "1")
    assert "1 shown, older: holdfast list is:open --cursor " in first.err
    cursor = first.err.split()[-1]
    second = run("list", "is:open", "--limit", "1", "--cursor", cursor)
    assert (first.out.split()[9], second.out.split()[9]) == ("order-10", "order-8")
    other = run("list", "status:failed", "--cursor", cursor)
    assert (other.code, "belongs to another filter" in other.err) == (2, True)


def test_one_run_is_shown_with_its_steps(shop, run):
    shown = run("show", "order-9")
    assert shown.code == 0
    assert "Step `bank` gave up after 1 attempt: ValueError" in shown.out
    assert "input       {" in shown.out
    assert re.search(r"transfer_cases\.py:\d+ in bank   raise ValueError\(f", shown.out)
    assert re.search(r"transfer_cases\.py:\d+ in order   return await ctx\.step\(bank, name\)", shown.out)
    assert "replay/verbs.py" not in shown.out, "lines of holdfast are left out"
    assert [line.split()[:2] for line in shown.out.splitlines()[-3:]] == [
        ["keep", "completed"], ["bank", "failed"], ["undo#0/undo", "completed"],
    ]  # fmt: skip
    history = run("history", "order-7", "--limit", "2")
    assert "more: holdfast history order-7 --after" in history.err
    rest = run("history", "order-7", "--after", history.err.split()[-1])
    assert "step completed" in rest.out
    assert "keep" in rest.out + history.out


def test_a_step_that_is_tried_again_is_shown_with_its_error_and_with_runs_that_wait_for_the_same(shop, run):
    async def fill() -> None:
        async with TestEngine("sqlite:///holdfast.db", workflows=[carried], clock=shop.clock) as engine:
            for number in range(3):
                await engine.start(carried, id=f"parcel-{number}")
            await engine.settle()

    asyncio.run(fill())
    why = run("why", "parcel-1").out
    assert " · 2 other runs wait to try this step again\n" in why
    assert "holdfast show parcel-1   # see the whole error" in why
    [pause] = [line for line in why.splitlines() if "holdfast pause" in line]
    assert "holdfast pause --where 'workflow:book_carrier waiting:\"step book_carrier\"' --reason ..." in pause
    paused = run("pause", "--where", shlex.split(pause)[3], "--dry-run")
    assert paused.out.startswith("3 runs match: 3 can be paused.")
    shown = run("show", "parcel-1").out
    assert "error       CardDeclinedError: 503 (step book_carrier, attempt 1)" in shown
    assert "why_cases.py:" in shown
    assert "in book_carrier   raise CardDeclinedError" in shown
    assert "holdfast show" not in shown, "that is what is shown"


def test_commands_to_copy_name_the_database_where_an_option_named_it(shop, run):
    there = ("--url", "sqlite:///holdfast.db")
    assert (
        "Try:  holdfast send order-10 approval '{}' --url sqlite:///holdfast.db   # send it"
        in run("why", "order-10", *there).out
    )
    assert "holdfast retry order-9 --url sqlite:///holdfast.db" in run("show", "order-9", *there).out
    cursor = run("list", "--limit", "1", *there).err
    assert "older: holdfast list --url sqlite:///holdfast.db --cursor " in cursor
    assert (
        "more: holdfast history order-7 --url sqlite:///holdfast.db --after "
        in run("history", "order-7", "--limit", "2", *there).err
    )
    assert "holdfast why order-9 --url sqlite:///holdfast.db" in run("stats", *there).out
    assert "--url" not in run("why", "order-10").out


def test_all_there_is_of_a_step_is_shown_with_its_arguments(shop, run):
    app = ("--app", "tests.support.transfer_cases:order")
    shown = run("steps", "order-9", "--step", "bank", *app)
    assert shown.code == 0, shown.err
    assert shown.out.splitlines()[0] == "order-9  bank  failed"
    facts = dict(re.findall(r"^(\w[\w ]+?)  +(\S.*)$", shown.out, re.MULTILINE))
    assert (facts["attempts"], facts["error"].partition(":")[0]) == ("1, 1 failed", "ValueError")
    assert facts["arguments"] == '{"name":"\\u001b[31mlamp"}   # by replaying the code at hand'
    assert re.search(r"transfer_cases\.py:\d+ in bank   raise ValueError\(f", shown.out)
    kept = run("steps", "order-7", "--step", "keep", *app).out
    assert '{"what":"lamp"}   # by replaying the code at hand' in kept
    assert 'result      "kept lamp"' in kept
    document = json.loads(run("steps", "order-7", "--step", "keep", "--json", *app).out)
    assert [*faults(document, schema_of("holdfast.step/1", records()["holdfast.step/1"]))] == []
    assert (document["step"]["result"], document["arguments"]["source"]) == ("kept lamp", "replayed")
    wrong = run("steps", "order-7", "--step", "kep")
    assert (wrong.code, "did you mean keep?" in wrong.err) == (2, True)
    assert run("steps", "nobody", "--step", "keep").code == 3


def test_the_arguments_of_a_step_are_not_known_without_its_code(shop, run):
    without = run("steps", "order-7", "--step", "keep").out
    assert "not known: they are not recorded, and the code of the workflow is not at hand here" in without


def test_what_one_worker_runs_is_shown(shop, run):
    async def join() -> None:
        store = open_store("sqlite:///holdfast.db")
        await store.open()
        about = WorkerAbout(holdfast="0.1.0", python="3.13.1", queues=["default"], workflows={"order": "2"})
        await store.join("worker-3", timedelta(hours=1), msgspec.json.encode(about).decode())
        body = CarriedStep(run="order-8", step="encode", attempt=2, since=shop.clock.now())
        load = WorkerLoad(steps=3, runs=7, bodies=[body])
        assert store.renew("worker-3", msgspec.json.encode(load).decode())
        await store.join("worker-4", timedelta(hours=1), msgspec.json.encode(about).decode())
        await store.close()

    asyncio.run(join())
    shown = run("workers", "worker-3")
    assert shown.out.splitlines()[1] == "  holdfast 0.1.0, Python 3.13.1; queue default; order v2"
    assert shown.out.splitlines()[3].split()[:3] == ["order-8", "encode", "2"]
    document = json.loads(run("workers", "worker-3", "--json").out)
    assert [*faults(document, schema_of("holdfast.worker/1", records()["holdfast.worker/1"]))] == []
    idle = run("workers", "worker-4")
    assert idle.err == "no step runs\n"
    process = f"{socket.gethostname()}:{os.getpid()}"
    assert run("workers", process).code == run("workers", str(os.getpid())).code == 0
    wrong = run("workers", "worker-5")
    assert (wrong.code, "there is no worker 'worker-5'; " in wrong.err) == (2, True)


def test_a_run_whose_input_no_code_can_read_is_shown_with_what_moves_it(shop, run):
    async def fill() -> None:
        async with shop.engine(run_workflows=False) as client:
            row = new_run("order-11", at=client.clock.now(), workflow="sleeper", version="", input='{"weeks":1}')
            await one(client.store, StartRun(run=row), Started)
        async with shop.engine() as engine:
            await engine.settle()

    asyncio.run(fill())
    shown = run("show", "order-11").out
    assert shown.startswith("order-11  sleeper  blocked\nBlocked: the input of workflow 'sleeper': ")
    assert "holdfast recover order-11   # try again once the code is put right\n" in shown
    assert "holdfast terminate order-11 --reason ...   # give it up: end it here and now\n" in shown
    assert shown.splitlines()[-1].startswith("error "), "lines of holdfast alone are no help"


def test_the_database_may_be_named_before_the_command(shop, run, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    there = ("--url", str(tmp_path / "holdfast.db"))
    assert run(*there, "list", "--count").out == run("list", "--count", *there).out == "4\n"
    assert run(f"--url={there[1]}", "list", "--count", "--", "-status:failed").out == "3\n"
    assert run(*there).out == run("stats", *there).out
    assert "holdfast why order-9 --url" in run(*there).out
    assert (run("--url").code, run("--url", "none.db", "list").code) == (2, 4)


def test_a_list_that_is_cut_says_how_to_go_on(shop, run):
    """The command to copy chooses what was shown, and the one that follows begins where it ended."""
    assert run("audit", "list", "--actor", "a b").err == "nothing is on record that fits\n"
    for reason in ("first", "second"):
        assert run("set", "order-8", "size=1", "--reason", reason).code == 0
    acts = run("audit", "list", "--target", "order-8", "--until", "2100-01-01", "--limit", "1")
    more = shlex.split(acts.err.partition("older: holdfast ")[2])
    assert more[:7] == ["audit", "list", "--target", "order-8", "--until", "2100-01-01T00:00:00+00:00", "--before"]
    assert ("second" in acts.out, "first" in run(*more).out) == (True, True)
    asyncio.run(_fail(shop, "order-11"))
    for words in (("letters", "list"), ("letters", "list", "--all", "--workflow", "order")):
        first = run(*words, "--limit", "1")
        assert ("order-11" in first.out, "order-9" in first.out) == (True, False)
        more = shlex.split(first.err.partition("1 shown, older: holdfast ")[2])
        assert more[:-2] == [*words]
        second = run(*more)
        assert ("order-11" in second.out, "order-9" in second.out) == (False, True)
    assert run("letters", "list", "--workflow", "sleeper").err == "there are none that no person has seen\n"
    some = run("list", "is:attention", "--limit", "1")
    assert some.err == "the newest 1 are shown; up to 200 of them: holdfast list is:attention --limit 200\n"
    assert run("list", "is:attention").err == ""


async def _fail(house: House, run_id: str) -> None:
    async with house.engine() as engine:
        await engine.start(order, "chair", id=run_id)
        await engine.settle()


def test_why_says_what_would_move_it(shop, run):
    why = run("why", "order-10")
    assert why.out.startswith("Waits for message `approval` since ")
    assert "Try:  holdfast send order-10 approval '{}'" in why.out


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_one_document_that_fits_its_record(shop, run, command):
    found = run(*command, "--json")
    assert (found.code, found.err) == (0, "")
    document = json.loads(found.out)
    schema = document.pop("schema")
    records = {
        "holdfast.runs/1": Page, "holdfast.count/1": Count, "holdfast.why/1": Why, "holdfast.run/1": RunView,
        "holdfast.history/1": HistoryPage,
    }  # fmt: skip
    if schema == "holdfast.workers/1":
        msgspec.convert(document["items"], list[WorkerView])
    else:
        record = msgspec.convert(document, records[schema])
        assert set(document) == set(type(record).__struct_fields__)


def test_fields_of_json_can_be_chosen(shop, run):
    found = json.loads(run("list", "--json", "--fields", "id,status").out)
    assert found["items"][0] == {"id": "order-9", "status": "failed"}
    refused = run("list", "--json", "--fields", "id,colour")
    assert (refused.code, "there is no field 'colour'" in refused.err) == (2, True)


@pytest.mark.parametrize("command", COMMANDS)
def test_looking_changes_no_byte_of_the_database(shop, run, command):
    before = hashlib.sha256(Path("holdfast.db").read_bytes()).digest()
    assert run(*command).code == 0
    assert hashlib.sha256(Path("holdfast.db").read_bytes()).digest() == before


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("why", "order-77"), 3, "there is no run 'order-77'"),
        (("show", "order 7"), 2, "U+0020 at position 5"),
        (("list", "stauts:failed"), 2, "did you mean status?"),
        (("list", "status:faild"), 2, "did you mean failed?"),
        (("list", "--limit", "0"), 2, "limit must be between 1 and 200"),
        (("list", "--cursor", "nonsense"), 2, "the cursor is not one that holdfast gave"),
        (("list", "--url", "sqlite:///missing.db"), 4, "missing.db: there is no such database"),
        (("list", "--url", ":memory:"), 2, "a database in memory cannot be seen"),
        (("lits",), 2, "there is no command 'lits'"),
    ],
)
def test_what_cannot_be_done_is_said_with_its_code(shop, run, command, code, said):
    found = run(*command)
    assert (found.code, found.out) == (code, "")
    assert said in found.err
    assert found.err.count("\n") == 1


def test_the_database_is_found_by_option_environment_and_file(shop, run, tmp_path, monkeypatch):
    here = run("list", "--json", "--fields", "id").out
    inside = tmp_path / "deep" / "folder"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    nothing = run("list")
    assert (nothing.code, "no database is named" in nothing.err) == (4, True)

    def ids(out: str) -> list[str]:
        return [each["id"] for each in json.loads(out)["items"]]

    settings = tmp_path / "pyproject.toml"
    settings.write_text(f"[tool.holdfast]\nurl = 'sqlite:///{tmp_path}/holdfast.db'\n")
    assert ids(run("list", "--json").out) == ids(here)
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///elsewhere.db")
    assert run("list").code == 4
    assert ids(run("list", "--json", "--url", str(tmp_path / "holdfast.db")).out) == ids(here)
    monkeypatch.delenv("HOLDFAST_URL")
    settings.write_text("[tool.holdfast\n")
    broken = run("list")
    assert (broken.code, "pyproject.toml: cannot be read as TOML" in broken.err) == (2, True)


def test_an_old_database_is_refused_until_it_is_upgraded(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = gzip.decompress((ROOT / "tests" / "golden" / "schema_10" / "sqlite.db.gz").read_bytes())
    Path("holdfast.db").write_bytes(before)
    refused = run("list")
    assert (refused.code, "holdfast db upgrade\n" in refused.err) == (4, True)
    named = run("list", "--url", "sqlite:///holdfast.db")
    assert named.err.endswith("upgrade it with: holdfast db upgrade --url sqlite:///holdfast.db\n")
    assert Path("holdfast.db").read_bytes() == before
    assert run("db", "upgrade").code == 0
    assert run("list").code == 0


def _loaded(*arguments: str) -> list[str]:
    """Return the modules that a command loads in a process of its own."""
    import subprocess
    import sys

    script = f"import sys; from holdfast.cli.main import main; main({[*arguments]!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


def test_help_is_given_without_loading_an_engine():
    """It answers in a tenth of a second because it loads hardly anything, and that is counted."""
    loaded = _loaded("--help")
    assert not [name for name in loaded if name.startswith(("holdfast.engine", "apsw", "asyncio", "msgspec"))]
    assert len([name for name in loaded if name.startswith("holdfast")]) <= 10


def test_why_loads_the_store_and_the_desk_and_no_code_of_workflows(shop):
    """It answers in less than three tenths of a second: half of that is what it loads."""
    loaded = _loaded("why", "order-10")
    not_needed = (
        "holdfast.engine",
        "holdfast.context",
        "holdfast.definitions",
        "holdfast.histories",
        "psycopg",
        "tomllib",
    )
    assert not [name for name in loaded if name.startswith(not_needed)]
    assert len([name for name in loaded if name.startswith("holdfast")]) <= 108


def test_the_zone_of_a_person_is_named_or_refused(shop, run, monkeypatch):
    monkeypatch.setenv("HOLDFAST_TZ", "Europe/Nowhere")
    refused = run("list")
    assert (refused.code, "there is no time zone 'Europe/Nowhere'" in refused.err) == (2, True)


def test_the_same_is_seen_and_done_on_postgresql(run, empty_database, monkeypatch):
    monkeypatch.setenv("HOLDFAST_URL", empty_database)
    house = House(empty_database, JumpingClock())

    async def fill() -> None:
        async with house.engine() as engine:
            await engine.start(order, "lamp", id="order-7")  # the bank is closed
            await engine.start(approval, 1, id="order-8")
            await engine.settle()

    asyncio.run(fill())
    listed = run("list")
    assert [line.split()[:2] for line in listed.out.splitlines()[1:]] == [
        ["suspended", "order-8"], ["failed", "order-7"],
    ]  # fmt: skip
    assert run("why", "order-8").out.startswith("Waits for message `approval`")
    assert "gave up after 1 attempt" in run("show", "order-7").out
    assert run("history", "order-7", "--newest", "--limit", "1").code == 0
    assert run("pause", "order-8", "--by", "kim", "--reason", "INC-7").code == 0
    assert run("why", "order-8").out.startswith("Paused by kim ")
    assert run("doctor").code == 1
