"""Compensations: one stack that outlives everything, undone in reverse, resumable between any two entries."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from tests.support.driving import (
    START,
    assert_deterministic,
    assert_replays,
    execution,
    finished,
    live,
    paths,
    resumed,
    store,
)

from holdfast import Context, Rollback, activity, workflow
from holdfast.context.api import Break, Continue
from holdfast.context.code import WorkflowCode
from holdfast.context.references import find_activity
from holdfast.errors import NotSerializable, UndecodablePayload
from holdfast.replay import entry as entries
from holdfast.replay.ending import first_entries
from holdfast.replay.entry import decode_entry
from holdfast.replay.execution import Execution
from holdfast.replay.journal import RunInfo
from holdfast.replay.turn import Ending


@dataclass(frozen=True)
class Order:
    id: int


def work(x: Any) -> Any:
    return x


def fail(x: Any = None) -> None:
    raise ValueError("no")


def release(order: Order) -> None:
    assert isinstance(order, Order)


def refund(order: Order, *, why: str = "") -> str:
    raise ConnectionError(f"the bank is closed on {order.id}")


@activity
def unbook(x: int) -> int:
    return x


def undone(outcome: Any) -> list[str]:
    return [f"{each['name']} {each['status']}" for each in outcome.compensation]


def added(rows: Any) -> list[str]:
    found = [decode_entry(row.kind, row.data) for row in rows if row.kind == entries.CompensationAdded.kind]
    return [f"{entry.name}{bytes(entry.args).decode()}" for entry in found]


@workflow
async def order_saga(ctx: Context, order: Order) -> None:
    await ctx.step(work, 1)
    ctx.compensate(release, order)
    await ctx.step(work, 2)
    ctx.compensate(refund, order, why="late")
    ctx.compensate(unbook, 3)
    await asyncio.gather(ctx.step(work, 3), ctx.step(fail))


def test_a_failed_run_undoes_in_reverse_and_says_how_each_one_went():
    """S4-21, S0-55, B17, G11"""
    recording = live(order_saga, Order(7))
    assert recording.outcome is not None
    assert recording.outcome.ending is Ending.FAILED
    assert recording.outcome.error is not None
    assert recording.outcome.error.message == "no"
    assert recording.outcome.compensation == [
        {"name": "unbook", "status": "completed", "attempts": 1, "error": None},
        {
            "name": "refund",
            "status": "failed",
            "attempts": 1,
            "error": "ConnectionError: the bank is closed on 7",
        },
        {"name": "release", "status": "completed", "attempts": 1, "error": None},
    ]
    steps = recording.paths(entries.StepBegun)
    assert steps[-3:] == ["undo#2/unbook", "undo#1/refund", "undo#0/release"]


def test_undoing_goes_on_from_any_prefix_of_the_history():
    """G11, B17: resumes after a crash between any two entries"""
    recording = live(order_saga, Order(7))
    assert_deterministic(order_saga, Order(7))
    for cut in range(len(recording.rows)):
        turn, stored = finished(order_saga, recording.rows[:cut], Order(7))
        assert turn.outcome is not None
        assert turn.outcome.ending is Ending.FAILED
        assert turn.outcome.compensation == recording.outcome.compensation
        begun = [path for path in _paths(stored, entries.StepBegun) if path.startswith("undo")]
        assert begun == ["undo#2/unbook", "undo#1/refund", "undo#0/release"]
        assert len([row for row in stored if row.kind == entries.StepBegun.kind]) == 7


def _paths(rows: Any, kind: Any) -> list[str]:
    names = paths(rows)
    return [names[row.seq] for row in rows if row.kind == kind.kind]


def test_a_replay_of_the_whole_history_ends_as_the_run_did_and_records_nothing():
    """G11"""
    recording = live(order_saga, Order(7))
    turn, _ = resumed(recording, order_saga)
    assert turn.entries == []
    assert turn.outcome == recording.outcome


def test_nothing_is_undone_when_the_run_completes_or_nothing_was_registered():
    """B17"""

    @workflow
    async def fine(ctx: Context) -> int:
        ctx.compensate(unbook, 1)
        return await ctx.step(work, 4)

    @workflow
    async def bare(ctx: Context) -> None:
        await ctx.step(fail)

    recording = live(fine)
    assert (recording.result, recording.outcome.compensation) == (4, None)
    assert live(bare).outcome.compensation is None


def test_a_failure_in_the_turn_that_registers_is_undone_too():
    """G11: also the very first turn, and code that never waits"""

    @workflow
    async def at_once(ctx: Context) -> None:
        ctx.compensate(unbook, 1)
        raise Rollback("nobody approved")

    recording = live(at_once)
    assert recording.outcome.error.message == "nobody approved"
    assert undone(recording.outcome) == ["unbook completed"]
    assert_replays(recording)


@pytest.mark.parametrize("how", ["result", "exit", "declared", "itself"])
def test_every_way_to_fail_is_undone(how):
    """G11: an exception, sys.exit, a result that cannot be stored or is not what was declared, cancelling itself"""

    @workflow
    async def odd(ctx: Context) -> int:
        ctx.compensate(unbook, 1)
        await ctx.step(work, 1)
        if how == "exit":
            sys.exit(3)
        if how == "itself":
            raise asyncio.CancelledError
        return object() if how == "result" else "text"  # type: ignore[return-value]

    recording = live(odd, check=True)
    assert recording.outcome.ending is Ending.FAILED
    assert undone(recording.outcome) == ["unbook completed"]
    assert_replays(recording)


def test_what_the_code_left_running_is_stopped_before_anything_is_undone():
    """B17: the tasks of the workflow do nothing more, their steps are given up"""
    log: list[str] = []

    async def other(ctx: Context) -> None:
        try:
            await ctx.step("slow", work, 1)
        finally:
            log.append("closed")
            ctx.step("too late", work, 2)
            ctx.evidence("late")
            await ctx.step("later", work, 3)

    @workflow
    async def leaving(ctx: Context) -> None:
        ctx.compensate(unbook, 1)
        task = asyncio.create_task(other(ctx))
        receiving = ctx.receive("never")
        await ctx.step(fail)
        del task, receiving

    run = execution(leaving)
    turn = run.begin()
    started = {run.journal.names.path(verb.location): verb.location for verb in turn.started}
    turn = run.apply(started["fail"], entries.StepFailure(1, _error("no")), START + 1)
    assert log == ["closed"]
    assert turn.outcome is None
    assert run.journal.compensating
    assert sorted(run.journal.names.path(verb.location) for verb in turn.abandoned) == ["receive never", "slow"]
    assert [run.journal.names.path(verb.location) for verb in turn.started] == ["undo#0/unbook"]
    assert turn.effects is None
    assert len([text for _, text, _, _ in turn.logs if "still running" in text]) == 1
    assert run.apply(started["slow"], entries.StepCompleted(1, _raw(b"1")), START + 2).entries == []
    recording = live(leaving, seed=1)
    assert_replays(recording)
    assert len([line for line in recording.logs if "still running" in line]) <= 1


def _error(text: str) -> Any:
    from holdfast.payloads.codec import error_to_data

    return error_to_data(ValueError(text))


def _raw(data: bytes) -> Any:
    import msgspec

    return msgspec.Raw(data)


def test_a_cancelled_run_is_undone_only_if_that_was_asked_for():
    """B17: not on cancel unless asked"""

    @workflow
    async def waiting(ctx: Context) -> None:
        ctx.compensate(unbook, 1)
        try:
            await ctx.receive("never")
        finally:
            await ctx.step(work, "cleaned up")

    plain = live(waiting, messages=["cancel"])
    assert (plain.outcome.ending, plain.outcome.compensation) == (Ending.CANCELLED, None)
    asked = live(waiting, messages=["cancel and undo"])
    assert asked.outcome.ending is Ending.CANCELLED
    assert undone(asked.outcome) == ["unbook completed"]
    assert asked.paths(entries.StepBegun) == ["work", "undo#0/unbook"]
    assert_replays(asked)
    assert not [row for row in asked.rows if row.kind == entries.Ended.kind]


def test_code_that_swallows_its_cancel_is_undone_all_the_same():
    """B7, B17"""

    @workflow
    async def stubborn(ctx: Context) -> None:
        ctx.compensate(unbook, 1)
        while True:
            try:
                await ctx.receive("never")
            except asyncio.CancelledError:
                continue

    recording = live(stubborn, messages=["cancel and undo"])
    assert recording.outcome.ending is Ending.CANCELLED
    assert undone(recording.outcome) == ["unbook completed"]
    assert_replays(recording)


def test_a_second_request_to_cancel_may_ask_to_undo_and_a_third_does_not_wait():
    """B7: after its grace the code is stopped whatever it is doing"""

    @workflow
    async def slow(ctx: Context) -> None:
        ctx.compensate(unbook, 1)
        try:
            await ctx.receive("never")
        finally:
            await ctx.receive("neither")

    run = execution(slow)
    rows = store([], run.begin())
    for asked in (False, True):
        turn = run.apply("*", entries.CancelRequested(asked), START + 1)
        rows = store(rows, turn)
        assert not run.journal.compensating
    turn = run.apply("*", entries.CancelRequested(True), START + 2)
    rows = store(rows, turn)
    assert [run.journal.names.path(verb.location) for verb in turn.started] == ["undo#0/unbook"]
    last, _ = finished(slow, rows)
    assert last.outcome.ending is Ending.CANCELLED
    assert undone(last.outcome) == ["unbook completed"]


def test_a_cancel_of_a_run_that_is_undoing_changes_nothing():
    """B17"""
    recording = live(order_saga, Order(1), seed=3)
    cut = next(n for n, rows in enumerate(recording.stored) if any(row.location.startswith("^a2/") for row in rows))
    turn, run = resumed(recording, order_saga, cut=cut)
    from holdfast.contract.rows import Message

    turn = run.deliver([Message(1, "cancel", "", "", "", START)], START + 10**9)
    assert (turn.entries, turn.consumed, turn.outcome) == ([], [1], None)


def test_a_deadline_of_the_code_does_not_fire_while_it_is_undone():
    """B17: timers of the workflow are gone"""

    @workflow
    async def timed(ctx: Context) -> None:
        ctx.compensate(unbook, 1)
        ctx.sleep(timedelta(seconds=5))
        async with asyncio.timeout(60):
            await ctx.step(fail)

    run = execution(timed)
    begun = run.begin()
    run.apply(begun.started[0].location, entries.StepFailure(1, _error("no")), START + 1)
    assert run.journal.compensating
    assert run.next_due() is None
    assert_deterministic(timed)


def looping(**options: int) -> Any:
    @workflow
    async def loop_saga(ctx: Context, to: int) -> None:
        async def body(ctx: Context, state: int) -> Any:
            if state == to:
                return Break()
            await ctx.step(work, state)
            ctx.compensate(unbook, state)
            return Continue(state + 1)

        await ctx.loop("loop", body, state=0, **options)
        await ctx.step(fail)

    return loop_saga


def test_the_stack_survives_the_trimming_of_a_loop():
    """B17: the stack survives loop trimming"""
    flow = looping(commit_interval=1, history_every=2, history_keep=1)
    recording = live(flow, 7)
    assert [each["name"] for each in recording.outcome.compensation] == ["unbook"] * 7
    assert added(recording.rows) == [f"unbook[{n}]" for n in range(7)]
    assert [path for path in recording.paths(entries.StepBegun) if path.startswith("loop")] == [
        "loop/~5/work",
        "loop/~6/work",
    ]
    undo = [row for row in recording.rows if row.kind == entries.StepCompleted.kind and row.location[0] == "^"]
    assert [bytes(decode_entry(row.kind, row.data).result) for row in undo] == [b"%d" % n for n in range(6, -1, -1)]
    assert_replays(recording)
    # Whoever replays from the loop's state does not make the calls of its past again.
    for cut in range(len(recording.stored) - 1):
        turn, _ = finished(flow, recording.stored[cut], 7)
        assert len(turn.outcome.compensation) == 7


def test_the_stack_survives_a_lost_race_and_orders_joins_by_registration():
    """B17: one stack across join and race"""

    async def loser(ctx: Context) -> None:
        ctx.compensate(unbook, 10)
        await ctx.sleep(timedelta(days=1))

    async def winner(ctx: Context) -> None:
        await ctx.sleep(timedelta(minutes=1))

    def branch(n: int) -> Any:
        async def run(ctx: Context) -> None:
            await ctx.step(work, n)
            ctx.compensate(unbook, n)

        return run

    @workflow
    async def branching(ctx: Context) -> None:
        await ctx.race({"a": loser, "b": winner})
        await ctx.join({"x": branch(1), "y": branch(2), "z": branch(3)})
        await ctx.step(fail)

    for seed in range(6):
        recording = live(branching, seed=seed)
        registered = added(recording.rows)
        assert registered[0] == "unbook[10]"
        assert len(registered) == 4
        undo = [row for row in recording.rows if row.kind == entries.StepCompleted.kind and row.location[0] == "^"]
        results = [f"unbook[{bytes(decode_entry(row.kind, row.data).result).decode()}]" for row in undo]
        assert results == registered[::-1]
        assert_replays(recording)


def test_a_new_life_takes_the_stack_over():
    """B17: the stack survives continue-as-new"""

    @workflow
    async def living(ctx: Context, life: int) -> None:
        ctx.log.warning("alive")
        await ctx.step(work, life)
        ctx.compensate(unbook, life)
        if life < 2:
            ctx.continue_as_new(life + 1)
        await ctx.step(fail)

    carried: Any = ()
    for life in range(3):
        rows = first_entries(carried, START) if life else []
        begun = _life(living, life)
        turn = begun.begin(rows)
        assert [text for _, text, _, _ in turn.logs] == ["alive"]
        begun.drop()
        turn, stored = finished(living, rows, life)
        carried = turn.carried
        if life < 2:
            assert turn.outcome.ending is Ending.RENEWED
            assert len(carried) == life + 1
    assert carried == ()
    assert added(stored) == ["unbook[0]", "unbook[1]", "unbook[2]"]
    assert undone(turn.outcome) == ["unbook completed"] * 3
    for cut in range(3, len(stored)):
        again, _ = finished(living, stored[:cut], 2)
        assert again.outcome == turn.outcome


def _life(flow: Any, *args: Any, activities: Any = None) -> Execution:
    code = WorkflowCode(flow, args, {})
    run = Execution(RunInfo("run-1", flow.name, 1, 77, 1), code, deque(), START, {}, True)
    run.journal.activities = activities or {}
    return run


def test_a_call_with_other_arguments_is_a_mismatch():
    """B17 G13"""

    def make(x: int) -> Any:
        @workflow
        async def flow(ctx: Context) -> None:
            ctx.compensate(unbook, x)
            await ctx.step(work, 1)
            await ctx.receive("never")

        return flow

    recording = live(make(1))
    turn, _ = resumed(recording, make(1))
    assert turn.outcome is None
    turn, _ = resumed(recording, make(2))
    assert turn.outcome.ending is Ending.BLOCKED
    assert "compensation 'unbook' with other arguments" in turn.outcome.error.message


def test_a_new_call_before_recorded_facts_is_a_mismatch_and_a_removed_one_keeps_its_place():
    """B17"""

    @workflow
    async def without(ctx: Context) -> None:
        await ctx.step(work, 1)
        await ctx.receive("never")

    @workflow
    async def with_it(ctx: Context) -> None:
        ctx.compensate(unbook, 1)
        await ctx.step(work, 1)
        await ctx.receive("never")

    turn, _ = resumed(live(without), with_it)
    assert turn.outcome.ending is Ending.BLOCKED
    assert 'ctx.patched("add-unbook")' in turn.outcome.error.message
    turn, run = resumed(live(with_it), without)
    assert turn.outcome is None
    assert len(run.journal.compensations) == 1


def test_a_set_among_the_arguments_may_be_written_in_another_order():
    """B17: the same values are the same arguments"""

    def forget(names: set[str]) -> None: ...

    @workflow
    async def flow(ctx: Context) -> None:
        ctx.compensate(forget, {"a", "b", "c", "d"})
        await ctx.step(work, 1)
        await ctx.receive("never")

    recording = live(flow)
    at = next(n for n, row in enumerate(recording.rows) if row.kind == entries.CompensationAdded.kind)
    row = recording.rows[at]
    entry = decode_entry(row.kind, row.data)
    turned = entries.CompensationAdded(entry.where, entry.name, _raw(b'[["d","c","a","b"]]'), entry.kwargs)
    recording.stored[-1] = [*recording.rows]
    recording.stored[-1][at] = row._replace(data=entries.encode_entry(turned))
    turn, _ = resumed(recording, flow)
    assert turn.outcome is None


def test_arguments_that_could_not_be_read_again_are_refused_at_the_call():
    """B17: better now than when it is needed"""

    @workflow
    async def flow(ctx: Context) -> list[str]:
        seen = []
        wrongs: list[Any] = [{"no": "order"}, object()]
        for wrong in wrongs:
            try:
                ctx.compensate(release, wrong)
            except (UndecodablePayload, NotSerializable) as error:
                seen.append(type(error).__name__)
        await ctx.step(work, 1)
        return seen

    recording = live(flow)
    assert recording.result == ["UndecodablePayload", "NotSerializable"]
    assert_replays(recording)


def test_a_function_that_cannot_be_found_blocks_the_run_until_it_is_given():
    """B17, B20"""
    box: list[Any] = [unbook]

    @workflow
    async def flow(ctx: Context, life: int) -> None:
        if life == 0:
            ctx.compensate(box[0], 5)
            ctx.continue_as_new(1)
        await ctx.step(fail)

    turn, _ = finished(flow, [], 0)
    rows = first_entries(turn.carried, START)
    box.clear()
    run = _life(flow, 1)
    begun = run.begin(rows)
    turn = run.apply(begun.started[0].location, entries.StepFailure(1, _error("no")), START + 1)
    assert turn.outcome.ending is Ending.BLOCKED
    assert "Engine(activities=[...])" in turn.outcome.error.message
    run = _life(flow, 1, activities={"unbook": unbook})
    begun = run.begin(rows)
    turn = run.apply(begun.started[0].location, entries.StepFailure(1, _error("no")), START + 1)
    assert turn.outcome is None
    assert turn.started[0].activity is unbook


async def helper(ctx: Context) -> None:
    ctx.compensate(release, Order(1))


def test_functions_are_found_by_name_from_the_code_of_the_workflow():
    """B17: globals, closures, nested functions, modules and helpers"""

    @activity(name="hidden")
    def inner() -> None: ...

    async def through_closure(ctx: Context) -> None:
        async def body(ctx: Context) -> None:
            ctx.compensate(inner)

        await body(ctx)

    async def through_module(ctx: Context) -> None:
        ctx.compensate(sys.modules[__name__].unbook, 1)
        await helper(ctx)

    assert find_activity(through_closure, "hidden") is inner
    assert find_activity(through_module, "release").function is release
    assert find_activity(through_module, "hidden") is None
    assert find_activity(order_saga.function, "unbook") is unbook


def test_an_undoing_step_goes_on_with_the_attempts_it_has():
    """G11: attempts of a compensation are counted and recorded as those of any step"""
    recording = live(order_saga, Order(1))
    cut = next(n for n, row in enumerate(recording.rows) if row.location.startswith("^a2/"))
    rows = recording.rows[: cut + 1]
    run = execution(order_saga, Order(1))
    run.begin(rows)
    location = rows[-1].location
    failed = run.note([(location, entries.AttemptFailed(1, _error("busy"), START + 5))], START + 10**8)
    begun = run.note([(location, entries.AttemptBegun(2))], START + 10**8)
    rows = [*rows, *failed.entries, *begun.entries]
    run = execution(order_saga, Order(1))
    turn = run.begin(rows)
    assert (turn.started[0].attempt, turn.started[0].failures) == (2, 1)
    rows = store(rows, run.apply(location, entries.StepCompleted(2, _raw(b"1")), START + 10**9))
    turn, _ = finished(order_saga, rows, Order(1))
    assert turn.outcome.compensation[0]["attempts"] == 2
