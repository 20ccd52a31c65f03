"""Asking a run to stop, and ending it here and now; with the children that go with it."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.contract.operations import (
    Committed,
    Delivered,
    Done,
    Fenced,
    Nudge,
    Pause,
    Refused,
    RequestCancel,
    Terminate,
)
from holdfast.contract.rows import InboxKind, RunRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import Audit, Parent, RunOptions, StartChild, State
from holdfast.contract.waits import WaitNote, write_wait
from holdfast.testing.conformance.samples import (
    NOW,
    SECOND,
    TERMINAL,
    claim,
    end,
    ended,
    entry,
    new_run,
    one,
    optioned,
    parked,
    row,
    started,
    turn,
    unread,
)

FOLLOWS = RunOptions(cancel_with_parent=True)


async def child_of(store: Store, run: RunRow, name: str, *, follows: bool = True, begun: bool = True) -> RunRow:
    """Start a child of a run; a begun one is driven by worker w."""
    options = FOLLOWS if follows else RunOptions()
    child = new_run(f"{run.id}.{name}", parent=Parent(run.key, run.id, "a0"), options=options)
    start = StartChild(run=child, location="a0", seq=1, taken="")
    await one(store, turn(run.key, run.epoch, children=[start]), Committed)
    if begun:
        assert child.id in [taken.id for taken in await claim(store)]
    return await row(store, child.id)


async def kinds(store: Store, run: RunRow) -> list[str]:
    """Return the kinds of the rows a run has not read."""
    return [found.kind for found in await unread(store, run.key)]


class CancelConformance:
    """Asking a run to stop."""

    async def test_a_cancel_reaches_every_open_child_that_goes_with_it(self, store: Store) -> None:
        """B18, G10: recursively, and no other."""
        run = await started(store)
        goes, stays = await child_of(store, run, "goes"), await child_of(store, run, "stays", follows=False)
        over = await child_of(store, run, "over")
        await end(store, over)
        grandchild = await child_of(store, goes, "grandchild")
        left = await child_of(store, stays, "left")
        again = RequestCancel(target=run.id, at=NOW + 5)
        await store.apply([again, again])
        for stopped in (run, goes, grandchild):
            found = await row(store, stopped.id)
            assert found.status is Status.CANCELLING
            assert stopped.key in await store.due("w", NOW + 5)
            assert (await kinds(store, stopped)).count("cancel") == 1
        for going_on in (stays, left):
            assert (await row(store, going_on.id)).status is Status.RUNNING
            assert await kinds(store, going_on) == []
        assert (await row(store, over.id)).status is Status.COMPLETED

    async def test_children_that_never_began_end_at_once_and_their_parent_is_told(self, store: Store) -> None:
        """B18, S0-35: with the payload of the request."""
        run = await started(store)
        pending = await child_of(store, run, "pending", begun=False)
        await one(store, RequestCancel(target=run.id, at=NOW, payload='"cancelled"'), Delivered)
        assert (await row(store, pending.id)).status is Status.CANCELLED
        found = [(told.kind, told.name, told.payload) for told in await unread(store, run.key)]
        assert found == [("cancel", "", ""), ("child_ended", pending.id, '"cancelled"')]

    async def test_a_run_that_ends_cancelled_takes_its_children_with_it(self, store: Store) -> None:
        """G10: those started after the request, too; any other end leaves them alone."""
        for status in TERMINAL:
            run = await started(store)
            child = await child_of(store, run, "child")
            await end(store, run, status)
            expected = Status.CANCELLING if status is Status.CANCELLED else Status.RUNNING
            assert (await row(store, child.id)).status is expected

    async def test_a_delayed_run_is_cancelled_at_once(self, store: Store) -> None:
        run = await optioned(store, owner=None, begins=NOW + SECOND)
        await one(store, RequestCancel(target=run.id, at=NOW), Delivered)
        assert (await row(store, run.id)).status is Status.CANCELLED
        await started(store)
        assert await claim(store, now=NOW + 9 * SECOND) == []

    async def test_a_request_says_whether_to_compensate(self, store: Store) -> None:
        runs = [await started(store) for _ in range(2)]
        await store.apply([RequestCancel(target=run.id, at=NOW, compensate=run is runs[0]) for run in runs])
        payloads = [(await unread(store, run.key))[0].payload for run in runs]
        assert payloads == ['{"compensate":true}', ""]

    async def test_a_run_that_is_stopping_can_be_asked_to_compensate_after_all(self, store: Store) -> None:
        """B7: the only second request that says something new."""
        run = await started(store)
        requests = [RequestCancel(target=run.id, at=NOW, compensate=compensate) for compensate in (False, True, False)]
        await store.apply(requests)
        assert [told.payload for told in await unread(store, run.key)] == ["", '{"compensate":true}']

    async def test_a_blocked_run_can_be_cancelled(self, store: Store) -> None:
        """B7: whoever claims it is told to stop; how often it was claimed before does not count."""
        run = await started(store)
        state = State(status=Status.BLOCKED, seen=0, released=True, error='"why"', fingerprint="f")
        await one(store, turn(run.key, state=state), Committed)
        await one(store, RequestCancel(target=run.id, at=NOW), Delivered)
        [taken] = await claim(store)
        assert (taken.key, taken.status, taken.claims) == (run.key, Status.CANCELLING, 1)


class TerminateConformance:
    """Ending a run here and now."""

    async def test_a_run_is_ended_whatever_it_is_doing(self, store: Store) -> None:
        """S2-45: as given, with its owner to wake; the owner's next write is refused."""
        for status in TERMINAL:
            run = await started(store)
            ending = ended(status, error='"by hand"', output='"o"', compensation='"c"')
            assert await one(store, Terminate(target=run.id, end=ending), Done) == Done(1, owners=("w",))
            found = await row(store, run.id)
            assert (found.status, found.error, found.output, found.compensation) == (
                status, '"by hand"', '"o"', '"c"',
            )  # fmt: skip
            assert (found.owner, found.due, found.ended) == (None, None, NOW)
            await one(store, turn(run.key, entries=[entry("a0", 1)]), Fenced)
            again = Terminate(target=run.id, end=ended(Status.FAILED))
            assert await one(store, again, Refused) == Refused(status)
        assert await one(store, Terminate(target="nobody", end=ended()), Refused) == Refused(None)

    async def test_runs_of_every_open_status_can_be_terminated(self, store: Store) -> None:
        for status in Status:
            if status.is_terminal or status is Status.MOVING:
                continue
            run = await started(store)
            await one(store, turn(run.key, state=State(status=status, seen=0, released=True)), Committed)
            assert await one(store, Terminate(target=run.id, end=ended(Status.FAILED)), Done) == Done(1)
            assert (await row(store, run.id)).status is Status.FAILED
        assert await claim(store, now=NOW + 1000 * SECOND) == []

    async def test_the_parent_is_told_and_children_that_go_with_the_run_do(self, store: Store) -> None:
        """B18, G10: whatever the status it is given, for no code of it is left to look after them."""
        for status in TERMINAL:
            parent = await started(store)
            run = await child_of(store, parent, "run", follows=False)
            child = await child_of(store, run, "child")
            parked_child = await child_of(store, run, "parked")
            await one(store, turn(parked_child.key, parked_child.epoch, state=parked(released=True)), Committed)
            await one(store, Terminate(target=run.id, end=ended(status, payload='"gone"')), Done)
            [told] = await unread(store, parent.key)
            assert (told.kind, told.name, told.payload) == ("child_ended", run.id, '"gone"')
            for stopped in (child, parked_child):
                assert (await row(store, stopped.id)).status is Status.CANCELLING
                assert await kinds(store, stopped) == ["cancel"]
            await store.apply([Terminate(target=found.id, end=ended()) for found in (child, parked_child)])


