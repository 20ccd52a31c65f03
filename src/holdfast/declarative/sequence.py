"""Sequences: activities in a list, each of which adds to the state that the next one is called with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import groupby
from typing import Any

from holdfast.context.api import Context
from holdfast.declarative.calls import Calls
from holdfast.declarative.parts import (
    Declared,
    Parallel,
    Part,
    as_part,
    require_list,
    require_one_argument,
    require_unique,
    unknown,
)
from holdfast.definitions import DEFAULT_QUEUE, Workflow, hooks_given
from holdfast.errors import DefinitionError
from holdfast.payloads import codec
from holdfast.policy import Retry


def sequence(
    name: str,
    items: Iterable[Any],
    *,
    on_complete: Callable[[str, Any], object] | None = None,
    on_failed: Callable[[str, Any, Any], object] | None = None,
    on_cancelled: Callable[[str, Any], object] | None = None,
    version: str = "1",
    timeout: timedelta | None = timedelta(seconds=25),
    retry: Retry = Retry.mobile,
    queue: str = DEFAULT_QUEUE,
    step_trail: bool = False,
    input_type: Any = dict[str, Any],
) -> Workflow[..., dict[str, Any]]:
    """Declare a workflow as a list of functions, activities, `step(...)` and `parallel([...])`.

    Its input is a mapping, and the state begins as a copy of it. With an `input_type` (a TypedDict, a dataclass, a
    model) a start whose input does not fit is refused. Each activity is called with the state; a mapping that it
    returns is merged into it (later keys overwrite), None adds nothing, and any other value stays the result of the
    step and is warned about. The result is the last state.

    A run may begin in the middle: `engine.start(photos, state, begin_at="upload")`. When the list changes under a run,
    what it did stays done, and it goes on after the last of it by name; an activity that is under way and no longer
    known is held until a worker knows it.

    `timeout` and `retry` are for what says nothing else: by default it is tried once, for 25 s. What an `@activity` or
    `step()` says itself stays.
    Runs are advanced by engines that serve `queue`. `step_trail` is as for `@workflow`.
    The callbacks, plain or async, get the id of the run, its state and, if it failed, the error, once it is decided how
    it ends: see Hooks.

    Raises:
        DefinitionError: an item is no activity, or two have one name.
    """
    defaults = {"timeout": timeout, "retry": retry}
    listed = require_list(items, f"sequence {name!r} takes a list of activities")
    groups = [
        [as_part(each, defaults) for each in (item.items if isinstance(item, Parallel) else [item])] for item in listed
    ]
    parts = [part for group in groups for part in group]
    if not parts:
        raise DefinitionError(f"sequence {name!r} has no activities")
    require_unique(name, parts)
    for part in parts:
        require_one_argument(part.activity, "the state")
    plan = _Plan(groups)

    async def run(ctx: Context, input: Any, begin_at: str | None = None) -> dict[str, Any]:
        return await _run(ctx, plan, _as_mapping(input), begin_at)

    run.__annotations__["input"] = input_type

    declared = Declared(run, name, version, parts, [[part.name for part in group] for group in groups], queue)
    declared.step_trail = step_trail
    declared.hooks = hooks_given(
        f"sequence {name!r}", on_complete=on_complete, on_failed=on_failed, on_cancelled=on_cancelled
    )
    return declared


def _as_mapping(input: Any) -> dict[str, Any]:
    """Return input of any type as the mapping that JSON makes of it."""
    return dict(input if isinstance(input, Mapping) else codec.decode(codec.encode(input)))


class _Plan:
    """A list of activities, looked at by name."""

    def __init__(self, groups: list[list[Part]]) -> None:
        self._groups = groups
        self._parts = {part.name: part for group in groups for part in group}
        self._places = {name: place for place, name in enumerate(self._parts)}
        self._group_of = {part.name: group for group in groups for part in group}

    def part(self, name: str) -> Part:
        """Return an activity, or the stand-in of one that is not in the list."""
        return self._parts.get(name) or unknown(name)

    def beside(self, name: str, done: Iterable[str]) -> list[Part]:
        """Return what the list has side by side with an activity, after it, and without those that are done."""
        return self._after(self._group_of.get(name, []), self._places.get(name, -1) + 1, set(done))

    def following(self, done: Iterable[str], begin_at: str | None) -> Iterator[list[Part]]:
        """Go through what follows the last of these names that is in the list, and is none of them."""
        places = [self._places[name] for name in done if name in self._places]
        first = places[-1] + 1 if places else self._places.get(begin_at or "", 0)
        names = set(done)
        for group in self._groups:
            if rest := self._after(group, first, names):
                yield rest

    def _after(self, group: Iterable[Part], first: int, done: set[str]) -> list[Part]:
        return [part for part in group if self._places[part.name] >= first and part.name not in done]


async def _run(ctx: Context, plan: _Plan, input: dict[str, Any], begin_at: str | None) -> dict[str, Any]:
    state = dict(input)
    ctx.on_query("state", lambda: state)
    calls = Calls(ctx)
    for group in _groups(calls, plan, begin_at):
        await _run_group(ctx, calls, group, state)
    return state


def _groups(calls: Calls, plan: _Plan, begin_at: str | None) -> Iterator[list[Part]]:
    """Go through what a run calls: what history has, as it has it, then what follows that in the list."""
    done = list(calls.past)
    if begin_at is not None and not done and not plan.part(begin_at).known:
        yield [unknown(begin_at)]
    # Called side by side is what was called when the same facts were known.
    for _, steps in groupby(calls.past.values(), key=lambda step: step.left):
        group = [plan.part(step.name) for step in steps]
        if group[-1].name == done[-1] and not calls.left:
            beside = plan.beside(done[-1], done)
            group += beside
            done += [part.name for part in beside]
        yield group
    yield from plan.following(done, begin_at)


async def _run_group(ctx: Context, calls: Calls, group: list[Part], state: dict[str, Any]) -> None:
    """Run activities side by side and merge what they return into the state, in this order."""
    if len(group) == 1:
        part = group[0]
        state.update(_addition(ctx, part, await calls.call(part, state)))
        calls.compensate(part, state)
        return
    for part in group:
        calls.begin(part, state)
    additions: dict[str, Mapping[str, Any]] = {}
    failed: BaseException | None = None
    while calls.open:
        part, result, error = await calls.next()
        if error is None:
            addition = additions[part.name] = _addition(ctx, part, result)
            calls.compensate(part, {**state, **addition})
        elif failed is None:
            failed = error
        else:
            ctx.log.warning("activity %r failed too: %s: %s", part.name, type(error).__name__, error)
    calls.caught_up()
    for part in group:
        state.update(additions.get(part.name, {}))
    if failed is not None:
        raise failed


def _addition(ctx: Context, part: Part, result: Any) -> Mapping[str, Any]:
    """Return what a result adds to the state."""
    if isinstance(result, Mapping):
        return result
    if result is not None:
        ctx.log.warning(
            "activity %r returned %s, no mapping: that stays the result of the step and adds nothing to the state",
            part.name,
            type(result).__name__,
        )
    return {}
