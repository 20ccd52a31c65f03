"""One run under the debugger: where it stops, what it shows, and that no body is executed and nothing is written."""

from __future__ import annotations

import asyncio
import hashlib
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.testing import TestEngine

CODE = """
import asyncio
from holdfast import Context, workflow

EXECUTED = []

async def charge(order: int) -> str:
    EXECUTED.append("charge")
    return f"charged {order}"

async def check_fraud(order: int) -> bool:
    EXECUTED.append("check_fraud")
    return True

async def pack(order: int) -> str:
    EXECUTED.append("pack")
    return "packed"

async def prepare(ctx: Context, order: int) -> str:
    receipt = await ctx.step(charge, order)
    total = len(receipt)
    return f"{receipt}, {total} letters"

@workflow
async def fulfil(ctx: Context, order: int) -> str:
    receipt = await prepare(ctx, order)
    await asyncio.gather(ctx.step(pack, order), ctx.receive("picked_up"))
    return receipt

workflows = [fulfil]
"""
LINES = CODE.splitlines()
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def debug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """A run that waits for a message, and what debugs it with commands, and perhaps with other code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(
        sys, "dont_write_bytecode", True
    )  # code that is as long as what it replaces is not taken for it
    Path("orders_code.py").write_text(CODE)
    import orders_code  # type: ignore[import-not-found]  # just written

    async def fill() -> None:
        async with TestEngine("sqlite:///holdfast.db", workflows=[orders_code.fulfil]) as engine:
            await engine.start(orders_code.fulfil, 7, id="order-7")
            await engine.settle()

    asyncio.run(fill())
    before = hashlib.sha256(Path("holdfast.db").read_bytes()).digest()

    def debug(commands: str, *options: str, code: str = CODE, target: str = "order-7") -> tuple[int, str]:
        Path("orders_code.py").write_text(code)
        sys.modules.pop("orders_code", None)
        monkeypatch.setattr(sys, "stdin", io.StringIO(commands))
        ended = main(["debug", target, "--app", "orders_code:workflows", *options])
        said = "".join(capsys.readouterr())
        found: Any = sys.modules.get("orders_code")
        assert found is None or found.EXECUTED == []
        assert hashlib.sha256(Path("holdfast.db").read_bytes()).digest() == before
        return ended, said

    yield debug
    sys.modules.pop("orders_code", None)


def line_of(text: str) -> int:
    [found] = [number for number, line in enumerate(LINES, 1) if text in line]
    return found


def test_it_stops_at_the_first_call_and_then_at_each(debug):
    code, said = debug("call\nn\nn\nc\n")
    assert code == 0
    stops = [line for line in said.splitlines() if line.startswith("* ")]
    assert stops == [
        "* the code calls charge (step)",
        "* the code calls pack (step)",
        "* the code calls receive picked_up (receive)",
    ]
    assert said.splitlines()[-3:] == [
        "the history ends here, and the code waits",
        "  workflow waits for receive picked_up",
        f'    orders_code.py:{line_of("await asyncio.gather")}  '
        'await asyncio.gather(ctx.step(pack, order), ctx.receive("picked_up"))',
    ]  # fmt: skip


def test_it_stops_at_a_step_and_shows_variables_and_where_it_is(debug):
    code, said = debug("where\nlocals\nopen\nq\n", "--step", "pack")
    assert code == 0
    assert "* the code calls pack (step)" in said
    assert f"  orders_code.py:{line_of('asyncio.gather')}  await asyncio.gather(" in said
    assert "    receipt = 'charged 7, 9 letters'\n" in said
    assert "    ctx = <the context of the run>\n" in said
    assert "  no call is open\n" in said


def test_it_stops_before_a_line_in_a_function_that_the_workflow_calls(debug):
    number = line_of("total = len")
    code, said = debug("w\nl\nc\n", "--line", f"orders_code.py:{number}")
    assert code == 0
    assert f"* before line {number} of " in said
    assert "  in prepare, orders_code.py" in said
    assert "    receipt = 'charged 7'\n" in said
    assert f"  orders_code.py:{line_of('await prepare')}  receipt = await prepare(ctx, order)\n" in said
    later = debug(f"b orders_code.py:{number}\nc\nq\n")[1]
    assert f"* before line {number} of " in later


def test_it_stops_where_the_code_was_told_a_fact_and_shows_what_each_await_waits_for(debug):
    code, said = debug("f\nw\no\nc\n")
    assert code == 0
    assert "* the code was told step completed of charge (entry " in said
    assert "  workflow waits for step pack and receive picked_up\n" in said
    assert "  pack (step): history has its end\n" in said
    assert "  receive picked_up (receive): not over in history\n" in said


def test_it_stops_before_code_and_history_part(debug):
    changed = CODE.replace(
        "    receipt = await prepare", "    await ctx.step(check_fraud, order)\n    receipt = await prepare"
    )
    code, said = debug("l\nq\n", "--divergence", code=changed)
    assert code == 5
    assert said.startswith("* here they part: at check_fraud history has nothing there but goes on with 'charge'")
    assert "    order = 7\n" in said
    assert "the run is blocked: HistoryMismatch: run order-7: at 'check_fraud'" in said


def test_a_recording_is_debugged_like_a_run(debug):
    said = debug("q\n")
    assert main(["record", "order-7", "-o", "run.json"]) == 0
    code, told = debug("q\n", target="run.json")
    assert (code, told.partition("recorded order-7")[0]) == said


@pytest.mark.parametrize(
    ("commands", "options", "code", "said"),
    [
        ("dance\nq\n", (), 0, "there is no command 'dance'; these are:"),
        ("", ("--line", "orders"), 2, "write a file and a line, as in orders.py:41"),
        ("", ("--url", "missing.db"), 4, "there is no such database"),
    ],
)
def test_what_is_not_understood_is_said(debug, commands, options, code, said):
    ended, told = debug(commands, *options)
    assert (ended, said in told) == (code, True)


def test_a_workflow_that_the_code_does_not_have_is_said(debug):
    ended, told = debug("", code=CODE.replace("fulfil", "deliver"))
    assert (ended, "unknown workflow 'fulfil'" in told) == (2, True)
