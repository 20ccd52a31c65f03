"""Moving house: everything arrives as it was, goes on where it is, and nothing is ever in two places by accident."""

from __future__ import annotations

import asyncio
import gzip
import random
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from tests.postgres import servers
from tests.support.transfer_cases import (
    DAY,
    WORKFLOWS,
    House,
    approval,
    changed,
    columns_of,
    contents,
    finish,
    furnish,
    lonely,
    order,
    query,
    single,
    sleeper,
)
from tests.support.waiting import eventually

from holdfast import Context, RunConflict, Status, activity, workflow
from holdfast.clock import to_datetime
from holdfast.contract.operations import Delivered, Purge, SendMessage, Started
from holdfast.contract.rows import EntryRow
from holdfast.contract.store import Store
from holdfast.contract.turns import CommitTurn, NewRun, NewTask, StartRun, TurnEffects
from holdfast.errors import NoSuchRun, RunBlocked
from holdfast.limits import Limit
from holdfast.stores import open_store
from holdfast.system import boot_id
from holdfast.testing import JumpingClock, exported_run, replay
from holdfast.testing.invariants import violations
from holdfast.transfer import CannotMove, Report, Which, export_runs, import_runs
from holdfast.transfer.file import Header, Reader, Writer
from holdfast.transfer.tables import COLUMNS

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)
KINDS = ("sqlite", "postgres", "keyvalue")


class Houses:
    """Houses of one kind to move from and of one to move to, and a folder for files."""

    def __init__(self, folder: Path, kinds: tuple[str, str], schema: Callable[[], str]) -> None:
        self.folder = folder
        self.file = folder / "all.holdfast"
        self._kinds = dict(zip(("old", "new"), kinds, strict=True))
        self._schema = schema

    def old(self, name: str = "old") -> House:
        """Return an empty house to move from."""
        return House(self._address("old", name), JumpingClock(NEW_YEAR))

    def new(self, like: House, name: str = "new") -> House:
        """Return an empty house to move to, where it is as late as in another."""
        return House(self._address("new", name), JumpingClock(to_datetime(like.clock.now())))

    def _address(self, role: str, name: str) -> str:
        kind = self._kinds[role]
        if kind == "keyvalue":
            return f"kv+dir:///{self.folder / name}.keys"
        return f"sqlite:///{self.folder / name}.db" if kind == "sqlite" else self._schema()


def _houses(request: pytest.FixtureRequest, folder: Path, kinds: tuple[str, str]) -> Iterator[Houses]:
    with ExitStack() as stack:

        def schema() -> str:
            postgres = request.getfixturevalue("postgres")
            name = stack.enter_context(servers.fresh_schema(postgres))
            return f"{postgres}{'&' if '?' in postgres else '?'}schema={name}"

        yield Houses(folder, kinds, schema)


def _pairs() -> Iterator[Any]:
    """Give each kind to move from with each to move to; a move to another kind exercises both sides of both kinds."""
    for old in KINDS:
        for new in KINDS:
            marks = [pytest.mark.slow] if old == new or "keyvalue" in (old, new) else []
            yield pytest.param((old, new), marks=marks, id=f"{old} to {new}")


_NEED_SQL = {
    "test_an_event_queued_in_one_house_reaches_who_waits_in_the_other",
    "test_a_house_is_not_left_while_a_worker_is_at_work",
    "test_a_worker_that_comes_while_a_house_is_left_is_noticed",
    "test_a_hung_worker_may_go_on_and_so_its_house_is_not_left",
    "test_an_export_is_one_moment_however_long_it_takes",
    "test_memory_does_not_grow_with_the_database",
}
"""Tests with two processes on a database, or with statements of their own beside it, and of memory."""


@pytest.fixture(params=_pairs())
def houses(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Houses]:
    if "keyvalue" in request.param and request.function.__name__ in _NEED_SQL:
        pytest.skip("a key space has one process at a time, no statements, and is held in memory")
    yield from _houses(request, tmp_path, request.param)


@pytest.fixture
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Houses]:
    """The same, where it does not matter which databases there are."""
    yield from _houses(request, tmp_path, ("sqlite", "sqlite"))


