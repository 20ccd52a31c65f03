"""What a handle needs of the runtime that its run is on; each runtime implements it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.changes import Change
from holdfast.contract.rows import EntryRow, Message, RunRow, RunStanding
from holdfast.contract.turns import Audit
from holdfast.definitions import Registry, Workflow

if TYPE_CHECKING:
    from holdfast.engine.client.reopen import Redo
    from holdfast.engine.views.run import Run
    from holdfast.engine.views.timeline import TimelineItem


class Starter(Protocol):
    """Starts runs."""

    async def start(
        self,
        workflow: Workflow[Any, Any] | str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        said: Mapping[str, Any],
        audit: Audit | None = None,
    ) -> tuple[str, Any, bool]:
        """Start a run, or find the one that is there; return its id, the type of its result, and whether it is new."""
        ...


class Talking(Protocol):
    """Messages, requests and questions."""

    async def send(
        self,
        run_id: str,
        name: str,
        payload: object,
        message_id: str | None,
        dead_letter: bool,
        connection: object,
        by: str | None,
        reason: str,
    ) -> bool: ...
    async def request(self, run_id: str, name: str, payload: object, by: str | None, reason: str) -> str: ...
    async def query(
        self, run_id: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], answer_type: Any
    ) -> Any: ...


class Reopening(Protocol):
    """Letting runs go on that have ended."""

    async def retry(self, run_id: str, by: str | None, reason: str, *, dry_run: bool = False) -> Redo | None: ...
    async def rerun(
        self, run_id: str, from_step: str | None, by: str | None, reason: str, dry_run: bool = False
    ) -> Redo: ...


class Acting(Protocol):
    """What is done to a run."""

    @property
    def reopener(self) -> Reopening: ...
    async def cancel(self, run_id: str, compensate: bool, by: str | None, reason: str) -> bool: ...
    async def terminate(self, run_id: str, by: str | None, reason: str) -> bool: ...
    async def pause(
        self, run_id: str, until: datetime | None, duration: timedelta | None, by: str | None, reason: str
    ) -> bool: ...
    async def resume(self, run_id: str, by: str | None, reason: str) -> bool: ...
    async def nudge(self, run_id: str, step: str, by: str | None, reason: str) -> bool: ...
    async def recover(self, run_id: str, by: str | None, reason: str) -> bool: ...
    async def set_attributes(self, run_id: str, attributes: Mapping[str, Any], by: str | None, reason: str) -> None: ...


class RunPort(Protocol):
    """The side of a runtime that looks at one run, talks to it and acts on it."""

    @property
    def patience(self) -> float:
        """How many seconds a call of a caller may take."""
        ...

    @property
    def registry(self) -> Registry: ...
    @property
    def control(self) -> Acting: ...
    @property
    def messaging(self) -> Talking: ...

    async def row(self, run_id: str) -> RunRow:
        """Return a run as it stands; raises NoSuchRun."""
        ...

    async def describe(self, run_id: str) -> Run:
        """Return everything known about a run."""
        ...

    async def end_of(self, run_id: str) -> RunStanding:
        """Wait for a run to end, or to be blocked."""
        ...

    async def reply_to(self, request: str, run_id: str) -> str:
        """Wait for a run's reply to a request."""
        ...

    async def evict(self, run_id: str) -> bool:
        """Let a run that waits leave the memory of this process."""
        ...

    async def inbox(self, row: RunRow) -> list[Message]:
        """Return what was sent to a run and its code has not taken."""
        ...

    async def history(self, row: RunRow) -> list[EntryRow]:
        """Return a run's entries, in order."""
        ...

    async def beats(self, row: RunRow) -> dict[str, tuple[int, str]]:
        """Return what steps under way said of their progress."""
        ...

    async def timeline(self, run_id: str) -> list[TimelineItem]:
        """Return all that happened to a run."""
        ...

    def follow(self, run_id: str) -> AsyncIterator[Change]:
        """Yield what happens to a run from now on."""
        ...
