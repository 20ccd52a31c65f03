"""Commands for children, what happens, evidence, the audit trail as a file, letters, schedules, graphs and purges."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from tests.support.transfer_cases import approval

from holdfast.cli.endings import ending_of
from holdfast.cli.runs.family import _tail
from holdfast.errors import MissingExtra
from holdfast.looking import LocalDesk
from holdfast.looking.about.graph import GraphNode, GraphView, mermaid
from holdfast.testing import TestEngine

DATABASE = "sqlite:///holdfast.db"
APP = "tests.support.command_cases:WORKFLOWS"


def acts(run, *which: str) -> list[tuple[str, str, str]]:
    items = json.loads(run("audit", "list", *which, "--json", "--limit", "1000").out)["items"]
    return [(each["actor"], each["action"], each["target"]) for each in reversed(items)]


def test_what_a_run_started_and_put_on_record_is_listed_or_said_to_be_nothing(shop, run):
    none = run("children", "waits")
    assert (none.code, none.out, none.err) == (0, "", "it has started no run\n")
    nothing = run("evidence", "waits")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "it has put nothing on record\n")
    empty = run("inbox", "waits")
    assert (empty.code, empty.out, empty.err) == (0, "", "nothing waits there\n")
    run("send", "waits", "note", '{"ok": true}')
    assert run("inbox", "waits").out.splitlines()[1].split()[3:] == ["message", "note", '{"ok":true}']
    assert ["approval", "1", "0", "1"] in [line.split() for line in run("versions").out.splitlines()]
    assert [run(each, "nobody").code for each in ("children", "inbox")] == [3, 3]
    assert (run("children", "waits", "--depth", "11").code, run("evidence", "waits", "--limit", "0").code) == (2, 2)


def test_the_newest_runs_are_shown_the_oldest_first(shop, run):
    shown = run("tail", "--for", "0s", "--limit", "2")
    assert [line.split()[1:3] for line in shown.out.splitlines()] == [["suspended", "trains"], ["suspended", "account"]]
    lines = run("tail", "status:failed", "--for", "0s", "--json").out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["failed"]


async def test_a_line_is_shown_when_a_run_is_started_or_another_word_is_true_of_it(capsys, monkeypatch):
    class EndOfTest(Exception):
        pass

    async with TestEngine(workflows=[approval]) as engine:
        for number in range(3):
            await engine.start(approval, 1, id=f"old-{number}")
        await engine.settle()
        pages: list[list[str]] = []

        async def meanwhile(_: float) -> None:
            pages.append([line.split()[2] for line in capsys.readouterr().out.splitlines()])
            match len(pages):
                case 1:
                    await engine.start(approval, 1, id="new")
                case 2:
                    await engine.get("old-0").pause(by="kim")  # one that was there and not shown
                case 3:
                    pass  # nothing changes
                case _:
                    raise EndOfTest
            await engine.settle()

        monkeypatch.setattr("holdfast.cli.runs.family.sleep", meanwhile)
        with pytest.raises(EndOfTest):
            await _tail(LocalDesk(engine.store), "", 1, None, False)
    assert pages == [["old-2"], ["new"], ["old-0"], []]


def test_the_audit_trail_is_written_as_lines_that_others_can_check(shop, run, tmp_path):
    lines = [json.loads(line) for line in run("audit", "export").out.splitlines()]
    assert [each["n"] for each in lines] == list(range(1, len(lines) + 1))
    assert all(each["previous"] == before["hash"] for before, each in pairwise(lines))
    written = run("audit", "export", "-o", str(tmp_path / "audit.ndjson"))
    assert (written.out, f"exported {len(lines)} rows" in written.err) == ("", True)
    assert len((tmp_path / "audit.ndjson").read_text().splitlines()) == len(lines)
    assert run("audit", "export", "--run", "waits").out == ""


def test_a_letter_is_shown_with_its_error_and_removed_on_record(shop, run):
    [letter] = [each["id"] for each in json.loads(run("letters", "list", "--json").out)["items"]]
    shown = run("letters", "show", letter)
    assert shown.out.splitlines()[0] == letter
    for said in ("run         failed", "step        bank", "no person has seen it", "the bank is closed for chair"):
        assert said in shown.out
    assert run("letters", "show", "nothing").code == 3
    removed = run("letters", "remove", letter, "--reason", "a test")
    assert (removed.code, removed.out) == (0, f"{letter}: removed\n")
    again = run("letters", "remove", letter)
    assert (again.code, "there is no such letter" in again.err) == (6, True)
    assert acts(run, "--action", "deadletter.remove") == [("kim", "deadletter.remove", letter)]


def test_a_purge_says_how_much_and_asks_for_that_number(shop, run):
    old = ("purge", "completed", "failed", "--older-than", "0s")
    young = run("purge", "completed", "failed", "--older-than", "1d")
    assert (young.code, young.out) == (6, "nothing is that old.\n")
    looked = run(*old, "--dry-run")
    assert (looked.code, looked.out) == (0, "1 completed run, 1 failed run would be deleted.\n")
    for refused in (old, (*old, "--yes"), (*old, "--yes", "--expect", "3")):
        answer = run(*refused)
        assert (answer.code, "--yes --expect 2" in answer.err) == (2, True)
    done = run(*old, "--yes", "--expect", "2", "--reason", "month end")
    assert (done.code, done.out.splitlines()[-1]) == (0, "deleted 1 completed run, 1 failed run")
    assert run("show", "failed").code == 3
    assert run("show", "waits").code == 0
    assert acts(run, "--action", "purge") == [("kim", "purge", "completed"), ("kim", "purge", "failed")]
    letters = run("letters", "purge", "--older-than", "0s", "--all", "--yes", "--expect", "1", "--json")
    assert json.loads(letters.out)["counts"] == {"letters": 1}
    for wrong in (("purge", "completed"), ("purge", "--older-than", "1d"), ("purge", "open", "--older-than", "1d")):
        assert run(*wrong).code == 2
    assert run("purge", "completed", "--older-than", "soon").code == 2


def test_schedules_are_put_filled_and_deleted_on_record(shop, run):
    put = ("schedules", "put", "hourly", "sleeper", "-i", "days=1", "--every", "1h", "--app", APP)
    assert run(*put, "--reason", "new").out == "schedule hourly is put\n"
    again = run(*put)
    assert (again.code, "it was so before" in again.err) == (6, True)
    assert "every 1 h" in run("schedules", "show", "hourly").out
    fill = ("schedules", "backfill", "nightly", "--from", "2026-01-01", "--until", "2026-01-03T12:00", "--app", APP)
    filled = run(*fill)
    assert (filled.code, len(filled.out.splitlines())) == (0, 3)
    assert run("show", filled.out.splitlines()[0]).code == 0
    assert (run(*fill).code, run(*fill, "--limit", "1").code) == (6, 2)
    assert run("schedules", "delete", "nightly", "--reason", "old").out == "schedule nightly is deleted\n"
    assert run("schedules", "delete", "nightly").code == 3
    assert [each[:2] for each in acts(run) if each[1] in ("schedule.put", "schedule.delete")][-2:] == [
        ("kim", "schedule.put"), ("kim", "schedule.delete"),
    ]  # fmt: skip
    for wrong, said in (
        (("put", "x", "sleeper", "-i", "days=1", "--app", APP), "cron, every: give one of the two"),
        (("put", "x", "sleper", "--cron", "0 2 * * *", "--app", APP), "sleper"),
        (("put", "x", "sleeper", "-i", "days=1", "--cron", "0 2 * *", "--app", APP), "cron"),
        (("put", "x", "sleeper", "--every", "1h"), "say which code"),
        (("backfill", "hourly", "--from", "noon", "--until", "2026-01-01", "--app", APP), "noon is no time"),
    ):
        refused = run("schedules", *wrong)
        assert (refused.code, said in refused.err) == (2, True), refused.err


def test_a_graph_shows_which_steps_follow_which(shop, run):
    shown = run("graph", "order")
    assert shown.out.splitlines() == ["order, as its newest 2 runs went:", "  keep  -> bank", "  bank"]
    assert run("graph", "order", "--mermaid").out.splitlines() == [
        "flowchart TD", '    n0["keep"]', '    n1["bank"]', "    n0 --> n1",
    ]  # fmt: skip
    missing = run("graph", "ordre")
    assert (missing.code, "has no runs to draw it from" in missing.err) == (2, True)


def test_a_declared_graph_is_shown_as_it_is_declared(shop, run, tmp_path, monkeypatch):
    (tmp_path / "builds.py").write_text(
        "from holdfast.declarative import graph\n"
        "async def fetch(): ...\n"
        "async def build(): ...\n"
        "async def lint(): ...\n"
        "pipeline = graph('pipeline', {fetch: [], build: [fetch], lint: [fetch]})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    shown = run("graph", "pipeline", "--app", "builds:pipeline")
    assert shown.out.splitlines() == [
        "pipeline, as it is declared:", "  fetch  -> build, lint", "  build", "  lint",
    ]  # fmt: skip


def test_a_drawing_escapes_what_its_language_would_obey():
    made = GraphView(workflow="w", declared=True, runs=0, nodes=[GraphNode(name='a"]<b>')], edges=[])
    assert mermaid(made) == 'flowchart TD\n    n0["a&quot;]&lt;b&gt;"]\n'


def test_this_machine_is_measured_on_a_database_that_is_gone_afterwards(run, tmp_path, caplog):
    measured = run("bench", "--runs", "2", "--steps", "2", "--dir", str(tmp_path))
    assert (measured.code, "steps a second: 2 runs of 2 steps" in measured.out) == (0, True)
    assert list(tmp_path.iterdir()) == []
    assert caplog.text == "", "it speaks of what was measured alone"


def test_what_needs_packages_that_are_not_there_is_refused():
    assert ending_of(MissingExtra("the dashboard", "web")) == (
        2,
        'the dashboard needs more packages: pip install "holdfast[web]"',
    )
