"""What every face shows, as records: the same for `--json`, for other programs and, rendered, for people.

Instants are aware datetimes in UTC. While the number of a schema stays the same, fields are only added.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of the HTTP API; its path begins where the dashboard is mounted, and has the query."""

    method: str
    path: str
    body: dict[str, Any] | None = None


class Help(msgspec.Struct, frozen=True, kw_only=True):
    """What would move a run: in words, the command that does it, and the HTTP request that does the same."""

    say: str
    command: str = ""
    request: HttpRequest | None = None


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs there are, or, if it is not exact, that there are at least so many."""

    n: int
    exact: bool


class SourceLine(msgspec.Struct, frozen=True, kw_only=True):
    """The line of workflow code at which a run waits."""

    file: str
    line: int
    text: str


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run is where it is. `code` is stable; the words of `sentence` are not."""

    run: str
    code: str
    sentence: str
    since: datetime | None = None
    until: datetime | None = None
    subject: dict[str, str] = {}
    """What it is about, by kind: step, message, child, key, queue, limit, worker."""
    chain: list[Why] = []
    """Why the run goes on that this one waits for: a child, or the holder of a key."""
    source: SourceLine | None = None
    help: list[Help] = []
    others: Count | None = None
    """Of a run whose step is tried again, asked for by itself: how many other runs wait to try that step again."""


class ErrorHead(msgspec.Struct, frozen=True, kw_only=True):
    """An error without its traceback, and of its message the beginning."""

    type: str
    message: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A run without its payloads."""

    id: str
    workflow: str
    version: str
    status: str
    why: Why
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None = None
    due_at: datetime | None = None
    begins_at: datetime | None = None
    deadline_at: datetime | None = None
    waiting_for: str = ""
    priority: int = 0
    parent: str | None = None
    unique_key: str | None = None
    actor: str | None = None
    tenant: str | None = None
    attributes: dict[str, Any] = {}
    error: ErrorHead | None = None
    failed_step: str | None = None
    worker: str | None = None
    process: str = ""
    """Where that worker is: its host and process, as far as that is known."""
    reopened: int = 0
    generation: int = 0


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that were found, newest first; `next` is where to go on, None at the end.

    `partial` says that the search ended at its budget: it came as far as runs that were created at `searched_to`.
    """

    as_of: datetime
    """When it was looked, by the store's clock."""
    items: list[Head]
    next: str | None = None
    partial: bool = False
    searched_to: datetime | None = None


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a run."""

    path: str
    name: str
    status: str
    attempts: int
    failures: int
    started_at: datetime | None = None
    finished_at: datetime | None = None
    next_attempt_at: datetime | None = None
    heartbeat_at: datetime | None = None
    progress: Any = None
    result: Any = None
    error: ErrorHead | None = None
    traceback: str = ""
    """Of the error of a step that is not completed: its end, where it is long."""
    reason: str = ""
    compensation: bool = False
    idempotency_key: str = ""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One run with its payloads and its steps."""

    as_of: datetime
    head: Head
    input: Any
    output: Any
    error: dict[str, Any] | None
    compensation: list[dict[str, Any]] | None
    steps: list[StepView]
    entries: int
    """How many facts its history has."""
    partial: bool = False
    """Whether only the newest facts were looked at: `steps` began in them, and `entries` is the number of the last."""


