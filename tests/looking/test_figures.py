"""Figures at the desk: by step, workflow and time, with the time that half and nearly all of them took."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Context, Retry, RunFailed, activity, workflow
from holdfast.clock import to_datetime
from holdfast.contract.figures import BOUNDS, HOUR, MINUTE, Figure
from holdfast.contract.store import Store
from holdfast.errors import BadInput
from holdfast.looking import LocalDesk
from holdfast.looking.about.figures import quantile
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing import JumpingClock, TestEngine
from holdfast.testing.conformance.figures import DAY, MIDNIGHT, figure

NONE = (0,) * len(BOUNDS)
NOW = MIDNIGHT + 10 * DAY + 12 * HOUR + 30 * MINUTE


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = SQLiteStore(":memory:")
    store.clock = clock = JumpingClock()
    clock._now = NOW
    await store.open()
    yield store
    await store.close()


def counted(*buckets: int, total: int = 0) -> Figure:
    return Figure(0, "order", "charge", "completed", sum(buckets), total, (*buckets, *NONE[len(buckets) :]))


def test_a_quantile_lies_in_the_bucket_that_its_rank_falls_into():
    assert quantile([], 0.5) is None
    assert quantile([counted(0, 0, 1, total=9_000)], 0.95) == 0.009
    rows = [counted(0, 50, 0, 0, 45, 5)]
    assert 0.001024 <= quantile(rows, 0.5) <= 0.004096
    assert quantile(rows, 0.5) == pytest.approx(0.004096)
    assert 0.065 < quantile(rows, 0.95) <= 0.262144
    assert quantile(rows, 0.96) > 0.262144


def test_a_quantile_of_several_figures_is_that_of_all_together():
    apart, together = [counted(10), counted(0, 0, 0, 10)], [counted(10, 0, 0, 10)]
    for part in (0.1, 0.5, 0.75, 0.95):
        assert quantile(apart, part) == quantile(together, part)


def test_what_took_longer_than_all_bounds_took_at_least_the_last_of_them():
    assert quantile([Figure(0, "order", "", "completed", 4, 1 << 50, NONE)], 0.5) == BOUNDS[-1] / 1e6


async def test_the_steps_that_fail_most_come_first(store):
    desk = LocalDesk(store)
    await store.add_figures(
        [
            figure("charge", n=900, at=NOW - HOUR),
            figure("charge", "failed", n=3, at=NOW - HOUR),
            figure("mail", n=5, at=NOW - HOUR),
            figure("mail", "retried", n=40, at=NOW - HOUR),
            figure("mail", "lost", n=1, at=NOW - 2 * HOUR),
            figure("ship", n=7, at=NOW - HOUR, workflow="parcel"),
            figure("", n=7, at=NOW - HOUR),
        ]
    )
    found = await desk.figures()
    assert [(item.workflow, item.step, item.failed + item.retried + item.lost) for item in found.items] == [
        ("order", "mail", 41),
        ("order", "charge", 3),
        ("parcel", "ship", 0),
    ]
    assert (found.total.completed, found.total.failed, found.total.lost) == (912, 3, 1)
    assert [item.step for item in (await desk.figures(workflow="parcel")).items] == ["ship"]
    assert [item.lost for item in (await desk.figures(last=timedelta(minutes=90), workflow="order")).items] == [0, 0]


async def test_runs_by_workflow_tell_how_long_they_took_and_waited_for_a_worker(store):
    await store.add_figures(
        [
            figure("", n=10, at=NOW - HOUR, bucket=5),
            figure("", "failed", n=10, at=NOW - HOUR, bucket=6),
            figure("", "claimed", n=4, at=NOW - HOUR, bucket=0),
            figure("", "cancelled", n=2, at=NOW - HOUR, workflow="refund"),
        ]
    )
    order, refund = (await LocalDesk(store).figures(by="workflow")).items
    assert (order.workflow, order.completed, order.failed, order.cancelled, order.claimed) == ("order", 10, 10, 0, 4)
    assert 0.262 < order.p50 <= 1.05 < order.p95 <= 4.2
    assert 0 < order.claim_p50 < order.claim_p95 <= 0.001024
    assert (refund.cancelled, refund.claim_p50) == (2, None)


@pytest.mark.parametrize(
    ("last", "slot", "slots"),
    [
        (timedelta(hours=1), MINUTE, 60),
        (timedelta(hours=6), 10 * MINUTE, 36),
        (timedelta(days=1), 10 * MINUTE, 144),
        (timedelta(days=2), HOUR, 49),
        (timedelta(days=7), HOUR, 169),
        (timedelta(days=30), 6 * HOUR, 121),
        (timedelta(days=90), DAY, 91),
    ],
)
async def test_by_time_every_slot_is_there_and_adds_up(store, last: timedelta, slot: int, slots: int):
    await store.add_figures([figure("", n=2, at=NOW - MINUTE * each) for each in (1, 7, 30)])
    found = await LocalDesk(store).figures(by="time", last=last)
    assert (found.slot, len(found.items)) == (slot / 1e6, slots)
    assert sum(item.completed for item in found.items) == found.total.completed == 6
    starts = [item.at for item in found.items if item.at is not None]
    assert starts == sorted(set(starts))
    assert starts[0] <= to_datetime(NOW) - last < starts[0] + timedelta(microseconds=slot)


async def test_a_day_of_more_minutes_than_are_added_up_at_once_is_told_by_the_hour(store, monkeypatch):
    monkeypatch.setattr("holdfast.stores.sql.figures.SCAN_BUDGET", 50)
    await store.add_figures([figure("", at=NOW - 10 * MINUTE * each) for each in range(1, 41)])
    assert (await LocalDesk(store).figures(by="time", last=timedelta(days=1))).slot == 600
    await store.add_figures([figure("", at=NOW - 10 * MINUTE * each) for each in range(41, 101)])
    found = await LocalDesk(store).figures(by="time", last=timedelta(days=1))
    assert (found.slot, found.partial, found.total.completed) == (3_600, False, 100)


async def test_what_is_older_than_minutes_are_kept_is_told_by_the_hour(store):
    await store.add_figures([figure("", at=NOW - 5 * DAY)])
    until = to_datetime(NOW - 5 * DAY + 20 * MINUTE)
    found = await LocalDesk(store).figures(by="time", last=timedelta(hours=1), until=until)
    assert found.slot == 3_600
    assert [item.completed for item in found.items] == [0, 1]
    assert (await LocalDesk(store).figures(by="workflow", last=timedelta(hours=1), until=until)).total.completed == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"by": "tenant"}, "by step, workflow or time, not by 'tenant'"),
        ({"since": datetime(2400, 1, 1, tzinfo=UTC)}, "the period is empty"),
        ({"last": timedelta(days=40_000), "by": "time"}, "1000 days at most"),
    ],
)
async def test_figures_that_cannot_be_asked_for_are_refused(store, given, said):
    with pytest.raises(BadInput, match=said):
        await LocalDesk(store).figures(**given)


@activity(retry=Retry(max_attempts=2))
async def unlucky() -> None:
    raise ConnectionError("the line is dead")


@workflow
async def fall(ctx: Context) -> None:
    await ctx.step(unlucky)


@activity(retry=Retry(max_attempts=9, initial_interval=timedelta(hours=1)))
async def patient() -> None:
    raise TimeoutError("nothing came")


@workflow
async def wait(ctx: Context) -> None:
    await ctx.step(patient)


@workflow
async def fall_inside(ctx: Context) -> None:
    await ctx.step(declined)


class Declined(Exception):
    pass


@activity(retry=Retry(max_attempts=1))
async def declined() -> None:
    raise Declined("no funds")


async def test_steps_name_what_they_failed_with_while_they_are_retried_and_not_what_stands_for_it(tmp_path):
    path = tmp_path / "shop.db"
    async with TestEngine(str(path), workflows=[wait, fall_inside]) as engine:
        await engine.start(wait)
        await engine.settle()
        await engine.start(fall_inside)
        await engine.settle()
    store = SQLiteStore(path)
    await store.open(look_only=True)
    found = {each.step: each.error_type for each in (await LocalDesk(store).figures(last=timedelta(hours=2))).items}
    await store.close()
    assert found["patient"] == "TimeoutError"
    assert found["declined"].rpartition(".")[2] == "Declined"


async def test_a_step_that_failed_for_good_names_the_class_of_its_last_error(tmp_path):
    path = tmp_path / "shop.db"
    async with TestEngine(str(path), workflows=[fall]) as engine:
        with pytest.raises(RunFailed):
            await engine.execute(fall)
    store = SQLiteStore(path)
    await store.open(look_only=True)
    [item] = (await LocalDesk(store).figures(last=timedelta(hours=2))).items
    await store.close()
    assert (item.step, item.failed, item.retried, item.error_type) == ("unlucky", 1, 1, "ConnectionError")
