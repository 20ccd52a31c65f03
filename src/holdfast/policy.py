"""Retry policies, and when the next attempt comes: pure arithmetic over an error, a count and a drawn number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass
from datetime import timedelta
from math import inf, isfinite
from typing import ClassVar

from holdfast.clock import micros
from holdfast.errors import BadInput, NonRetryable, RetryAfter, StepTimeout
from holdfast.payloads.codec import ErrorData, qualified_name
from holdfast.payloads.errors import whole_of

# Where an uncapped backoff stops growing, so that the next try stays within the calendar.
_LONGEST_DELAY = timedelta(days=365_000)
_MILLISECOND = timedelta(milliseconds=1)


_DEFAULT_CAP = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When a failed step is tried again, and how long after.

    Presets are class attributes (`Retry.payment`); vary one with `dataclasses.replace(Retry.payment, max_attempts=5)`.

    Attributes:
        max_attempts: how often the body may throw or time out, the first run included; None for no limit.
        initial_interval: the delay after the first failure.
        coefficient: what each further failure multiplies the delay by.
        max_interval: where the delay stops growing (30 s, or the first delay if that is longer); None for no cap.
        jitter: the fraction by which a delay is spread to both sides, after the cap.
        jitter_add: whole milliseconds from zero to below this are added, after the cap.
        non_retryable: exceptions that fail at once: classes, or simple or qualified names, of the error or a base.
        retry_if: asked last; False fails at once. A predicate that raises counts as False.
        retry_on_timeout: whether a timed-out attempt is tried again.
        crash_limit: how often an attempt may be lost with its process.
        max_retries: another name for `max_attempts`, which it overrides; it too counts the first run.
    """

    max_attempts: int | None = 3
    initial_interval: timedelta = timedelta(milliseconds=100)
    coefficient: float = 2.0
    max_interval: timedelta | None = _DEFAULT_CAP
    jitter: float = 0.0
    jitter_add: timedelta = timedelta(0)
    non_retryable: tuple[str | type[BaseException], ...] = ()
    retry_if: Callable[[BaseException], bool] | None = None
    retry_on_timeout: bool = True
    crash_limit: int = 3
    max_retries: InitVar[int | None] = None

    default: ClassVar[Retry]
    never: ClassVar[Retry]
    mobile: ClassVar[Retry]
    event: ClassVar[Retry]
    business: ClassVar[Retry]
    handbook: ClassVar[Retry]
    validation: ClassVar[Retry]
    database: ClassVar[Retry]
    external_service: ClassVar[Retry]
    payment: ClassVar[Retry]
    background: ClassVar[Retry]
    webhook: ClassVar[Retry]
    notification: ClassVar[Retry]
    storage: ClassVar[Retry]
    ai_service: ClassVar[Retry]
    state_transition: ClassVar[Retry]

    def __post_init__(self, max_retries: int | None) -> None:
        if max_retries is not None:
            _require_count(max_retries, "max_retries")
            object.__setattr__(self, "max_attempts", max_retries)
        if self.max_attempts is not None:
            _require_count(self.max_attempts, "max_attempts")
        _require_count(self.crash_limit, "crash_limit")
        micros(self.initial_interval, "initial_interval")
        if self.max_interval is _DEFAULT_CAP and self.initial_interval > _DEFAULT_CAP:
            object.__setattr__(self, "max_interval", self.initial_interval)
        micros(self.jitter_add, "jitter_add")
        if self.max_interval is not None:
            micros(self.max_interval, "max_interval")
        _require_number(self.coefficient, "coefficient", 1, inf)
        _require_number(self.jitter, "jitter", 0, 1)
        object.__setattr__(self, "non_retryable", _checked_errors(self.non_retryable))

    def delay(self, failures: int, draw: float = 0.5) -> timedelta:
        """Return how long to wait after the given number of failures; `draw`, in [0, 1), decides the jitter.

        Raises:
            BadInput: no failure yet, or a draw outside [0, 1).
        """
        _require_count(failures, "failures")
        if not 0 <= draw < 1:
            raise BadInput(f"draw must be at least 0 and below 1, not {draw!r}")
        longest = micros(_LONGEST_DELAY if self.max_interval is None else self.max_interval)
        wait = min(self._backoff(failures), longest) * (1 + self.jitter * (2 * draw - 1))
        added = int(draw * (self.jitter_add / _MILLISECOND))
        return min(timedelta(microseconds=round(wait)), _LONGEST_DELAY) + added * _MILLISECOND

    def allows(self, error: BaseException, failures: int) -> bool:
        """Return whether to try again after this error, the given number of failures so far included."""
        if self.max_attempts is not None and failures >= self.max_attempts:
            return False
        return self.is_retryable(error)

    def is_retryable(self, error: BaseException) -> bool:
        """Return whether an error of this kind is worth another attempt at all.

        A group is worth one if each of its members is.
        """
        return all(map(self._is_retryable, whole_of(error)))

    def refuses_by_name(self, data: ErrorData) -> bool:
        """Return whether an error that arrived as data, its class perhaps unknown here, is not to be tried again."""
        names = {data.type, *data.bases}
        listed = {entry if isinstance(entry, str) else qualified_name(entry) for entry in self.non_retryable}
        return "NonRetryable" in names or bool(names & listed)

    def _is_retryable(self, error: BaseException) -> bool:
        if isinstance(error, NonRetryable) or self._names(error):
            return False
        if isinstance(error, StepTimeout) and not self.retry_on_timeout:
            return False
        if self.retry_if is None:
            return True
        try:
            return bool(self.retry_if(error))
        except KeyboardInterrupt:
            raise
        except BaseException:
            return False

    def _backoff(self, failures: int) -> float:
        try:
            return micros(self.initial_interval) * float(self.coefficient) ** (failures - 1)
        except OverflowError:
            return inf if self.initial_interval else 0.0

    def _names(self, error: BaseException) -> bool:
        if not self.non_retryable:
            return False
        return any(
            base in self.non_retryable
            or base.__name__ in self.non_retryable
            or qualified_name(base) in self.non_retryable
            for base in type(error).__mro__
        )


