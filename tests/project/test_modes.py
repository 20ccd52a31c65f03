"""The table of behaviour tests that run on PostgreSQL names what there is."""

from __future__ import annotations

from tests.behaviour.on_postgres import ON_POSTGRES
from tests.support.paths import ROOT


def test_the_tests_that_run_on_postgres_are_there():
    for file, names in ON_POSTGRES.items():
        source = (ROOT / "tests" / "behaviour" / f"test_{file}.py").read_text()
        assert [name for name in names if f"def {name}(" not in source] == [], file
