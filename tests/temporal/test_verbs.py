"""Every verb gives on a real server what it gives elsewhere: in memory, always replayed, with short histories."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import eventually
from tests.temporal import flows

from holdfast import RunCancelled, RunFailed

pytestmark = [pytest.mark.temporal, pytest.mark.leaves("process")]  # the server that the tests of the file share

ITERATIONS = 5_000
OPTIONS: dict[str, dict[str, Any]] = {
    "in memory": {},
    "replayed for every task": {"max_resident": 0},
    "another execution after 20 events": {"history_limit": 20},
}


@pytest.fixture(params=OPTIONS)
async def engine(request, make_engine, tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_TEST_NOTES", str(tmp_path))
    return await make_engine(**OPTIONS[request.param])


def notes(folder) -> list[str]:
    path = folder / "notes"
    return path.read_text().split("\n")[:-1] if path.exists() else []


async def test_steps_are_retried_time_out_and_fail(engine):
    """S3-16"""
    assert await engine.execute(flows.steps, 1) == [2, 2, 3, "attempt 4", "StepTimeout"]


async def test_branches_run_together_and_losers_are_stopped(engine, tmp_path):
    run = await engine.start(flows.together)
    await eventually(lambda: "loser begun" in notes(tmp_path))
    await run.send("word")
    assert await run.result() == [[0, 2, 4, 6], {"x": 2, "y": 4}, "word"]
    await eventually(lambda: "loser stopped" in notes(tmp_path))


async def test_messages_queries_and_requests_reach_the_code(engine):
    run = await engine.start(flows.talk)
    await run.send("b", "early")

    async def timed_out() -> bool:
        return await run.query("got") == 1

    await eventually(timed_out)
    assert await run.send("x", 5, id="five")
    assert await run.send("x", 6, id="five")  # the same message once more: it is not taken twice
    assert await run.ask("ask", 41) == 42
    assert await run.result() == ["none", 5, ["b", "early"]]
    assert await run.query("got", extra=10) == 13
    described = await run.describe()
    assert described.attributes == {"n": 3, "stage": "done"}
    assert [unread.name for unread in await run.messages()] == []


async def test_children_end_by_result_and_failure(engine):
    assert await engine.execute(flows.parent) == [101, "ChildFailed", True, 103]


async def test_a_run_sends_to_another(engine):
    assert await engine.execute(flows.sender) == "went"


async def test_a_loop_keeps_its_history_short(engine):
    run = await engine.start(flows.looping, 45)
    assert await run.result() == 45
    assert len(await run.history()) < 75  # of 93


@pytest.mark.timeout(3_600)
async def test_five_thousand_iterations_have_a_bounded_history_in_each_execution(make_engine):
    """S3-16: one step in each; what an execution hands to the next one does not grow either."""
    engine = await make_engine(history_limit=2_000)
    run = await engine.start(flows.looping, ITERATIONS)
    assert await run.result(timeout=timedelta(minutes=30)) == ITERATIONS
    client, executions, run_id = engine._client.client, 0, ""
    run_id = (await client.get_workflow_handle(run.id).describe()).raw_info.first_run_id
    while run_id:
        handle = client.get_workflow_handle(run.id, run_id=run_id)
        events = (await handle.fetch_history(skip_archival=True)).events
        assert len(events) <= 2_020
        assert events[0].ByteSize() < 20_000
        executions, run_id = (
            executions + 1,
            events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id,
        )
    assert executions >= ITERATIONS * 6 // 2_020


async def test_a_run_continues_as_new(engine):
    run = await engine.start(flows.lives, 1)
    assert await run.result() == 3
    assert (await run.describe()).generation == 2


async def test_a_cancelled_run_cleans_up(engine, tmp_path):
    run = await engine.start(flows.cleaning)
    await _waits(run)
    assert await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    assert notes(tmp_path) == ["cleaned"]
    assert not await run.cancel()


async def test_a_failed_run_undoes_what_it_did(engine, tmp_path):
    run = await engine.start(flows.saga, True)
    with pytest.raises(RunFailed) as failed:
        await run.result()
    assert isinstance(failed.value.__cause__, ValueError)
    assert notes(tmp_path) == ["do a", "do b", "undo b", "undo a"]
    described = await run.describe()
    assert described.failed_step == "boom"
    assert [undone["status"] for undone in described.compensation or []] == ["completed", "completed"]


async def test_a_cancelled_run_undoes_what_it_did_when_asked_to(engine, tmp_path):
    run = await engine.start(flows.saga, False)
    await _waits(run)
    await run.cancel(compensate=True)
    with pytest.raises(RunCancelled):
        await run.result()
    assert notes(tmp_path)[2:] == ["undo b", "undo a"]


async def test_a_failed_run_goes_on_from_the_step_that_failed(engine, tmp_path, monkeypatch):
    run = await engine.start(flows.saga, True, id=f"again-{id(engine)}")
    with pytest.raises(RunFailed):
        await run.result()
    monkeypatch.setattr(flows.boom, "__code__", flows.mended.__code__)
    await run.retry()
    await _waits(run)
    assert notes(tmp_path) == ["do a", "do b", "undo b", "undo a", "do a", "do b"]
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()


async def test_a_paused_run_goes_on_when_it_is_resumed(engine):
    run = await engine.start(flows.waiting_kid)
    await _waits(run)
    assert await run.pause()
    await eventually(lambda: _is(run, "paused"))
    await run.send("go", "went")
    assert await run.status() == "paused"
    assert await run.resume()
    assert await run.result() == "went"


async def test_a_terminated_child_is_told_to_its_parent(engine):
    waiting = await engine.start(flows.parent_of_waiting)
    child = f"{waiting.id}:waiting_kid"
    await eventually(lambda: engine.find(child))
    await engine.get(child).terminate(by="kim", reason="no longer wanted")
    assert await waiting.result() == "ChildFailed cancelled"


async def _is(run: Any, status: str) -> bool:
    return bool(await run.status() == status)


async def _waits(run: Any) -> None:
    async def waits() -> bool:
        described = await run.describe()
        return described.status == "suspended" and "message" in described.waiting_for

    await eventually(waits)
