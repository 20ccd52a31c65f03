"""Searching runs for faces: driven by the condition that fewest runs meet, in pieces, up to a budget.

A search never trusts the planner with how much it reads. It asks the index of each condition for at most a thousand
rows, takes the one that has fewest, goes down that index piece by piece, and looks at the runs between two keys only.
Where an instant is asked for, it goes down between the keys that runs of that time have (`spans.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import msgspec

from holdfast.clock import Instant
from holdfast.contract.heads import SCAN_BUDGET, Counted, HeadFilter, HeadPage, RunHead
from holdfast.contract.rows import TERMINAL, Status
from holdfast.stores.sql.conditions import Conditions
from holdfast.stores.sql.spans import Look, spans
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import Value, record_of

_PROBE = 1_001
_SORTED = 10_001
"""How many rows are counted, and sorted, of an index that does not have them in the order of their keys."""
_FIRST_PIECE, _LARGEST_PIECE = 200, 4_000
"""How many rows of its index a search looks at first, and at most in one go: about five milliseconds' worth."""
_LAST_LETTER = "\U0010ffff"
_HAS_ATTRIBUTE = (
    "EXISTS (SELECT 1 FROM attributes "
    "WHERE attributes.name = {name} AND attributes.value = {value} AND attributes.run = runs.key)"
)


@dataclass(frozen=True, slots=True)
class Driver:
    """A condition whose index a search goes down; `values` are alternatives, each with its own part of the index.

    With column `key` it is all runs in their order. An attribute has its name in `column`.
    """

    column: str
    values: tuple[str, ...] = ()
    attribute: bool = False
    ordered: bool = True
    """Whether the index has the runs of a value in the order of their keys; otherwise it serves only few runs."""

    @property
    def table(self) -> str:
        """Which of the two kinds of statements serves it."""
        return "attributes" if self.attribute else "runs"


ALL = Driver("key")


async def search(look: Look, which: HeadFilter) -> HeadPage:
    """Return a page of runs."""
    found: list[RunHead] = []

    async def page(db: Statements, driver: Driver, above: int | None, below: int | None) -> bool:
        rows = await _listed(db, which, driver, which.limit - len(found), above, below)
        found.extend(rows)
        return len(found) < which.limit

    scan = Scan(look, which, which.before)
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

    async def add(db: Statements, driver: Driver, above: int | None, below: int | None) -> bool:
        nonlocal n
        wanted = _conditions(db, which, driver, most + 1 - n, above, below)
        name = "count_tagged_heads" if driver.attribute else "count_heads"
        [(counted,)] = await db.list(name, str(wanted), tuple(wanted.values))
        assert isinstance(counted, int)
        n += counted
        return n <= most

    scan = Scan(look, which, None, largest=most + 1)
    await scan.run(add)
    return Counted(min(n, most), n <= most and scan.below is None)


