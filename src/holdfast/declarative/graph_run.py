"""One run of a graph: begin what may be begun, wait for the next end, and so on."""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.context.api import Context
from holdfast.declarative.calls import Calls
from holdfast.declarative.parts import Part, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The nodes of a graph by name, in the order declared."""

    parts: Mapping[str, Part]
    needed: Mapping[str, Sequence[str]]
    """What each depends on."""
    takes: Mapping[str, Sequence[str]]
    """The parameters of each node's function."""
    max_parallel: int | None
    max_per_dependency: int | None


async def run_graph(ctx: Context, plan: Plan, input: Any) -> dict[str, Any]:
    """Run the nodes of a graph and return their results by name.

    Raises:
        Exception: that of the first node that failed, once what was under way with it has ended.
    """
    run = _Run(ctx, plan, input)
    ctx.on_query("state", lambda: run.results)
    failed: BaseException | None = None
    while True:
        run.call_again()
        run.calls.caught_up()
        if failed is None:
            run.call_ready()
        if not run.calls.open and (failed is not None or len(run.results) == len(plan.parts)):
            break
        part, result, error = await run.calls.next()
        if error is None:
            run.completed(part, result)
            continue
        run.over(part)
        if failed is None:
            failed = error
        else:
            ctx.log.warning("node %r failed too: %s: %s", part.name, type(error).__name__, error)
    if failed is not None:
        raise failed
    return {name: run.results[name] for name in plan.parts}


class _Run:
    """What has been called, what has come of it, and what may be called next."""

    def __init__(self, ctx: Context, plan: Plan, input: Any) -> None:
        self.calls = Calls(ctx)
        self.results: dict[str, Any] = {}
        self._plan = plan
        self._input = input
        self._past = deque(self.calls.past.values())
        self._early: list[str] = []
        """Nodes under way that by the present definition should not have been called yet."""
        self._places = {name: place for place, name in enumerate(plan.parts)}
        self._missing = {name: len(needed) for name, needed in plan.needed.items()}
        self._ready = [name for name, missing in self._missing.items() if not missing and name not in self.calls.past]
        self._beside: Counter[str] = Counter()
        """How many are under way of those that depend on a node."""
        self._dependants: dict[str, list[str]] = {name: [] for name in plan.parts}
        for name, needed in plan.needed.items():
            for each in needed:
                self._dependants[each].append(name)

    def call_again(self) -> None:
        """Call what the run had called by now, as its history has it, whatever the definition says today."""
        early, self._early = self._early, []
        while self._past and self._past[0].left >= self.calls.left:
            step = self._past.popleft()
            if step.name not in self._plan.parts:
                self.calls.begin(unknown(step.name))
            elif step.ended:
                self._begin(step.name, {})
            else:
                early.append(step.name)
        for name in early:
            if self._missing[name]:
                self._early.append(name)
            else:
                self._begin(name, self._arguments(name))

    def call_ready(self) -> None:
        """Call the nodes whose dependencies have completed, as far as the limits allow."""
        if not self.calls.left:
            for name in self._within_limits():
                self._begin(name, self._arguments(name))

    def completed(self, part: Part, result: Any) -> None:
        """Take the result of a node."""
        self.over(part)
        if part.known:
            self.results[part.name] = result
            self.calls.compensate(part, result)
            for name in self._dependants[part.name]:
                self._missing[name] -= 1
                if not self._missing[name] and name not in self.calls.past:
                    insort(self._ready, name, key=self._places.__getitem__)

    def over(self, part: Part) -> None:
        """Give up the place of a node that has ended."""
        self._beside.subtract(self._plan.needed.get(part.name, ()))

    def _begin(self, name: str, arguments: dict[str, Any]) -> None:
        self._beside.update(self._plan.needed[name])
        self.calls.begin(self._plan.parts[name], **arguments)

    def _within_limits(self) -> Iterator[str]:
        most, per_node = self._plan.max_parallel, self._plan.max_per_dependency
        waiting, self._ready = self._ready, []
        for place, name in enumerate(waiting):
            if most is not None and len(self.calls.open) >= most:
                self._ready += waiting[place:]
                return
            if per_node is not None and any(self._beside[each] >= per_node for each in self._plan.needed[name]):
                self._ready.append(name)
            else:
                yield name

    def _arguments(self, name: str) -> dict[str, Any]:
        results = {each: self.results[each] for each in self._plan.needed[name]}
        given = {**results, "input": self._input, "results": results}
        return {parameter: given[parameter] for parameter in self._plan.takes[name]}
