"""The pages on web frameworks are true: their files are written, their servers started, their requests answered."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.paths import ROOT
from tests.support.waiting import LONG, soon

from holdfast.system import lock

PAGE = ROOT / "docs" / "production" / "web-frameworks.md"
MOUNTS = ROOT / "docs" / "how-to" / "dashboard.md"
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SAVE = re.compile(r"Save\s+this\s+as\s+`([\w.]+\.py)`:$")


def servers() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the commands that start a server and ask it, with the files that the page has shown by then."""
    for page in (PAGE.read_text(), MOUNTS.read_text()):
        files = {}
        for block in _BLOCK.finditer(page):
            if block[1] == "python":
                saved = _SAVE.search(page[: block.start()].rstrip())
                assert saved, block[2]
                files[saved[1]] = block[2]
            else:
                yield block[2], dict(files)


def test_the_pages_are_made_of_what_is_run_here():
    page = PAGE.read_text()
    assert page.count("```") == 2 * len(_BLOCK.findall(page))
    assert len(list(servers())) == 7 + 2


@pytest.fixture
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Give a port that no other test process has, and that the system gives to no connection of its own accord."""
    for port in range(21_000, 22_000):
        with (tmp_path_factory.getbasetemp().parent / f"port-{port}").open("w") as mine, socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if lock(mine.fileno()) and probe.connect_ex(("localhost", port)) != 0:
                yield port
                return


@pytest.mark.parametrize(("commands", "files"), [pytest.param(*each, id=each[0].split()[2]) for each in servers()])
def test_a_server_answers_as_the_page_says(commands: str, files: dict[str, str], tmp_path: Path, port: int) -> None:
    """And when it is asked to stop, the engine of each worker has left in order."""
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace("8000", str(port)))
    start, *asked = (line.replace("8000", str(port)) for line in commands.splitlines())
    with running(start, tmp_path, port) as server:
        cookies = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        for request, expected in zip(asked[::2], asked[1::2], strict=True):
            assert answer(request, cookies) == expected
        # A server forgets a signal that comes before a worker of it is ready.
        workers = int((re.findall(r"--workers (\d+)", start) or [1])[0])
        assert soon(lambda: len(list(tmp_path.glob("shop.db-worker-*"))) == workers)
        server.terminate()
        server.wait(LONG)
        if not start.startswith("$ python"):  # which a signal simply ends
            assert list(tmp_path.glob("shop.db-worker-*")) == [], (tmp_path / "server.log").read_text()


@contextmanager
def running(command: str, folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server, wait until it listens, and end its whole group afterwards."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": "."}
    log = folder / "server.log"
    with log.open("wb") as output:
        words = shlex.split(command.removeprefix("$ "))
        server = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_for(server, port, log)
        yield server
    finally:
        try:
            os.killpg(server.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        server.wait()


def wait_for(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def answer(command: str, cookies: urllib.request.OpenerDirector) -> str:
    """Do what curl does, which the machine that runs this may not have; cookies are kept and sent in any case."""
    words = shlex.split(command.removeprefix("$ "))
    assert words[0] == "curl"
    options = dict(zip(words[1:-1:2], words[2:-1:2], strict=True))
    assert options.keys() <= {"-X", "-H", "-b", "-c"}
    name, _, value = options.get("-H", "Accept: */*").partition(": ")
    request = urllib.request.Request(f"http://{words[-1]}", method=options.get("-X", "GET"), headers={name: value})
    with cookies.open(request, timeout=LONG) as response:
        return response.read().decode()