@asynccontextmanager
async def opened(house: House | str) -> AsyncIterator[Store]:
    store = open_store(house if isinstance(house, str) else house.database)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def move_out(house: House, file: Path, **which: Any) -> Report:
    async with opened(house) as store:
        return await export_runs(store, file, Which(**which), clock=house.clock)


async def move_in(file: Path, house: House, **options: Any) -> Report:
    async with opened(house) as store:
        report = await import_runs(file, store, clock=house.clock, **options)
        assert await violations(store) == []
        return report


async def start_one(house: House, *, id: str = "one", days: int = 3, **options: Any) -> None:
    async with house.engine() as engine:
        await engine.start(sleeper, days, id=id, **options)
        await engine.settle()


# Everything.


async def test_everything_arrives_as_it_was(houses):
    """G1, G3, S0-48"""
    old = houses.old()
    await furnish(old)
    there = contents(old.database)
    assert not [table for table, rows in there.items() if not rows and table != "tasks"]

    report = await move_out(old, houses.file)
    assert contents(old.database) == there  # a look changes nothing
    new = houses.new(old)
    moved = await move_in(houses.file, new)
    assert (moved.runs, moved.open_runs, moved.skipped) == (len(there["runs"]), report.open_runs, 0)
    here = contents(new.database)
    assert _unmoved(here.pop("runs")) == _moved(there.pop("runs"))
    mark = [row for row in here["audit"] if dict(row)["action"] == "import"]
    assert [dict(row)["target"] for row in mark] == [report.sha256]
    here["audit"].remove(mark[0])
    assert here == there


def _moved(runs: list[Any]) -> list[dict[str, Any]]:
    """Return the rows of runs with the epoch they must have elsewhere."""
    rows = _unmoved(runs)
    for run in rows:
        run["epoch"] += bool(run["epoch"] and run["ended"] is None)
    return rows


def _unmoved(runs: list[Any]) -> list[dict[str, Any]]:
    return sorted((dict(run) for run in runs), key=lambda run: run["id"])


async def test_what_is_shown_of_runs_is_the_same_in_the_new_house(files):
    """S0-48, S0-3, S0-6 Status, times, attempts, errors and timelines, of runs in every state, before any goes on."""
    old = files.old()
    await furnish(old)
    there = await _shown(old)
    await move_out(old, files.file)
    new = files.new(old)
    await move_in(files.file, new)
    here = await _shown(new)
    assert {run.status for run, _, _ in there.values()} >= {"suspended", "paused", "completed", "failed", "cancelled"}
    assert here.keys() == there.keys()
    for id, shown in here.items():
        assert shown == there[id]


async def _shown(house: House) -> dict[str, Any]:
    async with house.engine(run_workflows=False) as engine:
        return {run.id: await _shown_of(engine, run) for run in await engine.runs(limit=1000)}


async def _shown_of(engine: Any, run: Any) -> Any:
    handle = engine.get(run.id)
    alike = replace(run, owner=None, epoch=0)  # whose it is differs, and that alone
    return alike, await handle.steps(), await handle.timeline()


async def test_runs_go_on_in_the_new_house_and_end_as_they_would_have_in_the_old(houses):
    """G1, G2, S0-48"""
    old = houses.old()
    await furnish(old)
    await move_out(old, houses.file)
    new = houses.new(old)
    await move_in(houses.file, new)
    ends = await finish(new)
    assert ends == await finish(old)
    assert {id for id, (status, _) in ends.items() if not status.is_terminal} == set()
    assert ends["late-reader"] == ("completed", ["first", "second"])
    assert ends["reader-1"] == ("completed", ["first", "second", "third"])
    assert ends["second"] == ("completed", "did thing")
    async with new.engine() as engine:
        assert (await engine.audit.verify()).ok
        assert (await engine.audit.verify_evidence("completed")).checked == 1
        assert await engine.execute(sleeper, 1) == "kept sleep-1"  # new runs are new
        with pytest.raises(RunConflict):
            await engine.start(sleeper, 1, id="gone-1")  # the id of a purged run stays taken


async def test_every_table_and_column_of_a_database_is_moved(houses):
    """G1"""
    new = houses.new(houses.old())
    async with opened(new):
        pass
    columns = columns_of(new.database)
    columns["workers"] = {"id", "pid", "host", "fate"}  # no worker moves; their fate does
    assert {table: {name for name, _ in said} for table, said in COLUMNS.items()} == columns


