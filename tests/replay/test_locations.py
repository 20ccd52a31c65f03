"""Locations: paths for people, keys that sort by bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.driving import live, paths

from holdfast import Context, workflow
from holdfast.errors import BadInput
from holdfast.replay import entry as entries
from holdfast.replay.location import Names, check_name, inside, iteration_prefix, iterations, name_key, number

BIG = st.integers(min_value=0, max_value=10**12)
SEGMENT = st.one_of(
    st.tuples(st.just("name"), st.integers(0, 1200), st.integers(1, 1200)), st.tuples(st.just("iteration"), BIG)
)
PATH = st.lists(SEGMENT, min_size=1, max_size=5)


def key(path) -> str:
    parts = [name_key("", number(part[1]), part[2]) if part[0] == "name" else f"~{number(part[1])}" for part in path]
    return "/".join(parts)


def order(path) -> list[tuple[int, ...]]:
    """Return what a path should sort by: names by number, then by repeat; iterations by number, after names."""
    return [(0, *part[1:]) if part[0] == "name" else (1, part[1], 0) for part in path]


@given(st.lists(PATH, min_size=2, max_size=30))
def test_siblings_sort_by_bytes_as_their_numbers_do(found):
    """S1-10 S1-33"""
    siblings = {key(path[:1]): order(path[:1]) for path in found}
    assert sorted(siblings, key=str.encode) == sorted(siblings, key=lambda each: siblings[each])


@given(BIG, BIG)
def test_numbers_of_any_length_sort_by_bytes(a, b):
    """S1-10 More than 9, 255 or 10,000 names, repeats or iterations keep their order."""
    assert (number(a).encode() < number(b).encode()) == (a < b)


@given(PATH, PATH)
def test_descendants_are_exactly_the_keys_under_a_key_and_a_slash(parent, child):
    """S1-33 A prefix never catches a sibling: `loop` holds nothing of `loop#2` or `loop2`."""
    descends = len(child) > len(parent) and child[: len(parent)] == parent
    assert inside(key(child), key(parent)) == descends


@given(PATH, st.integers(0, 300), st.integers(0, 300), st.integers(0, 300), PATH)
def test_a_range_of_iterations_holds_exactly_those(loop, first, end, iteration, rest):
    """S1-29 S1-33 Iterations 0-9 without 10-19."""
    low, high = iterations(key(loop), first, end)
    location = iteration_prefix(key(loop), iteration) + key(rest)
    assert (low.encode() <= location.encode() < high.encode()) == (first <= iteration < end)
    assert (low <= location < high) == (first <= iteration < end)


@given(PATH, PATH, st.integers(0, 300))
def test_a_range_of_iterations_holds_nothing_from_outside_the_loop(loop, other, end):
    """S1-29 S1-33"""
    low, high = iterations(key(loop), 0, end)
    if other[: len(loop)] != loop:
        assert not low <= key(other) < high


@given(
    st.lists(st.text(min_size=1, max_size=20).filter(lambda text: _fits(text)), min_size=1, max_size=20, unique=True)
)
def test_paths_read_as_the_names_given(names):
    """S1-10 S1-11 A name is stored once and a location holds its number."""
    known = Names()
    keys = [known.add(name) for name in names]
    again = Names()
    for name in names:
        again.add(name)
    assert [again.key(name) for name in names] == keys
    location = "/".join(keys)
    assert again.path(location) == "/".join(names)
    assert again.path(name_key("", keys[0], 12)) == f"{names[0]}#12"
    assert again.path(iteration_prefix(keys[0], 34) + keys[-1]) == f"{names[0]}/~34/{names[-1]}"


def _fits(text: str) -> bool:
    try:
        check_name(text)
    except BadInput:
        return False
    return True


@pytest.mark.parametrize(
    "name", ["", "a/b", "a#2", "~1", "x@y", "no!", "tab\t", "line\n", "x" * 201, None, 7, b"x", "\ud800"]
)
def test_names_that_would_confuse_locations_are_refused(name):
    with pytest.raises(BadInput, match="name"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "two words", "Grüße", "x" * 200, "a-b.c:d", "loop2", "日本"])
def test_other_names_are_taken(name):
    assert check_name(name) == name


def work(x: int) -> int:
    return x


@workflow
async def documented(ctx: Context) -> None:
    await ctx.step("a", work, 1)
    async for outer in ctx.loop("outer"):
        async for inner in outer.loop("inner"):
            await inner.step("deep", work, 1)
            break
        break

    async def x(ctx: Context) -> None:
        await ctx.step(work, 1)
        await ctx.step(work, 2)

    await ctx.join("parallel", {"x": x})


def test_the_locations_of_steps_loops_and_branches():
    """S1-10 S1-12 B11 The document's examples, and derived names numbered in order of call."""
    recording = live(documented)
    calls = [row for row in recording.rows if row.kind in entries.CALLS]
    readable = paths(recording.rows)
    assert {readable[row.seq]: row.location for row in calls} == {
        "a": "a0",
        "outer": "a1",
        "outer/~0/inner": "a1/~a0/a2",
        "outer/~0/inner/~0/deep": "a1/~a0/a2/~a0/a3",
        "parallel": "a4",
        "parallel/x/work": "a4/a5/a6",
        "parallel/x/work#2": "a4/a5/a6#a2",
    }


def test_inserting_a_step_does_not_move_the_others():
    """S1-33"""

    @workflow
    async def before(ctx: Context) -> None:
        await ctx.step("a", work, 1)
        await ctx.step("b", work, 1)

    @workflow
    async def after(ctx: Context) -> None:
        await ctx.step("a", work, 1)
        await ctx.step("new", work, 1)
        await ctx.step("b", work, 1)

    assert set(live(before).paths()) < set(live(after).paths())


def test_more_than_255_names_and_repeats_keep_their_order_in_a_run():
    """S1-10 S1-11"""

    @workflow
    async def many(ctx: Context) -> None:
        for x in range(300):
            await ctx.step(work, x)
        for x in range(300):
            await ctx.step(f"name {x}", work, x)

    recording = live(many)
    begun = [row.location for row in recording.rows if row.kind == entries.StepBegun.kind]
    assert begun == sorted(begun, key=str.encode)
    assert recording.paths(entries.StepBegun)[299:301] == ["work#300", "name 0"]
    names = [row for row in recording.rows if row.kind == entries.Name.kind]
    assert len(names) == 301
