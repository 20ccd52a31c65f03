"""The server itself: what it is, and who asks."""

from __future__ import annotations

import msgspec

from holdfast import __version__
from holdfast.web.auth import ANYONE
from holdfast.web.routing import ApiAnswer, ApiCall


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """What answers here, and to whom."""

    version: str
    store: str
    """The kind of the database: sqlite or postgres."""
    durability: str
    name: str
    """Who asks, as the audit trail will call them."""
    role: str
    features: list[str] = []
    """What can be done here beside looking: code at hand, acts."""
    database: str = ""
    """The name of the database, of a file without its folder and ending."""
    open: bool = False
    """Whether anyone who reaches it is let in as an admin: dangerously_open=True."""
    logs_url: str = ""
    """Where the logs of a run are found, with {run_id} for its id."""


async def server(call: ApiCall) -> ApiAnswer:
    store = await call.desk.store()
    return ApiAnswer(
        ServerView(
            version=__version__,
            store=store.kind,
            durability=store.durability,
            name=call.who.name,
            role=call.who.role,
            features=["code", "acts", "bulk", *(["reveal"] if call.redaction.reveals else [])],
            database=store.name,
            open=call.who is ANYONE,
            logs_url=call.logs_url,
        )
    )


async def live(call: ApiCall) -> ApiAnswer:
    """Stand in the table for what the application answers itself: a stream."""
    raise NotImplementedError
