"""Tokens: a row for each, which never changes except when the token is revoked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.contract.operations import Done
from holdfast.contract.tokens import WriteToken

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch


async def write_token(batch: Batch, operation: WriteToken) -> Done:
    """Add a token or revoke one; nothing is done, and so nothing audited, if there is such a one, or none to revoke."""
    await batch.flush()
    token = operation.token
    if token is None:
        return Done(await batch.statements.change("revoke_token", (operation.id, operation.at)))
    row = (token.id, token.name, token.role, token.digest, token.created, token.expires, token.revoked)
    return Done(await batch.statements.change("insert_token", row))
