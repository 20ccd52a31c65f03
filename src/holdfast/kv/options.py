"""Options for driving a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from holdfast.clock import Clock
from holdfast.definitions import Activity
from holdfast.limits import Limits


@dataclass(frozen=True, slots=True)
class DriveOptions:
    """What a run that is driven is given, checked."""

    clock: Clock
    input: bytes
    limits: Limits
    errors: Mapping[str, type[BaseException]]
    activities: Mapping[str, Activity[Any, Any]]
    context: Callable[[], Mapping[str, Any]] | None
    lifespan: timedelta | None
    patience: int
    """For how many microseconds a timer is waited for in memory."""
    grace: int
    """How many microseconds a run has to stop that was asked to."""
    max_steps: int
    max_threads: int
