"""`holdfast children`, `inbox` and `tail`: the runs that a run started, its messages, and runs as they change."""

from __future__ import annotations

from asyncio import get_running_loop, sleep
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from holdfast.cli.act import duration_of
from holdfast.cli.database import going_on, json_option, local_time, looking, url_option, zone
from holdfast.cli.output import clock, emit, listed, payload, say, table
from holdfast.cli.shell.names import FILTER, RUN, FilterCommand
from holdfast.errors import BadInput
from holdfast.looking.views import Page

if TYPE_CHECKING:
    from holdfast.looking import Desk
    from holdfast.looking.about.runs import ChildList, InboxPage

_LOOK_AGAIN = 1.0
_WATCHED = 200
_WIDEST = len("compensating")


@click.command("children", short_help="List the runs that a run started.")
@click.argument("run_id", metavar="ID", type=RUN)
@click.option("--depth", default=1, show_default=True, help="Also the runs that those started, up to 10 deep.")
@json_option
@url_option
def children_command(run_id: str, depth: int, as_json: bool, url: str | None) -> None:
    """List the runs that a run started, oldest first, each with why it is where it is.

    \b
    Example: holdfast children order-88405 --depth 3
    """
    found: ChildList = looking(url, lambda desk: desk.children(run_id, depth=depth, relative=not as_json))
    if as_json:
        emit("holdfast.children/1", found)
        return
    rows = [
        (each.head.status, f"{'  ' * (each.depth - 1)}{each.head.id}", each.head.workflow, each.head.why.sentence)
        for each in found.items
    ]
    listed(("STATUS", "RUN", "WORKFLOW", "NOW, AND WHY"), rows, "it has started no run", spare=(2,))
    if found.more:
        say(f"older ones: {going_on(['list', f'parent:{run_id}'], url)}", err=True)


@click.command("inbox", short_help="List messages that a run has not received.")
@click.argument("run_id", metavar="ID", type=RUN)
@click.option("--after", default=0, help="Only messages after this number.")
@click.option("--limit", default=100, show_default=True, help="How many to show, up to 1,000.")
@json_option
@url_option
def inbox_command(run_id: str, after: int, limit: int, as_json: bool, url: str | None) -> None:
    """List messages and events that were sent to a run and its code has not received, oldest first.

    \b
    Example: holdfast inbox order-88405
    """
    page: InboxPage = looking(url, lambda desk: desk.inbox(run_id, after=after, limit=limit))
    if as_json:
        emit("holdfast.inbox/1", page)
        return
    rows = [
        (
            str(each.n),
            local_time(each.sent_at),
            "event" if each.event else "message",
            each.name,
            payload(each.payload, 200),
        )
        for each in page.items
    ]
    listed(("N", "SENT", "KIND", "NAME", "PAYLOAD"), rows, "nothing waits there")
    if page.next is not None:
        say(f"more: {going_on(['inbox', run_id], url, after=page.next)}", err=True)


@click.command("tail", cls=FilterCommand, short_help="Show runs as they are started and change, until it is stopped.")
@click.argument("which", nargs=-1, metavar="[FILTER]...", type=FILTER)
@click.option("--limit", default=10, show_default=True, help="How many of the newest to begin with, up to 200.")
@click.option("--for", "duration", metavar="TIME", help="Stop after so long: 30s, 10min, 2h.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line.")
@url_option
def tail_command(which: tuple[str, ...], limit: int, duration: str | None, as_json: bool, url: str | None) -> None:
    """Show the newest runs that fit, and then a line whenever one is started or another word is true of it.

    It looks once a second at the newest 200 that fit; Ctrl-C stops it.

    \b
    Example: holdfast tail workflow:fulfil
    """
    most = duration_of("--for", duration)
    looking(url, lambda desk: _tail(desk, " ".join(which), limit, most, as_json))


async def _tail(desk: Desk, which: str, limit: int, most: timedelta | None, as_json: bool) -> None:
    if not 1 <= limit <= _WATCHED:
        raise BadInput(f"--limit must be between 1 and {_WATCHED}, not {limit}")
    time = get_running_loop().time
    end = time() + most.total_seconds() if most is not None else None
    page = await desk.heads(which, limit=_WATCHED, relative=not as_json)
    seen = {head.id: (head.status, head.why.code) for head in page.items[limit:]}
    while True:
        _changed(page, seen, as_json)
        if end is not None and time() >= end:
            return
        await sleep(_LOOK_AGAIN if end is None else max(min(_LOOK_AGAIN, end - time()), 0))
        page = await desk.heads(which, limit=_WATCHED, relative=not as_json)
        for gone in seen.keys() - {head.id for head in page.items}:
            del seen[gone]


def _changed(page: Page, seen: dict[str, tuple[str, str]], as_json: bool) -> None:
    """Write the runs of which something else is true than when they were last seen, the oldest first."""
    news = [head for head in reversed(page.items) if seen.get(head.id) != (head.status, head.why.code)]
    for head in news:
        seen[head.id] = (head.status, head.why.code)
        if as_json:
            emit("holdfast.head/1", head, on_one_line=True)
    if not as_json and news:
        now = page.as_of
        rows = [
            (clock(head.updated_at, now, zone()), f"{head.status:<{_WIDEST}}", head.id, head.why.sentence)
            for head in news
        ]
        table(("", "", "", ""), rows)
