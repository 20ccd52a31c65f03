"""Kill -9 at any batch of the fifty-step order on a key space."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.paths import ROOT, SCRIPTS

BATCHES = 30  # that this workflow makes at the very least
WIDEST = 3  # bodies that can be in flight at once in that workflow


def run(*args: object, **environ: str) -> list[dict]:
    command = [sys.executable, str(SCRIPTS / "kv_everywhere.py"), *map(str, args)]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_in_a_directory_killed_at_any_batch_continues_and_repeats_no_recorded_step(tmp_path: Path, step: int):
    """S1-7 S1-13 S1-14 S1-28 G1 Before a batch, in the middle of writing it, and after it but before its answer."""
    reports = run(tmp_path, "directory", 1, step)
    every = {(batch, moment) for batch in range(1, BATCHES + 1, step) for moment in ("before", "inside", "after")}
    assert every - {(report["kill_at"], report["moment"]) for report in reports} == set()
    assert [report for report in reports if report["state"] != "completed" or report["left"]] == []
    assert [report for report in reports if report["again"]] == []
    assert len({json.dumps(report["output"]) for report in reports}) == 1
    assert max(len(report["twice"]) for report in reports) <= WIDEST
    assert any(report["twice"] for report in reports), "a body that was in flight must have run again"
