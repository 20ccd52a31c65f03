"""Graphs: nodes run as soon as what they depend on has completed, within limits, and draw themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.acts_cases import Flaky, Gate, dead_or_done, moments
from tests.support.driving import assert_deterministic, assert_replays, finished, live
from tests.support.waiting import eventually

from holdfast import NotReady, Retry, RunCancelled, RunFailed, Status, activity
from holdfast.declarative import graph, step
from holdfast.engine.views.steps import progress_of
from holdfast.errors import RunBlocked, StoreError
from holdfast.replay.turn import Ending

HOUR = timedelta(hours=1)
log: list[Any] = []


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    log.clear()


def node(name: str, gate: Gate | None = None) -> Callable[..., Any]:
    """Return a node that says so when it runs, and returns what it was given."""

    async def body(results: dict[str, Any]) -> list[str]:
        if gate is not None:
            await gate(name)
        log.append(name)
        return sorted(results)

    body.__name__ = name
    return body


async def undo(result: Any) -> None:
    log.append(("undo", result))


async def fails(run: Any) -> Any:
    with pytest.raises(RunFailed) as failed:
        await run.result()
    assert type(failed.value.__cause__) is ValueError
    return await run.describe()


# Results.


async def test_a_node_is_given_what_its_dependencies_returned_by_name(make_engine):
    """S0-49 S4-17 `input` is the run's input, `results` all of what it depends on; the result has every node's."""

    async def fetch(input: dict[str, int]) -> int:
        return input["n"]

    def build(fetch: int) -> int:
        return fetch * 2

    @activity(name="check style")
    async def lint(fetch: int, input: dict[str, int]) -> str:
        return f"{fetch} of {input}"

    async def pack(results: dict[str, Any], build: int) -> list[Any]:
        return [results, build]

    def label(prefix: str, pack: list[Any]) -> str:
        return f"{prefix}{len(pack)}"

    work = graph(
        "work",
        {
            pack: [build, "check style"],
            fetch: [],
            build: [fetch],
            lint: [fetch],
            step(partial(label, prefix="v"), name="label"): [pack],
        },
    )
    engine = await make_engine(work)
    run = await engine.start(work, {"n": 21})
    assert await run.result() == {
        "pack": [{"build": 42, "check style": "21 of {'n': 21}"}, 42],
        "fetch": 21,
        "build": 42,
        "check style": "21 of {'n': 21}",
        "label": "v2",
    }
    assert [each.name for each in await run.steps()] == ["fetch", "build", "check style", "pack", "label"]
    assert work.dependencies["pack"] == ("build", "check style")


async def test_a_graph_needs_no_input(make_engine):
    """S4-17"""
    work = graph("work", {node("a"): []})
    engine = await make_engine(work)
    assert await engine.execute(work) == {"a": []}


def test_plain_functions_are_tried_as_the_handbook_says():
    """B3 S4-9 Activities keep their options, step(...) and the graph's own options change them."""

    def settings_of(item: Any, **options: Any) -> Any:
        return graph("g", {item: []}, **options).parts[0].activity.settings

    assert settings_of(node("a")).retry is Retry.handbook
    assert settings_of(activity(retry=Retry.payment)(node("a"))).retry is Retry.payment
    assert settings_of(node("a"), retry=Retry.never, timeout=HOUR).timeout == HOUR
    assert settings_of(step(node("a"), retry=Retry.webhook)).retry is Retry.webhook


def test_a_graph_draws_itself():
    """S0-49 In the language of Mermaid; names are shown as they are."""
    work = graph(
        "work", {node("a"): [], step(node("b"), name='say "b" <now>'): ["a"], node("c"): ["a", 'say "b" <now>']}
    )
    assert work.to_mermaid() == (
        "flowchart TD\n"
        '    n0["a"]\n'
        '    n1["say &quot;b&quot; &lt;now&gt;"]\n'
        '    n2["c"]\n'
        "    n0 --> n1\n"
        "    n0 --> n2\n"
        "    n1 --> n2\n"
    )


# Order and limits.


