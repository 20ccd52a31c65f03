"""The reading side of the store contract: the queries of faces, each of which reads a bounded number of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from holdfast.clock import Instant
from holdfast.contract.figures import FigureFilter, FigurePage
from holdfast.contract.heads import MOST_COUNTED, Counted, EndsPage, HeadFilter, HeadPage, RunHead, WorkerRow
from holdfast.contract.house import (
    MOST_NAMES,
    MOST_VALUES,
    AuditFilter,
    AuditPage,
    EventNameRow,
    EventQueueRow,
    EventWaiterRow,
    KeyHolder,
    LetterGroupRow,
    QueueRow,
)
from holdfast.contract.limits import Admission
from holdfast.contract.rows import AuditRow, EntryRow


class Looks(ABC):
    """What a store answers to people and programs that only look.

    No question reads more than SCAN_BUDGET rows of runs, however many there are, and none returns a payload.
    """

    @abstractmethod
    async def heads(self, which: HeadFilter) -> HeadPage:
        """Return a page of runs without their payloads, newest first.

        The search is driven by whichever condition fewest runs meet. When it has looked at SCAN_BUDGET rows it answers
        with what it found, `partial`, and a key to go on below. Every run that meets the conditions is on exactly one
        page of those that follow each other.
        """

    @abstractmethod
    async def heads_of(self, run_ids: Sequence[str]) -> dict[str, RunHead]:
        """Return runs without their payloads by id; those that do not exist are left out."""

    @abstractmethod
    async def purged(self, run_ids: Sequence[str], at: Instant) -> frozenset[str]:
        """Return which of these ids are those of purged runs, and at an instant still kept from being used again."""

    @abstractmethod
    async def count(self, which: HeadFilter, most: int = MOST_COUNTED) -> Counted:
        """Count runs, up to `most` of them, or as far as SCAN_BUDGET goes; `limit` and `before` are not looked at."""

    @abstractmethod
    async def ends(self, which: HeadFilter, most: int = MOST_COUNTED) -> EndsPage:
        """Return when runs ended, and how: of the newest `most` that meet conditions, or as far as SCAN_BUDGET goes.

        Figures are counted by workflow and step; this tells the same of any other condition. `limit` and `before` are
        not looked at, and runs that have not ended are left out.
        """

    @abstractmethod
    async def ended_counts(self) -> dict[str, int]:
        """Return how many runs have ended, by status: it looks at all of them, in an index; ask it seldom."""

    @abstractmethod
    async def workers(self) -> list[WorkerRow]:
        """Return the workers that there are, and those that died of late, by id."""

    @abstractmethod
    async def last_acts(self, targets: Sequence[str], actions: Sequence[str]) -> dict[str, AuditRow]:
        """Return which of some acts was done last to each of some targets, as the audit trail has it."""

    @abstractmethod
    async def key_holders(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], KeyHolder]:
        """Return which runs hold idempotency keys, by activity and key; of keys that are held."""

    @abstractmethod
    async def waiting_since(self, keys: Sequence[int]) -> dict[int, Instant]:
        """Return since when runs, by their keys, wait in their oldest receive."""

    @abstractmethod
    async def facts_of_kind(self, key: int, kind: int, before: int) -> list[EntryRow]:
        """Return the facts of one kind that a run has before a number, in their order: of many the few that matter."""

    @abstractmethod
    async def unread_names(self, keys: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """Return the names of messages and events that runs, by their keys, have not received, oldest first.

        Of each run the newest MOST_UNREAD rows of its inbox are looked at; those that have none are left out.
        """

    @abstractmethod
    async def attempts_given_up(self, steps: Sequence[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """Return how often steps were tried, by run and path, as their newest dead letters say."""

    @abstractmethod
    async def takers(self, places: Sequence[tuple[int, str]]) -> dict[tuple[int, str], str]:
        """Return the workers that took an attempt of runs, by their keys, from queues; of those that were taken."""

    @abstractmethod
    async def queues(self) -> list[QueueRow]:
        """Return the attempts that wait in queues or were taken from them, by queue and activity."""

    @abstractmethod
    async def event_names(self) -> list[EventNameRow]:
        """Return the names under which events are queued or receives wait, in the order of the names."""

    @abstractmethod
    async def event_waiters(self, name: str, limit: int = 50) -> list[EventWaiterRow]:
        """Return receives that wait for a name, those that wait longest first."""

    @abstractmethod
    async def workflow_names(self, prefix: str = "", limit: int = MOST_NAMES) -> list[str]:
        """Return the names of workflows that have runs, those that begin with a prefix, in their order."""

    @abstractmethod
    async def attribute_names(self, prefix: str = "", limit: int = MOST_NAMES) -> list[str]:
        """Return the names of attributes that runs have, those that begin with a prefix, in their order."""

    @abstractmethod
    async def attribute_values(self, name: str, prefix: str = "", limit: int = MOST_VALUES) -> list[str]:
        """Return values that runs have for an attribute, as JSON texts that begin with a prefix, in their order."""

    @abstractmethod
    async def acts(self, which: AuditFilter) -> AuditPage:
        """Return a page of the audit trail, newest first.

        A target is found by its index, an instant by its place in the trail, and everything else by going down it for
        at most SCAN_BUDGET rows; `partial` and `next` are as those of `heads`.
        """

    @abstractmethod
    async def figures(self, which: FigureFilter) -> FigurePage:
        """Return how often runs or steps ended and how long they took, added up over all workers.

        Minutes are kept for two days, hours for as long as `Retention.figures` says. At most SCAN_BUDGET rows are added
        up, the newest: `partial` and `since` of the page say how far that went.
        """

    @abstractmethod
    async def letter_groups(self) -> list[LetterGroupRow]:
        """Return the newest MOST_LETTERS dead letters of each kind that are neither seen nor dealt with, by cause.

        A cause is the workflow, step, name and class of error; a StepFailed, which stands for another error, goes by
        the beginning of its message, too.
        """

    @abstractmethod
    async def event_queues(self, names: Sequence[str]) -> dict[str, EventQueueRow]:
        """Return those of some names under which events were published: what waits, and who was given the last."""

    @abstractmethod
    async def admissions(self, keys: Sequence[int]) -> dict[int, Admission]:
        """Return how runs, by their keys, wait to be begun; those that do not are left out."""
