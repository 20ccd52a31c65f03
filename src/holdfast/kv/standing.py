"""The state of a run when `drive` stops, and the reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

import msgspec

from holdfast.payloads.codec import ErrorData

R = TypeVar("R")
State = Literal["completed", "failed", "cancelled", "sleeping", "waiting", "paused", "evicted", "blocked"]
ENDED = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Standing(Generic[R]):
    """Where a run stands: its end, or what it waits for.

    `completed`, `failed` and `cancelled` are ends. A `sleeping` run goes on at `until`. A `waiting` one goes on when a
    message with one of the names in `waits_for` is delivered, or at `until` if it has one. A `paused` one goes on when
    `resume` is delivered. `evicted`: this driver gave it up, because its lifespan was over, another driver has the run,
    or it was asked to. `blocked`: the code cannot go on with this history, as `error` says; what
    steps had achieved is kept, and the run is tried again at `until`, in case there is other code.
    """

    state: State
    id: str
    output: R | None = None
    error: ErrorData | None = None
    until: datetime | None = None
    waits_for: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self.state in ENDED


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run from its beginning, as stored."""

    id: str
    workflow: str
    version: str
    created: int
    seed: int
    digest: int
    generation: int = 0
    timeout: int | None = None


class StoredState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a run stands, as stored."""

    state: str
    until: int | None = None
    waits_for: list[str] = []


EVICTED = StoredState(state="evicted")
"""Where a run stands whose driver was told to leave it: what that had under way is no loss."""


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was delivered: a message, or what an operator asks."""

    kind: str = "message"
    name: str = ""
    id: str = ""
    payload: msgspec.Raw = msgspec.Raw(b"null")
    at: int = 0


class StoredResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a step left under its idempotency key."""

    digest: int
    result: msgspec.Raw
    expires: int


def is_paused(messages: Iterable[tuple[bytes, StoredMessage]]) -> bool:
    """Tell whether the last that was said of pausing is to pause; a run that is cancelled is not paused."""
    kinds = [message.kind for _, message in messages]
    said = [kind for kind in kinds if kind in ("pause", "resume")]
    return said[-1:] == ["pause"] and not {"cancel", "compensate"}.intersection(kinds)


def encoded(value: Any) -> bytes:
    """Return the stored form of one of these."""
    return msgspec.json.encode(value)
