"""The tables of behaviour tests that run in a mode name what there is."""

from __future__ import annotations

import pytest
from tests.behaviour.modes import RUN_IN
from tests.support.paths import ROOT


@pytest.mark.parametrize("mode", RUN_IN)
def test_the_tests_that_run_in_a_mode_are_there(mode: str):
    for file, names in RUN_IN[mode].items():
        source = (ROOT / "tests" / "behaviour" / f"test_{file}.py").read_text()
        assert [name for name in names if f"def {name}(" not in source] == [], file