class NudgeConformance:
    """Trying now what waits to be tried again."""

    async def test_a_nudge_is_a_row_for_a_run_that_waits_to_try_again(self, store: Store) -> None:
        """B8: one conditional write decides, and what takes effect is audited."""
        audit = Audit(actor="kim", action="nudge", detail="{}")
        run = await started(store)
        nudge = Nudge(target=run.id, at=NOW + 5, step="pack", audit=audit)
        assert await one(store, nudge, Refused) == Refused(Status.RUNNING, "nothing")
        wait = write_wait("retry", [WaitNote(kind="retry", step="pack", error="Busy", until=NOW + 9 * SECOND)])
        state = State(status=Status.SUSPENDED, seen=0, wait=wait, due=NOW + 9 * SECOND)
        await one(store, turn(run.key, state=state), Committed)
        assert await one(store, replace(nudge, step="other"), Refused) == Refused(Status.SUSPENDED, "nothing")
        told = await one(store, nudge, Delivered)
        assert told.row is not None
        assert (told.row.kind, told.row.name, told.owner) == (InboxKind.NUDGE, "pack", "w")
        assert (await row(store, run.id)).due == NOW + 5
        assert await one(store, nudge, Done) == Done(0)
        assert [act.actor for act in await store.audit(run.id)] == ["kim"]
        assert len(await unread(store, run.key)) == 1
        await one(store, Pause(target=run.id, at=NOW), Delivered)
        assert await one(store, replace(nudge, step=""), Refused) == Refused(Status.PAUSED, "nothing")
        await end(store, await row(store, run.id))
        assert await one(store, nudge, Refused) == Refused(Status.COMPLETED, "nothing")
        assert await one(store, replace(nudge, target="none"), Refused) == Refused(None)
