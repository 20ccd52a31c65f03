"""Make pictures of `holdfast top` on a real terminal: `python -m tests.tui.pictures folder [part of a name]`.

It is run in tmux, in 16 colours, on the shop of the dashboard's pictures; what tmux has drawn is painted by Chromium.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from zoneinfo import ZoneInfo

from playwright.async_api import async_playwright
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, DIMMED_MONOKAI, TerminalTheme
from rich.text import Text
from tests.support.waiting import soon
from tests.web.browser import shop as shops
from tests.web.browser.conftest import chromium
from tests.web.browser.pictures import furnish

from holdfast.looking import Desk, LocalDesk
from holdfast.tui import House, Top

SIZES = {"80": (80, 24), "120": (120, 40)}
THEMES = {"dark": DIMMED_MONOKAI, "light": DEFAULT_TERMINAL_THEME}
SCREENS: dict[str, tuple[Sequence[str], str]] = {
    "runs": ((), "NOW, AND WHY"),
    "attention": (("g", "o"), "is:attention"),
    "run": (("/", *"id:order-88405", "Enter", "~order-88405", "Enter"), "timeline"),
    "steps": (("2",), "RESULT OR ERROR"),
    "history": (("3",), "KIND"),
    "messages": (("4",), "PAYLOAD"),
    "children": (("5",), "WORKFLOW"),
    "record": (("6",), "DETAIL"),
    "acts": (("a",), "Which act?"),
    "act": (("p",), "holdfast pause"),
    "letters": (("Escape", "g", "l"), "WHY IT WAS GIVEN UP"),
    "schedules": (("g", "s"), "LAST RUN"),
    "schedule": (("Enter",), "IN ITS ZONE"),
    "workers": (("g", "w"), "LOAD"),
    "events": (("g", "e"), "RUNS WAIT"),
    "publish": (("s",), "Publish an event"),
    "deploys": (("Escape", "g", "d"), "OPEN RUNS"),
    "audit": (("g", "a"), "WHY, AND MORE"),
    "keys": (("?",), "Keys"),
}
"""What is pressed one after the other, and what stands there then."""


async def main(folder: Path, part: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for size, (columns, lines) in SIZES.items():
            page = await browser.new_page(viewport={"width": columns * 9 + 16, "height": lines * 20 + 16})
            for name, drawn in await asyncio.to_thread(list, _drawn(columns, lines)):
                for theme, colours in THEMES.items():
                    file = folder / f"top-{name}-{size}-{theme}.png"
                    if part in file.name:
                        await page.set_content(_markup(drawn, columns, colours))
                        await page.screenshot(path=file)
        await browser.close()


def _drawn(columns: int, lines: int) -> Iterator[tuple[str, str]]:
    """Yield each screen as a terminal of that size has drawn it, with its control sequences."""
    with tempfile.TemporaryDirectory() as folder:
        program = f"env -u COLORTERM TERM=screen {sys.executable} -m tests.tui.pictures --show"
        with _terminal(folder, columns, lines, program) as tmux:
            for name, (keys, text) in SCREENS.items():
                for key in keys:
                    if key.startswith("~"):
                        _wait(tmux, key[1:])
                    else:
                        tmux("send-keys", "-t", "top", key)
                        soon(lambda: False, 1.2 if key == "Escape" else 0)  # with the next it would be another key
                _wait(tmux, text)
                soon(lambda: False, 1.2)
                yield name, tmux("capture-pane", "-e", "-p", "-t", "top")


@contextmanager
def _terminal(folder: str, columns: int, lines: int, program: str) -> Iterator[Callable[..., str]]:
    def tmux(*words: str) -> str:
        command = [shutil.which("tmux") or "tmux", "-S", f"{folder}/tmux", *words]
        return subprocess.run(command, capture_output=True, text=True).stdout

    size = ("-x", str(columns), "-y", str(lines))
    tmux("-f", os.devnull, "new-session", "-d", "-s", "top", *size, "-c", os.getcwd(), program)
    try:
        yield tmux
    finally:
        tmux("kill-server")


def _wait(tmux: Callable[..., str], text: str) -> None:
    if not soon(lambda: text in tmux("capture-pane", "-p", "-t", "top"), 60):
        sys.stderr.write(f"{text!r} does not come:\n{tmux('capture-pane', '-p', '-t', 'top')}\n")


def _markup(drawn: str, columns: int, colours: TerminalTheme) -> str:
    console = Console(file=io.StringIO(), record=True, width=columns, force_terminal=True, color_system="standard")
    for line in drawn.rstrip("\n").split("\n"):
        console.print(Text.from_ansi(line), no_wrap=True, overflow="crop", crop=True)
    look = "margin:8px;font:15px/20px 'JetBrains Mono','DejaVu Sans Mono',monospace;white-space:pre"
    text = "{code}"
    ground, ink = colours.background_color.hex, colours.foreground_color.hex
    frame = f"<body style='background:{ground};color:{ink};margin:0'><pre style=\"{look}\">{text}</pre></body>"
    return console.export_html(theme=colours, inline_styles=True, code_format=frame)


async def show() -> None:
    """Open the shop, and show it on this terminal."""
    with tempfile.TemporaryDirectory() as place:
        async with AsyncExitStack() as stack:
            shop = await shops.block(stack, f"sqlite:///{place}/shop.db")
            await furnish(shop)

            @asynccontextmanager
            async def desk() -> AsyncIterator[Desk]:
                yield LocalDesk(shop.engine.store, engine=shop.engine)

            await Top(House("shop", desk, desk, "kim", ZoneInfo("Europe/Berlin"))).run_async()


if __name__ == "__main__":
    if sys.argv[1:] == ["--show"]:
        asyncio.run(show())
    else:
        asyncio.run(main(Path(sys.argv[1]), "".join(sys.argv[2:3])))
