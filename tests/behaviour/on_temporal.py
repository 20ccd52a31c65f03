"""The tests of behaviour on Temporal: which of them need a capability that is not offered there, and engines for them.

`make temporal` runs them with --temporal, on a time-skipping server; those that are named in on_development_server.txt
on a development server, which has lists and schedules. A test either passes there, or is named in not_on_temporal.txt
with the capability that it needs and `offers()` denies. `python -m tests.behaviour.counted` counts the cases.
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

from holdfast.errors import NotOffered

STOP_GRACE = timedelta(milliseconds=100)
_ONLY_A_DATABASE_HAS = ("database", "durability")
UNFINISHED = "unfinished"
"""In place of a capability: the test does not pass there yet, or has not been tried there."""


@functools.cache
def needs() -> dict[str, str]:
    """Return the capability that each test or case needs which does not pass on Temporal, by its file and name."""
    lines = Path(__file__).with_name("not_on_temporal.txt").read_text().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines)


@functools.cache
def in_real_time() -> frozenset[str]:
    """Return the tests that need lists or schedules and no jumping clock, by file and name."""
    return frozenset(Path(__file__).with_name("on_development_server.txt").read_text().split())


def needed(file: str, name: str) -> str:
    """Return the capability that a test needs and that is not offered, empty if it needs none.

    A test may be named as a whole, or one of its cases, without its mode: `test_name[case]`.
    """
    function, _, case = name.partition("[")
    case = "-".join(part for part in case.removesuffix("]").split("-") if part != "temporal")
    whole = f"{file.removeprefix('test_')}::{function}"
    return needs().get(whole, "") or needs().get(f"{whole}[{case}]", "")


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
        capability = needed(item.path.stem, item.name)
        if capability and not os.environ.get("HOLDFAST_TEMPORAL_ALL"):
            reason = (
                "is not known to pass on Temporal" if capability == UNFINISHED else f"not offered there: {capability}"
            )
            item.add_marker(pytest.mark.skip(reason=reason))
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@asynccontextmanager
async def engines(follow: bool, real_time: bool) -> AsyncIterator[Callable[..., Any]]:
    """Return what opens engines on a server of their own, and closes them after the test.

    It is one that skips time, or in `real_time` a development server, which has lists and schedules. Where engines
    `follow` each other they keep no run in memory, since the former would go on asking the first one.
    """
    from tests.behaviour.development import DevelopmentEngine, DevelopmentServer

    from holdfast.temporal import TemporalTestEngine, TimeSkippingServer

    async with AsyncExitStack() as stack:
        servers: list[TimeSkippingServer] = []

        async def make(*workflows: Any, **options: Any) -> Any:
            for name in _ONLY_A_DATABASE_HAS:
                options.pop(name, None)
            if options.get("retention", 1) is None:
                del options["retention"]
            options.setdefault("stop_grace", STOP_GRACE)
            if follow and not real_time:
                options["max_resident"] = 0
            clock, start = options.pop("clock", None), options.pop("start", None)
            if not servers:
                if real_time and not (start is clock is None):
                    raise NotOffered("a clock that stands still", "clock", "test it on the time-skipping server")
                made = DevelopmentServer() if real_time else TimeSkippingServer(start=start, clock=clock)
                servers.append(await stack.enter_async_context(made))
            elif start is not None or (clock is not None and clock is not servers[0].clock):
                raise NotOffered("a clock of an engine's own", "clocks.differ", "engines of a server have its time")
            kind: Any = DevelopmentEngine if real_time else TemporalTestEngine
            engine = kind(workflows=workflows, server=servers[0], **options)
            return await stack.enter_async_context(engine)

        yield make
