"""The command `holdfast`: its arguments, its output, and its exit code.

Commands are loaded when they are called: `holdfast --help` needs none of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

import click


class _Where(NamedTuple):
    """Where a command is, and what it is for."""

    place: str
    help: str


GROUPS: dict[str, dict[str, _Where]] = {
    "Begin": {
        "demo": _Where("begin:demo_command", "Show an order that survives kill -9, twice, and the proof."),
        "new": _Where("begin:new_command", "Make a directory with a workflow, a test and a main that run."),
    },
    "Look": {
        "list": _Where("look:list_command", "List runs, newest first, each with why it is where it is."),
        "show": _Where("look:show_command", "Show one run: why, its input, its result or error, its steps."),
        "why": _Where("look:why_command", "Say in one sentence why a run is where it is."),
        "history": _Where("look:history_command", "Show the facts of a run's history."),
        "steps": _Where("runs.follow:steps_command", "List the steps of a run: attempts, times, results."),
        "watch": _Where("runs.follow:watch_command", "Show a run and its steps until it has ended."),
        "children": _Where("runs.family:children_command", "List the runs that a run started."),
        "inbox": _Where("runs.family:inbox_command", "List messages that a run has not received."),
        "tail": _Where("runs.family:tail_command", "Show runs as they are started and change."),
        "result": _Where("runs.begin:result_command", "Write the result of a run."),
        "graph": _Where("ship.graph:graph_command", "Show which steps of a workflow follow which."),
        "stats": _Where(
            "shell.summary:stats_command", "Say how runs and workers are, or how long what takes and what fails most."
        ),
        "top": _Where("top:top_command", "Show runs, workers and dead letters live in the terminal, and act on them."),
        "ui": _Where("serve:ui_command", "Serve the dashboard on this machine, and open it."),
        "workers": _Where("look:workers_command", "List the workers: alive, silent, dead; or what one of them runs."),
    },
    "Act": {
        "start": _Where("runs.begin:start_command", "Start a run."),
        "cancel": _Where("act:cancel_command", "Ask runs to stop."),
        "pause": _Where("act:pause_command", "Let runs, a workflow, a queue or a limit begin nothing more."),
        "resume": _Where("act:resume_command", "Let what was paused or cancelled go on."),
        "retry": _Where("act:retry_command", "Let failed runs go on from the step that failed."),
        "rerun": _Where("act:rerun_command", "Let ended runs do a step, and all after it, again."),
        "terminate": _Where("act:terminate_command", "End runs here and now, without asking their code."),
        "recover": _Where("act:recover_command", "Try blocked runs again with the code there is now."),
        "nudge": _Where("act:nudge_command", "Let steps that wait to be tried again be tried now."),
        "send": _Where("act:send_command", "Send a run a message."),
        "ask": _Where("runs.begin:ask_command", "Send a run a request, and write its reply."),
        "query": _Where("runs.begin:query_command", "Ask the code of a run about its state."),
        "reveal": _Where("runs.reveal:reveal_command", "Write one masked value of a run, on record."),
        "set": _Where("runs.begin:set_command", "Give a run attributes, by which it is found."),
        "publish": _Where("act:publish_command", "Publish an event to the runs that wait for it."),
    },
    "Letters": {
        "letters": _Where("letters:letters_group", "Work and messages given up on: list, show, ack, replay."),
    },
    "Schedules": {
        "schedules": _Where(
            "flow.schedules:schedules_group", "What is started by the clock: list, next, put, pause, trigger."
        ),
    },
    "Ship": {
        "check": _Where("ship.check:check_command", "Say which open runs the code at hand would block."),
        "debug": _Where("ship.debug:debug_command", "Replay one run here, step by step, and look at its variables."),
        "bench": _Where("ship.bench:bench_command", "Measure what this machine does in a second."),
        "record": _Where("ship.record:record_command", "Write a run's history to a file that a test replays."),
    },
    "House": {
        "queues": _Where("flow.house:queues_command", "List queues: what waits in them, and what was taken."),
        "limits": _Where("flow.house:limits_group", "Limits that workers share: list, show, why."),
        "versions": _Where("flow.house:versions_command", "List versions of workflows: workers and open runs."),
        "events": _Where("flow.house:events_command", "List events by name: queued, and waited for."),
        "audit": _Where("flow.audit:audit_group", "What was done, by whom and why: list, verify, export."),
        "evidence": _Where("flow.audit:evidence_command", "Show what a run put on record."),
        "purge": _Where("flow.purge:purge_command", "Delete what is over for long: runs, dead letters, events."),
        "token": _Where("flow.tokens:token_group", "Tokens of the HTTP API: create, list, revoke."),
        "doctor": _Where("house:doctor_command", "Say what is wrong with database and workers, and what to do."),
        "db": _Where("db:db_group", "The database itself: status, upgrade, backup, restore."),
        "export": _Where("transfer:export_command", "Write runs to a file."),
        "move": _Where(
            "flow.move:move_command",
            "Let open runs go on, in the middle of their code, on a Temporal cluster, or back.",
        ),
        "import": _Where("transfer:import_command", "Write the runs of a file into a database."),
        "backup": _Where("transfer:backup_command", "Write a whole database to a file while it is in use."),
        "restore": _Where("transfer:restore_command", "Make a database of a backup."),
        "config": _Where("shell.settings:config_command", "Show each setting, and where its value came from."),
        "completion": _Where("shell.settings:completion_command", "Write the completion for bash, zsh or fish."),
        "schema": _Where("shell.schemas:schema_command", "Write the JSON Schema of what --json writes."),
    },
}
ALIASES = {"ls": "list"}
_FIRST = ("--url", "--token-file")
"""Options of nearly all commands that may stand before the command, too."""
_PLACES = {name: where.place for group in GROUPS.values() for name, where in group.items()}


class _Commands(click.Group):
    """Commands that are loaded when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_PLACES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = _PLACES.get(ALIASES.get(cmd_name, cmd_name))
        if place is None:
            if not ctx.resilient_parsing:
                _refuse(cmd_name, ctx)
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(import_module(f"holdfast.cli.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, where.help) for name, where in group.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="holdfast", message="%(prog)s %(version)s")
def commands() -> None:
    """Durable workflows, recorded in SQLite or PostgreSQL.

    Which database: --url, HOLDFAST_URL, url under [tool.holdfast] in pyproject.toml, or holdfast.db if it is here. A
    DATABASE is a path, sqlite:///path or postgresql://user@host/name.
    """


def _refuse(name: str, ctx: click.Context) -> None:
    """Refuse a command that there is none of, and name the nearest."""
    from difflib import get_close_matches

    near = get_close_matches(name, [*_PLACES, *ALIASES], 1)
    if near:
        raise click.UsageError(f"there is no command {name!r}; did you mean {ALIASES.get(near[0], near[0])}?", ctx)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return how it ended.

    0 well; 1 it failed; 2 what was asked for was refused; 3 there is no such run, letter or schedule; 4 there is no
    database, or no right; 5 the code does not fit; 6 nothing was in a state for it; 7 done in part; 130 interrupted.
    """
    given = _in_order(list(sys.argv[1:] if arguments is None else arguments))
    unreadable = next((word for word in given if not word.isprintable() and not _is_text(word)), None)
    if unreadable is not None:
        return _failed(f"{unreadable}: is no text in UTF-8", given, 2)
    try:
        if not given and "_HOLDFAST_COMPLETE" not in os.environ:
            return _summary()
        ended = commands.main(given, prog_name="holdfast", standalone_mode=False)
        return ended if isinstance(ended, int) else 0
    except SystemExit as end:  # that is how click ends when a shell asks it for names
        return end.code if isinstance(end.code, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "holdfast"
        said = error.format_message().rstrip(".")
        return _failed(f"{said}{' ' if said.endswith('?') else '; '}see {command} --help", given, 2)
    except click.ClickException as error:
        return _failed(error.format_message(), given, 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that nothing more is said at the end
        return 1
    except BaseException as error:
        from holdfast.cli.endings import ending_of

        code, message = ending_of(error)
        return _failed(f"{message}{_named(given)}" if message.endswith("holdfast db upgrade") else message, given, code)


def _in_order(given: list[str]) -> list[str]:
    """Return the words with a database that is named before the command after it; without a command that is `stats`."""
    first: list[str] = []
    while given and given[0].partition("=")[0] in _FIRST and (len(given) > 1 or "=" in given[0]):
        many = 1 if "=" in given[0] else 2
        first, given = [*first, *given[:many]], given[many:]
    end = given.index("--") if "--" in given else len(given)
    return [*(given[:end] if given or not first else ["stats"]), *first, *given[end:]]


def _is_text(word: str) -> bool:
    """Whether bytes that a shell handed over could be read."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _named(given: Sequence[str]) -> str:
    """Return the option that names the database, if it was given."""
    from shlex import quote

    place = given.index("--url") if "--url" in given else len(given)
    return f" --url {quote(given[place + 1])}" if place + 1 < len(given) else ""


def _summary() -> int:
    """Say how the database is that is meant here; where there is none, what the commands are."""
    from holdfast.cli.database import NoDatabase, database
    from holdfast.cli.shell.summary import show_summary

    try:
        database(None)
    except NoDatabase:
        main(["--help"])
        return 2
    return show_summary()


def _failed(message: str, given: Sequence[str], code: int) -> int:
    from holdfast.cli.output import say_wrapped
    from holdfast.texts import masked, passwords

    one_line = " ".join(line.strip() for line in message.split("\n"))  # click gives each choice a line of its own
    secrets = [*passwords(given), *passwords([os.environ.get("HOLDFAST_URL", "")])]
    say_wrapped(f"holdfast: {masked(one_line, secrets)}", err=True)
    return code