def asked_delay(error: BaseException) -> int | None:
    """Return for how many microseconds a RetryAfter asks to wait, None for any other error, or if it does not say."""
    if not isinstance(error, RetryAfter):
        return None
    try:
        return micros(error.delay, "delay of RetryAfter")
    except Exception:
        return None


def _require_count(value: object, field: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadInput(f"{field} must be a whole number of at least 1, not {value!r}")


def _require_number(value: object, field: str, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or not low <= value <= high:
        raise BadInput(f"{field} must be a number " + (f"from {low} to {high}" if high < inf else f"of at least {low}"))


def _checked_errors(entries: tuple[str | type[BaseException], ...]) -> tuple[str | type[BaseException], ...]:
    if isinstance(entries, str | type):
        raise BadInput(f"non_retryable must be a tuple: write ({entries!r},)")
    for entry in entries:
        if not (isinstance(entry, str) or _is_exception_class(entry)):
            raise BadInput(f"non_retryable takes exception classes and their names, not {entry!r}")
    return tuple(entries)


def _is_exception_class(entry: object) -> bool:
    return isinstance(entry, type) and issubclass(entry, BaseException)


def _preset(tries: int, initial_ms: int, cap_ms: int, *non_retryable: str) -> Retry:
    return Retry(
        max_attempts=tries,
        initial_interval=initial_ms * _MILLISECOND,
        max_interval=cap_ms * _MILLISECOND,
        jitter=0.1,
        non_retryable=non_retryable,
    )


Retry.default = Retry()
Retry.never = Retry(max_attempts=1)
Retry.mobile = Retry(max_attempts=1, initial_interval=timedelta(seconds=1), max_interval=None)
Retry.event = Retry(max_interval=timedelta(seconds=300), jitter=0.05)
Retry.business = _preset(5, 1_000, 60_000)
Retry.handbook = Retry(
    max_attempts=8,
    initial_interval=timedelta(milliseconds=500),
    max_interval=timedelta(seconds=60),
    jitter_add=timedelta(milliseconds=300),
)
Retry.validation = Retry(max_attempts=1, coefficient=1.0, max_interval=timedelta(milliseconds=100))
Retry.database = _preset(5, 500, 10_000, "IntegrityError", "DataError", "ProgrammingError", "NotSupportedError")
Retry.external_service = _preset(10, 1_000, 60_000, "AuthenticationError", "PermissionDeniedError", "NotFoundError")
Retry.payment = _preset(3, 2_000, 30_000, "CardDeclinedError", "InsufficientFundsError", "FraudDetectedError")
Retry.background = _preset(20, 5_000, 300_000, "ConfigurationError")
Retry.webhook = _preset(5, 1_000, 30_000, "InvalidSignatureError", "InvalidURLError")
Retry.notification = _preset(5, 2_000, 60_000, "InvalidRecipientError", "UnsubscribedError")
Retry.storage = _preset(5, 1_000, 30_000, "FileNotFoundError", "PermissionError", "QuotaExceededError")
Retry.ai_service = _preset(8, 2_000, 120_000, "AuthenticationError", "BadRequestError", "ContentPolicyError")
Retry.state_transition = _preset(5, 100, 5_000, "InvalidTransitionError")
