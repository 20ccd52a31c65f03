"""The smallest program with holdfast: one workflow of one step."""

from holdfast import Context, Engine, workflow


async def greet(name: str) -> str:
    return f"Hello, {name}"


@workflow
async def welcome(ctx: Context, name: str) -> str:
    return await ctx.step(greet, name)


async def hello(url: str) -> None:
    """Open an engine, run the workflow and check its result."""
    async with Engine(url, workflows=[welcome]) as engine:
        assert await engine.execute(welcome, "Ada") == "Hello, Ada"