async def test_a_run_that_waits_for_a_limit_asks_again_where_it_arrives(houses):
    """G1 S4-19: lines do not move."""
    go = asyncio.Event()

    @activity(limit="bank")
    async def pay(number: int) -> int:
        await go.wait()
        return number

    @workflow
    async def buyer(ctx: Context, number: int) -> int:
        return await ctx.step(pay, number)

    old, limits = houses.old(), [Limit(name="bank", at_once=1)]
    async with old.engine([buyer], limits=limits) as engine:
        for number in range(3):
            await engine.start(buyer, number, id=f"r-{number}")
        await eventually(lambda: _two_wait(engine))
    await move_out(old, houses.file)
    new = houses.new(old)
    await move_in(houses.file, new)
    go.set()
    async with new.engine([buyer], limits=limits) as engine:
        assert [await engine.get(f"r-{number}").result() for number in range(3)] == [0, 1, 2]


async def _two_wait(engine: Any) -> bool:
    return sum(row.waiting for row in await engine.store.limits()) == 2


async def test_a_file_that_was_imported_before_changes_nothing(houses):
    """G2"""
    old = houses.old()
    await furnish(old)
    await move_out(old, houses.file)
    new = houses.new(old)
    await move_in(houses.file, new)
    before = contents(new.database)
    again = await move_in(houses.file, new)
    assert (again.runs, again.imported) == (0, to_datetime(new.clock.now()))
    assert contents(new.database) == before
    await finish(new)
    before = contents(new.database)
    assert (await move_in(houses.file, new)).runs == 0
    assert contents(new.database) == before


async def test_runs_that_are_there_and_the_same_are_left_alone(houses):
    """G2"""
    old = houses.old()
    await furnish(old)
    await move_out(old, houses.file)
    await move_out(old, later := houses.folder / "later.holdfast", statuses=[Status.FAILED])
    new = houses.new(old)
    await move_in(houses.file, new)
    before = contents(new.database)
    report = await move_in(later, new)
    assert (report.runs, report.skipped) == (0, 2)
    after = contents(new.database)
    assert len(after.pop("audit")) == len(before.pop("audit")) + 1
    assert after == before


async def test_a_run_that_is_there_but_another_is_refused_with_both_named(houses):
    """G2, B16"""
    old = houses.old()
    await start_one(old)
    await start_one(old, id="two")
    await move_out(old, houses.file)
    new = houses.new(old)
    await start_one(new, days=4)
    before = contents(new.database)
    with pytest.raises(CannotMove, match=r"run 'one' is in the file \(suspended, \d+ entries.*database \(suspended"):
        await move_in(houses.file, new)
    assert contents(new.database) == before
    report = await move_in(houses.file, new, skip_existing=True)
    assert (report.runs, report.skipped) == (1, 1)
    async with new.engine() as engine:
        assert (await engine.get("one").result(), await engine.get("two").result()) == ("kept sleep-4", "kept sleep-3")


async def test_a_run_that_was_there_and_purged_does_not_come_back(houses):
    """G2, B16"""
    old = houses.old()
    await start_one(old)
    await move_out(old, houses.file)
    new = houses.new(old)
    async with new.engine() as engine:
        await engine.execute(sleeper, 3, id="one")
        now = new.clock.now() + 1
        await engine.store.apply([Purge(what="completed", before=now, at=now, keep_ids=now + 10**12)])
    with pytest.raises(CannotMove, match=r"run 'one' is in the file .* purged there"):
        await move_in(houses.file, new)
    assert (await move_in(houses.file, new, skip_existing=True)).runs == 0


async def test_two_open_runs_never_have_one_unique_key(houses):
    """S0-15, B16"""
    old = houses.old()
    await start_one(old, unique_key="desk")
    await move_out(old, houses.file)
    new = houses.new(old)
    await start_one(new, id="other", unique_key="desk")
    with pytest.raises(CannotMove, match=r"run 'one' in the file and run 'other' in the database .* unique key 'desk'"):
        await move_in(houses.file, new, skip_existing=True)


