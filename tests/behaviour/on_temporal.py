"""The tests of behaviour on Temporal: which of them need a capability that is not offered there, and engines for them.

`make temporal` runs them with --temporal, on a time-skipping server. A test either passes there, or is named in
not_on_temporal.txt with the capability that it needs and `offers()` denies, or as unfinished.
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

STOP_GRACE = timedelta(milliseconds=100)
_ONLY_A_DATABASE_HAS = ("database", "durability")
UNFINISHED = "unfinished"
"""In place of a capability: the test should pass there, and does not yet."""


@functools.cache
def needs() -> dict[str, str]:
    """Return the capability that each test needs which does not pass on Temporal, by its file and name."""
    lines = Path(__file__).with_name("not_on_temporal.txt").read_text().splitlines()
    return dict(line.split(" ") for line in lines)


def needed(file: str, function: str) -> str:
    """Return the capability that a test needs and that is not offered, empty if it needs none."""
    return needs().get(f"{file.removeprefix('test_')}::{function}", "")


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that open no engine by `make_engine`, other modes of the same test, and what is not offered."""
    seen: set[tuple[Any, ...]] = set()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        mode = item.callspec.params.get("mode", "") if hasattr(item, "callspec") else ""
        case = (item.path, item.name.replace(mode, "", 1))
        on_engines = isinstance(item, pytest.Function) and "make_engine" in item.fixturenames
        if not on_engines or case in seen:
            left_out.append(item)
            continue
        seen.add(case)
        kept.append(item)
        capability = needed(item.path.stem, item.name.split("[")[0])
        if capability and not os.environ.get("HOLDFAST_TEMPORAL_ALL"):
            reason = "does not pass on Temporal yet" if capability == UNFINISHED else f"not offered there: {capability}"
            item.add_marker(pytest.mark.skip(reason=reason))
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@asynccontextmanager
async def engines() -> AsyncIterator[Callable[..., Any]]:
    """Return what opens engines on a time-skipping server of their own, and closes them after the test."""
    from holdfast.temporal import TemporalTestEngine, TimeSkippingServer

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(TimeSkippingServer())

        async def make(*workflows: Any, **options: Any) -> Any:
            for name in _ONLY_A_DATABASE_HAS:
                options.pop(name, None)
            if options.get("retention", 1) is None:
                del options["retention"]
            options.setdefault("stop_grace", STOP_GRACE)
            return await stack.enter_async_context(TemporalTestEngine(workflows=workflows, server=server, **options))

        yield make
