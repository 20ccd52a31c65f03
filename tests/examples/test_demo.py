"""The demonstration proves what it shows, and cleans up after itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.paths import ROOT

DEMO = ROOT / "examples" / "demo.py"


def test_the_demo_proves_that_no_recorded_step_runs_again(tmp_path):
    """G3 G4 G9 Killed inside a step and during a sleep: each result is recorded once, every attempt is counted."""
    done = subprocess.run([sys.executable, DEMO, "--fast"], env=_environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("kill -9   process") == 2
    assert "charge    runs, attempt 2" in done.stdout
    assert "\033[" not in done.stdout
    assert "\N{HEAVY BALLOT X} no step" not in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_an_interrupted_demo_leaves_no_process_and_no_file(tmp_path, number, code):
    environment = _environment(tmp_path) | {"PYTHONIOENCODING": "ascii"}  # there it must print, too
    process = subprocess.Popen([sys.executable, DEMO], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    worker = 0
    for line in process.stdout:
        if "starts" in line:
            worker = int(line.split()[-2])
        if "attempt 1" in line:
            process.send_signal(number)
            break
    process.communicate()
    assert process.returncode == code
    assert worker
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    assert not list(tmp_path.iterdir())


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8"}
