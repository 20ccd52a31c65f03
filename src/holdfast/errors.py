"""Every exception holdfast raises.

    HoldfastError
    |-- DefinitionError            a workflow or activity is declared wrongly
    |   |-- NonDeterministic       workflow code uses the clock, random numbers or the outside
    |   `-- UnknownLimit           an activity names a limit that no engine declares
    |-- UnsupportedSystem          holdfast does not run on this operating system
    |-- BadInput                   arguments that do not fit
    |   |-- InvalidId
    |   |-- InvalidDuration
    |   |-- NotSerializable        a value the codec cannot carry
    |   |   |-- NaiveDatetime
    |   |   |-- TooDeep
    |   |   |-- NumberTooLong
    |   |   `-- PayloadTooLarge
    |   |-- UndecodablePayload     stored or received JSON that does not fit the type asked for
    |   |-- DuplicateName          an explicit name used twice in one scope
    |   |-- InvalidSchedule        a cron line, a time zone or an interval that means nothing
    |   |-- CannotMove             an export, import, backup or restore that was refused; nothing was written
    |   |-- UnknownQuery           the run's code answers no query of that name
    |   |-- BadFilter              a search for runs that cannot be understood
    |   |-- NotOffered             this runtime has no such capability
    |   `-- UnknownWorkflow
    |-- RunError                   concerning one run
    |   |-- NoSuchRun
    |   |-- RunConflict            the id is taken by a run with other input
    |   |-- UniqueConflict         an open run of the workflow has that unique key
    |   |-- RunRejected            its workflow has no place for another run, and refuses it
    |   |-- CannotReopen           the run cannot go on from there
    |   |-- RunTerminal            the run has ended
    |   |-- Moved                  the run goes on in another runtime
    |   |-- RunFailed              result() of a failed run
    |   |-- RunCancelled           result() of a cancelled run
    |   `-- RunBlocked             the code cannot continue this history
    |       |-- HistoryMismatch    recorded against current, with lines
    |       |-- StuckRun           nothing left that could ever wake it
    |       `-- BusyLoop           a turn that never blocks
    |-- StepError                  what a step hands to its workflow
    |   |-- StepFailed             the body raised a class that is neither builtin nor registered
    |   |-- StepTimeout
    |   |   `-- HeartbeatTimeout
    |   |-- StepCrashed            lost with its process too often
    |   |-- StepSkipped            its condition said no too often
    |   `-- KeyConflict            its idempotency key was used with other arguments
    |-- RunTimeout                 the run took longer than it was given
    |-- ReceiveTimeout
    |-- QueueFull                  too many messages or events wait already
    |-- NoSuchLetter               no dead letter has that id
    |-- NoSuchSchedule
    |-- NeverAwaited               the code called a verb and forgot to await it
    |-- JoinError                  every failed branch, by name
    |-- RaceError                  all branches failed
    |-- ChildFailed                an awaited child ended failed or cancelled
    |-- RetryAfter                 raised by a body: not now, and no other step under my limit either
    |-- NonRetryable               raised by a body: fail now, do not retry
    |   `-- Critical
    |       `-- Rollback           fail now and undo what was done
    `-- StoreError
        |-- MissingExtra           an optional part is not installed
        |-- CannotOpen
        |   |-- NotADatabase
        |   |-- NotOurDatabase
        |   |-- ReadOnly
        |   |-- AuthFailed             the server refused the user or the password
        |   |-- UnsupportedServer      a server older than we know
        |   |-- SchemaTooNew
        |   |-- SchemaTooOld           made before the first release
        |   `-- NeedsUpgrade           made by an older holdfast, and opened only to look
        |-- StoreReplaced          the file was deleted, swapped or written by another program underneath
        |-- StoreFull
        |-- BadData                the database refused a value
        |-- StoreBusy                  locked by another process, or silent; the call did not happen
        |   `-- Contended              another program's open transaction holds what one operation needs
        |-- StoreUnreachable       the database server cannot be reached at present
        |-- NotAsExpected          a key-value store was written by another driver of the run; nothing was written
        |-- OutcomeUnknown         the store fell silent while committing, so the outcome is not known
        |-- StoreCorrupt
        `-- StoreClosed

Signals that end or leave a turn (``ContinueAsNew``) are BaseExceptions, so that a user's ``except Exception`` lets them
pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta


class HoldfastError(Exception):
    """The base of every error holdfast raises."""


class DefinitionError(HoldfastError):
    """A workflow or activity is declared in a way that cannot work; the message names file and line."""


class UnknownLimit(DefinitionError):
    """An activity names a limit that no engine on this database declares."""


class NonDeterministic(DefinitionError):
    """Workflow code reads a clock, draws randomness or does I/O; the message names the line and the verb to use."""


class UnsupportedSystem(HoldfastError, ImportError):
    """Holdfast does not run on this operating system."""


class BadInput(HoldfastError, ValueError):
    """Arguments do not fit; nothing was stored."""


class InvalidId(BadInput):
    """A run id outside the allowed alphabet or length."""


class InvalidDuration(BadInput):
    """A negative, non-finite or absurdly long duration or instant."""


class NotSerializable(BadInput):
    """A value that the codec cannot encode; `path` says where in it."""

    def __init__(self, message: str, path: str = "$") -> None:
        super().__init__(message)
        self.path = path


class NaiveDatetime(NotSerializable):
    """A datetime without a time zone."""


class TooDeep(NotSerializable):
    """A value nested deeper than the limit."""


class NumberTooLong(NotSerializable):
    """An integer with more digits than the limit."""


class PayloadTooLarge(NotSerializable):
    """An encoded value above the size limit."""


class NotOffered(BadInput):
    """This runtime has no capability for the call; `offers()` says so, too."""

    def __init__(self, what: str, capability: str, instead: str) -> None:
        super().__init__(f"{what} is not offered by this runtime (offers({capability!r}) is False): {instead}")
        self.capability = capability

    def __reduce__(self) -> tuple[object, ...]:
        return BadInput, (str(self),)


class UndecodablePayload(BadInput):
    """JSON that is malformed or does not fit the type asked for."""


class DuplicateName(BadInput):
    """An explicit name used twice in one scope."""


class InvalidSchedule(BadInput):
    """A cron line, a time zone or an interval that means nothing; the message names the field."""


class CannotMove(BadInput):
    """An export, import, backup or restore was refused; nothing was written."""


class UnknownQuery(BadInput):
    """The run's code answers no query of that name."""


