"""For pytest: the fixture `holdfast_engine`. It imports nothing of holdfast before a test asks for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol

try:
    from pytest_asyncio import fixture  # which knows async fixtures in its strict mode, too
except ImportError:
    import pytest

    fixture = pytest.fixture  # type: ignore[assignment]  # anyio knows them without a decorator of its own

if TYPE_CHECKING:
    from holdfast.definitions import Workflow
    from holdfast.testing import TestEngine


class OpenEngine(Protocol):
    """What `holdfast_engine` gives."""

    async def __call__(self, *workflows: Workflow[Any, Any], **options: Any) -> TestEngine:
        """Open an engine in memory whose clock jumps; the options are those of TestEngine."""
        ...


@fixture
async def holdfast_engine() -> AsyncIterator[OpenEngine]:
    """Give a coroutine function that opens a TestEngine, which is stopped after the test.

    async def test_an_order_is_paid(holdfast_engine):
        engine = await holdfast_engine(fulfil, substitutes={charge: fake_charge})
        assert await engine.execute(fulfil, "o-7") == "paid"
    """
    from holdfast.testing import TestEngine

    async with AsyncExitStack() as engines:

        async def opened(*workflows: Workflow[Any, Any], **options: Any) -> TestEngine:
            return await engines.enter_async_context(TestEngine(workflows=workflows, **options))

        yield opened
