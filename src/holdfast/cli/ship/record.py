"""`holdfast record`: the history of a run in production as a file, which a test replays."""

from __future__ import annotations

import click

from holdfast.cli.database import looking, url_option
from holdfast.cli.output import harmless, say
from holdfast.cli.shell.names import RUN


@click.command("record", short_help="Write a run's history to a file that a test replays.")
@click.argument("run_id", metavar="ID", type=RUN)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, allow_dash=True), default="-", help="The file; - is stdout."
)
@click.option("--replace", is_flag=True, help="Take the place of a file that is there.")
@url_option
def record_command(run_id: str, output: str, replace: bool, url: str | None) -> None:
    """Write a run's input and history to a file, as they stand; `holdfast.testing.replay` takes it.

    It has the payloads of the run in plain text, so only its owner may read it.

    \b
    Example: holdfast record order-88405 -o order-88405.json
    """
    recorded = looking(url, lambda desk: desk.record(run_id))
    text = recorded.to_json() + "\n"
    if output == "-":
        click.echo(harmless(text.encode()), nl=False)
        return
    from holdfast.transfer.output import NewFile

    with NewFile(output, replace=replace) as new:
        new.file.write(text.encode())
        new.publish()
    facts = len(recorded.entries)
    say(f"recorded {run_id}, {facts:,} fact{'' if facts == 1 else 's'}, to {output}; in a test:", err=True)
    say(f'  assert replay("{output}", {recorded.workflow}).status == "..."', err=True)
