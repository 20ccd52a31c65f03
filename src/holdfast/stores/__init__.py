"""Stores: where runs are kept."""

from __future__ import annotations

import os
import re
from typing import Literal

from holdfast.contract.store import Store
from holdfast.errors import BadInput, MissingExtra
from holdfast.texts import LONGEST_REMARK, refuse_text

__all__ = ["open_store"]

_SCHEME = re.compile(r"(postgresql|postgres|sqlite)(?:\+(\w+))?:", re.IGNORECASE)
"""As SQLAlchemy writes it, a driver may be named: `postgresql+asyncpg`, `sqlite+aiosqlite`. Ours is the same anyway."""
_KEY_SPACE = re.compile(r"kv\+(\w+):", re.IGNORECASE)
_NOT_A_SERVER = "dialect= says how to reach a PostgreSQL server: it is for postgresql://..."
_LOOKS_SECRET = re.compile(r":[^/]*@|password\s*=", re.IGNORECASE)


def open_store(database: str | os.PathLike[str], durability: str = "power", dialect: str | None = None) -> Store:
    """Return the store of a database address, not yet opened.

    Raises:
        BadInput: the address names no database we know. It never shows the address, which may have a password in it.
    """
    key_space = _KEY_SPACE.match(_text(database))
    if key_space is not None:
        if dialect is not None:
            raise BadInput(_NOT_A_SERVER)
        from holdfast.stores.keyvalue.addresses import open_key_space

        return open_key_space(key_space[1], _text(database)[key_space.end() :])
    kind, address = read_address(database)
    if durability not in ("power", "process"):
        raise BadInput(f"durability is 'power' or 'process', not {durability!r}")
    if kind == "postgresql":
        try:
            from holdfast.stores.postgres.store import PostgresStore
        except ImportError as error:
            raise MissingExtra("PostgreSQL", "postgres") from error
        return PostgresStore(address, durability=durability, dialect=dialect)
    if dialect is not None:
        raise BadInput(_NOT_A_SERVER)
    from holdfast.stores.sqlite.store import SQLiteStore

    return SQLiteStore(address, durability=durability)


def newest_schema(kind: str) -> int:
    """Return the number of the newest schema of a kind of database (`sqlite`, `postgres`) that this holdfast knows."""
    from holdfast.stores.sql.files import migrations

    return migrations(kind)[-1][0]


def read_address(database: str | os.PathLike[str]) -> tuple[Literal["postgresql", "sqlite"], str]:
    """Return which kind of database an address means, and its address as libpq takes it, or its path.

    Raises:
        BadInput: it names no database we know.
    """
    text = _text(database)
    named = _SCHEME.match(text)
    if named is None:
        return "sqlite", _plain_path(text)
    rest = text[named.end() :]
    if named[1].lower() == "sqlite":
        return "sqlite", _sqlite_path(rest)
    if (named[2] or "").lower() == "asyncpg":
        rest = re.sub(r"([?&])ssl=", r"\1sslmode=", rest)  # its own name of that option, with the same values
    return "postgresql", f"postgresql:{rest}"


def _text(database: str | os.PathLike[str]) -> str:
    text: object = os.fspath(database) if isinstance(database, os.PathLike) else database
    refuse_text(text, "database", longest=LONGEST_REMARK, printable=False, secret=True)
    return str(text)


def _sqlite_path(rest: str) -> str:
    """Return the path in an address of SQLite, of which `rest` follows the colon."""
    path = rest.removeprefix("//")
    if "@" in path.partition("/")[0]:
        raise BadInput("an SQLite database has no user and no password; write sqlite:///relative.db")
    if "?" in path:
        raise BadInput("an SQLite database takes no options in its address: leave out the ? and what follows it")
    path = path.removeprefix("/")
    if not path:
        raise BadInput("the address names no file; write sqlite:///relative.db or sqlite:////absolute.db")
    return path


def _plain_path(text: str) -> str:
    """Return what is no address, unless it was probably meant to be one."""
    if "://" in text:
        scheme = re.match(r"[A-Za-z][\w+.-]{0,30}(?=://)", text)
        said = f"what {scheme[0]}:// is" if scheme is not None else "what the address of the database is"
        raise BadInput(
            f"cannot tell {said}; write sqlite:///path, postgresql://..., kv+dir:///path, a path, or :memory:"
        )
    if _LOOKS_SECRET.search(text):
        raise BadInput(
            "the address of the database looks like neither a path nor an address; "
            "write postgresql://user:password@host/name, or sqlite:///path for a file of such a name"
        )
    return text
