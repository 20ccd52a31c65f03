"""Every test of behaviour passes on Temporal, or names the capability that is not offered there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest
from tests.behaviour.on_temporal import UNFINISHED, in_real_time, needs
from tests.support.paths import ROOT

if importlib.util.find_spec("temporalio") is None:
    pytest.skip("temporalio is not installed: pip install 'holdfast[temporal]'", allow_module_level=True)

from holdfast.temporal import TemporalTestEngine


def test_what_does_not_pass_names_a_capability_that_is_denied():
    engine = TemporalTestEngine()
    assert UNFINISHED not in needs().values()
    assert [capability for capability in {*needs().values()} if engine.offers(capability)] == []


def test_at_least_half_of_the_cases_run_there():
    command = [sys.executable, "-m", "tests.behaviour.counted"]
    figures = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    run, of = map(int, re.findall(r"\d+", figures.stdout)[:2])
    assert run / of >= 0.5, figures.stdout


def test_every_test_that_is_named_is_there():
    files = {path.stem.removeprefix("test_"): path.read_text() for path in (ROOT / "tests/behaviour").glob("test_*.py")}
    named = [name.partition("[")[0].split("::") for name in (*needs(), *in_real_time())]
    assert [f"{file}::{test}" for file, test in named if f"def {test}(" not in files.get(file, "")] == []