async def test_nodes_run_side_by_side_as_soon_as_their_dependencies_have_completed(make_engine):
    """S4-17 A slow one keeps only those waiting that depend on it."""
    gate = Gate()
    work = graph(
        "work",
        {
            node("slow", gate): [],
            node("quick"): [],
            node("after quick"): ["quick"],
            node("after slow"): ["slow"],
            node("after both"): ["after quick", "slow"],
        },
    )
    engine = await make_engine(work)
    run = await engine.start(work)
    await gate.entered("slow")
    await eventually(lambda: log == ["quick", "after quick"])
    await moments()
    now = progress_of(work, await run.steps())
    assert now is not None
    assert (now.index, now.name, now.total, now.done) == (2, "slow", 5, False)
    assert await run.query("state") == {"quick": [], "after quick": ["quick"]}
    gate.open("slow")
    await run.result()
    assert sorted(log[2:]) == ["after both", "after slow", "slow"]
    assert progress_of(work, await run.steps()).done


@pytest.mark.parametrize(("limits", "most"), [({}, 6), ({"max_parallel": 2}, 2), ({"max_parallel": 1}, 1)])
async def test_so_many_nodes_of_a_run_run_at_once(make_engine, limits, most):
    """S4-19 In the order declared; another begins when one has ended."""
    running: list[str] = []
    seen: list[int] = []

    def counted(name: str) -> Any:
        async def body() -> None:
            running.append(name)
            seen.append(len(running))
            await eventually(lambda: len(seen) >= most)  # as many as may have begun
            running.remove(name)

        body.__name__ = name
        return body

    work = graph("work", {counted(f"n{number}"): [] for number in range(6)}, **limits)
    engine = await make_engine(work)
    run = await engine.start(work)
    await run.result()
    assert max(seen) == most
    assert [each.name for each in await run.steps()] == [f"n{number}" for number in range(6)]


async def test_a_node_that_becomes_ready_goes_before_those_declared_after_it(make_engine):
    """S4-17 B22 However long they have waited for a place."""
    work = graph("work", {node("a"): [], node("b"): ["a"], node("c"): [], node("d"): ["b"]}, max_parallel=1)
    engine = await make_engine(work)
    await engine.execute(work)
    assert log == ["a", "b", "c", "d"]


async def test_so_many_dependants_of_one_node_run_at_once(make_engine):
    """S4-19 Those of another node are not kept waiting by it."""
    gate = Gate()
    nodes: dict[Any, list[str]] = {node("a"): [], node("b"): []}
    nodes |= {node(f"{of}{number}", gate): [of] for of in "ab" for number in range(3)}
    nodes[node("both", gate)] = ["a", "b"]
    work = graph("work", nodes, max_per_dependency=2)
    engine = await make_engine(work)
    run = await engine.start(work)
    for name in ("a0", "a1", "b0", "b1"):
        await gate.entered(name)
    await moments()
    assert sorted(gate.begun) == ["a0", "a1", "b0", "b1"]
    gate.open("a0")
    await gate.entered("a2")
    gate.open("b0")
    await gate.entered("b2")
    gate.open("a1")
    await moments()
    assert "both" not in gate.begun
    gate.open("b1")
    await gate.entered("both")
    gate.open("a2", "b2", "both")
    assert (await run.result())["both"] == ["a", "b"]


async def test_a_wide_graph_is_no_trouble(make_engine):
    """S4-17 S4-19 Three hundred nodes, ten at once."""
    names = [f"n{number}" for number in range(300)]
    nodes: dict[Any, list[str]] = {node("first"): []}
    nodes |= {node(name): ["first"] for name in names}
    work = graph("work", {**nodes, node("last"): names}, max_parallel=10)
    engine = await make_engine(work)
    assert len((await engine.execute(work))["last"]) == 300


# Failing.


