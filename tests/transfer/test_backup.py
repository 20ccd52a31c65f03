"""Backup and restore: a whole database in a file, made while runs go on, and put back while no worker is alive."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from tests.support.postgres_cases import address
from tests.support.waiting import LONG, eventually

from holdfast import Context, Engine, activity, step_context, workflow
from holdfast.errors import BadInput, CannotMove, NotOurDatabase, StoreFull, StoreReplaced
from holdfast.transfer.backup import restore


async def double(number: int) -> str:
    return str(number * 2) + "." * 3000


@workflow
async def work(ctx: Context, number: int) -> str:
    first = await ctx.step(double, number)
    await ctx.receive("go", str)
    return await ctx.step(double, len(first))


@workflow
async def quick(ctx: Context, number: int) -> str:
    return await ctx.step(double, number)


gate: dict[str, asyncio.Event] = {}
attempts: list[int] = []


@activity
async def slow() -> str:
    attempts.append(step_context().attempt)
    if "slow" in gate:
        await gate["slow"].wait()
    return "done"


@workflow
async def waits(ctx: Context) -> str:
    return await ctx.step(slow)


@pytest.fixture(params=["sqlite", "postgres"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/app.db"
    return str(request.getfixturevalue("database"))


def engine_on(database: str | Path, **options: object) -> Engine:
    return Engine(database, workflows=[work, quick, waits], durability="process", **options)  # type: ignore[arg-type]


async def filled(engine: Engine, runs: int = 30) -> None:
    await asyncio.gather(*(engine.execute(quick, number, id=f"old-{number}") for number in range(runs)))


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if ".part" in path.name)


# Making one.


async def test_a_backup_made_under_load_has_all_that_was_acknowledged_before_it_and_goes_on(
    home: str, tmp_path: Path
) -> None:
    """G1 G2"""
    acknowledged: list[str] = []
    steps: list[tuple[int, int]] = []
    async with engine_on(home) as engine:
        await filled(engine, 200)
        loaded = True

        async def load(caller: int) -> None:
            number = 0
            while loaded:
                run = await engine.start(work, number, id=f"new-{caller}-{number}")
                await run.send("go", "now")
                acknowledged.append(run.id)
                number += 1

        loading = [asyncio.ensure_future(load(caller)) for caller in range(4)]
        await eventually(lambda: len(acknowledged) > 50)
        before = list(acknowledged)

        def progress(done: int, total: int) -> None:
            """Hold the backup until another start was acknowledged: callers do not wait for it."""
            steps.append((done, total))
            patience = time.monotonic() + LONG
            while len(acknowledged) == len(before) and time.monotonic() < patience:
                time.sleep(0.001)

        made = await engine.backup(tmp_path / "backup.holdfast", progress=progress)
        assert len(acknowledged) > len(before)
        loaded = False
        await asyncio.gather(*loading)
    assert made.runs >= 200 + len(before)
    assert made.size == (tmp_path / "backup.holdfast").stat().st_size
    assert steps[-1][0] == steps[-1][1] > 0
    there = f"sqlite:///{tmp_path}/restored.db"
    back = await restore(tmp_path / "backup.holdfast", there)
    assert (back.runs, back.open_runs, back.kept) == (made.runs, made.open_runs, None)
    async with engine_on(there) as engine:
        for id in before:
            assert (await asyncio.wait_for(engine.get(id, work).result(), LONG)).startswith("60")
        assert (await engine.get("old-7", quick).result()).startswith("14.")
        assert not await engine.runs(status="blocked")


async def test_a_step_under_way_is_handed_back_in_the_backup_and_not_lost_in_a_crash(home: str, tmp_path: Path) -> None:
    """G4"""
    gate["slow"] = asyncio.Event()
    attempts.clear()
    async with engine_on(home) as engine:
        await engine.start(waits, id="w")
        await eventually(lambda: attempts)
        await engine.backup(tmp_path / "backup")
        gate.pop("slow").set()
        assert await engine.get("w", waits).result() == "done"
    attempts.clear()
    there = tmp_path / "restored.db"
    await restore(tmp_path / "backup", str(there))
    async with engine_on(there) as engine:
        assert await asyncio.wait_for(engine.get("w", waits).result(), LONG) == "done"
        [step] = await engine.get("w").steps()
        assert attempts == [2]
        assert step.status == "completed"
        assert [entry.kind for entry in await engine.get("w").history() if entry.kind == "lost"] == []


async def test_a_backup_is_one_private_file_that_needs_no_other(tmp_path: Path) -> None:
    async with engine_on(tmp_path / "app.db") as engine:
        await filled(engine)
        made = await engine.backup(tmp_path / "backup.db")
    assert (tmp_path / "backup.db").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "backup.db").read_bytes()[18:20] == b"\x01\x01"  # no write-ahead log
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app.db", "backup.db"]
    assert (made.runs, made.open_runs, made.path) == (30, 0, str(tmp_path / "backup.db"))
    db = apsw.Connection(f"file:{tmp_path}/backup.db?immutable=1", apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    assert db.pragma("integrity_check") == "ok"
    assert db.execute("SELECT count(*) FROM workers").get == 0
    db.close()


async def test_a_database_in_memory_can_be_backed_up(tmp_path: Path) -> None:
    async with engine_on(":memory:") as engine:
        await filled(engine, 3)
        assert (await engine.backup(tmp_path / "backup.db")).runs == 3
    async with engine_on(tmp_path / "backup.db") as engine:
        assert (await engine.get("old-1", quick).result()).startswith("2.")


async def test_a_file_that_is_there_is_replaced_only_if_that_is_asked_for(home: str, tmp_path: Path) -> None:
    async with engine_on(home) as engine:
        await filled(engine, 3)
        await engine.backup(tmp_path / "backup")
        before = (tmp_path / "backup").read_bytes()
        await filled(engine, 5)
        with pytest.raises(CannotMove, match="there is a file already"):
            await engine.backup(tmp_path / "backup")
        assert (tmp_path / "backup").read_bytes() == before
        assert (await engine.backup(tmp_path / "backup", replace=True)).runs == 5
        assert parts(tmp_path) == []


@pytest.mark.parametrize("name", ["app.db", "app.db-wal", "app.db-journal", "app.db-shm", "link.db", "app.db-worker-x"])
async def test_the_database_itself_and_what_belongs_to_it_are_never_written_over(tmp_path: Path, name: str) -> None:
    async with engine_on(tmp_path / "app.db") as engine:
        await filled(engine, 3)
        (tmp_path / "link.db").symlink_to(tmp_path / "app.db")
        for replace in (False, True):
            with pytest.raises(CannotMove, match="belongs to the database itself"):
                await engine.backup(tmp_path / name, replace=replace)
        await filled(engine, 5)


async def test_only_a_backup_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    async with engine_on(tmp_path / "app.db") as engine, engine_on(tmp_path / "other.db") as other:
        with pytest.raises(CannotMove, match="is not a backup"):
            await engine.backup(tmp_path / "notes.txt", replace=True)
        with pytest.raises(CannotMove, match="in use"):
            await engine.backup(tmp_path / "other.db", replace=True)
        with pytest.raises(CannotMove, match="cannot be written"):
            await engine.backup(tmp_path / "missing" / "backup.db")
        await filled(other, 3)
    assert (tmp_path / "notes.txt").read_text() == "mine"


async def test_of_two_backups_to_one_name_at_once_one_is_refused(home: str, tmp_path: Path) -> None:
    async with engine_on(home) as engine:
        await filled(engine)
        told = await asyncio.gather(*(engine.backup(tmp_path / "backup") for _ in range(3)), return_exceptions=True)
        assert sorted(type(each).__name__ for each in told) == ["Backup", "CannotMove", "CannotMove"]
        assert parts(tmp_path) == []
    assert (await restore(tmp_path / "backup", str(tmp_path / "restored.db"))).runs == 30


async def test_a_backup_that_finds_no_space_leaves_nothing_and_runs_go_on(tmp_path: Path) -> None:
    """G14"""
    async with engine_on(tmp_path / "app.db") as engine:
        await filled(engine, 200)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)

        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
        try:
            with pytest.raises(StoreFull, match=r"backup\.db"):
                await engine.backup(tmp_path / "backup.db")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert parts(tmp_path) == []
        assert not (tmp_path / "backup.db").exists()
        await filled(engine, 210)
        assert (await engine.backup(tmp_path / "backup.db")).runs == 210


async def held_backup(engine: Engine, path: Path) -> tuple[asyncio.Future[Any], threading.Event]:
    """Begin a backup and return it once it is under way, with what lets it go on."""
    going, go_on = threading.Event(), threading.Event()

    def hold(done: int, total: int) -> None:
        going.set()
        go_on.wait(LONG)

    backing = asyncio.ensure_future(engine.backup(path, progress=hold))
    await eventually(going.is_set)
    return backing, go_on


async def test_a_backup_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    async with engine_on(tmp_path / "app.db") as engine:
        await filled(engine, 300)
        backing, go_on = await held_backup(engine, tmp_path / "backup.db")
        backing.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await backing
        assert parts(tmp_path) == []
        assert not (tmp_path / "backup.db").exists()


async def test_an_engine_that_stops_during_a_backup_does_not_spoil_it(tmp_path: Path) -> None:
    engine = engine_on(tmp_path / "app.db")
    await engine.open()
    await filled(engine, 300)
    backing, go_on = await held_backup(engine, tmp_path / "backup.db")
    await engine.stop()
    go_on.set()
    assert (await backing).runs == 300
    assert (await restore(tmp_path / "backup.db", str(tmp_path / "restored.db"))).runs == 300


KILLED = """
    import asyncio, sys, time
    from holdfast import Engine
    from holdfast.transfer.backup import restore

    def hold(done, total):
        print("going", flush=True)
        time.sleep(60)

    async def main():
        if sys.argv[1] == "restore":
            await restore("backup.db", "app.db", replace=True, progress=hold)
        else:
            async with Engine("app.db") as engine:
                await engine.backup("backup.db", progress=hold)

    asyncio.run(main())
