"""A commit that the store was too busy for is tried again, by the policy of the engine."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.support.waiting import LONG

from holdfast import Context, Retry, workflow
from holdfast.contract.turns import StartRun
from holdfast.engine.settings import Settings
from holdfast.errors import BadInput, StoreBusy

pytestmark = pytest.mark.parametrize("mode", ["memory"])


@workflow
async def quick(ctx: Context) -> str:
    return "done"


async def test_a_commit_is_tried_as_often_as_the_policy_says(make_engine):
    """S2-34 S2-35 B21 Three times here; then the caller is told, and the engine goes on."""
    policy = Retry(max_attempts=3, initial_interval=timedelta(milliseconds=1))
    engine = await make_engine(quick, storage_retry=policy)
    fault = engine.faults.fail(5, only=StartRun, error=StoreBusy("held by another"))
    with pytest.raises(StoreBusy):
        await asyncio.wait_for(engine.start(quick), LONG)
    assert fault.injected == 3
    fault.heal()
    assert await (await engine.start(quick)).result() == "done"


async def test_a_commit_that_succeeds_within_the_policy_is_not_noticed(make_engine):
    """S2-34 S2-35 B21"""
    policy = Retry(max_attempts=3, initial_interval=timedelta(milliseconds=1))
    engine = await make_engine(quick, storage_retry=policy)
    fault = engine.faults.fail(2, only=StartRun, error=StoreBusy("held by another"))
    assert await (await asyncio.wait_for(engine.start(quick), LONG)).result() == "done"
    assert fault.injected == 2


def test_the_policy_is_a_retry(mode):
    with pytest.raises(BadInput, match="storage_retry"):
        Settings(storage_retry=3)
