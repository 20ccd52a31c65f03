"""`holdfast debug`: one run, or a recording of one, replayed step by step; no body is executed, nothing is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from holdfast.cli.database import looking, setting, url_option
from holdfast.cli.output import say, say_wrapped
from holdfast.errors import BadInput
from holdfast.histories.debugging import Breaks, CodeFrame, Debugger, Resume, Stop

_HELP = """\
c, go          to the next place that was named, or the end
n, call        to the next call on the context
f, fact        to where the code was told the next fact
w, where       the code that is run, and the lines at which tasks wait
l, locals      the variables of the code that is run, or waits
o, open        the calls that have no result yet, and whether history has one
b STEP         stop at calls of this name or path; b FILE:LINE stops before a line
q, quit        stop no more
"""
_RESUMES: dict[str, Resume] = {
    "c": "go", "go": "go", "continue": "go", "n": "call", "next": "call", "call": "call", "f": "fact", "fact": "fact",
    "q": "quit", "quit": "quit", "exit": "quit",
}  # fmt: skip


@click.command("debug", short_help="Replay one run here, step by step, and look at its variables.")
@click.argument("target", metavar="ID|FILE")
@click.option("--app", metavar="MODULE:NAME", help="The code: an engine, a list of workflows, or a function of them.")
@click.option("--step", "steps", metavar="STEP", multiple=True, help="Stop at calls of this name or path.")
@click.option("--line", "lines", metavar="FILE:LINE", multiple=True, help="Stop before a line of code.")
@click.option("--divergence", is_flag=True, help="Stop only where code and history part.")
@url_option
def debug_command(
    target: str, app: str | None, steps: tuple[str, ...], lines: tuple[str, ...], divergence: bool, url: str | None
) -> int:
    """Replay a run, or a recording of one, with the code at hand: stop at calls and lines, look at variables and waits.

    No body of a step is executed and nothing is written. Commands are read from the terminal, or from stdin; `help`
    lists them. Ends with 5 if the code does not fit the history.

    \b
    Example: holdfast debug order-88405 --app shop.main:engine --step charge
    """
    from holdfast.histories.app import load_app
    from holdfast.histories.recorded import RecordedRun

    named = setting("app", app)
    if named is None:
        raise BadInput("say which code: --app module:name, HOLDFAST_APP, or app = ... under [tool.holdfast]")
    breaks = Breaks(calls=set(steps), lines={_line(each) for each in lines})
    if os.path.isfile(target):
        recorded = RecordedRun.from_file(target)
    else:
        recorded = looking(url, lambda desk: desk.record(target))
    registry = load_app(named.value)
    prompt = _Prompt(breaks)
    debugger = Debugger(recorded, registry, prompt, breaks)
    if divergence:
        debugger.go_on()
    end = debugger.run()
    if prompt.quit:
        _show(end)
    else:
        prompt(end)
    return 5 if prompt.parted or "is blocked" in end.said else 0


def _line(text: str) -> tuple[str, int]:
    file, _, number = text.rpartition(":")
    if not file or not number.isdecimal():
        raise BadInput(f"{text}: write a file and a line, as in orders.py:41")
    return file, int(number)


class _Prompt:
    """Shows a stop and asks how to go on."""

    def __init__(self, breaks: Breaks) -> None:
        self._breaks = breaks
        self.parted = False
        self.quit = False

    def __call__(self, stop: Stop) -> Resume:
        self.parted = self.parted or stop.kind == "divergence"
        _show(stop)
        while True:
            line = self._read()
            if line is None:
                self.quit = True
                return "quit"
            word, _, rest = line.strip().partition(" ")
            if word in _RESUMES:
                self.quit = _RESUMES[word] == "quit"
                return _RESUMES[word]
            if word in ("b", "break") and rest:
                self._break(rest.strip())
                continue
            show = _SHOWS.get(word)
            if show is not None:
                show(stop)
            elif word:
                say(f"there is no command {word!r}; these are:")
                _help(stop)

    def _read(self) -> str | None:
        if sys.stdin.isatty():
            try:
                return input("holdfast> ")
            except (EOFError, KeyboardInterrupt):
                click.echo()
                return None
        return sys.stdin.readline() or None

    def _break(self, where: str) -> None:
        if ":" in where and where.rpartition(":")[2].isdecimal():
            say(
                "lines are named when it begins: --line FILE:LINE"
                if not self._breaks.lines
                else f"stops before {where}"
            )
            self._breaks.lines.add(_line(where))
        else:
            self._breaks.calls.add(where)
            say(f"stops at calls of {where}")


def _show(stop: Stop) -> None:
    say_wrapped(f"{'* ' if stop.kind != 'end' else ''}{stop.said}")
    if stop.frames:
        _at(stop.frames[-1])
    elif stop.kind in ("fact", "end"):
        _where(stop)


def _at(frame: CodeFrame) -> None:
    say(f"  {_short(frame.file)}:{frame.line}  {frame.text}")


def _where(stop: Stop) -> None:
    for frame in stop.frames:
        _at(frame)
    for task in stop.tasks:
        say(f"  {task.name} waits for {task.waits_for}")
        for frame in task.frames:
            say(f"    {_short(frame.file)}:{frame.line}  {frame.text}")


def _locals(stop: Stop) -> None:
    frames = [stop.frames[-1]] if stop.frames else [task.frames[-1] for task in stop.tasks if task.frames]
    for frame in frames:
        say(f"  in {frame.function}, {_short(frame.file)}:{frame.line}")
        for name, value in frame.variables.items():
            say(f"    {name} = {value}")


def _open(stop: Stop) -> None:
    for call in stop.open:
        say(f"  {call.path} ({call.kind}): {'history has its end' if call.recorded else 'not over in history'}")
    if not stop.open:
        say("  no call is open")


def _help(stop: Stop) -> None:
    click.echo(_HELP, nl=False)


def _short(path: str) -> str:
    here = os.getcwd() + os.sep
    return path[len(here) :] if path.startswith(here) else path


_SHOWS: dict[str, Callable[[Stop], Any]] = {
    "w": _where, "where": _where, "l": _locals, "locals": _locals, "o": _open, "open": _open, "h": _help, "help": _help,
    "?": _help,
}  # fmt: skip
