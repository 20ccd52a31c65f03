"""What the code at hand says of a run: the answers of its queries, and how the nodes of its graph stand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Context, Retry, activity, workflow
from holdfast.declarative import graph
from holdfast.errors import NoSuchRun
from holdfast.looking import LocalDesk
from holdfast.looking.about import graph as graphs
from holdfast.looking.about.state import StateAnswer
from holdfast.testing import TestEngine


@activity
async def fetch(input: str) -> str:
    return f"<{input}>"


@activity(retry=Retry(max_attempts=5, initial_interval=timedelta(hours=1)))
async def build(fetch: str) -> str:
    raise ConnectionError(fetch)


@activity
async def lint(fetch: str) -> str:
    return fetch


@activity
async def ship(build: str, lint: str) -> None: ...


release = graph("release", {fetch: [], build: [fetch], lint: [fetch], ship: [build, lint]})


@workflow
async def counter(ctx: Context, most: int) -> int:
    total = 0
    ctx.on_query("total", lambda: total)
    ctx.on_query("above", lambda limit: total > limit)
    while total < most:
        total += await ctx.receive("add", int)
    return total


@workflow
async def silent(ctx: Context) -> None:
    await ctx.step(fetch, "x")
    await ctx.receive("go")


@workflow
async def lengthy(ctx: Context, times: int) -> None:
    for _ in range(times):
        await ctx.step(fetch, "x")


WORKFLOWS: list[Any] = [release, counter, silent]


async def test_a_run_answers_its_queries_where_its_code_is_at_hand():
    async with TestEngine(workflows=WORKFLOWS) as engine:
        run = await engine.start(counter, 9, id="run")
        await run.send("add", 4)
        await engine.start(silent, id="silent")
        await engine.settle()
        desk = LocalDesk(engine.store, code=engine.registry)
        answers = {each.name: each for each in (await desk.state("run")).items}
        assert answers["total"] == StateAnswer(name="total", answer=4)
        assert "limit" in answers["above"].error
        await run.send("add", 5)
        assert await run.result() == 9
        assert {each.name: each.answer for each in (await desk.state("run")).items}["total"] == 9
        assert (await desk.state("silent")).said.startswith("its code answers no query")
        assert (await LocalDesk(engine.store).state("run")).said == "no code is at hand for workflow 'counter'"
        with pytest.raises(NoSuchRun):
            await desk.state("none")


async def test_the_nodes_of_a_declared_run_say_how_they_stand():
    async with TestEngine(workflows=WORKFLOWS) as engine:
        await engine.start(release, "v1", id="run")
        await engine.settle()
        view = await LocalDesk(engine.store, code=engine.registry).run_graph("run")
        assert view.declared
        assert {node.name: node.status for node in view.nodes} == {
            "fetch": "completed", "build": "waiting", "lint": "completed", "ship": "pending",
        }  # fmt: skip
        assert (view.done, len(view.nodes)) == (2, 4)
        assert {(edge.before, edge.after) for edge in view.edges} == {
            ("fetch", "build"), ("fetch", "lint"), ("build", "ship"), ("lint", "ship"),
        }  # fmt: skip
        build_node = next(node for node in view.nodes if node.name == "build")
        assert (build_node.path, build_node.attempts) == ("build", 1)
        assert view.mermaid.startswith(release.to_mermaid())
        assert "class n0,n2 completed" in view.mermaid


async def test_the_graph_of_a_coded_run_is_what_it_has_called():
    async with TestEngine(workflows=WORKFLOWS) as engine:
        await engine.start(silent, id="run")
        await engine.settle()
        view = await LocalDesk(engine.store).run_graph("run")
        assert (view.declared, [node.name for node in view.nodes], view.edges) == (False, ["fetch"], [])
        with pytest.raises(NoSuchRun):
            await LocalDesk(engine.store).run_graph("none")


async def test_the_graph_of_a_very_long_coded_run_is_of_its_first_facts(monkeypatch):
    """Which steps followed which takes the square of their number."""
    monkeypatch.setattr(graphs, "MOST_FACTS", 100)
    async with TestEngine(workflows=[lengthy]) as engine:
        await engine.execute(lengthy, 100, id="run")
        view = await LocalDesk(engine.store).run_graph("run")
        assert view.partial
        assert not view.declared
        assert len(view.nodes) == 1


def test_steps_follow_those_that_had_ended_with_none_between_them():
    """The same as comparing each with each and each between them, of a thousand random series."""
    dice = random.Random(7)
    for _ in range(1_000):
        steps = [_called(f"s{n}", dice.randrange(20), dice.randrange(12)) for n in range(dice.randrange(12))]
        assert set(graphs._followed(steps)) == set(_followed_by_comparing(steps))


def _called(name: str, began: int, lasted: int) -> Any:
    instant = datetime(2026, 11, 11, tzinfo=UTC) + timedelta(seconds=began)
    ended = None if lasted > 9 else instant + timedelta(seconds=lasted)
    return SimpleNamespace(name=name, first_started_at=instant, finished_at=ended)


def _followed_by_comparing(steps: list[Any]) -> Iterator[tuple[str, str]]:
    def is_before(one: Any, other: Any) -> bool:
        return one.finished_at is not None and one.finished_at <= other.first_started_at

    for n, step in enumerate(steps):
        over = [(m, each) for m, each in enumerate(steps[:n]) if is_before(each, step)]
        for m, each in over:
            if not any(later > m and is_before(each, between) for later, between in over):
                yield each.name, step.name


async def test_a_graph_of_five_hundred_nodes_is_one_answer():
    def node(n: int) -> Any:
        async def body() -> int:
            return n

        body.__name__ = body.__qualname__ = f"node_{n}"
        return activity(body)

    nodes = [node(n) for n in range(500)]
    wide = graph("wide", {each: nodes[max(n - 3, 0) : n] for n, each in enumerate(nodes)})
    async with TestEngine(workflows=[wide]) as engine:
        await engine.execute(wide, None, id="run")
        view = await LocalDesk(engine.store, code=engine.registry).run_graph("run")
        assert (view.done, len(view.nodes), len(view.edges)) == (500, 500, 3 * 500 - 6)
        assert view.mermaid.count("\n") >= 500
