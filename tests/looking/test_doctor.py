"""The doctor: prepared broken houses are each found, with the remedy; a house that is well is said to be."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import socket
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support import why_cases
from tests.support.paths import ROOT
from tests.support.transfer_cases import House, approval, order, sleeper
from tests.support.waiting import eventually

from holdfast import Context, activity, workflow
from holdfast.cli.main import main
from holdfast.contract.operations import Done
from holdfast.engine.worker import self_report
from holdfast.looking import LocalDesk, doctor
from holdfast.looking.database import bytes_said
from holdfast.testing import JumpingClock, TestEngine
from holdfast.testing.conformance.moving import mark
from holdfast.testing.conformance.samples import one


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever disk the tests have is large enough."""
    monkeypatch.setattr(doctor, "_LITTLE_SPACE", 0)


async def found(engine: TestEngine) -> dict[str, tuple[str, str]]:
    return {each.subject: (each.level, each.remedy) for each in await LocalDesk(engine.store).doctor()}


async def test_a_house_that_is_well_is_said_to_be(path):
    house = House(f"sqlite:///{path}", JumpingClock())
    house.bank_open = True
    async with house.engine() as engine:
        await engine.execute(order, "lamp", id="order-1")
        levels = {each.level for each in await LocalDesk(engine.store).doctor()}
    assert levels == {"ok"}


async def test_what_waits_without_a_worker_is_found(path):
    clock = JumpingClock()
    async with House(f"sqlite:///{path}", clock).engine(run_workflows=False) as client:
        client.store.clock = clock
        await client.start(sleeper, 3, id="order-1")
        clock.advance(timedelta(minutes=5))
        said = await found(client)
        assert said["workers"] == ("fail", "start a process with Engine(..., workflows=[...])")
        assert said["overdue"] == ("fail", "holdfast list is:overdue")
        [late] = [each for each in await LocalDesk(client.store).doctor() if each.subject == "overdue"]
        assert late.said == "1 run wants a worker for more than a minute, the oldest for 5 min"


async def test_pauses_and_failed_work_are_found_with_the_command_that_helps(path):
    house = House(f"sqlite:///{path}", JumpingClock())
    async with house.engine() as engine:
        await engine.start(order, "lamp", id="order-1")  # the bank is closed
        await engine.settle()
        await engine.flow.pause(workflow="approval", by="lena")
        await engine.flow.pause(queue="gpu", by="lena")
        said = await found(engine)
        assert said["letters"] == ("warn", "holdfast letters groups")
        assert said["workflow approval"] == ("warn", "holdfast resume --workflow approval")
        assert said["queue gpu"] == ("warn", "holdfast resume --queue gpu")


async def test_a_disk_that_fills_up_is_found(path, monkeypatch):
    async with House(f"sqlite:///{path}", JumpingClock()).engine() as engine:
        monkeypatch.setattr(doctor, "_LITTLE_SPACE", 1 << 62)
        for level, no_space in (("warn", 0), ("fail", 1 << 62)):
            monkeypatch.setattr(doctor, "_NO_SPACE", no_space)
            assert (await found(engine))["disk"][0] == level


async def test_a_queue_that_no_worker_serves_is_found(path):
    clock = JumpingClock()

    @activity(queue="gpu")
    async def render(what: str) -> str:
        return what

    @workflow
    async def picture(ctx: Context, what: str) -> str:
        return await ctx.step(render, what)

    async with TestEngine(str(path), workflows=[picture], queues=["default"], clock=clock) as engine:
        for number in range(3):
            await engine.start(picture, "sunset", id=f"picture-{number}")

        async def queued() -> bool:
            return sum(row.waiting for row in await engine.store.queues()) == 3

        await eventually(queued)
        assert "queue gpu" not in await found(engine)
        clock.advance(timedelta(minutes=5))
        engine.store.clock = clock
        [finding] = [each for each in await LocalDesk(engine.store).doctor() if each.subject == "queue gpu"]
        assert finding.level == "fail"
        assert finding.said == "3 steps wait since 5 min, and no worker serves it"
        assert finding.remedy == "start a worker with Engine(..., queues=['gpu', ...])"
        await engine.flow.pause(queue="gpu", by="lena")
        assert (await found(engine))["queue gpu"] == ("warn", "holdfast resume --queue gpu")


