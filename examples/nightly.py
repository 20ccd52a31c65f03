"""A nightly job: one run per account, many at once, of which some fail without taking the night with them.

    python examples/nightly.py

The night starts a child for each account, waits for all of them, and reports what is missing. Two things are wrong
here: the bank answers for one account only at the second try, which is nothing to report, and it does not know another
one, which is; that child has failed, and waits as a dead letter for an operator. At most three ask the bank at once.
Kill the program whenever you like and run it again: no statement that was recorded is written twice. Remove nightly.db
to begin again.
"""

import asyncio
import sys
from datetime import timedelta

import msgspec

from holdfast import ChildFailed, Context, Engine, NonRetryable, Retry, activity, step_context, workflow
from holdfast.limits import Limit

BANK = Limit(name="bank", at_once=3)
SOON = Retry(max_attempts=5, initial_interval=timedelta(milliseconds=100))


class Report(msgspec.Struct):
    written: int
    missing: dict[str, str]
    """Why there is no statement, by account."""


async def list_accounts(night: str) -> list[str]:
    print(f"  listing the accounts of {night}")
    return [f"account-{number}" for number in range(1, 13)]


@activity(retry=SOON, limit="bank")
async def fetch(account: str) -> int:
    print(f"  asking the bank for {account}")
    await asyncio.sleep(0.02)
    if account == "account-7":
        raise NonRetryable("the bank knows no account-7")
    if account == "account-3" and step_context().attempt == 1:
        raise ConnectionError("the bank does not answer")
    return len(account) * 100


async def write(account: str, cents: int) -> str:
    print(f"  writing the statement of {account}")
    return f"{account}: {cents / 100:.2f}"


@workflow
async def statement(ctx: Context, account: str) -> str:
    return await ctx.step(write, account, await ctx.step(fetch, account))


@workflow
async def nightly(ctx: Context, night: str) -> Report:
    accounts = await ctx.step(list_accounts, night)
    statements = [ctx.child(statement, account, id=f"{night}-{account}") for account in accounts]
    missing: dict[str, str] = {}
    for account, coming in zip(accounts, statements, strict=True):
        try:
            await coming
        except ChildFailed as failed:
            missing[account] = str(failed.__cause__)
    return Report(len(accounts) - len(missing), missing)


async def main(database: str) -> None:
    async with Engine(database, workflows=[nightly, statement], limits=[BANK]) as engine:
        # A real one comes by itself: engine.schedules.put("nightly", nightly, ..., cron="0 2 * * *")
        run = await engine.start(nightly, "2026-01-01", id="nightly-2026-01-01")
        report = await run.result()
        print(f"{report.written} statements, missing: {', '.join(report.missing)}")
        for letter in await engine.dead_letters.list(kind="work"):
            print(f"for an operator: {letter.run_id} failed in {letter.activity}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nightly.db"))