class StepList(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a run, in the order in which its code called them; of a long one (`partial`) the newest."""

    run: str
    items: list[StepView]
    partial: bool = False


class ResultView(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended, or, if it has not, where it stands; `said` is why, in a sentence."""

    run: str
    status: str
    ended: bool
    said: str
    output: Any = None
    error: dict[str, Any] | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a run answered to a request or a query."""

    run: str
    name: str
    answer: Any


class EntryView(msgspec.Struct, frozen=True, kw_only=True):
    """One fact of a run's history."""

    seq: int
    at: datetime
    kind: str
    path: str
    data: Any
    archived: bool = False


class HistoryPage(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a run's history in their order; `next` is the number after which there are more."""

    run: str
    items: list[EntryView]
    next: int | None = None


class BodyView(msgspec.Struct, frozen=True, kw_only=True):
    """A step body that runs on a worker."""

    run: str
    step: str
    attempt: int
    since: datetime


class StatusCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs have a status: exactly, or (`exact` False) at least so many; `as_of` is when that was counted."""

    status: str
    n: int
    exact: bool
    as_of: datetime


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A process that advances runs: alive, silent (its lease lapsed) or dead."""

    id: str
    state: str
    host: str
    pid: int
    heard_at: datetime
    joined_at: datetime
    holdfast: str = ""
    python: str = ""
    queues: list[str] = []
    workflows: dict[str, str] = {}
    """What it advances: the newest version that it has of each."""
    unserved: dict[str, str] = {}
    """Workflows that it knows and does not advance, because it does not serve their queue, with that queue."""
    max_steps: int = 0
    steps: int = 0
    """How many step bodies ran when it was last heard of, and how many runs it had in memory."""
    runs: int = 0
    bodies: list[BodyView] = []
    """The bodies that had run longest."""


class HouseFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at, how it is, and what to do about it."""

    level: Literal["ok", "warn", "fail"]
    subject: str
    said: str
    remedy: str = ""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """How runs and workers are, in short."""

    kind: str
    schema_number: int
    durability: str
    size: int | None
    runs: dict[str, Count]
    """How many there are of each status that has any, counted up to 10,000."""
    workers: dict[str, int]
    """How many there are by state."""
    overdue: Count
    letters: Count
    """Dead letters that no person has seen."""
    attention: list[Head]
    """The newest runs that a person should look at."""
    findings: list[HouseFinding] = []
    """What else is wrong with the database and its workers, as the doctor says it."""


class Acted(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an act: `changed` is False where what it is about was in no state for it, and `said` says so."""

    run: str
    """The run, or the dead letter, schedule, queue, workflow or limit that it is about."""
    action: str
    changed: bool
    said: str = ""
    error: str = ""
    """The class of what went wrong."""
    steps: list[str] = []
    """Of a retry or rerun: the steps that are done again."""
    unsure: dict[str, str] = {}
    """Of these, those whose last attempt may have had an effect, and why; `undone` ones get new idempotency keys."""
    undone: list[str] = []
    children: list[str] = []
    started: list[str] = []
    """Of a backfill: the runs that were started."""
    count: int = 0
    """Of a publish: how many runs were given the event."""


class SelectionView(msgspec.Struct, frozen=True, kw_only=True):
    """What acting on many would come to; `selection` is what to give to the act itself, for ten minutes.

    With `exact` False more match than were counted (10,000, or the newest 200), and the numbers are those of these.
    """

    selection: str
    action: str
    matched: int
    exact: bool
    can: int
    cannot: dict[str, int] = {}
    """How many cannot, by their status."""
    sample: list[str] = []
    """The first of those that can."""
    expires_at: datetime


class BulkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What acting on many has come to so far."""

    action: str
    changed: int
    cannot: dict[str, int] = {}
    """How many were in no state for it, by what they were."""
    failed: dict[str, int] = {}
    """How many it went wrong for, by the class of the error."""
    errors: dict[str, str] = {}
    """What was said of the first of those, by run."""
    next: int | None = None
    finished: bool = False


class LetterView(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter: work given up on, or an event that no run could take. `outcome` says what became of it."""

    id: str
    kind: str
    run: str
    workflow: str
    step: str
    name: str
    attempts: int
    at: datetime
    error: ErrorHead | None = None
    seen: bool = False
    outcome: str = ""


class LetterDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter with what it holds: the error as it was recorded, and the event or the arguments of the step."""

    letter: LetterView
    error: dict[str, Any] | None = None
    payload: Any = None
    target_status: str = ""
    """Of an event: what the run was that it was meant for."""
    sent_at: datetime | None = None
    compensation: bool = False
    idempotent: bool = False


class LetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters with one cause: the same workflow, step and class of error."""

    workflow: str
    step: str
    error: str
    count: int
    first: datetime
    last: datetime
    example: str
    """The id of the newest."""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts of one activity in one queue. Counts of 10,000 mean as many or more."""

    queue: str
    activity: str
    waiting: int
    taken: int
    oldest: datetime | None = None
    """Since when the one that waits longest does."""
    paused: bool = False
    workers: int = 0
    """How many workers that are alive serve the queue."""


class EventNameView(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one name: how many are queued, and how many receives wait for them."""

    name: str
    queued: int
    waiting: int
    oldest: datetime | None = None
    since: datetime | None = None
    """Since when the receive waits that waits longest."""
    rule: str = ""
    """To whom it is given, where the engine at hand declares that."""


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """An event that waits for a run to receive its name."""

    n: int
    name: str
    id: str
    payload: Any
    at: datetime


class EventWaiterView(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waits for an event, and since when."""

    run: str
    since: datetime


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events queued under a name, oldest first, and runs that wait; `next` is the number after which there are more."""

    name: str
    queued: list[EventView]
    waiting: list[EventWaiterView]
    next: int | None = None


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule: what it starts, and when; `wrong` says what of it cannot be read here."""

    id: str
    workflow: str
    when: str
    """Its timetable, as people write it."""
    paused: bool
    next_at: datetime | None = None
    until: datetime | None = None
    last_run: str | None = None
    last_status: str = ""
    """How that run stands; empty where it was purged."""
    overlap: str = ""
    catch_up: str = ""
    jitter: timedelta = timedelta(0)
    input: Any = None
    wrong: str = ""


class HeldBackView(msgspec.Struct, frozen=True, kw_only=True):
    """What flow control holds back: a run, or a step of it; `kind` is limit, workflow or queue."""

    code: str
    kind: str
    name: str
    key: str = ""
    step: str = ""
    since: datetime | None = None
    until: datetime | None = None


class VerdictView(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a chain of rows is whole: so many hold, up to the hash `last`; the row `broken_at` does not."""

    ok: bool
    checked: int
    broken_at: int | None = None
    last: str = ""


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was done, and by whom."""

    n: int
    at: datetime
    actor: str
    action: str
    target: str
    detail: Any


class AuditPageView(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of the audit trail, newest first; `next` is the number to go on below, `partial` as in a page of runs."""

    items: list[AuditView]
    next: int | None = None
    partial: bool = False
