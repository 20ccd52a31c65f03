"""Code that changes under a run: what is noticed, what is said, and how patched and removed reconcile the two."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.support.driving import assert_replays, execution, finished, live, resumed

from holdfast import Context, workflow
from holdfast.context.api import Break, Continue
from holdfast.replay import entry as entries
from holdfast.replay.entry import encode_entry
from holdfast.replay.turn import Ending


def work(x: int) -> int:
    return x


def other(x: int) -> int:
    return x


async def branch(ctx: Context) -> int:
    await asyncio.sleep(1)
    return await ctx.step(work, 5)


async def body(ctx: Context, state: int) -> Any:
    state = await ctx.step(work, state + 1)
    return Break(state) if state == 4 else Continue(state)


CALLS: dict[str, tuple[str, Any]] = {
    "step": ("work", lambda ctx: ctx.step(work, 1)),
    "sleep": ("nap", lambda ctx: ctx.sleep(timedelta(seconds=2), name="nap")),
    "receive": ("news", lambda ctx: ctx.receive("news", timeout=timedelta(seconds=5), default=None)),
    "send": ("news", lambda ctx: ctx.send("run-2", "news", 1)),
    "child": ("kid", lambda ctx: ctx.child("kid", x=1)),
    "join": ("all", lambda ctx: ctx.join("all", {"a": branch, "b": branch})),
    "race": ("any", lambda ctx: ctx.race("any", {"a": branch, "b": branch})),
    "loop": ("loop", lambda ctx: ctx.loop(body, state=0, commit_interval=2, history_every=2, history_keep=1)),
}


def old(kind: str) -> Any:
    @workflow(name="changing")
    async def definition(ctx: Context) -> str:
        await ctx.step("before", other, 1)
        await CALLS[kind][1](ctx)
        await ctx.step("after", other, 2)
        await ctx.sleep(timedelta(hours=1))
        return "end"

    return definition


def new(kind: Any) -> Any:
    @workflow(name="changing")
    async def definition(ctx: Context) -> str:
        await ctx.step("before", other, 1)
        ctx.removed(CALLS[kind][0], kind)
        await ctx.step("after", other, 2)
        await ctx.sleep(timedelta(hours=1))
        return "end"

    return definition


def without(kind: str) -> Any:
    @workflow(name="changing")
    async def definition(ctx: Context) -> str:
        await ctx.step("before", other, 1)
        await ctx.step("after", other, 2)
        await ctx.sleep(timedelta(hours=1))
        return "end"

    return definition


@pytest.mark.parametrize("kind", CALLS)
def test_a_removed_call_of_every_kind_lets_runs_go_on_from_every_point(kind):
    """S1-35 S1-9 Whether the call was pending, half done or over when the code changed."""
    for seed in range(3):
        recording = live(old(kind), seed=seed)
        for cut in range(len(recording.stored) - 1):
            turn, run = resumed(recording, new(kind), cut=cut)
            assert turn.outcome is None, (cut, turn.outcome)
            assert run.journal.open, cut
            run.drop()
        assert live(new(kind), seed=seed).result == "end"


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_taken_away_without_a_trace_is_noticed_and_the_line_to_paste_is_shown(kind):
    """S1-37 A step at the root that the new code no longer has is noticed too (C1), pending or over."""
    recording = live(old(kind))
    noticed = 0
    for cut in range(1, len(recording.stored) - 1):
        turn, run = resumed(recording, without(kind), cut=cut)
        assert turn.outcome is not None, cut
        assert turn.outcome.ending is Ending.BLOCKED
        message = turn.outcome.error.message
        if f'ctx.removed("{CALLS[kind][0]}", "{kind}")' in message:
            noticed += 1
        run.drop()
    assert noticed >= 1, message


def test_a_removed_step_among_parallel_facts():
    """S1-35 Its result came before, between or after those of the others."""

    @workflow(name="changing")
    async def three(ctx: Context) -> Any:
        await asyncio.gather(ctx.step("a", work, 1), ctx.step("b", work, 2), ctx.step("c", work, 3))
        return await ctx.step("d", work, 4)

    @workflow(name="changing")
    async def two(ctx: Context) -> Any:
        ctx.removed("b")
        await asyncio.gather(ctx.step("a", work, 1), ctx.step("c", work, 3))
        return await ctx.step("d", work, 4)

    for seed in range(8):
        recording = live(three, seed=seed)
        for cut in range(len(recording.stored) - 1):
            turn, run = resumed(recording, two, cut=cut)
            assert turn.outcome is None
            run.drop()


def test_removed_does_not_make_replay_blind_to_other_changes():
    """S1-37"""

    @workflow(name="changing")
    async def stranger(ctx: Context) -> Any:
        await ctx.step("before", other, 1)
        ctx.removed("work")
        await ctx.step("stranger", other, 2)

    turn, run = resumed(live(old("step"), stop=3), stranger)
    assert turn.outcome.ending is Ending.BLOCKED
    assert "'stranger'" in turn.outcome.error.message
    run.drop()


def test_removed_of_another_kind_is_a_mismatch_and_of_no_kind_is_refused():
    @workflow(name="changing")
    async def wrong(ctx: Context) -> Any:
        await ctx.step("before", other, 1)
        ctx.removed("work", "sleep")

    @workflow(name="changing")
    async def nonsense(ctx: Any) -> Any:
        ctx.removed("work", "wish")

    turn, _ = resumed(live(old("step"), stop=1), wrong)
    assert "history has a step, the code now has removed(..., 'sleep')" in turn.outcome.error.message
    outcome = live(nonsense).outcome
    assert outcome.ending is Ending.FAILED
    assert "the kind is one of" in outcome.error.message


@workflow(name="patching")
async def unpatched(ctx: Context) -> list:
    async for it in ctx.loop("loop", state=list[Any](), commit_interval=3, history_every=3, history_keep=1):
        await it.step("old", work, 1)
        it.state = [*it.state, "old"]
        if it.index == 7:
            break
    await ctx.step("old", work, 2)
    return [*it.state, "old"]


@workflow(name="patching")
async def patched(ctx: Context) -> list:
    async for it in ctx.loop("loop", state=list[Any](), commit_interval=3, history_every=3, history_keep=1):
        path = "new" if it.patched("better") else "old"
        await it.step(path, work, 1)
        assert it.patched("better") == (path == "new")
        it.state = [*it.state, path]
        if it.index == 7:
            break
    path = "new" if ctx.patched("last") else "old"
    await ctx.step(path, work, 2)
    return [*it.state, path]


def test_a_patch_takes_effect_where_no_run_has_been_and_stays_consistent():
    """S1-37 Old iterations keep the old path, pending calls too; later ones take the new path for good."""
    recording = live(unpatched)
    for cut in range(len(recording.stored) - 1):
        turn, run = resumed(recording, patched, cut=cut)
        assert turn.outcome is None, (cut, turn.outcome)
        assert turn.entries == []
        run.drop()
    fresh = live(patched)
    assert fresh.result == ["new"] * 9
    assert_replays(fresh)


def test_a_run_that_met_a_patch_half_way_replays_from_every_later_cut():
    """S1-37"""
    began = live(unpatched, stop=4)
    run = resumed(began, patched)[1]
    rows, turn = began.rows, None
    for _ in range(40):
        (verb,) = run.journal.open.values()
        fact = entries.StepCompleted(1, msgspec.Raw(str(verb.args[0]).encode()))
        turn = run.apply(verb.location, fact, began.rows[-1].at)
        rows = [row for row in rows if not any(low <= row.location < high for low, high in turn.trims)] + turn.entries
        if turn.outcome is not None:
            break
        began.stored.append(rows)
        began.unread.append([])
        again, replayed = resumed(began, patched)
        assert (again.outcome, again.entries) == (None, [])
        assert list(replayed.journal.open) == list(run.journal.open)
        replayed.drop()
    assert turn.outcome.ending is Ending.COMPLETED
    assert msgspec.json.decode(turn.outcome.payload) == ["old"] * 5 + ["new"] * 4
    run.drop()


CHANGES: dict[str, tuple[Any, str]] = {
    "another kind": (lambda ctx: ctx.sleep(timedelta(1), name="work"), "history has a step, the code now has a sleep"),
    "other arguments": (lambda ctx: ctx.step(work, 2), "history has step 'work' with other arguments"),
    "a new call before": (lambda ctx: ctx.step("new", work, 1), 'if ctx.patched("add-new"):'),
    "an early end": (lambda ctx: asyncio.sleep(0), 'ctx.removed("work", "step")'),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_mismatch_shows_recorded_against_current_with_the_users_line_and_the_way_out(change):
    """S1-37 And nothing wrong is recorded or asked for before it is found."""

    @workflow(name="changing")
    async def definition(ctx: Context) -> Any:
        await ctx.step(work, 1)
        await ctx.step("second", work, 2)

    call, expected = CHANGES[change]

    @workflow(name="changing")
    async def changed(ctx: Context) -> Any:
        await call(ctx)
        if change == "a new call before":
            await ctx.step(work, 1)
            await ctx.step("second", work, 2)

    for stop in (0, 1):
        turn, run = resumed(live(definition, stop=stop), changed)
        assert turn.outcome is not None, stop
        assert turn.outcome.ending is Ending.BLOCKED
        message = turn.outcome.error.message
        assert message.startswith("run run-1: at 'work'" if "new call" not in change else "run run-1: at '"), message
        assert expected in message
        if stop == 0 and change == "a new call before":  # or it is no longer called
            assert 'ctx.removed("work", "step")' in message
        assert "Changing code under open runs" in message
        if change in ("another kind", "other arguments"):
            assert "(test_versions.py:" in message
        run.drop()


def test_a_run_that_would_end_or_continue_as_new_too_early_is_blocked():
    """S1-37 Otherwise recorded facts would be thrown away in silence."""

    @workflow(name="changing")
    async def ends(ctx: Context) -> Any:
        return "early"

    @workflow(name="changing")
    async def renews(ctx: Context) -> Any:
        async def sub() -> None:
            ctx.continue_as_new()

        await asyncio.create_task(sub())

    for stop in (0, 2):
        for changed in (ends, renews):
            turn, run = resumed(live(old("step"), stop=stop), changed)
            assert turn.outcome.ending is Ending.BLOCKED, (stop, changed)
            run.drop()


def test_a_recorded_result_that_no_longer_fits_blocks_the_run_without_loss():
    def typed(kind: Any) -> Any:
        def measure(x: int) -> Any:
            return 1

        measure.__annotations__["return"] = kind

        @workflow(name="typed")
        async def definition(ctx: Context) -> Any:
            await ctx.step(measure, 1)
            await ctx.receive("never")

        return definition

    recording = live(typed(int))
    turn, run = resumed(recording, typed(list[str]))
    assert turn.outcome.ending is Ending.BLOCKED
    assert "the recorded result of step 'measure' does not fit" in turn.outcome.error.message
    assert turn.entries == []
    run.drop()
    turn, run = resumed(recording, typed(int))
    assert turn.outcome is None
    run.drop()


def test_a_row_nobody_can_read_blocks_the_run():
    recording = live(old("step"), stop=2)
    rows = recording.rows
    damaged = next(i for i, row in enumerate(rows) if row.kind == entries.StepCompleted.kind)
    recording.stored.append([*rows[:damaged], rows[damaged]._replace(data="{oops"), *rows[damaged + 1 :]])
    recording.unread.append([])
    turn, run = resumed(recording, old("step"))
    assert turn.outcome.ending is Ending.BLOCKED
    run.drop()


def test_a_recorded_winner_that_replay_does_not_confirm_is_a_mismatch():
    """S1-26"""
    recording = live(old("race"), stop=8)
    changed = [
        row._replace(data=encode_entry(entries.RaceWon("b" if '"a"' in row.data else "a")))
        if row.kind == entries.RaceWon.kind
        else row
        for row in recording.rows
    ]
    assert changed != recording.rows
    recording.stored.append(changed)
    recording.unread.append([])
    turn, run = resumed(recording, old("race"))
    assert turn.outcome.ending is Ending.BLOCKED
    assert "race won" in turn.outcome.error.message
    run.drop()


def test_a_set_iterated_in_another_order_is_noticed_by_the_digest():
    """S1-37 Another PYTHONHASHSEED cannot hand one call's result to another."""
    script = """
        import sys
        from holdfast import workflow
        from holdfast.contract.rows import EntryRow
        from tests.support.driving import Recording, live, resumed
        import msgspec

        def greet(name: str) -> str:
            return "hello " + name

        @workflow
        async def sets(ctx):
            for name in {"ann", "bob", "cid", "dot", "eve"}:
                await ctx.step(greet, name)
            await ctx.receive("never")

        if sys.argv[1] == "-":
            print(msgspec.json.encode(live(sets).rows).decode())
        else:
            rows = msgspec.json.decode(sys.argv[1], type=list[EntryRow])
            turn, run = resumed(Recording(sets, (), stored=[rows], unread=[[]]), sets)
            print(turn.outcome.error.message if turn.outcome else "same order")
            run.drop()
    """

    def run(seed: str, argument: str) -> str:
        command = [sys.executable, "-c", textwrap.dedent(script), argument]
        environment = {"PYTHONHASHSEED": seed, "PATH": "", "PYTHONPATH": ":".join(filter(None, sys.path))}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=True).stdout

    rows = run("1", "-")
    assert run("1", rows).strip() == "same order"
    assert "sorted list rather than a set" in run("2", rows)


