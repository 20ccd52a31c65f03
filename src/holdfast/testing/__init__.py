"""Tools for testing workflows: time that jumps, stand-ins for activities, replay of recorded histories."""

from holdfast.histories.recorded import RecordedRun, Replayed, replay
from holdfast.testing.clock import JumpingClock
from holdfast.testing.engine import NoProgress, TestEngine
from holdfast.testing.exported import exported_run
from holdfast.testing.faults import Faults
from holdfast.testing.replaying import record

__all__ = [
    "Faults",
    "JumpingClock",
    "NoProgress",
    "RecordedRun",
    "Replayed",
    "TestEngine",
    "exported_run",
    "record",
    "replay",
]
