"""Runs that leave this cluster: held until nothing is under way, then closed with their whole state as the result.

A run that is held begins nothing, and its code gets no facts; attempts under way end. It continues by itself when the
time of the hold is over. A run that leaves stays so for ever, and is closed on request once it is at rest. Until then
it takes messages, and they go along. If a signal comes while the run is being closed, the server refuses the close, and
it is closed again, with the signal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from holdfast.temporal.sdk import now
from holdfast.temporal.wire import Carry, Happening, data_of, packed, raw

ADDRESS = "holdfast-moved"
"""Under which name the metadata of a result says that it is a run that left, and where to."""
ASKED = frozenset({"hold", "let_go", "leave"})
"""The acts that are told here."""


class Leave(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What a mover says: hold a run (until a time), let it go on, or let it leave, to be closed at once or later."""

    token: str
    until: int | None = None
    address: str = ""
    close: bool = False
    children: list[str] = []
    """Those that have left before it: it is not closed while it has another."""


class Left(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A run as it leaves, or as it would: `carry`, and what its code has not been told."""

    token: str
    address: str
    carry: Carry
    happenings: list[Happening] = []
    leaves: bool = False
    rests: bool = False


class RunExit:
    """How far one run is in leaving this cluster."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._timer: asyncio.TimerHandle | None = None
        self.token = ""
        """Of who holds it; empty if it is not held."""
        self.address = ""
        self.leaves = False
        self.closes = False
        self.replies: dict[str, asyncio.Future[str]] = {}
        """Those who wait for a reply, by the id of their request."""
        self._with: set[str] | None = None
        """With which children it may be closed; None: not yet."""

    def told(self, what: str, data: str) -> None:
        """Take what a mover says; of two the second is not heard once the run leaves with the first."""
        said = msgspec.json.decode(data, type=Leave)
        if self.leaves and said.token != self.token:
            return
        if what == "hold" and not self.leaves:
            self._hold(said)
        elif what == "let_go" and not self.leaves and said.token == self.token:
            self._let_go()
        elif what == "leave":
            self.token, self.address, self.leaves = said.token, said.address, True
            self._with = {*said.children} if said.close else self._with
            self._stop_timer()
        self.look()

    def _hold(self, said: Leave) -> None:
        self._stop_timer()
        self.token = said.token
        if said.until is not None:
            self._timer = self._run.loop.call_later(max((said.until - now()) / 1e6, 0.001), self._let_go)

    def _let_go(self) -> None:
        self._stop_timer()
        self.token = ""
        self._run._begin()  # what was held back
        self._run._pump()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def rests(self) -> bool:
        """Whether it is held, and nothing is under way for it."""
        run = self._run
        busy = run.attempts or run.waiting or run.turning is not None or run.early is not None
        return bool(self.token) and not busy

    def look(self) -> None:
        """Close the run if it is to be, and has come to rest."""
        run = self._run
        if self._with is not None and self.rests and run.carry.children.keys() <= self._with:
            self.closes = run.ended is None
            if not run.done.done():
                run.done.set_result(None)

    async def asked(self, name: str, args: Sequence[RawValue]) -> RawValue:
        """Take a request, and wait for what the code replies."""
        info = workflow.current_update_info()
        assert info is not None
        answered = self.replies[info.id] = self._run.loop.create_future()
        self.refuse_requests()
        if not answered.done():
            self._run.mail("message", name, info.id, data_of(args[0]).decode() if args else "null")
        try:
            return raw(await answered)
        finally:
            del self.replies[info.id]

    def reply(self, replies: Sequence[tuple[str, str]]) -> None:
        """Hand on what the code replied."""
        for message, payload in replies:
            asked = self.replies.get(message)
            if asked is not None and not asked.done():
                asked.set_result(payload)

    def refuse_requests(self) -> None:
        """Tell those who wait for a reply, if there will be none here."""
        run = self._run
        if run.ended is None and not self.closes:
            return
        status, kind = (run.ended.status, "RunTerminal") if run.ended is not None else (self.address, "Moved")
        for answer in self.replies.values():
            if not answer.done():
                answer.set_exception(ApplicationError(status, type=kind, non_retryable=True))

    async def result(self) -> RawValue | None:
        """Return the run as it leaves, None if it does not: it goes on in another execution; while held it waits."""
        if self.token:
            await workflow.wait_condition(lambda: self.closes or not self.token)
        if not self.closes:
            return None
        self.refuse_requests()
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.upsert_memo({"moved": self.address, "blocked": None, "paused": None})
        left = packed(self.left())  # nothing is awaited from here on: what has come is in it
        left.payload.metadata[ADDRESS] = self.address.encode()
        return left

    def left(self) -> Left:
        """Return the run as it is."""
        run = self._run
        until = run.carry.paused_until if run.pause is not None else None
        carry = run.carried(run.carry.generation, run.rows)
        return Left(
            token=self.token,
            address=self.address,
            carry=msgspec.structs.replace(carry, paused=run.paused, paused_until=until),
            happenings=[*run.happenings],
            leaves=self.leaves,
            rests=self.rests,
        )
