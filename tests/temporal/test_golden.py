"""Recorded histories of Temporal's are replayed by this interpreter, which must make the same commands for ever.

A file is never changed. `python -m tests.temporal.record FOLDER` makes those of a new version of the interpreter.
"""

from __future__ import annotations

import importlib.util
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

if importlib.util.find_spec("temporalio") is None:
    pytest.skip("temporalio is not installed: pip install 'holdfast[temporal]'", allow_module_level=True)

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from holdfast.definitions import Registry
from holdfast.temporal.known import Known
from holdfast.temporal.turns import Turns, interpreter_class
from holdfast.temporal.wire import VERSION

pytestmark = pytest.mark.leaves("task")  # one of the SDK's replayer, which ends a moment later
GOLDEN = sorted(Path(__file__).parent.joinpath("golden").glob("*.json"))


async def replayed(name: str, recorded: str) -> BaseException | None:
    """Return why this interpreter does not replay a history, None if it does."""
    registry = Registry()
    turns = Turns(registry, Known(registry), True, False, str)
    with ThreadPoolExecutor(1) as threads:
        replayer = Replayer(
            workflows=[interpreter_class(turns)],
            workflow_runner=UnsandboxedWorkflowRunner(),
            workflow_task_executor=threads,
        )
        history = WorkflowHistory.from_json(name, recorded)
        result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    return result.replay_failure


async def test_recorded_histories_replay():
    kinds = {path.stem.rpartition("-")[0] for path in GOLDEN}
    assert {path.stem for path in GOLDEN if path.stem.endswith(f"-{VERSION}")} == {
        f"{kind}-{VERSION}" for kind in kinds
    }
    for path in GOLDEN:
        assert await replayed(path.stem, path.read_text()) is None, path.name


async def test_the_histories_of_this_version_have_turns_that_were_made_where_steps_ended():
    ahead = [path.stem for path in GOLDEN if "holdfast-ahead" in path.read_text()]
    assert {f"count-{VERSION}", f"count-short-{VERSION}", f"looping-{VERSION}", f"lives-{VERSION}"} <= {*ahead}
    assert not [name for name in ahead if name.endswith("-1")]


async def test_an_interpreter_that_asks_for_another_command_is_noticed():
    """What the test above would say if the interpreter changed: a step's activity is taken for another."""
    recorded = next(path for path in GOLDEN if path.stem == "count-1").read_text()
    assert await replayed("count", re.sub(r'"activityId":\s*"add"', '"activityId": "other"', recorded)) is not None
