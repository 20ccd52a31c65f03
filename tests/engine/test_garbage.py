"""The garbage collector while engines are open."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from holdfast import Engine
from holdfast.engine.worker.garbage import RARELY


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


async def test_full_collections_are_rarer_while_any_engine_is_open() -> None:
    """W7 The younger generations are left alone, and so is everything once the last engine is closed."""
    before = gc.get_threshold()
    async with Engine(":memory:"):
        assert gc.get_threshold() == (*before[:2], RARELY)
        async with Engine(":memory:"):
            pass
        assert gc.get_threshold() == (*before[:2], RARELY)
    assert gc.get_threshold() == before


async def test_what_the_application_says_counts() -> None:
    """A larger threshold stays, and so does one that was set meanwhile."""
    gc.set_threshold(5000, 20, 10 * RARELY)
    async with Engine(":memory:"):
        assert gc.get_threshold() == (5000, 20, 10 * RARELY)
        gc.set_threshold(1000, 5, 5)
    assert gc.get_threshold() == (1000, 5, 5)
