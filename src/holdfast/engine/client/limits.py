"""Looking at limits that workers share, and acting on them: pause, resume, override."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.changes import Change
from holdfast.clock import Instant, to_datetime
from holdfast.contract.limits import LimitKeyRow, LimitRow, LimitSpec, PauseLimit, PutLimit
from holdfast.contract.operations import Done
from holdfast.engine.client.link import Link, Linked
from holdfast.engine.views.reasons import HeldBack, reasons_of
from holdfast.errors import BadInput, UnknownLimit
from holdfast.limits import Limit
from holdfast.ops.port import audited
from holdfast.patience import patient

_MOST_KEYS = 20


class LimitKeyState(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a limit that is in use; `next_turn` is from when its first waiter may begin, where that is known."""

    key: str
    used: int
    waiting: int
    next_turn: datetime | None
    held_until: datetime | None
    """Until when a service asked to be left alone, or failed so often that it is."""
    failures: int
    """How many attempts in a row failed."""


class LimitState(msgspec.Struct, frozen=True, kw_only=True):
    """A limit as the store has it; `used` places and `waiting` steps are those of all workers.

    `at_once` and the numbers after it are those in force: `overridden` tells that an operator's are. `keys` are those
    for which most wait, or that have most places.
    """

    name: str
    used: int
    waiting: int
    next_turn: datetime | None
    paused: bool
    overridden: bool
    numbers: LimitSpec
    keys: list[LimitKeyState]


class LimitControl(Linked):
    """What an engine answers about limits, and what operators ask of it."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @patient
    async def __call__(self) -> list[LimitState]:
        """Return the limits that all workers share: what is used, what waits, and at most 20 of the keys in use."""
        link = self._link
        link.check_usable()
        now, wall = link.worker.limits.lease_clock.now(), link.clock.now()
        found: list[LimitState] = []
        for row in await link.store.limits():
            keys = [_key_state(key, now, wall) for key in await link.store.limit_keys(row.name, _MOST_KEYS)]
            found.append(_state(row, keys))
        return found

    @patient
    async def pause(self, name: str, *, by: str | None = None, reason: str = "") -> bool:
        """Let nothing begin under a limit, on any worker, from now on; False if it is paused already.

        Raises:
            UnknownLimit: no engine on this database declared it.
        """
        return await self._pause(name, by, reason, paused=True)

    @patient
    async def resume(self, name: str, *, by: str | None = None, reason: str = "") -> bool:
        """Let steps begin again under a limit that was paused; False if it was not.

        Raises:
            UnknownLimit: no engine on this database declared it.
        """
        return await self._pause(name, by, reason, paused=False)

    async def _pause(self, name: str, by: str | None, reason: str, *, paused: bool) -> bool:
        link = self._link
        audit = audited(link, by, "limit.pause" if paused else "limit.resume", reason=reason or None)
        now = link.worker.limits.lease_clock.now()
        at = link.clock.now()
        outcome = await link.apply(PauseLimit(name=name, paused=paused, at=at, now=now, audit=audit))
        changed = _changed(outcome, name)
        if changed:
            self._tell("paused" if paused else "resumed", name, at, reason)
        return changed

    @patient
    async def override(self, name: str, numbers: Limit | None, *, by: str | None = None, reason: str = "") -> bool:
        """Put other numbers in force, whatever engines declare, until None clears them; nothing is interrupted.

        Returns False if that changes nothing.

        Raises:
            UnknownLimit: no engine on this database declared it.
            BadInput: `numbers` is no Limit of that name.
        """
        link, given = self._link, numbers
        fits: object = given
        if fits is not None and not (isinstance(fits, Limit) and (fits.name, fits.scope) == (name, "database")):
            raise BadInput(f"limits.override({name!r}, ...) takes a Limit(name={name!r}, ...) or None, not {given!r}")
        meant = given.meant() if given is not None else None
        put = PutLimit(
            name=name,
            spec=given.spec if given is not None else None,
            at=link.clock.now(),
            now=link.worker.limits.lease_clock.now(),
            override=True,
            audit=audited(link, by, "limit.override", numbers=meant, reason=reason or None),
        )
        changed = _changed(await link.apply(put), name)
        if changed:
            self._tell("overridden" if given is not None else "restored", name, put.at, reason)
        return changed

    @patient
    async def why(self, run_id: str) -> list[HeldBack]:
        """Return what holds back a run and its steps: pauses first, then its admission, then the limits of steps.

        Nothing, if flow control does not.

        Raises:
            NoSuchRun: there is no such run.
        """
        link = self._link
        link.check_usable()
        queues, lease_now = link.worker.runner.queues, link.worker.limits.lease_clock.now()
        return await reasons_of(link.store, run_id, queues.queue_of, link.clock.now(), lease_now)

    def _tell(self, what: str, name: str, at: Instant, reason: str) -> None:
        said = {"limit": name, **({"reason": reason} if reason else {})}
        self._link.notify(Change(type=f"limit.{what}", at=to_datetime(at), data=said))


class HasLimits(Linked):
    """An engine, as far as limits are concerned."""

    @property
    def limits(self) -> LimitControl:
        """The limits that all workers share: call it to look, or pause, resume and override one."""
        return LimitControl(self._link)


def _changed(outcome: object, name: str) -> bool:
    if isinstance(outcome, Done):
        return bool(outcome.count)
    raise UnknownLimit(f"no engine on this database declares the limit {name!r}")


def _state(row: LimitRow, keys: list[LimitKeyState]) -> LimitState:
    text = row.override if row.override is not None else row.spec
    turns = [key.next_turn for key in keys if key.next_turn is not None]
    return LimitState(
        name=row.name,
        used=row.used,
        waiting=row.waiting + row.granted,
        next_turn=min(turns, default=None),
        paused=row.paused,
        overridden=row.override is not None,
        numbers=msgspec.json.decode(text, type=LimitSpec),
        keys=keys,
    )


def _key_state(row: LimitKeyRow, now: Instant, wall: Instant) -> LimitKeyState:
    held = max(row.held_until, row.open_until or 0)
    return LimitKeyState(
        key=row.key,
        used=row.used,
        waiting=row.waiting + row.granted,
        next_turn=to_datetime(wall + row.invited - now) if row.invited is not None else None,
        held_until=to_datetime(wall + held - now) if held > now else None,
        failures=row.failures,
    )
