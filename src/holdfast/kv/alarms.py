"""Alarms: never later than a run needs, whenever the process dies."""

from __future__ import annotations

from datetime import datetime

from holdfast.clock import Instant, from_datetime, to_datetime
from holdfast.kv.driver import Driver, answer


async def wake_by(driver: Driver, now: Instant) -> None:
    """Have the run driven by now, unless it is due earlier already."""
    alarm = await answer(driver.get_alarm())
    if alarm is None or from_datetime(alarm) > now:
        await answer(driver.set_alarm(to_datetime(now)))


async def wake_at(driver: Driver, at: datetime | None) -> None:
    """Have the run driven at an instant, or not at all, unless that is so already."""
    if await answer(driver.get_alarm()) == at:
        return
    if at is None:
        await answer(driver.clear_alarm())
    else:
        await answer(driver.set_alarm(at))
