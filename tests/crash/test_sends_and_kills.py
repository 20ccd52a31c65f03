"""Messages and events whose senders and receivers are killed: taken once, in order, and nobody waits in vain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.paths import ROOT, SCRIPTS

SCRIPT = SCRIPTS / "senders.py"


def run(*args: object) -> list[dict]:
    command = [sys.executable, str(SCRIPT), *map(str, args)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("sends", "kills"), [(1_000, 6), pytest.param(10_000, 30, marks=pytest.mark.slow)], ids=["small", "full"]
)
def test_messages_to_runs_that_are_just_parking_are_taken_once_and_in_order(tmp_path: Path, sends: int, kills: int):
    """S2-12 S2-30 S2-42 B13 G7 A sender and two workers on one file, killed at random while each is at work."""
    (report,) = run(tmp_path, "race", sends, kills, sends)
    assert report["kills"] == dict.fromkeys(("sender", "keeping", "evicting"), kills // 3), "every kill must have hit"
    assert report["failed"] == [], "everybody left must have come to the end: no run waits with a message queued"
    assert report["problems"] == []


def check(reports: list[dict], waiters: int, at_least: int) -> None:
    killed = [report for report in reports if report["killed"]]
    assert len(killed) >= at_least, "the publisher must have been killed at every boundary"
    assert [report for report in reports if not report["finished"]] == []
    assert [report for report in reports if report["wrong"] or report["broken"]] == []
    assert {report["runs"] for report in reports} == {report["to_end"] for report in reports} == {waiters}
    assert {report["again"] for report in reports} == {0, waiters}, "a fan-out must be seen whole or not at all"


def test_a_thousand_waiters_are_given_an_event_once_though_its_publisher_was_killed_at_its_commit(tmp_path: Path):
    """S2-41 B30 G8 Before or after: published again with its id by another process, it reaches each of them once."""
    reports = run(tmp_path, "fan-out", 1000, "commits")
    check(reports, 1000, 2)
    assert [report["again"] for report in reports if report["killed"]] == [1000, 0]


@pytest.mark.parametrize("waiters", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_publisher_killed_inside_the_transaction_has_told_nobody(tmp_path: Path, waiters: int):
    """S2-41 S0-51 G8 At each statement of the fan-out; the next process publishes it to all."""
    reports = run(tmp_path, "fan-out", waiters, "statements")
    check(reports, waiters, 8)
    assert {report["again"] for report in reports if report["killed"]} == {waiters}


@pytest.mark.parametrize("waiters", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_a_publisher_that_also_runs_the_waiters_is_killed_at_each_commit(tmp_path: Path, waiters: int):
    """S2-41 S2-28 B30 G8 While they read what they were given: whoever goes on reads it once."""
    check(run(tmp_path, "fan-out", waiters, "working"), waiters, 6)