async def test_a_schedule_or_a_result_under_a_key_that_differs_is_refused(houses):
    new = houses.new(old := houses.old())
    for house, hours in ((old, 1), (new, 2)):
        async with house.engine() as engine:
            await engine.schedules.put("tidy", sleeper, 0, every=timedelta(hours=hours))
    await move_out(old, houses.file)
    with pytest.raises(CannotMove, match="schedule 'tidy' is in the file and in the database, and they differ"):
        await move_in(houses.file, new)
    await move_in(houses.file, new, skip_existing=True)
    async with new.engine() as engine:
        assert [schedule.every for schedule in await engine.schedules.list()] == [timedelta(hours=2)]


# Two houses become one.


async def test_two_houses_become_one(houses):
    """G1, S0-48"""
    first, second = houses.old(), houses.old("second")
    await start_one(first, id="first")
    await start_one(second, id="second")
    new = houses.new(first)
    for name, house in (("first", first), ("second", second)):
        async with house.engine() as engine:
            await engine.start(approval, id=f"waits-{name}")
            await engine.settle()
            await engine.get(f"waits-{name}").pause(by="kim")
        await move_out(house, file := houses.folder / f"{name}.holdfast")
        await move_in(file, new)
    async with new.engine() as engine:
        assert await engine.get("first").result() == await engine.get("second").result() == "kept sleep-3"
        verdict = await engine.audit.verify()
        assert (verdict.ok, verdict.checked) == (True, 4)
        done = [(row.action, row.target) for row in await engine.audit.records()]
        assert ("pause", "waits-first") in done
        assert ("pause", "waits-second") in done


async def test_an_event_queued_in_one_house_reaches_who_waits_in_the_other(houses):
    """G7"""
    new = houses.new(old := houses.old())
    async with old.engine() as engine:
        await engine.start(approval, id="waits-there")
        await engine.publish("found", "from there")
        await engine.settle()
    await move_out(old, houses.file)
    async with new.engine() as engine:
        await engine.publish("approval", "from here")
        run = await engine.start(lonely, id="waits-here")
        await engine.settle()
        async with opened(new) as store:
            await import_runs(houses.file, store, clock=new.clock)
        assert await run.result() == ["found", "from there"]
        assert await engine.get("waits-there").result() == ["from here"]


async def test_events_are_taken_in_the_order_in_which_they_were_published(houses):
    """G7"""
    old = houses.old()
    async with old.engine() as engine:
        for number in range(3):
            await engine.publish("lost", number)
            await engine.publish("found", number)
    await move_out(old, houses.file)
    new = houses.new(old)
    await move_in(houses.file, new)
    async with new.engine() as engine:
        taken = [await engine.execute(lonely) for _ in range(6)]
    assert taken == [[name, number] for number in range(3) for name in ("lost", "found")]


async def test_a_message_sent_inside_a_transaction_arrives_with_its_run(files, database):
    """G7"""
    old = House(database, JumpingClock(NEW_YEAR))
    async with old.engine() as engine:
        await engine.start(approval, id="one")
        await engine.settle()
    message = SendMessage(target="one", name="approval", id="m-1", payload='"yes"', at=old.clock.now())
    address = database.partition("schema=")[0].rstrip("?&")
    async with opened(old) as store, await psycopg.AsyncConnection.connect(address) as connection:
        assert isinstance(await store.enclose(connection, message), Delivered)
    assert len(query(database, "SELECT n FROM outbox")) == 1
    await move_out(old, files.file)
    new = files.new(old)
    await move_in(files.file, new)
    async with new.engine() as engine:
        assert await engine.get("one").result() == ["yes"]


# Who is at work.


async def test_a_house_is_not_left_while_a_worker_is_at_work(houses):
    """G5"""
    old = houses.old()
    async with old.engine() as engine:
        await engine.start(sleeper, 3, id="one")
        await engine.settle()
        with pytest.raises(CannotMove, match=r"worker \S+ \(pid \d+ on \S+\) is at work: stop it first"):
            await export_runs(engine.store, houses.file)
        assert [*houses.folder.glob("*holdfast*"), *houses.folder.glob(".*part")] == []
        async with opened(old) as store:
            with pytest.raises(CannotMove, match="is at work"):
                await export_runs(store, houses.file)
            report = await export_runs(store, houses.file, Which(snapshot=True))
    assert report.snapshot


