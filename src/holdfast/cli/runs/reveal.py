"""`holdfast reveal`: one value of a run as it is stored, with a reason and on record."""

from __future__ import annotations

import json
from typing import Any, get_args, get_type_hints

import click

from holdfast.cli.act import shared
from holdfast.cli.database import acting, who
from holdfast.cli.output import emit, harmless
from holdfast.cli.shell.names import RUN
from holdfast.looking.acting.requests import RevealRequest

_FIELDS = get_args(get_type_hints(RevealRequest)["field"])


@click.command("reveal", short_help="Write one masked value of a run, on record.")
@click.argument("run_id", metavar="ID", type=RUN)
@click.argument("field", type=click.Choice(_FIELDS))
@click.argument("pointer", metavar="[POINTER]", default="")
@click.option("--step", default="", metavar="PATH", help="Whose result, progress or arguments.")
@click.option("--number", type=int, default=0, help="Of the fact, or of the message in the inbox.")
@shared
def reveal_command(run_id: str, field: str, pointer: str, step: str, number: int, **given: Any) -> None:
    """Write a value of a run as it is stored, which dashboards mask; who saw it, and why, is put on record first.

    POINTER says where it stands in the payload, as /card/number or /lines/0/price; without it all of the payload is
    written. A reason is needed.

    \b
    Example: holdfast reveal order-88405 input /order --reason 'INC-7: the bank asks for it'
    """
    request = RevealRequest(field=field, step=step, n=number, pointer=pointer)  # type: ignore[arg-type]  # one of them
    actor, reason = who(given["by"]), given["reason"]
    shown = acting(given["url"], lambda desk: desk.reveal(run_id, request, by=actor, reason=reason))
    if given["as_json"]:
        emit("holdfast.revealed/1", shown)
    else:
        click.echo(harmless(json.dumps(shown.value, indent=2, ensure_ascii=False).encode()))
