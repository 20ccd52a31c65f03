"""The examples on key spaces, killed and continued; run by tests/kv/test_places.py.

usage: kv_lives.py WORK_DIR photos FIRST STEP     the app killed at each batch, in each of three moments
       kv_lives.py WORK_DIR function SEED         the function killed at random moments until it is done

Every life is a forked process (imports are paid once). Prints one line of JSON per report.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from tests.support.scripts.kv_everywhere import _half

from holdfast.kv import DirectoryDriver, keys
from holdfast.kv.drivers import directory
from holdfast.kv.space import Space
from holdfast.replay import entry as entries

MOMENTS = ("before", "inside", "after")


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def begin(out: Path, live: Callable[[], Awaitable[Any]]) -> int:
    """Begin a life; what it prints is added to a file."""
    child = os.fork()
    if child:
        return child
    os.dup2(os.open(out, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), 1)
    asyncio.run(live())  # type: ignore[arg-type]
    sys.stdout.flush()
    os._exit(0)


def ended_by(child: int) -> int:
    """Return the signal that ended a life, 0 if it ended by itself; fail if it failed."""
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def recorded(path: Path) -> list[Any]:
    """Return the results of the steps whose end is durable."""
    if not path.exists():
        return []
    driver = DirectoryDriver(path)
    rows = asyncio.run(Space(driver).load())
    driver.close()
    kind = entries.StepCompleted.kind
    return [json.loads(bytes(entries.decode_entry(kind, row.data).result)) for row in rows if row.kind == kind]


def lines(out: Path) -> list[str]:
    return out.read_text().splitlines() if out.exists() else []


class Killed(DirectoryDriver):
    """A driver whose process is killed at one batch of all that it makes."""

    batches, kill_at, moment = 0, 0, ""

    def batch(self, puts, deletes=(), expect=None):
        Killed.batches += 1
        here = Killed.batches == self.kill_at
        if here and self.moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if here and self.moment == "inside":
            directory._write = _half
        super().batch(puts, deletes, expect)
        if here:
            os.kill(os.getpid(), signal.SIGKILL)


def photos(work: Path, first: int, step: int) -> None:
    module = example("photos_on_a_phone")
    for kill_at, moment in ((at, moment) for at in itertools.count(first, step) for moment in MOMENTS):
        place = work / f"{kill_at}-{moment}"
        place.mkdir()
        module.HOME = place / "photos"
        Killed.kill_at, Killed.moment, module.DirectoryDriver = kill_at, moment, Killed
        if ended_by(begin(place / "first", module.main)) != signal.SIGKILL:
            return
        module.DirectoryDriver = DirectoryDriver
        done = {each for photo in module.PHOTOS for each in recorded(module.HOME / photo)}
        ended_by(begin(place / "second", module.main))
        again = [line for line in lines(place / "second") if made(line) in done]
        every = lines(place / "first") + lines(place / "second")
        print(json.dumps({"kill_at": kill_at, "moment": moment, "again": again, "lines": every}), flush=True)


def made(line: str) -> str:
    """Return what a step comes to that prints this line."""
    photo = line.split()[-1]
    return {"shrinking": f"small-{photo}", "uploading": f"https://photos.example/{photo}"}.get(line.split()[0], "")


def function(work: Path, seed: int) -> None:
    module = example("woken_function")
    module.HOME, module.LIFE, module.PAUSE = str(work / "archive"), timedelta(seconds=1), timedelta(milliseconds=20)
    dice, kills, again, longest = random.Random(seed), 0, [], 0.06
    before = -1
    for life in itertools.count(1):
        done = recorded(work / "archive")
        # A step that was killed twice runs in a process of its own next, which takes longer than the others.
        longest, before = 0.06 if len(done) > before else longest * 1.5, len(done)
        child = begin(work / str(life), module.wake)
        time.sleep(dice.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        kills += ended_by(child) == signal.SIGKILL
        again += [line for line in lines(work / str(life)) if "page" in line and 100 + int(line.split()[-1]) in done]
        driver = DirectoryDriver(module.HOME)
        alarm, stands = driver.get_alarm(), json.loads(driver.get(keys.STATE) or b"{}").get("state")
        driver.close()
        if stands == "completed":
            break
        assert alarm is not None or not done, "the function is never woken again"
        time.sleep(max((alarm - datetime.now(UTC)).total_seconds(), 0) if alarm is not None else 0)
    output = asyncio.run(module.wake()).output
    read = sorted({line for each in range(1, life + 1) for line in lines(work / str(each))})
    print(json.dumps({"lives": life, "kills": kills, "again": again, "output": output, "lines": read}))


if __name__ == "__main__":
    if sys.argv[2] == "photos":
        photos(Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        function(Path(sys.argv[1]), int(sys.argv[3]))
