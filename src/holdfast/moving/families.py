"""Which runs move together, and why some cannot move: read from a store, which is not changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from holdfast.contract.heads import HeadFilter, RunHead
from holdfast.contract.moves import FROM, Departure
from holdfast.contract.rows import TERMINAL, InboxKind, RunRow, Status
from holdfast.contract.store import Store
from holdfast.errors import NoSuchRun, PayloadTooLarge
from holdfast.moving.handing import EVENTS, handed_over
from holdfast.temporal.client.handover import ABSENT, HandOver
from holdfast.temporal.client.target import MoveTarget

_OPEN = tuple(status for status in Status if status not in TERMINAL)
_PAGE = 200
_SHOWN = 3


@dataclass(slots=True)
class Member:
    """One run of a family, as it was read."""

    row: RunRow
    departure: Departure

    @property
    def at_rest(self) -> bool:
        """Whether nothing of it is under way: no worker has it, and it is paused or blocked."""
        return self.row.owner is None and self.row.status in (Status.PAUSED, Status.BLOCKED)


@dataclass(slots=True)
class Family:
    """Runs that go together: a run with its open children, parents first."""

    members: list[Member]
    reasons: dict[str, list[str]] = field(default_factory=dict)
    """Why it cannot go, by the run that hinders it."""

    @property
    def ids(self) -> list[str]:
        """The ids of its runs."""
        return [member.row.id for member in self.members]

    @property
    def arriving(self) -> list[str]:
        """Those of its runs that are on their way here."""
        return [member.row.id for member in self.members if member.row.wait.startswith(FROM)]

    @property
    def moving(self) -> bool:
        """Whether it was marked before, by a mover that was interrupted or is at work."""
        return any(member.row.status is Status.MOVING for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCode:
    """What is known of workflows: the queue of each, and what of it is not offered where the runs go."""

    queues: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    queue: str = "default"
    """Of workflows that are not known."""

    def queue_of(self, workflow: str) -> str:
        """Return the queue that runs of a workflow wait in."""
        return self.queues.get(workflow, self.queue)


class Families:
    """The open runs of a store."""

    def __init__(self, store: Store, target: MoveTarget, code: KnownCode) -> None:
        self._store = store
        self._target = target
        self._code = code

    async def chosen(self, runs: tuple[str, ...], workflows: tuple[str, ...]) -> AsyncIterator[Family]:
        """Go through families of which a run is meant; those that are moving come first.

        Raises:
            NoSuchRun: a run that was named is not there.
        """
        seen: set[str] = set()
        for statuses in ((Status.MOVING,), tuple(status for status in _OPEN if status is not Status.MOVING)):
            async for head in self._heads(runs, workflows, statuses):
                if head.id in seen:
                    continue
                family = await self.around(head.id)
                seen.update(family.ids)
                if family.members:
                    yield family

    async def _heads(
        self, runs: tuple[str, ...], workflows: tuple[str, ...], statuses: tuple[Status, ...]
    ) -> AsyncIterator[RunHead]:
        if runs:
            found = await self._store.heads_of(runs)
            for id in runs:
                if id not in found:
                    raise NoSuchRun(id)
                if found[id].status in statuses:
                    yield found[id]
            return
        before: int | None = None
        while True:
            which = HeadFilter(statuses=statuses, workflows=workflows, limit=_PAGE, before=before, thorough=True)
            page = await self._store.heads(which)
            for head in page.heads:
                yield head
            if page.next is None:
                return
            before = page.next

    async def around(self, run_id: str) -> Family:
        """Return the family of a run, from its topmost open ancestor down; empty if it has ended meanwhile."""
        top = await self._store.get(run_id)
        while top is not None and top.parent is not None:
            above = await self._store.get(top.parent)
            if above is None or above.ended is not None:
                break
            top = above
        members: list[Member] = []
        left = [top] if top is not None and top.ended is None else []
        while left:
            row = left.pop(0)
            departure = await self._store.departure(row.key)
            members.append(Member(row, departure))
            for child in departure.children:
                found = await self._store.get(child)
                if found is not None and found.ended is None:
                    left.append(found)
        return Family(members)

    async def judge(self, family: Family) -> Family:
        """Note why a family cannot go, if it cannot; runs that are moving were judged before."""
        for member in family.members:
            if not family.moving and (reasons := await self._reasons(member)):
                family.reasons[member.row.id] = reasons
        return family

    async def _reasons(self, member: Member) -> list[str]:
        row, departure = member.row, member.departure
        reasons = [*_of_row(row, departure), *await self._of_inbox(member)]
        if refused := self._code.refused.get(row.workflow):
            reasons.append(refused)
        reasons += [
            f"it waits for {name!r}, under which {queued:,} events are queued: events are not offered there"
            for name, queued in departure.waited.items()
            if queued
        ]
        if departure.given:
            names = ", ".join(map(repr, departure.given[:_SHOWN]))
            reasons.append(f"it is given every event {names}: events are not offered there")
        reasons += [
            f"it waits for the idempotency key {key!r} of {activity!r}, which another run has, and would not wait there"
            for activity, key in departure.keys[:_SHOWN]
        ]
        try:
            self._target.check_size(await self.handed(member, "", False))
        except PayloadTooLarge as error:
            reasons.append(str(error))
        if await self._target.token_of(row.id) != ABSENT:
            reasons.append(f"its id is taken at {self._target.address}, by another run")
        return reasons

    async def _of_inbox(self, member: Member) -> list[str]:
        kinds = {each.kind for each in (await self._store.inboxes({member.row.key: 0}))[member.row.key]}
        reasons = []
        if kinds & EVENTS:
            reasons.append("it was given an event that it has not taken: events are not offered there")
        if member.at_rest and InboxKind.TASK_ENDED in kinds:
            reasons.append("a step that another worker ran has ended, and is not recorded yet: let a worker resume it")
        return reasons

    async def handed(self, member: Member, token: str, held: bool) -> HandOver:
        """Return a run as it is handed over."""
        queue = self._code.queue_of(member.row.workflow)
        return await handed_over(self._store, member.row, member.departure, queue, token, held)


def _of_row(row: RunRow, departure: Departure) -> list[str]:
    reasons = []
    if row.status is Status.CANCELLING:
        reasons.append("it is being cancelled: let it end")
    if row.conclusion in TERMINAL:
        reasons.append("how it ends is decided, and its hook is being called: let it end")
    if departure.place:
        reasons.append("its workflow has places or a key for its runs, which are not offered there")
    if row.unique_key is not None and row.id != f"{row.workflow}={row.unique_key}":
        reasons.append(
            f"it holds the unique key {row.unique_key!r}, which there only a run holds whose id is made of it"
        )
    if departure.tasks and row.owner is None:
        reasons.append("an attempt of it is in a queue, and no worker has the run: let a worker resume it")
    return reasons
