"""Kill -9 at every commit of runs and steps that wait for places, windows, limits and pauses: the same end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.flow_judge import most_inside
from tests.support.paths import ROOT, SCRIPTS

COMMITS = 40
"""How many commits and claims the scenario makes at the very least."""


@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_runs_in_lanes_that_are_killed_at_any_commit_come_to_the_same_end(tmp_path: Path, step: int):
    """G1 G3 S4-19 Places, a window, a rejection, a pause; steps: wait, grant, 429, circuit."""
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
        assert [report["ends"][run][0] for run in ("c1", "c2", "c3")] == ["completed"] * 3
        log = [
            (what, name.partition("-")[0], name) for life, what, name in map(str.split, report["bodies"]) if life == "B"
        ]
        most = most_inside([({"begin": "in", "end": "out"}.get(what, what), where, who) for what, where, who in log])
        assert {most["bank"], most["post"]} <= {0, 1}, report["bodies"]
        assert [line for line in report["bodies"] if "429 c2" in line], "a step must have been told 429"
        assert sum(" down " in line for line in report["bodies"]) == 3, "the circuit must have been tripped"


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
