"""What tests of the API start from: a database."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.web)])
def mode(request: pytest.FixtureRequest) -> str:
    """On which database a test runs: in memory, and in `make web` once more on a server."""
    kind: str = request.param
    return kind


@pytest.fixture
def address(mode: str, request: pytest.FixtureRequest) -> str:
    """Give the address of an empty database."""
    found: str = request.getfixturevalue("empty_database") if mode == "postgres" else ":memory:"
    return found
