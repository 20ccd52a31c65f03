"""The command line itself: schemas of its JSON, settings and where they came from, completion, its first answer."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from tests.support.json_schema import faults
from tests.support.paths import ROOT

from holdfast.cli import output
from holdfast.cli.main import _failed, commands, main
from holdfast.cli.shell.schemas import records, schema_of
from holdfast.errors import BadInput
from holdfast.looking.views import Count, Head, Help, HouseFinding, Summary, Why

SNAPSHOT = Path(__file__).with_name("schemas.json")
APP = "tests.support.command_cases:WORKFLOWS"
AGE = ("--older-than", "1d", "--dry-run")
JSON: dict[str, tuple[str, ...]] = {
    "list": (), "show": ("failed",), "why": ("sleeps",), "history": ("done",), "steps": ("done",), "result": ("done",),
    "watch": ("failed",), "stats": (), "workers": (), "start": ("sleeper", '{"days": 3}'), "cancel": ("sleeps",),
    "pause": ("waits",), "resume": ("waits",), "retry": ("failed",), "rerun": ("done",), "recover": ("sleeps",),
    "terminate": ("sleeps", "--reason", "INC-9"), "nudge": ("sleeps",), "send": ("waits", "approval", "1"),
    "publish": ("parcel", "1"), "ask": ("account", "add", "1", "--timeout", "0s"), "set": ("sleeps", "size=3"),
    "query": ("account", "total", "--app", APP), "reveal": ("done", "input", "--reason", "r"),
    "letters list": (), "letters groups": (), "letters ack": ("LETTER",),
    "letters replay": ("LETTER",), "schedules list": (), "schedules show": ("nightly",), "schedules next": ("nightly",),
    "limits override": ("openai", "--at-once", "3"), "limits restore": ("openai",),
    "schedules pause": ("nightly",), "schedules resume": ("nightly",), "schedules trigger": ("nightly", "--app", APP),
    "queues": (), "limits list": (), "limits show": ("openai",), "limits why": ("trains",), "events": (),
    "audit list": (), "audit verify": (), "doctor": (), "children": ("waits",), "evidence": ("account",),
    "tail": ("--for", "0s", "--limit", "1"), "letters show": ("LETTER",), "letters purge": AGE, "graph": ("order",),
    "purge": ("completed", *AGE), "bench": ("--runs", "1"),
    "schedules put": ("hourly", "sleeper", "-i", "days=1", "--every", "1h", "--app", APP),
    "token create": (), "token list": (), "token revoke": ("none",),
    "inbox": ("waits",), "versions": (), "letters remove": ("LETTER",), "db status": (), "config": (),
    "schedules backfill": ("nightly", "--from", "2026-11-01", "--until", "2026-11-02", "--app", APP),
    "schedules delete": ("nightly",),
}  # fmt: skip
MORE = [
    ("list", "--count"), ("events", "parcel"), ("events", "approval"), ("list", "is:attention"), ("why", "failed"),
    ("cancel", "sleeps", "waits", "--dry-run"), ("pause", "account", "trains", "--yes", "--expect", "2"),
    ("pause", "--queue", "gpu"), ("result", "sleeps"), ("stats", "--by", "step", "--last", "90d"),
    ("stats", "--by", "workflow"), ("stats", "--by", "time", "--workflow", "order"),
]  # fmt: skip
MADE_ELSEWHERE = {
    "db restore": "tests/cli/test_db.py", "db backup": "tests/cli/test_db.py", "move": "tests/temporal/test_moving.py",
}  # fmt: skip
"""Commands that make files of their own, or need a server, whose documents are compared where they are tested."""


def every_command(group: click.Group = commands, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command by the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from every_command(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


# Schemas.


def test_every_command_that_writes_json_is_compared_with_its_schema():
    with_json = {path for path, command in every_command() if any("--json" in each.opts for each in command.params)}
    assert with_json - MADE_ELSEWHERE.keys() == JSON.keys()


def test_every_document_names_a_schema_that_is_published():
    named = set()
    for file in (ROOT / "src/holdfast/cli").rglob("*.py"):
        named |= set(re.findall(r'emit\(\s*"(holdfast\.[^"]+)"', file.read_text()))
    assert named == records().keys()


def test_json_is_as_its_schema_says(shop, run):
    """FACES 10, line 8."""
    letter = json.loads(run("letters", "list", "--json").out)["items"][0]["id"]
    for words in [(*path.split(), *given) for path, given in JSON.items()] + MORE:
        found = run(*(letter if word == "LETTER" else word for word in words), "--json")
        assert found.code in (0, 1, 6, 124) or (found.code, words[0]) == (2, "query"), (words, found.err)
        if not found.out:
            assert words[0] in ("ask", "query"), words  # what was not answered is no document
            continue
        document = json.loads(found.out)
        schema = schema_of(document["schema"], records()[document["schema"]])
        assert [*faults(document, schema)] == [], words


def test_a_schema_is_written_by_its_name_or_the_nearest_is_named(run):
    assert json.loads(run("schema", "why").out) == json.loads(run("schema", "holdfast.why/1").out)
    assert run("schema").out.split() == [*records()]
    refused = run("schema", "wy")
    assert (refused.code, "did you mean holdfast.why/1?" in refused.err) == (2, True)


def test_fields_that_were_once_written_are_written_for_ever():
    """A snapshot of all fields: one that is missing is a defect; those of a release are written into it."""
    fields: dict[str, list[str]] = {}
    for name, record in records().items():
        schema = schema_of(name, record)
        for part, body in {"": schema, **schema["$defs"]}.items():
            fields[f"{name} {part}".strip()] = sorted(body.get("properties", {}))
    known = json.loads(SNAPSHOT.read_text())
    gone = {name: set(was) - set(fields.get(name, ())) for name, was in known.items()}
    assert not {name: missing for name, missing in gone.items() if missing}


# Figures.


def test_stats_by_step_workflow_or_time_are_tables(shop, run):
    by_step = run("stats", "--by", "step").out.splitlines()
    assert by_step[0].split()[:2] == ["STEP", "WORKFLOW"]
    assert by_step[1].split()[:6] == ["bank", "order", "1", "1", "0", "0"]
    assert "ValueError" in by_step[1]
    assert [line.split()[:4] for line in run("stats", "--by", "workflow").out.splitlines()][1] == [
        "order",
        "1",
        "1",
        "0",
    ]
    assert len(run("stats", "--by", "time", "--last", "1h").out.splitlines()) > 1
    assert "nothing was counted" in run("stats", "--by", "step", "--workflow", "none").out
    assert (run("stats", "--workflow", "order").code, run("stats", "--by", "moon").code) == (2, 2)


# Settings.


def test_a_setting_says_where_it_came_from(shop, run, monkeypatch):
    def shown(*given: str) -> dict[str, tuple[str, str]]:
        items = json.loads(run("config", *given, "--json").out)["items"]
        return {item["name"]: (item["value"], item["source"]) for item in items}

    assert shown()["url"] == ("sqlite:///holdfast.db", "the file that is here")
    assert shown()["actor"] == ("kim", "HOLDFAST_ACTOR")
    Path("pyproject.toml").write_text('[tool.holdfast]\nurl = "sqlite:///other.db"\napp = "shop:engine"\n')
    assert shown()["url"] == ("sqlite:///other.db", str(Path("pyproject.toml").resolve()))
    assert shown()["app"][0] == "shop:engine"
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://kim:secret@db/shop")
    value, source = shown()["url"]
    assert (source, "secret" in value) == ("HOLDFAST_URL", False)
    assert shown("--url", "x.db")["url"] == ("x.db", "--url")
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown()["colours"] == ("never", "NO_COLOR")
    assert "HOLDFAST_URL" in run("config").out


# Completion.


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_completion_for_three_shells(run, shell):
    written = run("completion", shell)
    assert (written.code, "_HOLDFAST_COMPLETE" in written.out) == (0, True)


def test_no_other_shell_has_completion(run):
    refused = run("completion", "tcsh")
    assert (refused.code, "bash, zsh, fish" in refused.err) == (2, True)


COMPLETED = {
    "holdfast wh": ["why"], "holdfast why sl": ["sleeps"], "holdfast list status:fa": ["status:failed"],
    "holdfast list workflow:appr": ["workflow:approval"], "holdfast retry --where custo": ["customer="],
    "holdfast list is:at": ["is:attention"], "holdfast start sle": ["sleeper"], "holdfast why zzz": [],
    "holdfast list customer=": ["customer=c-2210"], "holdfast schedules tr": ["trigger"],
    "holdfast list --cur": ["--cursor"],
}  # fmt: skip


def test_a_shell_is_offered_names_of_the_database(shop, run, monkeypatch):
    monkeypatch.setenv("_HOLDFAST_COMPLETE", "bash_complete")
    monkeypatch.setattr("holdfast.cli.shell.names._IN_TIME", 60)
    for words, wanted in COMPLETED.items():
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        assert run().out.split() == [f"plain,{each}" for each in wanted], words


def test_a_shell_is_told_nothing_where_there_is_no_database(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_HOLDFAST_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "holdfast why or")
    monkeypatch.setenv("COMP_CWORD", "2")
    found = run()
    assert (found.out.strip(), found.err) == ("", "")


# The first answer.


def test_holdfast_alone_says_how_the_house_is(shop, run):
    found = run()
    assert found.code == 0
    lines = found.out.splitlines()
    assert lines[0].startswith("holdfast.db  SQLite, schema ")
    assert lines[1].startswith("no worker is alive")
    assert "failed 1" in lines[2]
    assert "completed 1" in lines[2]
    assert lines[3] == "Needs attention"
    assert "  failed" in found.out
    assert lines[-1].startswith("Next: holdfast why ")
    assert len(lines) <= 10


def test_holdfast_alone_without_a_database_says_what_there_is(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run()
    assert (found.code, "Usage: holdfast" in found.out) == (2, True)


# How wide a terminal is.


def test_an_error_is_broken_between_words_where_the_terminal_is_narrow(capsys, monkeypatch):
    """Each word stays whole, a very long one on a line of its own; a file gets one line."""
    message = (
        "the database /srv/shop/holdfast.db is of an older holdfast: bring it up to date with `holdfast db upgrade`"
    )
    assert _failed(message, [], 4) == 4
    assert capsys.readouterr().err == f"holdfast: {message}\n"
    monkeypatch.setattr("holdfast.cli.output.width", lambda **_: 40)
    _failed(message, [], 4)
    lines = capsys.readouterr().err.splitlines()
    assert " ".join(line.strip() for line in lines) == f"holdfast: {message}"
    assert all(len(line) <= 40 for line in lines)
    assert len(lines) > 2


def test_a_narrow_terminal_gets_the_last_column_below_the_others(capsys, monkeypatch):
    rows = [("suspended", "order-88405-of-a-long-name", "fulfil", "13:04:43", "38 min", "Waits for " + "a word " * 12)]
    titles = ("STATUS", "RUN", "WORKFLOW", "STARTED", "TOOK", "WHY")
    for columns, below, kept in ((200, False, 6), (80, True, 5), (60, True, 4), (50, True, 3)):
        monkeypatch.setattr("holdfast.cli.output.width", lambda columns=columns, **_: columns)
        output.table(titles, rows, spare=(4, 3, 2))
        lines = capsys.readouterr().out.splitlines()
        assert all(len(line) <= columns for line in lines)
        assert len(lines[0].split()) == kept
        assert (len(lines) > 2) is below
        assert " ".join(lines).count("word") == 12


def test_what_the_doctor_found_is_broken_between_words_whatever_its_subject(capsys, monkeypatch):
    found = [
        HouseFinding(level="ok", subject="database", said="a word " * 20),
        HouseFinding(level="fail", subject=f"queue {'of-a-long-name-' * 4}", said="word " * 20, remedy="do " * 40),
    ]
    monkeypatch.setattr("holdfast.cli.house.looking", lambda *_: found)
    for columns in (200, 80, 60):
        monkeypatch.setattr("holdfast.cli.output.width", lambda columns=columns, **_: columns)
        assert main(["doctor"]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert all(len(line) <= max(columns, 73) for line in lines), "a name is never broken"
        words = " ".join(lines).split()
        assert (words.count("word"), words.count("do")) == (40, 40)


def test_a_remedy_that_is_no_command_is_broken_between_words(capsys, monkeypatch):
    said = Why(run="r", code="blocked.mismatch", sentence="Blocked", help=[Help(say="put the old code back " * 8)])
    monkeypatch.setattr("holdfast.cli.look.looking", lambda *_: said)
    monkeypatch.setattr("holdfast.cli.output.width", lambda **_: 80)
    assert main(["why", "r"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert " ".join(lines).split().count("back") == 8


def test_what_is_broken_in_the_house_stands_before_the_runs_that_need_attention(capsys, monkeypatch):
    findings = [
        HouseFinding(level="warn", subject="worker vm:1", said="dead"),
        HouseFinding(level="fail", subject="disk", said="is full"),
    ]
    none, now = Count(n=0, exact=True), datetime.now(UTC)
    why = Why(run="order-1", code="running.dead", sentence="Its worker is dead")
    head = Head(id="order-1", workflow="w", version="1", status="running", why=why, created_at=now, updated_at=now)
    summary = Summary(
        kind="sqlite", schema_number=1, durability="power", size=1, runs={}, workers={}, overdue=none, letters=none,
        attention=[head], findings=findings,
    )  # fmt: skip
    monkeypatch.setattr("holdfast.cli.shell.summary.looking", lambda *_: summary)
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///holdfast.db")
    assert main([]) == 0
    said = capsys.readouterr().out
    assert re.findall("disk|order-1 |worker vm:1", said.partition("Needs attention")[2].partition("Next")[0]) == [
        "disk",
        "order-1 ",
        "worker vm:1",
    ]


def test_a_table_longer_than_the_terminal_goes_through_the_pager(capfd, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 4)))
    monkeypatch.setenv("HOLDFAST_PAGER", f"{sys.executable} -c \"import sys; print('paged', len([*sys.stdin]))\"")
    output.table(("A", "B"), [("a", "b")] * 2)
    assert "paged" not in capfd.readouterr().out, "it fits"
    output.table(("A", "B"), [("a", "b")] * 9)
    assert capfd.readouterr().out == "paged 10\n"
    monkeypatch.setenv("HOLDFAST_PAGER", str(tmp_path / "none"))
    with pytest.raises(BadInput, match=r"HOLDFAST_PAGER=.*none cannot be run"):
        output.table(("A", "B"), [("a", "b")] * 9)


def test_a_sentence_is_broken_between_words_at_a_terminal_only(capsys, monkeypatch):
    output.say_wrapped("  a sentence " * 10)
    assert capsys.readouterr().out.count("\n") == 1
    monkeypatch.setattr("holdfast.cli.output.width", lambda **_: 40)
    output.say_wrapped("  a sentence " * 10)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3
    assert all(len(line) <= 40 and line.startswith("  ") for line in lines)


# What must never reach a terminal as it is.

MARKS = [
    "\x1b",
    "\x9b",
    "\x07",
    "\x08",
    "\r",
    "\x00",
    "\x7f",
    "\u202e",
    "\u2066",
    "\u200b",
    "\u200f",
    "\u2028",
    "\ufeff",
]
PAYLOADS = [
    *MARKS, *(f"a{mark}b" for mark in MARKS), "\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x1b]8;;http://evil\x1b\\x",
    "\x1bP$q\x1b\\", "\x1b[6n", "\x9b31m", "<img src=x onerror=alert(1)>", "</script>", "javascript:alert(1)", "{{7}}",
    "${jndi:ldap://x}", "%s%n", "\u202egpj.exe", "e\u0301", "\U0001f600", "lamp\r\nfailed", "\x1b[31m" * 99,
    "<" * 20_000,
]  # fmt: skip


def test_no_mark_reaches_the_terminal_raw(capsys, monkeypatch):
    """FACES 10, line 14: in a line, a table, a wrapped sentence, an error and JSON, which says the same as before."""
    assert len(PAYLOADS) >= 40
    for columns in (80, 1 << 40):
        monkeypatch.setattr("holdfast.cli.output.width", lambda columns=columns, **_: columns)
        for each in PAYLOADS:
            output.say(each)
            output.say_wrapped(each)
            output.table(("RUN", "WHY"), [(each[:100], each)])
            _failed(each, [], 2)
            out, err = capsys.readouterr()
            assert all(letter.isprintable() or letter == "\n" for letter in out + err)
            output.emit("holdfast.answer/1", {"run": each, "name": each, "answer": {each: [each]}})
            text = capsys.readouterr().out
            assert all(letter.isprintable() or letter == "\n" for letter in text)
            assert json.loads(text)["answer"] == {each: [each]}