async def test_a_workflow_that_no_worker_knows_is_found(path):
    house = House(f"sqlite:///{path}", JumpingClock())
    async with house.engine([approval]) as client:
        await client.start(approval, 1, id="order-1")
        await client.settle()
    async with house.engine([sleeper]) as engine:
        [finding] = [each for each in await LocalDesk(engine.store).doctor() if each.subject == "workflow approval"]
        assert (finding.level, finding.said) == ("fail", "1 open run, and no worker that is alive knows it")
        assert finding.remedy == "start a worker with Engine(..., workflows=[approval])"


async def test_a_workflow_whose_queue_no_worker_serves_is_found(path):
    house = House(f"sqlite:///{path}", JumpingClock())
    async with house.engine([approval], queues=["gpu"]) as engine:
        await engine.start(approval, 1, id="order-1")
        [finding] = [each for each in await LocalDesk(engine.store).doctor() if each.subject == "workflow approval"]
        assert (finding.level, finding.said) == (
            "fail",
            "1 open run, and no worker that is alive serves its queue default",
        )
        assert finding.remedy == "start a worker with Engine(..., queues=['default', ...])"


async def test_runs_that_no_worker_takes_though_one_knows_them_are_found(path):
    clock = JumpingClock()
    house = House(f"sqlite:///{path}", clock)
    async with house.engine([sleeper]) as engine:
        engine.store.clock = clock
        held = engine.faults.hold(at="claim")
        async with house.engine([sleeper], run_workflows=False) as client:
            client.store.clock = clock
            await client.start(sleeper, 3, id="order-1")
            clock.advance(timedelta(minutes=5))
            await held.happened()
            [finding] = [each for each in await LocalDesk(client.store).doctor() if each.subject == "workflow sleeper"]
            assert finding.level == "fail"
        held.release()


async def test_workers_that_are_gone_are_one_finding_with_the_last_of_them(path):
    async with House(f"sqlite:///{path}", JumpingClock()).engine() as engine:
        process = f"{socket.gethostname()}:{os.getpid()}"
        for number, (subject, begin) in enumerate(
            ((f"worker {process}", "silent, last"), ("silent workers", "2, the"))
        ):
            await engine.store.join(f"worker-{number}", timedelta(milliseconds=1))

            async def told(subject: str = subject) -> bool:
                return subject in await found(engine)

            await eventually(told)
            [finding] = [each for each in await LocalDesk(engine.store).doctor() if each.subject == subject]
            assert finding.level == "warn"
            assert finding.said.startswith(begin)
            assert "look at" in finding.remedy


async def test_workers_of_other_code_and_other_versions_are_found(path, monkeypatch):
    @workflow(name="sleeper")
    async def other(ctx: Context, days: int) -> str:
        return "did not sleep"

    house = House(f"sqlite:///{path}", JumpingClock())
    async with house.engine([sleeper]) as engine:
        assert "workflow sleeper" not in await found(engine)
        monkeypatch.setattr(self_report, "__version__", "9.9.9")
        async with house.engine([other]):
            said = {each.subject: each.said for each in await LocalDesk(engine.store).doctor()}
    assert said["workflow sleeper"] == "workers have 2 different codes of version 1: a run may meet either"
    assert said["versions"].endswith("and 9.9.9")


async def test_clocks_that_are_not_the_same_are_found(path):
    clock = JumpingClock()
    async with House(f"sqlite:///{path}", clock).engine() as engine:
        clock.advance(timedelta(hours=1))
        await engine.start(approval, 1, id="order-1")
        await engine.settle()
        engine.store.clock = JumpingClock()
        [finding] = [each for each in await LocalDesk(engine.store).doctor() if each.subject == "clock"]
        assert finding.level == "fail"
        assert finding.said.startswith("run order-1 was written ")
        assert finding.said.endswith(" in the future: clocks are not the same")


async def test_leases_that_do_not_fit_each_other_are_found(path):
    clock = JumpingClock()
    house = House(f"sqlite:///{path}", clock)
    async with house.engine() as engine, house.engine(lease=timedelta(seconds=2)):
        said = [each.said for each in await LocalDesk(engine.store).doctor() if each.subject == "settings"]
        assert said == [
            "workers have leases of 2 s and 30 s: those with the longer ones are missed later when they hang",
            "a lease of 2 s is lost by any pause of its process or the database",
        ]


