"""Sagas survive kill -9: whatever was done is undone once, in reverse, whenever the process dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest
from tests.support.paths import ROOT, SCRIPTS

SCRIPT = SCRIPTS / "saga_everywhere.py"
DONE = ["reserve", "left", "charge", *(f"lap{number}" for number in range(5))]
LETTERS = [["napper", "explode"], ["saga", "cannot"], ["saga", "explode"]]


def run(*args: object) -> list[dict]:
    command = [sys.executable, str(SCRIPT), *map(str, args)]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def bodies(report: dict, run_id: str, life: str = "") -> list[str]:
    """Return the bodies of a run in order, in one life or both."""
    lines = [line.split() for line in report["bodies"]]
    return [words[2] for words in lines if len(words) == 3 and words[1] == run_id and words[0] in (life or "AB")]


def again(report: dict, run_id: str, order: list[set[str]]) -> list[str]:
    """Return the bodies that ran in both lives though the first had begun something that comes after them."""
    rank = {name: place for place, names in enumerate(order) for name in names}
    first = bodies(report, run_id, "A")
    reached = max((rank[name] for name in first), default=0)
    return [name for name in bodies(report, run_id, "B") if name in first and rank[name] < reached]


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_saga_killed_at_any_commit_undoes_everything_once_and_in_reverse(tmp_path: Path, step: int):
    """G11 B17 S4-21 S0-55 S4-28 G12 B9 B14 S0-37

    With a life that continued as new, a join, a trimmed loop, a compensation that fails, a keyed step that two runs
    want, an event that one of them publishes for the other, and a run that is paused meanwhile.
    """
    reports = run(tmp_path, "each", 1, step)
    killed = [report for report in reports if report["killed"]]
    assert len(killed) >= 55 // step, "the test must have killed at every commit, before and after"
    stood = {(run_id, report["before"][run_id]["status"]) for report in killed for run_id in ("saga", "napper")}
    assert {("saga", "compensating"), ("napper", "paused")} <= stood
    assert step > 1 or ("napper", "compensating") in stood
    for report in reports:
        where = f"killed {report['moment']} commit {report['kill_at']}"
        after = report["after"]
        assert report["finished"], where
        assert report["before"]["broken"] + after["broken"] == [], where
        assert after["saga"]["status"] == after["napper"]["status"] == "failed", where

        saga = after["saga"]
        assert sorted(saga["registered"]) == sorted(DONE), where
        assert saga["registered"][0] == "reserve", where
        assert saga["registered"][3:] == DONE[3:], where
        assert saga["begun"] == saga["undone"] == saga["registered"][::-1], where
        assert [each["status"] for each in saga["report"]] == ["completed"] * 2 + ["failed"] + ["completed"] * 5, where
        assert after["napper"]["undone"] == ["bed"], where
        letters = [letter[:2] for letter in after["letters"]]
        assert letters == LETTERS, where
        assert after["waiting events"] == 0, where

        undone = [name for name in bodies(report, "saga") if name.startswith("undo-")]
        assert [name for name, _ in groupby(undone)] == [f"undo-{name}" for name in saga["registered"][::-1]], where
        order = [{"reserve"}, {"left", "charge"}, *({name} for name in DONE[3:]), {"explode"}]
        order += [{f"undo-{name}"} for name in saga["registered"][::-1]]
        assert again(report, "saga", order) == [], where
        assert again(report, "napper", [{"bed"}, {"explode"}, {"undo-bed"}]) == [], where
        for life in "AB":
            assert (bodies(report, "saga", life) + bodies(report, "other", life)).count("charge") <= 1, where


def test_a_compensation_that_kills_its_process_is_given_up_and_stops_no_other(tmp_path: Path):
    """G11 G12 B17 S0-37 Three lives die of it; the fourth fails it, keeps it as a dead letter and undoes the rest."""
    (report,) = run(tmp_path, "undoing")
    assert report["deaths"] == 3
    assert [(each["status"], each["attempts"]) for each in report["compensation"]] == [("failed", 3), ("completed", 1)]
    assert (report["status"], report["error"], report["broken"]) == ("failed", "RuntimeError", [])
    assert report["letters"] == [["deadly", 3], ["explode", 1]]


def test_a_step_that_was_skipped_and_then_kills_its_process_is_failed_at_the_crash_limit(tmp_path: Path):
    """S0-37 B10 G4 Its attempts are counted before they run, like those of a step that never was skipped."""
    (report,) = run(tmp_path, "skipped")
    assert report["deaths"] <= 3
    assert (report["status"], report["error"]) == ("failed", "holdfast.errors.StepCrashed")
    assert report["broken"] == []
