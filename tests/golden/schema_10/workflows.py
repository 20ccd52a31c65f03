"""The code of the runs in these files, as it was when they were made: it is never changed, nor are they.

A run in a file is continued by what is written here. A test of something new gets a folder of its own.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from holdfast import Break, ChildFailed, Context, Continue, Event, Retry, activity, step_context, workflow
from holdfast.declarative import sequence

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DAILY = Retry(max_attempts=90, initial_interval=DAY, coefficient=1.0, max_interval=DAY)
EVENTS = [Event(name="news", consume_on_read=False), Event(name="lost", on_target_ended="dead_letter")]


# Steps.


@activity(retry=Retry.never)
async def bank(name: str) -> str:
    """Fail while the bank is closed."""
    if not step_context().bank_open:
        raise ValueError(f"the bank is closed for {name}")
    return f"paid {name}"


@activity(retry=DAILY)
async def stubborn_bank(name: str) -> str:
    """Fail likewise, and be tried again every day."""
    return await bank(name)


@activity(retry=Retry.never)
async def undo(name: str) -> str:
    return f"undid {name}"


@activity(retry=DAILY)
async def undo_with_bank(name: str) -> str:
    await bank(name)
    return f"undid {name}"


@activity(idempotency_key=lambda what: f"one-{what}", heartbeat_timeout=30 * DAY)
async def slow(what: str) -> str:
    """Take for ever while the bank is closed, and say so."""
    step = step_context()
    if not step.bank_open:
        step.heartbeat({"at": what})
        await asyncio.Event().wait()
    return f"did {what}"


@activity(idempotency_key=lambda what: f"kept-{what}", idempotency_ttl=timedelta(days=3650))
async def keep(what: str) -> str:
    return f"kept {what}"


@activity(queue="far")
async def far(what: str) -> str:
    return f"far {what}"


async def plain(value: int) -> int:
    return value + 1


# Workflows, each for one way of waiting.


@workflow
async def sleeper(ctx: Context, days: int) -> str:
    await ctx.sleep(days * DAY)
    return await ctx.step(keep, f"sleep-{days}")


@workflow
async def approval(ctx: Context, count: int = 1) -> list[Any]:
    ctx.set_attributes(region="north", size=count)
    return [await ctx.receive("approval") for _ in range(count)]


@workflow
async def hurried(ctx: Context) -> list[Any]:
    """A receive with a timeout, beside a timer of asyncio."""
    word = await ctx.receive("word", timeout=10 * DAY, default="no word")
    try:
        async with asyncio.timeout((2 * DAY).total_seconds()):
            await ctx.receive("word")
    except TimeoutError:
        return [word, "too late"]
    return [word, "in time"]


@workflow
async def reader(ctx: Context, count: int) -> list[Any]:
    return [await ctx.receive("news") for _ in range(count)]


@workflow
async def late_reader(ctx: Context) -> list[Any]:
    first = await ctx.receive("news")
    await ctx.sleep(5 * DAY)
    return [first, await ctx.receive("news")]


@workflow
async def lonely(ctx: Context) -> Any:
    return await ctx.receive(["lost", "found"])


@workflow
async def order(ctx: Context, name: str) -> str:
    ctx.evidence("ordered", {"name": name})
    await ctx.step(keep, name)
    ctx.compensate(undo, name)
    return await ctx.step(bank, name)


@workflow
async def undone(ctx: Context, name: str) -> str:
    """Fail, and need days to undo what was done."""
    await ctx.step(plain, 1)
    ctx.compensate(undo_with_bank, name)
    return await ctx.step(bank, name)


@workflow
async def patient(ctx: Context, name: str) -> list[Any]:
    paid = await ctx.step(bank, name)
    return [paid, await ctx.receive("approval")]


@workflow
async def retrying(ctx: Context, name: str) -> str:
    return await ctx.step(stubborn_bank, name)


@workflow
async def single(ctx: Context, what: str) -> str:
    return await ctx.step(slow, what)


@workflow
async def queued(ctx: Context, what: str) -> list[str]:
    return [await ctx.step(far, what), await ctx.step(keep, what)]


@workflow
async def family(ctx: Context, days: int) -> list[Any]:
    quick = await ctx.child(sleeper, 0)
    try:
        return [quick, await ctx.child(sleeper, days, id=f"child-of-{ctx.run_id}")]
    except ChildFailed as failed:
        return [quick, failed.status]


@workflow
async def branches(ctx: Context) -> list[Any]:
    """A join and a race, and tasks side by side, all open."""

    async def wait(branch: Context) -> Any:
        return await branch.receive("branch")

    async def rest(branch: Context) -> str:
        await branch.sleep(6 * DAY)
        return "rested"

    joined = asyncio.ensure_future(ctx.join({"left": wait, "right": rest}))
    raced = asyncio.ensure_future(ctx.race({"short": rest, "long": lambda branch: branch.sleep(90 * DAY)}))
    counted = await asyncio.gather(*(ctx.step(plain, number) for number in range(3)))
    return [counted, await joined, (await raced).winner]


@workflow
async def counting(ctx: Context) -> int:
    """A loop that has passed checkpoints and trimmed its history."""

    async def add(iteration: Context, total: int) -> Any:
        if total >= 60:
            total += int(await iteration.receive("more"))
        total += await iteration.step(plain, 0)
        return Break(total) if total > 70 else Continue(total)

    return int(await ctx.loop("count", add, state=0, commit_interval=5, history_every=10, history_keep=5))


@workflow
async def account(ctx: Context) -> int:
    total = 0
    while True:
        request = await ctx.receive_request("add", int)
        total += request.payload
        ctx.reply(request, total)
        if total > 10:
            return total


@workflow
async def renewed(ctx: Context, life: int) -> Any:
    if life < 3:
        ctx.continue_as_new(life + 1)
    return await ctx.receive("approval")


@workflow
async def stubborn(ctx: Context) -> str:
    try:
        await ctx.sleep(40 * DAY)
    except asyncio.CancelledError:
        await ctx.sleep(2 * DAY)  # it takes its time to clean up
        raise
    return "slept"


@workflow
async def patching(ctx: Context) -> list[Any]:
    way = "new" if ctx.patched("better way") else "old"
    dice = ctx.random().randrange(1_000_000)
    return [way, dice, await ctx.receive("approval"), ctx.random().randrange(1_000_000)]


@workflow
async def sender(ctx: Context, target: str) -> str:
    await ctx.sleep(4 * DAY)
    await ctx.send(target, "word", "from a run")
    await ctx.publish("parcel", "from a run")
    return "sent"


async def capture(state: dict[str, Any]) -> dict[str, Any]:
    return {"photo": f"{state['subject']}.jpg"}


@activity(retry=DAILY)
async def publish_photo(state: dict[str, Any]) -> dict[str, Any]:
    return {"paid": await bank(state["photo"])}


photo = sequence("photo", [capture, publish_photo])


@workflow(name="changing")
async def changing(ctx: Context) -> str:
    await ctx.step(keep, "old")
    return str(await ctx.receive("approval"))


@workflow(name="changing")
async def changed(ctx: Context) -> str:
    """Code that cannot continue the history of the other: its runs are blocked."""
    await ctx.step(undo, "new")
    return str(await ctx.receive("approval"))


WORKFLOWS = [
    sleeper, approval, hurried, reader, late_reader, lonely, order, undone, patient, retrying, single, queued, family,
    branches, counting, account, renewed, stubborn, patching, sender, photo, changing,
]  # fmt: skip
