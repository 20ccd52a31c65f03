"""Measure how long it takes from `pip install` of the wheel to a run that is seen live in a browser.

    python benchmarks/newcomer.py        (or: make newcomer)

A wheel is built, an empty environment made; then the clock starts. The wheel is installed with the extra `web`, a
program starts a worker and a run, `holdfast ui` serves the database, and Chromium opens the link that it prints. The
run is seen when its row is there, and seen live when the row says, without a reload, that the run has ended, after it
was told to end. Ends with 1 if that takes more than 60 s.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

ROOT = Path(__file__).parent.parent
AT_MOST = 60.0
PROGRAM = """\
import asyncio
from holdfast import Context, Engine, workflow


async def charge(order: str) -> str:
    return f"receipt of {order}"


@workflow
async def fulfil(ctx: Context, order: str) -> str:
    await ctx.receive("approved")
    return await ctx.step(charge, order)


async def main() -> None:
    async with Engine("sqlite:///shop.db", workflows=[fulfil]) as engine:
        run = await engine.start(fulfil, "o-1", id="order-1")
        await run.result()
        await asyncio.Event().wait()


asyncio.run(main())
"""


def main() -> int:
    chromium = os.environ.get("HOLDFAST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("there is no Chromium: `make browsers` installs it", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", name, ROOT], check=True)
        [wheel] = folder.glob("*.whl")
        subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
        return _measured(folder, wheel, chromium)


def _measured(folder: Path, wheel: Path, chromium: str) -> int:
    own = folder / "env" / "bin"
    begin = time.monotonic()

    def tell(what: str) -> float:
        took = time.monotonic() - begin
        print(f"{took:6.1f} s  {what}", flush=True)
        return took

    subprocess.run([own / "pip", "install", "-q", "--disable-pip-version-check", f"{wheel}[web]"], check=True)
    tell("installed")
    (folder / "shop.py").write_text(PROGRAM)
    serving = [own / "holdfast", "ui", "--url", "sqlite:///shop.db", "--no-open", "--bind", "127.0.0.1:0"]
    with _running([own / "python", "shop.py"], folder), _running(serving, folder) as server:
        assert server.stdout is not None
        link = server.stdout.readline().decode().strip()
        tell("worker and server started")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page()
            page.goto(link)
            page.get_by_role("link", name="Runs", exact=True).click(timeout=AT_MOST * 1_000)
            row = page.locator('tr[data-run="order-1"]')
            expect(row).to_contain_text("approved", timeout=AT_MOST * 1_000)
            tell("run seen in the browser")
            asked = [own / "holdfast", "send", "order-1", "approved", "true", "--url", "sqlite:///shop.db"]
            subprocess.run(asked, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            expect(row).to_contain_text("ompleted", timeout=AT_MOST * 1_000)
            took = tell("its end seen live, without a reload")
            browser.close()
    return 0 if took < AT_MOST else 1


@contextmanager
def _running(command: list[object], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([str(word) for word in command], cwd=folder, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


if __name__ == "__main__":
    sys.exit(main())
