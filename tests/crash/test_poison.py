"""Workflow code that kills its process must not kill worker after worker, nor take innocent runs along."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.paths import SCRIPTS

SCRIPT = SCRIPTS / "poison_worker.py"
MAX_DEATHS = 8


def test_a_turn_that_crashes_is_blocked_after_a_few_workers_and_harms_nobody_else(tmp_path: Path):
    """B24 G4 G12 The step before the crash keeps its result and is not blamed; the run is blocked, with a reason."""
    database = f"sqlite:///{tmp_path / 'poison.db'}"
    deaths, mode, output = 0, "start", ""
    while deaths < MAX_DEATHS:
        command = [sys.executable, str(SCRIPT), database, mode]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            output = done.stdout
            break
        assert done.returncode == 7, done.stderr
        deaths, mode = deaths + 1, "work"
    assert 3 <= deaths < MAX_DEATHS, "the poison must have bitten, and must have been stopped"
    runs = json.loads(output)
    status, reason = runs.pop("poisoned")
    assert status == "blocked"
    assert "crash or hang" in reason
    assert {status for status, _ in runs.values()} == {"completed"}
    assert len(runs) == 20