class BadFilter(BadInput):
    """A search for runs that cannot be understood; the message names the word, and the nearest known one."""


class UnknownWorkflow(BadInput):
    """No workflow of that name is registered with this engine."""


class RunError(HoldfastError):
    """Something about one run; `run_id` says which."""

    def __init__(self, run_id: str, message: str) -> None:
        super().__init__(message)
        self.run_id = run_id


class NoSuchRun(RunError):
    """No run has that id."""

    def __init__(self, run_id: str, more: str = "") -> None:
        super().__init__(run_id, f"there is no run {run_id!r}{more}")


class RunConflict(RunError):
    """The id belongs to a run of another workflow or with other input."""

    def __init__(self, run_id: str, reason: str = "exists with different input") -> None:
        super().__init__(run_id, f"run {run_id!r} {reason}; use another id, or the same input to get that run back")


class UniqueConflict(RunError):
    """An open run of the same workflow has this unique key; `run_id` says which."""

    def __init__(self, run_id: str, workflow: str, key: str) -> None:
        super().__init__(
            run_id,
            f"run {run_id!r} of workflow {workflow!r} is open and has the unique key {key!r}; "
            'wait for it to end, or start with on_conflict="return" to get it back',
        )
        self.key = key


class RunRejected(RunError):
    """A run was not started: there is no place for it, and its workflow does not let it wait."""


class CannotReopen(RunError):
    """The run cannot go on from there; nothing was changed."""


class RunTerminal(RunError):
    """The run has ended and takes no more messages or commands."""

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(run_id, f"run {run_id!r} has ended ({status})")
        self.status = status


class Moved(RunError):
    """The run goes on in another runtime, at `address`, or is on its way there or here; nothing was done."""

    def __init__(self, run_id: str, address: str = "", how: str = "was moved to {}: call it there") -> None:
        super().__init__(run_id, f"run {run_id!r} {how.replace('{}', address or 'another runtime')}")
        self.address = address


class RunFailed(RunError):
    """The run ended failed; `__cause__` is its error, raised again."""


class RunCancelled(RunError):
    """The run was cancelled."""


class RunBlocked(RunError):
    """The code cannot continue this history; nothing is lost: correct the code, and the run continues."""


class HistoryMismatch(RunBlocked):
    """What the code does now is not what the run's history recorded.

    `path` says where in the history, `recorded` and `current` what the history and the code have there, `place` the
    file and line of the code, and `advice` what to write; those that are not known are empty.
    """

    def __init__(
        self,
        run_id: str,
        message: str,
        *,
        path: str = "",
        recorded: str = "",
        current: str = "",
        place: str = "",
        advice: str = "",
    ) -> None:
        super().__init__(run_id, message)
        self.path, self.recorded, self.current = path, recorded, current
        self.place, self.advice = place, advice


class StuckRun(RunBlocked):
    """The run waits for something that nothing can bring about."""


class BusyLoop(RunBlocked):
    """A turn ran too many callbacks without waiting for anything durable."""


class StepError(HoldfastError):
    """What a step that failed for good raises in its workflow."""


class StepFailed(StepError):
    """The body raised `type_name`, which is neither builtin nor registered with `raises=` or `Engine(errors=)`."""

    def __init__(self, type_name: str, message: str = "") -> None:
        super().__init__(type_name, message)
        self.type_name = type_name
        self.message = message

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}" if self.message else self.type_name


class StepTimeout(StepError, TimeoutError):
    """The body did not finish in time; whatever it does now is discarded."""


