"""Names that a shell completes: runs, workflows, and words of a filter, from the database."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from holdfast.looking import Desk
    from holdfast.looking.about.suggesting import Suggestions

_IN_TIME = 0.15
"""How many seconds are spent on names: then there are none."""
_MOST = 50


class RunIds(click.ParamType[str]):
    """The ids of the newest runs."""

    name = "run"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        async def look(desk: Desk) -> list[str]:
            page = await desk.heads(f"id:{incomplete}*" if incomplete else "", limit=_MOST)
            return [head.id for head in page.items]

        return _items(_looked(ctx, look), incomplete)


class Filters(click.ParamType[str]):
    """Words of a filter, with what there is of each."""

    name = "filter"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _items(_looked(ctx, lambda desk: _suggested(desk.suggest(incomplete))), incomplete)


async def _suggested(coming: Awaitable[Suggestions]) -> list[str]:
    return [each.text for each in (await coming).items]


class FilterCommand(click.Command):
    """A command whose arguments are words of a filter: one that excludes, as -status:completed, is no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [word for word in args if re.match(r"-[a-z]+:", word)]
        others = [word for word in args if word not in words]
        more = words if "--" in others or not words else ["--", *words]
        return super().parse_args(ctx, [*others, *more])


class Workflows(click.ParamType[str]):
    """The names of workflows that have runs."""

    name = "workflow"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _items(_looked(ctx, lambda desk: desk.workflows(incomplete)), incomplete)


RUN, FILTER, WORKFLOW = RunIds(), Filters(), Workflows()


def _items(names: list[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete) and name.isprintable()]


def _looked(ctx: click.Context, work: Callable[[Desk], Awaitable[list[str]]]) -> list[str]:
    """Return names of the database, none if there is none or it takes long: a shell must not wait, or be told."""
    from holdfast.cli.database import looking

    async def in_time(desk: Desk) -> list[str]:
        return await asyncio.wait_for(work(desk), _IN_TIME)

    try:
        return looking(ctx.params.get("url"), in_time)
    except Exception:
        return []
