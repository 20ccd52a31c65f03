"""`holdfast cancel`, `pause`, `resume`, `retry`, `rerun`, `terminate`, `recover`, `send`, `publish`: acting."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.database import acting, url_option, who
from holdfast.cli.endings import NOTHING_CHANGED
from holdfast.cli.output import emit, say, say_wrapped
from holdfast.cli.runs.many import PAST, act_on_many
from holdfast.cli.shell.names import FILTER, RUN
from holdfast.errors import BadInput, CannotReopen
from holdfast.looking.views import Acted
from holdfast.texts import shortened

if TYPE_CHECKING:
    from holdfast.looking import Desk
    from holdfast.looking.acting.requests import WorkKind

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)min)?(?:(\d+)s)?")
_UNITS = ("days", "hours", "minutes", "seconds")
_LONGEST = timedelta(days=36_500)
_COMPLETED = "it had completed"
"""Why a step may have had an effect that needs not be said: that it is done again was asked for."""


def shared(command: F) -> F:
    """Give a command what every act takes."""
    for option in (
        url_option,
        click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text."),
        click.option("--by", help="Who acts, for the audit trail: HOLDFAST_ACTOR, or the login name, unless given."),
        click.option("--reason", default="", help="Why, for the audit trail."),
    ):
        command = option(command)
    return command


def chosen(command: F) -> F:
    """Give a command what an act on several runs takes."""
    for option in (
        click.option("--expect", type=int, help="With --yes: how many runs a dry run has shown."),
        click.option("--yes", is_flag=True, help="Do not ask; needs --expect where it is more than one run."),
        click.option("--dry-run", is_flag=True, help="Only say what would be done."),
    ):
        command = option(command)
    return command


def _on_runs(command: F) -> F:
    """Give a command what chooses runs."""
    command = chosen(command)
    for option in (
        click.option("--where", metavar="FILTER", type=FILTER, help="Act on the runs that fit, as in `holdfast list`."),
        click.argument("run_ids", nargs=-1, metavar="[ID]...", type=RUN),
    ):
        command = option(command)
    return shared(command)


@click.command("cancel", short_help="Ask runs to stop.")
@_on_runs
@click.option("--compensate", is_flag=True, help="Undo what they have done, too.")
def cancel_command(compensate: bool, **given: Any) -> int:
    """Ask runs to stop; their code is told, and may clean up.

    \b
    Example: holdfast cancel order-88405 --reason "ordered twice"
    """
    return _act("cancel", given, compensate=compensate)


@click.command("pause", short_help="Let runs, a workflow, a queue or a limit begin nothing more.")
@_on_runs
@click.option("--for", "duration", metavar="TIME", help="Go on by itself after so long: 30min, 2h, 1d.")
@click.option("--workflow", help="Pause all runs of a workflow, those to come too.")
@click.option("--queue", help="Pause all that waits in a queue.")
@click.option("--limit", help="Pause all steps under a limit.")
def pause_command(
    duration: str | None, workflow: str | None, queue: str | None, limit: str | None, **given: Any
) -> int:
    """Let runs begin no step until they are resumed; what is under way finishes.

    \b
    Example: holdfast pause --workflow fulfil --reason "bank down, INC-7"
    """
    if workflow or queue or limit:
        return _hold_back(given, True, workflow, queue, limit)
    return _act("pause", given, duration=duration_of("--for", duration))


@click.command("resume", short_help="Let paused or cancelled runs, a workflow, a queue or a limit go on.")
@_on_runs
@click.option("--workflow", help="Let the runs of a paused workflow go on.")
@click.option("--queue", help="Let a paused queue go on.")
@click.option("--limit", help="Let a paused limit go on.")
def resume_command(workflow: str | None, queue: str | None, limit: str | None, **given: Any) -> int:
    """Let paused runs go on, and cancelled ones from where they were.

    \b
    Example: holdfast resume --where "status:paused workflow:fulfil"
    """
    if workflow or queue or limit:
        return _hold_back(given, False, workflow, queue, limit)
    return _act("resume", given)


@click.command("retry", short_help="Let failed runs go on from the step that failed.")
@_on_runs
def retry_command(**given: Any) -> int:
    """Let failed runs go on from the step that failed; finished steps do not run again.

    \b
    Example: holdfast retry --where "workflow:fulfil status:failed created:-24h"
    """
    return _act("retry", given)


@click.command("rerun", short_help="Let ended runs do a step, and all after it, again.")
@_on_runs
@click.option(
    "--from", "from_step", metavar="STEP", help="The path of the step to begin with; else from the beginning."
)
def rerun_command(from_step: str | None, **given: Any) -> int:
    """Let an ended run do a step, and all that came after it, again; with --dry-run it says which steps those are.

    \b
    Example: holdfast rerun order-88405 --from charge --dry-run
    """
    return _act("rerun", given, from_step=from_step)


@click.command("terminate", short_help="End runs here and now, without asking their code.")
@_on_runs
def terminate_command(**given: Any) -> int:
    """End runs here and now, without asking their code and undoing nothing; it needs a reason.

    \b
    Example: holdfast terminate order-88405 --reason "the customer is gone, INC-9"
    """
    if not given["reason"].strip() and not given["dry_run"]:
        raise click.UsageError("terminate needs --reason")
    return _act("terminate", given)


@click.command("recover", short_help="Try blocked runs again with the code there is now.")
@_on_runs
def recover_command(**given: Any) -> int:
    """Try blocked runs again, once their code is put right and deployed.

    \b
    Example: holdfast recover --where "status:blocked workflow:fulfil"
    """
    return _act("recover", given)


@click.command("nudge", short_help="Let steps that wait to be tried again be tried now.")
@_on_runs
@click.option("--step", default="", metavar="PATH", help="Only this step; else all that wait to be tried again.")
def nudge_command(step: str, **given: Any) -> int:
    """Let steps that wait to be tried again, or whose condition puts them off, be tried now.

    \b
    Example: holdfast nudge order-88405
    """
    return _act("nudge", given, step=step)


@click.command("send", short_help="Send a run a message.")
@click.argument("run_id", metavar="ID", type=RUN)
@click.argument("name")
@click.argument("payload", metavar="[JSON]", required=False)
@click.option("--id", "message_id", help="Send it at most once: a second message with this id is not sent.")
@shared
def send_command(
    run_id: str, name: str, payload: str | None, message_id: str | None, reason: str, by: str | None, as_json: bool,
    url: str | None,
) -> int:  # fmt: skip
    """Send a run a message, with a payload in JSON; it is on record who sent it.

    \b
    Example: holdfast send order-88405 approved '{"by": "kim"}'
    """
    value, actor = json_of(payload), who(by)

    acted = acting(url, lambda desk: desk.send(run_id, name, value, id=message_id, by=actor, reason=reason))
    return told(acted, f"sent {name} to {run_id}", as_json)


@click.command("publish", short_help="Publish an event to the runs that wait for it.")
@click.argument("name")
@click.argument("payload", metavar="[JSON]", required=False)
@click.option("--id", "event_id", help="Publish it at most once.")
@shared
def publish_command(
    name: str, payload: str | None, event_id: str | None, reason: str, by: str | None, as_json: bool, url: str | None
) -> int:
    """Publish an event, with a payload in JSON, as an event without rules of its own; it is on record who did.

    \b
    Example: holdfast publish stock '{"item": "lamp"}'
    """
    value, actor = json_of(payload), who(by)

    acted = acting(url, lambda desk: desk.publish(name, value, id=event_id, by=actor, reason=reason))
    return told(acted, acted.said, as_json)


def told(acted: Acted, said: str, as_json: bool) -> int:
    """Say what came of an act, and return the code that the command ends with."""
    if as_json:
        emit("holdfast.acted/1", acted)
    elif acted.changed:
        for line in said.split("\n"):
            say(line)
    else:
        say_wrapped(f"{acted.run}: nothing changed: {acted.said}", err=True)
    return 0 if acted.changed else NOTHING_CHANGED


def json_of(text: str | None) -> Any:
    """Return a payload that was given as JSON."""
    import json

    if text is None:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(
            f"the payload is no JSON: {error.msg} at position {error.pos}; a text is written '\"so\"'"
        ) from None
    except RecursionError:
        raise BadInput("the payload is nested too deep") from None
    except ValueError:  # what Python says of it advises to lift its limit
        raise BadInput("the payload has a number that is too long") from None


def duration_of(option: str, text: str | None) -> timedelta | None:
    """Return a duration that was given as numbers with units, the largest first."""
    if text is None:
        return None
    found = _DURATION.fullmatch(text) if text else None
    if found is None:
        raise BadInput(f"{option} {text}: write a number and s, min, h or d, as in 30min or 1h30min")
    try:
        lasts = timedelta(**{unit: int(each or 0) for unit, each in zip(_UNITS, found.groups(), strict=True)})
    except (OverflowError, ValueError):
        lasts = timedelta.max
    if lasts > _LONGEST:
        raise BadInput(f"{option} {shortened(text, 40)}: is longer than {_LONGEST.days:,} days")
    return lasts


def _hold_back(given: dict[str, Any], paused: bool, workflow: str | None, queue: str | None, limit: str | None) -> int:
    if given["run_ids"] or given["where"] or sum(each is not None for each in (workflow, queue, limit)) != 1:
        raise click.UsageError("name runs, or one workflow, queue or limit")
    by, reason = who(given["by"]), given["reason"]
    kind: WorkKind = "workflow" if workflow else "queue" if queue else "limit"
    name, word = workflow or queue or limit or "", "paused" if paused else "resumed"
    if given["dry_run"]:
        say(f"{kind} {name} would be {word}")
        return 0

    async def work(desk: Desk) -> Acted:
        act = desk.pause_work if paused else desk.resume_work
        return await act(kind, name, by=by, reason=reason)

    return told(acting(given["url"], work), f"{kind} {name} is {word}", given["as_json"])


# One run, or many.


def _act(action: str, given: dict[str, Any], **more: Any) -> int:
    from holdfast.looking.acts import Options

    ids = given_ids(given["run_ids"])
    if bool(ids) == bool(given["where"]):
        raise click.UsageError("name runs by their ids, or with --where FILTER, one of the two")
    options = Options(by=who(given["by"]), reason=given["reason"], dry_run=given["dry_run"], **more)
    if len(ids) == 1:
        return _one(action, ids[0], options, given)
    return act_on_many(action, ids, options, given)


def given_ids(run_ids: Sequence[str]) -> list[str]:
    """Return ids as they were given, or those of stdin where - is."""
    if "-" not in run_ids:
        return [*run_ids]
    if len(run_ids) > 1:
        raise click.UsageError("- takes ids from stdin: leave out the others")
    try:
        return [line.strip() for line in sys.stdin if line.strip()]
    except UnicodeDecodeError:
        raise BadInput("what stdin has is no text in UTF-8") from None


def _one(action: str, run_id: str, options: Any, given: dict[str, Any]) -> int:
    try:
        acted = acting(given["url"], lambda desk: desk.act(action, run_id, options))
    except CannotReopen as error:
        acted = Acted(run=run_id, action=action, changed=False, said=str(error), error="CannotReopen")
    if given["as_json"]:
        emit("holdfast.acted/1", acted)
    elif acted.changed or (options.dry_run and not acted.error and not acted.said.startswith("it is ")):
        _tell(action, acted, options.dry_run)
    else:
        say_wrapped(f"{run_id}: nothing changed: {acted.said or 'it is not in a state for that'}", err=True)
    fits = acted.changed or (options.dry_run and not acted.error and not acted.said.startswith("it is "))
    return 0 if fits else NOTHING_CHANGED


def _tell(action: str, acted: Acted, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    said = f", {acted.said}" if acted.said else ""
    being = "being " if action in ("cancel", "pause") else ""  # the run's worker does it, in its own time
    say(f"{acted.run} {would or f'is {being}'}{PAST[action]}{said}")
    for name, items in (
        ("steps that run again", acted.steps),
        ("of these were undone, and get new idempotency keys", acted.undone),
        ("children that go on", acted.children),
    ):
        if items:
            say(f"  {name}: {', '.join(items)}")
    for step, doubt in acted.unsure.items():
        if doubt != _COMPLETED:
            say_wrapped(f"  {step} may have had an effect: {doubt}", hang=4)
