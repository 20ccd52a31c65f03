"""The promise itself: kill -9 at any commit, and the run continues without repeating what was recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.paths import SCRIPTS

SCRIPT = SCRIPTS / "crash_everywhere.py"
COMMITS = 30  # that this workflow makes at the very least
WIDEST = 3  # bodies that can be in flight at once in that workflow


def run(*args: object) -> list[dict]:
    command = [sys.executable, str(SCRIPT), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_killed_at_any_commit_continues_and_repeats_no_recorded_step(tmp_path: Path, step: int):
    """S1-14 S1-28 S2-28 S3-24 S4-1 S4-28 G1 G3 Fifty steps with sleeps, messages, join, race and trimmed loops."""
    reports = run(tmp_path, "each", 1, step)
    killed = {(report["kill_at"], report["moment"]) for report in reports if report["killed"]}
    # How many commits there are depends on what happens to go together; these there always are.
    every = {(commit, moment) for commit in range(1, COMMITS + 1, step) for moment in ("before", "after")}
    assert every - killed == set(), "the test must have killed at every commit, before and after"
    assert [report for report in reports if not report["finished"]] == []
    assert [report for report in reports if report["again"] or report["broken"] or report["missing"]] == []
    assert max(len(report["twice"]) for report in reports) <= WIDEST
    assert any(report["twice"] for report in reports), "a body that was in flight must have run again"


@pytest.mark.parametrize("commit", [6, 7, 9])
def test_a_run_killed_again_and_again_gets_to_its_end(tmp_path: Path, commit: int):
    """S0-1 S3-24 G3 Every life is killed at its n-th commit; each makes some progress, none is lost, none repeated."""
    (report,) = run(tmp_path, "chain", commit)
    assert report["lives"] >= 3
    assert report["finished"]
    assert report["again"] == []
    assert report["broken"] == []
