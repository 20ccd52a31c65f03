"""Every test of behaviour passes on Temporal, or names the capability that is not offered there."""

from __future__ import annotations

import importlib.util

import pytest
from tests.behaviour.on_temporal import UNFINISHED, needs
from tests.support.paths import ROOT

if importlib.util.find_spec("temporalio") is None:
    pytest.skip("temporalio is not installed: pip install 'holdfast[temporal]'", allow_module_level=True)

from holdfast.temporal import TemporalTestEngine

MOST_UNFINISHED = 23
"""How many tests are not known to pass though all they need may be offered: this number only goes down."""


def test_what_does_not_pass_names_a_capability_that_is_denied():
    engine = TemporalTestEngine()
    capabilities = {capability for capability in needs().values() if capability != UNFINISHED}
    assert [capability for capability in capabilities if engine.offers(capability)] == []
    assert sum(capability == UNFINISHED for capability in needs().values()) <= MOST_UNFINISHED


def test_every_test_that_is_named_is_there():
    files = {path.stem.removeprefix("test_"): path.read_text() for path in (ROOT / "tests/behaviour").glob("test_*.py")}
    named = [name.partition("[")[0].split("::") for name in needs()]
    assert [f"{file}::{test}" for file, test in named if f"def {test}(" not in files.get(file, "")] == []
