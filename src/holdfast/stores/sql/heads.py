"""Searching runs for faces: driven by the condition that the fewest runs meet, in pieces, up to a budget.

A search never lets the planner decide how much it reads. It reads at most a thousand rows from the index of each
condition, chooses the index with the fewest, goes down that index piece by piece, and reads only the runs between two
keys. If the filter has a time, it stays between the keys of runs of that time (`spans.py`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator

from holdfast.clock import Instant
from holdfast.contract.heads import SCAN_BUDGET, Counted, EndsPage, HeadFilter, HeadPage, RunHead
from holdfast.contract.rows import TERMINAL, Status
from holdfast.stores.sql.index_choice import ALL, IndexDriver, Piece, ask, listed, step
from holdfast.stores.sql.spans import Look, spans
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import record_of

_PROBE = 1_001
_SORTED = 10_001
"""How many rows are counted, and sorted, of an index that does not have them in the order of their keys."""
_FIRST_PIECE, _LARGEST_PIECE = 200, 4_000
"""How many rows of its index a search looks at first, and at most in one go: about five milliseconds' worth."""
_UNHURRIED, _SEARCH_FOR, _COUNT_FOR = 4_000, 0.05, 0.03
"""From how many rows on a search or a count ends after so many seconds, too: a server may take long for each row."""


Take = Callable[[Statements, Piece], Awaitable[bool]]
OPEN = tuple(status for status in Status if status not in TERMINAL)


async def search(look: Look, which: HeadFilter) -> HeadPage:
    """Return a page of runs."""
    found: list[RunHead] = []

    async def page(db: Statements, piece: Piece) -> bool:
        rows = await ask(db, "list", which, piece, which.limit - len(found))
        found.extend(record_of(RunHead, row) for row in rows)
        return len(found) < which.limit

    scan = Scan(look, which, which.before, _SEARCH_FOR)
    await scan.run(page)
    if len(found) == which.limit:
        return HeadPage(heads=found, next=found[-1].key, scanned=scan.scanned)
    if scan.below is None:
        return HeadPage(heads=found, next=None, scanned=scan.scanned)
    rows = await look(lambda db: db.read("created_from_key", [(scan.below,)]))
    searched_to = rows[0][0] if rows else None
    return HeadPage(heads=found, next=scan.below, partial=True, scanned=scan.scanned, searched_to=searched_to)


async def count(look: Look, which: HeadFilter, most: int) -> Counted:
    """Count runs, as far as the budget goes."""
    n = 0

    async def add(db: Statements, piece: Piece) -> bool:
        nonlocal n
        [(counted,)] = await ask(db, "count", which, piece, most + 1 - n)
        assert isinstance(counted, int)
        n += counted
        return n <= most

    scan = Scan(look, which, None, _COUNT_FOR)
    await scan.run(add)
    return Counted(min(n, most), n <= most and scan.below is None, scan.scanned)


async def ends(look: Look, which: HeadFilter, most: int) -> EndsPage:
    """Return when runs ended, and how, as far as the budget goes."""
    found: list[tuple[Instant, str]] = []
    looked = 0

    async def add(db: Statements, piece: Piece) -> bool:
        nonlocal looked
        rows = await ask(db, "ends", which, piece, most + 1 - looked)
        looked += len(rows)
        found.extend((ended, str(status)) for ended, status in rows if isinstance(ended, int))
        return looked <= most

    scan = Scan(look, which, None, _SEARCH_FOR)
    await scan.run(add)
    return EndsPage(found, looked <= most and scan.below is None, scan.scanned)


