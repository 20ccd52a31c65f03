"""How the rules of a store reach its database: named statements inside one transaction.

The methods are coroutines because they wait for PostgreSQL. SQLite never waits inside a transaction, so there the same
code runs from beginning to end at once: see `at_once`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from holdfast.stores.sql.tables import Row, Value

T = TypeVar("T")


class Statements(Protocol):
    """Named statements of one transaction, each run for every row of parameters."""

    weighs_indexes: bool
    """Whether the database chooses among indexes by what it thinks of their sizes, and not by the words alone."""

    async def read(self, name: str, rows: Sequence[Row]) -> list[tuple[Value, ...]]:
        """Return what a statement finds."""

    async def runs(self, name: str, rows: Sequence[Row]) -> Sequence[Row]:
        """Return what a statement finds whose columns are those of a stored run: thousands of them, perhaps."""

    async def write(self, name: str, rows: Sequence[Row]) -> None:
        """Run a statement for its effect."""

    async def change(self, name: str, row: Row) -> int:
        """Run a statement and return how many rows it changed."""

    async def list(self, name: str, conditions: str, values: Row) -> list[tuple[Value, ...]]:
        """Return a page of rows that meet conditions, which are put in place of {filter}."""

    def ignoring_indexes(self, column: str) -> str:
        """Return a column in the form in which a condition on it uses no index."""


MAX_PARAMETER = 64 << 20
"""How many characters one parameter may have: SQLite refuses a thousand million bytes, PostgreSQL's JSON a quarter."""


def in_pieces(rows: Sequence[Row], encode: Callable[[Sequence[Row]], str]) -> Iterator[str]:
    """Encode rows as one parameter, or as more where that would be too large."""
    parameter = encode(rows)
    if len(parameter) <= MAX_PARAMETER or len(rows) == 1:
        yield parameter
        return
    middle = len(rows) // 2
    yield from in_pieces(rows[:middle], encode)
    yield from in_pieces(rows[middle:], encode)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("a statement waited inside a transaction that must not")
