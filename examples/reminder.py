"""A reminder that repeats: a run that lives for years, sleeps most of the time, and keeps no growing history.

    python examples/reminder.py            reminds every second, three times
    python examples/reminder.py --stop     sends the message that ends it early, from another terminal

Each life of the run reminds once, computes the next time from the last one, so that it does not drift, sleeps until
then or until it is told to stop, and begins again. Kill it and run it again: a reminder whose time came meanwhile is
sent at once. Remove reminder.db to begin again.
"""

import asyncio
import sys
from datetime import datetime, timedelta

from holdfast import Context, Engine, RunTerminal, workflow

EVERY = timedelta(seconds=1)


async def remind(who: str, number: int, due: datetime) -> None:
    print(f"  {due:%H:%M:%S} reminder {number} to {who}")


@workflow
async def reminder(ctx: Context, who: str, times: int, number: int = 1, due: datetime | None = None) -> str:
    due = due or ctx.now()
    await ctx.step(remind, who, number, due)
    if number == times:
        return f"reminded {who} {number} times"
    following = due + EVERY
    stop = await ctx.receive("stop", timeout=max(following - ctx.now(), timedelta(0)), default="not yet")
    if stop != "not yet":
        return f"stopped after {number} reminders"
    ctx.continue_as_new(who, times, number + 1, following)


async def main(database: str, stop: bool) -> None:
    async with Engine(database, workflows=[reminder], run_workflows=not stop) as engine:
        run = await engine.start(reminder, "kim", 3, id="reminder-kim")
        if stop:
            try:
                await run.send("stop")
            except RunTerminal:
                print("it has ended already")
        print(await run.result())
        print(f"  entries in its history: {len(await run.history())}")


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--stop"]
    asyncio.run(main(arguments[0] if arguments else "reminder.db", "--stop" in sys.argv))
