"""What faces read from a store about many runs: heads without payloads, filters, pages that say how far they came."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.clock import Instant
from holdfast.contract.rows import Status

SCAN_BUDGET = 50_000
"""How many rows one question about many runs may look at: then it answers with what was found, and how far it came."""
MOST_COUNTED = 10_000
"""How far runs are counted unless it is said otherwise."""
MOST_UNREAD = 100
"""How many rows of an inbox are looked at for the names of what was not received."""
ERROR_HEAD = 300
"""How many characters of an error's message are part of a head."""


class RunHead(msgspec.Struct, frozen=True, kw_only=True):
    """A run without its payloads: input and result can be megabytes, and a list shows neither."""

    key: int
    id: str
    workflow: str
    version: str
    status: Status
    wait: str
    due: Instant | None
    epoch: int
    owner: str | None
    generation: int
    inbox: int
    claims: int
    lost: str
    parent: str | None
    created: Instant
    updated: Instant
    ended: Instant | None
    begins: Instant | None
    deadline: Instant | None
    priority: int
    unique_key: str | None
    actor: str | None
    tenant: str | None
    reopens: int
    conclusion: str | None
    place: int
    fingerprint: str | None
    attributes: str
    """A JSON object of the searchable attributes."""
    error_type: str | None
    error_message: str | None
    """The first ERROR_HEAD characters of it."""
    failed_step: str | None
    """The path of the call whose failure ended it, empty if its own code raised."""
    compensated: bool
    """Whether something was undone, or tried to be, when it ended."""


class HeadFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to show, newest first: those that meet every condition; `before` is the key to go on below."""

    statuses: tuple[Status, ...] = ()
    """Any of these; all if there are none. So with `workflows`."""
    workflows: tuple[str, ...] = ()
    not_workflows: tuple[str, ...] = ()
    id_prefix: str | None = None
    parent: str | None = None
    actor: str | None = None
    tenant: str | None = None
    unique_key: str | None = None
    version: str | None = None
    attributes: dict[str, str] = {}
    """JSON values that the attributes of these names must have."""
    waiting: str | None = None
    """How what it waits for begins: `message approved`, `child`, `retry`; or `step PATH`, the step that waits."""
    created_from: Instant | None = None
    created_until: Instant | None = None
    ended_from: Instant | None = None
    ended_until: Instant | None = None
    quiet_since: Instant | None = None
    """It was not written since."""
    due_until: Instant | None = None
    """It wants a worker since then or earlier."""
    owners: tuple[str, ...] = ()
    """Any of these workers has it; whoever does, or none, if there are none."""
    limit: int = 50
    before: int | None = None
    budget: int = SCAN_BUDGET
    """How many rows may be looked at, if that is fewer than SCAN_BUDGET."""
    thorough: bool = False
    """Whether a search goes on to its last row where each takes long."""


class HeadPage(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that were found, and how far was looked for them."""

    heads: list[RunHead]
    next: int | None
    """The key to go on below; None when all was looked at."""
    partial: bool = False
    """Whether the budget ended the search: there may be more than were found, below `next`."""
    scanned: int = 0
    """How many rows were looked at, to choose the index to go down among them."""
    searched_to: Instant | None = None
    """When the oldest run that was looked at was created, if the search is not over."""


class Counted(NamedTuple):
    """How many runs there are, or that there are at least so many."""

    n: int
    exact: bool
    scanned: int = 0
    """How many rows were looked at."""


class EndsPage(NamedTuple):
    """When runs ended, and with which status; not `exact` if there may be more than were looked at."""

    ends: list[tuple[Instant, str]]
    exact: bool
    scanned: int = 0


class WorkerAbout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker serves, as it said when it joined."""

    holdfast: str = ""
    python: str = ""
    queues: list[str] = []
    workflows: dict[str, str] = {}
    """The newest version of each that it knows, by name."""
    unserved: dict[str, str] = {}
    """The queues of those whose runs it does not advance, because it does not serve their queue, by name."""
    fingerprints: dict[str, str] = {}
    """Of the code of each, by name."""
    max_steps: int = 0
    lease: int = 0
    """In microseconds."""

    def advances(self, workflow: str) -> bool:
        """Whether this worker advances runs of a workflow."""
        return workflow in self.workflows and workflow not in self.unserved


class CarriedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A body that runs, and since when."""

    run: str
    step: str
    attempt: int
    since: Instant


class WorkerLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker carried when it last renewed its lease."""

    steps: int = 0
    """How many bodies ran."""
    runs: int = 0
    """How many runs it had in memory."""
    bodies: list[CarriedStep] = []
    """Those that had run longest, of those that had run for a second."""


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A process that advances runs.

    `state` is alive, silent (its lease lapsed, but it is not known to be dead) or dead. `heard` is when it last renewed
    its lease, by the store's clock.
    """

    id: str
    state: str
    host: str
    pid: int
    lease: int
    heard: Instant
    joined: Instant
    about: WorkerAbout = WorkerAbout()
    load: WorkerLoad = WorkerLoad()
