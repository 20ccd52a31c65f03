"""Whether a run fits changed code: what is found, where, and whether the proposed patch helps; no body is executed."""

from __future__ import annotations

import asyncio
import gzip
import importlib.util
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from tests.golden.schema_10 import workflows as golden
from tests.support.paths import ROOT
from tests.support.transfer_cases import WORKFLOWS, House, changed, furnish
from tests.support.waiting import eventually

from holdfast.definitions import Registry
from holdfast.histories.judging import Judge
from holdfast.histories.misfits import Misfit, grouped
from holdfast.histories.sources import open_runs
from holdfast.looking import LocalDesk
from holdfast.stores import open_store
from holdfast.testing import JumpingClock, TestEngine

BEFORE = """
    from datetime import timedelta
    from holdfast import Context, workflow

    EXECUTED = []

    async def charge(order: int) -> str:
        EXECUTED.append("charge")
        return f"charged {order}"

    async def check_fraud(order: int) -> bool:
        EXECUTED.append("check_fraud")
        return True

    async def prepare(ctx: Context, order: int) -> str:
        receipt = await ctx.step(charge, order)
        return receipt

    @workflow
    async def fulfil(ctx: Context, order: int) -> str:
        receipt = await prepare(ctx, order)
        await ctx.receive("packed")
        return receipt
"""
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Return what makes a module of source."""
    made: list[str] = []

    def load(source: str) -> ModuleType:
        name = f"code_{len(made)}"
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        made.append(name)
        return module

    return load


def judged(load: Load, after: str, packed: bool = False) -> Misfit | None:
    """Let a run begin with the code as it was, and judge it by the code as it is then."""
    before = load(BEFORE)

    async def record():
        async with TestEngine(workflows=[before.fulfil]) as engine:
            run = await engine.start(before.fulfil, 7, id="order-7")
            await engine.settle()
            return await LocalDesk(engine.store).record(run.id)

    recorded = asyncio.run(record())
    module = load(after)
    misfit = Judge(Registry([module.fulfil] if hasattr(module, "fulfil") else [])).judge(recorded)
    assert module.EXECUTED == []
    return misfit


def edited(old: str, new: str) -> str:
    assert old in BEFORE
    return BEFORE.replace(old, new)


RECEIPT = "    receipt = await prepare(ctx, order)\n"


def test_what_has_not_changed_fits(load):
    assert judged(load, BEFORE) is None
    assert judged(load, edited("return receipt\n\n", "return receipt  # as it was\n\n")) is None


def test_a_new_call_after_all_that_is_recorded_fits(load):
    assert judged(load, edited('"packed")\n', '"packed")\n        await ctx.step(check_fraud, order)\n')) is None


def test_a_new_call_is_shown_beside_the_recorded_ones_and_its_patch_is_tried(load):
    misfit = judged(load, edited(RECEIPT, f"    await ctx.step(check_fraud, order)\n    {RECEIPT}"))
    assert misfit is not None
    assert (misfit.run, misfit.workflow, misfit.kind, misfit.path) == ("order-7", "fulfil", "new-call", "check_fraud")
    assert misfit.file.endswith("code_1.py")
    assert "await ctx.step(check_fraud, order)" in Path(misfit.file).read_text().splitlines()[misfit.line - 1]
    assert [(call.path, call.kind) for call in misfit.recorded] == [("charge", "step"), ("receive packed", "receive")]
    assert [(call.path, call.line) for call in misfit.present] == [("check_fraud", misfit.line)]
    assert misfit.trial is not None
    assert (misfit.trial.tried, misfit.trial.fits) == (True, True)
    assert 'ctx.patched("add-check_fraud")' in misfit.advice


def test_the_patch_is_tried_in_a_function_that_the_workflow_calls(load):
    line = "    receipt = await ctx.step(charge, order)\n"
    misfit = judged(load, edited(line, f"    await ctx.sleep(timedelta(hours=1))\n    {line}"))
    assert misfit is not None
    assert misfit.trial is not None
    assert (misfit.trial.tried, misfit.trial.fits) == (True, True)


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("    fine = await ctx.step(check_fraud, order)\n", "the result of the new call is used"),
        ("    if await ctx.step(check_fraud, order):\n            pass\n", "the result of the new call is used"),
        ("    [await ctx.step(check_fraud, order)]\n", "the new call is not a statement of its own"),
    ],
)
def test_a_patch_that_would_change_more_than_the_call_is_not_tried(load, new, said):
    misfit = judged(load, edited(RECEIPT, f"{new}    {RECEIPT}"))
    assert misfit is not None
    assert misfit.trial is not None
    assert (misfit.trial.tried, misfit.trial.said) == (False, said)


def test_a_patch_that_is_not_enough_is_said_to_be(load):
    twice = "    await ctx.step(check_fraud, order)\n        await ctx.sleep(timedelta(hours=1))\n"
    misfit = judged(load, edited(RECEIPT, f"{twice}    {RECEIPT}"))
    assert misfit is not None
    assert misfit.trial is not None
    assert (misfit.trial.tried, misfit.trial.fits) == (True, False)
    assert "a new sleep" in misfit.trial.said


@pytest.mark.parametrize(
    ("after", "kind", "said"),
    [
        (edited(RECEIPT, '    receipt = ""\n'), "call-gone", 'ctx.removed("charge", "step")'),
        (edited('ctx.receive("packed")', "ctx.sleep(timedelta(days=1))"), "call-gone", "receive packed"),
        (edited("async def fulfil", "async def complete").replace("fulfil", "f"), "no-workflow", "unknown workflow"),
        (edited("fulfil(ctx: Context, order: int)", "fulfil(ctx: Context, order: list[int])"), "input", "order"),
    ],
)
def test_what_else_does_not_fit_is_found(load, after, kind, said):
    misfit = judged(load, after)
    assert misfit is not None
    assert misfit.kind == kind
    assert said in misfit.message
    assert misfit.trial is None


def test_runs_are_grouped_by_what_is_different_whatever_their_number_of_rounds():
    def misfit(run: str, path: str) -> Misfit:
        return Misfit(run=run, workflow="bill", version="1", kind="new-call", message=run, path=path, file="a", line=3)

    [group] = grouped([misfit("bill-1", "charge#2"), misfit("bill-2", "charge#17")])
    assert (group.count, group.runs) == (2, ["bill-1", "bill-2"])
    assert len(grouped([misfit("bill-1", "charge"), misfit("bill-2", "pack")])) == 2


def test_every_open_run_in_every_state_fits_the_code_it_was_begun_with(path):
    """Sleeping, paused, cancelling, reopened, renewed, blocked ones: the check blocks none that an engine would not."""
    house = House(f"sqlite:///{path}", JumpingClock())

    async def fill():
        await furnish(house)
        async with house.engine(run_workflows=False) as engine:
            return [run async for runs in open_runs(engine.store) for run in runs]

    runs = asyncio.run(fill())
    assert len(runs) >= 20
    assert len({run.id for run in runs}) == len(runs)
    judge = Judge(Registry(WORKFLOWS))
    assert [misfit for run in runs if (misfit := judge.judge(run)) is not None] == []
    judge = Judge(Registry([*WORKFLOWS[:-1], changed]))
    assert [misfit.run for run in runs if (misfit := judge.judge(run)) is not None] == ["blocked"]


def test_every_open_run_of_the_oldest_database_fits_its_code(tmp_path):
    path = tmp_path / "golden.db"
    path.write_bytes(gzip.decompress((ROOT / "tests/golden/schema_10/sqlite.db.gz").read_bytes()))

    async def read():
        store = open_store(str(path))
        await store.open()
        found = [run async for runs in open_runs(store) for run in runs]
        await store.close()
        return found

    runs, judge = asyncio.run(read()), Judge(Registry(golden.WORKFLOWS))
    assert len(runs) > 30
    assert [misfit for run in runs if (misfit := judge.judge(run)) is not None] == []


def test_a_run_whose_end_is_decided_is_judged_by_its_hook_alone(load):
    """An engine does not replay its code any more."""
    hook = """
    from holdfast import activity, Retry

    @activity(retry=Retry(max_attempts=3, initial_interval=timedelta(days=1)))
    async def tell(run_id: str, state: object) -> None:
        raise ValueError("not now")

    @workflow(on_complete=tell)"""
    before = BEFORE.replace("    @workflow", hook).replace('        await ctx.receive("packed")\n', "")
    after = before.replace(RECEIPT, f"    await ctx.step(check_fraud, order)\n    {RECEIPT}")
    module = load(before)

    async def record():
        async with TestEngine(workflows=[module.fulfil]) as engine:
            run = await engine.start(module.fulfil, 7, id="order-7")
            await engine.settle()
            assert (await run.describe()).waiting_for == "callback"
            return await LocalDesk(engine.store).record(run.id)

    recorded = asyncio.run(record())
    assert Judge(Registry([load(after).fulfil])).judge(recorded) is None


def test_the_queue_of_a_step_that_waits_is_told(load):
    in_queue = BEFORE.replace(
        "    async def charge", '    from holdfast import activity\n\n    @activity(queue="gpu")\n    async def charge'
    )
    module = load(in_queue)

    async def record():
        async with TestEngine(workflows=[module.fulfil]) as engine:
            run = await engine.start(module.fulfil, 7, id="order-7")

            async def queued() -> bool:
                return sum(row.waiting for row in await engine.store.queues()) == 1

            await eventually(queued)
            return await LocalDesk(engine.store).record(run.id)

    judge = Judge(Registry([module.fulfil]))
    assert judge.judge(asyncio.run(record())) is None
    assert judge.queues == {"gpu": 1, "default": 1}


def test_what_has_to_be_undone_by_an_activity_that_is_gone_is_found(load):
    undoing = (
        BEFORE.replace(
            '        await ctx.receive("packed")\n',
            "        ctx.compensate(check_fraud, order)\n        await ctx.step(fail, order)\n",
        )
        .replace(
            "    async def prepare",
            """    from holdfast import activity, Retry

    @activity(retry=Retry.never)
    async def fail(order: int) -> None:
        raise ValueError("sold out")

    @activity(retry=Retry(max_attempts=3, initial_interval=timedelta(days=1)))
    async def give_back(order: int) -> None:
        raise ValueError("not now")

    async def prepare""",
        )
        .replace("compensate(check_fraud", "compensate(give_back")
    )
    module = load(undoing)

    async def record():
        async with TestEngine(workflows=[module.fulfil]) as engine:
            await engine.start(module.fulfil, 7, id="order-7")
            await engine.settle()
            return await LocalDesk(engine.store).record("order-7")

    recorded = asyncio.run(record())
    assert Judge(Registry([module.fulfil])).judge(recorded) is None
    gone = load(undoing.replace("        ctx.compensate(give_back, order)\n", "").replace("give_back", "return_it"))
    misfit = Judge(Registry([gone.fulfil])).judge(recorded)
    assert misfit is not None
    assert "give_back" in misfit.message


async def test_the_newest_of_each_status_are_a_sample():
    async with TestEngine(workflows=WORKFLOWS) as engine:
        for number in range(5):
            await engine.start(WORKFLOWS[0], 3, id=f"run-{number}")
        await engine.settle()
        found = [run.id async for runs in open_runs(engine.store, 2) for run in runs]
        assert found == ["run-4", "run-3"]
