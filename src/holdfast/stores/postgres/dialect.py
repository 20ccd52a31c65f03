"""What stands between a store and its PostgreSQL server, and so which parts of PostgreSQL can be used."""

from __future__ import annotations

from enum import StrEnum

from holdfast.errors import BadInput


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