async def test_old_runs_that_no_sweep_takes_are_found(path, monkeypatch):
    clock = JumpingClock()
    house = House(f"sqlite:///{path}", clock)
    house.bank_open = True
    async with house.engine(retention=None) as engine:
        engine.store.clock = clock
        await engine.execute(order, "lamp", id="order-1")
        monkeypatch.setattr(doctor, "_MANY_OLD", 1)
        assert (await found(engine))["retention"][0] == "ok"
        clock.advance(timedelta(days=40))
        assert (await found(engine))["retention"] == (
            "warn", "let old runs go: Engine(retention=Retention(completed=...))",
        )  # fmt: skip


def test_a_database_that_cannot_be_looked_at_is_a_finding(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("holdfast.db").write_bytes(gzip.decompress((ROOT / "tests/golden/schema_10/sqlite.db.gz").read_bytes()))
    assert main(["doctor"]) == 1
    assert "holdfast db upgrade" in capsys.readouterr().out
    Path("holdfast.db").write_bytes(b"SQLite format 3" + bytes(5000))
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["items"][0]["level"] == "fail"
    assert main(["doctor", "--url", "postgresql://shop@localhost:1/shop"]) == 1
    assert "fail  database" in capsys.readouterr().out


def test_the_command_ends_with_one_if_there_is_something_to_look_at(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    house = House("sqlite:///holdfast.db", JumpingClock())

    async def fill() -> None:
        async with house.engine() as engine:
            await engine.start(approval, 1, id="order-1")
            await engine.settle()

    asyncio.run(fill())
    assert main(["doctor"]) == 1
    out, err = capsys.readouterr()
    assert "fail  workers" in out
    assert err == "1 to look at\n"
    assert main(["doctor", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "holdfast.doctor/1"
    assert {"level", "subject", "said", "remedy"} == set(document["items"][0])


@pytest.mark.parametrize(("size", "said"), [(5, "5 bytes"), (1536, "1.5 KB"), (3 << 20, "3.0 MB"), (2 << 30, "2.0 GB")])
def test_sizes_are_said_in_their_unit(size, said):
    assert bytes_said(size) == said


async def test_an_open_circuit_is_found_with_who_waits(path, capsys):
    async with AsyncExitStack() as stack:
        house = why_cases.House(f"sqlite:///{path}", stack)
        await why_cases.CASES["waiting.circuit"].make(house)
        desk = LocalDesk(await house.store())
        [finding] = [each for each in await desk.doctor() if each.subject == "limit bank"]
        assert finding.level == "warn"
        assert re.fullmatch(r"its circuit is open after failures, for .+ more: 1 step waits", finding.said)
        assert finding.remedy == "see whether what it guards is back: holdfast limits show bank"
        await asyncio.to_thread(main, ["limits", "list", "--url", str(path)])
        out = capsys.readouterr().out
        assert re.search(r"^left alone +bank .* nothing for 1 h after 1 failure$", out, re.MULTILINE), out
        assert re.search(r"^ok +openai .* 1 at once$", out, re.MULTILINE)


def test_a_remedy_to_copy_names_the_database_where_an_option_named_it(tmp_path: Path, monkeypatch, capsys):
    database = str(tmp_path / "shop.db")
    house = House(f"sqlite:///{database}", JumpingClock())

    async def fill() -> None:
        async with house.engine() as engine:
            await engine.start(order, "lamp", id="order-1")  # the bank is closed
            await engine.settle()
            await engine.start(approval, 1, id="order-2")
            await engine.settle()

    asyncio.run(fill())
    assert main(["doctor", "--url", database]) == 1
    out = capsys.readouterr().out
    assert f"holdfast letters groups --url {database}\n" in out
    assert "start a process with Engine(..., workflows=[...])\n" in out


async def test_a_move_that_was_interrupted_is_found(path):
    """S3-16: its runs act nowhere until it is finished."""
    clock = JumpingClock()
    async with House(f"sqlite:///{path}", clock).engine() as engine:
        engine.store.clock = clock
        run = await engine.start(sleeper, 30, id="order-1")
        await engine.settle()
        await run.pause()
        await engine.settle()
        row = await engine.store.get("order-1")
        assert row is not None
        await one(engine.store, mark(row, at=clock.now()), Done)
        assert "moving" not in await found(engine)
        clock.advance(timedelta(minutes=6))
        level, remedy = (await found(engine))["moving"]
        assert (level, remedy.startswith("run the same `holdfast move` again")) == ("fail", True)
