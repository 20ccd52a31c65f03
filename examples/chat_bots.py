"""A bot for every chat, thousands of them on one Redis server: each is a run in a key space of its own.

    python examples/chat_bots.py               three chats, on the server of REDIS_URL (redis://localhost)

What is said in a chat is delivered to its run, which answers; when a chat is silent its alarm wakes the run, which asks
whether there is anything else, once, and ends. Any process may do either: of two that drive the same chat at the same
moment the later one fences the earlier, and no answer is given twice.
"""

import asyncio
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import redis.asyncio

from holdfast import Break, Context, Continue, ReceiveTimeout, workflow
from holdfast.clock import Clock
from holdfast.kv import Driver, Standing, deliver, drive, drive_due
from holdfast.kv.drivers.redis import RedisDriver

SILENCE = timedelta(seconds=1)
Turns = list[str]


async def say(chat: str, text: str) -> None:
    print(f"  {chat}: {text}", flush=True)


@workflow
async def bot(ctx: Context, chat: str) -> Turns:
    await ctx.step("greet", say, chat, f"Hello, this is {chat}.")

    async def turn(lap: Context, heard: Turns) -> Continue[Turns] | Break[Turns]:
        try:
            text = await lap.receive("said", str, timeout=SILENCE)
        except ReceiveTimeout:
            await lap.step("close", say, chat, "Anything else? Then goodbye.")
            return Break(heard)
        await lap.step("answer", say, chat, f"You said {text!r}, which is number {len(heard) + 1}.")
        return Continue([*heard, text])

    begun: Turns = []
    return await ctx.loop("turns", turn, state=begun, history_every=10, history_keep=2)


async def go_on(driver: Driver, chat: str, clock: Clock | None = None) -> Standing[Turns]:
    return await drive(driver, bot, chat, id=chat, clock=clock)


async def hear(driver: Driver, chat: str, text: str, clock: Clock | None = None) -> Standing[Turns]:
    """Take in what was said in a chat, and let its bot answer."""
    await deliver(driver, "said", text, clock=clock)
    return await go_on(driver, chat, clock)


async def look_after(spaces: Mapping[str, Driver], clock: Clock | None = None) -> dict[str, Standing[Turns]]:
    """Wake the bots whose chat is silent, or whose process died."""

    async def one(chat: str, driver: Driver) -> Standing[Any]:
        return await go_on(driver, chat, clock)

    return await drive_due(spaces, one, clock)


async def main() -> None:
    client = redis.asyncio.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost"))
    spaces = {chat: await RedisDriver.open(client, f"chat:{chat}") for chat in ("ada", "bo", "cy")}
    stand: dict[str, Standing[Turns]] = {}
    for chat, text in (("ada", "hello"), ("bo", "good morning"), ("ada", "how are you?")):
        stand[chat] = await hear(spaces[chat], chat, text)
    stand["cy"] = await go_on(spaces["cy"], "cy")
    while not all(standing.ended for standing in stand.values()):
        await asyncio.sleep(0.1)
        stand |= await look_after(spaces)
    print(f"{len(stand)} chats are over, ada said {stand['ada'].output}")
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(main())
