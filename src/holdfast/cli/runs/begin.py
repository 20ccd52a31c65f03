"""`holdfast start`, `result`, `ask`, `query` and `set`: what a caller does with one run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.act import chosen, duration_of, json_of, shared, told
from holdfast.cli.database import acting, app_option, code_at_hand, looking, url_option, who
from holdfast.cli.output import emit, harmless, say, say_wrapped
from holdfast.cli.runs.many import act_on_many
from holdfast.cli.shell.names import FILTER, RUN, WORKFLOW
from holdfast.errors import BadInput
from holdfast.looking.views import Acted, Answer, ResultView

if TYPE_CHECKING:
    from holdfast.looking import Desk

NOT_ENDED, TIMED_OUT = 6, 124
_A_WHILE = timedelta(minutes=1)
"""For how long is waited at once."""

timeout_option = click.option("--timeout", metavar="TIME", help="How long to wait at most: 30s, 5min, 2h, 1d.")


@click.command("start", short_help="Start a run.")
@click.argument("workflow", metavar="WORKFLOW", type=WORKFLOW)
@click.argument("payload", metavar="[JSON]", required=False)
@click.option("-i", "--input", "inputs", multiple=True, metavar="NAME=VALUE", help="One argument; JSON, or a text.")
@click.option("--id", "run_id", help="Its id: a second start with the same input is the same run.")
@click.option("--key", help="Its unique key: held while it is open.")
@click.option("--tenant", help="For whom it is started.")
@click.option("--priority", type=click.IntRange(-100, 100), default=0, help="Higher ones are continued first.")
@click.option("--delay", metavar="TIME", help="Begin after so long: 30min, 2h, 1d.")
@click.option("--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="What it is found by.")
@app_option
@shared
def start_command(workflow: str, payload: str | None, **given: Any) -> int:
    """Start a run of a workflow, with its arguments as a JSON object or one by one; workers begin it.

    The arguments are checked here with --app, else by the worker that begins it.

    \b
    Example: holdfast start fulfil '{"order": "lamp"}' --id order-88405
    """
    from holdfast.looking.acting.requests import StartRequest

    request = StartRequest(
        workflow=workflow,
        arguments=arguments_of(payload, given["inputs"]),
        id=given["run_id"],
        unique_key=given["key"],
        tenant=given["tenant"],
        priority=given["priority"],
        delay=duration_of("--delay", given["delay"]),
        attributes=_pairs("--attribute", given["attributes"]) or None,
    )
    actor, code = who(given["by"]), code_at_hand(given["app"], needed=False)

    async def work(desk: Desk) -> tuple[Acted, str]:
        acted = await desk.start(request, by=actor, reason=given["reason"])
        return acted, await _not_known(desk, workflow)

    acted, warning = acting(given["url"], work, code)
    if given["as_json"]:
        emit("holdfast.acted/1", acted)
    else:
        say(acted.run)
    if warning:
        say_wrapped(warning, err=True)
    return 0


async def _not_known(desk: Desk, workflow: str) -> str:
    """Return a warning if workers are alive, all have told what they know, and none of them knows a workflow."""
    alive = [worker for worker in await desk.workers() if worker.state == "alive"]
    known = sorted({name for worker in alive for name in worker.workflows})
    if workflow in known or not alive or not all(worker.holdfast for worker in alive):
        return ""
    from difflib import get_close_matches

    near = get_close_matches(workflow, known, 1)
    return f"no worker that is alive knows workflow {workflow!r}{f'; did you mean {near[0]}?' if near else ''}"


def arguments_of(payload: str | None, inputs: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a run by name: those of a JSON object, and those that were given one by one."""
    whole = json_of(payload) if payload is not None else {}
    if not isinstance(whole, dict):
        raise BadInput(f"the input of a run is an object of its arguments by name, not {payload}; or say -i name=value")
    return {**whole, **_pairs("-i", inputs)}


def _pairs(option: str, given: Sequence[str]) -> dict[str, Any]:
    """Return names and values: JSON where it can be read as such, else texts."""
    found: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise BadInput(f"{option} {each}: write name=value")
        if name in found:
            raise BadInput(f"{option} {each}: {name} is given twice")
        try:
            found[name] = json.loads(value)
        except (ValueError, RecursionError):
            found[name] = value
    return found


