"""What holdfast logs: text of users' errors, names and callbacks cannot forge a line or control a terminal."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from numbers import Number
from typing import Any

from holdfast.texts import printable, printable_lines

OWN = ("holdfast.engine", "holdfast.kv", "holdfast.ops", "holdfast.store", "holdfast.temporal", "holdfast.web")
"""The loggers of holdfast itself."""
OF_USERS = ("holdfast.step", "holdfast.workflow")
"""The loggers that workflows and steps write to: what they say is theirs."""


class Lines(str):
    """Text of several lines that are shown as such, indented."""

    __slots__ = ()


class Harmless(logging.Filter):
    """Writes out, in what a record was given and in its exception, whatever a terminal or a reader might obey."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Make a record harmless; let it pass."""
        given: Any = record.args
        if isinstance(given, Mapping):
            record.args = {name: _harmless(value) for name, value in given.items()}
        elif given:
            record.args = tuple(_harmless(value) for value in given)
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            record.exc_text = printable_lines("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
        return True


def _harmless(value: object) -> object:
    if isinstance(value, Number):
        return value
    try:
        said = str(value)
    except Exception:
        said = f"<unprintable {type(value).__name__}>"
    return printable_lines(said) if isinstance(value, Lines) else printable(said)


def install() -> None:
    """Let all that holdfast itself logs be harmless."""
    for name in OWN:
        logger = logging.getLogger(name)
        if not any(isinstance(each, Harmless) for each in logger.filters):
            logger.addFilter(Harmless())


install()
