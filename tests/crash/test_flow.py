"""Kill -9 at every commit of runs that wait for places, windows and pauses: they come to the same end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.paths import ROOT, SCRIPTS

COMMITS = 20
"""How many commits and claims the scenario makes at the very least."""


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_runs_in_lanes_that_are_killed_at_any_commit_come_to_the_same_end(tmp_path: Path, step: int):
    """G1 G3 Places, a debounce window, a rejection and a pause: no place is lost or given twice."""
    command = [sys.executable, str(SCRIPTS / "flow_everywhere.py"), str(tmp_path), "1", str(step)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [report for report in reports if "error" in report] == []
    killed = {(report["kill_at"], report["moment"]) for report in reports if report["killed"]}
    every = {(commit, moment) for commit in range(1, COMMITS + 1, step) for moment in ("before", "after")}
    assert every - killed == set(), "the test must have killed at every commit, before and after"
    for report in reports:
        assert (report["finished"], report["broken"], report["left"]) == (True, [], [0]), report
        status, _, error = report["ends"]["older"]
        # In the life after a kill the window of the first may be over before the second is started.
        if status == "cancelled":
            assert json.loads(error)["type"] == "Superseded"
            assert "newer" in json.loads(error)["message"]
        else:
            assert status == "completed"
            assert report["killed"]
        assert "second" not in report["ends"]
        assert at_once(report["bodies"]) == 1, report["bodies"]


def at_once(log: list[str]) -> int:
    """Return how many runs of one tenant were between the beginning of their first step and the end of their last."""
    most, under_way = 0, set()
    for line in log:
        _, what, name = line.split()
        run, _, step = name.partition("-")
        if not run.startswith("a") or what == "sent":
            continue
        if what == "begin":
            under_way.add(run)
        elif step == "two":
            under_way.discard(run)
        most = max(most, len(under_way))
    return most
