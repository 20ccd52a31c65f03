"""Runs of a database go on, in the middle of their code, on a Temporal cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.waiting import eventually
from tests.temporal import moving_flows
from tests.temporal.server import missing, temporal_server

if missing():
    pytest.skip(missing(), allow_module_level=True)

from holdfast import Engine
from holdfast.cli.main import main
from holdfast.contract.rows import Status
from holdfast.errors import Moved, StoreUnreachable
from holdfast.moving.families import KnownCode
from holdfast.moving.mover import Mover
from holdfast.moving.report import MoveReport
from holdfast.stores import open_store
from holdfast.temporal.client.target import MoveTarget

pytestmark = [pytest.mark.temporal, pytest.mark.leaves("process")]  # the server that the tests of the file share

EVERY = moving_flows.EVERY


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_TEST_NOTES", str(tmp_path))
    return tmp_path / "notes"


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/old.db"


@asynccontextmanager
async def mover(database: str, server: str, target: MoveTarget | None = None, **options: Any) -> AsyncIterator[Mover]:
    """Open what moves the runs of a database, as a process of its own would."""
    store = open_store(database, "process")
    await store.open()
    try:
        yield Mover(store, target or await connected(server), by="ada", **options)
    finally:
        await store.close()


async def connected(server: str) -> MoveTarget:
    """Connect to a server that may have begun to listen only just now."""
    made: list[MoveTarget] = []

    async def connects() -> bool:
        with suppress(StoreUnreachable):
            made.append(await MoveTarget.connect(server))
        return bool(made)

    await eventually(connects)
    return made[0]


async def waits(run: Any, what: str) -> None:
    async def does() -> bool:
        return bool((await run.describe()).waiting_for == what)

    await eventually(does)


async def test_a_run_goes_on_in_the_middle_of_its_code(make_engine, database, server, notes):
    """S3-16: recorded steps are not made again, what was sent is taken, evidence and attributes go along."""
    async with Engine(database, workflows=EVERY) as old:
        run = await old.start(moving_flows.halfway, id="order-1", attributes={"region": "south"})
        await run.send("two", "early", id="second")
        await waits(run, "message one")
        async with mover(database, server) as moving:
            report = await moving.move()
        assert (report.moved, report.left, report.finished) == (["order-1"], {}, [])
        with pytest.raises(Moved):
            await run.send("one", "late")
        here = await make_engine(*EVERY)
        moved = here.get("order-1", moving_flows.halfway)
        await moved.send("two", "again", id="second")
        await moved.send("one", "first")
        made = await moved.result()
    assert made == ["a", made[1], "first", "early", "b"]
    assert notes.read_text() == "a\nb\n"
    assert (await moved.describe()).attributes == {"region": "south"}


async def test_what_is_sent_before_during_and_after_the_move_arrives_once(make_engine, database, server):
    """S3-16: in the inbox when it is marked, in between by forwarding, afterwards on the other side."""
    async with Engine(database, workflows=EVERY) as old:
        run = await old.start(moving_flows.counter, 4, id="count-1")
        await waits(run, "message n")
        await run.pause()

        async def paused() -> bool:
            return bool((await old.store.get("count-1")).owner is None)

        await eventually(paused)
        await run.send("n", 1, id="before")
        async with mover(database, server) as moving:
            family = await moving._families.around("count-1")
            assert await moving._mark(family, set())
            assert await run.send("n", 2, id="during")
            assert not await run.send("n", 2, id="during")
            report = await moving.move()
            assert report.finished == ["count-1"]
        here = await make_engine(*EVERY)
        moved = here.get("count-1", moving_flows.counter)
        for id, n in (("before", 1), ("during", 2), ("after", 3), ("last", 4)):
            await moved.send("n", n, id=id)
        assert await moved.result() == [1, 2, 3, 4]


async def test_a_step_under_way_is_waited_for_and_not_made_twice(make_engine, database, server, notes):
    """S3-16: its worker lets it end, and records it."""
    async with Engine(database, workflows=EVERY) as old:
        await old.start(moving_flows.patient, id="slow-1")
        await eventually(lambda: notes.exists())
        async with mover(database, server) as moving:
            report = await moving.move()
        assert report.moved == ["slow-1"]
        here = await make_engine(*EVERY)
        assert await here.get("slow-1").result() == "slept then done"
    assert notes.read_text() == "slept\ndone\n"


async def test_a_body_that_does_not_end_in_the_grace_keeps_its_run_here(database, server, notes):
    """S3-16: the run goes on as if nothing had been asked."""
    async with Engine(database, workflows=EVERY, stop_grace=timedelta(0)) as old:
        run = await old.start(moving_flows.stubborn, id="stuck-1")
        await eventually(lambda: notes.exists())
        async with mover(database, server, grace=timedelta(milliseconds=300)) as moving:
            report = await moving.move()
        assert report.left == {
            "stuck-1": ["steps of stuck-1 did not end within 0.3 s: try again later, or with a longer --grace"]
        }

        async def goes_on() -> bool:
            return bool(await run.status() is Status.RUNNING)

        await eventually(goes_on)


async def test_an_attempt_that_was_lost_with_its_worker_counts_as_lost_where_it_goes(
    make_engine, database, server, notes
):
    """S3-16, G5: no number is given twice."""
    async with Engine(database, workflows=EVERY, stop_grace=timedelta(0)) as old:
        await old.start(moving_flows.once_more, id="lost-1")
        await eventually(lambda: notes.exists())
    async with mover(database, server) as moving:
        assert (await moving.move()).moved == ["lost-1"]
    here = await make_engine(*EVERY)
    assert await here.get("lost-1").result() == 2


async def a_family(old: Engine, name: str) -> None:
    """Start a run with a child and a grandchild, each waiting for the one below it."""
    await old.start(moving_flows.parent, name, id=name)

    async def deep() -> bool:
        found = [await old.find(id) for id in (name, f"{name}.child", f"{name}.below")]
        waits = [run.waiting_for for run in found if run is not None]
        return waits == [f"child {name}.child", f"child {name}.below", "message go"]

    await eventually(deep)


async def test_a_family_moves_whole(make_engine, database, server):
    """S3-16: parent, child and grandchild; each hears of the others where they are."""
    async with Engine(database, workflows=EVERY) as old:
        await a_family(old, "whole")
        async with mover(database, server) as moving:
            report = await moving.move(("whole.below",))
        assert sorted(report.moved) == ["whole", "whole.below", "whole.child"]
        here = await make_engine(*EVERY)
        await here.get("whole.below").send("go", 7)
        assert await here.get("whole").result() == [7]


async def test_a_cancel_of_a_parent_that_moved_reaches_its_children(make_engine, database, server):
    """S3-16, B18"""
    async with Engine(database, workflows=EVERY) as old:
        await a_family(old, "stopped")
        async with mover(database, server) as moving:
            assert len((await moving.move()).moved) == 3
    here = await make_engine(*EVERY)
    await here.get("stopped").cancel()
    for id in ("stopped", "stopped.child", "stopped.below"):

        async def cancelled(id: str = id) -> bool:
            return bool(await here.get(id).status() is Status.CANCELLED)

        await eventually(cancelled)


async def test_a_paused_run_stays_paused_and_a_delayed_one_begins_in_time(make_engine, database, server):
    """S3-16"""
    async with Engine(database, workflows=EVERY) as old:
        run = await old.start(moving_flows.counter, 1, id="held")
        await waits(run, "message n")
        await run.pause()
        await old.start(moving_flows.counter, 0, id="later", delay=timedelta(seconds=3))
        async with mover(database, server) as moving:
            assert sorted((await moving.move()).moved) == ["held", "later"]
    here = await make_engine(*EVERY)
    moved = here.get("held")

    async def paused() -> bool:
        return bool(await moved.status() is Status.PAUSED)

    await eventually(paused)
    await moved.send("n", 1)
    assert await moved.resume()
    assert await moved.result() == [1]
    assert await here.get("later").result() == []


async def test_a_dry_run_says_what_the_act_does(database, server):
    """S3-16: what cannot go and why, and nothing is changed."""
    every = [*EVERY, moving_flows.keyed, moving_flows.talker]
    async with Engine(database, workflows=every, stop_grace=timedelta(0)) as old:
        await old.start(moving_flows.counter, 1, id="goes")
        await old.start(moving_flows.counter, 1, id="keyed", unique_key="k")
        holder = await old.start(moving_flows.keyed, id="holds")
        await waits(holder, "")
        await old.start(moving_flows.keyed, id="queues")
        await old.start(moving_flows.halfway, "x" * 2_050_000, id="large")
        await waits(old.get("large"), "message one")
        await waits(old.get("goes"), "message n")

        async def holds() -> bool:
            return bool((await old.get("queues").describe()).status == "suspended")

        await eventually(holds)
        code = KnownCode(refused={"talker": "ctx.publish() is not offered there"})
        await old.start(moving_flows.talker, id="talks")
        async with mover(database, server, code=code) as moving:
            named = ("goes", "keyed", "queues", "large", "talks")  # a body of the one that holds the key never ends
            dry = await moving.move(named, dry_run=True)
            statuses = {run.id: run.status for run in await old.runs()}
            assert Status.MOVING not in statuses.values()
            done = await moving.move(named)
    assert dry.moved == done.moved == ["goes"]
    assert dry.left == done.left
    words = {run_id: " ".join(reasons) for run_id, reasons in dry.left.items()}
    assert "unique key 'k'" in words["keyed"]
    assert "idempotency key 'one'" in words["queues"]
    assert "takes" in words["large"]
    assert "ctx.publish()" in words["talks"]


async def test_an_id_that_is_taken_there_is_not_moved(make_engine, database, server):
    """S3-16: the run goes on where it is."""
    here = await make_engine(*EVERY)
    await here.start(moving_flows.counter, 1, id="twice")
    async with Engine(database, workflows=EVERY) as old:
        run = await old.start(moving_flows.counter, 1, id="twice")
        await waits(run, "message n")
        async with mover(database, server) as moving:
            report = await moving.move()
            assert "its id is taken" in report.left["twice"][0]
            # Taken after it was looked at: it is marked, not started, and given back.
            await run.pause()
            family, _ = await moving._rested(await moving._families.around("twice"), set())
            assert await moving._mark(family, set())
            report = await moving.move()
        assert "is another run" in report.left["twice"][0]
        await run.send("n", 5)
        assert await run.result() == [5]


async def test_two_movers_at_once_move_every_run_once(make_engine, database, server, notes):
    """S3-16"""
    async with Engine(database, workflows=EVERY) as old:
        for n in range(4):
            await waits(await old.start(moving_flows.halfway, id=f"both-{n}"), "message one")
        async with mover(database, server) as one, mover(database, server) as two:
            reports = await asyncio.gather(one.move(), two.move())
        assert not any(report.left for report in reports)
        assert {run.status for run in await old.runs()} == {Status.MOVED}
    here = await make_engine(*EVERY)
    for n in range(4):
        run = here.get(f"both-{n}")
        for name in ("one", "two"):
            await run.send(name, name)
        assert (await run.result())[2:] == ["one", "two", "b"]
    assert sorted(notes.read_text().split()) == ["a"] * 4 + ["b"] * 4


async def test_a_server_that_does_not_answer_leaves_everything_as_it_was(database):
    """S3-16"""
    async with Engine(database, workflows=EVERY) as old:
        run = await old.start(moving_flows.counter, 1, id="stays")
        with pytest.raises(StoreUnreachable, match="no Temporal server answers"):
            await MoveTarget.connect("temporal://127.0.0.1:1/default")
        assert (await run.describe()).status in ("running", "suspended")


async def test_the_command_says_what_it_would_do_and_does_it(make_engine, database, server, capsys):
    """S3-16: in words, as a document that fits its schema, and by the code it ends with."""
    async with Engine(database, workflows=EVERY) as old:
        await waits(await old.start(moving_flows.counter, 1, id="told"), "message n")
        await waits(await old.start(moving_flows.counter, 1, id="told-too", unique_key="told"), "message n")
        path, app = database.removeprefix("sqlite:///"), ["--app", "tests.temporal.moving_flows:EVERY"]
        would = await asyncio.to_thread(main, ["move", path, server, *app, "--dry-run"])
        said = capsys.readouterr().out
        assert (would, await old.get("told").status()) == (7, Status.SUSPENDED)
        assert f"would be moved to {server}: 1 run (told)" in said
        assert "told-too: it holds the unique key 'told'" in said
        assert await asyncio.to_thread(main, ["move", path, server, *app, "--json"]) == 7
        document = json.loads(capsys.readouterr().out)
        assert document.pop("schema") == "holdfast.moved/1"
        assert msgspec.convert(document, MoveReport).moved == ["told"]
        assert (document["moved"], [*document["left"]]) == (["told"], ["told-too"])
        assert await asyncio.to_thread(main, ["move", path, server, *app, "--run", "told-too"]) == 6
    here = await make_engine(*EVERY)
    await here.get("told").send("n", 1)
    assert await here.get("told").result() == [1]


async def test_a_server_that_goes_away_in_the_middle_leaves_the_run_on_its_way(database):
    """S3-16: nothing is lost; it is finished by the same command, and not sent elsewhere."""
    async with Engine(database, workflows=EVERY) as old:
        run = await old.start(moving_flows.counter, 1, id="between")
        await waits(run, "message n")
        with temporal_server() as gone:
            async with mover(database, gone) as moving:
                family, _ = await moving._rested(await moving._families.around("between"), set())
                assert await moving._mark(family, set())
        async with mover(database, gone, target=moving._target) as again:
            with pytest.raises(StoreUnreachable):
                await again.move()
        assert await run.status() is Status.MOVING
        assert await run.send("n", 1)
        with temporal_server() as other:
            async with mover(database, other) as elsewhere:
                report = await elsewhere.move()
        assert f"is on its way to {gone}: finish that first" in report.left["between"][0]
        assert await run.status() is Status.MOVING
