"""What tests of commands start from: a filled house in the current folder, and a way to run a command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_cases import LIMITS, Answer, adder, furnished, training
from tests.support.serving import TOKEN, served
from tests.support.transfer_cases import EVENTS, WORKFLOWS, House

from holdfast import Engine

OF_A_DATABASE = {
    "backup", "bench", "check", "completion", "config", "db", "debug", "demo", "export", "import", "new", "restore",
    "schema", "ui",
}  # fmt: skip
"""Commands that need the database itself, or none: no server is asked by them."""

OTHER_OVER_HTTP = {
    "test_many_are_acted_on_page_by_page_and_those_that_fail_are_named": "its progress is asked for, not told",
    "test_the_first_interrupt_stops_after_the_page_in_hand_and_says_what_was_done": "the same",
    "test_schedules_are_listed_paused_resumed_and_triggered": "the zone of a tick is an offset, not a name",
    "test_a_declared_graph_is_shown_as_it_is_declared": "the code is that of the server, whatever --app says",
    "test_why_names_the_line_where_the_code_is_named": "the same",
    "test_the_arguments_of_a_step_are_not_known_without_its_code": "the same",
    "test_a_workflow_and_a_queue_are_paused_as_a_whole": "the server declares the limit that no engine has there",
    "test_looking_changes_no_byte_of_the_database": "the server is an engine, which writes what it is",
    "test_an_old_database_is_refused_until_it_is_upgraded": "no server opens such a database",
}
"""Tests of what is not the same over HTTP -> why."""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    """A house with something of everything in `holdfast.db`, and no worker; kim acts, in UTC."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_ACTOR", "kim")
    monkeypatch.setenv("HOLDFAST_TZ", "UTC")
    return furnished("sqlite:///holdfast.db")


@pytest.fixture(params=["local", pytest.param("over_http", marks=pytest.mark.web)])
def run(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Answer]]:
    """Run a command on the database that is here; in `make web` once more on a server of it, for the same words."""
    if request.param == "local":
        yield lambda *arguments: Answer(capsys, *arguments)
        return
    name = getattr(request.node, "originalname", request.node.name)
    if name in OTHER_OVER_HTTP:
        pytest.skip(f"other over HTTP: {OTHER_OVER_HTTP[name]}")
    yield lambda *arguments: _over_http(capsys, monkeypatch, *arguments)


def _over_http(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Answer:
    here = Path("holdfast.db").resolve()
    named = "--url" in arguments or "HOLDFAST_URL" in os.environ or Path("pyproject.toml").exists()
    if named or not here.exists() or not arguments or arguments[0] in OF_A_DATABASE:
        return Answer(capsys, *arguments)
    with served(f"sqlite:///{here}", _with_code) as address, monkeypatch.context() as set_for_now:
        set_for_now.setenv("HOLDFAST_URL", address)
        set_for_now.setenv("HOLDFAST_TOKEN", TOKEN)
        return Answer(capsys, *arguments)


def _with_code(database: str) -> Engine:
    """Return an engine that has the code of the house at hand, as commands have with `--app`, and advances no run."""
    code: list[Any] = [*WORKFLOWS, training, adder]
    return Engine(database, workflows=code, events=EVENTS, limits=LIMITS, run_workflows=False, retention=None)
