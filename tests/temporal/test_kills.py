"""Kill -9 of the worker: no recorded step is made again, no message is lost or taken twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.temporal import flows
from tests.temporal.server import missing

if missing():
    pytest.skip(missing(), allow_module_level=True)

from tests.temporal.workers import Workers, apart, workers

from holdfast import RunFailed

pytestmark = [pytest.mark.leaves("process"), pytest.mark.timeout(3_600)]  # the server that the tests share
DONE = ["first", "2", "101", "said", "nothing more"]
BODIES = {"first": 1, "turn 0": 1, "turn 1": 1, "turn 2": 1, "kid 1": 1}
UNDONE = {**BODIES, "boom": 1, "undo first": 1}


async def killed_once(started: Workers, server: str, name: str, fail: bool, folder: Path, kill: str) -> bool:
    """Let a run go on with another worker after the first was killed; False if it was not killed."""
    folder.mkdir()
    async with apart(server, name, run_workflows=False) as client:
        run = await client.start(flows.everything, fail, id=name)
        await run.send("word", "said", id="once")
        first = started.begin(name, folder, kill)
        ending = asyncio.ensure_future(run.result())
        try:
            while first.is_alive() and not ending.done():
                await asyncio.wait([ending], timeout=0.05)
            was_killed = not first.is_alive()
            await run.send("word", "said once more", id="once") if not ending.done() else None
            if was_killed:
                started.begin(name, folder)
            if fail:
                with pytest.raises(RunFailed, match="boom"):
                    await ending
            else:
                assert await ending == DONE, kill
        finally:
            ending.cancel()
    ran = Counter((folder / "notes").read_text().splitlines())
    again = ran - Counter(UNDONE if fail else BODIES)
    assert ran.keys() == (UNDONE if fail else BODIES).keys(), kill
    # A body runs again only if its worker was killed before its end was told; one that had not begun, never.
    assert again.total() == (1 if kill.startswith("after body") and was_killed else 0), (kill, ran)
    return was_killed


@pytest.mark.temporal
@pytest.mark.parametrize("fail", [False, True])
async def test_a_run_whose_worker_is_killed_anywhere_does_nothing_recorded_again(server, tmp_path, fail):
    """G1, S3-16: before and after every turn and every body of a run with steps, a loop, a child, a compensation."""
    slots = asyncio.Semaphore(4)
    kills: Counter[str] = Counter()

    async def at(kill: str) -> None:
        async with slots:
            name = f"{kill} {fail}".replace(" ", "-")
            was_killed = await killed_once(started, server, name, fail, tmp_path / name, kill)
            kills[kill.rpartition(" ")[0]] += was_killed

    with workers(server) as started:
        async with asyncio.TaskGroup() as group:
            for when in ("before", "after"):
                for number in range(1, 17):
                    group.create_task(at(f"{when} turn {number}"))
                for number in range(1, 9):
                    group.create_task(at(f"{when} body {number}"))
    bodies = len(UNDONE if fail else BODIES)
    turns = kills["before turn"]
    assert kills == {"before turn": turns, "after turn": turns, "before body": bodies, "after body": bodies}
    # Of the run with what was sent before it, of its child, of the end of that and of times; steps bring theirs along.
    assert turns >= 4


async def test_a_run_goes_on_after_its_worker_was_killed(server, tmp_path):
    """G1: two of the places that the test above goes through."""
    with workers(server) as started:
        kills = [("before turn 6", False), ("after body 3", True)]
        async with asyncio.TaskGroup() as group:
            for kill, fail in kills:
                name = kill.replace(" ", "-")
                group.create_task(killed_once(started, server, name, fail, tmp_path / name, kill))
