"""What tests of commands start from: a filled house in the current folder, and a way to run a command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.command_cases import Answer, furnished
from tests.support.transfer_cases import House


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    """A house with something of everything in `holdfast.db`, and no worker; kim acts, in UTC."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_ACTOR", "kim")
    monkeypatch.setenv("HOLDFAST_TZ", "UTC")
    return furnished("sqlite:///holdfast.db")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    return lambda *arguments: Answer(capsys, *arguments)
