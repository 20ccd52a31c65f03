"""The tests of behaviour on Temporal: which of them need a capability that is not offered there, and engines for them.

`make temporal` runs them with --temporal, on a time-skipping server. A test either passes there, or is named in
not_on_temporal.txt with the capability that it needs and `offers()` denies, or as unfinished.
"""

from __future__ import annotations

import asyncio
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
"""In place of a capability: the test does not pass there yet, or has not been tried there."""


@functools.cache
def needs() -> dict[str, str]:
    """Return the capability that each test or case needs which does not pass on Temporal, by its file and name."""
    lines = Path(__file__).with_name("not_on_temporal.txt").read_text().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines)


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
async def engines(follow: bool) -> AsyncIterator[Callable[..., Any]]:
    """Return what opens engines on a time-skipping server of their own, and closes them after the test.

    Where engines `follow` each other they keep no run in memory, since that server would go on asking the first one.
    """
    from tests.behaviour.servers_time import BehaviourEngine, ServersTime

    from holdfast.temporal import TimeSkippingServer

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(TimeSkippingServer())
        time = ServersTime(server)

        async def make(*workflows: Any, **options: Any) -> Any:
            for name in _ONLY_A_DATABASE_HAS:
                options.pop(name, None)
            if options.get("retention", 1) is None:
                del options["retention"]
            if options.get("clock") is time:
                del options["clock"]  # that of the engine before, which has the same server
            options.setdefault("stop_grace", STOP_GRACE)
            if follow:
                options["max_resident"] = 0
            engine = BehaviourEngine(workflows=workflows, server=server, **options)
            engine.jumping = time
            # That server's time stands still while a run that has something to do waits for a worker.
            passing = asyncio.create_task(time.catch_up())
            if not options.get("run_workflows", True):
                await passing
            await stack.enter_async_context(engine)
            await passing
            return engine

        yield make
