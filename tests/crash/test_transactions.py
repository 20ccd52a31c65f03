"""Exactly once: a transactional step's own rows are there once, wherever its process is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.paths import ROOT, SCRIPTS

SCRIPT = SCRIPTS / "transact_everywhere.py"
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
NAMES = ["first", "in the next life", "last", "left", "right", "shaky"]


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_the_rows_of_a_step_are_there_once_wherever_its_process_is_killed(tmp_path: Path, step: int):
    """G1 G3 G4 S4-28 At every statement, before and after each commit."""
    command = [sys.executable, str(SCRIPT), str(tmp_path), "1", str(step)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    killed = [report for report in reports if report["killed"]]
    places = [line for report in killed for line in report["log"] if line.startswith("killed")]
    assert len(killed) >= 180 // step, "the test must have killed at every statement"
    assert step > 1 or any("'INSERT INTO books" in place for place in places), "also in the middle of a body"
    assert step > 1 or any(report["before"][2] for report in killed), "also before the run has taken note"
    for report in reports:
        where = f"killed at statement {report['kill_at']}: {report['log']}"
        assert report["finished"], where
        for rows, broken, _ in (report["before"], report["after"]):
            assert broken == [], where
            names = [name for name, _ in rows]
            assert len(names) == len(set(names)), where
            assert all(attempt < 0 for _, attempt in rows), where  # what its last statement does is there, too
        rows, _, unread = report["after"]
        assert sorted(name for name, _ in rows) == NAMES, where
        assert unread == 0, where
        again = [line.split()[1] for line in report["log"] if line.startswith("B")]
        assert not {name.split()[0] for name, _ in report["before"][0]} & set(again), where  # G3: recorded, not run
