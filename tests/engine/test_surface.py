"""What an engine and a handle can do: each thing in one place, each option named once."""

from __future__ import annotations

import inspect

from holdfast import Engine, RunHandle
from holdfast.engine.client.start import StartOptions


def verbs(cls: type) -> set[str]:
    return {name for name, member in vars(cls).items() if inspect.isfunction(member) and not name.startswith("_")}


def test_what_is_done_to_one_run_is_done_by_its_handle_alone():
    """An engine recovers all runs and watches any of them."""
    assert verbs(Engine) & verbs(RunHandle) == {"recover", "watch"}
    assert len(verbs(Engine)) <= 18


def test_the_options_of_a_start_are_those_that_are_read():
    parameters = inspect.signature(Engine.start).parameters.values()
    options = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert options == dict(zip(StartOptions.__struct_fields__, StartOptions.__struct_defaults__, strict=True))
