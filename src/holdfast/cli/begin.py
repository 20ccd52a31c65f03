"""`holdfast demo` and `holdfast new`: the first five minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from holdfast.cli.output import say
from holdfast.errors import BadInput

_ORDERS = '''"""What happens to an order: each step is recorded once, and goes on after a crash where it was."""

from datetime import timedelta

from holdfast import Context, Retry, activity, workflow


@activity(retry=Retry(max_attempts=5), timeout=timedelta(seconds=30))
async def charge(item: str) -> str:
    return f"paid for {item}"


@activity
async def ship(item: str) -> str:
    return f"{item} is on its way"


@workflow
async def fulfil(ctx: Context, item: str) -> list[str]:
    receipt = await ctx.step(charge, item)
    await ctx.sleep(timedelta(seconds=1))  # as well a month: no process has to wait for it
    return [receipt, await ctx.step(ship, item)]
'''
_MAIN = '''"""Start an order, or go on with it: python main.py. Kill it whenever you like, and start it again."""

import asyncio

from orders import fulfil

from holdfast import Engine


def make_engine() -> Engine:
    return Engine("sqlite:///holdfast.db", workflows=[fulfil])


async def main() -> None:
    async with make_engine() as engine:
        run = await engine.start(fulfil, "lamp", id="order-1")
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
'''
_TEST = '''"""An order from beginning to end, without waiting: python -m pytest"""

import asyncio

from orders import charge, fulfil

from holdfast.testing import TestEngine


async def no_charge(item: str) -> str:
    return f"no money for {item}"


def test_an_order_is_charged_and_shipped() -> None:
    async def scenario() -> list[str]:
        async with TestEngine(workflows=[fulfil], substitutes={charge: no_charge}) as engine:
            return await engine.execute(fulfil, "lamp")

    assert asyncio.run(scenario()) == ["no money for lamp", "lamp is on its way"]
'''
_SETTINGS = """url = "sqlite:///holdfast.db"
app = "main:make_engine"
"""
_FILES = {"orders.py": _ORDERS, "main.py": _MAIN, "test_orders.py": _TEST, "holdfast.toml": _SETTINGS}


@click.command("new", short_help="Make a directory with a workflow, a test and a main that run.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def new_command(directory: Path) -> None:
    """Make a DIRECTORY with a workflow, a test and a main that run; one that has files in it is refused.

    \b
    Example: holdfast new shop
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise BadInput(f"{directory}: has files in it; name a new directory")
        for name, text in _FILES.items():
            (directory / name).write_text(text, "utf-8")
    except OSError as error:
        raise BadInput(f"{directory}: cannot be written: {error.strerror}") from error
    say(f"made {directory}: {', '.join(_FILES)}")
    say(f"next: cd {directory}; python main.py; python -m pytest; holdfast list")


@click.command("demo", short_help="Show an order that survives kill -9, twice, and the proof.")
@click.option("--fast", is_flag=True, help="With shorter pauses.")
def demo_command(fast: bool) -> int:
    """Show an order that survives kill -9, twice, and the proof that nothing recorded ran again.

    It works in a temporary directory, and leaves nothing behind.

    \b
    Example: holdfast demo
    """
    command = [sys.executable, str(demonstration()), *(["--fast"] if fast else [])]
    # Not the script's own directory: inside a package its modules would stand where those of Python do.
    process = subprocess.Popen(command, env={**os.environ, "PYTHONSAFEPATH": "1"})  # noqa: S603  # our own script
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # it was interrupted as well, and tidies up


def demonstration() -> Path:
    """Return where the script is: beside this package in a checkout, inside it where it is installed."""
    package = Path(__file__).parents[1]
    installed = package / "demonstration.py"
    return installed if installed.exists() else package.parents[1] / "examples" / "demo.py"
