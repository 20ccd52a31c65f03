"""Rates: in any time of `per` no more begin than allowed, and none waits longer than it must."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.rates import after_begin, turn_of

PER = 1_000


def begins_of(seed: int, rate: int, burst: int | None) -> list[int]:
    """Return when attempts begin that come at random and each wait for their turn."""
    random, now = Random(seed), 5
    kept: list[int] = []
    begun: list[int] = []
    for _ in range(400):
        now = turn_of(kept, now + random.choice([0, 0, 1, 40, 300]), rate, PER, burst)
        kept = after_begin(kept, now, rate, PER, burst)
        begun.append(now)
    return begun


@pytest.mark.parametrize(("rate", "burst"), [(1, None), (3, None), (7, None), (1, 1), (4, 3), (10, 25)])
def test_no_more_begin_in_any_time_of_that_length(rate: int, burst: int | None) -> None:
    """S4-19 Without burst `rate`, with burst `rate + burst - 1`."""
    most = rate if burst is None else rate + burst - 1
    for seed in range(20):
        begun = begins_of(seed, rate, burst)
        assert begun == sorted(begun), seed
        assert all(later - earlier >= PER for earlier, later in zip(begun, begun[most:], strict=False)), seed


def test_as_many_as_allowed_begin_at_once() -> None:
    """S4-19"""
    for rate, burst, most in ((3, None, 3), (10, 4, 4)):
        kept: list[int] = []
        for _ in range(most):
            assert turn_of(kept, 50, rate, PER, burst) == 50
            kept = after_begin(kept, 50, rate, PER, burst)
        assert turn_of(kept, 50, rate, PER, burst) == (1050 if burst is None else 150)


def test_those_ahead_in_line_come_first() -> None:
    """S4-19"""
    assert [turn_of([10, 20], 30, 3, PER, None, ahead) for ahead in range(4)] == [30, 1010, 1020, 1030]


@pytest.mark.parametrize(("before", "after"), [((1, 10), (1000, 10)), ((10, 1000), (10, 3)), ((5, 5), (5, 5))])
def test_a_turn_that_was_told_is_the_same_when_it_comes(before: tuple[int, int], after: tuple[int, int]) -> None:
    """S4-19 Also where the numbers were others when the attempts before it began."""
    kept: list[int] = []
    for _ in range(before[1]):
        kept = after_begin(kept, 50, before[0], PER, before[1])
    turn = turn_of(kept, 50, after[0], PER, after[1])
    assert 50 < turn <= 50 + PER // after[0]
    assert turn_of(kept, turn, after[0], PER, after[1]) == turn
