"""isolate="process": bodies in a child process that is really killed.

A child takes a tenth of a second to start, so each test does several things, and most run in one mode only.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT, SCRIPTS
from tests.support.scripts import steps_bodies as bodies
from tests.support.waiting import LONG

from holdfast import Context, RunCancelled, RunFailed, activity, workflow
from holdfast.bodies.child_process import importable
from holdfast.replay import entry as entries
from holdfast.testing import TestEngine


async def caught(awaitable: Any) -> str:
    try:
        return str(await awaitable)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@workflow
async def everything(ctx: Context) -> list[str]:
    order = bodies.Order("o", ["a"])
    made = await asyncio.gather(
        *(caught(ctx.step(bodies.work, what, order, counts=(1, 2))) for what in ("do", "raise", "exit", "die", "kill")),
        caught(ctx.step(bodies.work_async, 21)),
    )
    await ctx.sleep(timedelta(days=1))
    return list(made)


async def test_results_and_errors_cross_from_the_child(make_engine):
    """GUARANTEES 2, 4 row 15: typed arguments and results, registered errors, sys.exit, a dead child."""
    engine = await make_engine(everything)
    run = await engine.start(everything, id="r")
    done, declined, left, died, killed, doubled = await run.result()
    assert done.startswith("Order(id='o pid ")
    assert f"pid {os.getpid()}'" not in done
    assert done.endswith("items=['Order', '(1, 2)', 'work', '1', 'r:work', 'True'])")
    assert declined == "CardDeclined: declined: 7"
    assert left == "StepFailed: SystemExit: 3"
    assert died == "StepCrashed: the child process of step 'work#4' died (exit code 9)"
    assert killed == "StepCrashed: the child process of step 'work#5' died (killed by SIGKILL)"
    assert doubled == "42"
    failed = {
        fact.path: fact.entry.error for fact in await run.history() if isinstance(fact.entry, entries.StepFailure)
    }
    assert failed["work#2"].notes == ["in the child"]
    assert "steps_bodies.py" in failed["work#2"].traceback


async def test_a_child_that_died_is_a_failed_attempt_retried_by_policy(tmp_path):
    """B1 G4 The worker lives and saw whose fault it was, so the attempt counts like one that threw."""

    @workflow
    async def caller(ctx: Context) -> int:
        return await ctx.step(bodies.die_once, str(tmp_path))

    async with TestEngine(workflows=[caller]) as engine:
        run = await engine.start(caller)
        assert await run.result() == 2
        kinds = [fact.kind for fact in await run.history()]
    assert kinds == ["step", "attempt failed", "attempt", "step completed"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempt-1", "attempt-2"]


async def test_the_policy_of_a_step_sees_the_childs_error_by_name_and_base(tmp_path):
    """B27 S3-26 An error class that the parent does not know is matched by the names it came with."""

    @workflow
    async def caller(ctx: Context) -> str:
        return await caught(ctx.step(bodies.hopeless, str(tmp_path / "log")))

    async with TestEngine(workflows=[caller]) as engine:
        said = await engine.execute(caller)
    assert said.startswith("StepFailed: tests.support.scripts.steps_bodies.hopeless.<locals>.QuiteHopeless")
    assert len((tmp_path / "log").read_text().splitlines()) == 1


async def test_heartbeats_cross_from_the_child():
    """S4-8 S4-20 A child that beats lives longer than the heartbeat timeout; one that falls silent is given up."""

    @workflow
    async def caller(ctx: Context) -> list[str]:
        return list(await asyncio.gather(caught(ctx.step(bodies.beat, 25)), caught(ctx.step(bodies.beat, 1))))

    async with TestEngine(workflows=[caller]) as engine:
        assert await engine.execute(caller) == ["25", "HeartbeatTimeout: step 'beat#2' sent no heartbeat for 2 s"]


@pytest.mark.parametrize("why", ["timeout", "cancel"])
async def test_a_child_is_killed_with_all_it_started(tmp_path, why):
    """GUARANTEES 2 (process isolation for a hard kill) S0-34 B5 Neither child nor grandchild outlives the attempt."""
    marker = tmp_path / "pids"
    timeout = timedelta(seconds=3) if why == "timeout" else None

    @workflow
    async def caller(ctx: Context) -> None:
        await ctx.step(bodies.hang.options(timeout=timeout), str(marker))

    async with TestEngine(workflows=[caller]) as engine:
        run = await engine.start(caller)
        child, grandchild = await pids_in(marker)
        assert alive(child)
        assert alive(grandchild)
        if why == "cancel":
            await run.cancel()
            with pytest.raises(RunCancelled):
                await run.result()
        else:
            with pytest.raises(RunFailed, match="StepTimeout"):
                await run.result()
        await gone(child, grandchild)


async def test_a_child_dies_with_its_worker(tmp_path):
    """GUARANTEES 2: the worker is killed with SIGKILL; child and grandchild notice and end."""
    marker = tmp_path / "pids"
    worker = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "steps_hanging_parent.py"), str(tmp_path / "db"), str(marker)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    try:
        child, grandchild = await pids_in(marker)
        assert alive(child)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    await gone(child, grandchild)


def test_a_child_ends_though_its_worker_died_with_something_unread():
    """GUARANTEES 2: the connection is reset then, which is no end of file."""
    code = """
