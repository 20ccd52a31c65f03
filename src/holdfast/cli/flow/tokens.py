"""`holdfast token`: tokens by which the HTTP API recognizes programs and browsers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from holdfast.cli.act import duration_of, shared
from holdfast.cli.database import acting, json_option, local_time, looking, url_option, who
from holdfast.cli.endings import NOTHING_CHANGED
from holdfast.cli.output import emit, listed, say, say_wrapped
from holdfast.contract.tokens import ROLES


class _Tokens(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, "create" if cmd_name == "new" else cmd_name)


@click.group("token", cls=_Tokens, short_help="Tokens of the HTTP API: create, list, revoke.")
def token_group() -> None:
    """Make and revoke tokens, by which programs and browsers are known to the HTTP API."""


@token_group.command("create", short_help="Make a token, and write it once.")
@click.option("--name", help="What its bearer is called in the audit trail; yours, unless given.")
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True, help="What its bearer may do.")
@click.option(
    "--expires", metavar="TIME", default="90d", show_default=True, help="For how long it may be used: 12h, 90d, never."
)
@shared
def create_token(name: str | None, role: Any, expires: str, **given: Any) -> int:
    """Make a token, and write it: it is shown this once, and the database keeps only its hash.

    \b
    Example: holdfast token create --name kim --role operator --expires 30d
    """
    from holdfast.looking.acting.tokens import TokenRequest

    lasts: timedelta | None = None if expires == "never" else duration_of("--expires", expires)
    by = who(given["by"])
    request = TokenRequest(name=name if name is not None else by, role=role, expires_in=lasts)
    made = acting(given["url"], lambda desk: desk.create_token(request, by=by, reason=given["reason"]))
    if given["as_json"]:
        emit("holdfast.token/1", made)
        return 0
    say(made.token)
    until = f"until {local_time(made.expires_at)}" if made.expires_at is not None else "until it is revoked"
    say_wrapped(
        f"{made.role} {made.name}, {until}; it is shown this once. Programs send it as Authorization: Bearer, the "
        f"command line takes it from HOLDFAST_TOKEN, and holdfast token revoke {made.id} ends it.",
        err=True,
    )
    return 0


@token_group.command("list", short_help="List tokens: whose they are, and until when.")
@click.option("--all", "everything", is_flag=True, help="Those that expired or were revoked, too.")
@json_option
@url_option
def list_tokens(everything: bool, as_json: bool, url: str | None) -> None:
    """List tokens: whose they are, what their bearers may do, and until when. Tokens themselves are kept nowhere.

    \b
    Example: holdfast token list
    """
    found = [each for each in looking(url, lambda desk: desk.tokens()) if everything or each.state == "live"]
    if as_json:
        emit("holdfast.tokens/1", found)
        return
    rows = [
        (each.state, each.id, each.role, local_time(each.created_at),
         local_time(each.revoked_at or each.expires_at) or "never", each.name)
        for each in found
    ]  # fmt: skip
    listed(("STATE", "ID", "ROLE", "CREATED", "ENDS", "NAME"), rows, "there are no tokens that may be used")


@token_group.command("revoke", short_help="Let a token be used no more.")
@click.argument("id")
@shared
def revoke_token(id: str, **given: Any) -> int:
    """Let a token, named by its id, be used no more: requests, sessions and open streams end.

    \b
    Example: holdfast token revoke 4f1c8a02b9d7 --reason "in a log"
    """
    by = who(given["by"])
    done = acting(given["url"], lambda desk: desk.revoke_token(id, by=by, reason=given["reason"]))
    if given["as_json"]:
        emit("holdfast.acted/1", done)
    else:
        say(f"{done.run}: {done.said}" if done.said else f"{done.run} can be used no more")
    return 0 if done.changed else NOTHING_CHANGED
