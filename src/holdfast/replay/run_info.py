"""What is known about a run from its beginning: its name, its numbers, and the settings of its engine."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.clock import Instant
from holdfast.replay.past import Conclusion


class RunInfo(NamedTuple):
    """What workflow code may know about its own run."""

    id: str
    workflow: str
    generation: int
    seed: int
    key: int
    reopens: int = 0
    """How often the run was let go on after it had ended."""
    deadline: Instant | None = None
    """When the run is cut off."""
    record_arguments: bool = False
    """Whether the arguments of its steps are recorded."""
    step_trail: bool = False
    """Whether each end of a step is put on record, apart from the history."""
    propagate: bool = True
    """Whether the failure of a child that is awaited is raised, unless its call says so itself."""
    looked_at: bool = False
    """Whether it is replayed only to be looked at: then its code is, and not the hooks that may have followed."""
    conclusion: Conclusion | None = None
    """How it ends, once that is decided, while its hook is called."""