async def test_when_a_node_fails_nothing_more_begins_and_what_runs_finishes(make_engine):
    """S4-17 S4-21 B17 The run fails with that node's error, and what was done is undone in reverse."""
    gate = Gate()

    @activity(retry=Retry.never)
    async def bad() -> None:
        await gate("bad")
        raise ValueError("it went wrong")

    work = graph(
        "work",
        {
            step(node("a"), compensate=undo): [],
            step(node("b", gate), compensate=undo): ["a"],
            bad: ["a"],
            node("after b"): ["b"],
            node("later"): ["a"],
        },
        max_parallel=2,
    )
    engine = await make_engine(work)
    run = await engine.start(work)
    await gate.entered("b")
    await gate.entered("bad")
    gate.open("bad")
    await moments()
    assert await run.status() is not Status.FAILED
    gate.open("b")
    ended = await fails(run)
    assert log == ["a", "b", ("undo", ["a"]), ("undo", [])]
    assert [each["status"] for each in ended.compensation] == ["completed"] * 2


async def test_a_retry_runs_the_failed_node_and_what_depends_on_it(make_engine):
    """S4-10 S0-20 B8 What had completed before the failure stays done."""
    body = Flaky("x")

    @activity(retry=Retry.never)
    async def flaky(a: list[str]) -> str:
        return await body.body("x")

    work = graph("work", {node("a"): [], flaky: ["a"], node("z"): ["flaky"]})
    engine = await make_engine(work)
    run = await engine.start(work)
    await fails(run)
    body.failing.clear()
    await run.retry()
    assert await run.result() == {"a": [], "flaky": "x", "z": ["flaky"]}
    assert log == ["a", "z"]


async def test_two_failures_are_both_tried_again(make_engine):
    """B8 S4-17 The first is the run's; the other is in its log."""
    body = Flaky("x", "y")

    def bad(name: str) -> Any:
        async def run() -> str:
            return await body.body(name)

        run.__name__ = name
        return run

    work = graph("work", {bad("x"): [], bad("y"): []}, retry=Retry.never)
    engine = await make_engine(work)
    run = await engine.start(work)
    await fails(run)
    body.failing.clear()
    await run.retry()
    assert await run.result() == {"x": "x", "y": "y"}


async def test_a_cancelled_graph_begins_nothing_more(make_engine):
    """B7 S4-13"""
    gate = Gate()
    work = graph("work", {node("a"): [], node("b", gate): ["a"], node("c", gate): ["a"], node("d"): ["b"]})
    engine = await make_engine(work)
    run = await engine.start(work)
    await gate.entered("b")
    await gate.entered("c")
    assert await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    assert log == ["a"]
    assert [each.status for each in await run.steps()] == ["completed", "cancelled", "cancelled"]


async def test_nodes_that_end_while_their_run_is_paused_are_taken_up_afterwards(make_engine):
    """B25 B17 The code meets both ends at once."""
    gate = Gate()

    async def bad(results: dict[str, Any]) -> None:
        raise ValueError("it went wrong")

    work = graph(
        "work",
        {
            step(node("a", gate), compensate=undo): [],
            step(node("b", gate), compensate=undo): [],
            node("after a"): ["a"],
            bad: ["after a", "b"],
        },
        retry=Retry.never,
    )
    engine = await make_engine(work)
    run = await engine.start(work)
    await gate.entered("a")
    await gate.entered("b")
    assert await run.pause()
    await moments()
    gate.open("a", "b")
    await engine.settle()
    assert await run.status() is Status.PAUSED
    await run.resume()
    await fails(run)
    assert sorted(map(str, log)) == ["('undo', [])", "('undo', [])", "a", "after a", "b"]


async def test_what_was_done_is_undone_though_a_failure_came_in_the_same_pause(make_engine):
    """B25 B17"""
    gate = Gate()

    @activity(retry=Retry.never)
    async def bad() -> None:
        await gate("bad")
        raise ValueError("it went wrong")

    work = graph("work", {step(node("a", gate), compensate=undo): [], bad: []})
    engine = await make_engine(work)
    run = await engine.start(work)
    await gate.entered("a")
    await gate.entered("bad")
    assert await run.pause()
    await moments()
    gate.open("a")
    await moments()
    gate.open("bad")
    await engine.settle()
    await run.resume()
    await fails(run)
    assert log == ["a", ("undo", [])]


