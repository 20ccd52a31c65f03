"""Events by name: which runs wait, which events are queued, and which run gets which event.

A waiting receive has a row per name it takes. Publishing gives the event to the run that has waited longest, or to
every waiting run, by rows in their inboxes; all of that is one transaction, so a fan-out is never half done. A run that
was given an event it no longer waits for gives it back. An event that no run waits for is queued; a receive that begins
to wait gets queued events in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from holdfast.clock import Instant
from holdfast.contract.operations import Published, Refused
from holdfast.contract.rows import InboxKind, Message
from holdfast.contract.turns import EventRule, PublishEvent, RunEnd, Wait
from holdfast.stores.sql.tables import Row, StoredRun

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch

EVENTS = 0
"""The `run` under which message_ids remembers ids of events."""

_TO_ONE = EventRule()


class EventRules:
    """The events of one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._waits: dict[tuple[int, str], list[Row]] = {}
        self._unwaits: dict[tuple[int, str], None] = {}
        self._forgotten: dict[int, None] = {}
        self._queued: dict[str, int] = {}
        self._taken: dict[str, tuple[int, Instant]] = {}

    # Waiting.

    async def wait(self, run: StoredRun, wait: Wait, at: Instant) -> bool:
        """Let a receive wait; True if an event was given to it at once."""
        if run.side_rows:
            self.unwait(run, wait.location)
        self._batch.note_side_rows(run)
        queued = [name for name in wait.names if await self._pending(name)]
        if queued and await self._has_message(run, wait):
            # What is queued goes behind its message: left queued, a younger one would be given to this wait first.
            for name in queued:
                await self._catch_up(run, name, wait.names[name], at)
            queued = [name for name in queued if wait.names[name].single]
        heads = [(head, name) for name in queued if (head := await self._head(run, name, wait.names[name])) is not None]
        if heads:
            (published, n, id, payload), name = min(heads)
            await self._take(run, name, wait.names[name], n)
            self._batch.put_row(run, Message(0, wait.names[name].kind, name, id, payload, published), at)
            self._taken[name] = (run.key, at)
            return True
        place = (run.key, wait.location)
        self._waits[place] = [(run.key, wait.location, name, wait.since) for name in wait.names]
        return False

    def unwait(self, run: StoredRun, location: str) -> None:
        """Let a receive wait no more."""
        place = (run.key, location)
        self._waits.pop(place, None)
        self._unwaits[place] = None

    def forget(self, run: StoredRun) -> None:
        """Let nothing of a run wait any more."""
        if run.side_rows:
            self._forgotten[run.key] = None
            for place in [place for place in self._waits if place[0] == run.key]:
                del self._waits[place]

    async def _has_message(self, run: StoredRun, wait: Wait) -> bool:
        """Whether a message the run has not seen will end this wait: messages come before events."""
        if run.inbox <= wait.seen:
            return False
        await self._batch.flush()
        unread = await self._batch.statements.read("unread", [(run.key, wait.seen)])
        return any(kind == InboxKind.MESSAGE and name in wait.names for _, _, kind, name, *_ in unread)

    async def _head(self, run: StoredRun, name: str, rule: EventRule) -> tuple[Instant, int, str, str] | None:
        """Return the oldest queued event of a name that a run may be given, with its age first.

        One that was given back stands where its age puts it, before those that were queued meanwhile.
        """
        statements = self._batch.statements
        await self._batch.flush()
        oldest = max(rule.not_before, rule.expired)
        if rule.single:
            rows = await statements.read("oldest_event", [(name, oldest)])
        else:
            seen = next((int(n or 0) for (n,) in await statements.read("cursor", [(run.key, name)])), 0)
            rows = await statements.read("queued_event", [(name, oldest, seen)])
        for n, id, payload, published in rows:
            return int(published or 0), int(n or 0), str(id), str(payload)
        return None

    async def _catch_up(self, run: StoredRun, name: str, rule: EventRule, at: Instant) -> None:
        """Give a run every copy it has not seen of events that stay."""
        while not rule.single and (head := await self._head(run, name, rule)) is not None:
            published, n, id, payload = head
            await self._take(run, name, rule, n)
            self._batch.put_row(run, Message(0, InboxKind.NOTICE, name, id, payload, published), at)

    async def _take(self, run: StoredRun, name: str, rule: EventRule, n: int) -> None:
        """Take an event off its queue, or note that a run has seen it."""
        if rule.single:
            await self._batch.statements.write("delete_event", [(name, n)])
            await self._count(name, -1)
        else:
            await self._batch.statements.write("put_cursors", [(run.key, name, n)])

    # Publishing.

    async def publish(self, event: PublishEvent, now: Instant | None = None) -> Published | Refused:
        """Give an event to who waits for it, or queue it."""
        batch, rule = self._batch, event.rule
        await batch.flush()
        statements = batch.statements
        if rule.expired and await self._pending(event.name):
            await self._count(event.name, -await statements.change("drop_expired", (event.name, rule.expired)))
        if event.deduplicate and await statements.read("known_message", [(EVENTS, event.id)]):
            return Published(0, duplicate=True)
        waiting = (
            await self._first(event.name) if rule.single else await statements.read("all_waiters", [(event.name,)])
        )
        stays = rule.keep and not (rule.single and waiting)
        if stays and await self._pending(event.name) >= rule.max_pending:
            return Refused(None, "full")
        if event.deduplicate:
            await statements.write("remember_message", [(EVENTS, event.id, event.at)])
        n = await self._queue(event.name, event.id, event.payload, event.at) if stays else 0
        return Published(await self._give(waiting, event, n, event.at if now is None else now))

    async def _first(self, name: str) -> list[Row]:
        """Return the receive that has waited longest; a row of a run that is gone must not swallow the event."""
        batch = self._batch
        while rows := await batch.statements.read("first_waiter", [(name,)]):
            run = await batch.run(int(rows[0][0] or 0))
            if run is not None and run.ended is None:
                return rows
            await batch.statements.write("delete_waiters", rows)
        return []

    async def _give(self, waiting: Sequence[Row], event: PublishEvent, n: int, now: Instant) -> int:
        """Give an event to each waiting run, once; return how many."""
        batch = self._batch
        places = {int(run or 0): str(location) for run, location in reversed(waiting)}
        await batch.load_keys(places)
        given: list[tuple[int, str]] = []
        row = Message(0, event.rule.kind, event.name, event.id, event.payload, event.at)
        for key in dict.fromkeys(int(run or 0) for run, _ in waiting):
            run = await batch.run(key)
            if run is None or run.ended is not None:
                continue
            batch.put_row(run, row, now)
            given.append((key, places[key]))
            self._taken[event.name] = (key, now)
        self._unwaits.update(dict.fromkeys(given))
        if n and given:
            await batch.statements.write("put_cursors", [(key, event.name, n) for key, _ in given])
        return len(given)

    async def give_back(self, run: StoredRun, n: int, at: Instant) -> None:
        """Take an event from a run that does not want it any more and give it to another run."""
        message = await self._batch.take_out(run, n, InboxKind.EVENT)
        if message is not None:
            await self._again(message, _TO_ONE, at)

    async def give_up(self, run: StoredRun, at: Instant) -> None:
        """Let a run that cannot go on take nothing that others wait for; it waits again when it is claimed."""
        if run.side_rows:
            self.forget(run)
            for message in await self._batch.unread(run):
                if message.kind == InboxKind.EVENT:
                    await self.give_back(run, message.n, at)

    async def left_unread(self, run: StoredRun, unread: Iterable[Message], end: RunEnd) -> None:
        """Decide what becomes of what an ended run has not read."""
        for message in unread:
            if message.kind == InboxKind.EVENT:
                await self._again(message, _TO_ONE, end.at)
            elif message.kind == InboxKind.MESSAGE:
                policy = end.unread.get(message.name)
                if policy == "republish":
                    await self._again(message, end.rules.get(message.name, _TO_ONE), end.at)
                elif policy == "dead_letter":
                    self._batch.letters.event(message, run, end.at)

    async def _again(self, message: Message, rule: EventRule, now: Instant) -> None:
        """Publish what was not read; it is as old as it was."""
        rule = EventRule(single=rule.single, keep=rule.keep, max_pending=1 << 62)
        event = PublishEvent(name=message.name, id=message.id, payload=message.payload, at=message.at, rule=rule)
        await self.publish(event, now)

    # Queues.

    async def _queue(self, name: str, id: str, payload: str, at: Instant) -> int:
        rows = await self._batch.statements.read("insert_event", [(name, id, payload, at)])
        await self._count(name, 1)
        return int(rows[0][0] or 0)

    async def _pending(self, name: str) -> int:
        count = self._queued.get(name)
        if count is None:
            rows = await self._batch.statements.read("pending_events", [(name,)])
            count = self._queued[name] = int(rows[0][0] or 0) if rows else 0
        return count

    def know_pending(self, names: Iterable[str], rows: Iterable[Row]) -> None:
        """Take in how many events wait under names, of which there is none but those of the rows."""
        self._queued.update(dict.fromkeys(names, 0))
        self._queued.update((str(name), int(pending or 0)) for name, pending in rows)

    async def _count(self, name: str, change: int) -> None:
        if change:
            await self._batch.statements.write("count_event", [(name, change)])
            self._queued.pop(name, None)

    async def removed(self, name: str, count: int) -> None:
        """Note that events were taken off a queue by a purge."""
        await self._count(name, -count)

    def pending(self) -> list[tuple[str, Sequence[Row]]]:
        """Return what is to be written, and forget it."""
        forgotten: list[Row] = [(key,) for key in self._forgotten]
        work: list[tuple[str, Sequence[Row]]] = [
            ("forget_waiters", forgotten),
            ("delete_waiters", [*self._unwaits]),
            ("insert_waiters", [row for rows in self._waits.values() for row in rows]),
            ("put_takers", [(name, *taken) for name, taken in self._taken.items()]),
        ]
        self._waits, self._unwaits, self._forgotten, self._taken = {}, {}, {}, {}
        return work