"""


def kill_during(what: str, folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), what], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_process_that_is_killed_during_a_backup_leaves_no_backup_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    """G1"""

    async def fill() -> None:
        async with engine_on(tmp_path / "app.db") as engine:
            await filled(engine, 3)

    asyncio.run(fill())
    kill_during("backup", tmp_path)
    assert not (tmp_path / "backup.db").exists()
    assert parts(tmp_path) != []

    async def again() -> None:
        async with engine_on(tmp_path / "app.db") as engine:
            assert (await engine.backup(tmp_path / "backup.db")).runs == 3
            assert parts(tmp_path) == []

    asyncio.run(again())


def test_a_process_that_is_killed_during_a_restore_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    """G1"""

    async def fill() -> None:
        async with engine_on(tmp_path / "app.db") as engine:
            await filled(engine, 3)
            await engine.backup(tmp_path / "backup.db")
            await filled(engine, 5)

    asyncio.run(fill())
    before = (tmp_path / "app.db").read_bytes()
    kill_during("restore", tmp_path)
    assert (tmp_path / "app.db").read_bytes() == before

    async def again() -> None:
        made = await restore(tmp_path / "backup.db", str(tmp_path / "app.db"), replace=True)
        assert (made.runs, made.kept) == (3, str(tmp_path / "app.db.replaced-1"))
        assert parts(tmp_path) == []

    asyncio.run(again())
    assert (tmp_path / "app.db.replaced-1").read_bytes()[100:] == before[100:]


# Putting it back.


async def test_a_restore_is_on_record_with_who_did_it_and_why(tmp_path: Path) -> None:
    """S4-5 In the chain of the copy itself, whether or not it takes the place of another."""
    home = f"sqlite:///{tmp_path}/app.db"
    async with engine_on(home) as engine:
        await filled(engine, 2)
        await engine.backup(tmp_path / "backup.db")
    await restore(tmp_path / "backup.db", home, replace=True, by="kim", reason="a bad deploy")
    async with engine_on(home) as engine:
        [found] = await engine.audit.records()
        assert (found.actor, found.action, found.target) == ("kim", "restore", "backup.db")
        assert found.detail == {"runs": 2, "reason": "a bad deploy"}
        assert (await engine.audit.verify()).ok
    with pytest.raises(BadInput, match="reason"):
        await restore(tmp_path / "backup.db", home, replace=True, reason=7)  # type: ignore[arg-type]


async def test_a_restore_is_refused_while_a_worker_is_alive(home: str, tmp_path: Path) -> None:
    """G5"""
    async with engine_on(home) as engine:
        await filled(engine, 3)
        await engine.backup(tmp_path / "backup")
        with pytest.raises(CannotMove, match=r"worker .* is a"):
            await restore(tmp_path / "backup", home, replace=home.startswith("sqlite"))
        await filled(engine, 5)
    assert parts(tmp_path) == []


async def test_a_restore_is_refused_while_another_process_has_the_database_open(tmp_path: Path) -> None:
    async with engine_on(tmp_path / "app.db") as engine:
        await filled(engine, 3)
        await engine.backup(tmp_path / "backup.db")
    code = """
        import apsw, sys
        db = apsw.Connection("app.db")
        db.execute("SELECT count(*) FROM runs").get
        print("open", flush=True)
        sys.stdin.read()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    with pytest.raises(CannotMove, match="a process has it open"):
        await restore(tmp_path / "backup.db", str(tmp_path / "app.db"), replace=True)
    process.communicate("")
    await restore(tmp_path / "backup.db", str(tmp_path / "app.db"), replace=True)