class HeartbeatTimeout(StepTimeout):
    """The body stopped reporting progress."""


class StepCrashed(StepError):
    """The step was lost with its process as often as its crash limit allows."""


class StepSkipped(StepError):
    """The step was skipped more than `max_skips` times."""


class KeyConflict(StepError):
    """The step's idempotency key was used before with other arguments."""


class RunTimeout(HoldfastError, TimeoutError):
    """The run took longer than the timeout it was started with."""


class ReceiveTimeout(HoldfastError, TimeoutError):
    """No message came in time and no default was given."""


class QueueFull(HoldfastError):
    """Too many messages or events wait under this name already; nothing was stored."""


class NoSuchLetter(HoldfastError):
    """No dead letter has that id."""


class NoSuchSchedule(HoldfastError):
    """No schedule has that id."""


class NeverAwaited(HoldfastError):
    """The code called a verb and never awaited it; the message names the call, its file and its line."""


class JoinError(HoldfastError):
    """One or more branches of a join failed; `errors` has every one by branch name."""

    def __init__(self, message: str, errors: Mapping[str, BaseException] | None = None) -> None:
        super().__init__(message)
        self.errors: dict[str, BaseException] = dict(errors or {})


class RaceError(JoinError):
    """Every branch of a race failed; `errors` has every one by branch name."""


class ChildFailed(HoldfastError):
    """An awaited child run ended without a result; `status` is failed or cancelled, `__cause__` its error."""

    def __init__(self, child_id: str, status: str, message: str = "") -> None:
        super().__init__(child_id, status, message)
        self.child_id = child_id
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"child {self.child_id!r} ended {self.status}" + (f": {self.message}" if self.message else "")


class RetryAfter(HoldfastError):
    """Raise it in a step body when a service says to come back later.

    The attempt does not count as a failure; it is made again after `delay`, and until then no step with the same
    `limit` starts.
    """

    seconds: float = 0.0

    def __init__(self, delay: timedelta, message: str = "") -> None:
        given: object = delay
        if not isinstance(given, timedelta) or given < timedelta(0):
            raise InvalidDuration(f"the delay of RetryAfter must be a timedelta that is not negative, not {delay!r}")
        super().__init__(message or f"try again in {delay}")
        self.seconds = delay.total_seconds()

    @property
    def delay(self) -> timedelta:
        """How long to stay away."""
        return timedelta(seconds=self.seconds)


class NonRetryable(HoldfastError):
    """Raise it (or a subclass) in a step body to fail at once, without another attempt."""


class Critical(NonRetryable):
    """Fail the step now; no retry."""


class Rollback(Critical):
    """Stop and undo the completed steps that registered a compensation."""


class StoreError(HoldfastError):
    """The database refused or lost something; nothing acknowledged is lost."""


class MissingExtra(StoreError):
    """An optional part of holdfast is needed that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs more packages: pip install "holdfast[{extra}]"')


class CannotOpen(StoreError):
    """The database cannot be opened; no file was created or changed."""


class NotADatabase(CannotOpen):
    """The file is not an SQLite database."""


class NotOurDatabase(CannotOpen):
    """The file is another application's database."""


class ReadOnly(CannotOpen):
    """The database cannot be written."""


class AuthFailed(CannotOpen):
    """The database server refused the user or the password."""


class UnsupportedServer(CannotOpen):
    """The database server is older than this holdfast knows."""


class SchemaTooOld(CannotOpen):
    """The database was made by a holdfast before the first release; nothing was written."""


class NeedsUpgrade(CannotOpen):
    """An older holdfast wrote this database, and it was opened only to look; nothing was written."""


class SchemaTooNew(CannotOpen):
    """A newer holdfast wrote this database; nothing was written."""


class StoreReplaced(StoreError):
    """The database file was deleted, swapped or written by another program while in use.

    Nothing more is written or acknowledged; the message says what to do.
    """


class StoreFull(StoreError):
    """The disk is full."""


class StoreBusy(StoreError):
    """Another process kept the database locked for too long, or it did not answer; what was asked did not happen."""


class Contended(StoreBusy):
    """A transaction that is still open, perhaps a caller's own, holds what one operation needs; nothing was written."""


class BadData(StoreError):
    """The database refused a value; nothing was written."""


class StoreUnreachable(StoreError):
    """The database server cannot be reached at present; nothing was written."""


class NotAsExpected(StoreError):
    """A key had another value than a batch expected: another driver has the key space now. Nothing was written."""


class OutcomeUnknown(StoreError):
    """The store fell silent while a commit was under way, and could not be asked what became of it.

    A caller that started a run or sent a message with an id may do it again: once is guaranteed.
    """


class StoreCorrupt(StoreError):
    """The database is damaged; nothing more is acknowledged."""


class StoreClosed(StoreError):
    """The store was closed, or inherited through a fork."""


class ContinueAsNew(BaseException):
    """Leaves the workflow function so that the run starts over with new input and an empty history."""
