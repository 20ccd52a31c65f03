"""What is refused when a sequence or a graph is declared: on the line that has the mistake, with the way out."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Retry, activity, workflow
from holdfast.declarative import graph, parallel, sequence, step
from holdfast.definitions import Registry, source_line
from holdfast.errors import DefinitionError


def a(state: Any) -> None: ...


def b(state: Any) -> None: ...


async def undo(state: Any) -> None: ...


def nothing() -> None: ...


def two(state: Any, more: int) -> None: ...


@activity
async def upload(state: Any) -> None: ...


@workflow
async def flow(ctx: Context) -> None: ...


def refused(message: str) -> Any:
    return pytest.raises(DefinitionError, match=message)


# Sequences.


@pytest.mark.parametrize("items", [[a, b, a], [a, parallel([b, a])], [parallel([a, a])], [a, step(b, name="a")]])
def test_two_activities_of_one_name_are_refused_with_both_places(items):
    """B11 Whether the name is that of the function or was given."""
    with refused(
        r"'work' has two activities named 'a': number 1 \(.*test_declarations.py:\d+\) and number \d \(.*py:\d+\)"
    ):
        sequence("work", items)


def test_the_same_function_may_serve_twice_under_two_names():
    """B11"""
    work = sequence("work", [a, step(a, name="again"), parallel([upload, step(upload, name="upload again")])])
    assert work.activities == ("a", "again", "upload", "upload again")


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "sequence 'work' has no activities"),
        (a, r"sequence 'work' takes a list of activities, not <function a"),
        ("ab", "sequence 'work' takes a list of activities, not 'ab'"),
        ([a, 7], "a step needs a function or an activity, not 7"),
        ([flow], "'flow' is a workflow"),
        ([a, [b]], "a step needs a function or an activity, not "),
        ([parallel([parallel([a])])], "a step needs a function or an activity, not Parallel"),
        ([nothing], r"'nothing'\(\) -> 'None' \(.*py:\d+\) must take one argument: the state"),
        ([two], r"'two'\(.*\) must take one argument: the state"),
        ([step(a, compensate=undo), step(two)], "'two'.* must take one argument: the state"),
    ],
)
def test_what_is_no_list_of_activities_is_refused(items, message):
    """S0-2 S0-5"""
    with refused(message):
        sequence("work", items)


def test_a_called_function_is_refused():
    """S0-5 A coroutine is no function."""
    coroutine = undo({})
    with refused("a step needs a function: write undo, without calling it"):
        sequence("work", [coroutine])
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


@pytest.mark.parametrize("name", ["", "a/b", "x" * 201, 7])
def test_names_that_a_location_cannot_have_are_refused(name):
    """B11"""
    with refused("workflow name"):
        sequence(name, [a])
    with refused("activity name|name"):
        step(a, name=name or "a#b")


def test_options_are_checked_where_they_are_written():
    """S0-22 Also those of step(...), for plain functions and activities."""
    for function in (a, upload):
        with refused(r"retries.*the options are name, retry.*test_declarations.py:\d+"):
            step(function, retries=3)
        with refused("timeout of activity .* must be a timedelta"):
            step(function, timeout=25)
        with refused("'two'.*must take one argument: what it undoes"):
            step(function, compensate=two)
        with refused("compensate needs a function or an activity, not 'undo'"):
            step(function, compensate="undo")
    with refused("compensate needs a function or an activity, and 'flow' is a workflow"):
        step(a, compensate=flow)
    with refused(r"step\(\) needs a function or an activity, not "):
        step(step(a))
    with refused("timeout of activity 'a' must be a timedelta"):
        sequence("work", [a], timeout=25)
    with refused("retry of activity 'a' must be a Retry"):
        sequence("work", [a], retry=3)


def test_a_group_needs_members():
    """S0-49"""
    with refused(r"parallel\(\[\]\) runs nothing"):
        parallel([])
    with refused(r"parallel\(\) takes a list of activities, not <function a"):
        parallel(a)


@pytest.mark.parametrize("hook", ["on_complete", "on_failed", "on_cancelled"])
def test_callbacks_are_functions(hook):
    """S0-2"""
    with refused(f"{hook} of sequence 'work' must be a function, not 'print'"):
        sequence("work", [a], **{hook: "print"})
    assert getattr(sequence("work", [a], **{hook: print}).hooks, hook) is print
    assert sequence("work", [a]).hooks is None
    with refused(f"{hook} of graph 'work' must be a function, not 'print'"):
        graph("work", {nothing: []}, **{hook: "print"})
    assert getattr(graph("work", {nothing: []}, **{hook: print}).hooks, hook) is print
    with refused(f"{hook} of workflow 'flow' must be a function, not 'print'"):
        workflow(name="flow", **{hook: "print"})(code)
    assert getattr(workflow(name="flow", **{hook: print})(code).hooks, hook) is print
    assert workflow(code).hooks is None


async def code(ctx: Context) -> None:
    pass


def test_a_declared_workflow_is_found_where_it_was_declared():
    """S0-13 B11 Two of one name and version are refused with the lines of both declarations."""
    line = inspect.currentframe().f_lineno + 1
    first = sequence("work", [a])
    second = graph("work", {nothing: []})
    assert source_line(first).endswith(f"test_declarations.py:{line}")
    with refused(rf"two workflows are named 'work'.*:{line} and .*:{line + 1}; rename one, or give it another version"):
        Registry([first, second])
    Registry([first, graph("work", {nothing: []}, version="2")])


def test_another_list_is_another_definition():
    """S0-2 B20 So that a run that the old one blocked is tried again with the new one."""
    prints = {
        sequence("work", items).fingerprint
        for items in ([a], [a, b], [b, a], [parallel([a, b])], [a, step(b, compensate=undo)], [step(a, name="c")])
    }
    assert len(prints) == 6
    assert sequence("work", [a, b]).fingerprint == sequence("work", [a, b]).fingerprint
    shapes = [{"fetch": []}, {"fetch": [], "build": []}, {"fetch": [], "build": ["fetch"]}]
    assert len({_graph(shape).fingerprint for shape in shapes}) == 3


# Graphs.


def make(name: str, *parameters: str) -> Any:
    """Return a function with these parameters."""
    space: dict[str, Any] = {}
    exec(f"def {name}({', '.join(parameters)}): ...", space)
    return space[name]


def _graph(nodes: dict[str, list[str]], **options: Any) -> Any:
    return graph("work", {make(name): needs for name, needs in nodes.items()}, **options)


@pytest.mark.parametrize(
    ("nodes", "cycle"),
    [
        ({"x": ["x"]}, "x -> x"),
        ({"x": ["y"], "y": ["x"]}, "(x -> y -> x|y -> x -> y)"),
        ({"a": [], "x": ["a", "z"], "y": ["x"], "z": ["y"]}, "(x -> y -> z -> x|y -> z -> x -> y|z -> x -> y -> z)"),
    ],
)
def test_a_cycle_is_refused_by_its_names(nodes, cycle):
    """S4-18 S0-49 Each leads to the next."""
    with refused(f"graph 'work' has a cycle: {cycle}$"):
        _graph(nodes)


def test_unknown_dependencies_are_refused():
    """S4-17 Names, functions, and what is neither."""
    for wrong in ("fetsh", a, upload, 7, [1]):
        with refused(r"graph 'work': 'build' depends on .*, but it is no node of the graph"):
            graph("work", {make("fetch"): [], make("build"): [wrong]})
    fetch = make("fetch")
    again = {step(fetch): [], step(fetch, name="again"): [], make("build"): [fetch]}
    with refused("'build' depends on <function fetch.*>, but two nodes run it: say which by its name"):
        graph("work", again)
    work = graph("work", {step(fetch): [], make("build", "fetch"): [fetch]})
    assert work.dependencies == {"fetch": (), "build": ("fetch",)}


def test_two_nodes_of_one_name_are_refused():
    """S4-17 B11"""
    with refused(r"'work' has two activities named 'fetch': number 1 \(.*\) and number 2 \(.*\)"):
        graph("work", {make("fetch"): [], make("fetch"): []})


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({}, "graph 'work' has no nodes"),
        ([a], "graph 'work' takes a mapping of nodes to lists of their dependencies"),
        ({"fetch": []}, "a step needs a function or an activity, not 'fetch'"),
        ({flow: []}, "'flow' is a workflow"),
        ({nothing: "nothing"}, "the dependencies of 'nothing' are a list, not 'nothing'"),
        ({nothing: 7}, "the dependencies of 'nothing' are a list, not 7"),
        ({make("input"): []}, "'input' is a parameter that every node may have"),
        ({make("results"): []}, "'results' is a parameter that every node may have"),
    ],
)
def test_what_is_no_graph_is_refused(nodes, message):
    """S4-17"""
    with refused(message):
        graph("work", nodes)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (["fetsh"], "nothing is given to its parameter 'fetsh'; it may be one of: fetch, input, results"),
        (["fetch", "more=1"], "nothing is given to its parameter 'more'"),
        (["other"], "nothing is given to its parameter 'other'"),  # a node, but not one it depends on
        (["*fetch"], r"goes by name, which \*fetch does not take; take `results`"),
        (["**fetch"], r"goes by name, which \*\*fetch does not take"),
        (["fetch", "/"], "goes by name, which fetch does not take"),
    ],
)
def test_a_parameter_that_nothing_is_given_to_is_refused(parameters, message):
    """S4-17"""
    with refused(f"graph 'work': 'build' .*{message}"):
        graph("work", {make("fetch"): [], make("other"): [], make("build", *parameters): ["fetch"]})


def test_parameters_that_cannot_be_told_are_refused():
    """S4-17"""
    with refused("'dict' .*its parameters cannot be told; wrap it in a function"):
        graph("work", {dict: []})


@pytest.mark.parametrize("limit", ["max_parallel", "max_per_dependency"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_limits_are_numbers_of_at_least_one(limit, value):
    """S4-19"""
    with refused(f"{limit} of graph 'work' must be a whole number of at least 1, or None, not {value!r}"):
        _graph({"fetch": []}, **{limit: value})


def test_a_dependency_named_twice_counts_once():
    """S4-17"""
    fetch = make("fetch")
    work = graph("work", {fetch: [], make("build"): [fetch, "fetch"]}, timeout=timedelta(seconds=5))
    assert work.dependencies["build"] == ("fetch",)
    assert work.activities == ("fetch", "build")


def test_an_activity_that_says_nothing_gets_what_its_sequence_says():
    """S0-22 B3 25 s and one attempt; what an activity, its step or its options say themselves stays."""
    quick = timedelta(seconds=3)

    @activity(timeout=quick)
    async def short(state: Any) -> None: ...

    @activity(retry=Retry.payment)
    async def often(state: Any) -> None: ...

    listed = sequence(
        "listed",
        [
            a,
            upload,
            short,
            often,
            step(upload, name="stepped", timeout=quick),
            upload.options(name="forever", timeout=None),
        ],
    )
    said = {part.name: (part.activity.settings.timeout, part.activity.settings.retry) for part in listed.parts}
    default = timedelta(seconds=25)
    assert said == {
        "a": (default, Retry.mobile),
        "upload": (default, Retry.mobile),
        "short": (quick, Retry.mobile),
        "often": (default, Retry.payment),
        "stepped": (quick, Retry.mobile),
        "forever": (None, Retry.mobile),
    }
    assert Retry.mobile.max_attempts == 1
    other = sequence("other", [upload], timeout=None, retry=Retry.never)
    assert other.parts[0].activity.settings.timeout is None


def test_what_an_activity_does_not_say_a_graph_says():
    """S4-9 B3"""
    drawn = graph("drawn", {fetch_all: []})
    assert drawn.parts[0].activity.settings.retry == Retry.handbook


@activity
async def fetch_all() -> None: ...