async def test_a_database_that_is_replaced_is_kept_with_all_that_was_acknowledged(tmp_path: Path) -> None:
    """G1: what was in its WAL only is in the file that is kept."""
    async with engine_on(tmp_path / "app.db") as engine:
        await filled(engine, 3)
        await engine.backup(tmp_path / "backup.db")
    die = """
        import asyncio, os
        from tests.transfer.test_backup import engine_on, filled

        async def main():
            engine = engine_on("app.db")
            await engine.open()
            await filled(engine, 7)
            os._exit(0)

        asyncio.run(main())
    """
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(die)],
        cwd=tmp_path,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert (tmp_path / "app.db-wal").exists()
    there = str(tmp_path / "app.db")
    with pytest.raises(CannotMove, match="say replace"):
        await restore(tmp_path / "backup.db", there)
    made = await restore(tmp_path / "backup.db", there, replace=True)
    assert made.kept == f"{there}.replaced-1"
    assert not (tmp_path / "app.db-wal").exists()
    async with engine_on(there) as engine:
        assert len(await engine.runs()) == 3
    async with engine_on(made.kept) as engine:
        assert len(await engine.runs()) == 7


async def test_a_database_that_cannot_be_read_is_replaced_too_and_kept_with_its_wal(tmp_path: Path) -> None:
    async with engine_on(tmp_path / "app.db") as engine:
        await filled(engine, 3)
        await engine.backup(tmp_path / "backup.db")
    (tmp_path / "app.db").write_bytes(b"this is nothing")
    (tmp_path / "app.db-wal").write_bytes(b"nor is this")
    there = str(tmp_path / "app.db")
    made = await restore(tmp_path / "backup.db", there, replace=True)
    assert made.kept is not None
    assert Path(made.kept).read_bytes() == b"this is nothing"
    assert Path(f"{made.kept}-wal").read_bytes() == b"nor is this"
    async with engine_on(there) as engine:
        assert len(await engine.runs()) == 3


