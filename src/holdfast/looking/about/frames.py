"""The lines of code around where a run waits or an error was raised, if that file is available unchanged."""

from __future__ import annotations

import asyncio
import linecache
import re
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.contract.rows import RunRow
from holdfast.contract.store import Store
from holdfast.errors import BadInput
from holdfast.looking.views import SourceLine
from holdfast.payloads import codec

FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+)(?:, in (?P<name>.*))?$')
"""A line of a traceback that names a place in code."""
_BEFORE, _AFTER = 3, 2
_MOST_FRAMES = 20


class CodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a file."""

    n: int
    text: str


class FrameView(msgspec.Struct, frozen=True, kw_only=True):
    """A place in code: the line at which it stood, with lines before and after it."""

    file: str
    line: int
    name: str
    lines: list[CodeLine]


class FrameList(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run waits, or the places that an error came through, outermost first, as far as files are at hand."""

    run: str
    items: list[FrameView]


async def frame_list(store: Store, row: RunRow, step: str | None) -> FrameList:
    """Return the places that the error of a run, or the last one of a step, came through.

    Only files of modules that this process has loaded are read, and only where the line still says what was recorded.

    Raises:
        BadInput: the run has no such step.
    """
    text = await _traceback(store, row, step)
    items = await asyncio.to_thread(lambda: [*_frames(text)])
    return FrameList(run=row.id, items=items[-_MOST_FRAMES:])


async def waiting_frame(row: RunRow, source: SourceLine | None) -> FrameList:
    """Return the place at which a run waits, none where that is not known."""
    if source is None:
        return FrameList(run=row.id, items=[])
    lines = await asyncio.to_thread(around, source.file, source.line)
    return FrameList(run=row.id, items=[FrameView(file=source.file, line=source.line, name="", lines=lines)])


async def _traceback(store: Store, row: RunRow, step: str | None) -> str:
    if step is None:
        error: Any = codec.decode(row.error) if row.error is not None else {}
        return str(error.get("traceback", ""))
    from holdfast.engine.views.steps import steps_of

    steps = steps_of(row.id, await store.history(row.key), {}, row.ended, row.generation)
    for each in steps:
        if each.path == step:
            return each.error.traceback if each.error is not None else ""
    raise BadInput(f"run {row.id!r} has no step {step!r}")


def _frames(text: str) -> Iterator[FrameView]:
    at_hand = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    said = text.splitlines()
    for number, line in enumerate(said[:-1]):
        found = FRAME.match(line)
        if found is None or found["file"] not in at_hand:
            continue
        file, place = found["file"], int(found["line"])
        recorded = said[number + 1].strip()
        lines = around(file, place)
        hit = next((each.text.strip() for each in lines if each.n == place), "")
        if recorded and hit.startswith(recorded):
            yield FrameView(file=file, line=place, name=found["name"] or "", lines=lines)


def around(file: str, place: int) -> list[CodeLine]:
    """Return lines of a file before and after one of them."""
    linecache.checkcache(file)
    first = max(place - _BEFORE, 1)
    lines = linecache.getlines(file)[first - 1 : place + _AFTER]
    return [CodeLine(n=n, text=each.rstrip()) for n, each in enumerate(lines, first)]
