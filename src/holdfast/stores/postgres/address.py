"""The address of a PostgreSQL server, and whether a pooler is in front of it."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import psycopg

from holdfast.errors import BadInput

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class Dialect(StrEnum):
    """`direct`: nothing stands between. `pooler`: a pooler in transaction mode, which lends a session per transaction.

    Behind a pooler
    - no statement is prepared: the next one may meet a session that does not know it, or has another of its name;
    - statements are sent one by one: the driver ends a pipeline with a word that a pooler takes for the beginning of
      the next transaction, for which it reserves a session;
    - commits are not announced (LISTEN belongs to a session), so other processes look more often;
    - pg_stat_activity cannot tell a worker that died from one that hangs: each counts as hanging.
    """

    DIRECT = "direct"
    POOLER = "pooler"


def dialect_of(named: str | None) -> Dialect:
    """Return a dialect by its name.

    Raises:
        BadInput: nothing is called that.
    """
    try:
        return Dialect(named or Dialect.DIRECT)
    except ValueError:
        raise BadInput(f"dialect is one of {', '.join(sorted(Dialect))}, not {named!r}") from None


class Address(NamedTuple):
    """What libpq understands of an address, the schema, and the address for messages, without the password."""

    conninfo: str
    schema: str
    shown: str


def address_of(url: str) -> Address:
    """Take an address apart.

    Raises:
        BadInput: it cannot be understood, or the schema's name would need quoting.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # which shows what it was given
        raise _unclear() from None
    # Taken apart by hand: libpq knows no plus signs for spaces.
    given = [part for part in parts.query.split("&") if part]
    named = [part.removeprefix("schema=") for part in given if part.startswith("schema=")]
    schema = unquote(named[-1]) if named else "holdfast"
    conninfo = urlunsplit(parts._replace(query="&".join(part for part in given if not part.startswith("schema="))))
    if not parts.netloc:  # a socket's folder is given as ?host=, and urlunsplit drops what it takes for nothing
        conninfo = re.sub(r"^(\w+):/*", r"\1:///", conninfo)
    try:
        known = psycopg.conninfo.conninfo_to_dict(conninfo)
    except psycopg.Error:
        raise _unclear() from None
    port, host = str(known.get("port") or ""), str(known.get("host") or "")
    # A character that was to be written otherwise: part of the password is taken for something that is shown.
    if "@" in host or "@" in parts.path or not re.fullmatch(r"[\d,]*", port):
        raise _unclear()
    if not _SCHEMA.fullmatch(schema):
        raise BadInput(f"schema must be lower-case letters, digits and underscores, at most 63, not {schema!r}")
    user, database = known.get("user") or "", known.get("dbname") or ""
    where = f"{host or 'localhost'}{':' if port else ''}{port}"
    return Address(conninfo, schema, f"postgresql://{user}@{where}/{database}")


def _unclear() -> BadInput:
    return BadInput(
        "cannot tell what the address of the database means: is every % in it followed by two digits, every "
        "/ : @ [ ] in the password written as %2F %3A %40 %5B %5D, and the port a number?"
    )
