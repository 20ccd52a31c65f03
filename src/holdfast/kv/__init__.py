"""Runs on any key-value store: one run in its own key space, driven by one process at a time, and woken by an alarm."""

from holdfast.kv.compacting import compact
from holdfast.kv.deliver import deliver, reply_to
from holdfast.kv.drive import drive, drive_due
from holdfast.kv.driver import Driver, check_sizes
from holdfast.kv.drivers.directory import DirectoryDriver
from holdfast.kv.drivers.memory import MemoryDriver
from holdfast.kv.standing import Standing

__all__ = [
    "DirectoryDriver",
    "Driver",
    "MemoryDriver",
    "Standing",
    "check_sizes",
    "compact",
    "deliver",
    "drive",
    "drive_due",
    "reply_to",
]
