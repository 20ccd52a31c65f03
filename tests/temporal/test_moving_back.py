"""Runs of a Temporal cluster go on, in the middle of their code, on a database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import eventually
from tests.temporal import moving_flows
from tests.temporal.server import missing

if missing():
    pytest.skip(missing(), allow_module_level=True)

from holdfast import Engine, RunCancelled, RunFailed
from holdfast.contract.rows import Status
from holdfast.errors import Moved
from holdfast.moving.mover import Mover
from holdfast.moving.report import MoveReport
from holdfast.moving.returner import Returner
from holdfast.stores import open_store
from holdfast.temporal.client.source import MoveSource
from holdfast.temporal.client.target import MoveTarget

pytestmark = [pytest.mark.temporal, pytest.mark.leaves("process")]  # the server that the tests of the file share

EVERY = moving_flows.EVERY
HERE = "sqlite:///here.db"


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_TEST_NOTES", str(tmp_path))
    return tmp_path / "notes"


@asynccontextmanager
async def returner(server: str, database: str, **options: Any) -> AsyncIterator[Returner]:
    """Open what moves the runs of a cluster, as a process of its own would."""
    store = open_store(database, "process")
    await store.open()
    try:
        yield Returner(await MoveSource.connect(server), store, HERE, by="ada", **options)
    finally:
        await store.close()


async def waits(run: Any, what: str) -> None:
    async def does() -> bool:
        return what in (await run.describe()).waiting_for.split("; ")

    await eventually(does)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/here.db"


async def moved_back(server: str, database: str, *runs: str, **options: Any) -> MoveReport:
    """Let runs come from the cluster."""
    async with returner(server, database, **options) as moving:
        return await moving.move(runs)


async def moved_there(server: str, database: str, *runs: str) -> MoveReport:
    """Let runs go to the cluster."""
    store = open_store(database, "process")
    await store.open()
    try:
        return await Mover(store, await MoveTarget.connect(server), by="ada").move(runs)
    finally:
        await store.close()


async def test_a_run_goes_on_here_in_the_middle_of_its_code(make_engine, file, server, notes):
    """S3-16: recorded steps are not made again, what was sent is taken, evidence and attributes go along."""
    there = await make_engine(*EVERY)
    run = await there.start(moving_flows.halfway, id="back-1", attributes={"region": "south"})
    await run.send("two", "early", id="second")
    await waits(run, "message one")
    async with returner(server, file) as moving:
        report = await moving.move()
    assert (report.moved, report.left, report.finished) == (["back-1"], {}, [])
    with pytest.raises(Moved, match=r"was moved to sqlite:///here\.db"):
        await run.send("one", "late")
    with pytest.raises(Moved):
        await run.result()
    assert await run.status() is Status.MOVED
    async with Engine(file, workflows=EVERY) as here:
        moved = here.get("back-1", moving_flows.halfway)
        await moved.send("two", "again", id="second")
        await moved.send("one", "first")
        made = await moved.result()
        assert made == ["a", made[1], "first", "early", "b"]
        assert (await moved.describe()).attributes == {"region": "south"}
        assert [item.kind for item in await here.audit.evidence("back-1")] == ["begun"]
    assert notes.read_text() == "a\nb\n"


@pytest.fixture(params=["sqlite", "postgres"])
def either(request: pytest.FixtureRequest) -> str:
    """Return the address of a database of each kind."""
    return str(request.getfixturevalue("file" if request.param == "sqlite" else "database"))


async def test_a_run_goes_there_and_back_and_there_again(make_engine, either, server, notes):
    """S3-16: each time its tombstone gives way, and its epoch goes up; what was sent is taken once."""
    there, swings = await make_engine(*EVERY), f"swings-{either[:4]}"
    async with Engine(either, workflows=EVERY) as here:
        await waits(await here.start(moving_flows.counter, 5, id=swings), "message n")
        epochs = []
        for n in (1, 3):
            on_this_side = here.get(swings, moving_flows.counter)
            await on_this_side.send("n", n, id=f"n{n}")
            await waits(on_this_side, "message n")
            epochs.append((await here.store.get(swings)).epoch)
            assert (await moved_there(server, either, swings)).moved == [swings]
            with pytest.raises(Moved):
                await on_this_side.send("n", 99)
            on_that_side = there.get(swings, moving_flows.counter)
            await on_that_side.send("n", n, id=f"n{n}")
            await on_that_side.send("n", n + 1, id=f"n{n + 1}")
            await waits(on_that_side, "message n")
            assert (await moved_back(server, either, swings)).moved == [swings]
            with pytest.raises(Moved):
                await on_that_side.send("n", 99)
            epochs.append((await here.store.get(swings)).epoch)
        assert epochs[0] < epochs[1] <= epochs[2] < epochs[3]
        assert (await moved_there(server, either, swings)).moved == [swings]
        await there.get(swings).send("n", 5, id="n5")
        assert await there.get(swings, moving_flows.counter).result() == [1, 2, 3, 4, 5]
        acts = [row.action for row in await here.audit.records(target=swings)]
        assert acts.count("arrive") == acts.count("expect move") == 2


async def test_steps_a_sleep_a_child_and_what_undoes_them_come_along(make_engine, either, server, notes):
    """S3-16: the failure at the end undoes what was done on either side; no recorded step is made again."""
    there, trip = await make_engine(*EVERY), f"trip-{either[:4]}"
    run = await there.start(moving_flows.journey, trip, 4.0, id=trip)
    await waits(run, "timer")
    due = (await run.describe()).due_at
    assert (await moved_back(server, either)).moved == [trip]
    async with Engine(either, workflows=EVERY) as here:
        back = here.get(trip)
        await waits(back, "message said")
        assert due is None or (await here.find(f"{trip}.below")).created_at >= due
        assert sorted((await moved_there(server, either)).moved) == [trip, f"{trip}.below"]
        await waits(run, "message said")
        assert sorted((await moved_back(server, either)).moved) == [trip, f"{trip}.below"]
        await here.get(f"{trip}.below").send("go", 7)
        await back.send("said", "spoken")
        with pytest.raises(RunFailed, match="no"):
            await back.result()
    assert notes.read_text().split() == ["first", "spoken", "7", "undo-spoken", "undo-first"]


async def test_signals_that_race_with_the_close_arrive_once(make_engine, file, server):
    """S3-16: a sender that is told of the move goes on at the database, by the same ids."""
    most = 60
    there = await make_engine(*EVERY)
    run = await there.start(moving_flows.counter, most, id="race")
    await waits(run, "message n")
    async with Engine(file, workflows=EVERY) as here:
        left = asyncio.Event()

        async def sends() -> int:
            at = 0
            for n in range(most):
                if not left.is_set():
                    try:
                        await run.send("n", n, id=f"n{n}")
                        at += 1
                        continue
                    except Moved:
                        left.set()
                await here.get("race").send("n", n, id=f"n{n}")  # its row is there before the run is closed
            return at

        sending = asyncio.ensure_future(sends())
        assert (await moved_back(server, file)).moved == ["race"]
        assert await sending > 0
        assert await here.get("race", moving_flows.counter).result() == list(range(most))


async def test_a_step_that_ends_while_its_run_is_held_is_recorded_where_it_arrives(make_engine, file, server, notes):
    """S3-16, G1"""
    there = await make_engine(*EVERY)
    await there.start(moving_flows.patient, id="slow")
    await eventually(lambda: notes.exists())
    assert (await moved_back(server, file)).moved == ["slow"]
    async with Engine(file, workflows=EVERY) as here:
        assert await here.get("slow").result() == "slept then done"
    assert notes.read_text() == "slept\ndone\n"


async def test_a_body_that_does_not_end_in_the_grace_keeps_its_run_there(make_engine, file, server, notes):
    """S3-16: the run goes on as if nothing had been asked."""
    there = await make_engine(*EVERY)
    run = await there.start(moving_flows.stubborn, id="stuck")
    await eventually(lambda: notes.exists())
    report = await moved_back(server, file, "stuck", grace=timedelta(milliseconds=300))
    assert report.left == {
        "stuck": ["steps of stuck did not end within 0.3 s: try again later, or with a longer --grace"]
    }
    assert await run.status() is Status.RUNNING
    await run.terminate()


async def test_who_waits_for_a_reply_is_told_of_the_move(make_engine, file, server):
    """S3-16: and so is who asks later; the request goes along as a message that was taken."""
    there = await make_engine(*EVERY)
    run = await there.start(moving_flows.asked, id="asked")
    await waits(run, "message question")
    asking = asyncio.ensure_future(run.ask("question", "when?"))
    await waits(run, "message go")
    assert (await moved_back(server, file, "asked")).moved == ["asked"]
    for call in (
        lambda: asking,
        lambda: run.ask("question", "again?"),
        lambda: run.query("state"),
        run.pause,
        run.cancel,
    ):
        with pytest.raises(Moved, match=r"here\.db"):
            await call()
    with pytest.raises(Moved):
        await there.start(moving_flows.asked, id="asked")
    async with Engine(file, workflows=EVERY) as here:
        await here.get("asked").send("go")
        await here.get("asked").send("more", "done")
        assert await here.get("asked").result() == "done"


async def test_paused_stays_paused_and_a_cancel_goes_on_being_one(make_engine, file, server, notes):
    """S3-16, B18"""
    there = await make_engine(*EVERY)
    held = await there.start(moving_flows.counter, 1, id="held")
    await waits(held, "message n")
    await held.pause()
    await held.send("n", 3)
    stops = await there.start(moving_flows.tidy, id="stops")
    await waits(stops, "message never")
    await stops.pause()
    async with returner(server, file) as moving:
        family = await moving._around(["stops"])
        assert await moving._expect(family, "mine")
        async with Engine(file, workflows=EVERY) as here:
            with pytest.raises(Moved, match="is on its way here from temporal://"):
                await here.get("stops").pause()
            assert await here.get("stops").cancel()
            report = await moving.move(("stops", "held"))
            assert (report.moved, report.finished) == (["held"], ["stops"])
            with pytest.raises(RunCancelled):
                await here.get("stops").result()
            assert await here.get("held").status() is Status.PAUSED
            await here.get("held").resume()
            assert await here.get("held").result() == [3]
    assert notes.read_text() == "tidied\n"


async def test_a_dry_run_says_what_cannot_come_and_changes_nothing(make_engine, file, server):
    """S3-16: with the way out."""
    there = await make_engine(*EVERY)
    for id in ("comes", "taken"):
        await waits(await there.start(moving_flows.counter, 1, id=id), "message n")
    await there.start(moving_flows.counter, 1, id="later", delay=timedelta(hours=1))
    async with Engine(file, workflows=EVERY) as here:
        await here.start(moving_flows.counter, 1, id="taken")
        async with returner(server, file) as moving:
            dry = await moving.move(("comes", "taken", "later"), dry_run=True)
            assert await there.get("comes").status() is Status.SUSPENDED
            done = await moving.move(("comes", "taken", "later"))
        assert (dry.moved, dry.left) == (done.moved, done.left)
        assert dry.moved == ["comes"]
        assert "its id is taken" in dry.left["taken"][0]
        assert "move it once it has begun" in dry.left["later"][0]
    for id in ("taken", "later"):
        await there.get(id).terminate()


async def test_two_movers_at_once_bring_every_run_once(make_engine, file, server, notes):
    """S3-16"""
    there = await make_engine(*EVERY)
    ids = [f"both-{n}" for n in range(3)]
    for id in ids:
        await waits(await there.start(moving_flows.halfway, id=id), "message one")
    async with returner(server, file) as one, returner(server, file) as two:
        reports = await asyncio.gather(one.move(tuple(ids)), two.move(tuple(ids)))
    assert [report.left for report in reports] == [{}, {}]
    async with Engine(file, workflows=EVERY) as here:
        for id in ids:
            run = here.get(id)
            for name in ("one", "two"):
                await run.send(name, name)
            assert (await run.result())[2:] == ["one", "two", "b"]
    assert sorted(notes.read_text().split()) == ["a"] * 3 + ["b"] * 3
