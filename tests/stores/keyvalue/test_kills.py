"""Kill -9 at any batch of the fifty-step order in an engine on a key space."""

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


def kill_at_each(*args: object, moments: tuple[str, ...], step: int, **environ: str) -> None:
    command = [sys.executable, str(SCRIPTS / "kv_engine_everywhere.py"), *map(str, args), "1", str(step)]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    killed = {(report["kill_at"], report["moment"]) for report in reports if report["killed"]}
    assert {(batch, moment) for batch in range(1, BATCHES + 1, step) for moment in moments} - killed == set()
    assert [report for report in reports if not report["finished"]] == []
    assert [report for report in reports if report["again"] or report["broken"] or report["missing"]] == []
    assert max(len(report["twice"]) for report in reports) <= WIDEST


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_an_engine_on_a_directory_killed_at_any_batch_continues_and_repeats_no_recorded_step(tmp_path: Path, step: int):
    """S0-40 S0-41 S1-14 G1 G3 Before a batch, in the middle of writing it, and after it but before its answer."""
    kill_at_each(tmp_path, "directory", moments=("before", "inside", "after"), step=step)


@pytest.mark.slow
def test_an_engine_on_lmdb_killed_at_any_batch_continues_and_repeats_no_recorded_step(tmp_path: Path):
    """S0-40 S0-41 S1-14 G1 G3"""
    kill_at_each(tmp_path, "lmdb", moments=("before", "after"), step=1)


@pytest.mark.slow
@pytest.mark.leaves("process")
def test_an_engine_on_redis_killed_at_any_batch_continues_and_repeats_no_recorded_step(
    tmp_path: Path, redis_socket: Path
):
    """S0-40 S0-41 S1-14 G1 G3"""
    kill_at_each(tmp_path, "redis", moments=("before", "after"), step=1, REDIS_SOCKET=str(redis_socket))