class Scan:
    """One way down an index: piece by piece until the caller has enough, the index ends, or rows or time run out."""

    def __init__(self, look: Look, which: HeadFilter, before: int | None, seconds: float) -> None:
        self._look = look
        self._which = which
        self._budget = min(which.budget, SCAN_BUDGET)
        self.below = before
        """The key below which was not looked yet; None when there is nothing left."""
        self.scanned = 0
        """How many rows were looked at; those that are counted to choose an index are among them."""
        self._late = time.monotonic() + seconds
        self._dense: dict[str, float] = {}
        """How many rows an alternative has for each key, as far as that was seen."""
        self._ending: set[str] = set()
        """Alternatives of which fewer rows are left than were asked for."""

    async def run(self, take: Take) -> None:
        """Call `take` for the runs between two keys until it wants no more of them."""
        for low, high in await spans(self._look, "runs", self._which.created_from, _created_until(self._which)):
            if self.below is not None and low is not None and low >= self.below:
                continue
            self.below = high if self.below is None else min(self.below, high or self.below)
            if not await self._go_down(take, low):
                return
        self.below = None

    async def _go_down(self, take: Take, low: int | None) -> bool:
        """Look at the runs from a key on, below where the scan is; tell whether to look at others, too."""
        driver, size = await self._look(lambda db: self._choose(db, low))
        left = self._budget - self.scanned
        if self.below is not None and (left <= 0 or (size > left and not driver.ordered)):
            return False
        many = driver.ordered and size >= min(_PROBE, left)
        self._dense, self._ending = {}, set()
        piece = _FIRST_PIECE
        while True:
            piece = max(min(piece, self._budget - self.scanned), 1)

            async def one(db: Statements, piece: int = piece) -> tuple[bool, int | None]:
                above = await self._reach(db, driver, piece, low) if many else low
                return await take(db, Piece(driver, above, self.below, piece if many else _SORTED)), above

            began = time.monotonic()
            wants_more, above = await self._look(one)
            self.scanned += 0 if many else size
            self.below = above
            if not wants_more or above is None or self._budget - self.scanned < max(len(driver.values), 1):
                return False
            if above == low:
                return True
            piece = self._next_piece(piece, time.monotonic() - began)
            if not piece:
                return False

    def _next_piece(self, piece: int, took: float) -> int:
        """Return how many rows to look at next: as many as there is time for, by how long the last of them took."""
        wanted = min(piece * 4, _LARGEST_PIECE)
        if self._which.thorough or self.scanned < _UNHURRIED:
            return wanted
        left = self._late - time.monotonic()
        if left <= 0:
            return 0
        return max(min(wanted, int(piece * left / max(took, 1e-6))), _FIRST_PIECE)

    async def _choose(self, db: Statements, low: int | None) -> tuple[IndexDriver, int]:
        """Return the condition that fewest runs meet, and how many do as far as that was counted.

        Choosing takes at most half of the budget: with many conditions the last of them are not asked for.
        """
        best, least = ALL, _PROBE
        if low is not None:
            least = await self._count(db, ALL, "", _PROBE, low)  # few runs may lie between two keys
        most = min(_PROBE, self._budget // 2 - self.scanned)
        if self._which.due_until is not None and most > 0:
            keys = await db.read("overdue_keys", [(self._which.due_until, most)])
            self.scanned += len(keys)
            if len(keys) < min(most, least):
                best, least = listed([key for (key,) in keys if isinstance(key, int)]), len(keys)
            if not keys:
                return best, 0
        for driver in drivers(self._which):
            size, most = 0, _PROBE if driver.ordered else _SORTED
            most = min(most, least) if least < _PROBE else most
            if self.scanned + most > self._budget // 2:
                continue
            for value in driver.values:
                size += await self._count(db, driver, value, most - size, low)
                if size >= most:
                    break
            if size < least or (best is ALL and least >= _PROBE and (driver.ordered or size < most)):
                best, least = driver, size
            if least == 0:
                break
        return best, least

    async def _count(self, db: Statements, driver: IndexDriver, value: str, most: int, low: int | None) -> int:
        """Return how many rows the index of a condition has, up to a number."""
        # Of an index in another order nothing tells where those between two keys are.
        between = Piece(driver, low, self.below, most) if driver.ordered else Piece(driver, None, None, most)
        [(counted,)] = await step(db, "probe", between, value, most)
        assert isinstance(counted, int)
        self.scanned += counted
        return counted

    async def _reach(self, db: Statements, driver: IndexDriver, rows: int, low: int | None) -> int | None:
        """Return a key such that at most so many rows of the index lie between it and where the scan is.

        Alternatives share the rows as densely as each was found to lie. What is left of one that has fewer than its
        share is looked at in any case, so it is not asked again.
        """
        reached = low
        values = [value for value in driver.values or ("",) if value not in self._ending]
        dense = [self._dense.get(value, 1.0) for value in values]
        least = max(rows // (8 * max(len(values), 1)), 1)
        for value, density in zip(values, dense, strict=True):
            share = least + max(int((rows - least * len(values)) * density / sum(dense)), 0)
            found = await step(db, "reach", Piece(driver, low, self.below, share), value, share - 1)
            self.scanned += share
            if not found:
                self._ending.add(value)
                continue
            key = found[0][0]
            assert isinstance(key, int)
            reached = key if reached is None else max(reached, key)
            if self.below is not None:
                self._dense[value] = share / max(self.below - key, 1)
        return reached


def _created_until(which: HeadFilter) -> Instant | None:
    """Return before when a run must have been created: it is not written, and does not end, before that."""
    given = (which.created_until, which.ended_until, which.quiet_since)
    return min((each for each in given if each is not None), default=None)


def drivers(which: HeadFilter) -> Iterator[IndexDriver]:
    """Yield the conditions that an index serves, those that are usually met by few first."""
    if which.id_prefix is not None:
        yield IndexDriver("id", (which.id_prefix,), ordered=False)
    if which.parent is not None:
        yield IndexDriver("parent_id", (which.parent,), ordered=False)
    for name, value in which.attributes.items():
        yield IndexDriver(name, (value,), attribute=True)
    if which.statuses and Status.COMPLETED not in which.statuses:
        yield IndexDriver("status", tuple(which.statuses))
    elif not which.statuses and (which.due_until is not None or which.waiting is not None):
        yield IndexDriver("status", OPEN)  # no run that has ended waits for anything
    for column, text in (("actor", which.actor), ("tenant", which.tenant)):
        if text is not None:
            yield IndexDriver(column, (text,))
    if which.workflows:
        yield IndexDriver("workflow", which.workflows)
    if which.statuses and Status.COMPLETED in which.statuses:
        yield IndexDriver("status", tuple(which.statuses))