class Scan:
    """One way down an index: piece by piece until the caller has enough, the index ends, or the budget does."""

    def __init__(self, look: Look, which: HeadFilter, before: int | None, largest: int = _LARGEST_PIECE) -> None:
        self._look = look
        self._which = which
        self._largest = largest
        self.below = before
        """The key below which was not looked yet; None when there is nothing left."""
        self.scanned = 0

    async def run(self, take: Callable[[Statements, Driver, int | None, int | None], Awaitable[bool]]) -> None:
        """Call `take` for the runs between two keys until it wants no more of them."""
        for low, high in await spans(self._look, "runs", self._which.created_from, _created_until(self._which)):
            if self.below is not None and low is not None and low >= self.below:
                continue
            self.below = high if self.below is None else min(self.below, high or self.below)
            if not await self._go_down(take, low):
                return
        self.below = None

    async def _go_down(
        self, take: Callable[[Statements, Driver, int | None, int | None], Awaitable[bool]], low: int | None
    ) -> bool:
        """Look at the runs from a key on, below where the scan is; tell whether to look at others, too."""
        driver, size = await self._look(lambda db: self._choose(db, low))
        many = driver.ordered and size >= _PROBE
        piece = _FIRST_PIECE
        while True:
            piece = min(piece, SCAN_BUDGET - self.scanned)

            async def one(db: Statements, piece: int = piece) -> tuple[bool, int | None]:
                above = await self._reach(db, driver, piece, low) if many else low
                return await take(db, driver, above, self.below), above

            wants_more, above = await self._look(one)
            self.scanned += piece if many else size
            self.below = above
            if not wants_more or above is None or self.scanned >= SCAN_BUDGET:
                return False
            if above == low:
                return True
            piece = min(piece * 4, self._largest)

    async def _choose(self, db: Statements, low: int | None) -> tuple[Driver, int]:
        """Return the condition that fewest runs meet, and how many do as far as that was counted."""
        best, least = ALL, _PROBE
        if low is not None:
            least = await self._count(db, ALL, "", _PROBE, low)  # few runs may lie between two keys
        for driver in drivers(self._which):
            size, most = 0, _PROBE if driver.ordered else _SORTED
            for value in driver.values:
                size += await self._count(db, driver, value, most - size, low)
                if size >= most:
                    break
            if size < least or (best is ALL and least >= _PROBE and (driver.ordered or size < most)):
                best, least = driver, size
            if least == 0:
                break
        return best, least

    async def _count(self, db: Statements, driver: Driver, value: str, most: int, low: int | None) -> int:
        """Return how many rows the index of a condition has, up to a number."""
        wanted = Conditions(most)
        if driver is not ALL:
            _add_driver(wanted, driver, (value,), db)
        _between(wanted, driver, low, self.below, db)
        [(counted,)] = await db.list(f"probe_{driver.table}", str(wanted), tuple(wanted.values))
        assert isinstance(counted, int)
        return counted

    async def _reach(self, db: Statements, driver: Driver, rows: int, low: int | None) -> int | None:
        """Return a key such that at most so many rows of the index lie between it and where the scan is."""
        reached = low
        share = max(rows // max(len(driver.values), 1), 1)
        for value in driver.values or ("",):
            wanted = Conditions(share - 1)
            if driver is not ALL:
                _add_driver(wanted, driver, (value,), db)
            _between(wanted, driver, low, self.below, db)
            for (key,) in await db.list(f"reach_{driver.table}", str(wanted), tuple(wanted.values)):
                assert isinstance(key, int)
                reached = key if reached is None else max(reached, key)
        return reached


def _created_until(which: HeadFilter) -> Instant | None:
    """Return before when a run must have been created: it is not written, and does not end, before that."""
    given = (which.created_until, which.ended_until, which.quiet_since)
    return min((each for each in given if each is not None), default=None)


def drivers(which: HeadFilter) -> Iterator[Driver]:
    """Yield the conditions that an index serves, those that are usually met by few first."""
    if which.id_prefix is not None:
        yield Driver("id", (which.id_prefix,), ordered=False)
    if which.parent is not None:
        yield Driver("parent_id", (which.parent,), ordered=False)
    for name, value in which.attributes.items():
        yield Driver(name, (value,), attribute=True)
    if which.statuses and Status.COMPLETED not in which.statuses:
        yield Driver("status", tuple(which.statuses))
    for column, text in (("actor", which.actor), ("tenant", which.tenant)):
        if text is not None:
            yield Driver(column, (text,))
    if which.workflows:
        yield Driver("workflow", which.workflows)
    if which.statuses and Status.COMPLETED in which.statuses:
        yield Driver("status", tuple(which.statuses))


async def _listed(
    db: Statements, which: HeadFilter, driver: Driver, limit: int, above: int | None, below: int | None
) -> list[RunHead]:
    wanted = _conditions(db, which, driver, limit, above, below)
    name = "list_tagged_heads" if driver.attribute else "list_heads"
    return [record_of(RunHead, row) for row in await db.list(name, str(wanted), tuple(wanted.values))]


def _conditions(
    db: Statements, which: HeadFilter, driver: Driver, limit: int, above: int | None, below: int | None
) -> Conditions:
    """Return all conditions on the runs between two keys, worded so that only the driver's index can serve."""
    wanted = Conditions(limit)
    if driver is not ALL:
        _add_driver(wanted, driver, driver.values, db)
    _between(wanted, driver, above, below, db)
    for name, value in which.attributes.items():
        if not (driver.attribute and driver.column == name):
            wanted.add(_HAS_ATTRIBUTE.format(name=wanted.value(name), value=wanted.value(value)))
    lists = {"status": tuple(map(str, which.statuses)), "workflow": which.workflows}
    for column, values in lists.items():
        if values and driver.column != column:
            _any_of(wanted, db.ignoring_indexes(column), values)
    equal = {"parent_id": which.parent, "actor": which.actor, "tenant": which.tenant}
    for column, text in equal.items():
        if text is not None and driver.column != column:
            wanted.add(f"{db.ignoring_indexes(column)} =", text)
    if which.id_prefix is not None and driver.column != "id":
        _in_range(wanted, db.ignoring_indexes("id"), which.id_prefix)
    for workflow in which.not_workflows:
        wanted.add(f"{db.ignoring_indexes('workflow')} <>", workflow)
    _plain(wanted, which)
    return wanted


def _plain(wanted: Conditions, which: HeadFilter) -> None:
    """Add the conditions that no index serves."""
    compared: dict[str, Value] = {
        "runs.unique_key =": which.unique_key,
        "runs.version =": which.version,
        "runs.created >=": which.created_from,
        "runs.created <": which.created_until,
        "runs.ended >=": which.ended_from,
        "runs.ended <": which.ended_until,
        "runs.updated <": which.quiet_since,
        "runs.due <=": which.due_until,
    }
    for column, value in compared.items():
        if value is not None:
            wanted.add(column, value)
    if which.due_until is not None or (which.statuses and TERMINAL.isdisjoint(which.statuses)):
        wanted.add("runs.ended IS NULL")
    if which.waiting is not None:
        begins = f"substr(runs.wait, 1, {len(which.waiting)}) = {wanted.value(which.waiting)}"
        kind, _, step = which.waiting.partition(" ")
        if kind == "step" and step:  # which stands in a note
            noted = wanted.value(f'"step":{msgspec.json.encode(step).decode()}')
            wanted.add(f"({begins} OR replace(runs.wait, {noted}, '') <> runs.wait)")
        else:
            wanted.add(begins)


def _add_driver(wanted: Conditions, driver: Driver, values: tuple[str, ...], db: Statements) -> None:
    if driver.attribute:
        wanted.add("tagged.name =", driver.column)
        _any_of(wanted, "tagged.value", values)
    elif driver.column == "id":
        _in_range(wanted, "runs.id", values[0])
    else:
        _any_of(wanted, f"runs.{driver.column}", values)


def _any_of(wanted: Conditions, column: str, values: tuple[str, ...]) -> None:
    if len(values) == 1:
        wanted.add(f"{column} =", values[0])
    else:
        wanted.add(f"{column} IN ({', '.join(wanted.value(value) for value in values)})")


def _in_range(wanted: Conditions, column: str, prefix: str) -> None:
    wanted.add(f"{column} >=", prefix)
    wanted.add(f"{column} <", prefix + _LAST_LETTER)


def _between(wanted: Conditions, driver: Driver, above: int | None, below: int | None, db: Statements) -> None:
    key = "tagged.run" if driver.attribute else "runs.key"
    if not driver.ordered:
        key = db.ignoring_indexes(key)
    if above is not None:
        wanted.add(f"{key} >=", above)
    if below is not None:
        wanted.add(f"{key} <", below)
