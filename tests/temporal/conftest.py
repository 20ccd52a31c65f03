"""What tests of the runtime on Temporal share: a server, where one can be had."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from tests.temporal.server import missing, temporal_server

if not missing():
    from tests.temporal import flows

    from holdfast.temporal import TemporalEngine


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Return the address of a development server that the tests of a file share."""
    if missing():
        pytest.skip(missing())
    with temporal_server() as address:
        yield address


@pytest.fixture
async def make_engine(server: str) -> AsyncIterator[Callable[..., Any]]:
    """Return a coroutine function that opens an engine on that server and closes it after the test."""
    async with AsyncExitStack() as stack:

        async def make(*workflows: Any, **options: Any) -> TemporalEngine:
            options.setdefault("lease", timedelta(minutes=1))  # the machine may be busy
            options.setdefault("call_patience", timedelta(minutes=1))
            options.setdefault("stop_grace", timedelta(milliseconds=100))
            made = TemporalEngine(server, workflows=workflows or flows.EVERY, **options)
            return await stack.enter_async_context(made)

        yield make
