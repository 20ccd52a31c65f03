"""The screen on a real terminal, and on a server elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.command_cases import furnished
from tests.support.screens import picture, press, seen
from tests.support.serving import TOKEN, served
from tests.support.waiting import soon

from holdfast.cli.database import desk_to_act, desk_to_look
from holdfast.tui import House, Top

TMUX = shutil.which("tmux")


@contextmanager
def terminal(folder: Path, size: tuple[int, int], command: str) -> Iterator[Callable[..., str]]:
    """Run a command in a terminal of tmux; yield what calls tmux about it."""

    def tmux(*words: str) -> str:
        told = subprocess.run([TMUX or "", "-S", str(folder / "tmux"), *words], capture_output=True, text=True)
        return told.stdout

    columns, lines = map(str, size)
    tmux("-f", os.devnull, "new-session", "-d", "-s", "top", "-x", columns, "-y", lines, "-c", str(folder), command)
    try:
        yield tmux
    finally:
        tmux("kill-server")


@pytest.mark.slow
@pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
@pytest.mark.parametrize("size", [(80, 24), (200, 60)], ids=str)
def test_a_real_terminal_shows_it_in_its_sixteen_colours_and_is_left_as_it_was(tmp_path, size):
    """FACES 8: 80 columns, 24 lines, 16 colours."""
    furnished(f"sqlite:///{tmp_path}/holdfast.db")
    program = f"env -u COLORTERM TERM=screen HOLDFAST_ACTOR=kim {sys.executable} -m holdfast top; echo ended $?; cat"
    with terminal(tmp_path, size, program) as tmux:

        def shows(text: str) -> bool:
            return text in tmux("capture-pane", "-p", "-t", "top")

        assert soon(lambda: shows("NOW, AND WHY") and shows("failed")), tmux("capture-pane", "-p", "-t", "top")
        drawn = tmux("capture-pane", "-e", "-p", "-t", "top")
        assert re.search(r"\x1b\[[0-9;]*31m", drawn)
        assert not re.search(r"[34]8;[25];", drawn)
        assert all(len(line) <= size[0] for line in tmux("capture-pane", "-p", "-t", "top").split("\n"))
        tmux("send-keys", "-t", "top", "Enter")
        assert soon(lambda: shows("timeline"))
        tmux("send-keys", "-t", "top", "a")
        assert soon(lambda: shows("Which act?"))
        tmux("send-keys", "-t", "top", "Escape")
        assert soon(lambda: not shows("Which act?"))
        tmux("resize-window", "-t", "top", "-x", "60", "-y", "16")
        assert soon(lambda: shows("timeline"))
        tmux("send-keys", "-t", "top", "q")
        assert soon(lambda: shows("ended 0"))
        assert not shows("timeline")


@pytest.mark.slow
async def test_a_server_elsewhere_is_looked_at_and_acted_on_as_a_database_is(tmp_path, monkeypatch):
    """FACES 0.1: the same desk, local or remote."""
    monkeypatch.setenv("HOLDFAST_TOKEN", TOKEN)
    monkeypatch.setenv("HOLDFAST_TZ", "UTC")
    database = f"sqlite:///{tmp_path}/shop.db"
    await _in_thread(lambda: furnished(database))
    with served(database) as address:
        pictures = []
        for where in (database, address):
            house = House(
                "shop", lambda where=where: desk_to_look(where), lambda where=where: desk_to_act(where), "kim"
            )
            app = Top(house, "-status:completed", every=3600)
            async with app.run_test(size=(120, 40)) as pilot:
                for part in ("ended in 1 h", "✓ completed 1", "NOW, AND WHY", "q quit"):  # they are laid out one by one
                    await seen(app, part)
                pictures.append(re.sub(r"(\d+ (h|min|s) ?)+|\d\.\d s| +", " ", picture(app)).split())
                if where == address:
                    app.view.cursor = "waits"
                    await press(pilot, ["p", *"late", "enter"])
                    await seen(app, "waits is paused")
                    await seen(app, "‖ paused")
        assert pictures[0] == pictures[1]


async def _in_thread(work: Callable[[], object]) -> None:
    import asyncio

    await asyncio.to_thread(work)
