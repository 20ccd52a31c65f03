"""The housing example, killed after every commit, and moved by processes that are killed after every step of it."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT
from tests.support.waiting import eventually
from tests.temporal import housing, moving_flows
from tests.temporal.server import missing

if missing():
    pytest.skip(missing(), allow_module_level=True)

from holdfast import Engine, NoSuchRun, RunTerminal, Status
from holdfast.errors import Moved
from holdfast.stores import open_store

# It leaves the server that the tests of the file share.
pytestmark = [pytest.mark.temporal, pytest.mark.leaves("process"), pytest.mark.timeout(3_600)]

MOST_COMMITS = 40
CALLS = (1, 1, 1, 2)
"""After how many calls each mover is killed: the run was paused, marked, started there, left as a tombstone."""


async def child(*arguments: str) -> int:
    """Run a role in a process of its own; return how it ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(housing.__file__)), *arguments, cwd=ROOT, stdout=asyncio.subprocess.DEVNULL
    )
    return await process.wait()


async def begin(database: str, run_id: str, commits: int) -> bool:
    """Begin an application and kill its process after so many commits; False if it had come to its end by then."""
    ended = await child("run", database, run_id, str(commits))
    assert ended in (0, -signal.SIGKILL)
    store = open_store(database, "process")
    await store.open(look_only=True)
    try:
        row = await store.get(run_id)
        return row is not None and row.ended is None
    finally:
        await store.close()


async def move_with_kills(database: str, server: str) -> int:
    """Move what is open, each mover killed one step later than the last; return how many were."""
    ends = [await child("move", database, server, str(calls)) for calls in (*CALLS, 99)]
    assert {*ends[:-1]} <= {0, -signal.SIGKILL}
    assert ends[-1] == 0
    return len([end for end in ends if end])


async def kill_at_every_commit(database: str, server: str, make_engine: Any, prefix: str) -> tuple[int, int]:
    """Move the example at each of its commits; return at how many, and how many movers were killed."""
    example, made = housing.load(), 0
    killed = 0
    here = await make_engine(example.fair_chance)
    for commits in range(1, MOST_COMMITS):
        run_id = f"{prefix}-{commits}"
        if not await begin(database, run_id, commits):
            break
        killed += await move_with_kills(database, server)
        run = here.get(run_id, example.fair_chance)
        with suppress(RunTerminal):  # it had its signature before it moved
            await run.send(example.SIGNED, example.Authorization(housing.SIGNED_AT, "user_456"), id="signature")
        decision = await run.result()
        assert (decision.approved, decision.state) == (True, "APPROVED")
        assert decision.rationale == "assessed: nobody was hurt, nine years"
        assert len(set(decision.evidence_ids)) == len(decision.evidence_ids) == 7
        made += 1
    return made, killed


async def test_a_run_moved_from_sqlite_gives_the_result_it_would_have_given(tmp_path, server, make_engine):
    """S3-16, G1: at every commit, with a kill -9 at every step of the move."""
    made, killed = await kill_at_every_commit(f"sqlite:///{tmp_path}/old.db", server, make_engine, "lite")
    assert made >= 5
    assert killed >= 3 * made


async def test_a_run_moved_from_postgresql_gives_the_result_it_would_have_given(database, server, make_engine):
    """S3-16, G1: likewise."""
    made, killed = await kill_at_every_commit(database, server, make_engine, "post")
    assert made >= 5
    assert killed >= 3 * made


FAMILY_CALLS = (1, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 5, 3)
"""Likewise for three runs: each is paused; all are marked; each is started, resumed, and left as a tombstone."""


async def test_a_family_whose_movers_are_killed_at_every_step_arrives_whole(tmp_path, server, make_engine):
    """S3-16, G1: with a worker that goes on meanwhile; what is sent between two kills arrives once."""
    database = f"sqlite:///{tmp_path}/old.db"
    async with Engine(database, workflows=moving_flows.EVERY) as old:
        await old.start(moving_flows.parent, "kin", id="kin")

        async def deep() -> bool:
            found = await old.find("kin.below")
            return found is not None and found.waiting_for == "message go"

        await eventually(deep)
        ends = []
        for number, calls in enumerate((*FAMILY_CALLS, 99)):
            ends.append(await child("move", database, server, str(calls)))
            with suppress(Moved):
                await old.get("kin.below").send("note", number, id=f"note-{number}")
        assert {*ends[:-1]} <= {0, -signal.SIGKILL}
        assert ends[-1] == 0
        assert len([end for end in ends if end]) >= 8
        assert {run.status for run in await old.runs()} == {Status.MOVED}
    here = await make_engine(*moving_flows.EVERY)
    below = here.get("kin.below")
    notes = [message.payload for message in await below.messages()]
    assert notes == sorted(set(notes))
    assert len(notes) >= 3
    await below.send("go", 7)
    assert await here.get("kin").result() == [7]


BACK_CALLS = (1, 2, 3, 4, 2, 3, 1, 1, 1, 1)
"""Three runs are held, then expected; one is told to leave, then the others; each is closed; all arrive."""


async def test_a_family_whose_movers_are_killed_at_every_step_comes_back_whole(database, tmp_path, server, make_engine):
    """S3-16, G1: what is sent between two kills, to whichever side takes it, arrives once."""
    there = await make_engine(*moving_flows.EVERY)
    for kind, where in (("post", database), ("lite", f"sqlite:///{tmp_path}/here.db")):
        await there.start(moving_flows.parent, kind, id=kind)

        async def deep(kind: str = kind) -> bool:
            found = await there.find(f"{kind}.below")
            return found is not None and found.waiting_for == "message go"

        await eventually(deep)
        async with Engine(where, workflows=moving_flows.EVERY) as here:
            ends = []
            for number, calls in enumerate((*BACK_CALLS, 99)):
                ends.append(await child("back", where, server, str(calls)))
                await send_somewhere(there, here, f"{kind}.below", number)
            assert {*ends[:-1]} <= {0, -signal.SIGKILL}
            assert ends[-1] == 0
            assert len([end for end in ends if end]) >= 7
            below = here.get(f"{kind}.below")
            notes = [message.payload for message in await below.messages()]
            assert notes == list(range(len(BACK_CALLS) + 1))
            await below.send("go", 7)
            assert await here.get(kind).result() == [7]


async def send_somewhere(there: Any, here: Any, run_id: str, number: int) -> None:
    """Send to a run that may be on either side, as its callers do: where they are told that it is."""
    for engine in (there, here):
        with suppress(Moved, NoSuchRun):
            await engine.get(run_id).send("note", number, id=f"note-{number}")
            return
    raise AssertionError(f"{run_id} is nowhere")
