"""`holdfast ui`: the dashboard on this machine."""

from __future__ import annotations

import asyncio
import sys
import webbrowser

import click

from holdfast.cli.database import DEFAULT_FILE, NoDatabase, app_option, code_at_hand, database, url_option, who
from holdfast.cli.output import say


@click.command("ui", short_help="Serve the dashboard on this machine, and open it.")
@click.option("--bind", metavar="ADDRESS:PORT", default="127.0.0.1:7780", show_default=True, help="Where to listen.")
@click.option(
    "--role",
    type=click.Choice(["viewer", "reader", "operator", "admin"]),
    default="admin",
    show_default=True,
    help="What the browser may do that is let in.",
)
@click.option("--no-open", is_flag=True, help="Only write the link.")
@app_option
@url_option
def ui_command(bind: str, role: str, no_open: bool, app: str | None, url: str | None) -> int:
    """Serve the dashboard on this machine, and open it.

    It writes a link that lets one browser in, once; the database is made if it is not there. Runs are advanced by the
    workers that there are, not by this command. Interrupt it to stop.

    \b
    Example: holdfast ui --no-open --bind 127.0.0.1:0
    """
    from holdfast import Engine
    from holdfast.web.auth import Principal
    from holdfast.web.standalone import listen, serve

    try:
        where = database(url).value
    except NoDatabase:
        where = f"sqlite:///{DEFAULT_FILE}"
    workflows = code_at_hand(app, needed=False)
    listening = listen(bind)

    def ready(link: str) -> None:
        click.echo(link)
        sys.stdout.flush()
        say("lets one browser in, once; interrupt to stop", err=True)
        if not no_open and sys.stdout.isatty():
            webbrowser.open(link)

    async def main() -> None:
        async with Engine(where, workflows=workflows, run_workflows=False, retention=None) as engine:
            principal = Principal(who(None), role)  # type: ignore[arg-type]  # click has checked it
            await serve(engine, listening, principal, ready)

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass  # that is how it is stopped
    finally:
        listening.close()
    return 0
