"""The doctor: prepared broken houses are each found, with the remedy; a house that is well is said to be."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.transfer_cases import House, approval, order, sleeper

from holdfast.cli.main import main
from holdfast.looking import LocalDesk, doctor
from holdfast.looking.database import bytes_said
from holdfast.testing import JumpingClock, TestEngine


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
