"""How a search reads a piece of an index: with conditions that no other index can serve, whatever a planner chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from holdfast.contract.heads import HeadFilter
from holdfast.contract.rows import TERMINAL
from holdfast.stores.sql.conditions import Conditions
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import Value

_LAST_LETTER = "\U0010ffff"
_FIRST_KEY, _LAST_KEY = -(1 << 62), 1 << 62
_LOOKUP = "CROSS JOIN LATERAL (SELECT * FROM runs WHERE runs.key = driven.key OFFSET 0) AS runs"
_SAME = "CROSS JOIN LATERAL (SELECT runs.key AS key) AS driven"
_HAS_ATTRIBUTE = (
    "EXISTS (SELECT 1 FROM attributes "
    "WHERE attributes.name = {name} AND attributes.value = {value} AND attributes.run = runs.key)"
)


@dataclass(frozen=True, slots=True)
class IndexDriver:
    """A condition whose index a search goes down; `values` are alternatives, each with its own part of the index.

    With column `key` it is all runs in their order, or, in another order, those with the keys of a list of JSON. An
    attribute has its name in `column`.
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


ALL = IndexDriver("key")


def listed(keys: Sequence[int]) -> IndexDriver:
    """Return the driver that goes down a list of keys of runs."""
    return IndexDriver("key", (msgspec.json.encode(keys).decode(),), ordered=False)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an index: between two keys, with about so many rows."""

    driver: IndexDriver
    above: int | None
    below: int | None
    rows: int


async def ask(db: Statements, what: str, which: HeadFilter, piece: Piece, limit: int) -> Sequence[tuple[Value, ...]]:
    """List or count the runs of a piece that meet all conditions."""
    wanted = Conditions(limit)
    if not db.weighs_indexes:
        _conditions(wanted, db, which, piece)
        tagged = "tagged_" if piece.driver.attribute else ""
        return await db.list(f"{what}_{tagged}heads", str(wanted), tuple(wanted.values))
    # A run may have been added since the piece was measured: the limit is for the planner.
    parts = [_part(wanted, piece, value) for value in piece.driver.values or ("",)]
    most = wanted.value(2 * piece.rows + 1_000)
    driven = " UNION ALL ".join(f"({part} LIMIT {most})" for part in parts)
    others = Conditions.beside(wanted)
    _others(others, db, which, piece.driver)
    found = f"({driven}) AS driven {_LOOKUP} WHERE {others}"
    if str(others) == "TRUE":
        found = f"({driven}) AS driven"
    elif piece.driver.ordered and not piece.driver.attribute:  # its index leads to the runs: none is looked up by key
        found = f"({driven.replace('runs.key AS key', '*')}) AS runs {_SAME} WHERE {others}"
    return await db.list(f"{what}_driven", found, tuple(wanted.values))


async def step(db: Statements, what: str, piece: Piece, value: str, rows: int) -> Sequence[tuple[Value, ...]]:
    """Probe how many rows a piece has for one value of its driver, or reach for the key so many rows down."""
    wanted = Conditions(rows)
    if db.weighs_indexes:
        return await db.list(f"{what}_driven", _part(wanted, piece, value), tuple(wanted.values))
    if piece.driver is not ALL:
        _add_driver(wanted, piece.driver, (value,))
    _between(wanted, db, piece)
    return await db.list(f"{what}_{piece.driver.table}", str(wanted), tuple(wanted.values))


def _part(wanted: Conditions, piece: Piece, value: str) -> str:
    """Return a query for the keys of one value, newest first, in the order of its index and of no other.

    The two ends are compared as rows: where a column is equal to a value, a planner may go down another index instead
    that has the keys in their order, and read everything that is no match.
    """
    driver = piece.driver
    if not driver.ordered:
        return _in_another_order(wanted, piece, value)
    columns = [f"runs.{driver.column}", "runs.key"]
    given: list[Value] = [value]
    if driver is ALL:
        columns, given = ["runs.key"], []
    elif driver.attribute:
        columns, given = ["tagged.name", "tagged.value", "tagged.run"], [driver.column, value]
    row, order = ", ".join(columns), ", ".join(f"{column} DESC" for column in columns)
    low = _FIRST_KEY if piece.above is None else piece.above
    high = _LAST_KEY if piece.below is None else piece.below
    ends: list[list[Value]] = [[*given, low], [*given, high]]
    first, last = (", ".join(map(wanted.value, end)) for end in ends)
    between = f"({row}) >= ({first}) AND ({row}) < ({last}) AND {columns[0]} IS NOT NULL"
    table = "attributes AS tagged" if driver.attribute else "runs"
    return f"SELECT {columns[-1]} AS key FROM {table} WHERE {between} ORDER BY {order}"  # noqa: S608  # names of ours


def _in_another_order(wanted: Conditions, piece: Piece, value: str) -> str:
    found, table = Conditions.beside(wanted), "runs"
    if piece.driver.column == "key":
        numbers = f"jsonb_array_elements_text({wanted.value(value)}::jsonb) AS number"
        table = f"(SELECT number::bigint AS key FROM {numbers}) AS runs"  # noqa: S608  # of ours
    else:
        _add_driver(found, piece.driver, (value,))
    if piece.above is not None:
        found.add("runs.key + 0 >=", piece.above)
    if piece.below is not None:
        found.add("runs.key + 0 <", piece.below)
    order = " ORDER BY runs.id" if piece.driver.column == "id" else ""
    return f"SELECT runs.key AS key FROM {table} WHERE {found}{order}"  # noqa: S608  # names of ours


def _conditions(wanted: Conditions, db: Statements, which: HeadFilter, piece: Piece) -> None:
    """Add all conditions on the runs of a piece, worded so that only the driver's index can serve."""
    if piece.driver is not ALL:
        _add_driver(wanted, piece.driver, piece.driver.values)
    _between(wanted, db, piece)
    _others(wanted, db, which, piece.driver)


def _others(wanted: Conditions, db: Statements, which: HeadFilter, driver: IndexDriver) -> None:
    """Add the conditions beside that of the driver."""
    for name, value in which.attributes.items():
        if not (driver.attribute and driver.column == name):
            wanted.add(_HAS_ATTRIBUTE.format(name=wanted.value(name), value=wanted.value(value)))
    lists = {"status": tuple(map(str, which.statuses)), "workflow": which.workflows, "owner": which.owners}
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


def _add_driver(wanted: Conditions, driver: IndexDriver, values: tuple[str, ...]) -> None:
    if driver.attribute:
        wanted.add("tagged.name =", driver.column)
        _any_of(wanted, "tagged.value", values)
    elif driver.column == "id":
        _in_range(wanted, "runs.id", values[0])
    elif driver.column == "key":
        wanted.add(f"runs.key IN (SELECT value FROM json_each({wanted.value(values[0])}))")  # noqa: S608  # of ours
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


def _between(wanted: Conditions, db: Statements, piece: Piece) -> None:
    key = "tagged.run" if piece.driver.attribute else "runs.key"
    if not piece.driver.ordered:
        key = db.ignoring_indexes(key)
    if piece.above is not None:
        wanted.add(f"{key} >=", piece.above)
    if piece.below is not None:
        wanted.add(f"{key} <", piece.below)