async def test_what_is_no_backup_or_a_damaged_one_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    async with engine_on(tmp_path / "app.db") as engine:
        await filled(engine, 30)
        await engine.backup(tmp_path / "backup.db")
    before = (tmp_path / "app.db").read_bytes()
    there = str(tmp_path / "app.db")
    data = bytearray((tmp_path / "backup.db").read_bytes())
    data[8192 : len(data) // 2] = b"\xa5" * (len(data) // 2 - 8192)
    (tmp_path / "damaged.db").write_bytes(data)
    (tmp_path / "notes.txt").write_text("mine")
    foreign = apsw.Connection(str(tmp_path / "foreign.db"))
    foreign.execute("CREATE TABLE theirs (x)")
    foreign.close()
    for name, error in [
        ("damaged.db", Exception),
        ("notes.txt", CannotMove),
        ("missing.db", CannotMove),
        ("foreign.db", NotOurDatabase),
        ("app.db", CannotMove),
    ]:
        with pytest.raises(error, match=name):
            await restore(tmp_path / name, there, replace=True)
        assert (tmp_path / "app.db").read_bytes() == before, name
    (tmp_path / "new.db-wal").write_bytes(b"of another")
    with pytest.raises(CannotMove, match="without its database"):
        await restore(tmp_path / "backup.db", str(tmp_path / "new.db"))
    with pytest.raises(BadInput, match="not to memory"):
        await restore(tmp_path / "backup.db", ":memory:")
    assert parts(tmp_path) == []


async def test_a_backup_of_postgresql_is_restored_to_an_empty_schema(database: str, tmp_path: Path) -> None:
    """G1"""
    async with engine_on(database) as engine:
        await filled(engine, 3)
        await engine.start(work, 3, id="open")
        made = await engine.backup(tmp_path / "backup.holdfast.gz")
    assert (made.runs, made.open_runs) == (4, 1)
    with pytest.raises(CannotMove, match="there are runs in the database"):
        await restore(tmp_path / "backup.holdfast.gz", database)
    with pytest.raises(BadInput, match="not replaced"):
        await restore(tmp_path / "backup.holdfast.gz", database, replace=True)
    there = f"{database}_restored"
    assert (await restore(tmp_path / "backup.holdfast.gz", there)).runs == 4
    async with engine_on(there) as engine:
        await engine.get("open").send("go", "now")
        assert (await asyncio.wait_for(engine.get("open", work).result(), LONG)).startswith("60")
        with pytest.raises(CannotMove):
            await restore(tmp_path / "backup.holdfast.gz", there)
    copy = tmp_path / "copy.db"
    await restore(tmp_path / "backup.holdfast.gz", str(copy))
    with pytest.raises(CannotMove, match="copy of an SQLite database"):
        await restore(copy, there)


async def test_a_message_sent_inside_a_transaction_is_in_the_backup(database: str, tmp_path: Path) -> None:
    """G7"""
    async with engine_on(database, run_workflows=False) as engine:  # so that no worker delivers it
        await engine.start(work, 3, id="open")
        with psycopg.connect(address(database)) as theirs:
            await engine.get("open").send("go", "now", connection=theirs)
        await engine.backup(tmp_path / "backup.holdfast")
    there = tmp_path / "restored.db"
    await restore(tmp_path / "backup.holdfast", str(there))
    async with engine_on(there) as engine:
        assert (await asyncio.wait_for(engine.get("open", work).result(), LONG)).startswith("60")


async def test_the_file_of_a_database_that_was_replaced_is_not_backed_up(tmp_path: Path) -> None:
    """G14"""
    async with engine_on(tmp_path / "app.db") as engine:
        await filled(engine, 3)
        await engine.backup(tmp_path / "backup.db")
        os.replace(tmp_path / "backup.db", tmp_path / "app.db")
        with pytest.raises(StoreReplaced):
            await engine.backup(tmp_path / "another.db")
    assert not (tmp_path / "another.db").exists()