import socket, threading, time
from holdfast.bodies.child_main import _die_with_parent
worker, child = socket.socketpair()
threading.Thread(target=_die_with_parent, args=(child.makefile("rb"), threading.Event()), daemon=True).start()
child.send(b"a beat")
worker.close()
time.sleep(3600)
"""
    ended = subprocess.run([sys.executable, "-c", code], start_new_session=True, timeout=LONG, check=False)
    assert ended.returncode == -signal.SIGKILL


async def test_a_function_of_the_main_script_is_found(tmp_path):
    """DESIGN 3: a script with its steps in __main__ works, dataclasses and all."""
    script = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPTS / "steps_main.py"), str(tmp_path / "db"), stdout=subprocess.PIPE
    )
    out, _ = await script.communicate()
    assert out == b"Point(x=5)"


async def test_what_a_child_cannot_run_is_refused_with_the_way_out():
    """GUARANTEES 6: a function no child can import, an argument that would change on the way or cannot cross."""

    @activity(isolate="process")
    def inner() -> None: ...

    @workflow
    async def caller(ctx: Context) -> list[str]:
        return [
            await caught(ctx.step(inner)),
            await caught(ctx.step(bodies.untyped, bodies.Order("o", []))),
            await caught(ctx.step(bodies.untyped.options(check_args=False), object())),
        ]

    async with TestEngine(workflows=[caller]) as engine:
        run = await engine.start(caller)
        local, changed, unfit = await run.result()
        assert "attempt failed" not in [fact.kind for fact in await run.history()]
    assert local.startswith(
        "DefinitionError: step 'inner' is to run in a child process, which imports its function by name"
    )
    assert changed == (
        "DefinitionError: argument 1 of step 'untyped' is a Order and would reach the child process as a dict: "
        "annotate the parameter with its type"
    )
    assert unfit.startswith("NotSerializable: object of type object at $[0][0] in the arguments of step 'untyped#2'")


def test_only_functions_at_the_top_of_a_module_are_importable():
    """Which function a child would find under its name, and which it would not."""
    assert importable(bodies.work.function) == ("tests.support.scripts.steps_bodies", "work")
    assert importable(pids_in) == (__name__, "pids_in")
    assert importable(lambda: 0) is None
    assert importable(bodies.Order("o", []).__init__) is None
    assert importable(max) == ("builtins", "max")


@pytest.mark.parametrize(
    ("ending", "found"),
    [
        ('if __name__ == "__main__":\n    show()', True),
        ('def main():\n    show()\n\n\nif "__main__" == __name__:\n    main()', True),
        ("show()", False),
        ("if show:\n    show()", False),
    ],
)
def test_a_suspect_of_the_main_script_runs_in_a_child_only_if_the_script_may_be_run_again(tmp_path, ending, found):
    """B1 A script says so by its guard; without one its engine would be opened a second time by the child."""
    script = tmp_path / "script.py"
    script.write_text(
        "from holdfast.bodies.child_process import importable\n\n\n"
        f"def show():\n    print(importable(show), importable(show, asked=False))\n\n\n{ending}\n"
    )
    out = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, check=True, text=True).stdout
    assert out == f"('__main__', 'show') {('__main__', 'show') if found else None}\n"


async def pids_in(marker: Path) -> list[int]:
    while not marker.exists():  # noqa: ASYNC110  # what is waited for happens in another process or thread
        await asyncio.sleep(0.005)
    return [int(word) for word in marker.read_text().split()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False


async def gone(*pids: int) -> None:
    async with asyncio.timeout(LONG):
        while any(alive(pid) for pid in pids):  # noqa: ASYNC110  # what is waited for happens in another process or thread
            await asyncio.sleep(0.005)
