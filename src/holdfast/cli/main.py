"""The command `holdfast`: what it is given, what it answers, and with which code it ends."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

import click

from holdfast.cli import transfer as moving
from holdfast.errors import BadInput, CannotOpen, HoldfastError, RunError
from holdfast.texts import masked, passwords, printable

_REFUSED = (BadInput, RunError, CannotOpen)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="holdfast", message="%(prog)s %(version)s")
def commands() -> None:
    """Durable workflows, recorded in SQLite or PostgreSQL.

    A DATABASE is a path, sqlite:///path or postgresql://user@host/name.
    """


commands.add_command(moving.export_command)
commands.add_command(moving.import_command)
commands.add_command(moving.backup_command)
commands.add_command(moving.restore_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return how it ended: 0 well, 1 not, 2 if what was asked for was refused."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        main(["--help"])
        return 2
    try:
        commands.main(given, prog_name="holdfast", standalone_mode=False)
        return 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "holdfast"
        return _failed(f"{error.format_message().rstrip('.')}; see {command} --help", given, 2)
    except click.ClickException as error:
        return _failed(error.format_message(), given, 2)
    except (click.Abort, KeyboardInterrupt, asyncio.CancelledError):
        return _failed("interrupted; nothing was changed", given, 1)
    except HoldfastError as error:
        return _failed(str(error), given, 2 if isinstance(error, _REFUSED) else 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that nothing more is said at the end
        return 1
    except OSError as error:
        return _failed(str(error), given, 1)
    except Exception as error:
        return _failed(f"this is a defect of holdfast: {type(error).__name__}: {error}", given, 1)


def _failed(message: str, given: Sequence[str], code: int) -> int:
    one_line = " ".join(message.split("\n"))
    click.echo(f"holdfast: {printable(masked(one_line, passwords(given)))}", err=True)
    return code
