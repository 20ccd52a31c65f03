"""Dead letters: failed work and undelivered events, for an operator to look at, replay or acknowledge."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, Unpack, get_args

import msgspec

from holdfast.changes import Change, step_name
from holdfast.clock import micros, to_datetime
from holdfast.contract.operations import Acknowledge, Done, Purge, Refused, ReplayEvent
from holdfast.contract.rows import LetterFilter, LetterRow
from holdfast.definitions import check_run_id
from holdfast.errors import (
    BadInput,
    CannotReopen,
    HoldfastError,
    NoSuchLetter,
    NoSuchRun,
    QueueFull,
    RunTerminal,
    StoreError,
)
from holdfast.events import Events
from holdfast.ops.port import Port, audited, call_back, check_callback, check_expected, check_names, check_who
from holdfast.patience import patient
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData
from holdfast.texts import check_text, shown

Kind = Literal["work", "event"]

_KINDS: tuple[Kind, ...] = get_args(Kind)
_OUTCOMES = ("open", "acknowledged", "replayed", "completed", "failed", "cancelled")
_PAGE = 1000
_BATCH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Work given up on (`work`: a step, or a workflow itself), or an event or message that no run could take (`event`).

    `payload` is the input of the run, or the value of the event; `arguments` are those of the step, by name. `outcome`
    says what became of it: empty while nothing did; of work `replayed`, and then how its run ended: `completed`,
    `failed` or `cancelled`; of an event `delivered`.
    """

    id: str
    kind: Kind
    run_id: str
    """The run of the work; the run that the event was meant for, empty if it was meant for any run that waits."""
    workflow: str
    step: str
    """The path of the step given up on."""
    name: str
    """The name of the event."""
    attempts: int
    """The number of the last attempt: those that were lost with their process have numbers, too."""
    failures: int
    """How many attempts threw or timed out: what `max_attempts` counts."""
    error: ErrorData | None
    payload: Any = field(repr=False)
    arguments: Mapping[str, Any] | None = field(repr=False)
    """What the step was called with, by the names of its parameters: in a sequence, the state as it was then."""
    target_status: str
    """How the run stood that the event was meant for."""
    sent_at: datetime | None
    at: datetime
    acknowledged_at: datetime | None
    outcome: str
    retryable: bool
    """False if the failure said that trying again is of no use: a bug or bad input, not bad luck."""
    compensation: bool
    """Whether the step was to undo another one."""
    idempotent: bool
    """Whether the activity says that doing it again does no harm."""

    @property
    def activity(self) -> str:
        """The name of the step, whichever branch, iteration or repetition it was made in."""
        return step_name(self.step)


class ReplayReport(msgspec.Struct, frozen=True):
    """What became of replaying many: the ids of those replayed, and why others were not.

    With `dry_run` only `matched` is filled.
    """

    matched: tuple[str, ...] = ()
    replayed: tuple[str, ...] = ()
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    """Those that were left alone, because it is not known to be safe, and why."""


class NotSafe(Exception):
    """Doing something again may do harm; only told, in the report of an act on many."""


class LetterQuery(TypedDict, total=False):
    """Which letters are meant; see `DeadLetters.list`."""

    kind: Kind | None
    workflow: str | None
    run: str | None
    name: str | None
    acknowledged: bool | None
    before: str | None


Letters = list[DeadLetter]


RetryRun = Callable[[DeadLetter, str, str, Collection[str] | None], Awaitable[bool]]
"""Lets the run of a letter go on, as some person asks for some reason; False if that was dealt with meanwhile.

With names of steps, perhaps none, only if that is safe: see `replay_all`.
"""


