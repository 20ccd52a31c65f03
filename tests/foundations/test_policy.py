"""Retry policies: which errors are tried again, how often and how long after."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput, Critical, HeartbeatTimeout, InvalidDuration, NonRetryable, Rollback, StepTimeout
from holdfast.policy import Retry

ALL_PRESETS = sorted(name for name, value in vars(Retry).items() if isinstance(value, Retry))
draws = st.floats(0, 1, exclude_max=True)


class DeclinedError(Exception):
    pass


class CardDeclinedError(DeclinedError):
    pass


def ms(duration: timedelta) -> float:
    return duration / timedelta(milliseconds=1)


def delays(policy: Retry, draw: float = 0.5) -> list[float]:
    """The waits between the tries of a step that always fails."""
    waits, failures = [], 1
    while policy.allows(ValueError(), failures):
        waits.append(ms(policy.delay(failures, draw)))
        failures += 1
    return waits


def test_the_database_policy_waits_twice_as_long_each_time_and_fails_after_five_tries() -> None:
    """S3-7"""
    assert delays(Retry.database) == [500, 1000, 2000, 4000]


def test_the_delay_depends_on_nothing_but_policy_failures_and_draw() -> None:
    """S3-8 S0-23 (formula) B4 (n-1): the first delay is the initial interval, and asking again changes nothing."""
    for _ in range(2):
        assert [ms(Retry.database.delay(n)) for n in (1, 2, 3)] == [500, 1000, 2000]


def test_the_coefficient_is_raised_to_the_failures_before_and_then_capped() -> None:
    """S0-23 (formula) S3-6"""
    policy = Retry(
        initial_interval=timedelta(seconds=1), coefficient=3, max_interval=timedelta(seconds=20), max_attempts=None
    )
    assert [ms(policy.delay(n)) for n in (1, 2, 3, 4, 5)] == [1000, 3000, 9000, 20_000, 20_000]


def test_the_cap_holds_before_jitter_is_applied() -> None:
    """S3-6 B4 (jitter)"""
    policy = Retry(initial_interval=timedelta(seconds=10), max_interval=timedelta(seconds=1), jitter=0.1)
    assert ms(policy.delay(1, 0.0)) == 900
    assert ms(policy.delay(1, 0.75)) == 1050


def test_jitter_is_symmetric_and_the_middle_draw_leaves_the_delay_alone() -> None:
    """S3-8 B4 (jitter): +-10 %"""
    assert ms(Retry.database.delay(1, 0.0)) == 450
    assert ms(Retry.database.delay(1, 0.5)) == 500
    assert 549 < ms(Retry.database.delay(1, 0.999)) < 550


def test_the_handbook_policy_adds_whole_milliseconds_below_three_hundred_after_the_cap() -> None:
    """S4-9"""
    assert len(delays(Retry.handbook)) == 7
    assert delays(Retry.handbook, 0.0) == [500, 1000, 2000, 4000, 8000, 16_000, 32_000]
    assert ms(Retry.handbook.delay(8, 0.0)) == 60_000
    assert ms(Retry.handbook.delay(8, 0.9999)) == 60_299
    assert {ms(Retry.handbook.delay(1, n / 300 + 1e-9)) for n in range(300)} == {500 + n for n in range(300)}


@given(st.sampled_from(ALL_PRESETS), st.integers(1, 10**12), draws)
def test_a_delay_is_never_negative_never_overflows_and_stays_near_its_cap(
    name: str, failures: int, draw: float
) -> None:
    """S3-8"""
    policy: Retry = getattr(Retry, name)
    cap = policy.max_interval or timedelta(days=365_000)
    assert timedelta(0) <= policy.delay(failures, draw) <= cap * (1 + policy.jitter) + policy.jitter_add


@given(
    st.timedeltas(timedelta(0), timedelta(days=10**6)),
    st.floats(1, 1e300),
    st.floats(0, 1),
    st.integers(1, 10**9),
    draws,
)
def test_any_valid_policy_gives_a_delay(
    initial: timedelta, coefficient: float, jitter: float, failures: int, draw: float
) -> None:
    policy = Retry(initial_interval=initial, coefficient=coefficient, jitter=jitter, max_interval=None)
    assert timedelta(0) <= policy.delay(failures, draw) <= timedelta(days=365_000)


def test_a_whole_number_coefficient_is_as_quick_as_a_float_one() -> None:
    assert Retry(coefficient=2).delay(10**9) == timedelta(seconds=30)


def test_no_initial_interval_means_no_delay() -> None:
    assert Retry(initial_interval=timedelta(0), max_interval=None).delay(10**9) == timedelta(0)


@pytest.mark.parametrize("draw", [-0.1, 1.0, float("nan")])
def test_a_draw_outside_its_range_is_refused(draw: float) -> None:
    with pytest.raises(BadInput, match="draw"):
        Retry().delay(1, draw)


def test_there_is_no_delay_before_the_first_failure() -> None:
    with pytest.raises(BadInput, match="failures"):
        Retry().delay(0)


def test_max_attempts_counts_every_run() -> None:
    """B2"""
    policy = Retry(max_attempts=3)
    assert [policy.allows(ValueError(), failures) for failures in (1, 2, 3, 4)] == [True, True, False, False]


def test_max_retries_is_another_name_for_max_attempts() -> None:
    """B2"""
    assert Retry(max_retries=4) == Retry(max_attempts=4)
    assert dataclasses.replace(Retry(max_attempts=9), max_retries=2).max_attempts == 2
    assert dataclasses.replace(Retry(max_retries=2), jitter=0.5).max_attempts == 2


def test_without_a_limit_a_step_is_tried_for_ever() -> None:
    assert Retry(max_attempts=None).allows(ValueError(), 10**9)


@pytest.mark.parametrize("error", [NonRetryable("no"), Critical("no"), Rollback("no")])
def test_an_error_that_says_so_is_not_retried(error: Exception) -> None:
    """B27"""
    assert not Retry().allows(error, 1)


@pytest.mark.parametrize(
    "entry", ["CardDeclinedError", "DeclinedError", f"{__name__}.CardDeclinedError", CardDeclinedError, DeclinedError]
)
def test_a_listed_class_or_base_class_is_not_retried(entry: str | type[BaseException]) -> None:
    """B27 S3-26 S3-6: by class, simple name or qualified name."""
    policy = Retry(non_retryable=(entry,))
    assert not policy.allows(CardDeclinedError(), 1)
    assert policy.allows(ValueError("CardDeclinedError"), 1)


def test_a_listed_subclass_leaves_its_base_class_retryable() -> None:
    """B27"""
    assert Retry(non_retryable=("CardDeclinedError",)).allows(DeclinedError(), 1)


def test_a_builtin_is_named_without_its_module() -> None:
    """S3-26"""
    assert not Retry(non_retryable=("LookupError",)).allows(KeyError(), 1)


def test_everything_is_retried_when_the_list_is_empty() -> None:
    """S3-26"""
    assert Retry().non_retryable == ()
    assert all(Retry().allows(error, 1) for error in (ValueError(), CardDeclinedError(), StepTimeout(), MemoryError()))


def test_the_predicate_may_refuse() -> None:
    """B27"""
    policy = Retry(retry_if=lambda error: "later" in str(error))
    assert policy.allows(ValueError("try later"), 1)
    assert not policy.allows(ValueError("never"), 1)


def test_the_predicate_cannot_allow_what_the_list_refuses() -> None:
    """B27"""
    assert not Retry(retry_if=lambda error: True).allows(NonRetryable(), 1)
    assert not Retry(retry_if=lambda error: True, non_retryable=(ValueError,)).allows(ValueError(), 1)


def test_a_predicate_that_raises_counts_as_no() -> None:
    assert not Retry(retry_if=lambda error: error.missing).allows(ValueError(), 1)  # type: ignore[attr-defined]


def test_a_timeout_is_retried_unless_the_policy_opts_out() -> None:
    for error in (StepTimeout(), HeartbeatTimeout()):
        assert Retry().allows(error, 1)
        assert not Retry(retry_on_timeout=False).allows(error, 1)
    assert Retry(retry_on_timeout=False).allows(TimeoutError(), 1), "the body's own timeouts are ordinary errors"


def test_a_group_is_retried_only_if_each_member_is() -> None:
    assert Retry().allows(ExceptionGroup("all", [ValueError(), KeyError()]), 1)
    assert not Retry().allows(ExceptionGroup("all", [ValueError(), ExceptionGroup("in", [Critical()])]), 1)


@pytest.mark.parametrize(
    ("name", "tries", "initial", "cap"),
    [
        ("validation", 1, 100, 100),
        ("database", 5, 500, 10_000),
        ("external_service", 10, 1_000, 60_000),
        ("payment", 3, 2_000, 30_000),
        ("background", 20, 5_000, 300_000),
        ("webhook", 5, 1_000, 30_000),
        ("notification", 5, 2_000, 60_000),
        ("storage", 5, 1_000, 30_000),
        ("ai_service", 8, 2_000, 120_000),
        ("state_transition", 5, 100, 5_000),
    ],
)
def test_the_service_presets_are_as_documented(name: str, tries: int, initial: int, cap: int) -> None:
    """S3-4"""
    policy: Retry = getattr(Retry, name)
    assert policy.max_attempts == tries
    assert ms(policy.delay(1)) == initial
    assert ms(policy.delay(1000)) == cap
    assert len(delays(policy)) == tries - 1


@pytest.mark.parametrize(
    ("name", "hopeless"),
    [
        ("validation", ""),
        ("database", "IntegrityError DataError ProgrammingError NotSupportedError"),
        ("external_service", "AuthenticationError PermissionDeniedError NotFoundError"),
        ("payment", "CardDeclinedError InsufficientFundsError FraudDetectedError"),
        ("background", "ConfigurationError"),
        ("webhook", "InvalidSignatureError InvalidURLError"),
        ("notification", "InvalidRecipientError UnsubscribedError"),
        ("storage", "FileNotFoundError PermissionError QuotaExceededError"),
        ("ai_service", "AuthenticationError BadRequestError ContentPolicyError"),
        ("state_transition", "InvalidTransitionError"),
        ("business", ""),
    ],
)
def test_each_service_preset_has_its_own_errors_that_are_not_retried(name: str, hopeless: str) -> None:
    """S3-4 S3-26 By the names of their classes; any other error is retried as far as its attempts go."""
    policy: Retry = getattr(Retry, name)
    assert list(policy.non_retryable) == hopeless.split()
    for error in hopeless.split():
        assert not policy.is_retryable(type(error, (Exception,), {})())
    assert policy.is_retryable(ConnectionError())


def test_a_declined_card_is_not_charged_again_by_the_payment_preset() -> None:
    """S3-4 S3-26"""
    assert not Retry.payment.allows(CardDeclinedError(), 1)


@pytest.mark.parametrize(
    ("policy", "tries", "initial", "cap", "spread"),
    [
        (Retry.mobile, 1, 1_000, None, 0.0),
        (Retry.default, 3, 100, 30_000, 0.0),
        (Retry.event, 3, 100, 300_000, 0.05),
        (Retry.business, 5, 1_000, 60_000, 0.1),
        (Retry.handbook, 8, 500, 60_000, 0.0),
    ],
)
def test_one_policy_type_has_the_defaults_of_all_five_sources(
    policy: Retry, tries: int, initial: int, cap: int | None, spread: float
) -> None:
    """B3 S3-5"""
    assert type(policy) is Retry
    assert policy.max_attempts == tries
    assert policy.initial_interval == timedelta(milliseconds=initial)
    assert policy.max_interval == (None if cap is None else timedelta(milliseconds=cap))
    assert policy.coefficient == 2
    assert policy.jitter == spread
    assert policy.non_retryable == ()


def test_the_bare_policy_is_the_default_one() -> None:
    """B3"""
    assert Retry() == Retry.default


def test_a_preset_is_varied_field_by_field() -> None:
    """S3-5 B3"""
    policy = dataclasses.replace(Retry.business, max_attempts=7, non_retryable=("CardDeclinedError",))
    assert len(delays(policy)) == 6
    assert policy.max_interval == Retry.business.max_interval
    assert Retry.business.max_attempts == 5


def test_never_means_one_run() -> None:
    assert not Retry.never.allows(ValueError(), 1)


@pytest.mark.parametrize("field", ["initial_interval", "max_interval", "jitter_add"])
def test_a_negative_or_bare_number_duration_is_refused_by_name(field: str) -> None:
    for wrong in (timedelta(seconds=-1), 5, "1s"):
        with pytest.raises(InvalidDuration, match=field):
            Retry(**{field: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("max_attempts", 0),
        ("max_attempts", -1),
        ("max_attempts", 2.5),
        ("max_attempts", True),
        ("max_retries", 0),
        ("crash_limit", 0),
        ("coefficient", 0.5),
        ("coefficient", float("nan")),
        ("coefficient", float("inf")),
        ("coefficient", "2"),
        ("jitter", -0.1),
        ("jitter", 1.1),
        ("jitter", float("nan")),
        ("non_retryable", "ValueError"),
        ("non_retryable", ValueError),
        ("non_retryable", (5,)),
        ("non_retryable", (int,)),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_when_it_is_made(field: str, wrong: object) -> None:
    with pytest.raises(BadInput, match=field):
        Retry(**{field: wrong})  # type: ignore[arg-type]


def test_a_policy_cannot_be_changed_and_can_be_a_key() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Retry.payment.max_attempts = 100  # type: ignore[misc]
    assert {Retry(non_retryable=["A"]): 1}[Retry(non_retryable=("A",))] == 1  # type: ignore[arg-type]