# In a plain loop.


def plain(check: Any = None) -> Any:
    @workflow(name="plain")
    async def definition(ctx: Context) -> list[str]:
        seen = []
        for round in range(6):
            checked = check is not None and check(ctx, round)
            if checked:
                await ctx.step(other, round)
            await ctx.step(work, round)
            seen.append("new" if checked else "old")
        return seen

    return definition


def test_in_a_plain_loop_a_name_for_each_round_lets_an_old_run_take_the_new_path():
    """S1-37 S1-33 From the next round on; the rounds that have begun keep their path, on every later replay too."""
    each_round = plain(lambda ctx, round: ctx.patched(f"add-other-{round}"))
    whole = plain(lambda ctx, round: ctx.patched("add-other"))
    began = live(plain(), stop=3)
    for definition, expected in ((each_round, ["old"] * 4 + ["new"] * 2), (whole, ["old"] * 6)):
        turn, stored = finished(definition, began.rows)
        assert turn.outcome is not None
        assert msgspec.json.decode(turn.outcome.payload or "") == expected
        again = execution(definition)
        assert again.begin(stored).outcome == turn.outcome
        again.drop()
    assert live(each_round).result == live(whole).result == ["new"] * 6


def test_a_new_call_in_a_plain_loop_is_told_what_works_there():
    """S1-37 The advice for a single call would be False in every round of a run that is under way."""
    turn, run = resumed(live(plain(), stop=3), plain(lambda ctx, round: True))
    run.drop()
    assert turn.outcome is not None
    assert turn.outcome.error is not None
    assert 'under `if ctx.patched("add-other"):`' in turn.outcome.error.message
    assert 'in a loop, round by round, under `if ctx.patched(f"add-other-{round}"):`' in turn.outcome.error.message
    turn, run = resumed(live(old("step")), without_loop())
    run.drop()
    assert turn.outcome is not None
    assert turn.outcome.error is not None
    assert "round by round" not in turn.outcome.error.message


def without_loop() -> Any:
    @workflow(name="changing")
    async def definition(ctx: Context) -> str:
        await ctx.step("new", other, 1)
        await ctx.step("before", other, 1)
        return "end"

    return definition
