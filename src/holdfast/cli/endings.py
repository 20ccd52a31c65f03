"""The exit code of a command that raised an error."""

from __future__ import annotations

import asyncio

import click

from holdfast.errors import (
    BadInput,
    CannotMove,
    CannotOpen,
    HoldfastError,
    MissingExtra,
    NoSuchLetter,
    NoSuchRun,
    NoSuchSchedule,
    RunError,
    RunTerminal,
    StoreUnreachable,
    UnknownLimit,
)

NOTHING_CHANGED, IN_PART = 6, 7
_CODES: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
    ((NoSuchRun, NoSuchLetter, NoSuchSchedule), 3),
    ((RunTerminal,), NOTHING_CHANGED),
    ((CannotMove,), 2),
    ((CannotOpen, StoreUnreachable), 4),
    ((BadInput, RunError, UnknownLimit, MissingExtra), 2),
)


def ending_of(error: BaseException) -> tuple[int, str]:
    """Return the code for an error, and what is said of it.

    Raises:
        BaseException: the error itself, if no command may end with it.
    """
    if isinstance(error, click.Abort | KeyboardInterrupt | asyncio.CancelledError):
        return 130, "interrupted; nothing was changed"
    if isinstance(error, HoldfastError):
        return next((code for classes, code in _CODES if isinstance(error, classes)), 1), str(error)
    if isinstance(error, OSError):
        return 1, str(error)
    if isinstance(error, Exception):
        return 1, f"this is a defect of holdfast: {type(error).__name__}: {error}"
    raise error
