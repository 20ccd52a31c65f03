"""What a test must not leave behind: a thread, a task, a process, an open file of a store, a file in the repository.

Leftovers of one test disturb another, often much later. `Before` is taken before a test is set up, and its `leftovers`
are asked for after everything was torn down.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.waiting import soon

from holdfast.stores.sqlite.guard import _process

PATIENCE = 20.0
"""How many seconds threads and processes are given that are on their way out."""
_OURS = (".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", "__pycache__", ".coverage")
"""What the tools themselves put into the repository."""


class Before:
    """What there was before a test."""

    def __init__(self) -> None:
        self.threads = {*threading.enumerate()}
        self.processes = children()
        self.stores = {id(store) for store in _process.stores}
        self.files = files()
        _pending.clear()

    def leftovers(self) -> list[str]:
        """Say what there is now that was not there before, once what is ending had the time to end."""
        if not self._gone():
            soon(self._gone, PATIENCE)
        return [
            *(f"thread {thread.name!r}" for thread in self._threads()),
            *(f"task {task}" for task in _pending),
            *(f"process {process} ({_command(process)})" for process in self._processes()),
            *(f"store {store}" for store in self._stores()),
            *(f"file {name} in the repository" for name in sorted(files() - self.files)),
        ]

    def _gone(self) -> bool:
        return not (self._threads() or self._processes() or self._stores())

    def _threads(self) -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in self.threads]

    def _processes(self) -> set[int]:
        return children() - self.processes

    def _stores(self) -> list[object]:
        return [getattr(store, "path", store) for store in _process.stores if id(store) not in self.stores]


def children() -> set[int]:
    """Return the processes that this one started and that still run, or were never waited for."""
    if not sys.platform.startswith("linux"):
        return set()
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    found = set()
    for task in os.listdir("/proc/self/task"):
        try:
            found |= {int(word) for word in Path(f"/proc/self/task/{task}/children").read_text().split()}
        except OSError:
            continue  # that thread has ended meanwhile
    return found


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ").strip() or "ended, not waited for"
    except OSError:
        return "gone"


def files() -> set[str]:
    """Return what is in the repository's own folder and in that of the tests, but for what people write meanwhile."""
    names = {name for folder in (ROOT, ROOT / "tests") for name in os.listdir(folder)}
    return {name for name in names if not name.startswith(_OURS) and "." in name and not name.endswith((".py", ".md"))}


_pending: list[str] = []
_close = asyncio.Runner.close


def _note_tasks(runner: asyncio.Runner) -> None:
    loop = getattr(runner, "_loop", None)
    # Servers that tests run in threads end as they like; their threads are looked at.
    if loop is not None and not loop.is_closed() and threading.current_thread() is threading.main_thread():
        _pending.extend(_described(loop))
    _close(runner)


def _described(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    for task in asyncio.all_tasks(loop):
        yield f"{task.get_name()!r} ({getattr(task.get_coro(), '__qualname__', '?')})"


def watch_tasks() -> None:
    """From now on note the tasks that are pending when an event loop is closed, and are cancelled with it."""
    asyncio.Runner.close = _note_tasks  # type: ignore[method-assign,assignment]  # there is no other moment to look
