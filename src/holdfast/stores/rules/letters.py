"""Dead letters: failed work and undelivered events, kept for an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.clock import Instant, new_id
from holdfast.contract.operations import Acknowledge, Done, Outcome, Refused, Reopen, ReplayEvent
from holdfast.contract.rows import InboxKind, Message, Status
from holdfast.contract.turns import NewLetter, PublishEvent
from holdfast.stores.sql.tables import Row, StoredRun

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch


class LetterRules:
    """The dead letters of one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._work: list[Row] = []
        self._events: list[Row] = []

    @property
    def written(self) -> bool:
        """Whether there are letters that quote the input of a run and were not stored yet."""
        return bool(self._work)

    def work(self, run: StoredRun, letter: NewLetter, at: Instant) -> None:
        """Keep a step that was given up on."""
        said = (letter.failures, letter.arguments, int(letter.compensation), int(letter.idempotent))
        row = (letter.id, run.id, run.workflow, letter.step, letter.attempts, letter.error, at, run.key, *said)
        self._work.append(row)

    def event(self, message: Message, target: StoredRun | None, at: Instant) -> None:
        """Keep a message or event that could not be delivered."""
        run, workflow, status = (target.id, target.workflow, str(target.status)) if target is not None else ("", "", "")
        self._events.append((new_id(), run, workflow, message.name, message.payload, status, message.at, at))

    async def settle(self, run: StoredRun, undone: bool) -> None:
        """Note how a run ended whose letters were replayed; `undone` tells that it undid what it had done."""
        if undone:
            await self._batch.flush()
            await self._batch.statements.write("settle_compensations", [(run.id,)])
        await self._batch.statements.write("settle_letters", [(run.id, str(run.status))])

    async def replayed(self, run: StoredRun, operation: Reopen) -> None:
        """Note that a run goes on, which deals with its letters, or only with those of its compensations.

        Letters of steps in the background whose failure stays are as they were.
        """
        await self._batch.flush()
        await self._batch.statements.write("replay_letters", [(run.id, operation.at, int(operation.undoing))])
        if operation.standing:
            rows: list[Row] = [(run.id, step, operation.at) for step in operation.standing]
            await self._batch.statements.write("keep_letters", rows)

    async def is_open(self, letter: str) -> bool:
        """Tell whether a letter was not dealt with yet."""
        await self._batch.flush()
        rows = await self._batch.statements.read("get_letter", [(letter,)])
        return bool(rows) and not rows[0][4]

    async def apply(self, operation: Acknowledge | ReplayEvent) -> Outcome:
        """Do what an operator asked for with one letter."""
        await self._batch.flush()
        if isinstance(operation, ReplayEvent):
            return await self._replay(operation)
        if operation.remove:
            return Done(await self._batch.statements.change("delete_letter", (operation.letter,)))
        return Done(await self._batch.statements.change("acknowledge_letter", (operation.letter, operation.at)))

    async def _replay(self, operation: ReplayEvent) -> Outcome:
        batch = self._batch
        rows = await batch.statements.read("get_letter", [(operation.letter,)])
        if not rows or rows[0][0] != "event" or rows[0][4]:
            return Refused(None, "moved")
        _, _, name, payload, _ = map(str, rows[0])
        owners: tuple[str, ...] = ()
        if operation.target:
            target = await batch.named(operation.target)
            if target is None or target.ended is not None:
                return Refused(Status(target.status) if target else None)
            batch.put(target, InboxKind.MESSAGE, name, operation.letter, payload, operation.at)
            owners = (target.owner,) if target.owner else ()
        else:
            event = PublishEvent(name=name, id=operation.letter, payload=payload, at=operation.at, rule=operation.rule)
            published = await batch.events.publish(event)
            if isinstance(published, Refused):
                return published
        await batch.statements.write("close_letter", [(operation.letter, "replayed", operation.at)])
        return Done(1, owners=owners)

    def pending(self) -> list[tuple[str, Sequence[Row]]]:
        """Return what is to be written, and forget it."""
        work: list[tuple[str, Sequence[Row]]] = [
            ("insert_work_letters", self._work),
            ("insert_event_letters", self._events),
        ]
        self._work, self._events = [], []
        return work
