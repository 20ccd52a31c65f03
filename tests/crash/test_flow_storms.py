"""Kill -9 of workers that share limits and lanes: never is more under way than allowed, and nothing stays taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.flow_judge import Line, most_in_any, most_inside
from tests.support.paths import ROOT, SCRIPTS
from tests.support.scripts.flow_storm import PER, RATE

from holdfast.clock import micros

TIMES = max(int(os.environ.get("HOLDFAST_SEEDS", "0")) // 50, 1)
ALLOWED = {"whole": 3, "whole/t0": 2, "whole/t1": 2, "whole/t2": 2, "one": 1}
ALLOWED |= {f"lane/k{n}": 1 for n in range(4)}


@pytest.mark.parametrize(
    ("first", "seeds"),
    [(0, 10), *(pytest.param(first, 10, marks=pytest.mark.slow) for first in range(100, 100 + 10 * TIMES, 10))],
)
def test_nothing_is_ever_above_its_limit_while_workers_are_killed(tmp_path: Path, first: int, seeds: int) -> None:
    """S4-19 G1 G2 The log of the bodies is the judge: what they wrote before they were killed, too."""
    command = [sys.executable, str(SCRIPTS / "flow_storm.py"), str(tmp_path), str(first), str(seeds)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [report["seed"] for report in reports] == [*range(first, first + seeds)]
    assert sum(report["killed"] for report in reports) >= seeds, "workers must have been killed at work"
    for report in reports:
        assert (report["wrong"], set(report["lasts"])) == ([], {0}), report["seed"]
        log: list[Line] = [(what, where, who) for what, where, who in map(str.split, report["log"])]
        most = most_inside(log)
        assert {place: n for place, n in most.items() if n > ALLOWED.get(place, n)} == {}, report["seed"]
        begins = {who: int(at) for what, at, who in log if what == "began"}
        assert most_in_any([*begins.values()], micros(PER)) <= RATE, report["seed"]
