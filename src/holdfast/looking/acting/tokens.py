"""Tokens at a desk: their records, and the owner of a given token."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from holdfast.clock import Instant, to_datetime
from holdfast.contract.store import Store
from holdfast.contract.tokens import Role, TokenRow

LASTS = timedelta(days=90)
"""For how long a token may be used unless it is said."""


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to make."""

    name: str
    """What its bearer is called in the audit trail."""
    role: Role = "viewer"
    expires_in: timedelta | None = LASTS
    """For how long it may be used; null for as long as it is not revoked."""


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without itself."""

    id: str
    name: str
    role: str
    state: Literal["live", "expired", "revoked"]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


class NewToken(TokenView, frozen=True, kw_only=True):
    """A token that was just made."""

    token: str
    """Itself: it is shown this once, and kept nowhere."""


def token_view(row: TokenRow, now: Instant) -> TokenView:
    """Return the record of a token as it stands."""
    over = row.expires is not None and row.expires <= now
    return TokenView(
        id=row.id,
        name=row.name,
        role=row.role,
        state="revoked" if row.revoked is not None else "expired" if over else "live",
        created_at=to_datetime(row.created),
        expires_at=to_datetime(row.expires) if row.expires is not None else None,
        revoked_at=to_datetime(row.revoked) if row.revoked is not None else None,
    )


class KnownTokens:
    """The tokens of a database, as what signs programs and browsers in asks for them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def brought(self, token: str) -> TokenView | None:
        """Return the record of a token that was brought, of one that is over, too; None for what is none."""
        from holdfast.ops.tokens import find_token

        row = await find_token(self._store, token)
        return token_view(row, self._store.clock.now()) if row is not None else None

    async def lives(self, id: str) -> bool:
        """Whether a token may still be used."""
        row = await self._store.token(id)
        return row is not None and token_view(row, self._store.clock.now()).state == "live"
