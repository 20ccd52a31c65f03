"""`holdfast ui`: the dashboard on this machine."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from collections.abc import Callable
from socket import socket
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.database import (
    DEFAULT_FILE,
    NoDatabase,
    app_option,
    careful_store,
    code_at_hand,
    database,
    missing_file,
    setting,
    shown_address,
    url_option,
    who,
)
from holdfast.cli.output import say
from holdfast.contract.tokens import ROLES

if TYPE_CHECKING:
    from holdfast.web.auth import Principal
    from holdfast.web.standalone import Serving


@click.command("ui", short_help="Serve the dashboard on this machine, and open it.")
@click.option("--bind", metavar="ADDRESS:PORT", default="127.0.0.1:7780", show_default=True, help="Where to listen.")
@click.option(
    "--allow-host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name under which browsers reach it; several. Those of this machine need not be named.",
)
@click.option(
    "--tls-cert", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="Serve HTTPS: the certificate."
)
@click.option(
    "--tls-key", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="The key of the certificate."
)
@click.option("--behind-proxy", is_flag=True, help="A reverse proxy speaks TLS, and nothing else reaches this address.")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default="admin",
    show_default=True,
    help="What the browser may do that the link lets in.",
)
@click.option(
    "--redact",
    metavar="PATHS",
    help="Values of payloads that no one is shown, by the ends of their paths: card,headers.*; HOLDFAST_REDACT, or "
    "redact = [...] under [tool.holdfast].",
)
@click.option("--no-open", is_flag=True, help="Only write the link.")
@app_option
@url_option
def ui_command(
    bind: str,
    hosts: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    behind_proxy: bool,
    role: Any,
    redact: str | None,
    no_open: bool,
    app: str | None,
    url: str | None,
) -> int:
    """Serve the dashboard on this machine, and open it.

    It writes a link that lets one browser in, once; the database is made if it is not there. Runs are advanced by the
    workers that there are, not by this command. Interrupt it to stop.

    On an address that other machines can reach it asks for tokens (`holdfast token create`) and needs --allow-host and
    TLS, its own or that of a proxy.

    \b
    Example: holdfast ui --no-open --bind 127.0.0.1:0
    """
    from holdfast.web.auth import Principal
    from holdfast.web.standalone import Serving, check_serving, listen

    marked = setting("redact", redact)
    paths = tuple(each.strip() for each in marked.value.split(",") if each.strip()) if marked is not None else ()
    serving = Serving(
        bind=bind, hosts=hosts, certificate=tls_cert, key=tls_key, behind_proxy=behind_proxy, redact=paths
    )
    check_serving(serving)
    try:
        where = database(url).value
    except NoDatabase:
        where = f"sqlite:///{DEFAULT_FILE}"
    workflows = code_at_hand(app, needed=False)
    listening = listen(bind)

    def ready(link: str) -> None:
        click.echo(link)
        sys.stdout.flush()
        lets = "lets one browser in, once" if serving.local else "asks for a token: holdfast token create"
        say(f"{lets}; interrupt to stop", err=True)
        if serving.local and not no_open and sys.stdout.isatty():
            webbrowser.open(link)

    try:
        asyncio.run(_serve(where, workflows, listening, serving, Principal(who(None), role), ready))
    except KeyboardInterrupt:
        pass  # that is how it is stopped
    finally:
        listening.close()
    return 0


async def _serve(
    where: str,
    workflows: list[Any],
    listening: socket,
    serving: Serving,
    principal: Principal,
    ready: Callable[[str], None],
) -> None:
    from holdfast import Engine
    from holdfast.web.standalone import serve

    store = careful_store(where)
    made = missing_file(store)
    async with Engine(store=store, workflows=workflows, run_workflows=False, retention=None) as engine:
        if made:
            say(f"there was no such database; made {shown_address(where, store)}", err=True)
        await serve(engine, listening, serving, principal, ready)
