"""What an engine and a handle can do: each thing in one place, each option named once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import holdfast
from holdfast import Engine, RunHandle, Status
from holdfast.context.api import ChildKeywords
from holdfast.context.run_context import RunContext
from holdfast.engine.client.start import StartKeywords, StartOptions
from holdfast.ops.dead_letters import DeadLetters
from holdfast.schedules.service import Schedules
from holdfast.transfer import import_runs
from holdfast.transfer.backup import restore


def verbs(cls: type) -> dict[str, Callable[..., Any]]:
    return {name: member for name, member in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}


def test_what_is_done_to_one_run_is_done_by_its_handle_alone():
    """An engine recovers all runs and watches any of them."""
    assert verbs(Engine).keys() & verbs(RunHandle).keys() == {"recover", "watch"}
    assert len(verbs(Engine)) <= 25


def test_the_options_of_a_start_are_those_that_are_read():
    parameters = inspect.signature(Engine.start).parameters.values()
    options = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert options == dict(zip(StartOptions.__struct_fields__, StartOptions.__struct_defaults__, strict=True))
    assert set(options) == set(StartKeywords.__annotations__)


def test_the_options_of_a_child_are_those_that_type_checkers_know():
    parameters = inspect.signature(RunContext.child).parameters.values()
    options = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert options == {*ChildKeywords.__annotations__, "propagate"}


def test_what_asks_who_acts_asks_why_as_well():
    acts = [act for cls in (Engine, RunHandle, DeadLetters, Schedules) for act in verbs(cls).values()]
    asked = {act: inspect.signature(act).parameters.keys() for act in (*acts, import_runs, restore)}
    assert [act.__qualname__ for act, names in asked.items() if "by" in names and "reason" not in names] == []
    assert sum("by" in names for names in asked.values()) >= 20


def test_a_status_tells_whether_the_run_has_ended():
    """One that was moved has ended here: it goes on where it was moved to."""
    assert [str(each) for each in Status if each.is_terminal] == ["completed", "failed", "cancelled", "moved"]


def test_the_package_tells_its_version():
    assert holdfast.__version__ == version("holdfast")
