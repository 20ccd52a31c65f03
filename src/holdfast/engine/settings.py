"""The settings of an engine; every field has a default that suits most programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Self

from holdfast.clock import micros
from holdfast.errors import BadInput
from holdfast.policy import Retry


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of an engine."""

    max_resident: int = 10_000
    """Parked runs kept in memory; beyond that the longest idle are dropped and replayed later. 0 keeps none."""
    max_steps: int = 1_000
    """Step bodies running at once."""
    max_threads: int = 32
    """Threads for sync bodies."""
    lease: timedelta = timedelta(seconds=30)
    """After how long a hung worker loses its runs."""
    cancel_grace: timedelta = timedelta(seconds=60)
    """How long a cancelled run may clean up."""
    stop_grace: timedelta = timedelta(seconds=10)
    """How long a graceful stop waits for step bodies before it hands them back."""
    call_patience: timedelta = timedelta(seconds=10)
    """How long a call of a caller (start, send, runs, ...) may wait for the store; `result()` waits for its run."""
    propagate_child_failures: bool = True
    """Whether `await ctx.child(...)` raises what failed the child, where its call does not say, or returns it."""
    timer_resolution: timedelta = timedelta(0)
    """How exactly timers, retries and deadlines of runs in memory are kept: those of one such span fire together."""
    storage_retry: Retry | None = None
    """How often and how patiently a commit is tried again that the store was too busy for; None: for at least 30 s."""
    record_arguments: bool = False
    """Whether the arguments of all steps are recorded, to be looked at: `run.steps()`."""
    step_trail: bool = False
    """Whether each end of a step is put on record for ever, in the trail of its run: `engine.audit.evidence`."""
    development: bool = True
    """Whether blocking I/O in workflow code is refused by an audit hook."""

    @classmethod
    def given(cls, options: Mapping[str, Any]) -> Self:
        """Return the settings that were given by name.

        Raises:
            BadInput: there is no setting of a name, or its value does not fit.
        """
        try:
            return cls(**options)
        except TypeError as error:
            known = ", ".join(field.name for field in fields(cls))
            raise BadInput(f"Engine: {str(error).partition(' ')[2]}; the settings are {known}") from None

    def __post_init__(self) -> None:
        for field, least in (("max_resident", 0), ("max_steps", 1), ("max_threads", 1)):
            value: object = getattr(self, field)
            if not isinstance(value, int) or value < least:
                raise BadInput(f"{field} must be a whole number of at least {least}, not {value!r}")
        for field in ("lease", "cancel_grace", "stop_grace", "call_patience", "timer_resolution"):
            micros(getattr(self, field), field)
        if self.storage_retry is not None and not isinstance(self.storage_retry, Retry):
            raise BadInput(f"storage_retry must be a Retry or None, not {self.storage_retry!r}")
        for field in ("lease", "call_patience"):
            if not getattr(self, field):
                raise BadInput(f"{field} must be longer than zero")
