"""Fairness: many runs of one key do not keep the one run of another waiting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, workflow

PLACES = 4
MOST = 16
"""How many steps of one key may begin before the first of another, with two workers of that many places."""


@pytest.mark.parametrize(
    ("mode", "runs"),
    [
        ("file", 200),
        ("postgres", 200),
        pytest.param("file", 100_000, marks=pytest.mark.slow),
        pytest.param("postgres", 100_000, marks=pytest.mark.slow),
    ],
)
async def test_one_run_does_not_wait_for_the_many_of_another_key(make_engine, runs: int):
    """Two workers with four places each, and a backlog of one key."""
    begun: list[str] = []

    def declared() -> Any:
        async def settle(name: str) -> None:
            begun.append(name)
            await asyncio.sleep(0.001)

        @workflow(name="settling", key=lambda key, name: key)
        async def settling(ctx: Context, key: str, name: str) -> None:
            await ctx.step(settle, name)

        return settling

    one = await make_engine(declared(), max_steps=PLACES)
    await one.flow.pause(workflow="settling")
    two = await make_engine(declared(), max_steps=PLACES, clock=one.jumping)
    for first in range(0, runs, 1000):
        await one.start_many("settling", [("a", f"a{n}") for n in range(first, min(first + 1000, runs))])
    await one.flow.resume(workflow="settling")
    await eventually(lambda: len(begun) >= 20)
    before = len(begun)
    late = await two.start("settling", "b", "b")
    since = len(begun)
    await asyncio.wait_for(two.get(late.id).result(), LONG)
    assert begun.index("b") - since <= MOST
    assert begun.index("b") - before <= runs // 2
