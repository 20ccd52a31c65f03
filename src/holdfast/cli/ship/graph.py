"""`holdfast graph`: which steps of a workflow follow which."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.database import app_option, json_option, looking, setting, url_option
from holdfast.cli.output import emit, say
from holdfast.cli.shell.names import WORKFLOW

if TYPE_CHECKING:
    from holdfast.looking.about.graph import GraphView


@click.command("graph", short_help="Show which steps of a workflow follow which.")
@click.argument("workflow", metavar="WORKFLOW", type=WORKFLOW)
@click.option("--mermaid", "as_mermaid", is_flag=True, help="A drawing in the language of Mermaid.")
@app_option
@json_option
@url_option
def graph_command(workflow: str, as_mermaid: bool, app: str | None, as_json: bool, url: str | None) -> None:
    """Show which steps of a workflow follow which, as its newest 20 runs went.

    If --app, HOLDFAST_APP or [tool.holdfast] names code that declares it as a graph, it is shown as it is declared.

    \b
    Example: holdfast graph fulfil --mermaid
    """
    named = setting("app", app)
    view: GraphView = looking(url, lambda desk: desk.graph(workflow), named.value if named is not None else None)
    if as_json:
        emit("holdfast.graph/1", view)
    elif as_mermaid:
        from holdfast.looking.about.graph import mermaid

        for line in mermaid(view).splitlines():
            say(line)
    else:
        _show(view)


def _show(view: GraphView) -> None:
    came = (
        "as it is declared" if view.declared else f"as its newest {view.runs} run{'' if view.runs == 1 else 's'} went"
    )
    say(f"{view.workflow}, {came}:")
    width = max((len(node.name) for node in view.nodes), default=0)
    for node in view.nodes:
        after = [edge for edge in view.edges if edge.before == node.name]
        followed = ", ".join(f"{edge.after}{_often(edge.runs, node.runs)}" for edge in after)
        say(f"  {node.name:<{width}}  -> {followed}" if after else f"  {node.name}")
    if not view.nodes:
        say("  it has called no step", err=True)


def _often(runs: int, of: int) -> str:
    return f" ({runs} of {of} runs)" if runs < of else ""
