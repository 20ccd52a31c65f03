"""`holdfast queues`, `limits`, `events` and `versions`: what runs share."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.act import duration_of, shared, told
from holdfast.cli.database import acting, going_on, json_option, local_time, looking, url_option, who
from holdfast.cli.output import emit, listed, payload, say, table
from holdfast.cli.shell.names import RUN
from holdfast.errors import BadInput
from holdfast.looking.views import Acted, EventNameView, EventPage, HeldBackView, QueueView

if TYPE_CHECKING:
    from holdfast.looking import Desk
    from holdfast.looking.about.versions import VersionView
    from holdfast.looking.acting.limits import LimitNumbers, LimitView


@click.command("queues", short_help="List queues: what waits in them, and what was taken.")
@json_option
@url_option
def queues_command(as_json: bool, url: str | None) -> None:
    """List queues by the activities whose steps wait in them, or were taken by a worker.

    \b
    Example: holdfast queues
    """
    found: list[QueueView] = looking(url, lambda desk: desk.queues())
    if as_json:
        emit("holdfast.queues/1", found)
        return
    rows = [
        (_state(each), each.queue, each.activity, f"{each.waiting:,}", f"{each.taken:,}", str(each.workers),
         local_time(each.oldest))
        for each in found
    ]  # fmt: skip
    titles = ("STATE", "QUEUE", "ACTIVITY", "WAIT", "TAKEN", "WORKERS", "OLDEST SINCE")
    listed(titles, rows, "no step waits in a queue")


def _state(queue: QueueView) -> str:
    if queue.paused:
        return "paused"
    return "ok" if queue.workers or not queue.waiting else "unserved"


@click.group("limits", short_help="Limits that workers share: list, show, override, restore, why.")
def limits_group() -> None:
    """Look at limits, and change their numbers; `pause --limit NAME` and `resume --limit NAME` stop and start one."""


@limits_group.command("list", short_help="List limits: what they allow, what is used, what waits.")
@json_option
@url_option
def list_limits(as_json: bool, url: str | None) -> None:
    """List the limits that workers share: what they allow, what is used, and how many steps wait.

    \b
    Example: holdfast limits list
    """
    found: list[LimitView] = looking(url, lambda desk: desk.limits())
    if as_json:
        emit("holdfast.limits/1", found)
        return
    rows = [
        (_limit_state(each), each.name, f"{each.used:,}", f"{each.waiting:,}",
         local_time(each.next_turn), f"{each.allows}{_instead(each)}")
        for each in found
    ]  # fmt: skip
    listed(
        ("STATE", "LIMIT", "USED", "WAIT", "NEXT", "ALLOWS"),
        rows,
        "there are no limits that workers share; Engine(limits=[Limit(...)]) declares one",
    )


def _instead(limit: LimitView) -> str:
    return f" (an operator said so; declared: {limit.declared or 'nothing'})" if limit.overridden else ""


def _limit_state(limit: LimitView) -> str:
    """Return how a limit is; what it guards is left alone while it asked for that, or its circuit is open."""
    if limit.paused:
        return "paused"
    alone = sum(key.held_until is not None for key in limit.keys)
    return "ok" if not alone else "left alone" if len(limit.keys) == 1 else f"{alone} left alone"


@limits_group.command("show", short_help="Show one limit, with its keys that are in use.")
@click.argument("name")
@json_option
@url_option
def show_limit(name: str, as_json: bool, url: str | None) -> None:
    """Show one limit, with those of its keys for which most wait.

    \b
    Example: holdfast limits show openai
    """
    found = {each.name: each for each in looking(url, lambda desk: desk.limits())}
    if name not in found:
        there = f"; there are {', '.join(found)}" if found else "; there are none"
        raise BadInput(f"there is no limit {name!r}{there}")
    limit: LimitView = found[name]
    if as_json:
        emit("holdfast.limit/1", limit)
        return
    allows = f"{limit.allows}{_instead(limit)}"
    say(f"{limit.name}  {_limit_state(limit)}  {allows}; {limit.used:,} used, {limit.waiting:,} wait")
    if limit.keys:
        rows = [
            (
                each.key or "-",
                f"{each.used:,}",
                f"{each.waiting:,}",
                local_time(each.next_turn),
                local_time(each.held_until),
            )
            for each in limit.keys
        ]
        table(("KEY", "USED", "WAIT", "NEXT", "LEFT ALONE UNTIL"), rows)


@limits_group.command("override", short_help="Put other numbers of a limit in force, until they are cleared.")
@click.argument("name")
@click.option("--at-once", type=int, help="How many attempts may run at once.")
@click.option("--rate", type=int, help="How many may begin in --per.")
@click.option("--per", help="As in 1s, which it is of itself, or 1min.")
@click.option("--burst", type=int, help="How many may begin at once of a --rate that is spread evenly.")
@click.option("--per-key-at-once", type=int, help="How many of one key may run at once.")
@click.option("--trip-after", type=int, help="After how many failures in a row nothing begins for a while.")
@click.option("--cool-down", help="For how long then, as in 30s.")
@shared
def override_limit(name: str, per: str | None, cool_down: str | None, **given: Any) -> int:
    """Put other numbers of a limit in force on all workers, whatever engines declare, until `limits restore`.

    What is not named is not limited. Steps that run go on; the next begins when the new numbers allow it.

    \b
    Example: holdfast limits override openai --at-once 2 --reason "they asked for less"
    """
    from holdfast.looking.acting.limits import LimitNumbers

    numbers = LimitNumbers(
        **{field: given[field] for field in ("at_once", "rate", "burst", "per_key_at_once", "trip_after")},
        per=duration_of("--per", per or "1s") or timedelta(0),
        cool_down=duration_of("--cool-down", cool_down),
    )
    if numbers == LimitNumbers(per=numbers.per):
        raise click.UsageError("say what it allows, as with --at-once 2; holdfast limits restore clears what was said")
    return _put_limit(name, numbers, f"the limit {name} has these numbers now, until holdfast limits restore", given)


@limits_group.command("restore", short_help="Let a limit have the numbers that engines declare again.")
@click.argument("name")
@shared
def restore_limit(name: str, **given: Any) -> int:
    """Clear the numbers of `limits override`: those that engines declare hold again.

    \b
    Example: holdfast limits restore openai --reason "they have room again"
    """
    return _put_limit(name, None, f"the limit {name} has the numbers that engines declare again", given)


def _put_limit(name: str, numbers: LimitNumbers | None, said: str, given: dict[str, Any]) -> int:
    by, reason = who(given["by"]), given["reason"]

    async def work(desk: Desk) -> Acted:
        return await desk.override_limit(name, numbers, by=by, reason=reason)

    return told(acting(given["url"], work), said, given["as_json"])


@limits_group.command("why", short_help="Say what holds back a run and its steps.")
@click.argument("run_id", metavar="ID", type=RUN)
@json_option
@url_option
def why_limited(run_id: str, as_json: bool, url: str | None) -> None:
    """Say what holds back a run and its steps: pauses, its turn, the limits of steps.

    \b
    Example: holdfast limits why order-88405
    """
    found: list[HeldBackView] = looking(url, lambda desk: desk.held_back(run_id))
    if as_json:
        emit("holdfast.held-back/1", found)
        return
    rows = [
        (each.code, f"{each.kind} {each.name}", each.key, each.step, local_time(each.since), local_time(each.until))
        for each in found
    ]
    listed(("CODE", "BY", "KEY", "STEP", "SINCE", "UNTIL"), rows, "nothing holds it back")


@click.command("events", short_help="List events by name: queued, and waited for.")
@click.argument("name", required=False)
@click.option("--after", default=0, help="With a name: only events after this number.")
@click.option("--limit", default=50, show_default=True, help="With a name: how many events to show.")
@json_option
@url_option
def events_command(name: str | None, after: int, limit: int, as_json: bool, url: str | None) -> None:
    """List the names under which events are queued or runs wait; with a NAME its events, and the runs that wait.

    \b
    Example: holdfast events stock
    """
    if name is not None:
        page: EventPage = looking(url, lambda desk: desk.events(name, after=after, limit=limit))
        if as_json:
            emit("holdfast.event/1", page)
        else:
            _events(page, url)
        return
    found: list[EventNameView] = looking(url, lambda desk: desk.event_names())
    if as_json:
        emit("holdfast.events/1", found)
        return
    rows = [
        (each.name, f"{each.queued:,}", f"{each.waiting:,}", local_time(each.oldest), local_time(each.since))
        for each in found
    ]
    listed(
        ("EVENT", "QUEUED", "RUNS WAIT", "OLDEST", "WAITED FOR SINCE"),
        rows,
        "no event is queued, and no run waits for one",
    )


def _events(page: EventPage, url: str | None) -> None:
    say(f"{page.name}: {len(page.queued):,} queued{'+' if page.next else ''}, {len(page.waiting):,} runs wait")
    if page.queued:
        rows = [(str(each.n), local_time(each.at), each.id, payload(each.payload, 200)) for each in page.queued]
        table(("N", "PUBLISHED", "ID", "PAYLOAD"), rows)
    if page.waiting:
        table(("RUN", "WAITS SINCE"), [(each.run, local_time(each.since)) for each in page.waiting])
    if page.next is not None:
        say(f"more: {going_on(['events', page.name], url, after=page.next)}", err=True)


@click.command("versions", short_help="List versions of workflows: workers that have them, and open runs.")
@json_option
@url_option
def versions_command(as_json: bool, url: str | None) -> None:
    """List versions of workflows: how many workers have each as their newest, and how many open runs began with it.

    \b
    Example: holdfast versions
    """
    found: list[VersionView] = looking(url, lambda desk: desk.versions())
    if as_json:
        emit("holdfast.versions/1", found)
        return
    rows = [
        (each.workflow, each.version or "-", str(each.workers), f"{each.open.n:,}{'' if each.open.exact else '+'}")
        for each in found
    ]
    listed(("WORKFLOW", "VERSION", "WORKERS", "OPEN RUNS"), rows, "no workflow has runs, and no worker is alive")
