"""Moving families of runs: they are brought to rest, marked in one commit, started there, and left as tombstones.

The process may die after any step: the next mover finds the marked runs by their token, and continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import msgspec

from holdfast.clock import Clock, micros, new_id
from holdfast.contract.moves import FinishMove, GiveUpMove, Leaving, MarkMoving
from holdfast.contract.operations import Done, Operation, Outcome, Pause, Refused, Unpause
from holdfast.contract.rows import Status
from holdfast.contract.store import Store
from holdfast.contract.turns import Audit
from holdfast.errors import CannotMove, RunConflict
from holdfast.moving.families import Families, Family, KnownCode, Member
from holdfast.moving.handing import to_forward
from holdfast.moving.report import MoveReport
from holdfast.temporal.client.handover import ABSENT
from holdfast.temporal.client.target import MoveTarget

_LOOK = 0.05
_AT_ONCE = 16
"""How many families are moved side by side."""
_TRIES = 5
_SPARE = timedelta(minutes=1)
"""How much longer than its grace a pause lasts that a mover asked for, if that mover is no more."""


class Mover:
    """Moves open runs of a store to a namespace of Temporal's."""

    def __init__(
        self,
        store: Store,
        target: MoveTarget,
        *,
        by: str,
        reason: str = "",
        grace: timedelta = timedelta(seconds=30),
        code: KnownCode | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._target = target
        self._families = Families(store, target, code or KnownCode())
        self._by = by
        self._reason = reason
        self._grace = grace
        self._clock = clock or store.clock
        self._retention: int | None = None
        self.report = MoveReport(address=target.address, dry_run=False)
        """What has become of the runs so far."""

    async def move(
        self,
        runs: tuple[str, ...] = (),
        workflows: tuple[str, ...] = (),
        *,
        dry_run: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> MoveReport:
        """Move the open runs that are meant, or (`dry_run`) only say which would go; `progress` is told how many went.

        Raises:
            NoSuchRun: a run that was named is not there.
            StoreUnreachable: the server does not answer any more; what is on its way is finished by the next move.
        """
        report = self.report = MoveReport(address=self._target.address, dry_run=dry_run)
        if not dry_run:
            await self._store.take_over(self._clock.now())  # what dead workers had is at rest
        together: list[Family] = []
        async for family in self._families.chosen(runs, workflows):
            together.append(family)
            if len(together) == _AT_ONCE:
                await self._move_some(together, report, dry_run, progress)
                together = []
        await self._move_some(together, report, dry_run, progress)
        return report

    async def _move_some(
        self, families: list[Family], report: MoveReport, dry_run: bool, progress: Callable[[int], None]
    ) -> None:
        """Move some families side by side: most of the time is spent waiting for their workers to let them go."""
        ends = await asyncio.gather(
            *(self._move(family, report, dry_run) for family in families), return_exceptions=True
        )
        for family, end in zip(families, ends, strict=True):
            if isinstance(end, CannotMove):
                report.left |= {run_id: [str(end)] for run_id in family.ids}
        progress(len(report.moved) + len(report.finished))
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, CannotMove):
                raise end

    async def _move(self, family: Family, report: MoveReport, dry_run: bool) -> None:
        if family.arriving:
            reason = f"{', '.join(family.arriving[:3])} is on its way here: finish that first, with the same command"
            report.left |= {key: [reason] for key in family.ids}
            return
        if family.moving:
            if not dry_run:
                await self._carry_over(family, resumed=True)
            report.finished += family.ids
            return
        await self._families.judge(family)
        reasons = _all_of(family)
        if not reasons and not dry_run:
            reasons, family = await self._take(family)
        if reasons and not dry_run:
            # Here and there are not read at one instant: another mover may have been quicker.
            now = await self._families.around(family.ids[0])
            if now.moving or not now.members:
                await self._move(now, report, dry_run)
                return
        if reasons:
            report.left |= dict.fromkeys(family.ids, reasons)
        else:
            report.moved += family.ids

    async def _take(self, family: Family) -> tuple[list[str], Family]:
        """Bring a family to rest, mark it and carry it over; return why not, and the family as it was in the end."""
        for _ in range(_TRIES):
            if not family.members:
                return [], family  # it has ended meanwhile, or another mover was quicker
            paused = await self._paused_by_others(family)
            asked: set[str] = set()
            family, at_rest = await self._rested(family, asked)
            if not family.members:
                return [], family  # it has ended meanwhile
            reasons = _all_of(await self._families.judge(family)) if at_rest else [self._restless(family)]
            if reasons or family.moving:
                await self._let_go_on(asked)
                if family.moving:
                    await self._carry_over(family, resumed=True)
                return reasons, family
            if await self._mark(family, paused):
                await self._carry_over(await self._families.around(family.ids[0]))
                return [], family
            await self._let_go_on(asked)
            family = await self._families.judge(await self._families.around(family.ids[0]))
        return ["it changes while it is looked at: try again"], family

    # Coming to rest.

    async def _paused_by_others(self, family: Family) -> set[str]:
        """Return the runs that stay paused where they go: not those that a mover paused which is no more."""
        paused = [member.row.id for member in family.members if member.row.status is Status.PAUSED]
        acts = await self._store.last_acts(paused, ["pause"]) if paused else {}
        ours = {id for id, act in acts.items() if act.action == "pause" and act.detail == self._pausing}
        return {*paused} - ours

    @property
    def _pausing(self) -> str:
        return _detail(reason=f"moves to {self._target.address}")

    async def _ask_to_rest(self, family: Family, asked: set[str]) -> None:
        """Let the runs of a family begin nothing more, and note which of them this mover has asked."""
        now = self._clock.now()
        until = now + micros(self._grace + _SPARE)
        for member in family.members:
            if not member.at_rest and member.row.status is not Status.PAUSED:
                audit = Audit(actor=self._by, action="pause", detail=self._pausing)
                paused = await self._apply(Pause(target=member.row.id, at=now, until=until, audit=audit))
                if not isinstance(paused, Refused):
                    asked.add(member.row.id)

    async def _rested(self, family: Family, asked: set[str]) -> tuple[Family, bool]:
        """Wait for a family to come to rest; return it as it is then, and whether it did."""
        end = asyncio.get_running_loop().time() + self._grace.total_seconds()
        while True:
            family = await self._families.around(family.ids[0])
            if not family.members or family.moving or all(member.at_rest for member in family.members):
                return family, True
            await self._ask_to_rest(family, asked)  # also children that were started meanwhile
            if asyncio.get_running_loop().time() > end:
                return family, False
            await asyncio.sleep(_LOOK)

    def _restless(self, family: Family) -> str:
        busy = [member.row.id for member in family.members if not member.at_rest]
        return (
            f"steps of {', '.join(busy[:3])} did not end within {self._grace.total_seconds():g} s: "
            "try again later, or with a longer --grace"
        )

    async def _let_go_on(self, asked: set[str]) -> None:
        for run_id in sorted(asked):
            await self._apply(Unpause(target=run_id, at=self._clock.now(), audit=self._audit("resume")))

    # Marking, and giving that up.

    async def _mark(self, family: Family, paused: set[str]) -> bool:
        leaving = [
            Leaving(
                id=member.row.id,
                epoch=member.row.epoch,
                paused=member.row.id in paused,
                until=member.row.due if member.row.id in paused else None,
            )
            for member in family.members
        ]
        marked = await self._apply(
            MarkMoving(
                target=family.ids[0],
                token=new_id(),
                at=self._clock.now(),
                runs=leaving,
                address=self._target.address,
                audit=self._audit("move"),
            )
        )
        return isinstance(marked, Done)

    async def _give_up(self, family: Family, token: str) -> None:
        """Let a family go on here: none of it acts there, for those that were started are paused."""
        for member in family.members:
            await self._target.withdraw(member.row.id, token)
        for member in family.members:
            audit = self._audit("give up move")
            await self._apply(GiveUpMove(target=member.row.id, token=token, at=self._clock.now(), audit=audit))

    # Arriving.

    async def _carry_over(self, family: Family, resumed: bool = False) -> None:
        """Start what is marked where it goes, forward what came meanwhile, and leave tombstones."""
        going = [member for member in family.members if member.row.status is Status.MOVING]
        tokens = {member.departure.move.token for member in going if member.departure.move is not None}
        for token in tokens:
            mine = [member for member in going if member.departure.move and member.departure.move.token == token]
            self._check_address(mine[0])
            await self._start(mine, token, resumed)
            for member in mine:
                await self._finish(member, token)

    def _check_address(self, member: Member) -> None:
        move = member.departure.move
        if move is not None and move.address != self._target.address:
            raise CannotMove(
                f"run {member.row.id!r} is on its way to {move.address}: finish that first, with the same command and "
                "that address"
            )

    async def _start(self, members: list[Member], token: str, resumed: bool) -> None:
        held = len(members) > 1  # until all are there: one may send to another at once
        for member in members:
            if resumed:
                await self._check_age(member)
            try:
                await self._target.start(await self._families.handed(member, token, held), self._clock.now())
            except RunConflict as conflict:
                await self._give_up(Family(members), token)
                raise CannotMove(f"{conflict}; nothing of it was done there, and it goes on here") from conflict
        for member in members:
            if held and member.departure.move is not None and not member.departure.move.paused:
                await self._target.resume(member.row.id)

    async def _check_age(self, member: Member) -> None:
        """Refuse to start a run that may have ended there so long ago that the server has forgotten it."""
        move, run_id = member.departure.move, member.row.id
        if self._retention is None:
            self._retention = await self._target.retention()
        old = move is not None and self._clock.now() - move.at > self._retention
        if old and await self._target.token_of(run_id) == ABSENT:
            raise CannotMove(
                f"run {run_id!r} was marked longer ago than {self._target.address} remembers runs that have ended: "
                "whether it ran there is not known any more"
            )

    async def _finish(self, member: Member, token: str) -> None:
        """Forward what came for a run since it was marked, until nothing came in between, and leave a tombstone."""
        move = member.departure.move
        seen = move.inbox if move is not None else 0
        while True:
            inbox = (await self._store.inboxes({member.row.key: seen}))[member.row.key]
            for message in to_forward(inbox, seen):
                await self._target.forward(member.row.id, message)
            seen = max((each.n for each in inbox), default=seen)
            audit = self._audit("moved")
            gone = await self._apply(
                FinishMove(target=member.row.id, token=token, at=self._clock.now(), seen=seen, audit=audit)
            )
            if not isinstance(gone, Refused) or gone.reason != "inbox":
                return

    # The store.

    async def _apply(self, operation: Operation) -> Outcome:
        [outcome] = await self._store.apply([operation])
        return outcome

    def _audit(self, action: str) -> Audit:
        said = {"reason": self._reason} if self._reason else {}
        return Audit(actor=self._by, action=action, detail=_detail(to=self._target.address, **said))


def _detail(**said: str) -> str:
    return msgspec.json.encode(said).decode()


def _all_of(family: Family) -> list[str]:
    alone = len(family.members) == 1
    return [
        reason if alone else f"{run_id}: {reason}" for run_id, reasons in family.reasons.items() for reason in reasons
    ]
