"""A run that was begun elsewhere goes on here, in the middle of its code, once for each token."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.waiting import eventually
from tests.temporal import flows
from tests.temporal.server import missing

if missing():
    pytest.skip(missing(), allow_module_level=True)

from holdfast import Context, Engine, workflow
from holdfast.contract.rows import Message
from holdfast.errors import BadInput, PayloadTooLarge, RunConflict
from holdfast.temporal.client.handover import HandOver, TakesOver, check_size
from holdfast.temporal.wire import RunRules

pytestmark = [pytest.mark.temporal, pytest.mark.leaves("process")]  # the server that the tests of the file share


@workflow
async def halfway(ctx: Context) -> list[Any]:
    made: list[Any] = [await ctx.step("a", flows.mark, "a"), ctx.uuid().hex]
    made.append(await ctx.receive("one", str))
    made.append(await ctx.receive("two", str))
    return [*made, await ctx.step("b", flows.mark, "b")]


async def begun_elsewhere(run_id: str, token: str) -> tuple[HandOver, list[Any]]:
    """Begin a run on SQLite; return it in the middle of its code, and what it would have returned there."""
    async with Engine(":memory:", workflows=[halfway]) as engine:
        run = await engine.start(halfway, id=run_id)
        await run.send("two", "early", id="second")

        async def waits() -> bool:
            return bool((await run.describe()).waiting_for == "message one")

        await eventually(waits)
        row = await engine._client.row(run_id)
        handed = HandOver(
            token=token,
            id=run_id,
            workflow=row.workflow,
            queue=halfway.queue,
            input=row.input,
            seed=row.seed,
            digest=row.digest,
            begun=row.created,
            rows=await engine._client.history(row),
            inbox=await engine._client.inbox(row),
        )
        await run.send("one", "first")
        return handed, await run.result()


async def test_a_run_goes_on_in_the_middle_of_its_code(make_engine, tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_TEST_NOTES", str(tmp_path))
    handed, expected = await begun_elsewhere("moved", "t1")
    (tmp_path / "notes").unlink()
    here = await make_engine(halfway)
    takes = TakesOver(here._client.client, RunRules(), True, here.task_queue)
    now = here.clock.now()
    assert await takes.take_over(handed, now)
    assert not await takes.take_over(handed, now)
    run = here.get("moved", halfway)
    await takes.forward("moved", Message(7, "message", "two", "second", '"again"', now))
    await takes.forward("moved", Message(8, "message", "one", "first", '"first"', now))
    await takes.forward("moved", Message(8, "message", "one", "first", '"first"', now))
    assert await run.result() == expected
    assert (tmp_path / "notes").read_text() == "b\n"
    assert await run.messages() == []
    assert not await takes.take_over(handed, now)  # it has ended, and was started from this hand-over all the same
    assert await takes.token_of("moved") == "t1"


async def test_a_run_that_has_the_id_already_is_not_taken_for_the_one_handed_over(make_engine):
    handed, _ = await begun_elsewhere("taken", "t1")
    here = await make_engine(halfway)
    await here.start(halfway, id="taken")
    takes = TakesOver(here._client.client, RunRules(), True, here.task_queue)
    with pytest.raises(RunConflict, match="exists on the Temporal server already"):
        await takes.take_over(handed, here.clock.now())


async def test_a_paused_run_stays_paused_until_it_is_resumed(make_engine):
    handed, expected = await begun_elsewhere("paused", "t1")
    here = await make_engine(halfway)
    takes = TakesOver(here._client.client, RunRules(), True, here.task_queue)
    await takes.take_over(HandOver(**{**_fields(handed), "paused": True}), here.clock.now())
    run = here.get("paused", halfway)

    async def paused() -> bool:
        return bool(await run.status() == "paused")

    await eventually(paused)
    await run.send("one", "first")
    assert await run.resume()
    assert await run.result() == expected


def test_what_does_not_fit_through_is_refused():
    plain = HandOver(token="t", id="r", workflow="w", queue="default", input="{}", seed=1, digest=1, begun=1)
    assert check_size(plain, RunRules()) < 1_000
    with pytest.raises(PayloadTooLarge, match="the input of run 'r'"):
        check_size(HandOver(**{**_fields(plain), "input": " " * 2_000_001}), RunRules())
    with pytest.raises(BadInput, match="key_freed in its inbox"):
        check_size(HandOver(**{**_fields(plain), "inbox": [Message(1, "key_freed", "", "", "", 1)]}), RunRules())


def _fields(handed: HandOver) -> dict[str, Any]:
    return {name: getattr(handed, name) for name in handed.__struct_fields__}


async def test_a_run_keeps_the_version_of_its_workflow(make_engine):
    """B20 It goes on with the code that it was begun with, as long as a worker has it."""

    @workflow(name="versioned")
    async def first(ctx: Context) -> str:
        return "first"

    @workflow(name="versioned", version="2")
    async def second(ctx: Context) -> str:
        return "second"

    engine = await make_engine(first, second)
    takes_over = TakesOver(engine._client.client, engine._rules(), True, engine.task_queue)
    for version, result in (("", "second"), (first.version, "first"), ("2", "second")):
        handed = HandOver(
            token=result,
            id=f"versioned-{version}",
            workflow="versioned",
            version=version,
            queue=first.queue,
            input="{}",
            seed=1,
            digest=1,
            begun=engine.clock.now(),
        )
        assert await takes_over.take_over(handed, engine.clock.now())
        assert await engine.get(handed.id).result() == result
        assert (await engine.find(handed.id)).version == version
