"""Conditions of a statement, put together from the filters of a caller."""

from __future__ import annotations

from holdfast.stores.sql.tables import Value


class Conditions:
    """Conditions joined by AND, and the values of their parameters; the first is how many rows to return."""

    def __init__(self, limit: int) -> None:
        self._clauses: list[str] = []
        self.values: list[Value] = [limit]

    @classmethod
    def beside(cls, other: Conditions) -> Conditions:
        """Return further conditions, for another part of the statement, whose values are numbered with those."""
        made = cls(0)
        made.values = other.values
        return made

    def value(self, value: Value) -> str:
        """Return the parameter that stands for a value."""
        self.values.append(value)
        return f"${len(self.values)}"

    def add(self, clause: str, value: Value = None) -> None:
        """Add a condition; one that has a value ends where that belongs."""
        self._clauses.append(clause if value is None else f"{clause} {self.value(value)}")

    def __str__(self) -> str:
        return " AND ".join(self._clauses) or "TRUE"
