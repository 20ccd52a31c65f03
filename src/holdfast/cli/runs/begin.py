"""`holdfast start`, `result`, `ask`, `query` and `set`: what a caller does with one run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.act import duration_of, json_of, shared
from holdfast.cli.database import acting, app_option, code_at_hand, looking, url_option, who
from holdfast.cli.output import emit, harmless, say
from holdfast.cli.shell.names import RUN, WORKFLOW
from holdfast.errors import BadInput
from holdfast.looking.views import Acted, Answer, ResultView

if TYPE_CHECKING:
    from holdfast.looking import Desk

NOT_ENDED, TIMED_OUT = 6, 124
_LOOK_AGAIN = 0.2

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
    arguments = _arguments(payload, given["inputs"])
    options = {
        "id": given["run_id"], "unique_key": given["key"], "tenant": given["tenant"], "priority": given["priority"],
        "delay": duration_of("--delay", given["delay"]), "actor": who(given["by"]),
        "attributes": _pairs("--attribute", given["attributes"]) or None,
    }  # fmt: skip
    said = {name: value for name, value in options.items() if value is not None and value != 0}

    async def work(engine: Any) -> str:
        run = await engine.start(workflow, **arguments, **said)
        started: str = run.id
        return started

    started = acting(given["url"], work, code_at_hand(given["app"], needed=False))
    if given["as_json"]:
        emit("holdfast.acted/1", Acted(run=started, action="start", changed=True))
    else:
        say(started)
    return 0


def _arguments(payload: str | None, inputs: Sequence[str]) -> dict[str, Any]:
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
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
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

    async def work(desk: Desk) -> ResultView:
        return await ended(desk, run_id, wait or most is not None, most)

    view = looking(url, work)
    if as_json:
        emit("holdfast.result/1", view)
    elif view.status == "completed":
        click.echo(harmless(msgspec.json.encode(view.output)))
    else:
        say(f"{run_id}: {view.said}", err=True)
    if view.ended:
        return 0 if view.status == "completed" else 1
    return TIMED_OUT if most is not None else NOT_ENDED


async def ended(desk: Desk, run_id: str, wait: bool, most: timedelta | None) -> ResultView:
    """Return how a run ended, once it has, or as it stands when it was waited for long enough."""
    clock = asyncio.get_running_loop().time
    end = clock() + most.total_seconds() if most is not None else None
    while True:
        view = await desk.run(run_id, relative=True)
        over = view.head.ended_at is not None or view.head.status == "blocked"
        if over or not wait or (end is not None and clock() >= end):
            return ResultView(
                run=run_id, status=view.head.status, ended=over, said=view.head.why.sentence, output=view.output,
                error=view.error,
            )  # fmt: skip
        await asyncio.sleep(_LOOK_AGAIN if end is None else max(min(_LOOK_AGAIN, end - clock()), 0))


@click.command("ask", short_help="Send a run a request, and write its reply.")
@click.argument("run_id", metavar="ID", type=RUN)
@click.argument("name")
@click.argument("payload", metavar="[JSON]", required=False)
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the reply alone.")
@url_option
def ask_command(
    run_id: str, name: str, payload: str | None, timeout: str | None, as_json: bool, url: str | None
) -> int:
    """Send a run a request and wait for its reply, a minute unless --timeout says otherwise; a worker must be there.

    \b
    Example: holdfast ask account-7 add 4
    """
    value, most = json_of(payload), duration_of("--timeout", timeout) or timedelta(minutes=1)

    async def work(engine: Any) -> Any:
        return await engine.get(run_id).ask(name, value, timeout=most)

    try:
        answer = acting(url, work)
    except TimeoutError:
        say(f"{run_id}: no reply to {name} yet; the request stays, and is not to be sent again", err=True)
        return TIMED_OUT
    _answered(run_id, name, answer, as_json)
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

    async def work(engine: Any) -> Any:
        return await engine.get(run_id).query(name, **arguments)

    _answered(run_id, name, acting(url, work, code_at_hand(app)), as_json)
    return 0


def _answered(run_id: str, name: str, answer: Any, as_json: bool) -> None:
    if as_json:
        emit("holdfast.answer/1", Answer(run=run_id, name=name, answer=answer))
    else:
        click.echo(harmless(msgspec.json.encode(answer)))


@click.command("set", short_help="Give a run attributes, by which it is found.")
@click.argument("run_id", metavar="ID", type=RUN)
@click.argument("attributes", nargs=-1, required=True, metavar="NAME=VALUE...")
@shared
def set_command(
    run_id: str, attributes: tuple[str, ...], reason: str, by: str | None, as_json: bool, url: str | None
) -> int:
    """Give a run attributes, by which it is found; null takes one away. It is on record who did it.

    \b
    Example: holdfast set order-88405 customer=c-2210 size=3
    """
    wanted, actor = _pairs("set", attributes), who(by)

    async def work(engine: Any) -> None:
        await engine.get(run_id).set_attributes(wanted, by=actor, reason=reason)

    acting(url, work)
    if as_json:
        emit("holdfast.acted/1", Acted(run=run_id, action="set", changed=True))
    else:
        say(f"{run_id} has {', '.join(f'{name}={value}' for name, value in wanted.items())}")
    return 0