@click.command("result", short_help="Write the result of a run.")
@click.argument("run_id", metavar="ID", type=RUN)
@click.option("--wait", is_flag=True, help="Wait until it has ended.")
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the result alone.")
@url_option
def result_command(run_id: str, wait: bool, timeout: str | None, as_json: bool, url: str | None) -> int:
    """Write the result of a run as JSON. Ends with 1 if it failed or was cancelled, 6 if it has not ended, 124 when
    --timeout has passed.

    \b
    Example: holdfast result order-88405 --wait --timeout 5min
    """
    most = duration_of("--timeout", timeout)
    view = looking(url, lambda desk: _ended(desk, run_id, wait or most is not None, most))
    if as_json:
        emit("holdfast.result/1", view)
    elif view.status == "completed":
        click.echo(harmless(msgspec.json.encode(view.output)))
    else:
        say(f"{run_id}: {view.said}", err=True)
    if view.ended:
        return 0 if view.status == "completed" else 1
    return TIMED_OUT if most is not None else NOT_ENDED


async def _ended(desk: Desk, run_id: str, wait: bool, most: timedelta | None) -> ResultView:
    """Return how a run ended, once it has, or as it stands when it was waited for long enough."""
    while True:
        a_while = (most if most is not None else _A_WHILE) if wait else timedelta(0)
        view = await desk.result(run_id, wait=a_while, relative=True)
        if view.ended or not wait or most is not None:
            return view


@click.command("ask", short_help="Send a run a request, and write its reply.")
@click.argument("run_id", metavar="ID", type=RUN)
@click.argument("name")
@click.argument("payload", metavar="[JSON]", required=False)
@timeout_option
@shared
def ask_command(
    run_id: str, name: str, payload: str | None, timeout: str | None, reason: str, by: str | None, as_json: bool,
    url: str | None,
) -> int:  # fmt: skip
    """Send a run a request and wait for its reply, a minute unless --timeout says otherwise; a worker must be there.

    \b
    Example: holdfast ask account-7 add 4
    """
    value, most = json_of(payload), duration_of("--timeout", timeout or "60s")
    assert most is not None

    actor = who(by)
    try:
        answer = acting(url, lambda desk: desk.ask(run_id, name, value, by=actor, reason=reason, timeout=most))
    except TimeoutError:
        say(f"{run_id}: no reply to {name} yet; the request stays, and is not to be sent again", err=True)
        return TIMED_OUT
    _answered(answer, as_json)
    return 0


@click.command("query", short_help="Ask the code of a run about its state.")
@click.argument("run_id", metavar="ID", type=RUN)
@click.argument("name")
@click.option("-i", "--input", "inputs", multiple=True, metavar="NAME=VALUE", help="One argument; JSON, or a text.")
@app_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the answer alone.")
@url_option
def query_command(
    run_id: str, name: str, inputs: tuple[str, ...], app: str | None, as_json: bool, url: str | None
) -> int:
    """Ask the code of a run about its state, by replaying it here: it needs the code, and changes nothing.

    \b
    Example: holdfast query account-7 total --app shop.main:engine
    """
    arguments = _pairs("-i", inputs)

    _answered(acting(url, lambda desk: desk.query(run_id, name, arguments), code_at_hand(app)), as_json)
    return 0


def _answered(answer: Answer, as_json: bool) -> None:
    if as_json:
        emit("holdfast.answer/1", answer)
    else:
        click.echo(harmless(msgspec.json.encode(answer.answer)))


@click.command("set", short_help="Give runs attributes, by which they are found.")
@click.argument("words", nargs=-1, metavar="[ID] NAME=VALUE...", type=RUN)
@click.option("--where", metavar="FILTER", type=FILTER, help="Instead of an ID: the runs that fit.")
@chosen
@shared
def set_command(words: tuple[str, ...], where: str | None, **given: Any) -> int:
    """Give a run, or runs that fit a filter, attributes by which they are found; null takes one away.

    \b
    Example: holdfast set order-88405 customer=c-2210 size=3
    """
    from holdfast.looking.acts import Options

    ids, pairs = ([], words) if where else (list(words[:1]), words[1:])
    if not pairs:
        raise click.UsageError("name what to set: name=value")
    wanted = _pairs("set", pairs)
    options = Options(by=who(given["by"]), reason=given["reason"], dry_run=given["dry_run"], attributes=wanted)
    if where:
        return act_on_many("attributes", [], options, {**given, "where": where})
    said = f"{ids[0]} {'would have' if options.dry_run else 'has'} {', '.join(pairs)}"
    acted = acting(given["url"], lambda desk: desk.act("attributes", ids[0], options))
    return told(msgspec.structs.replace(acted, changed=True) if options.dry_run else acted, said, given["as_json"])
