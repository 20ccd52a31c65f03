"""No exception object can stop an attempt from ending: those that raise, lie or grow when they are looked at."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.hostile_errors import MAKERS, raise_hostile

from holdfast import Retry
from holdfast.errors import RetryAfter
from holdfast.payloads.codec import ErrorData, decode, encode, error_from_data, error_to_data
from holdfast.payloads.errors import error_repr, error_text, loggable, tamed
from holdfast.policy import asked_delay
from holdfast.replay.failures import located, origins

hostile = pytest.mark.parametrize("name", MAKERS)


def raised(name: str) -> BaseException:
    try:
        raise_hostile(name)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@hostile
def test_any_exception_is_stored_and_raised_again(name: str) -> None:
    """S1-22 G3 Whatever it does when it is looked at, its data is made, fits into a payload and comes back."""
    data = error_to_data(raised(name))
    again = decode(encode({"record": [data]}), dict[str, list[ErrorData]])["record"][0]
    assert again == data
    assert data.type
    assert "raise_hostile" in data.traceback or name in ("huge", "deep") or "crowd" in name
    known = {data.type: type(MAKERS[name]())} if isinstance(MAKERS[name], type) else {}
    for registered in ({}, known):
        back = error_from_data(data, registered)
        assert isinstance(back, BaseException)
        back.add_note("it takes notes")


@hostile
def test_any_exception_can_be_judged(name: str) -> None:
    """S1-22 The retry policy, the way back to the call and the log get an answer, and never an exception."""
    error = raised(name)
    located(error, "a0", 2)
    assert set(origins(error)) <= {"a0"}
    safe = tamed(error)
    assert isinstance(Retry(non_retryable=("Nothing", KeyError)).is_retryable(safe), bool)
    assert Retry(retry_if=lambda error: bool(str(error))).is_retryable(safe) in (True, False)
    assert asked_delay(safe) is None
    assert error_text(error)
    assert error_repr(error)
    assert isinstance(loggable(error), BaseException)


def test_an_ordinary_exception_is_left_as_it_is() -> None:
    for error in (ValueError("x"), ExceptionGroup("g", [KeyError("k")]), RetryAfter(timedelta(seconds=3))):
        assert tamed(error) is error
        assert loggable(error) is error
        assert error_text(error) == f"{type(error).__name__}: {error}"
        assert error_repr(error) == repr(error) or isinstance(error, ExceptionGroup)
    assert asked_delay(RetryAfter(timedelta(seconds=3))) == 3_000_000


def test_a_predicate_that_raises_anything_counts_as_no() -> None:
    def exits(error: BaseException) -> bool:
        raise SystemExit(1)

    assert not Retry(retry_if=exits).is_retryable(ValueError("x"))


def test_each_member_of_a_group_is_asked_about_once() -> None:
    asked: list[str] = []

    def note(error: BaseException) -> bool:
        asked.append(str(error).partition(" (")[0])
        return True

    leaf = ValueError("leaf")
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [leaf] * 5)] * 5)
    assert Retry(retry_if=note).is_retryable(group)
    assert sorted(asked) == ["inner", "leaf", "outer"]
