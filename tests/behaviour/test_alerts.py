"""Alerts: functions that are told of every run that failed or was blocked, once, and of nothing else."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Change, Context, NonRetryable, RunBlocked, RunFailed, workflow
from holdfast.contract.turns import CommitTurn
from holdfast.errors import BadInput, StoreError
from holdfast.testing import TestEngine


@workflow
async def fails(ctx: Context) -> None:
    raise NonRetryable("no luck")


@workflow
async def succeeds(ctx: Context) -> int:
    return await ctx.step("one", one)


async def one() -> int:
    return 1


async def test_an_alert_is_told_of_a_run_that_failed_and_of_no_other(make_engine):
    """Once, with the error, when it is durable; a run that is retried and fails again is told again."""
    told: list[Change] = []
    engine = await make_engine(fails, succeeds, on_failed=told.append)
    run = await engine.start(fails, id="unlucky")
    await engine.execute(succeeds)
    with pytest.raises(RunFailed):
        await run.result()
    await eventually(lambda: told)
    (change,) = told
    assert (change.type, change.run_id, change.workflow, change.status) == ("run.failed", "unlucky", "fails", "failed")
    assert "no luck" in str(change.data["error"])
    await run.retry()
    with pytest.raises(RunFailed):
        await run.result()
    await eventually(lambda: len(told) == 2)


async def test_an_alert_is_told_of_a_run_that_was_blocked(make_engine):
    """With the reason; a code that never waits is one."""

    @workflow(check=False)
    async def stuck(ctx: Context) -> None:
        await asyncio.get_running_loop().create_future()

    failed: list[Change] = []
    told: list[Change] = []
    engine = await make_engine(stuck, on_blocked=[told.append], on_failed=failed.append)
    run = await engine.start(stuck, id="stuck")
    with pytest.raises(RunBlocked):
        await run.result()
    await eventually(lambda: told)
    assert [(change.type, change.run_id) for change in told] == [("run.blocked", "stuck")]
    assert told[0].data["error"]
    assert failed == []


async def test_what_an_alert_raises_is_logged_and_changes_nothing(make_engine, caplog):
    def broken(change: Change) -> None:
        raise OSError("the pager is away")

    told: list[Change] = []
    engine = await make_engine(fails, succeeds, on_failed=[broken, told.append])
    run = await engine.start(fails)
    with pytest.raises(RunFailed, match="no luck"):
        await run.result()
    await eventually(lambda: told)
    assert await engine.execute(succeeds) == 1
    assert any("broken failed" in record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_nothing_is_told_before_it_is_durable(make_engine):
    """A commit that fails is no failure of the run."""
    told: list[Change] = []
    engine = await make_engine(fails, on_failed=told.append)
    run = await engine.start(fails, delay=timedelta(hours=1))
    lost = engine.faults.fail(only=CommitTurn, error=StoreError("not this time"))
    with pytest.raises(RunFailed):
        await asyncio.wait_for(run.result(), LONG)
    assert lost.injected == 1
    await eventually(lambda: told)
    assert len(told) == 1


async def test_an_alert_costs_a_step_nothing(make_engine):
    """Nobody is asked about steps and other ends: the worker takes the way without observers."""
    engine = await make_engine(succeeds, on_failed=print, on_blocked=print)
    assert engine._working().runner.reporter.listeners == {}
    assert await engine.execute(succeeds) == 1


def test_an_alert_is_a_plain_function():
    async def later(change: Change) -> None:
        """Not called."""

    for wrong in (later, None, [None], "page me"):
        with pytest.raises(BadInput, match="on_failed"):
            TestEngine(on_failed=wrong)
