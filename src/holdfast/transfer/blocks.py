"""What an import records about the rows that it brought, because their keys do not say when they were added."""

from __future__ import annotations

from holdfast.clock import Instant
from holdfast.stores.sql.probing import SLACK
from holdfast.stores.sql.spans import Block

_MOST = 50
"""How many blocks one import notes; rows that are in no order at all are one block without order."""


class Blocks:
    """Rows in the order of their keys, in blocks in each of which none is much older than one before it."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []

    def add(self, key: int, at: Instant) -> None:
        """Note one more row, whose key is above all others."""
        last = self._blocks[-1] if self._blocks else None
        if last is None or (last.ordered and at < last.newest - SLACK):
            self._blocks.append(Block(key, key, at, at, 1, 0))
        else:
            self._blocks[-1] = last._replace(last=key, oldest=min(last.oldest, at), newest=max(last.newest, at))
        if len(self._blocks) > _MOST:
            oldest, newest = min(each.oldest for each in self._blocks), max(each.newest for each in self._blocks)
            self._blocks = [Block(self._blocks[0].first, key, oldest, newest, 0, 0)]

    def noted(self, at: Instant) -> list[Block]:
        """Return the blocks of an import at an instant."""
        return [block._replace(at=at) for block in self._blocks]
