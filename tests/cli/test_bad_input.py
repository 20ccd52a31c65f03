"""What is mistyped or cannot be is refused with stated words and codes, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.command_cases import APP, Answer, furnished

REFUSED: list[tuple[tuple[str, ...], int, str]] = [
    (("lst",), 2, "there is no command 'lst'; did you mean list?"),
    (("list", "--limt", "3"), 2, "Did you mean '--limit'?"),
    (("list", "stats:failed"), 2, "there is no filter 'stats'; did you mean status?"),
    (("list", "status:faild"), 2, "did you mean failed?"),
    (("list", "created:yesterday"), 2, "created:yesterday is no time; write -24h"),
    (("list", "--limit", "0"), 2, "limit must be between 1 and 200, not 0"),
    (("list", "--cursor", "abc"), 2, "not one that holdfast gave"),
    (("list", "--fields", "id"), 2, "--fields chooses fields of --json"),
    (("list", "--json", "--fields", "idd"), 2, "there is no field 'idd'; there are id, workflow"),
    (("history", "done", "--limit", "5000"), 2, "limit must be between 1 and 1,000"),
    (("why", "nobody"), 3, "there is no run 'nobody'"),
    (("why", "slee"), 3, "there is no run 'slee'; there is sleeps"),
    (("why", "a b"), 2, "U+0020 at position 1"),
    (("show", ""), 2, "must be 1 to 255 characters"),
    (("cancel",), 2, "name runs by their ids, or with --where FILTER"),
    (("cancel", "--where", ""), 2, "name runs by their ids, or with --where FILTER"),
    (("cancel", "sleeps", "--where", "is:open"), 2, "one of the two"),
    (
        ("cancel", "--where", "is:open"),
        2,
        "there is no terminal to ask at: look with --dry-run, then say --yes --expect",
    ),
    (("cancel", "--where", "is:open", "--yes", "--expect", "99"), 2, "look at them with --dry-run"),
    (("cancel", "sleeps", "nobody"), 3, "there is no run 'nobody'; nothing was changed"),
    (("rerun", "done", "--from", "kep"), 6, "did you mean 'keep'?"),
    (("terminate", "sleeps"), 2, "terminate needs --reason"),
    (("pause", "--queue", "a", "--limit", "b"), 2, "name runs, or one workflow, queue or limit"),
    (("pause", "sleeps", "--for", "2x"), 2, "write a number and s, min, h or d"),
    (("pause", "sleeps", "--for", "30min1h"), 2, "write a number and s, min, h or d, as in 30min or 1h30min"),
    (("pause", "sleeps", "--for", ""), 2, "write a number and s, min, h or d"),
    (
        ("send", "waits", "approval", "{"),
        2,
        "is no JSON: Expecting property name enclosed in double quotes at position 1",
    ),
    (("retry", "sleeps"), 6, "nothing changed"),
    (("schedules", "show", "nihtly"), 3, "did you mean nightly?"),
    (("schedules", "next", "--cron", "0 2 * * *", "--zone", "Europe/Berln"), 2, "Europe/Berln"),
    (("limits", "show", "opnai"), 2, "there are openai"),
    (("letters", "ack", "none"), 3, "there is no dead letter 'none'"),
    (("check", "--app", "no.such:thing"), 2, "cannot be imported: ModuleNotFoundError"),
    (("check", "--app", "tests.support.command_cases:adderr"), 2, "has no 'adderr'; it has"),
    (("check", "--app", "tests.support.scripts.killed_bulk_:x"), 2, "cannot be imported"),
    (("list", "--url", "missing.db"), 4, "missing.db"),
    (("list", "--url", "https://host/workflows"), 2, "https"),
    (("list", "is:opn"), 2, "did you mean open?"),
    (("list", "-id:a*"), 2, "only status and workflow can be excluded"),
    (("list", 'waiting:"a'), 2, "a quotation mark is not closed"),
    (("list", "status:failed", "--cursor", "CURSOR"), 2, "the cursor belongs to another filter"),
    (("purge", "completed"), 2, "--older-than"),
    (
        ("purge", "--older-than", "30d"),
        2,
        "Missing argument 'KIND...'. Choose from: completed, failed, cancelled, letters,",
    ),
    (("set", "sleeps"), 2, "name what to set: name=value"),
    (("set", "--where", "is:open", "size"), 2, "set size: write name=value"),
    (("purge", "everything", "--older-than", "30d"), 2, "everything"),
    (("letters", "purge"), 2, "--older-than"),
    (("retry", "--where", "is:attention", "--yes", "--expect", "1"), 2, "needs a filter"),
    (("schedules", "put", "x", "sleeper", "-i", "days=1", "--cron", "99 * * * *", "--app", APP), 2, "99"),
    (
        (
            "schedules",
            "put",
            "x",
            "sleeper",
            "-i",
            "days=1",
            "--cron",
            "0 2 * * *",
            "--zone",
            "Mars/Base",
            "--app",
            APP,
        ),
        2,
        "Mars/Base",
    ),
    (("result", "done", "--timeout", "soon"), 2, "write a number and s, min, h or d"),
    # What a command must never take for something else.
    (("list", "quiet:..-2d"), 2, "nothing happened since one time, as in quiet:-2d"),
    (("cancel", "--where", "is:open quiet:..-2d", "--dry-run"), 2, "nothing happened since one time"),
    (("list", "created:.."), 2, "created:.. names no time"),
    (("list", "created:2026-11-03..2026-11-01"), 2, "ends before it begins"),
    (("list", "id:*"), 2, "id:* is every run: write how its id begins"),
    (("terminate", "sleeps", "--reason", "   "), 2, "terminate needs --reason"),
    (("set", "sleeps", "a=1", "a=2"), 2, "a is given twice"),
    (("start", "sleeper", "-i", "days=1", "-i", "days=2"), 2, "days is given twice"),
    (("cancel", "-", "sleeps"), 2, "- takes ids from stdin: leave out the others"),
    (
        ("schedules", "backfill", "nightly", "--from", "2026-11-04", "--until", "2026-11-01", "--dry-run"),
        2,
        "--until 2026-11-01 00:00 is not after --from 2026-11-04 00:00",
    ),
    # What has no place, no state and no name for it.
    (("send", "done", "approval", "1"), 6, "run 'done' has ended (completed)"),
    (("ask", "done", "add", "1"), 6, "run 'done' has ended (completed)"),
    (("pause", "--limit", "opnai"), 2, "no engine on this database declares the limit 'opnai'"),
    (("limits", "override", "opnai", "--at-once", "2"), 2, "no engine on this database declares the limit 'opnai'"),
    (("limits", "restore", "opnai"), 2, "no engine on this database declares the limit 'opnai'"),
    (("limits", "override", "openai"), 2, "say what it allows"),
    (("limits", "override", "openai", "--at-once", "0"), 2, "at_once of limit 'openai' must be a whole number"),
    (("limits", "override", "openai", "--rate", "3", "--per", "0s"), 2, "must be longer than zero"),
    (("limits", "override", "openai", "--at-once", "3", "--cool-down", "soon"), 2, "--cool-down soon: write a number"),
    (("cancel", "done", "--url", "missing.db"), 4, "missing.db: there is no such database"),
    (("db", "backup", "new.db", "--url", "missing.db"), 4, "missing.db: there is no such database"),
    (("evidence", "nobody"), 3, "there is no run 'nobody', and no evidence of one"),
    (("audit", "verify", "--run", "nobody"), 3, "there is no run 'nobody', and no evidence of one"),
    (("audit", "export", "-o", "none/audit.ndjson"), 2, "none/audit.ndjson: cannot be written: No such file"),
    # What is too large, too deep, or no text.
    (("list", "\udcff"), 2, "\\udcff: is no text in UTF-8"),
    (("history", "done", "--after", "9" * 30), 2, "after must be between 0 and"),
    (("history", "done", "--after", "-1"), 2, "after must be between 0 and"),
    (("inbox", "waits", "--after", "9" * 30), 2, "after must be between 0 and"),
    (("evidence", "account", "--after", "9" * 30), 2, "after must be between 0 and"),
    (("events", "stock", "--after", "9" * 30), 2, "after must be between 0 and"),
    (("audit", "list", "--before", "9" * 30), 2, "before must be between 0 and"),
    (("tail", "--for", f"{'9' * 20}d"), 2, "is longer than 36,500 days"),
    (("pause", "sleeps", "--for", f"{'9' * 5_000}d"), 2, "is longer than 36,500 days"),
    (("token", "create", "--expires", f"{'9' * 20}h"), 2, "is longer than 36,500 days"),
    (("send", "waits", "approval", "[" * 100_000), 2, "the payload is nested too deep"),
    (("send", "waits", "approval", "9" * 6_000), 2, "the payload has a number that is too long"),
    (
        ("schedules", "backfill", "nightly", "--from", "0001-01-01", "--until", "9999-12-31", "--dry-run"),
        2,
        "0001-01-01 is no time that runs have: write a year from 1970 to 9000",
    ),
]


def test_mistakes_are_refused_with_words_and_codes_and_change_nothing(run, tmp_path, monkeypatch):
    """FACES 10, line 24."""
    monkeypatch.chdir(tmp_path)
    furnished("sqlite:///holdfast.db")
    refuses_all(run)


@pytest.mark.slow
def test_mistakes_are_refused_with_the_same_words_and_codes_on_a_server(empty_database, tmp_path, monkeypatch, capsys):
    """FACES 10, line 24."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_URL", empty_database)
    furnished(empty_database)
    refuses_all(lambda *arguments: Answer(capsys, *arguments))


def refuses_all(run: Callable[..., Answer]) -> None:
    """Make every mistake on the database that is here."""
    runs = run("list", "--json", "--fields", "id,status,updated_at").out
    cursor = json.loads(run("list", "--json", "--limit", "1").out)["next"]
    for words, code, said in REFUSED:
        refused = run(*(cursor if word == "CURSOR" else word for word in words))
        assert (refused.code, said in refused.err) == (code, True), f"{words}: {refused.code}: {refused.err}"
        assert refused.err.count("\n") == 1 or words[0] == "cancel", "one line"
        assert "Traceback" not in refused.err
    items = run("list", "--json", "--fields", "id,status,updated_at").out
    assert items.partition('"items"')[2] == runs.partition('"items"')[2]
    assert not Path("missing.db").exists()
