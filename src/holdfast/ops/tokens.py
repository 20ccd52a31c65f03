"""Tokens of the HTTP API: made and revoked on record, recognized by their hashes."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import timedelta

from holdfast.changes import Change
from holdfast.clock import micros, to_datetime
from holdfast.contract.operations import Done
from holdfast.contract.store import Store
from holdfast.contract.tokens import ROLES, Role, TokenRow, WriteToken
from holdfast.errors import BadInput
from holdfast.ops.port import Port, audited, check_who
from holdfast.patience import patient
from holdfast.texts import check_text, shown

PREFIX = "hf_"
"""With what every token begins, so that one is known for what it is wherever it turns up."""
LONGEST = timedelta(days=3650)
_LONGEST_TOKEN = 200


class Tokens:
    """By what programs and browsers are known to the HTTP API."""

    def __init__(self, port: Port) -> None:
        self._port = port

    @property
    def _call_patience(self) -> float:
        return self._port.patience

    @patient
    async def create(
        self, name: str, role: Role, *, expires_in: timedelta | None, by: str | None = None, reason: str = ""
    ) -> tuple[str, TokenRow]:
        """Return a new token and its record. The token itself is kept nowhere.

        Args:
            name: what its bearer is called in the audit trail.
            role: viewer, reader, operator or admin.
            expires_in: how long it may be used; None for as long as it is not revoked.

        Raises:
            BadInput: the name, the role or the time can be none.
        """
        check_who(by, reason)
        check_text(name, "name of a token")
        if role not in ROLES:
            raise BadInput(f"role must be one of {', '.join(ROLES)}, not {shown(role)}")
        if expires_in is not None and not timedelta(0) < expires_in <= LONGEST:
            raise BadInput(f"a token must last longer than zero and at most {LONGEST.days:,} days")
        now, id = self._port.clock.now(), secrets.token_hex(6)
        token = f"{PREFIX}{id}_{secrets.token_urlsafe(32)}"
        expires = now + micros(expires_in) if expires_in is not None else None
        row = TokenRow(id=id, name=name, role=role, digest=_digest(token), created=now, expires=expires, revoked=None)
        said = to_datetime(expires).isoformat() if expires is not None else None
        audit = audited(self._port, by, "token.create", name=name, role=role, expires=said, reason=reason or None)
        await self._port.apply(WriteToken(id=id, at=now, token=row, audit=audit))
        self._tell("token.created", id)
        return token, row

    @patient
    async def revoke(self, id: str, *, by: str | None = None, reason: str = "") -> bool:
        """Let a token be used no more; False if there is none that may be.

        Requests with it, and sessions that were opened with it, are refused from now on; streams end within a second.
        """
        check_who(by, reason)
        check_text(id, "id of a token")
        audit = audited(self._port, by, "token.revoke", reason=reason or None)
        outcome = await self._port.apply(WriteToken(id=id, at=self._port.clock.now(), audit=audit))
        changed = isinstance(outcome, Done) and bool(outcome.count)
        if changed:
            self._tell("token.revoked", id)
        return changed

    def _tell(self, type: str, id: str) -> None:
        self._port.notify(Change(type=type, at=to_datetime(self._port.clock.now()), data={"token": id}))


async def find_token(store: Store, text: str) -> TokenRow | None:
    """Return the record of a token that was brought, None for what is none; one that is over is found, too."""
    if not text.startswith(PREFIX) or not text.isascii() or len(text) > _LONGEST_TOKEN:
        return None
    row = await store.token(text.removeprefix(PREFIX).partition("_")[0])
    return row if row is not None and hmac.compare_digest(row.digest, _digest(text)) else None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
