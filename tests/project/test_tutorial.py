"""The tutorial is true: its files are written, its commands run, and they print what it says."""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
LIMIT = 120
"""How long a command may take, in seconds."""

_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SAVE = re.compile(r"Save\s+this\s+as\s+`(\w+\.py)`:$")
_REPLACE = re.compile(r"Replace\s+`(\w+)`\s+in\s+`(\w+\.py)`:$")


@dataclass
class Command:
    """A command of the page and what it prints; `...` stands for anything."""

    line: str
    expected: list[str]

    @property
    def pattern(self) -> re.Pattern[str]:
        lines = (re.escape(line.rstrip()).replace(r"\.\.\.", "[^\n]*") for line in self.expected)
        return re.compile("".join("(?:[^\n]*\n)*?" if line == "[^\n]*" else f"{line} *\n" for line in lines))

    def run(self, folder: Path, environment: dict[str, str]) -> str:
        """Run it; `timeout` ends it when it has printed what is expected, on a slow machine later than it says."""
        words = shlex.split(os.path.expandvars(self.line.replace("$DATABASE_URL", environment["ADDRESS"])))
        if words[0] == "export":
            environment["DATABASE_URL"] = environment["ADDRESS"]
            return ""
        ending = None
        if words[:2] == ["timeout", "-s"]:
            ending, words = signal.Signals[f"SIG{words[2]}"], words[4:]
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        printed = ""
        late = threading.Timer(LIMIT, process.kill)  # what it has printed by then tells what is missing
        late.start()
        with process:
            for text in process.stdout or ():
                printed += text
                if ending is not None and self.pattern.fullmatch(printed):
                    process.send_signal(ending)
                    ending = None
        late.cancel()
        return printed


def test_the_page_is_made_of_what_is_run_here():
    """A block that is neither saved nor run would be skipped unseen; only the installation may be."""
    page = PAGE.read_text()
    assert len(_BLOCK.findall(page)) == page.count("```python") + page.count("```console")
    assert page.count("```") == 2 * len(_BLOCK.findall(page)) + 2


def test_the_tutorial_from_beginning_to_end(tmp_path: Path, database: str):
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        "ADDRESS": database,
    }
    environment.pop("DATABASE_URL", None)
    page = PAGE.read_text()
    for block in _BLOCK.finditer(page):
        if block[1] == "python":
            _write(tmp_path, page[: block.start()].rstrip(), block[2])
        else:
            for command in _commands(block[2]):
                printed = command.run(tmp_path, environment)
                assert command.pattern.fullmatch(printed), f"{command.line}\n{printed}"


def _write(folder: Path, before: str, text: str) -> None:
    """Save a file, or replace a function in one (and what stands beside it), as the text before the block says."""
    if saved := _SAVE.search(before):
        (folder / saved[1]).write_text(text)
        return
    replaced = _REPLACE.search(before)
    assert replaced, before[-200:]
    path = folder / replaced[2]
    source = path.read_text()
    lines = source.splitlines(keepends=True)
    (function,) = (
        node for node in ast.parse(source).body if isinstance(node, ast.AsyncFunctionDef) and node.name == replaced[1]
    )
    first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
    path.write_text("".join([*lines[: first - 1], text, *lines[function.end_lineno :]]))


def _commands(text: str) -> list[Command]:
    commands: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append(Command(line[2:], []))
        else:
            commands[-1].expected.append(line)
    return commands
