"""Where runs are remembered."""

from __future__ import annotations

from holdfast.contract.store import Store
from holdfast.errors import BadInput, MissingExtra
from holdfast.texts import LONGEST_REMARK, check_text, masked, passwords

__all__ = ["open_store"]


def open_store(database: str, durability: str = "power", dialect: str | None = None) -> Store:
    """Return the store of a database address, not yet opened.

    Raises:
        BadInput: the address names no database we know.
    """
    check_text(database, "database", longest=LONGEST_REMARK, printable=False)
    if durability not in ("power", "process"):
        raise BadInput(f"durability is 'power' or 'process', not {durability!r}")
    if database.startswith(("postgresql:", "postgres:")):
        try:
            from holdfast.stores.postgres.store import PostgresStore
        except ImportError as error:
            raise MissingExtra("PostgreSQL", "postgres") from error
        return PostgresStore(database, durability=durability, dialect=dialect)
    if dialect is not None:
        raise BadInput("dialect= says how to reach a PostgreSQL server: it is for postgresql://...")
    path = database
    if database.startswith("sqlite:"):
        path = database.removeprefix("sqlite:").removeprefix("//")
        path = path.removeprefix("/") if path.startswith("/") else path
        if not path:
            raise BadInput(f"{database!r} names no file; write sqlite:///relative.db or sqlite:////absolute.db")
    elif "://" in database:
        said = masked(database, passwords([database]))
        raise BadInput(f"cannot tell what {said!r} is; write sqlite:///path, postgresql://..., a path, or :memory:")
    from holdfast.stores.sqlite.store import SQLiteStore

    return SQLiteStore(path, durability=durability)
