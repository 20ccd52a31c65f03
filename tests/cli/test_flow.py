"""Schedules, queues, limits, events and the audit trail from the command line."""

from __future__ import annotations

import json

import apsw
from tests.support.command_cases import furnished
from tests.support.json_schema import faults

from holdfast.cli.shell.schemas import records, schema_of


def test_schedules_are_listed_paused_resumed_and_triggered(shop, run):
    assert run("schedules", "list").out.splitlines()[1].split()[:3] == ["ok", "nightly", "sleeper"]
    assert "0 2 * * * Europe/Berlin" in run("schedules", "show", "nightly").out
    ticks = run("schedules", "next", "nightly", "-n", "3")
    assert len(ticks.out.splitlines()) == 4
    assert "02:00:00 CE" in ticks.out
    assert (
        run("schedules", "next", "--cron", "30 2 * * *", "--zone", "Europe/Berlin", "-n", "400").out.count("exist") == 1
    )
    paused = run("schedules", "pause", "nightly", "--reason", "month end")
    assert (paused.code, paused.out) == (0, "schedule nightly is paused\n")
    assert run("schedules", "pause", "nightly").code == 6
    assert run("schedules", "list").out.splitlines()[1].startswith("paused")
    assert run("schedules", "resume", "nightly").code == 0
    triggered = run("schedules", "trigger", "nightly", "--app", "tests.support.command_cases:sleeper")
    assert triggered.out.startswith("nightly:")
    assert run("show", triggered.out.strip()).code == 0
    acts = json.loads(run("audit", "list", "--actor", "kim", "--json").out)["items"]
    assert {"schedule.trigger", "schedule.resume", "schedule.pause"} <= {act["action"] for act in acts}


def test_a_timetable_is_changed_without_the_input(shop, run):
    app = ("--app", "tests.support.command_cases:sleeper")
    before = json.loads(run("schedules", "show", "nightly", "--json").out)
    put = run("schedules", "put", "nightly", "sleeper", "--keep-input", "--cron", "0 3 * * *", *app)
    assert put.code == 0, put.err
    after = json.loads(run("schedules", "show", "nightly", "--json").out)
    assert (after["when"], after["input"]) == ("0 3 * * * UTC", before["input"])
    both = run("schedules", "put", "nightly", "sleeper", "{}", "--keep-input", "--cron", "0 3 * * *", *app)
    assert (both.code, "one of the two" in both.err) == (2, True)


def test_a_backfill_says_first_which_ticks_it_would_start(shop, run):
    words = ("schedules", "backfill", "nightly", "--from", "2026-01-01T00:00Z", "--until", "2026-01-03T00:00Z")
    planned = run(*words, "--dry-run")
    assert (planned.code, planned.out.count("would begin")) == (0, 2)
    assert "2 of 2 would be started; nothing was" in planned.err
    document = json.loads(run(*words, "--dry-run", "--json").out)
    assert [*faults(document, schema_of(document["schema"], records()[document["schema"]]))] == []
    done = run(*words, "--app", "tests.support.command_cases:sleeper")
    assert done.out.split() == [tick["run"] for tick in document["items"]]
    assert "would begin" not in run(*words, "--dry-run").out


def test_a_schedule_that_is_not_there_names_the_nearest(shop, run):
    missing = run("schedules", "show", "nihtly")
    assert (missing.code, "did you mean nightly?" in missing.err) == (3, True)
    assert run("schedules", "trigger", "nightly").code == 2, "it needs the code"
    for command in ("pause", "resume"):
        assert run("schedules", command, "nihtly").code == 3
    assert run("schedules", "next").code == 2
    unknown = run("schedules", "next", "--cron", "0 2 * * *", "--zone", "Europe/Nowhere")
    assert (unknown.code, "Europe/Nowhere" in unknown.err) == (2, True)


def test_a_group_of_commands_alone_says_what_there_is(shop, run):
    for group in ("limits", "audit", "letters", "schedules", "db", "token"):
        alone = run(group)
        assert (alone.code, alone.out) == (2, "")
        lines = alone.err.splitlines()
        assert lines[0] == f"Usage: holdfast {group} [OPTIONS] COMMAND [ARGS]..."
        assert "Commands:" in lines


def test_queues_limits_and_events_are_listed(shop, run):
    assert run("queues").out.splitlines()[1].split()[:6] == ["unserved", "gpu", "train", "1", "0", "0"]
    assert run("pause", "--queue", "gpu").code == 0
    assert run("queues").out.splitlines()[1].startswith("paused")
    assert run("limits", "list").out.splitlines()[1].split()[:4] == ["ok", "openai", "0", "0"]
    assert run("pause", "--limit", "openai").code == 0
    assert run("limits", "show", "openai").out.startswith("openai  paused  1 at once; 0 used, 0 wait")
    missing = run("limits", "show", "opnai")
    assert (missing.code, "there are openai" in missing.err) == (2, True)
    assert run("pause", "--workflow", "training").code == 0
    assert run("limits", "why", "trains").out.splitlines()[1].split()[:3] == ["waiting.paused", "workflow", "training"]
    assert "nothing holds it back" in run("limits", "why", "sleeps").err
    assert run("limits", "why", "nobody").code == 3
    names = {line.split()[0]: line.split()[1:3] for line in run("events").out.splitlines()[1:]}
    assert names["parcel"] == ["1", "0"]
    assert names["approval"] == ["0", "1"]
    assert '{"item":"lamp"}' in run("events", "parcel").out
    assert "waits" in run("events", "approval").out


def test_the_audit_trail_is_listed_from_its_end_and_checked(shop, run):
    page = run("audit", "list", "--limit", "1")
    assert page.out.splitlines()[1].split()[3:6] == ["lena", "resume", "waits"]
    assert "older: holdfast audit list --before" in page.err
    older = run("audit", "list", "--actor", "kim", "--action", "pause", "--json")
    assert [act["detail"]["reason"] for act in json.loads(older.out)["items"]] == ["bank down"]
    assert run("set", "sleeps", "size=1").code == 0
    for option, moment, found in (("--since", "-1h", 1), ("--until", "-1h", 0), ("--since", "2020-01-01", 1)):
        said = run("audit", "list", option, moment, "--target", "sleeps", "--json")
        assert len(json.loads(said.out)["items"]) == found, (option, moment)
    assert run("audit", "list", "--since", "-1x").code == 2
    assert "rows hold" in run("audit", "verify").out
    assert run("audit", "verify", "--run", "done").code == 0
    connection = apsw.Connection("holdfast.db")
    connection.execute("UPDATE audit SET actor = 'nobody' WHERE n = 2")
    connection.close()
    broken = run("audit", "verify")
    assert (broken.code, "broken at row 2" in broken.out) == (1, True)


def test_the_same_is_seen_on_postgresql(run, empty_database, monkeypatch):
    monkeypatch.setenv("HOLDFAST_URL", empty_database)
    furnished(empty_database)
    for command, begins in (
        (("schedules", "list"), "ok"), (("queues",), "unserved"), (("limits", "list"), "ok"),
        (("steps", "done"), "keep"),
    ):  # fmt: skip
        assert run(*command).out.splitlines()[1].startswith(begins)
    assert run("audit", "verify").code == 0
    assert run("result", "done").out == '"paid lamp"\n'
    assert run("set", "sleeps", "customer=c-7").code == 0
    assert run("schedules", "pause", "nightly").code == 0
