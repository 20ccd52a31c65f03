"""From production into the tests, and from the code at hand against production: `record`, `check`."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest
from tests.support.transfer_cases import House, approval, order

from holdfast.cli.main import main
from holdfast.errors import BadInput
from holdfast.testing import JumpingClock, RecordedRun, replay


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database in the current folder with a run that failed and one that waits."""
    monkeypatch.chdir(tmp_path)
    house = House("sqlite:///holdfast.db", JumpingClock())

    async def fill() -> None:
        async with house.engine() as engine:
            await engine.start(order, "lamp", id="order-9")  # the bank is closed
            await engine.start(approval, 2, id="order-10")
            await engine.settle()

    asyncio.run(fill())


def test_a_failure_of_production_is_replayed_by_a_test_in_one_line(shop, capsys):
    assert main(["record", "order-9", "-o", "order-9.json"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert 'assert replay("order-9.json", order).status == "..."' in err
    assert stat.S_IMODE(os.stat("order-9.json").st_mode) == 0o600
    failed = replay("order-9.json", order)
    assert failed.status == "failed"
    assert failed.error is not None
    assert "the bank is closed" in failed.error.message
    assert replay(Path("order-9.json"), order) == replay(RecordedRun.from_json(Path("order-9.json").read_text()), order)


def test_a_recording_goes_to_stdout_unless_a_file_is_named_and_replaces_nothing_by_itself(shop, capsys):
    assert main(["record", "order-10"]) == 0
    recorded = RecordedRun.from_json(capsys.readouterr().out)
    assert (recorded.id, recorded.workflow, recorded.version) == ("order-10", "approval", "1")
    assert replay(recorded, approval).status == "waiting"
    Path("run.json").write_text("mine")
    assert main(["record", "order-10", "-o", "run.json"]) == 2
    assert "there is a file already" in capsys.readouterr().err
    with pytest.raises(BadInput, match=r"run\.json: is no recording of a run"):
        replay("run.json", approval)
    assert main(["record", "order-10", "-o", "run.json", "--replace"]) == 0
    assert replay("run.json", approval).status == "waiting"
    assert main(["record", "order-77"]) == 3
