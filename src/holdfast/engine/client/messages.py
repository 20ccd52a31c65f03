"""Sending to runs: messages, requests, events, and queries about the state of their code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.clock import new_id
from holdfast.contract.operations import Delivered, Outcome, Published, Refused, SendMessage
from holdfast.contract.rows import RunRow, Status
from holdfast.contract.turns import PublishEvent
from holdfast.definitions import check_message_id, check_run_id
from holdfast.engine.client.link import Link, moved
from holdfast.engine.worker.committer import from_callback
from holdfast.errors import BadInput, NoSuchRun, QueueFull, RunBlocked, RunTerminal, UnknownQuery
from holdfast.events import Events
from holdfast.ops.port import audited, check_who
from holdfast.payloads import codec
from holdfast.replay.location import check_name

if TYPE_CHECKING:
    from holdfast.replay.execution import Execution


class Messaging:
    """What an engine sends to runs, and asks of them."""

    def __init__(self, link: Link, events: Events) -> None:
        self._link = link
        self._events = events

    async def send(
        self,
        run_id: str,
        name: str,
        payload: object,
        message_id: str | None,
        dead_letter: bool,
        connection: object = msgspec.UNSET,
        by: str | None = None,
        reason: str = "",
    ) -> bool:
        """Send a message; False if one with this id was sent before. What a person sends is on record."""
        check_run_id(run_id)
        check_name(name, "message name")
        check_message_id(message_id)
        check_who(by, reason)
        encoded = codec.encode(payload, f"message {name!r}").decode()
        now = self._link.clock.now()
        known = message_id if message_id is not None else new_id()
        said = {"name": name, "message": known, "reason": reason or None}
        operation = SendMessage(
            target=run_id,
            name=name,
            id=known,
            payload=encoded,
            at=now,
            deduplicate=message_id is not None,
            dead_letter=dead_letter,
            max_pending=self._events.get(name).max_pending,
            audit=audited(self._link, by, "send", **said) if by is not None else None,
        )
        if connection is not msgspec.UNSET:
            outcome = await self._link.enclose(connection, operation)
        else:
            outcome = await self._link.deliver(operation)
        _raise_refusal(outcome, run_id, name)
        return not (isinstance(outcome, Delivered) and outcome.duplicate)

    async def request(self, run_id: str, name: str, payload: object, by: str | None = None, reason: str = "") -> str:
        """Send a request and return its id."""
        request = new_id()
        await self.send(run_id, name, payload, request, False, by=by, reason=reason)
        return request

    async def reply_to(self, request: str, run_id: str) -> str | None:
        """Return the answer to a request, None if there is none yet and may be one."""
        store = self._link.store
        replies = await store.replies([request])
        if request not in replies:
            row = await self._link.row(run_id)
            if row.status is Status.BLOCKED:
                raise RunBlocked(run_id, f"run {run_id!r} is blocked and cannot reply; the request stays")
            if row.status.is_terminal:
                replies = await store.replies([request])  # it may have been its last word
                if request not in replies:
                    raise moved(row) if row.status is Status.MOVED else RunTerminal(run_id, row.status)
        return replies.get(request)

    async def publish(
        self, name: str | object, payload: object, event_id: str | None, by: str | None = None, reason: str = ""
    ) -> int:
        """Publish an event; return how many runs were given it. What a person publishes is on record."""
        if not isinstance(name, str):
            if payload is not None or type(name).__module__ == "builtins":
                raise BadInput(
                    "an event is published by a name and a payload, or as an object of its type, "
                    f"not by {type(name).__name__}"
                )
            name, payload = self._events.name_of(name), name
        check_name(name, "event name")
        check_message_id(event_id)
        check_who(by, reason)
        now = self._link.clock.now()
        operation = PublishEvent(
            name=name,
            id=event_id if event_id is not None else new_id(),
            payload=codec.encode(payload, f"event {name!r}").decode(),
            at=now,
            rule=self._events.get(name).rule(now),
            deduplicate=event_id is not None,
            audit=audited(self._link, by, "publish", reason=reason or None) if by is not None else None,
        )
        outcome = await self._link.apply(operation)
        _raise_refusal(outcome, "", name)
        return outcome.runs if isinstance(outcome, Published) else 0

    async def query(
        self, run_id: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], answer_type: Any
    ) -> Any:
        """Ask the code of a run: in memory here, or brought there by its history only to be asked."""
        check_run_id(run_id)
        check_name(name, "query name")
        row = await self._begun(run_id)
        answer = await from_callback(lambda: self._ask_resident(run_id, name, args, kwargs))
        if answer is None:
            execution = await self._replayed(row)
            try:
                answer = await from_callback(lambda: execution.query(name, args, kwargs))
            finally:
                await from_callback(execution.drop)
        return codec.decode(answer, answer_type, f"the answer to query {name!r}")

    async def _begun(self, run_id: str) -> RunRow:
        """Return a run once a worker has let its code begin; its first turn takes a moment after the start."""
        link = self._link
        end = time.monotonic() + link.patience / 2
        while True:
            row = await link.row_here(run_id)
            if row.epoch:
                return row
            now = link.clock.now()
            later = (row.begins or now) > now
            if later or row.status is not Status.PENDING or time.monotonic() > end:
                raise UnknownQuery(f"run {run_id} has not begun, so it answers nothing yet")
            await asyncio.sleep(_LOOK_AGAIN)

    def _ask_resident(self, run_id: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes | None:
        """Ask a run in memory; None if it is not here."""
        resident = self._link.worker.resident(run_id)
        return resident.execution.query(name, args, kwargs) if resident is not None else None

    async def _replayed(self, row: RunRow) -> Execution:
        """Return a run that is brought to where its history ends, in slices, only to be asked and dropped."""
        from holdfast.engine.runs.arrivals import a_slice  # a worker has loaded it

        history = await self._link.store.history(row.key)
        execution, loop = self._link.worker.runner.loader.look_into(row, history), asyncio.get_running_loop()
        while await from_callback(lambda: execution.begin_some(history, (), None, a_slice(loop))) is None:
            pass
        return execution


_LOOK_AGAIN = 0.02


def _raise_refusal(outcome: Outcome, run_id: str, name: str) -> None:
    if not isinstance(outcome, Refused):
        return
    if outcome.reason == "full":
        whose = f" of run {run_id!r}" if run_id else ""
        raise QueueFull(f"too many {name!r} wait already{whose}: see max_pending of its Event")
    if outcome.status is None:
        raise NoSuchRun(run_id)
    raise RunTerminal(run_id, outcome.status)
