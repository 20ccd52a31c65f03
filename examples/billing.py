"""A subscription that is billed every month for three years: in seconds, because the clock of this program jumps.

    python examples/billing.py

Each month is one iteration of a durable loop: sleep until the day, look for a new price, charge. A card that has
expired is tried again after days. Nothing but the clock is made up: with `Engine` in place of `TestEngine` the same
workflow takes its three years. Kill the program and run it again: no month that was recorded is charged twice. Remove
billing.db to begin again.
"""

import asyncio
import calendar
import sys
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast import Break, Context, Continue, Retry, activity, step_context, workflow
from holdfast.testing import TestEngine

A_DAY = timedelta(days=1)
MONTHS = 36


class CardExpired(Exception):
    pass


class Account(msgspec.Struct, frozen=True):
    cents: int
    """What a month costs now."""
    months: int = 0
    """How many are paid."""
    paid: int = 0
    """What they came to."""


def months_after(begun: datetime, months: int) -> datetime:
    """Return the same day so many months later, or the last of a month that is shorter."""
    years, month = divmod(begun.month - 1 + months, 12)
    year, month = begun.year + years, month + 1
    return begun.replace(year=year, month=month, day=min(begun.day, calendar.monthrange(year, month)[1]))


@activity(retry=Retry(max_attempts=5, initial_interval=3 * A_DAY, coefficient=1.0, max_interval=None))
async def charge(customer: str, day: datetime, cents: int) -> int:
    step = step_context()
    print(f"  {day:%Y-%m-%d} charging {customer} {cents / 100:.2f}, attempt {step.attempt}, key {step.idempotency_key}")
    if (day.year, day.month) == (2027, 2) and step.attempt < 3:
        raise CardExpired(f"{customer} has not given a new card yet")
    return cents


@workflow
async def subscription(ctx: Context, customer: str, cents: int) -> str:
    begun = ctx.now()

    async def month(ctx: Context, account: Account) -> Continue[Account] | Break[str]:
        if account.months == MONTHS:
            return Break(f"{customer} paid {account.paid / 100:.2f} for {account.months} months")
        day = months_after(begun, account.months)
        await ctx.sleep_until(max(day, ctx.now()))
        price = account.cents
        while (news := await ctx.receive("price", int, timeout=timedelta(0), default=None)) is not None:
            price = news
        paid = await ctx.step(charge, customer, day, price)
        return Continue(Account(price, account.months + 1, account.paid + paid))

    return await ctx.loop("months", month, state=Account(cents), commit_interval=12, history_every=12, history_keep=1)


async def main(database: str) -> None:
    begin = datetime(2026, 1, 31, 9, tzinfo=UTC)
    async with TestEngine(database, workflows=[subscription], start=begin) as engine:
        run = await engine.start(subscription, "kim", 999, id="subscription-kim")
        await engine.advance(365 * A_DAY)
        await run.send("price", 1299, id="price-of-2027")  # by its id it is taken once, however often it is sent
        print(await run.result())
        print(f"  entries in its history: {len(await run.history())}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "billing.db"))
