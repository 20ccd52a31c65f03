"""`holdfast config`: each setting of the command line, and where its value came from; and its completion."""

from __future__ import annotations

import os

import click
import msgspec

from holdfast.cli.database import DEFAULT_FILE, Setting, app_option, json_option, setting, token, url_option, zone
from holdfast.cli.output import emit, say, table
from holdfast.errors import BadInput
from holdfast.texts import masked, passwords

_NOBODY = "nothing: --token-file, HOLDFAST_TOKEN; only servers ask for one"
_SHELLS = ("bash", "zsh", "fish")
_WHERE = {
    "bash": 'eval "$(holdfast completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(holdfast completion zsh)"   in ~/.zshrc',
    "fish": "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
}


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of a face, and where its value came from."""

    name: str
    value: str
    source: str


@click.command("config", short_help="Show each setting, and where its value came from.")
@app_option
@json_option
@url_option
def config_command(app: str | None, as_json: bool, url: str | None) -> None:
    """Show each setting and where its value came from: an option, the environment, a file, or nothing of these.

    \b
    Example: holdfast config
    """
    views = settings(url, app)
    if as_json:
        emit("holdfast.config/1", views)
        return
    table(("SETTING", "VALUE", "FROM"), [(each.name, each.value, each.source) for each in views])


def settings(url: str | None, app: str | None) -> list[SettingView]:
    """Return the settings of the command line, with passwords left out."""
    from holdfast.cli.database import who

    found = [
        ("url", setting("url", url) or _here()),
        (
            "app",
            setting("app", app) or Setting("", "nothing: --app, HOLDFAST_APP, [tool.holdfast]"),
        ),
        ("token", Setting("***", given.source) if (given := token()) is not None else Setting("", _NOBODY)),
        ("actor", _environment("HOLDFAST_ACTOR", Setting(who(None), "the login name"))),
        (
            "redact",
            setting("redact", None) or Setting("", "nothing: holdfast ui --redact, HOLDFAST_REDACT, [tool.holdfast]"),
        ),
        ("time zone", _environment("HOLDFAST_TZ", Setting("", "this machine"))),
        ("colours", _colours()),
        ("pager", _environment("HOLDFAST_PAGER", Setting("", "nothing: long tables are written as they are"))),
    ]
    zone()  # one that does not exist is refused
    return [
        SettingView(name=name, value=masked(it.value, passwords([it.value])), source=it.source) for name, it in found
    ]


def _here() -> Setting:
    if os.path.exists(DEFAULT_FILE):
        return Setting(f"sqlite:///{DEFAULT_FILE}", "the file that is here")
    return Setting("", "nothing: --url, HOLDFAST_URL, [tool.holdfast]")


def _environment(name: str, otherwise: Setting) -> Setting:
    return Setting(os.environ[name], name) if os.environ.get(name) else otherwise


def _colours() -> Setting:
    if os.environ.get("FORCE_COLOR"):
        return Setting("always", "FORCE_COLOR")
    if os.environ.get("NO_COLOR"):
        return Setting("never", "NO_COLOR")
    return Setting("at a terminal", "nothing says otherwise")


@click.command("completion", short_help="Write the completion for bash, zsh or fish.")
@click.argument("shell", metavar="SHELL")
def completion_command(shell: str) -> None:
    """Write the completion for bash, zsh or fish: of commands, options, runs, workflows and filters.

    \b
    Example: holdfast completion bash
    """
    from click.shell_completion import get_completion_class

    from holdfast.cli.main import commands

    made = get_completion_class(shell) if shell in _SHELLS else None
    if made is None:
        raise BadInput(f"there is completion for {', '.join(_SHELLS)}, not for {shell!r}")
    click.echo(made(commands, {}, "holdfast", "_HOLDFAST_COMPLETE").source())
    say(f"# {_WHERE[shell]}", err=True)
