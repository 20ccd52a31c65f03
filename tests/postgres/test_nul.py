"""Errors that PostgreSQL cannot turn into text as they are."""

from __future__ import annotations

from holdfast import Context, Retry, activity, workflow
from holdfast.looking import LocalDesk
from holdfast.testing import TestEngine

MESSAGE = "read \0 and \\u0000"


@activity(retry=Retry(max_attempts=1))
async def read() -> None:
    raise ValueError(MESSAGE)


@workflow
async def reads(ctx: Context) -> None:
    await ctx.step(read)


async def test_a_run_whose_error_has_a_nul_is_listed_with_all_others(empty_database):
    """PostgreSQL has no NUL in a text: one such error must not keep every list from being shown."""
    async with TestEngine(empty_database, workflows=[reads]) as engine:
        await engine.start(reads, id="nul")
        await engine.settle()
        desk = LocalDesk(engine.store)
        [head] = (await desk.heads("status:failed")).items
        assert head.error is not None
        assert head.error.message.startswith("read \ufffd and")
        [group] = await desk.letter_groups()
        assert (group.step, group.count) == ("read", 1)
