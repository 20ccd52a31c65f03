"""Moving families of runs back from Temporal to a store: held there, expected here, closed there, and brought in.

The process may die after any step: the next mover finds the expected runs here by their token, and continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.clock import Clock, micros, new_id
from holdfast.contract.heads import HeadFilter
from holdfast.contract.moves import FROM, ArriveRuns, Arriving, ExpectRuns, ForgetArrival
from holdfast.contract.operations import Done, Operation, Outcome
from holdfast.contract.rows import RunFilter, RunRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import Audit
from holdfast.errors import CannotMove, NoSuchRun, PayloadTooLarge
from holdfast.moving.report import MoveReport
from holdfast.temporal.client.homecoming import arriving_of, new_run_of
from holdfast.temporal.client.source import MoveSource, RunThere

_LOOK = 0.05
_AT_ONCE = 16
_PAGE = 200
_SPARE = timedelta(minutes=1)
"""How much longer than its grace a hold lasts, if its mover is no more."""


@dataclass(slots=True)
class _Family:
    """Runs that go together, parents first, as they stand on the cluster."""

    members: dict[str, RunThere] = field(default_factory=dict)

    @property
    def open(self) -> list[RunThere]:
        """Those that have not ended and are not closed."""
        return [each for each in self.members.values() if not each.ended and not each.closed]


class Returner:
    """Moves open runs of a namespace of Temporal's to a store."""

    def __init__(
        self,
        source: MoveSource,
        store: Store,
        address: str,
        *,
        by: str,
        reason: str = "",
        grace: timedelta = timedelta(seconds=30),
        versions: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._source = source
        self._store = store
        self._address = address
        self._by = by
        self._reason = reason
        self._grace = grace
        self._versions = versions
        self._clock = clock or store.clock
        self.report = MoveReport(address=address, dry_run=False)
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
        report = self.report = MoveReport(address=self._address, dry_run=dry_run)

        def told() -> None:
            progress(len(report.moved) + len(report.finished))

        seen: set[str] = set()
        for token, ids in (await self._expected()).items():
            if not runs or {*runs} & {*ids}:
                seen.update(ids)
                await self._settle([self._go_on(ids, token)])
                told()
        together: list[_Family] = []
        async for run_id in self._meant(runs, workflows):
            if run_id in seen:
                continue
            family = await self._around([run_id])
            seen.update(family.members)
            if family.open:
                together.append(family)
            if len(together) == _AT_ONCE:
                await self._settle([self._move(family) for family in together])
                told()
                together = []
        await self._settle([self._move(family) for family in together])
        told()
        return report

    async def _settle(self, moves: list[Coroutine[Any, Any, None]]) -> None:
        """Move some families side by side: most of the time is spent waiting for their workers."""
        for end in await asyncio.gather(*moves, return_exceptions=True):
            if isinstance(end, BaseException):
                raise end

    async def _go_on(self, ids: list[str], token: str) -> None:
        """Finish what an earlier move has begun."""
        if not self.report.dry_run:
            try:
                await self._bring(ids, token)
            except CannotMove as error:
                self.report.left |= {run_id: [str(error)] for run_id in ids}
                return
        self.report.finished += ids

    async def _move(self, family: _Family) -> None:
        reasons = await self._reasons(family)
        ids = [*family.members]
        if not reasons and not self.report.dry_run:
            try:
                reasons, ids = await self._take(ids)
            except CannotMove as error:
                reasons = [str(error)]
        if reasons:
            self.report.left |= dict.fromkeys(ids, reasons)
        else:
            self.report.moved += ids

    # Which runs, and why some cannot go.

    async def _meant(self, runs: tuple[str, ...], workflows: tuple[str, ...]) -> AsyncIterator[str]:
        if not runs:
            async for run_id, workflow in self._source.open_runs():
                if not workflows or workflow in workflows:
                    yield run_id
        for run_id in runs:
            standing = await self._source.stands(run_id)
            if standing is None:
                raise NoSuchRun(run_id)
            if not standing.ended and not standing.closed:
                yield run_id

    async def _expected(self) -> dict[str, list[str]]:
        """Return the runs that are expected here from there, by token, parents first."""
        expected: dict[str, list[str]] = {}
        before: int | None = None
        while True:
            page = await self._store.heads(
                HeadFilter(statuses=(Status.MOVING,), limit=_PAGE, before=before, thorough=True)
            )
            for head in page.heads:
                move = (await self._store.departure(head.key)).move
                if move is not None and move.arrives and move.address == self._source.address:
                    expected.setdefault(move.token, []).insert(0, head.id)
            if page.next is None:
                return expected
            before = page.next

    async def _around(self, ids: Iterable[str]) -> _Family:
        """Return the family of runs, from their topmost open ancestor down."""
        found: dict[str, RunThere | None] = {}

        async def stands(run_id: str) -> RunThere | None:
            if run_id not in found:
                found[run_id] = await self._source.stands(run_id)
            return found[run_id]

        tops: dict[str, None] = {}
        for run_id in ids:
            top = run_id
            while (each := await stands(top)) is not None and each.left is not None and each.left.carry.parent:
                above = await stands(each.left.carry.parent)
                if above is None or above.ended:
                    break
                top = above.id
            tops[top] = None
        family, left = _Family(), [*tops]
        while left:
            each = await stands(left.pop(0))
            if each is not None and each.id not in family.members:
                family.members[each.id] = each
                left += each.left.carry.children if each.left is not None else ()
        return family

    async def _reasons(self, family: _Family) -> list[str]:
        """Return why a family cannot come."""
        reasons = []
        for each in family.open:
            words = await self._why_not(each)
            reasons += [f"{each.id}: {said}" for said in words] if len(family.open) > 1 else words
        return reasons

    async def _why_not(self, each: RunThere) -> list[str]:
        if each.left is None:
            return [each.silent]
        row = await self._store.get(each.id)
        if row is not None and row.status is Status.MOVING and row.wait == FROM + self._source.address:
            return []  # it is expected by now: another mover is at work
        if row is not None and row.status is not Status.MOVED:
            # There and here are not read at one instant: if it is closed by now, another mover has brought it.
            now = await self._source.stands(each.id)
            if now is None or now.closed or now.ended:
                return []
        reasons = []
        if each.left.leaves:
            reasons.append(f"it is on its way to {each.left.address}: finish that first, with the same command")
        if self._versions is not None and each.workflow not in self._versions:
            reasons.append(f"its workflow {each.workflow!r} is not one of those that --app names")
        if row is not None and (row.status is not Status.MOVED or row.wait != self._source.address):
            where = f", which was moved to {row.wait}" if row.status is Status.MOVED else ""
            reasons.append(f"its id is taken at {self._address}, by another run{where}")
        if each.unique_key is not None:
            which = RunFilter(workflow=each.workflow, unique_key=each.unique_key, limit=_PAGE)
            if any(other.ended is None for other in await self._store.runs(which)):
                reasons.append(f"another run has its unique key {each.unique_key!r} at {self._address}")
        try:
            self._source.check_size(each)
        except PayloadTooLarge as error:
            reasons.append(str(error))
        return reasons

    # Coming to rest there, and being expected here.

    async def _take(self, ids: list[str]) -> tuple[list[str], list[str]]:
        """Hold a family, expect it and bring it; return why not, and who it was in the end."""
        token, asked = new_id(), set[str]()
        family, at_rest = await self._rested(ids, token, asked)
        if not family.open:
            return [], []  # it has ended meanwhile
        reasons = await self._reasons(family) if at_rest else [self._restless(family)]
        if not reasons and not await self._expect(family, token):
            others = {run_id: other for other, them in (await self._expected()).items() for run_id in them}
            mine = next((others[run_id] for run_id in family.members if run_id in others), None)
            if mine is not None:  # another mover was quicker
                await self._bring([run_id for run_id, other in others.items() if other == mine], mine)
                return [], [*family.members]
            family = await self._around(ids)
            if not family.open:
                return [], []  # it was brought, or has ended meanwhile
            reasons = await self._reasons(family) or ["it changes while it is looked at: try again"]
        if reasons:
            for run_id in sorted(asked):
                await self._source.let_go(run_id, token)
            return reasons, [*family.members]
        await self._bring([*family.members], token)
        return [], [each.id for each in family.open]

    async def _rested(self, ids: list[str], token: str, asked: set[str]) -> tuple[_Family, bool]:
        """Wait for a family to come to rest; return it as it is then, and whether it did."""
        end = self._patience()
        while True:
            family = await self._around(ids)
            if all(_rests(each, token) for each in family.open):
                return family, True
            for each in family.open:  # also children that were started meanwhile
                if each.left is None or each.left.token != token:
                    await self._source.hold(each.id, token, self._clock.now() + micros(self._grace + _SPARE))
                    asked.add(each.id)
            if asyncio.get_running_loop().time() > end:
                return family, False
            await asyncio.sleep(_LOOK)

    def _patience(self) -> float:
        return asyncio.get_running_loop().time() + self._grace.total_seconds()

    def _restless(self, family: _Family) -> str:
        silent = [f"{each.id}: {each.silent}" for each in family.open if each.silent]
        busy = ", ".join([each.id for each in family.open if each.left is None or not each.left.rests][:3])
        return (
            silent[0]
            if silent
            else (
                f"steps of {busy} did not end within {self._grace.total_seconds():g} s: "
                "try again later, or with a longer --grace"
            )
        )

    async def _expect(self, family: _Family, token: str) -> bool:
        """Let there be rows for those that are to come; False if one cannot have one."""
        coming = []
        for each in family.open:
            if each.left is None:
                return False
            parent = family.members.get(each.left.carry.parent)
            version = (self._versions or {}).get(each.workflow, "")
            coming.append(new_run_of(each, version, parent))
        if not coming:
            return True
        expected = ExpectRuns(
            target=coming[0].id,
            token=token,
            at=self._clock.now(),
            runs=coming,
            address=self._source.address,
            audit=self._audit("expect move"),
        )
        return isinstance(await self._apply(expected), Done)

    # Leaving there, and arriving here.

    async def _bring(self, ids: list[str], token: str) -> None:
        """Close what is expected and let it go on here."""
        family = await self._left(ids, token)
        for each in reversed([*family.open]):
            children = each.left.carry.children if each.left is not None else ()
            await self._source.leave(each.id, token, self._address, children)
            await self._closed(each.id)
        family = await self._around(ids)
        row_of = {run_id: await self._store.get(run_id) for run_id in family.members}
        arriving = []
        for each in family.members.values():
            if each.ended:
                await self._apply(ForgetArrival(target=each.id, token=token, at=self._clock.now()))
            elif each.left is not None and (row := row_of[each.id]) is not None and row.status is Status.MOVING:
                arriving.append(await self._arriving(each, row))
        if missing := {*ids} - family.members.keys():
            raise CannotMove(
                f"{', '.join(sorted(missing)[:3])} is not at {self._source.address} any more: the namespace forgot it "
                "before it was brought here, or it was deleted"
            )
        if arriving:
            audit = self._audit("arrive")
            target, now = arriving[0].id, self._clock.now()
            await self._apply(ArriveRuns(target=target, token=token, at=now, runs=arriving, audit=audit))

    async def _left(self, ids: list[str], token: str) -> _Family:
        """Let all of a family leave, and wait until nothing is under way; what it started meanwhile leaves, too."""
        end = self._patience()
        while True:
            family = await self._around(ids)
            if all(each.left is not None and each.left.leaves and each.left.rests for each in family.open):
                return family
            if not await self._expect(family, token):
                raise CannotMove("; ".join(await self._reasons(family)) or "one of its runs cannot be expected")
            alone = len(family.members) == 1
            for each in family.open:
                if each.left is None or not each.left.leaves:
                    await self._source.leave(each.id, token, self._address, () if alone else None)
            if asyncio.get_running_loop().time() > end:
                raise CannotMove(f"on its way, and finished by the same command: {self._restless(family)}")
            await asyncio.sleep(_LOOK)

    async def _closed(self, run_id: str) -> None:
        end = self._patience()
        while (each := await self._source.stands(run_id)) is not None and not each.closed and not each.ended:
            if asyncio.get_running_loop().time() > end:
                raise CannotMove(f"on its way, and finished by the same command: {run_id} was not closed in time")
            await asyncio.sleep(_LOOK)

    async def _arriving(self, each: RunThere, row: RunRow) -> Arriving:
        known = msgspec.json.decode(row.attributes, type=dict[str, msgspec.Raw])
        evidence: list[tuple[str, str]] = []
        after = 0
        while page := await self._store.evidence(each.id, after=after, limit=1000):
            evidence += [(item.id, item.kind) for item in page]
            after = page[-1].n
        return arriving_of(each, [*known], evidence, self._clock.now())

    # The store.

    async def _apply(self, operation: Operation) -> Outcome:
        [outcome] = await self._store.apply([operation])
        return outcome

    def _audit(self, action: str) -> Audit:
        said = {"from": self._source.address} | ({"reason": self._reason} if self._reason else {})
        return Audit(actor=self._by, action=action, detail=msgspec.json.encode(said).decode())


def _rests(each: RunThere, token: str) -> bool:
    return each.left is not None and each.left.rests and (each.left.token == token or each.left.leaves)
