"""Tokens: put once, revoked once, each on record; and the secret that processes on a database share."""

from __future__ import annotations

import msgspec

from holdfast.contract.operations import Done
from holdfast.contract.store import Store
from holdfast.contract.tokens import TokenRow, WriteToken
from holdfast.contract.turns import Audit
from holdfast.testing.conformance.samples import NOW, Another, one

KIM = TokenRow(id="t1", name="kim", role="viewer", digest="ab" * 32, created=NOW, expires=NOW + 9, revoked=None)


class TokenConformance:
    """Tokens of the HTTP API."""

    async def test_a_token_is_put_once_and_revoked_once(self, store: Store) -> None:
        """What changes nothing is not on record."""
        created, revoked = (Audit(actor="ada", action=f"token.{verb}") for verb in ("create", "revoke"))
        other = msgspec.structs.replace(KIM, id="t2", created=NOW + 1, expires=None)
        puts = [WriteToken(id=row.id, token=row, at=NOW, audit=created) for row in (KIM, other, KIM)]
        assert [await one(store, put, Done) for put in puts] == [Done(1), Done(1), Done(0)]
        assert await store.tokens() == [other, KIM]
        ends = [WriteToken(id=id, at=NOW + 2, audit=revoked) for id in ("t1", "t1", "none")]
        assert [await one(store, end, Done) for end in ends] == [Done(1), Done(0), Done(0)]
        assert await store.token("t1") == msgspec.structs.replace(KIM, revoked=NOW + 2)
        assert await store.token("none") is None
        assert [(row.action, row.target) for row in await store.audit()] == [
            ("token.create", "token t1"),
            ("token.create", "token t2"),
            ("token.revoke", "token t1"),
        ]

    async def test_all_processes_on_a_database_sign_with_one_secret(self, store: Store, another: Another) -> None:
        """It is made with the tables, so that looking, which writes nothing, finds it."""
        secret = await store.secret("selections")
        assert len(secret) == 32
        assert await (await another()).secret("selections") == secret
