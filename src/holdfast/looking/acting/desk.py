"""The acts of a desk that are not about one run: each takes an actor and a reason, and is on record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from holdfast.looking.views import Acted, Answer, BulkProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.looking.acting.causes import LetterCause, LetterPlan
    from holdfast.looking.acting.limits import LimitNumbers
    from holdfast.looking.acting.purging import PurgeReport
    from holdfast.looking.acting.requests import (
        PurgeRequest,
        RevealedView,
        RevealRequest,
        ScheduleRequest,
        StartRequest,
        WorkKind,
    )
    from holdfast.looking.acting.tokens import NewToken, TokenRequest, TokenView


class Acts(ABC):
    """What a desk does. Every act returns what changed; what was refused changed nothing, and is raised."""

    # Runs.

    @abstractmethod
    async def start(self, request: StartRequest, *, by: str, reason: str = "") -> Acted:
        """Start a run; `changed` is False where the run was there before.

        Raises:
            RunConflict, UniqueConflict, RunRejected, BadInput: as `Engine.start` does.
        """

    @abstractmethod
    async def send(
        self, run_id: str, name: str, payload: Any = None, *, by: str, reason: str = "", id: str | None = None
    ) -> Acted:
        """Send a run a message; `changed` is False where one with this id was sent before.

        Raises:
            NoSuchRun, RunTerminal: the run will never take it; nothing was stored.
            QueueFull, BadInput: too many wait already, or it cannot be sent.
        """

    @abstractmethod
    async def publish(
        self, name: str, payload: Any = None, *, by: str, reason: str = "", id: str | None = None
    ) -> Acted:
        """Publish an event; `count` says how many runs were given it.

        Raises:
            QueueFull, BadInput: too many wait already, or it cannot be published.
        """

    @abstractmethod
    async def ask(
        self, run_id: str, name: str, payload: Any = None, *, by: str, reason: str = "", timeout: timedelta
    ) -> Answer:
        """Send a run a request and wait for its reply.

        Raises:
            NoSuchRun, RunTerminal: it will never reply.
            TimeoutError: no reply came in time; the request stays.
        """

    @abstractmethod
    async def query(self, run_id: str, name: str, arguments: dict[str, Any] | None = None) -> Answer:
        """Ask the code of a run about its state, by replaying it with the code at hand; nothing is changed.

        Raises:
            NoSuchRun: there is no such run.
            UnknownQuery, BadInput: its code is not at hand, does not answer that, or has not come so far.
        """

    @abstractmethod
    async def reveal(self, run_id: str, request: RevealRequest, *, by: str, reason: str) -> RevealedView:
        """Return a value of a run as it is stored, though faces mask it; that it was seen is on record before that.

        Raises:
            NoSuchRun: there is no such run.
            BadInput: there is no such value, or no reason is given; nothing was put on record.
        """

    # What is paused as a whole.

    @abstractmethod
    async def pause_work(self, kind: WorkKind, name: str, *, by: str, reason: str = "") -> Acted:
        """Let nothing begin of a workflow, a queue or a limit until it is resumed; not `changed` if it was so before.

        Raises:
            UnknownLimit: no engine on this database declares it.
            BadInput: the name can be none.
        """

    @abstractmethod
    async def resume_work(self, kind: WorkKind, name: str, *, by: str, reason: str = "") -> Acted:
        """Let a paused workflow, queue or limit go on; not `changed` if it was not paused.

        Raises:
            UnknownLimit: no engine on this database declares it.
            BadInput: the name can be none.
        """

    @abstractmethod
    async def override_limit(self, name: str, numbers: LimitNumbers | None, *, by: str, reason: str = "") -> Acted:
        """Put other numbers of a limit in force, whatever engines declare, until None clears them.

        What began goes on; not `changed` if it was so before.

        Raises:
            UnknownLimit: no engine on this database declares it.
            BadInput: the numbers can be none of a limit.
        """

    # Dead letters.

    @abstractmethod
    async def acknowledge(self, letter_id: str, *, by: str, reason: str = "") -> Acted:
        """Note that a dead letter was seen; not `changed` if it was before.

        Raises:
            NoSuchLetter: there is none.
        """

    @abstractmethod
    async def replay(
        self, letter_id: str, *, by: str, reason: str = "", to: str | None = None, broadcast: bool = False
    ) -> Acted:
        """Let the run of a dead letter go on, or deliver its event again; not `changed` if it was dealt with before.

        Raises:
            NoSuchLetter: there is none.
            CannotReopen, NoSuchRun, RunTerminal, QueueFull, BadInput: it cannot be done; nothing was changed.
        """

    @abstractmethod
    async def remove_letter(self, letter_id: str, *, by: str, reason: str = "") -> Acted:
        """Forget a dead letter; not `changed` if there is none (any more)."""

    @abstractmethod
    async def plan_letters(self, action: str, cause: LetterCause) -> LetterPlan:
        """Return what acting on all unseen dead letters of a cause would come to; nothing is changed.

        Raises:
            BadInput: the act is none of replay, acknowledge and remove.
        """

    @abstractmethod
    def act_on_letters(
        self, action: str, cause: LetterCause, until: str, *, by: str, reason: str = ""
    ) -> AsyncGenerator[BulkProgress, None]:
        """Act on the unseen dead letters of a cause up to one, the `until` of a plan; tell after each page how it goes.

        Leave the iteration to stop after the page in hand; the same again does the rest.

        Raises:
            BadInput: the act is none, or it is not said up to which letter.
        """

    # Schedules.

    @abstractmethod
    async def put_schedule(self, id: str, request: ScheduleRequest, *, by: str, reason: str = "") -> Acted:
        """Create a schedule or change the one of that id; not `changed` if it was so before.

        Raises:
            InvalidSchedule, UnknownWorkflow, BadInput: it means nothing, or its workflow is not at hand.
        """

    @abstractmethod
    async def pause_schedule(self, id: str, *, by: str, reason: str = "") -> Acted:
        """Let a schedule start nothing until it is resumed; not `changed` if it was paused before.

        Raises:
            NoSuchSchedule: there is none.
        """

    @abstractmethod
    async def resume_schedule(self, id: str, *, by: str, reason: str = "") -> Acted:
        """Let a paused schedule go on with the next tick from now; not `changed` if it was not paused.

        Raises:
            NoSuchSchedule: there is none.
        """

    @abstractmethod
    async def trigger_schedule(self, id: str, *, by: str, reason: str = "") -> Acted:
        """Start a run of a schedule now, and name it; the code of its workflow must be at hand.

        Raises:
            NoSuchSchedule: there is none.
            UnknownWorkflow, UndecodablePayload, RunRejected: it cannot be started.
        """

    @abstractmethod
    async def backfill_schedule(
        self, id: str, start: datetime, end: datetime, *, by: str, reason: str = "", limit: int = 1_000
    ) -> Acted:
        """Start the runs of past ticks, from `start` on and before `end`, that were not started; `started` names them.

        Raises:
            NoSuchSchedule: there is none.
            UnknownWorkflow, UndecodablePayload, BadInput: they cannot be started, or are more than `limit`.
        """

    @abstractmethod
    async def delete_schedule(self, id: str, *, by: str, reason: str = "") -> Acted:
        """Forget a schedule; its runs stay.

        Raises:
            NoSuchSchedule: there is none.
        """

    # Deleting.

    @abstractmethod
    async def purge(self, request: PurgeRequest, *, by: str, reason: str = "", dry_run: bool = True) -> PurgeReport:
        """Delete what is old enough, or, unless `dry_run` is False, only count it.

        Raises:
            BadInput: no kind is named, or no age.
        """

    # Tokens.

    @abstractmethod
    async def create_token(self, request: TokenRequest, *, by: str, reason: str = "") -> NewToken:
        """Make a token of the HTTP API; it is in this answer, and kept nowhere.

        Raises:
            BadInput: the name or the time can be none.
        """

    @abstractmethod
    async def revoke_token(self, id: str, *, by: str, reason: str = "") -> Acted:
        """Let a token, named by its id, be used no more."""

    @abstractmethod
    async def tokens(self) -> list[TokenView]:
        """Return the tokens that there are, those that are over too, newest first."""