class DeadLetters:
    """The dead letters of a database.

    Work is replayed by retrying its run, whose finished steps do not run again; an event by delivering it after all.
    Each letter is replayed at most once, however often and by however many operators it is asked for.
    """

    def __init__(self, port: Port, events: Events, retry: RetryRun) -> None:
        self._port = port
        self._events = events
        self._retry = retry

    @property
    def _call_patience(self) -> float:
        return self._port.patience

    @patient
    async def list(self, *, limit: int = 100, **which: Unpack[LetterQuery]) -> Letters:
        """Return letters, newest first.

        Args:
            limit: at most so many.
            kind: `work` or `event`.
            workflow: of the run it is about.
            run: the id of that run.
            name: of the event.
            acknowledged: True for those that were acknowledged or replayed, False for the others.
            before: the id of the last letter of the previous page.
        """
        return [_letter(row) for row in await self._port.store.letters(_filter(limit, which))]

    @patient
    async def find(self, letter_id: str) -> DeadLetter | None:
        """Return one letter, None if there is none with that id."""
        check_text(letter_id, "letter_id", printable=False)
        rows = await self._port.store.letters(LetterFilter(id=letter_id, limit=1))
        return _letter(rows[0]) if rows else None

    async def get(self, letter_id: str) -> DeadLetter:
        """Return one letter; its `outcome` says what became of it.

        Raises:
            NoSuchLetter: there is none with that id.
        """
        letter = await self.find(letter_id)
        if letter is None:
            raise NoSuchLetter(f"there is no dead letter {letter_id!r}")
        return letter

    @patient
    async def counts(self) -> dict[str, dict[str, int]]:
        """Return how many letters there are by kind and by what became of them.

        `open` are those not dealt with, `acknowledged` those that were seen and left; the others were replayed.
        """
        counted: dict[str, dict[str, int]] = {kind: dict.fromkeys(_OUTCOMES, 0) for kind in _KINDS}
        counted["event"]["delivered"] = 0
        for kind, outcome, seen, count in (await self._port.store.counts()).letters:
            became = _became(kind, outcome) or ("acknowledged" if seen else "open")
            counted[kind][became] += count
        return counted

    @patient
    async def acknowledge(self, letter_id: str, by: str | None = None, reason: str = "") -> bool:
        """Mark a letter as seen; False if it was before.

        Raises:
            NoSuchLetter: there is none with that id.
        """
        if await self._put_away(letter_id, by, reason, remove=False):
            return True
        await self.get(letter_id)
        return False

    @patient
    async def remove(self, letter_id: str, by: str | None = None, reason: str = "") -> bool:
        """Forget a letter; False if there is none (any more)."""
        return await self._put_away(letter_id, by, reason, remove=True)

    async def _put_away(self, letter_id: str, by: str | None, reason: str, remove: bool) -> bool:
        check_text(letter_id, "letter_id", printable=False)
        action = "deadletter.remove" if remove else "deadletter.acknowledge"
        audit = audited(self._port, by, action, reason=reason or None)
        operation = Acknowledge(letter=letter_id, at=self._port.clock.now(), remove=remove, audit=audit)
        outcome = await self._port.apply(operation)
        return isinstance(outcome, Done) and outcome.count > 0

    @patient
    async def replay(
        self,
        letter_id: str,
        *,
        to: str | None = None,
        broadcast: bool = False,
        by: str | None = None,
        reason: str = "",
    ) -> bool:
        """Try again what was given up on; False if it was dealt with already: `get` tells what became of it.

        Work is retried with its run. An event goes to the run it was meant for, if that is open (again), `to` another
        run, or with `broadcast` to the runs that wait for its name, now or later; so does one that was meant for any
        run that waits.

        Raises:
            NoSuchLetter: there is none with that id.
            BadInput: `to` or `broadcast` for work, or both.
            NoSuchRun, RunTerminal: the event's target takes no messages; name another one, or broadcast it.
            QueueFull: too many events of that name wait already.
            CannotReopen: the run of the work cannot go on.
        """
        check_who(by, reason)
        if to is not None:
            check_run_id(to)
        letter = await self.get(letter_id)
        if letter.kind == "work" and (to is not None or broadcast):
            raise BadInput(f"dead letter {letter_id!r} is work of run {letter.run_id!r}, and no event to send")
        target = _target(letter, to, broadcast)
        return False if letter.outcome else await self._replay(letter, target, by, reason)

    async def _replay(
        self, letter: DeadLetter, target: str, by: str | None, reason: str, steps: Collection[str] | None = None
    ) -> bool:
        if letter.kind == "event":
            return await self._deliver(letter, target, by, reason)
        try:
            return await self._retry(letter, by if by is not None else self._port.actor, reason, steps)
        except CannotReopen:
            if (await self.get(letter.id)).outcome:  # another operator was faster, and the run goes on already
                return False
            raise

    async def _deliver(self, letter: DeadLetter, target: str, by: str | None, reason: str) -> bool:
        now = self._port.clock.now()
        rule = self._events.get(letter.name).rule(now)
        audit = audited(self._port, by, "deadletter.replay", reason=reason or None, to=target or None, name=letter.name)
        outcome = await self._port.apply(ReplayEvent(letter=letter.id, at=now, target=target, rule=rule, audit=audit))
        if not isinstance(outcome, Refused):
            return True
        if outcome.reason == "moved":
            await self.get(letter.id)
            return False
        if outcome.reason == "full":
            raise QueueFull(f"{rule.max_pending:,} events {letter.name!r} wait already; try again when some were taken")
        if outcome.status is None:
            raise NoSuchRun(target)
        raise RunTerminal(target, outcome.status)

    async def replay_all(
        self,
        *,
        dry_run: bool = False,
        expect: int | None = None,
        steps: Collection[str] = (),
        limit: int = 100,
        by: str | None = None,
        reason: str = "",
        **which: Unpack[LetterQuery],
    ) -> ReplayReport:
        """Replay the newest letters of a kind `list` knows that were not replayed yet, oldest first, one by one.

        Of work only what is safe to do again: it may be tried again (`retryable`), and each step that is done again
        failed by what its body raised, never began, or is `idempotent`. A step whose last attempt was lost or timed
        out is done again only if `steps` has its name. Others are `skipped`, and so is a run whose compensation failed:
        that comes first. One that cannot be replayed stops none of the others; the report says why. Letters of one run
        are replayed together, with their run.

        Args:
            dry_run: only list them.
            expect: how many a dry run has listed; more than one are replayed only then.
            steps: the names of steps that may be done again though they may have taken effect.
            limit: at most so many.
            by: the person who asks.
            which: as for `list`.

        Raises:
            BadInput: `expect` is missing, or there are more or fewer by now. Look at the letters first.
        """
        check_who(by, reason)
        check_names(steps, "steps")
        found = list(reversed(await self._not_replayed(limit, which)))
        if dry_run:
            return ReplayReport(matched=tuple(letter.id for letter in found))
        check_expected(len(found), expect, "letters")
        done: Letters = []
        failed: dict[str, str] = {}
        skipped: dict[str, str] = {}
        to_undo = {letter.run_id for letter in found if letter.compensation}
        for letter in found:
            try:
                if any(_same_work(letter, other) for other in done):
                    done.append(letter)
                    continue
                if letter.kind == "work" and not letter.compensation and letter.run_id in to_undo:
                    raise NotSafe("a compensation of its run failed, too, and is to be settled first")
                _check_safe(letter, steps)
                if await self._replay(letter, letter.run_id, by, reason, steps):
                    done.append(letter)
                else:
                    skipped[letter.id] = "it was dealt with meanwhile"
            except NotSafe as why:
                skipped[letter.id] = str(why)
            except StoreError:
                raise
            except HoldfastError as error:
                failed[letter.id] = f"{type(error).__name__}: {error}"
        ids = tuple(letter.id for letter in found)
        return ReplayReport(ids, tuple(letter.id for letter in done), failed, skipped)

    async def _not_replayed(self, limit: int, which: LetterQuery) -> Letters:
        """Return the newest letters that were not replayed, however many others lie between them."""
        found: Letters = []
        which = which.copy()
        while page := await self.list(limit=limit, **which):
            found += [letter for letter in page if not letter.outcome]
            if len(found) >= limit:
                break
            which["before"] = page[-1].id
        return found[:limit]

    async def purge(
        self,
        *,
        older_than: timedelta,
        acknowledged_only: bool = True,
        kind: Kind | None = None,
        on_purged: Callable[[str], object] | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> int:
        """Delete letters added longer ago than that, in small transactions, and return how many.

        Args:
            older_than: the age from which they go.
            acknowledged_only: False deletes also those that were not acknowledged or replayed.
            kind: `work` or `event`; both when left out.
            on_purged: is called, plain or async, with the id of each. What it raises is logged, told as
                `callback.error`, and changes nothing.
        """
        _check_kind(kind)
        check_callback(on_purged, "on_purged")
        now, total = self._port.clock.now(), 0
        before = now - micros(older_than, "older_than")
        for what in (kind,) if kind is not None else _KINDS:
            said = {"reason": reason or None, "before": before, "acknowledged_only": acknowledged_only}
            audit = audited(self._port, by, "deadletter.purge", **said)
            purge = Purge(what=what, before=before, at=now, limit=_BATCH, acknowledged=acknowledged_only, audit=audit)
            total += await self._purge(purge, on_purged)
        if total:
            self._port.notify(Change(type="purged", at=to_datetime(now), data={"dead_letters": total}))
        return total

    async def _purge(self, purge: Purge, on_purged: Callable[[str], object] | None) -> int:
        total = 0
        while True:
            outcome = await self._port.apply(purge)
            assert isinstance(outcome, Done)
            total += outcome.count
            if on_purged is not None:
                for letter_id in outcome.ids:
                    await call_back(self._port, "on_purged", on_purged, letter_id)
            if outcome.count < purge.limit:
                return total
            await asyncio.sleep(0)


def _target(letter: DeadLetter, to: str | None, broadcast: bool) -> str:
    """Return the run an event goes to, empty for any run that waits."""
    if to is not None and broadcast:
        raise BadInput("to, broadcast: give one of the two, not both")
    if broadcast:
        return ""
    return check_run_id(to) if to is not None else letter.run_id


def _same_work(letter: DeadLetter, other: DeadLetter) -> bool:
    """Whether replaying the one replayed the other."""
    same = letter.kind == other.kind == "work" and letter.run_id == other.run_id
    return same and letter.compensation == other.compensation


def _check_safe(letter: DeadLetter, steps: Collection[str]) -> None:
    """Refuse work that may have taken effect, or of which its failure says that trying again is pointless.

    Raises:
        NotSafe: saying why.
    """
    if letter.kind == "event" or letter.error is None:
        return
    if not letter.retryable:
        raise NotSafe("its failure says that trying again is pointless")
    if letter.idempotent or letter.activity in steps or letter.step in steps:
        return
    names = {letter.error.type.rpartition(".")[2], *letter.error.bases}
    if letter.compensation and names & {"StepTimeout", "StepCrashed"}:
        raise NotSafe(f"the last attempt of {letter.step!r} timed out or was lost: it may have taken effect")


def _filter(limit: int, which: LetterQuery) -> LetterFilter:
    _check_kind(which.get("kind"))
    if not 1 <= limit <= _PAGE:
        raise BadInput(f"limit must be between 1 and {_PAGE:,}, not {limit!r}")
    for name, given in which.items():
        if name in ("workflow", "run", "name", "before") and given is not None:
            check_text(given, name, printable=False)
    return LetterFilter(limit=limit, **which)


def _check_kind(kind: str | None) -> None:
    if kind is not None and kind not in _KINDS:
        raise BadInput(f"kind is one of {', '.join(_KINDS)}, not {shown(kind)}")


def _letter(row: LetterRow) -> DeadLetter:
    error = _error(row.error) if row.error is not None else None
    return DeadLetter(
        id=row.id,
        kind="work" if row.kind == "work" else "event",
        run_id=row.run,
        workflow=row.workflow,
        step=row.step,
        name=row.name,
        attempts=row.attempts,
        failures=row.failures,
        error=error,
        payload=_payload(row.payload),
        arguments=_payload(row.arguments) if row.arguments is not None else None,
        target_status=row.target_status,
        sent_at=to_datetime(row.sent) if row.sent is not None else None,
        at=to_datetime(row.at),
        acknowledged_at=to_datetime(row.acknowledged) if row.acknowledged is not None else None,
        outcome=_became(row.kind, row.outcome),
        retryable=error is None or error.retryable,
        compensation=row.compensation,
        idempotent=row.idempotent,
    )


def _became(kind: str, outcome: str) -> str:
    """Return what became of a letter; an event that was sent again is dealt with, nothing more can be known of it."""
    return "delivered" if kind == "event" and outcome else outcome


def _payload(text: str) -> Any:
    """Return a stored payload; one that cannot be read is shown as it is, for that may be why it is here."""
    try:
        return codec.decode(text)
    except BadInput:
        return text


def _error(text: str) -> ErrorData:
    try:
        error: ErrorData = codec.decode(text, ErrorData)
        return error
    except BadInput:
        return ErrorData(type="", message=text)
