"""The examples run, survive kill -9, and show the recorded result when they are run again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.paths import ROOT

FOLDER = ROOT / "examples"
RESULTS = {
    "order.py": "payment of order-7, parcel of order-7",
    "agent_loop.py": "done: deleted app.log.7",
    "fair_chance_housing.py": "APPROVED: assessed: nobody was hurt, nine years",
    "clean_up.py": "the folder is clean",
    "reminder.py": "reminded kim 3 times",
    "photo_upload.py": "move 123: photos/7de06ae9",
    "order_saga.py": "no carrier takes this: organ; refund failed, release completed",
    "build_graph.py": "published server-main@4",
    "billing.py": "kim paid 428.64 for 36 months",
    "nightly.py": "11 statements, missing: account-7",
    "object_store.py": "completed: ONCE UPON A TIME",
    "woken_function.py": "completed: 615 words",
    "photos_on_a_phone.py": "3 photos are safe, the last at https://photos.example/small-sunset.jpg",
}
SAID = {
    "agent_loop.py": {"gave up: 100 tokens are used up"},
    "nightly.py": {"for an operator: 2026-01-01-account-7 failed in fetch"},
    "order_saga.py": {
        "parcel with a kettle",
        "no carrier takes this: piano; refund completed, release completed",
        "for an operator: refund of order-organ",
    },
}
KILLED_AT = {
    "agent_loop.py": "  deleting",
    "billing.py": "  2027-02-28 charging",
    "nightly.py": "  writing",
    "order_saga.py": "  giving back",
}
SERVICES = {"web_service.py", "chat_bots.py"}  # with tests of their own
DOING = re.compile(r"  \S")  # how a line begins with which a step says what it does
LOGGED = {"order_saga.py": "run order-piano failed", "nightly.py": "run 2026-01-01-account-7 failed"}


def test_every_example_is_tested():
    assert {path.name for path in FOLDER.glob("*.py")} == {"demo.py", *SERVICES, *RESULTS}


@pytest.mark.parametrize("name", RESULTS)
def test_an_example_runs_and_runs_again(name, tmp_path):
    first = _run(name, tmp_path)
    assert {RESULTS[name], *SAID.get(name, ())} <= set(first)
    again = _run(name, tmp_path)
    assert RESULTS[name] in again
    assert [line for line in again if DOING.match(line) and "history" not in line] == []


@pytest.mark.parametrize("name", RESULTS)
def test_an_example_goes_on_after_kill_nine(name, tmp_path):
    """G1 G3 Killed when it has begun, and in the middle: the next process goes on from what is recorded."""
    seen: list[str] = []
    for place in ("  ", KILLED_AT.get(name, "  ")):  # a third kill inside one step would reach its crash_limit
        process = subprocess.Popen(
            [sys.executable, "-u", FOLDER / name],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        seen.append(next((line for line in process.stdout if DOING.match(line) and line.startswith(place)), ""))
        process.kill()
        process.communicate()
    assert all(seen) if name in KILLED_AT else any(seen)
    assert RESULTS[name] in _run(name, tmp_path)


def test_a_subscription_is_billed_once_a_month_for_three_years(tmp_path):
    """S2-21 S1-28 The last day of short months; a card that expired is tried again days later, by the same key."""
    lines = [line.split() for line in _run("billing.py", tmp_path) if " charging " in line]
    days = [line[0] for line in lines]
    assert len(set(days)) == 36
    assert (days[:3], days[-1]) == (["2026-01-31", "2026-02-28", "2026-03-31"], "2028-12-31")
    assert days.count("2027-02-28") == len(days) - 35 == 3
    assert len({line[-1] for line in lines}) == 36
    assert [line[3].strip(",") for line in lines if line[0] in ("2027-01-31", "2027-02-28")] == ["9.99"] + 3 * ["12.99"]


def test_a_reminder_is_stopped_from_another_process(tmp_path):
    """It reminds once a minute here: another process takes its time to begin on a busy machine."""
    slow = tmp_path / "reminder.py"
    code = (FOLDER / "reminder.py").read_text()
    slow.write_text(code.replace("EVERY = timedelta(seconds=1)", "EVERY = timedelta(minutes=1)"))
    process = subprocess.Popen([sys.executable, "-u", slow], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    assert "stopped after" in "".join(_run("reminder.py", tmp_path, "--stop"))
    assert "stopped after" in process.communicate()[0]


def _run(name: str, folder: Path, *arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, FOLDER / name, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert LOGGED[name] in done.stderr if name in LOGGED and done.stderr else not done.stderr, done.stderr
    return done.stdout.splitlines()


def test_the_benchmark_runs_and_writes_its_results(tmp_path):
    """One process per workload; the ratio to the raw rate is measured beside it; targets are judged."""
    script = FOLDER.parent / "benchmarks" / "run.py"
    options = ["--rounds", "2", "--scale", "0.01", "--folder", tmp_path, "--output", tmp_path / "latest.json"]
    wanted = ["--systems", "raw", "holdfast", "--stores", "sqlite", "--only", "commits", "W1", "W4", "W5", "W8"]
    done = subprocess.run([sys.executable, script, *options, *wanted], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "latest.json").read_text())
    assert not written["failures"]
    assert {row["workload"] for row in written["results"]} == {"commits", "W1", "W4", "W5", "W8"}
    assert all(row["value"] > 0 and len(row["runs"]) == 2 for row in written["results"])
    compared = {(row["workload"], row["metric"]) for row in written["results"] if row["vs_raw"] is not None}
    assert compared == {("W1", "steps_per_second"), ("W5", "round_trips_per_second")}
    assert [each["target"].split()[0] for each in written["targets"]] == ["W1", "W1", "W4", "W5", "W5", "W8"]
    assert [path.name for path in tmp_path.iterdir()] == ["latest.json"]
