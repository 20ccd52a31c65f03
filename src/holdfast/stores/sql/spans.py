"""The keys between which the rows of a period lie: found by probes, because no index has the time of a row.

Keys grow with time, except for imported rows: each import records the blocks that it wrote, and a search reads these
separately.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.clock import Instant
from holdfast.stores.sql.probing import SLACK, Around, Mark, after_instant, before_instant
from holdfast.stores.sql.statements import Statements

Look = Callable[[Callable[[Statements], Coroutine[Any, Any, Any]]], Awaitable[Any]]


class Span(NamedTuple):
    """Keys from `low` on, below `high`; None where it has no end."""

    low: int | None = None
    high: int | None = None


class Block(NamedTuple):
    """Rows that an import brought, as in the table of that name."""

    first: int
    last: int
    oldest: Instant
    newest: Instant
    ordered: int
    at: Instant


async def spans(look: Look, what: str, since: Instant | None, until: Instant | None) -> list[Span]:
    """Return where the rows lie that were added from `since` on and before `until`, those with the highest keys first.

    There may be others between them: what an instant means exactly is for the caller to ask.
    """
    if since is None and until is None:
        return [Span()]
    [(lowest, highest)] = await look(lambda db: db.read(f"{what}_ends", [()]))
    if lowest is None:
        return []
    rows = await look(lambda db: db.read("read_imported_blocks", [(what,)]))
    found: list[Span] = []
    for low, high, block in _stretches(lowest, highest + 1, [Block(*row) for row in rows]):
        if block is not None and not _may_have(block, since, until):
            continue
        if block is not None and _disordered(block, since, until):
            found.append(Span(low, high))
            continue
        span = await _within(look, what, Span(low, high), since, until)
        if span is not None:
            # What is added from now on comes above the last row.
            found.append(Span(span.low, None) if span.high == highest + 1 else span)
    return found


def _stretches(lowest: int, end: int, blocks: list[Block]) -> Iterator[tuple[int, int, Block | None]]:
    """Yield the blocks and what lies between them, the highest first."""
    for block in reversed(blocks):
        if block.last + 1 < end:
            yield block.last + 1, end, None
        yield block.first, block.last + 1, block
        end = block.first
    if lowest < end:
        yield lowest, end, None


def _may_have(block: Block, since: Instant | None, until: Instant | None) -> bool:
    older = since is not None and max(block.newest, block.at + SLACK) < since
    return not older and not (until is not None and block.oldest >= until)


def _disordered(block: Block, since: Instant | None, until: Instant | None) -> bool:
    """Whether there may be rows at any place in a block: runs that were started while it was imported among them."""
    begun = since is None or since <= block.at + SLACK
    return not block.ordered or (begun and (until is None or until > block.at - SLACK))


async def _within(look: Look, what: str, whole: Span, since: Instant | None, until: Instant | None) -> Span | None:
    low, high = whole.low or 0, whole.high or 0
    around = _around(look, what, low, high)
    (_, _, first), (_, last, _) = await around((low, high))
    if first is None or last is None:
        return None
    if (since is not None and last.at + SLACK < since) or (until is not None and first.at - SLACK >= until):
        return None
    bottom = low if since is None else await before_instant(around, (first.key, last.key), since)
    top = high if until is None else await after_instant(around, (first.key, last.key), until)
    top = high if top > last.key else top
    return Span(bottom, top) if bottom < top else None


def _around(look: Look, what: str, low: int, high: int) -> Around:
    async def around(keys: Sequence[int]) -> list[tuple[int, Mark | None, Mark | None]]:
        rows = await look(lambda db: db.read(f"{what}_around", [(key, low, high) for key in keys]))
        return [(key, _mark(*below), _mark(*above)) for key, *rest in rows for below, above in [(rest[:2], rest[2:])]]

    return around


def _mark(key: Any, at: Any) -> Mark | None:
    return Mark(key, at) if key is not None else None