async def test_a_worker_that_comes_while_a_house_is_left_is_noticed(houses):
    """G5"""
    old = houses.old()
    await start_one(old)
    joined = False

    def progress(runs: int, rows: int) -> None:
        nonlocal joined
        if not joined:
            announce(old.database)
            joined = True

    async with opened(old) as store:
        with pytest.raises(CannotMove, match=r"worker late \(pid 7 on elsewhere\) is at work"):
            await export_runs(store, houses.file, progress=progress)
    assert joined
    assert not houses.file.exists()


def announce(database: str) -> None:
    """Let a worker join from another machine."""
    columns, values = (
        "id, lease_until, lease, pid, host, joined, state",
        "'late', 1 << 62, 1, 7, 'elsewhere', 0, 'live'",
    )
    if database.startswith("sqlite"):
        query(database, f"INSERT INTO workers ({columns}, boot, lock) VALUES ({values}, '{boot_id()}', '')")
    else:
        values = values.replace("1 << 62", "1::bigint << 62")
        query(
            database,
            f"INSERT INTO workers ({columns}, session, session_begun, machine) VALUES ({values}, 0, '', 'there')",
        )


async def test_a_run_of_a_worker_that_crashed_is_taken_as_lost_by_the_crash(files):
    """B1, G4"""
    old = files.old()
    engine = old.engine()
    await engine.open()
    run = await engine.start(single, "thing", id="holder")
    await engine.start(sleeper, 3, id="one")

    async def beats() -> bool:
        return any(step.progress is not None for step in await run.steps())

    await eventually(beats)
    await engine.crash()
    await move_out(old, files.file)
    new = files.new(old)
    await move_in(files.file, new)
    rows = {row["id"]: row for row in _unmoved(contents(new.database)["runs"])}
    assert (rows["holder"]["owner"], rows["holder"]["lost"], rows["holder"]["status"]) == (None, "crash", "running")
    assert (rows["one"]["owner"], rows["one"]["lost"], rows["one"]["status"]) == (None, "", "suspended")
    new.bank_open = True
    async with new.engine() as engine:
        assert await engine.get("holder").result() == "did thing"
        assert await engine.get("one").result() == "kept sleep-3"
        (step,) = await engine.get("holder").steps()
        assert step.attempts == 2


async def test_a_hung_worker_may_go_on_and_so_its_house_is_not_left(houses):
    """G5"""
    old = houses.old()
    await start_one(old)
    async with opened(old) as store:
        await store.join("sleepy", timedelta(microseconds=1))
        async with opened(old) as another:
            with pytest.raises(CannotMove, match=r"worker sleepy \(pid \d+ on \S+\) hangs, and may go on"):
                await export_runs(another, houses.file)


# Copies for looking.


async def test_the_open_runs_of_a_snapshot_arrive_paused_and_go_on_when_resumed(houses):
    """G5, B25"""
    old = houses.old()
    await furnish(old)
    report = await move_out(old, houses.file, snapshot=True)
    assert report.snapshot
    new = houses.new(old)
    await move_in(houses.file, new)
    statuses = {run["id"]: run["status"] for run in _unmoved(contents(new.database)["runs"])}
    was = {run["id"]: run for run in _unmoved(contents(old.database)["runs"])}
    for id, status in statuses.items():
        expected = was[id]["status"] if was[id]["ended"] is not None or id == "blocked" else "paused"
        assert (id, status) == (id, expected)
    new.bank_open = True
    async with new.engine() as engine:
        await engine.advance(100 * DAY)
        assert {run.id: str(run.status) for run in await engine.runs(limit=100)} == statuses  # nothing moves by itself
        assert all(schedule.paused for schedule in await engine.schedules.list())
        await engine.get("second").resume()
        assert await engine.get("second").result() == "did thing"  # whoever is paused keeps nobody waiting
        for id, status in statuses.items():
            if status == "paused" and id != "second":
                await engine.get(id).resume()
        await engine.settle()
        assert await engine.get("holder").result() == "did thing"
        assert await engine.get("family").result() == ["kept sleep-0", "kept sleep-10"]
        assert (await engine.get("cancelling").describe()).status == "cancelled"
        assert await engine.get("blocked").recover() == 1
        await engine.get("blocked").send("approval", "go on")
        assert await engine.get("blocked").result() == "go on"