# Restarts.


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_a_graph_survives_a_crash_at_any_commit(make_engine, tmp_path):
    """S0-1 S4-1 S4-7 S4-28 What was recorded is not done again."""
    work = graph("work", {node("a"): [], node("b"): ["a"], node("c"): ["a"], node("d"): ["b", "c"]}, max_parallel=2)
    lives = 0
    for dies_at in range(1, 40):
        log.clear()
        path = str(tmp_path / f"{dies_at}.db")
        engine = await make_engine(work, database=path)
        faults = engine.faults
        faults.die(dies_at, "after" if dies_at % 2 else "before")
        ended = asyncio.ensure_future(_completed(engine, work))
        await dead_or_done(faults, ended)
        lived = not faults.dead
        ended.cancel()
        await engine.crash()
        engine = await make_engine(work, database=path, clock=engine.jumping)
        run = await engine.start(work, id="r")
        assert await run.result() == {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
        assert len(log) <= 4 + 2, log
        await engine.stop()
        lives += 1
        if lived:
            break
    assert lives >= 5, "it must have died at every commit"


async def _completed(engine: Any, work: Any) -> None:
    """Wait until a new run has completed, for ever if its engine dies."""
    try:
        run = await engine.start(work, id="r")
        while await run.status() is not Status.COMPLETED:  # noqa: ASYNC110  # no result(): the clock stands still
            await asyncio.sleep(0.002)
    except StoreError:
        await asyncio.Event().wait()


class Deploy:
    """An engine that is stopped and started again with another graph, on the same database and clock."""

    def __init__(self, make_engine: Callable[..., Any]) -> None:
        self._make = make_engine
        self.ready = False
        self.engine: Any = None

    def wait(self, name: str) -> Any:
        return step(node(name), run_when=lambda step: self.ready or NotReady("", HOUR))

    async def __call__(self, nodes: dict[Any, list[Any]], **options: Any) -> Any:
        kept = {}
        if self.engine is not None:
            kept["clock"] = self.engine.jumping
            await self.engine.stop()
        work = graph("work", nodes, **options)
        self.engine = await self._make(work, **kept)
        return work, self.engine


@pytest.fixture
async def begun(make_engine) -> Deploy:
    """A run of a -> wait -> z and a -> b that waits."""
    deploy = Deploy(make_engine)
    work, engine = await deploy({node("a"): [], node("b"): ["a"], deploy.wait("wait"): ["a"], node("z"): ["wait"]})
    await engine.start(work, id="r")
    await engine.settle()
    assert log == ["a", "b"]
    deploy.ready = True
    return deploy


KEPT = pytest.mark.parametrize("mode", ["file", "evict"])


@KEPT
async def test_new_nodes_edges_and_limits_serve_runs_under_way(begun):
    """B11 What has begun is known by its name; what has not follows the new graph."""
    nodes = {
        node("new"): [],
        node("a"): ["new"],
        begun.wait("wait"): ["a"],
        node("b"): ["wait"],
        node("z"): ["wait", "b", "new"],
    }
    _, engine = await begun(nodes, max_parallel=1)
    result = await engine.get("r").result()
    assert result == {"new": [], "a": [], "wait": ["a"], "b": ["a"], "z": ["b", "new", "wait"]}
    assert sorted(log) == ["a", "b", "new", "wait", "z"]
    _, engine = await begun(nodes, max_parallel=1)
    assert await engine.get("r").query("state") == result


@KEPT
async def test_a_node_that_has_just_ended_may_get_a_compensation(make_engine):
    """B17 B11 The code has asked for nothing since then; it is registered as soon as the code goes on."""
    deploy = Deploy(make_engine)
    work, engine = await deploy({node("x"): [], node("y"): [], deploy.wait("wait"): []})
    await engine.start(work, id="r")
    await engine.settle()
    assert sorted(log) == ["x", "y"]
    deploy.ready = True

    async def bad(wait: list[str]) -> None:
        raise ValueError("it went wrong")

    undone = step(node("x"), compensate=undo)
    _, engine = await deploy({undone: [], node("y"): [], deploy.wait("wait"): [], bad: ["wait"]}, retry=Retry.never)
    await fails(engine.get("r"))
    assert log[2:] == ["wait", ("undo", [])]


@KEPT
async def test_nodes_that_are_gone_are_left_out_if_they_have_ended(begun):
    """B11"""
    _, engine = await begun({node("a"): [], begun.wait("wait"): ["a"], node("z"): ["wait"]})
    assert await engine.get("r").result() == {"a": [], "wait": ["a"], "z": ["wait"]}


@KEPT
async def test_a_node_under_way_that_nobody_knows_is_held(begun):
    """B20 The others go on meanwhile; the run waits for it, and goes on when it is known again."""
    _, engine = await begun({node("a"): [], node("b"): ["a"], node("c"): ["b"]})
    await engine.advance(3 * HOUR)
    run = engine.get("r")
    steps = {each.name: each for each in await run.steps()}
    assert (steps["wait"].status, steps["wait"].attempts) == ("skipped", 0)
    assert steps["c"].status == "completed"
    assert await run.status() is Status.SUSPENDED
    _, engine = await begun({node("a"): [], node("b"): ["a"], begun.wait("wait"): ["a"], node("c"): ["b"]})
    assert await engine.get("r").result() == {"a": [], "b": ["a"], "wait": ["a"], "c": ["b"]}


@KEPT
async def test_a_node_under_way_cannot_come_to_need_what_is_not_there(begun):
    """B11 The run is blocked, says so, and goes on when the graph is put right."""
    _, engine = await begun({node("a"): [], node("b"): ["a"], node("n"): [], begun.wait("wait"): ["a", "n"]})
    with pytest.raises(RunBlocked, match="wait"):
        await engine.get("r").result()
    _, engine = await begun({node("a"): [], node("b"): ["a"], node("n"): [], begun.wait("wait"): ["a"]})
    assert (await engine.get("r").result())["wait"] == ["a"]


# Any graph.


def simple(name: str) -> Callable[..., Any]:
    def body(results: dict[str, Any]) -> list[str]:
        if name == "bad":
            raise ValueError(name)
        return sorted(results)

    body.__name__ = name
    return body


def _undo(result: Any) -> None: ...


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, list[str]], dict[str, int]]:
    names = [f"n{number}" for number in range(draw(st.integers(1, 7)))]
    if draw(st.booleans()):
        names[draw(st.integers(0, len(names) - 1))] = "bad"
    edges = {name: [each for each in names[:place] if draw(st.booleans())] for place, name in enumerate(names)}
    limits = {limit: draw(st.integers(1, 3)) for limit in ("max_parallel", "max_per_dependency") if draw(st.booleans())}
    return edges, limits


