"""Flow: whose turn it is among the runs of a workflow, how many go on at once, and how often one begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypedDict

from holdfast.clock import micros
from holdfast.contract.turns import Lane
from holdfast.definitions.functions import is_async
from holdfast.errors import BadInput, DefinitionError
from holdfast.payloads.errors import error_to_data
from holdfast.texts import check_text, shown

OnFull = Literal["wait", "reject", "cancel_oldest"]

_ON_FULL = ("wait", "reject", "cancel_oldest")
_MOST_AT_ONCE = 100_000
_MOST_RATE = 1000


class FlowOptions(TypedDict, total=False):
    """What `@workflow` takes of it; see there."""

    key: Callable[..., str] | None
    at_once: int | None
    rate: int | None
    per: timedelta | None
    on_full: OnFull
    debounce: timedelta | None
    debounce_at_most: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What holds the runs of a workflow back: the rules of its lanes, and what makes the key of a lane."""

    key: Callable[..., str] | None
    rules: Lane

    def lane(self, workflow: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Lane:
        """Return the lane of a run with this input.

        Raises:
            BadInput: the key function raised, or what it returned is no text that can be a key.
        """
        if self.key is None:
            return self.rules
        where = f"the key of workflow {workflow!r}"
        try:
            key: object = self.key(*args, **kwargs)
        except Exception as error:
            told = error_to_data(error)
            raise BadInput(f"{where} cannot be made of this input: {told.type}: {told.message}") from error
        check_text(key, where)
        assert isinstance(key, str)
        rules = self.rules
        return Lane(
            key=key,
            at_once=rules.at_once,
            rate=rules.rate,
            per=rules.per,
            on_full=rules.on_full,
            window=rules.window,
            longest=rules.longest,
        )


def flow_given(
    whose: str,
    *,
    key: Any = None,
    at_once: Any = None,
    rate: Any = None,
    per: Any = None,
    on_full: Any = "wait",
    debounce: Any = None,
    debounce_at_most: Any = None,
) -> Flow | None:
    """Return the flow of a declaration, None if it says nothing of it.

    Raises:
        DefinitionError: naming the option that does not fit.
    """
    if key is not None and (not callable(key) or is_async(key)):
        raise DefinitionError(f"key of {whose} must be a plain function of its input that returns text, not {key!r}")
    _check_number(at_once, f"at_once of {whose}", _MOST_AT_ONCE)
    _check_number(rate, f"rate of {whose}", _MOST_RATE)
    if on_full not in _ON_FULL:
        raise DefinitionError(f"on_full of {whose} is 'wait', 'reject' or 'cancel_oldest', not {shown(on_full)}")
    if (rate is None) != (per is None):
        raise DefinitionError(f"rate and per of {whose} go together: at most `rate` runs begin in any `per`")
    if debounce_at_most is not None and debounce is None:
        raise DefinitionError(f"debounce_at_most of {whose} needs a debounce")
    if on_full == "cancel_oldest" and at_once is None:
        raise DefinitionError(f"on_full='cancel_oldest' of {whose} needs at_once: how many may go on")
    if on_full == "reject" and at_once is None and rate is None:
        raise DefinitionError(f"on_full='reject' of {whose} needs at_once or rate: there is nothing to be full")
    if debounce is not None and on_full != "wait":
        raise DefinitionError(f"debounce of {whose} ends what waits: it goes with on_full='wait' only")
    window = _duration(debounce, f"debounce of {whose}")
    longest = _duration(debounce_at_most, f"debounce_at_most of {whose}")
    if longest and longest < window:
        raise DefinitionError(f"debounce_at_most of {whose} is shorter than its debounce")
    if key is None and at_once is None and rate is None and not window:
        return None
    rules = Lane(
        at_once=at_once,
        rate=rate,
        per=_duration(per, f"per of {whose}"),
        on_full=on_full,
        window=window,
        longest=longest,
    )
    return Flow(key=key, rules=rules)


def _check_number(value: object, what: str, most: int) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most):
        raise DefinitionError(f"{what} must be a whole number from 1 to {most:,}, not {shown(value)}")


def _duration(value: Any, what: str) -> int:
    """Return a duration in microseconds, 0 if there is none."""
    if value is None:
        return 0
    try:
        length = micros(value, what)
    except BadInput as error:
        raise DefinitionError(str(error)) from error
    if not length:
        raise DefinitionError(f"{what} must be longer than zero")
    return length
