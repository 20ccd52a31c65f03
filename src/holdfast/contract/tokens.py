"""Tokens, by which the HTTP API recognizes programs and browsers. The store has only their hashes."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from holdfast.clock import Instant
from holdfast.contract.turns import Audit

Role = Literal["viewer", "reader", "operator", "admin"]
ROLES: tuple[str, ...] = get_args(Role)
"""From the one that may least: each may what those before it may."""


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """A token as the store has it; it stays when it is over, so that its bearer can be told why."""

    id: str
    name: str
    """What its bearer is called in the audit trail."""
    role: str
    digest: str
    """The SHA-256 of the token, in hexadecimal digits."""
    created: Instant
    expires: Instant | None
    revoked: Instant | None


class WriteToken(msgspec.Struct, frozen=True, kw_only=True):
    """Add a token, or (without one) revoke the one with this id."""

    id: str
    at: Instant
    token: TokenRow | None = None
    audit: Audit | None = None
