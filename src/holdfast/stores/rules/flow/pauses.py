"""Pauses of workflows and queues: a row for each, which every worker reads once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.contract.operations import Done, PauseWork

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch


async def pause_work(batch: Batch, operation: PauseWork) -> Done:
    """Write or delete a pause; nothing is done, and so nothing audited, if that is how it stands already."""
    await batch.flush()
    which = (operation.kind, operation.name)
    if operation.paused:
        return Done(await batch.statements.change("put_pause", (*which, operation.at)))
    return Done(await batch.statements.change("delete_pause", which))
