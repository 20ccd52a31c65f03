"""An agent: a durable loop of model calls and tool calls, with a person who approves the dangerous ones.

    python examples/agent_loop.py

The model is a stub; put a real one into `ask_model`. Its answers and the tool calls are recorded: kill the program and
run it again, and no recorded answer is asked for twice. Remove agent.db to begin anew.
"""

import asyncio
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Literal

import msgspec

from holdfast import Break, Context, Continue, Engine, Retry, RunTerminal, activity, workflow


class Turn(msgspec.Struct):
    role: Literal["user", "model", "tool"]
    text: str


class Answer(msgspec.Struct):
    tool: str | None = None
    argument: str = ""
    final: str = ""


@activity(retry=Retry.ai_service, timeout=timedelta(minutes=2))
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
A_DAY = timedelta(days=1)


@workflow
async def agent(ctx: Context, task: str) -> str:
    async def turn(ctx: Context, talk: list[Turn]) -> Continue[list[Turn]] | Break[str]:
        answer = await ctx.step(ask_model, talk)
        if answer.tool is None:
            return Break(answer.final)
        refused = answer.tool in DANGEROUS and not await ctx.receive("approval", bool, timeout=A_DAY, default=False)
        result = "a person refused" if refused else await ctx.step(TOOLS[answer.tool], answer.argument)
        return Continue([*talk, Turn("model", f"{answer.tool} {answer.argument}"), Turn("tool", result)])

    return await ctx.loop("turns", turn, state=[Turn("user", task)])


async def main(database: str) -> None:
    async with Engine(database, workflows=[agent]) as engine:
        run = await engine.start(agent, "clean up the log files", id="agent-1")
        with suppress(RunTerminal):  # it has ended already
            await run.send("approval", True)  # the person says yes; a message may come before it is waited for
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "agent.db"))