async def test_a_selection_has_only_what_was_asked_for(houses):
    old = houses.old()
    await furnish(old)
    cases = [
        ({"runs": ["sleeping", "family"]}, {"sleeping", "family"}),
        ({"workflows": ["order"]}, {"completed", "compensated"}),
        ({"statuses": [Status.FAILED, Status.BLOCKED]}, {"failed", "compensated", "blocked"}),
        ({"workflows": ["order"], "statuses": [Status.FAILED]}, {"compensated"}),
    ]
    for number, (which, wanted) in enumerate(cases):
        report = await move_out(old, file := houses.folder / f"{number}.holdfast", **which)
        assert (report.runs, report.snapshot) == (len(wanted), True)
        new = houses.new(old, f"new-{number}")
        await move_in(file, new)
        here = contents(new.database)
        assert {dict(run)["id"] for run in here["runs"]} == wanted
        there = contents(old.database)
        for table in ("entries", "archive", "inputs", "results", "evidence", "dead_letters"):
            assert here[table] == [row for row in there[table] if dict(row)["run"] in wanted]
        assert here["events"] == here["schedules"] == here["tombstones"] == []


async def test_a_run_that_is_not_there_cannot_be_exported(files):
    old = files.old()
    await start_one(old)
    with pytest.raises(NoSuchRun, match="there is no run 'two'"):
        await move_out(old, files.file, runs=["one", "two"])
    assert [*files.folder.glob("*.holdfast"), *files.folder.glob(".*part")] == []


async def test_a_run_in_a_file_can_be_replayed_elsewhere(houses):
    """S1-14"""
    old = houses.old()
    await furnish(old)
    await move_out(old, houses.file, runs=["completed"])
    outcome = replay(exported_run(houses.file), order)
    assert outcome.status == "completed"
    await move_out(old, everything := houses.folder / "everything.holdfast")
    assert exported_run(everything, "completed") == exported_run(houses.file)
    by_name = {each.name: each for each in WORKFLOWS}
    for run in _unmoved(contents(old.database)["runs"]):
        if run["ended"] is None:
            assert replay(exported_run(everything, run["id"]), by_name[run["workflow"]]).status == "waiting"
    with pytest.raises(RunBlocked):
        replay(exported_run(everything, "blocked"), changed)
    with pytest.raises(CannotMove, match="say which one"):
        exported_run(everything)
    with pytest.raises(NoSuchRun):
        exported_run(everything, "nobody")


async def test_an_export_is_one_moment_however_long_it_takes(houses):
    """G1"""
    old = houses.old()
    await start_one(old)
    written = 0

    def progress(runs: int, rows: int) -> None:
        nonlocal written
        if runs and not written:
            written = runs
            query(old.database, "UPDATE runs SET workflow = 'other'")
            query(old.database, "DELETE FROM entries")

    async with opened(old) as store:
        await export_runs(store, houses.file, Which(snapshot=True), progress=progress)
    assert written
    new = houses.new(old)
    await move_in(houses.file, new)
    assert [dict(row)["workflow"] for row in contents(new.database)["runs"]] == ["sleeper"]
    assert len(contents(new.database)["entries"]) > 1
    assert contents(old.database)["entries"] == []


# Tasks.


@pytest.mark.parametrize("snapshot", [False, True])
async def test_tasks_wait_in_the_new_house_and_those_under_way_are_lost(houses, snapshot):
    """G4"""
    old = houses.old()
    async with opened(old) as store:
        await store.join("w", timedelta(minutes=1))
        now = old.clock.now()
        new_run = NewRun(
            id="one", workflow="sleeper", version="", input="[[3],{}]", digest=1, seed=1, at=now, owner="w"
        )
        tasks = [
            NewTask(location=place, attempt=1, queue="gpu", activity=place, payload="[]") for place in ("a0", "a1")
        ]
        turn = CommitTurn(key=0, epoch=1, at=now, effects=TurnEffects(tasks=tasks))
        await store.apply([StartRun(run=new_run, turn=turn)])
        assert len(await store.claim_tasks("w", now, 10, ["gpu"], ["a1"])) == 1
    if not old.database.startswith("sqlite"):
        died = subprocess.Popen([sys.executable, "-c", ""])
        died.wait()
        query(old.database, f"UPDATE workers SET pid = {died.pid}")
    await move_out(old, houses.file, snapshot=snapshot)
    new = houses.new(old)
    await move_in(houses.file, new)
    here = contents(new.database)
    waiting = {(row["location"], row["owner"]) for row in map(dict, here["tasks"])}
    told = {(row["kind"], row["name"], row["payload"]) for row in map(dict, here["inbox"])}
    if snapshot:
        assert waiting == set()
        assert told == {("task_ended", place, '{"lost":"handed back"}') for place in ("a0", "a1")}
    else:
        assert waiting == {("a0", None)}
        assert told == {("task_ended", "a1", '{"lost":"crash"}')}


