"""The store contract: what an engine may rely on, whichever database is underneath.

One method is one transaction, idempotent or fenced. Acknowledged means durable: when a writing method returns, its
effect survives what the store's `durability` promises. A store knows rows, never their meaning.

Who may write what
    A run has an `owner` (a worker) and an `epoch`. Taking a run bumps its epoch. A `CommitTurn` is applied only while
    its epoch is the run's and the run has not ended; otherwise the outcome is `Fenced` and nothing of it is written:
    no entry, no message, no child. Leases make overlap rare, epochs make it harmless.
    Only the owner appends to a run's history. Every other process writes to its inbox.

When a run needs attention
    `due` is the instant from which a run needs a worker. A claim takes due runs that have no owner, or a worker
    declared dead. Putting a row into the inbox raises the run's inbox number and makes it due at once. So a run sees a
    message committed before it parks (`State.seen`), and a message committed after that wakes it. There are two
    exceptions: a run that no worker ever claimed is not due before it begins, and a paused or blocked run is due only
    by its own rules.

Terminal is final
    No operation but Reopen changes the status, output or error of a completed, failed or cancelled run. No operation at
    all changes those of a moved run.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from holdfast.clock import Clock, Instant
from holdfast.contract.figures import Figure
from holdfast.contract.limits import Admission, LimitKeyRow, LimitRow, LimitWait
from holdfast.contract.looking import Looks
from holdfast.contract.moves import Departure
from holdfast.contract.operations import Delivered, Fenced, Operation, Outcome, SendMessage, Transact
from holdfast.contract.rows import (
    AuditRow,
    Claim,
    Counts,
    EntryRow,
    EventRow,
    EvidenceRow,
    Held,
    History,
    LaneRow,
    LetterFilter,
    LetterRow,
    Message,
    PausedRow,
    RunFilter,
    RunRow,
    RunStanding,
    ScheduleRow,
    TakenOver,
    Task,
)
from holdfast.contract.tokens import TokenRow
from holdfast.contract.turns import Lane, StartRun
from holdfast.errors import BadInput, DefinitionError, RunBlocked
from holdfast.payloads import codec
from holdfast.payloads.errors import error_to_data

POISON_TRIALS = 3
"""A run that was driven alone so often without getting on is poison: it is blocked."""

POISON_ERROR = codec.encode(
    error_to_data(
        RunBlocked(
            "",
            "three workers in a row drove this run alone and none of them got a commit out of it: its code seems to "
            "crash or hang the process before its next step; put it right, then engine.get(run_id).recover()",
        )
    )
).decode()
"""The error of such a run, as JSON."""


class Store(Looks):
    """A database of runs; what faces ask of it is in `contract/looking.py`."""

    durability: str
    """`power` when acknowledged work survives power loss, `process` when it survives only the death of processes."""

    clock: Clock = Clock()
    """Whose time decides when something is due, unless an engine is given another: for a server, the server's."""

    @property
    def lease_clock(self) -> Clock:
        """Whose time leases and limits count by: one that is the same for all workers, and does not jump."""
        return self.clock

    @abstractmethod
    async def open(self, *, look_only: bool = False) -> None:
        """Open the database, applying missing migrations atomically under a lock.

        With `look_only` nothing is ever written: there is no migration and no worker can join. What would write
        raises ReadOnly.

        Raises:
            CannotOpen: with the path and the reason; no file was created or changed.
            SchemaTooOld, SchemaTooNew: another holdfast made the schema; nothing was written.
            NeedsUpgrade: the schema is an older one, and to look is all that was asked for.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release every resource. Calling it twice is harmless; any other method afterwards raises StoreClosed."""

    @abstractmethod
    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Make a batch durable in one transaction and return one outcome per operation, in order.

        Operations are independent: the refusal of one spoils no other. Within the batch they take effect in order.
        Data never makes a statement raise: a taken id, an ended target or an old epoch is an outcome.

        - `StartRun`: inserts the run unless the id is taken (`Existing`), also by a run that was purged and whose
          tombstone has not expired, or an open run of the workflow has its unique key (`KeyHeld`). Without owner it is
          pending and due when it may begin; with owner it is running with epoch 1 (and still unowned and due if that
          worker is not alive). The turn it carries is applied like a CommitTurn (`Started`).
        - `CommitTurn`: in this order: renewal forgets all entries; trims delete the entries whose location lies in
          [first, last); entries are appended; consumed inbox rows are deleted; sends and children are delivered or
          refused; effects are done; state or end is written. A run started as a child is pending, unowned and due at
          once; the key of its parent, if it has one, is this run's.
          An end sets owner and due to nothing, frees its unique key and its idempotency keys, empties the inbox (unread
          events go to other runs, unread messages where RunEnd.unread says; those of a run that did not complete stay
          for when it is reopened), and puts a `child_ended` row (name = the ended run's id, payload =
          RunEnd.payload) into the parent's inbox unless the parent has ended. A state with a conclusion frees the
          unique key, too, and is not taken back by later states.
          Of the effects unwaits come first, then publishes and returns (only of rows of kind event), then waits, each
          replacing what waited at its location. Waits are registered, and queued events given to them, before the
          state is written, so that a run parks with them in its inbox or is found by the next publisher. A state does
          not undo a cancel, pause or resume row that its turn has not seen: the run is cancelling, paused or pending.
          A task replaces the one at its location; `untasks` and the run's end delete what there is.
          Keys are taken, hit or held (`Committed.keys`); a step that waits for a key gets a `key_freed` inbox row
          (name = its location) in the commit that frees it.
        - `SendMessage`: `Delivered`, or `Refused` when the run does not exist (status None), has ended, or has so many
          messages of that name unread ("full"). A duplicate is told as such before a full queue is looked at.
        - `PublishEvent`: `Published`, to the run that has waited longest or to every waiting run, each at most once for
          all its life, or queued; `Refused` ("full"). An event stays as old as it is, however often it was given back.
        - `RequestCancel`: a run that has not ended becomes cancelling and gets one `cancel` inbox row (a second request
          while cancelling is Delivered again without a second row, unless it asks to compensate); one that was
          never claimed is cancelled at once, unless it is hooked: then it is due at once, whenever it was to begin. So
          are, likewise, its open children that go with it. `Refused` as above, and when it is compensating or decided.
        - `Terminate`: the run ends as given, and its open children that go with it are cancelled. `Refused` as above;
          also ("decided") if its end is decided otherwise than the caller knows.
        - `Pause`: a run with a living owner gets a `pause` row (payload: until when) and its owner's attention
          (`Delivered`); any other is paused at once (`Done`), due when the pause ends. Neither messages nor timers make
          a paused run due. `Refused` when it has ended, is decided, cancelling or blocked. `Unpause`: the reverse, with
          a `resume` row; `Refused` if it is not paused.
        - `Reopen`: an ended run becomes pending and due, at the next epoch, with its history cut; `Refused` ("moved")
          if it is not ended or its epoch is another, `KeyHeld` if its unique key is another's now. Nothing is changed
          then.
        - `SetAttributes`: also of ended runs.
        - `Unblock`: blocked runs become pending, due at once, with no claims counted and no error. A run blocked as
          poison has no fingerprint: only its name unblocks it.
        - `Tick`: if the schedule's next tick is the expected one, its runs are inserted (those whose ids are not taken)
          and the schedule moves on (`Done` with the ids); else `Refused` ("tick").
        - `FinishTask`: a `task_ended` inbox row (name = location, id = attempt, payload) in place of the task
          (`Delivered`), or `Fenced` if that attempt is no longer this worker's. `BeatTask`: `Committed` or `Fenced`.
        - `WriteToken`: the token is there, or revoked (`Done`); nothing is done if one has that id, or none is left.
        - `PauseWork`: what it names is paused, or not any more (`Done`); nothing is done if that is how it stands.
        - `MarkMoving`, `FinishMove`, `GiveUpMove`, `Nudge`, `Acknowledge`, `ReplayEvent`, `PutSchedule`, `PutOnRecord`,
          `DropSchedule`, `Purge`, `KeepResult`, `Beat`, and those of limits: see their records.
        Whatever carries an `Audit` and takes effect (not `Done(0)`, no duplicate) is recorded in the audit trail in
        the same transaction.

        Raises:
            StoreBusy, StoreFull, StoreReplaced, StoreError: nothing of the batch was written.
        """

    def apply_now(self, operations: Sequence[Operation]) -> list[Outcome] | None:
        """Do what `apply` does if that takes no waiting, on the caller's thread; None when it would have to wait.

        A shortcut for stores in this process. When it raises, nothing was written, as with `apply`.
        """
        return None

    def transact(
        self,
        attempt: Transact,
        body: Callable[[Any], str],
        now: Callable[[], Instant],
        expired: Callable[[], None],
    ) -> Delivered | Fenced:
        """Call `body` with a connection in a write transaction, and record there what it returns: all or nothing.

        What it returns is the payload of a `task` row (name = location, id = attempt) in the inbox of the run
        (`Delivered`). `Fenced` if the run has ended, is held under another epoch, or has begun a new life: then body is
        not called or, should that happen meanwhile, nothing of it is written. When body raises, nothing is written, and
        what it raised comes out. The body must not end the transaction itself.

        Blocking: called from a thread of its own. A body that takes longer than `attempt.limit` loses its connection,
        nothing of it is written, and `expired` is called from any thread; where the store cannot do that, body comes to
        its end first.

        Raises:
            StepTimeout: body took too long; nothing was written.
            DefinitionError: the limit is more than the store allows, the body did what it must not, or the store has no
                such transactions; nothing was written.
            StoreError: of the store's own doing; whether it was written is not known.
        """
        raise DefinitionError(
            f"transaction=True needs SQLite or PostgreSQL: {type(self).__name__} has no transactions for steps"
        )

    async def enclose(self, connection: object, operation: StartRun | SendMessage) -> Outcome:
        """Start a run or send a message inside the transaction that the caller has open on a connection of their own.

        It takes effect if and when that transaction commits. A run is started without owner; a message is delivered by
        the next worker that calls `relay`.

        Raises:
            BadInput: this store cannot, or the connection is not one that it could use.
        """
        raise BadInput("connection= needs a PostgreSQL database: a file has no transactions to share")

    async def relay(self) -> int:
        """Deliver messages that were sent inside transactions of others and committed since; return how many."""
        return 0

    @abstractmethod
    async def claim(
        self,
        worker: str,
        now: Instant,
        limit: int,
        workflows: Sequence[str],
        *,
        stuck: bool = True,
        oldest: bool = False,
    ) -> list[Claim]:
        """Take up to `limit` due runs of the named workflows for a worker, by priority, then most overdue first.

        With `oldest` the most overdue come first, whatever their priority.

        Each taken run becomes running (a cancelling or compensating one stays so) with this owner, the next epoch and
        no due time. A worker that is not alive gets nothing.

        `claims` says how a run fares since it last got on, which its next CommitTurn with `reset_claims` says: 0 it
        does; 1 it was taken, with others. Such runs are `stuck`: they are taken only when no other run is due, and one
        at a time. Then each trial counts two: an even number says that the run was taken alone, the odd one after it,
        written by a CommitTurn with `trial`, that it was about to be driven. Taken again after an even number it keeps
        that: nothing was tried. One that was driven in POISON_TRIALS trials is blocked instead, with POISON_ERROR.
        """

    @abstractmethod
    async def claim_waiting(
        self, worker: str, now: Instant, limit: int, lanes: Mapping[str, Lane], *, full: bool = False
    ) -> list[Claim]:
        """Take up to `limit` runs that wait in lanes of the named workflows, whose rules are given, for a worker.

        Lanes take turns: of those of the highest priority the one that waited longest gives its next run and goes to
        the end of the line, unless as many of its runs hold a place as may, or began within `per`. Each run that is
        taken becomes running with this owner and the next epoch, and holds its place until it ends; its deadline counts
        from here. A worker that is not alive gets nothing. A lane that was full is asked again when one of its runs
        ends; with `full` now: the rules may have changed.
        """

    @abstractmethod
    async def next_called(self, workflows: Sequence[str]) -> Instant | None:
        """Return when the next lane of the named workflows may give a run that may not give one before."""

    @abstractmethod
    async def lane_workflows(self) -> list[str]:
        """Return the workflows of which runs wait in lanes."""

    @abstractmethod
    async def load(self, keys: Sequence[int]) -> list[History]:
        """Read the histories and inboxes of claimed runs, each consistent in itself, in the order given."""

    @abstractmethod
    async def inboxes(self, after: Mapping[int, int]) -> dict[int, list[Message]]:
        """Return the unread inbox rows of runs, of each those with numbers above the one given, oldest first."""

    @abstractmethod
    async def due(self, worker: str, now: Instant) -> list[int]:
        """Return the keys of runs owned by this worker whose due time has come (their inbox moved, or a timer)."""

    @abstractmethod
    async def claim_tasks(
        self,
        worker: str,
        now: Instant,
        limit: int,
        queues: Sequence[str],
        activities: Sequence[str],
        *,
        at_once: Mapping[str, int] | None = None,
        oldest: bool = False,
    ) -> list[Task]:
        """Take up to `limit` attempts of the named activities from queues, by priority, then oldest first.

        With `oldest` priorities do not count. From a queue of `at_once` no more are taken than workers have fewer than
        that many of it.

        A worker that is not alive gets nothing. A task that has an owner is taken by no other worker. Those of a paused
        run or workflow wait.
        """

    @abstractmethod
    async def limited_tasks(
        self, limit: str, queues: Sequence[str], activities: Sequence[str]
    ) -> tuple[bool, Instant | None]:
        """Tell, without writing, whether a TakeTasks may find attempts that are not in line for their limit.

        Also from when on, by the lease's clock, the next of those in line may begin, if one was told so.
        """

    @abstractmethod
    async def held_tasks(self, worker: str) -> list[tuple[int, str, int]]:
        """Return the run, location and attempt of each task this worker has: others were given up meanwhile."""

    @abstractmethod
    async def held(self, worker: str) -> list[Held]:
        """Return the runs this worker owns, driven or parked.

        After a fault whose outcome is unknown a worker compares them with what it has, and hands back the rest.
        """

    @abstractmethod
    async def next_due(self, workflows: Sequence[str] | None = None) -> Instant | None:
        """Return when the next run (of the named workflows) that any worker may claim becomes due."""

    @abstractmethod
    def changed(self) -> bool:
        """Tell, cheaply and without blocking, whether another process may have committed since the last call."""

    when_changed: Callable[[], None] | None = None
    """What a store calls in the event loop when it hears that another process has committed; nothing depends on it."""

    @abstractmethod
    async def get(self, run_id: str) -> RunRow | None:
        """Return one run."""

    @abstractmethod
    async def standings(self, run_ids: Sequence[str]) -> dict[str, RunStanding]:
        """Return where runs stand, by id; those that do not exist are left out."""

    @abstractmethod
    async def runs(self, which: RunFilter) -> list[RunRow]:
        """Return runs, newest first."""

    @abstractmethod
    async def history(
        self, key: int, *, archived: bool = False, after: int = 0, limit: int | None = None, newest: bool = False
    ) -> list[EntryRow]:
        """Return a run's facts in order of seq, or all those cut away when it was reopened.

        Of its facts only those after a number, and of these the first `limit`, or with `newest` the last `limit`.
        """

    @abstractmethod
    async def departure(self, key: int) -> Departure:
        """Return what a run has beside its row, its history and its inbox, for it to move to another runtime."""

    @abstractmethod
    async def letters(self, which: LetterFilter) -> list[LetterRow]:
        """Return dead letters, newest first."""

    @abstractmethod
    async def audit(self, target: str | None = None, after: int = 0, limit: int = 1000) -> list[AuditRow]:
        """Return what people did (to one target), oldest first; each row carries the hash of the one before it."""

    @abstractmethod
    async def evidence(self, run_id: str, after: int = 0, limit: int = 1000) -> list[EvidenceRow]:
        """Return a run's own audit trail, oldest first, chained likewise; it outlives the run."""

    @abstractmethod
    async def schedules(self, due: Instant | None = None) -> list[ScheduleRow]:
        """Return every schedule, or those that are not paused and have a tick at or before an instant."""

    @abstractmethod
    async def paused(self) -> list[PausedRow]:
        """Return the workflows and queues that are paused. Claims do not look: a worker does not ask for those."""

    @abstractmethod
    async def tokens(self) -> list[TokenRow]:
        """Return every token, those that are over too, newest first."""

    @abstractmethod
    async def token(self, id: str) -> TokenRow | None:
        """Return one of them."""

    @abstractmethod
    async def secret(self, purpose: str) -> bytes:
        """Return what processes on this database sign with for each other: `selections`."""

    @abstractmethod
    async def lanes(self, limit: int = 20) -> list[LaneRow]:
        """Return the lanes in which most runs wait; it counts them, so it is for people."""

    @abstractmethod
    async def replies(self, messages: Sequence[str]) -> dict[str, str]:
        """Return the answers there are to requests, by the id of the message that asked."""

    @abstractmethod
    async def events(self, name: str | None = None, after: int = 0, limit: int = 1000) -> list[EventRow]:
        """Return events that wait, oldest first: those under a name after a number, or the oldest under any name."""

    @abstractmethod
    async def beats(self, key: int) -> dict[str, tuple[Instant, str]]:
        """Return when the steps of an open run last reported progress, and what they said, by location."""

    @abstractmethod
    async def limits(self) -> list[LimitRow]:
        """Return the limits that workers share."""

    @abstractmethod
    async def limit_keys(self, name: str, limit: int = 20) -> list[LimitKeyRow]:
        """Return the keys of a limit that are in use, those for which most wait first."""

    @abstractmethod
    async def limit_waits(self, key: int) -> list[LimitWait]:
        """Return the steps of a run that wait for limits, attempts in queues included."""

    @abstractmethod
    async def admission(self, key: int) -> Admission | None:
        """Return how a run waits for its turn or for a place; None if it does not."""

    @abstractmethod
    async def limits_to_see_to(self, now: Instant, paused: Sequence[tuple[str, str]] = ()) -> bool:
        """Tell whether a GrantTurns would find anything to do, at an instant of the lease's clock; see there."""

    @abstractmethod
    async def counts(self) -> Counts:
        """Return how much there is of everything."""

    @abstractmethod
    async def join(self, worker: str, lease: timedelta, about: str = "{}") -> None:
        """Announce a worker, alive until its lease lapses unless renewed; `about` is a WorkerAbout as JSON."""

    @abstractmethod
    def renew(self, worker: str, load: str = "{}") -> bool:
        """Extend a worker's lease; False when it was declared dead meanwhile. `load` is a WorkerLoad as JSON.

        Blocking: called from a thread of its own, so that a blocked event loop is known rather than silently expired.
        """

    @abstractmethod
    async def leave(self, worker: str) -> None:
        """Withdraw a worker that stopped in order; runs it still owns become claimable as handed back, not as lost.

        For each task it still has its run gets a `task` row that says so (payload `{"lost":"handed back"}`).
        """

    @abstractmethod
    async def add_figures(self, figures: Sequence[Figure]) -> None:
        """Add what a worker counted to the figures of its minutes and hours, all of it or nothing.

        Any number of workers may add to the same minute at the same time. Adding is not idempotent.

        Raises:
            StoreBusy, StoreFull: nothing was added.
            StoreError: it may have been added.
        """

    @abstractmethod
    async def take_over(self, now: Instant) -> list[TakenOver]:
        """Declare dead every worker that has died or whose lease lapsed, and free what they were running.

        A worker known to have died leaves `lost` = crash on each run it was running, a lapsed one leaves lapse. Their
        due time is when the worker was last known to be alive: so much earlier than `now` as its last renewal is past.
        Runs those workers had parked are not touched: a claim may take them from a dead owner when they are due.
        For each task of such a worker its run gets a `task` row with the payload `{"lost":"crash"}` or lapse.
        The epoch of what is freed moves at once. Workers that joined through this very store are left alone.
        Returns the workers declared dead.
        """
