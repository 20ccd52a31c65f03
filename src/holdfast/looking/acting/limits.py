"""Limits as faces show them, and the numbers that an operator puts in place of the declared ones."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec


class LimitNumbers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a limit allows, as `Limit` says it; what is None is not limited."""

    at_once: int | None = None
    rate: int | None = None
    per: timedelta = timedelta(seconds=1)
    burst: int | None = None
    per_key_at_once: int | None = None
    trip_after: int | None = None
    cool_down: timedelta | None = None


class LimitKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a limit that is in use; `held_until` is until when its service is left alone."""

    key: str
    used: int
    waiting: int
    next_turn: datetime | None = None
    held_until: datetime | None = None
    failures: int = 0


class LimitView(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that workers share: what it allows, how many of it are used, and how many steps wait."""

    name: str
    allows: str
    used: int
    waiting: int
    next_turn: datetime | None = None
    paused: bool = False
    overridden: bool = False
    """Whether the numbers are those of an operator; `declared` are then the words of what engines declare."""
    declared: str = ""
    numbers: LimitNumbers = LimitNumbers()
    """Those that are in force."""
    keys: list[LimitKeyView] = []
