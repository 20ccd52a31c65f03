"""`holdfast schedules`: runs that are started by the clock."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.act import duration_of, shared, told
from holdfast.cli.database import acting, app_option, code_at_hand, json_option, local_time, looking, url_option, who
from holdfast.cli.output import emit, listed, payload, say, say_wrapped
from holdfast.cli.runs.begin import arguments_of
from holdfast.cli.shell.names import WORKFLOW
from holdfast.cli.shell.times import MOMENT
from holdfast.errors import NoSuchSchedule
from holdfast.looking.views import Acted, ScheduleView

if TYPE_CHECKING:
    from holdfast.looking import Desk


@click.group("schedules", short_help="What is started by the clock: list, next, put, pause, trigger.")
def schedules_group() -> None:
    """Look at schedules, and stop or start them."""


@schedules_group.command("list", short_help="List schedules, with their next ticks.")
@json_option
@url_option
def list_schedules(as_json: bool, url: str | None) -> None:
    """List schedules, each with what it starts, when, and its next tick.

    \b
    Example: holdfast schedules list
    """
    found: list[ScheduleView] = looking(url, lambda desk: desk.schedules())
    if as_json:
        emit("holdfast.schedules/1", found)
        return
    rows = [
        (
            _state(each),
            each.id,
            each.workflow,
            each.when,
            local_time(each.next_at),
            each.wrong or each.last_run or "",
        )
        for each in found
    ]
    listed(
        ("STATE", "SCHEDULE", "WORKFLOW", "WHEN", "NEXT", "LAST RUN"),
        rows,
        "there are no schedules; holdfast schedules put makes one",
    )


def _state(schedule: ScheduleView) -> str:
    if schedule.wrong:
        return "wrong"
    return "paused" if schedule.paused else "over" if schedule.next_at is None else "ok"


@schedules_group.command("show", short_help="Show one schedule.")
@click.argument("schedule_id", metavar="ID")
@json_option
@url_option
def show_schedule(schedule_id: str, as_json: bool, url: str | None) -> None:
    """Show one schedule: what it starts with which input, and when.

    \b
    Example: holdfast schedules show nightly
    """
    found = {each.id: each for each in looking(url, lambda desk: desk.schedules())}
    if schedule_id not in found:
        raise _missing(schedule_id, [*found])
    schedule: ScheduleView = found[schedule_id]
    if as_json:
        emit("holdfast.schedule/1", schedule)
        return
    facts = (
        ("workflow", schedule.workflow), ("when", schedule.when), ("state", _state(schedule)),
        ("next", local_time(schedule.next_at)), ("until", local_time(schedule.until)),
        ("last run", schedule.last_run or ""), ("overlap", schedule.overlap), ("catch up", schedule.catch_up),
        ("input", payload(schedule.input)),
        ("wrong", schedule.wrong),
    )  # fmt: skip
    say(schedule.id)
    for name, value in facts:
        if value:
            say(f"{name:<12}{value}")


def _missing(schedule_id: str, there: list[str]) -> NoSuchSchedule:
    from difflib import get_close_matches

    near = get_close_matches(schedule_id, there, 1)
    return NoSuchSchedule(f"there is no schedule {schedule_id!r}{f'; did you mean {near[0]}?' if near else ''}")


@schedules_group.command("next", short_help="Show the next ticks of a schedule.")
@click.argument("schedule_id", metavar="ID", required=False)
@click.option("--cron", help="Of a timetable that is no schedule yet, as in '0 2 * * *'.")
@click.option("--zone", "timezone", default="UTC", show_default=True, help="With --cron: its time zone.")
@click.option("-n", "number", default=10, show_default=True, help="How many, up to 1,000.")
@json_option
@url_option
def next_ticks(
    schedule_id: str | None, cron: str | None, timezone: str, number: int, as_json: bool, url: str | None
) -> None:
    """Show the next ticks of a schedule, in its own time zone too, with a word where clocks change.

    \b
    Example: holdfast schedules next nightly -n 5
    """
    if (schedule_id is None) == (cron is None):
        raise click.UsageError("name a schedule, or a timetable with --cron, one of the two")
    ticks = looking(url, lambda desk: desk.preview(schedule_id, number, cron=cron, timezone=timezone))
    if as_json:
        emit("holdfast.ticks/1", ticks)
        return
    rows = [(local_time(tick.at), f"{tick.local:%Y-%m-%d %H:%M:%S %Z}", tick.note) for tick in ticks]
    listed(("TICK", "IN ITS ZONE", ""), rows, "it has no more ticks")


@schedules_group.command("pause", short_help="Let a schedule start nothing.")
@click.argument("schedule_id", metavar="ID")
@shared
def pause_schedule(schedule_id: str, **given: Any) -> int:
    """Let a schedule start nothing until it is resumed.

    \b
    Example: holdfast schedules pause nightly --reason "month end, INC-12"
    """
    return _change("pause", schedule_id, given)


@schedules_group.command("resume", short_help="Let a paused schedule go on.")
@click.argument("schedule_id", metavar="ID")
@shared
def resume_schedule(schedule_id: str, **given: Any) -> int:
    """Let a paused schedule go on, with the next tick from now.

    \b
    Example: holdfast schedules resume nightly
    """
    return _change("resume", schedule_id, given)


@schedules_group.command("trigger", short_help="Start a run of a schedule now.")
@click.argument("schedule_id", metavar="ID")
@app_option
@shared
def trigger_schedule(schedule_id: str, **given: Any) -> int:
    """Start a run of a schedule now, whatever the clock says; it needs the code of its workflow.

    \b
    Example: holdfast schedules trigger nightly --app shop.main:engine
    """
    actor, code = who(given["by"]), code_at_hand(given["app"])
    acted = acting(
        given["url"], lambda desk: desk.trigger_schedule(schedule_id, by=actor, reason=given["reason"]), code
    )
    return told(acted, acted.run, given["as_json"])


@schedules_group.command("put", short_help="Make a schedule, or change one.")
@click.argument("schedule_id", metavar="ID")
@click.argument("workflow", metavar="WORKFLOW", type=WORKFLOW)
@click.argument("payload", metavar="[JSON]", required=False)
@click.option("-i", "--input", "inputs", multiple=True, metavar="NAME=VALUE", help="One argument; JSON, or a text.")
@click.option("--keep-input", is_flag=True, help="Leave the arguments as the schedule has them.")
@click.option("--cron", help="When: five fields, six with seconds first, or @daily.")
@click.option("--every", metavar="TIME", help="When: again after so long, 15min, 1h, 1d.")
@click.option("--zone", "timezone", default="UTC", show_default=True, help="The time zone of --cron.")
@click.option("--overlap", type=click.Choice(["skip", "allow", "cancel"]), default="skip", show_default=True,
              help="What a tick does while the run of the last one is open.")  # fmt: skip
@click.option("--catch-up", type=click.Choice(["latest", "all", "none"]), default="latest", show_default=True,
              help="Which missed ticks are made up for.")  # fmt: skip
@click.option("--jitter", metavar="TIME", help="Begin each run later by a part of this.")
@app_option
@shared
def put_schedule(schedule_id: str, workflow: str, payload: str | None, keep_input: bool, **given: Any) -> int:
    """Make a schedule, or change the one of that name; it needs the code of its workflow, to check the arguments.

    \b
    Example: holdfast schedules put hourly nightly --every 1h --app shop.main:engine
    """
    from holdfast.looking.acting.requests import ScheduleRequest

    if keep_input and (payload is not None or given["inputs"]):
        raise click.UsageError("give arguments, or leave them with --keep-input, one of the two")
    request = ScheduleRequest(
        workflow=workflow,
        arguments=None if keep_input else arguments_of(payload, given["inputs"]),
        cron=given["cron"],
        every=duration_of("--every", given["every"]),
        timezone=given["timezone"],
        jitter=duration_of("--jitter", given["jitter"]) or timedelta(0),
        overlap=given["overlap"],
        catch_up=given["catch_up"],
    )
    actor, code = who(given["by"]), code_at_hand(given["app"])
    acted = acting(
        given["url"], lambda desk: desk.put_schedule(schedule_id, request, by=actor, reason=given["reason"]), code
    )
    return told(acted, f"schedule {schedule_id} is put", given["as_json"])


@schedules_group.command("backfill", short_help="Start the runs of past ticks.")
@click.argument("schedule_id", metavar="ID")
@click.option(
    "--from", "start", required=True, metavar="TIME", type=MOMENT, help="From when on: 2026-11-01, or with T09:30."
)
@click.option("--until", "end", required=True, metavar="TIME", type=MOMENT, help="Before when.")
@click.option("--limit", default=1_000, show_default=True, help="Refuse it if there are more ticks.")
@click.option("--dry-run", is_flag=True, help="Only show the ticks of that time, and which have a run.")
@app_option
@shared
def backfill_schedule(schedule_id: str, start: datetime, end: datetime, limit: int, dry_run: bool, **given: Any) -> int:
    """Start the runs of past ticks that were not started; it needs the code of its workflow.

    Times are in the zone of this machine, or of HOLDFAST_TZ, unless they say their own.

    \b
    Example: holdfast schedules backfill nightly --from 2026-11-01 --until 2026-11-04 --app shop.main:engine
    """
    if end <= start:
        raise click.UsageError(f"--until {end:%Y-%m-%d %H:%M} is not after --from {start:%Y-%m-%d %H:%M}")
    if dry_run:
        return _show_past(schedule_id, start, end, limit, given)
    actor, code, reason = who(given["by"]), code_at_hand(given["app"]), given["reason"]

    async def work(desk: Desk) -> Acted:
        return await desk.backfill_schedule(schedule_id, start, end, by=actor, reason=reason, limit=limit)

    acted = acting(given["url"], work, code)
    return told(acted, "\n".join(acted.started), given["as_json"])


def _show_past(schedule_id: str, start: datetime, end: datetime, limit: int, given: dict[str, Any]) -> int:
    ticks = looking(given["url"], lambda desk: desk.past_ticks(schedule_id, start, end, n=limit))
    if given["as_json"]:
        emit("holdfast.past-ticks/1", ticks)
        return 0
    rows = [
        (local_time(tick.at), f"{tick.local:%Y-%m-%d %H:%M:%S %z}", tick.run, tick.status or "would begin", tick.note)
        for tick in ticks
    ]
    listed(("TICK", "IN ITS ZONE", "RUN", "STATUS", ""), rows, "it has no tick in that time")
    missing = sum(not tick.status for tick in ticks)
    say_wrapped(f"{missing} of {len(ticks)} would be started; nothing was", err=True)
    return 0


@schedules_group.command("delete", short_help="Forget a schedule.")
@click.argument("schedule_id", metavar="ID")
@shared
def delete_schedule(schedule_id: str, **given: Any) -> int:
    """Forget a schedule; its runs stay.

    \b
    Example: holdfast schedules delete nightly --reason "replaced by hourly"
    """
    actor = who(given["by"])
    acted = acting(given["url"], lambda desk: desk.delete_schedule(schedule_id, by=actor, reason=given["reason"]))
    return told(acted, f"schedule {schedule_id} is deleted", given["as_json"])


def _change(action: str, schedule_id: str, given: dict[str, Any]) -> int:
    actor = who(given["by"])

    async def work(desk: Desk) -> Acted:
        act = desk.pause_schedule if action == "pause" else desk.resume_schedule
        return await act(schedule_id, by=actor, reason=given["reason"])

    word = "paused" if action == "pause" else "resumed"
    return told(acting(given["url"], work), f"schedule {schedule_id} is {word}", given["as_json"])