# Files.


async def test_a_zipped_file_is_smaller_and_the_same(files):
    old = files.old()
    await furnish(old)
    plain = await move_out(old, files.file)
    zipped = await move_out(old, file := files.folder / "all.holdfast.gz")
    assert zipped.sha256 == plain.sha256
    assert file.stat().st_size < files.file.stat().st_size / 2
    assert gzip.decompress(file.read_bytes()) == files.file.read_bytes()
    await move_in(files.file, new := files.new(old))
    await move_in(file, other := files.new(old, "other"))
    assert contents(other.database) == contents(new.database)


@pytest.mark.parametrize("name", ["all.holdfast", "all.holdfast.gz"])
async def test_a_file_that_is_not_as_it_was_written_is_refused(files, name):
    """G14"""
    old = files.old()
    await furnish(old)
    file = files.folder / name
    await move_out(old, file)
    intact = file.read_bytes()
    new = files.new(old)
    await start_one(new, id="here-before")
    before = contents(new.database)
    dice = random.Random(7)
    async with opened(new) as store:
        for number in range(150):
            file.write_bytes(damaged := _damage(intact, dice, number))
            if name.endswith(".gz") and _unzipped(damaged) == gzip.decompress(intact):
                continue  # a header of gzip says what nobody needs
            with pytest.raises(CannotMove, match=r"all\.holdfast"):
                await import_runs(file, store)
    assert contents(new.database) == before


def _damage(intact: bytes, dice: random.Random, number: int) -> bytes:
    place, other = sorted(dice.sample(range(len(intact)), 2))
    lines = intact.splitlines(keepends=True)
    line = dice.randrange(len(lines))
    ways = [
        lambda: intact[:place],
        lambda: intact[:place] + intact[other:],
        lambda: intact[:place] + bytes([intact[place] ^ 1 << dice.randrange(8)]) + intact[place + 1 :],
        lambda: intact[:place] + dice.randbytes(3) + intact[place:],
        lambda: b"".join(lines[:line] + lines[line + 1 :]),
        lambda: b"".join(lines[:line] + lines[line : line + 1] * 2 + lines[line + 1 :]),
        lambda: intact + dice.choice([b"\n", b" ", b"{}\n", b"\0", lines[-1]]),
    ]
    return ways[number % len(ways)]()


def _unzipped(data: bytes) -> bytes | None:
    try:
        return gzip.decompress(data)
    except Exception:
        return None


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (b"", "not an export"),
        (b"hello\n", "not an export"),
        (b'{"holdfast":1}\n', "damaged|not an export|header"),
        (b"SQLite format 3\0" + b"\0" * 100, "not an export"),
        (b"\x1f\x8b\x08\0 nonsense", "damaged or cut off"),
    ],
)
async def test_another_file_is_refused(files, content, refusal):
    files.file.write_bytes(content)
    with pytest.raises(CannotMove, match=refusal):
        await move_in(files.file, files.new(files.old()))


async def test_a_file_of_a_newer_holdfast_is_refused(files):
    old = files.old()
    await start_one(old)
    await move_out(old, files.file)
    new = files.new(old)
    for change, refusal in (
        ({"holdfast": 99}, "newer holdfast .format 99"),
        ({"tables": {"runs": ["key", "mood"]}}, "newer holdfast, which has runs.mood"),
        ({"tables": {"ghosts": ["id"]}}, "newer holdfast, which has ghosts"),
        ({"tables": {"inputs": ["run"]}, "version": "0.0.1"}, "written by holdfast 0.0.1, whose inputs were others"),
    ):
        first, *rest = files.file.read_bytes().splitlines(keepends=True)
        changed = msgspec.json.encode(msgspec.json.decode(first) | change) + b"\n"
        (file := files.folder / "newer.holdfast").write_bytes(changed + b"".join(rest))
        with pytest.raises(CannotMove, match=refusal):
            await move_in(file, new)


