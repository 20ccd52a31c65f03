"""Conditions: when an activity may run. Each is a function of the StepContext, for `run_when=`.

Your own condition is any such function that returns True, False (call it again in half a minute) or
`NotReady(reason, retry_in)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from holdfast.clock import micros
from holdfast.definitions import NotReady, function_name
from holdfast.errors import BadInput

__all__ = ["Condition", "after_delay", "all", "always", "any", "not_", "when_connected", "when_disconnected"]

Condition = Callable[[Any], bool | NotReady]


def always(step: Any) -> bool:
    """Run whenever it is its turn."""
    return True


def when_connected(step: Any) -> bool | NotReady:
    """Run while `Engine(context=...)` says `is_connected: True`."""
    return step.is_connected is True or NotReady("not connected")


def when_disconnected(step: Any) -> bool | NotReady:
    """Run while `Engine(context=...)` says anything but `is_connected: True`."""
    return step.is_connected is not True or NotReady("connected")


def after_delay(delay: timedelta) -> Condition:
    """Run once so much time has passed since the step was called.

    Raises:
        BadInput: a negative delay, or none at all.
    """
    micros(delay, "delay of after_delay")

    def after(step: Any) -> bool | NotReady:
        left: timedelta = step.pending_since + delay - step.now
        return left <= timedelta(0) or NotReady(f"waits {delay}", left)

    return _named(after, f"after_delay({delay})")


def all(*conditions: Condition) -> Condition:
    """Run when each of the conditions says yes; otherwise the first that does not says why, and when to ask again.

    Raises:
        BadInput: there is none, or one is not a plain function.
    """
    _require(conditions, "all")

    def every(step: Any) -> bool | NotReady:
        for condition in conditions:
            answer = _asked(condition, step)
            if isinstance(answer, NotReady):
                return answer
        return True

    return _named(every, f"all({_names(conditions)})")


def any(*conditions: Condition) -> Condition:
    """Run when one of the conditions says yes; otherwise the one to be asked again first says why, and when.

    Raises:
        BadInput: there is none, or one is not a plain function.
    """
    _require(conditions, "any")

    def one(step: Any) -> bool | NotReady:
        refusals: list[NotReady] = []
        for condition in conditions:
            answer = _asked(condition, step)
            if not isinstance(answer, NotReady):
                return True
            refusals.append(answer)
        return min(refusals, key=lambda refusal: refusal.retry_in)

    return _named(one, f"any({_names(conditions)})")


def not_(condition: Condition) -> Condition:
    """Run when the condition says no.

    Raises:
        BadInput: it is not a plain function.
    """
    _require((condition,), "not_")
    name = f"not_({_names((condition,))})"

    def other(step: Any) -> bool | NotReady:
        return not condition(step) or NotReady(name)

    return _named(other, name)


def _asked(condition: Condition, step: Any) -> bool | NotReady:
    """Return True, or why not: by its name if the condition does not say."""
    answer = condition(step)
    if answer:
        return True
    if isinstance(answer, NotReady):
        return answer if answer.reason else NotReady(f"{_names((condition,))} says no", answer.retry_in)
    return NotReady(f"{_names((condition,))} says no")


def _require(conditions: tuple[Condition, ...], what: str) -> None:
    if not conditions:
        raise BadInput(f"conditions.{what}() needs at least one condition")
    for condition in conditions:
        given: object = condition
        if not callable(given) or inspect.iscoroutinefunction(given):
            raise BadInput(f"conditions.{what}(): a condition is a plain function of the step's context, not {given!r}")


def _names(conditions: tuple[Condition, ...]) -> str:
    return ", ".join(map(function_name, conditions))


def _named(condition: Condition, name: str) -> Condition:
    condition.__name__ = name
    return condition
