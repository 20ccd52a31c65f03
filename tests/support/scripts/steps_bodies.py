"""Bodies for tests of isolated and crashing steps: importable by a child process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from holdfast import Retry, activity, step_context


@dataclass
class Order:
    id: str
    items: list[str]


class CardDeclined(Exception):
    """Registered with the activity that raises it."""

    def __init__(self, code: int) -> None:
        super().__init__(f"declined: {code}")
        self.code = code


@activity(isolate="process", retry=Retry.never, raises=[CardDeclined])
def work(what: str, order: Order, *, counts: tuple[int, ...] = ()) -> Order:
    """Do one of many things in a child process."""
    if what == "raise":
        error = CardDeclined(7)
        error.add_note("in the child")
        raise error
    if what == "exit":
        sys.exit(3)
    if what == "die":
        os._exit(9)
    if what == "kill":
        if os.fork() == 0:
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGKILL)
    context = step_context()
    context.heartbeat()
    own = threading.current_thread() is threading.main_thread()
    told = [type(order).__name__, str(counts), context.step, str(context.attempt), context.idempotency_key, str(own)]
    return Order(f"{order.id} pid {os.getpid()}", told)


@activity(isolate="process", retry=Retry.never)
async def work_async(number: int) -> int:
    """Run a coroutine in a child process."""
    await asyncio.sleep(0)
    return number * 2


@activity(isolate="process", retry=Retry.never)
def untyped(value):
    """Take whatever comes."""
    return repr(value)


@activity(isolate="process", retry=Retry.never)
def hang(marker: str) -> None:
    """Start a grandchild, tell both pids, and never end."""
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(marker + ".part").write_text(f"{os.getpid()} {grandchild.pid}")
    os.rename(marker + ".part", marker)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            continue


@activity(isolate="process", retry=Retry(max_attempts=3, non_retryable=("Hopeless",)))
def hopeless(log: str) -> None:
    """Raise an error that nobody registered, listed by the name of its base."""

    class Hopeless(Exception):
        pass

    class QuiteHopeless(Hopeless):
        pass

    note_attempt(log)
    raise QuiteHopeless("x")


@activity(isolate="process", heartbeat_timeout=timedelta(seconds=2), retry=Retry.never)
def beat(beats: int) -> int:
    """Send heartbeats from the child for longer than the heartbeat timeout, then fall silent."""
    for _ in range(beats):
        time.sleep(0.1)
        step_context().heartbeat()
    if beats < 5:
        time.sleep(60)
    return beats


@activity(isolate="process", retry=Retry(max_attempts=2))
def die_once(folder: str) -> int:
    """Kill the child at the first attempt."""
    attempt = step_context().attempt
    Path(folder, f"attempt-{attempt}").touch()
    if attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt


def note_attempt(log: str) -> int:
    """Append the attempt's number and process to a file, and return the number."""
    context = step_context()
    line = f"{context.run_id} {context.attempt} {os.getpid()}\n"
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)
    return context.attempt


def crash(log: str, companions: int = 0) -> str:
    """Wait until others have begun beside this attempt, then kill the process."""
    note_attempt(log)
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        lines = Path(log).read_text().split("\n")
        if sum(line.endswith(f" {os.getpid()}") for line in lines) > companions:
            break
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def linger(log: str, seconds: float) -> int:
    """Do nothing wrong for a while."""
    attempt = note_attempt(log)
    time.sleep(seconds)
    return attempt
