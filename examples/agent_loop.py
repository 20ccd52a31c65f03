"""An agent: a durable loop of model calls and tool calls, with a person who approves the dangerous ones, and limits.

    python examples/agent_loop.py

The model is a stub; put a real one into `ask_model`. Its answers and the tool calls are recorded: kill the program and
run it again, and no recorded answer is asked for twice. It may ask the model so many times, use so many tokens, take so
long; and all agents together ask it two at a time. Remove agent.db to begin again.
"""

import asyncio
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Literal

import msgspec

from holdfast import Break, Context, Continue, Engine, Retry, RunTerminal, activity, workflow
from holdfast.limits import Limit

MODEL = Limit(name="model", at_once=2)
A_DAY = timedelta(days=1)


class Turn(msgspec.Struct):
    role: Literal["user", "model", "tool"]
    text: str


class Talk(msgspec.Struct):
    turns: list[Turn]
    tokens: int = 0


class Answer(msgspec.Struct):
    tool: str | None = None
    argument: str = ""
    final: str = ""
    tokens: int = 100


@activity(retry=Retry.ai_service, timeout=timedelta(minutes=2), limit="model")
async def ask_model(talk: list[Turn]) -> Answer:
    print(f"  asking the model, {len(talk)} lines so far")
    await asyncio.sleep(0.2)
    answers = [Answer("search", "old logs"), Answer("delete", "app.log.7"), Answer(final=f"done: {talk[-1].text}")]
    return answers[len(talk) // 2]


async def search(what: str) -> str:
    print(f"  searching for {what}")
    return "app.log.7"


async def delete(what: str) -> str:
    print(f"  deleting {what}")
    return f"deleted {what}"


TOOLS = {"search": search, "delete": delete}
DANGEROUS = {"delete"}


@workflow
async def agent(ctx: Context, task: str, max_turns: int = 20, max_tokens: int = 10_000) -> str:
    async def turn(ctx: Context, talk: Talk) -> Continue[Talk] | Break[str]:
        if talk.tokens >= max_tokens:
            return Break(f"gave up: {talk.tokens} tokens are used up")
        if len(talk.turns) // 2 >= max_turns:
            return Break(f"gave up after {max_turns} turns")
        answer = await ctx.step(ask_model, talk.turns)
        if answer.tool is None:
            return Break(answer.final)
        refused = answer.tool in DANGEROUS and not await ctx.receive("approval", bool, timeout=A_DAY, default=False)
        result = "a person refused" if refused else await ctx.step(TOOLS[answer.tool], answer.argument)
        more = [Turn("model", f"{answer.tool} {answer.argument}"), Turn("tool", result)]
        return Continue(Talk([*talk.turns, *more], talk.tokens + answer.tokens))

    return await ctx.loop("turns", turn, state=Talk([Turn("user", task)]))


async def main(database: str) -> None:
    async with Engine(database, workflows=[agent], limits=[MODEL]) as engine:
        frugal = await engine.start(agent, "clean up", max_tokens=100, id="agent-frugal", timeout=A_DAY)
        run = await engine.start(agent, "clean up the log files", id="agent-1", timeout=2 * A_DAY)
        with suppress(RunTerminal):  # it has ended already
            await run.send("approval", True)  # the person says yes; a message may come before it is waited for
        print(await run.result())
        print(await frugal.result())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "agent.db"))