async def test_a_file_from_before_a_column_is_read_with_what_stands_for_it(tmp_path):
    """G15 Columns come after those that a table had; what an older holdfast wrote can be moved in."""
    older = {"results": ["run", "output", "error", "compensation"]}
    header = Header(
        holdfast=1, version="0.1.0", schema=10, exported="", runs=0, snapshot=False, whole=False, tables=older
    )
    with Writer(tmp_path / "old.holdfast") as writer:
        writer.begin(header)
        writer.put("results", [(1, '"done"', None, None)])
        digest = writer.end()
    reader = Reader(tmp_path / "old.holdfast")
    reader.check(COLUMNS)
    assert list(reader.rows(digest)) == [("results", (1, '"done"', None, None, None))]


async def test_no_file_is_written_over(files):
    old = files.old()
    await start_one(old)
    files.file.write_text("precious")
    with pytest.raises(CannotMove, match="there is a file already"):
        await move_out(old, files.file)
    assert files.file.read_text() == "precious"
    with pytest.raises(CannotMove, match="cannot be written: No such file"):
        await move_out(old, files.folder / "nowhere" / "x.holdfast")


async def test_only_the_owner_may_read_a_file(files):
    old = files.old()
    await start_one(old)
    await move_out(old, files.file)
    assert files.file.stat().st_mode & 0o777 == 0o600


# Size, and crashes.


async def furnish_much(house: House, entries: int, size: int) -> None:
    """Make runs with long histories, without running them."""
    async with opened(house) as store:
        await store.join("w", timedelta(minutes=1))
        now = house.clock.now()
        for run in range(4):
            new = NewRun(
                id=f"long-{run}", workflow="sleeper", version="", input="[[3],{}]", digest=1, seed=1, at=now, owner="w"
            )
            (started,) = await store.apply([StartRun(run=new)])
            assert isinstance(started, Started)
            for first in range(0, entries, 500):
                rows = [
                    EntryRow(f"a{number % 10}/c{number:03}", number + 1, 29, now, f'[{{"x":"{"y" * size}"}}]')
                    for number in range(first, first + 500)
                ]
                await store.apply([CommitTurn(key=started.key, epoch=1, at=now, entries=rows)])
        await store.leave("w")


async def test_memory_does_not_grow_with_the_database(houses):
    old = houses.old()
    await furnish_much(old, 2000, 2000)
    new = houses.new(old)
    async with opened(old) as store, opened(new) as target:
        tracemalloc.start()
        await export_runs(store, houses.file)
        _, peak_out = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        await import_runs(houses.file, target)
        _, peak_in = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert houses.file.stat().st_size > 15 << 20
    assert max(peak_out, peak_in) < 8 << 20
    assert contents(new.database)["entries"] == contents(old.database)["entries"]


KILLED = """
import asyncio, os, signal, sys
from holdfast.stores import open_store
from holdfast.transfer import Which, export_runs, import_runs

def progress(runs, rows):
    if rows > int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    store = open_store(sys.argv[2])
    await store.open()
    if sys.argv[1] == "out":
        await export_runs(store, sys.argv[3], progress=progress)
    else:
        await import_runs(sys.argv[3], store, progress=progress)

asyncio.run(main())
"""


@pytest.mark.parametrize("rows", [60, 1999])
async def test_a_kill_in_the_middle_leaves_nothing_and_the_next_try_everything(houses, rows):
    """G1"""
    old = houses.old()
    await furnish_much(old, 500, 10)
    new = houses.new(old)

    def killed(way: str, house: House) -> None:
        arguments = [sys.executable, "-c", KILLED, way, house.database, str(houses.file), str(rows)]
        assert subprocess.run(arguments, check=False).returncode == -signal.SIGKILL

    killed("out", old)
    assert not houses.file.exists()
    await move_out(old, houses.file)
    async with opened(new):
        pass
    before = contents(new.database)
    killed("in", new)
    assert contents(new.database) == before
    assert (await move_in(houses.file, new)).runs == 4
    assert contents(new.database)["entries"] == contents(old.database)["entries"]
