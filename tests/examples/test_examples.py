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
    "order_saga.py": "no carrier takes a piano; undone: refund, release",
    "build_graph.py": "published server-main@4",
}
DOING = re.compile(r"  \S")  # how a line begins with which a step says what it does
LOGGED = {"order_saga.py": "run order-piano failed"}


def test_every_example_is_tested():
    assert {path.name for path in FOLDER.glob("*.py")} == {"demo.py", *RESULTS}


@pytest.mark.parametrize("name", RESULTS)
def test_an_example_runs_and_runs_again(name, tmp_path):
    first = _run(name, tmp_path)
    assert RESULTS[name] in first
    again = _run(name, tmp_path)
    assert RESULTS[name] in again
    assert [line for line in again if DOING.match(line) and "history" not in line] == []


@pytest.mark.parametrize("name", RESULTS)
def test_an_example_goes_on_after_kill_nine(name, tmp_path):
    """G1 G3 Killed twice when it has begun to do something: the next process goes on from what is recorded."""
    seen: list[str] = []
    for _ in range(2):  # a third kill inside one step would reach its crash_limit
        process = subprocess.Popen(
            [sys.executable, "-u", FOLDER / name],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        seen.append(next((line for line in process.stdout if DOING.match(line)), ""))
        process.kill()
        process.communicate()
    assert any(seen)
    assert RESULTS[name] in _run(name, tmp_path)


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