def declared(edges: dict[str, list[str]], **limits: Any) -> Any:
    return graph("work", {step(simple(name), compensate=_undo): needs for name, needs in edges.items()}, **limits)


@settings(max_examples=40)
@given(graphs(), st.integers(0, 100))
def test_any_graph_replays_alike_from_every_point_of_its_history(drawn, seed):
    """S4-1 S4-17 G3 In whatever order its nodes end; each gets what it depends on, and all of that once."""
    edges, limits = drawn
    work = declared(edges, **limits)
    recording = live(work, None, seed=seed)
    assert recording.outcome is not None
    if "bad" not in edges:
        assert recording.result == {name: sorted(needs) for name, needs in edges.items()}
    assert_replays(recording)


def test_a_cancelled_graph_replays_alike_too():
    """S4-1 B7"""
    work = declared({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]})
    assert_deterministic(work, None, messages=["cancel"], seeds=range(10))
    assert_deterministic(work, None, messages=["cancel and undo"], seeds=range(10))


@settings(max_examples=30)
@given(graphs(), graphs(), st.integers(0, 100))
def test_a_graph_goes_on_from_any_point_of_another_with_other_limits(drawn, other, seed):
    """B11 S4-19 Limits and nodes still to come may change as they like."""
    edges, limits = drawn
    edges = {name.replace("bad", "good"): [each.replace("bad", "good") for each in edges[name]] for name in edges}
    recording = live(declared(edges, **limits), None, seed=seed)
    new = declared({**edges, "more": list(edges), "other": []}, **other[1])
    for stored in recording.stored[:-1]:
        turn, rows = finished(new, stored, None)
        assert turn.outcome is not None
        assert turn.outcome.ending is Ending.COMPLETED, turn.outcome
        assert rows[: len(stored)] == stored
