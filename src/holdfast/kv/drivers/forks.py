"""Forks: a driver belongs to the process that opened it. A forked child does not share its lock, and writes nothing."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """A driver as a forked child sees it."""

    def abandon(self) -> None:
        """Let go of what was inherited, whatever it is to the parent, and refuse further use."""
        ...


class _Process:
    """The drivers that this process has open."""

    def __init__(self) -> None:
        self.installed = False
        self.drivers: weakref.WeakSet[Inherited] = weakref.WeakSet()


_process = _Process()


def keep_to_this_process(driver: Inherited) -> None:
    """Have a driver abandoned in every child that is forked from now on."""
    if not _process.installed:
        _process.installed = True
        os.register_at_fork(after_in_child=_after_fork)
    _process.drivers.add(driver)


def _after_fork() -> None:
    for driver in list(_process.drivers):
        driver.abandon()
    _process.drivers.clear()
