"""What a database that speaks PostgreSQL's protocol can do: switches, and profiles of databases that lack something."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Which parts of PostgreSQL may be used; every one has another way, slower or coarser."""

    name: str = "postgresql"
    prepare: bool = True
    """Statements are prepared once per connection. Without: parsed each time, as poolers may need it."""
    pipeline: bool = True
    """Statements are sent together and their answers waited for once. Without: one by one. (The driver ends a pipeline
    with a word that a pooler takes for the beginning of the next transaction, for which it reserves a connection.)"""
    notify: bool = True
    """LISTEN and NOTIFY tell other processes of commits. Without: they look more often."""
    lock_table: bool = True
    """LOCK TABLE keeps everybody else out. Without: a lock on one row that everybody shares."""
    skip_locked: bool = True
    """Claims pass over rows that others are claiming. Without: they wait for them."""
    advisory_locks: bool = True
    """One process at a time migrates, by an advisory lock. Without: those who come second fail and try again."""
    sessions: bool = True
    """pg_stat_activity tells a worker that died from one that hangs. Without: each counts as hanging."""
    storage_options: bool = True
    """Tables have storage parameters (fillfactor, autovacuum) and columns their own collation."""


_PROFILES = {
    profile.name: profile
    for profile in (
        Dialect(),
        Dialect(name="pooler", prepare=False, pipeline=False, notify=False, sessions=False),
        Dialect(
            name="cockroachdb",
            notify=False,
            lock_table=False,
            advisory_locks=False,
            sessions=False,
            storage_options=False,
        ),
        Dialect(name="yugabytedb", notify=False, lock_table=False, advisory_locks=False, sessions=False),
        Dialect(name="citus", lock_table=False, prepare=False),
    )
}


def dialect_of(named: str | Dialect | None) -> Dialect:
    """Return a profile by its name.

    Raises:
        BadInput: nothing is called that.
    """
    if isinstance(named, Dialect):
        return named
    profile = _PROFILES.get(named or "postgresql")
    if profile is None:
        raise BadInput(f"dialect is one of {', '.join(sorted(_PROFILES))}, or a Dialect, not {named!r}")
    return profile
