"""Dead letters: work and events given up on, kept for a person."""

from __future__ import annotations

from holdfast.contract.operations import (
    Acknowledge,
    Committed,
    Delivered,
    Done,
    Fenced,
    Published,
    Purge,
    Refused,
    Reopen,
    ReplayEvent,
)
from holdfast.contract.rows import LetterFilter, LetterRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import EventRule, NewLetter
from holdfast.testing.conformance.samples import (
    NOW,
    TERMINAL,
    end,
    ended,
    event,
    extra,
    given,
    message,
    one,
    queued,
    started,
    turn,
    unread,
    waiting,
)


async def _ids(store: Store, **which: object) -> list[str]:
    return [letter.id for letter in await store.letters(LetterFilter(**which))]  # type: ignore[arg-type]  # its fields


class LetterConformance:
    """Work given up on."""

    async def test_a_letter_tells_what_was_given_up_on_and_with_which_input(self, store: Store) -> None:
        """S4-23, S0-9, B9, B34: run, step, attempts, error, input, arguments, in the commit that gives up."""
        run = await started(store, input='{"amount":5}')
        said = {"failures": 2, "arguments": '{"order":7}', "compensation": True, "idempotent": True}
        letter = NewLetter(id="l1", step="charge", attempts=3, error='{"type":"X"}', **said)  # type: ignore[arg-type]
        await one(store, extra(run.key, at=NOW + 5, letters=[letter]), Committed)
        assert await store.letters(LetterFilter()) == [
            LetterRow(
                id="l1", kind="work", run=run.id, workflow="order", step="charge", name="", attempts=3,
                error='{"type":"X"}', payload='{"amount":5}', target_status="", sent=None, at=NOW + 5,
                acknowledged=None, outcome="", **said,  # type: ignore[arg-type]
            )
        ]  # fmt: skip

    async def test_letters_of_steps_whose_failure_stays_are_not_dealt_with_by_a_reopening(self, store: Store) -> None:
        """B8, B33: they are as they were, acknowledged or not; all others of the run are replayed."""
        run = await started(store)
        letters = [
            NewLetter(id=id, step=step, attempts=1, error="e") for id, step in (("1", "a"), ("2", "b"), ("3", "b"))
        ]
        await one(store, extra(run.key, letters=letters), Committed)
        await end(store, run, Status.FAILED)
        await one(store, Acknowledge(letter="3", at=NOW + 1), Done)
        await one(store, Reopen(target=run.id, epoch=run.epoch, cut=1, at=NOW + 2, standing=["b"]), Done)
        found = {letter.id: (letter.outcome, letter.acknowledged) for letter in await store.letters(LetterFilter())}
        assert found == {"1": ("replayed", NOW + 2), "2": ("", None), "3": ("", NOW + 1)}

    async def test_a_fenced_turn_leaves_no_letter(self, store: Store) -> None:
        run = await started(store)
        await one(store, extra(run.key, 9, letters=[NewLetter(id="l", step="", attempts=1, error="")]), Fenced)
        assert await _ids(store) == []

    async def test_letters_are_listed_newest_first_in_pages_by_filter(self, store: Store) -> None:
        """S0-38, B9: one listing of both kinds."""
        run, other = await started(store), await started(store, workflow="other")
        for n in (1, 2, 3):
            target = other if n == 2 else run
            letters = [NewLetter(id=f"!{n}", step="s", attempts=1, error="e")]
            await one(store, extra(target.key, at=NOW + n, letters=letters), Committed)
        await one(store, message(run.id, name="news"), Delivered)
        await one(store, turn(run.key, end=ended(unread={"news": "dead_letter"})), Committed)
        [undelivered] = await _ids(store, kind="event")
        assert await _ids(store) == [undelivered, "!3", "!2", "!1"]
        assert await _ids(store, limit=2, before="!3") == ["!2", "!1"]
        assert await _ids(store, kind="work", limit=1) == ["!3"]
        assert await _ids(store, workflow="other") == ["!2"]
        assert await _ids(store, run=run.id, kind="work") == ["!3", "!1"]
        assert await _ids(store, name="news") == [undelivered]
        assert await _ids(store, id="!2") == ["!2"]
        assert await _ids(store, id="nothing") == []

    async def test_a_letter_is_acknowledged_once_and_can_be_removed(self, store: Store) -> None:
        """S0-38, S2-20."""
        run = await started(store)
        letters = [NewLetter(id=id, step="s", attempts=1, error="e") for id in ("a", "b")]
        await one(store, extra(run.key, letters=letters), Committed)
        outcomes = await store.apply([Acknowledge(letter="a", at=NOW + 1), Acknowledge(letter="a", at=NOW + 2)])
        assert outcomes == [Done(1), Done(0)]
        assert (await _ids(store, acknowledged=False), await _ids(store, acknowledged=True)) == (["b"], ["a"])
        assert [letter.acknowledged for letter in await store.letters(LetterFilter(id="a"))] == [NOW + 1]
        assert sorted((await store.counts()).letters) == [("work", "", False, 1), ("work", "", True, 1)]
        outcomes = await store.apply([Acknowledge(letter="b", at=NOW, remove=True)] * 2)
        assert outcomes == [Done(1), Done(0)]
        assert await one(store, Acknowledge(letter="nothing", at=NOW), Done) == Done(0)
        assert await _ids(store) == ["a"]

    async def test_a_letter_outlives_its_run(self, store: Store) -> None:
        run = await started(store)
        await one(store, extra(run.key, letters=[NewLetter(id="l", step="s", attempts=1, error="e")]), Committed)
        await end(store, run, Status.FAILED)
        await one(store, Purge(what="failed", before=NOW + 1, at=NOW), Done)
        assert await store.get(run.id) is None
        assert await _ids(store, run=run.id) == ["l"]


class EventLetterConformance:
    """Messages and events that could not be delivered."""

    async def _letter(self, store: Store, payload: str = "1") -> str:
        run = await started(store)
        await one(store, message(run.id, payload), Delivered)
        await one(store, turn(run.key, end=ended(unread={"news": "dead_letter"})), Committed)
        [letter] = await _ids(store, run=run.id)
        return letter

    async def test_a_message_to_a_run_that_has_ended_can_be_kept(self, store: Store) -> None:
        """S2-18, S2-19: instead of refusing it; a retry keeps it once. There is no letter to a run that never was."""
        for status in TERMINAL:
            run = await started(store)
            await end(store, run, status)
            sent = message(run.id, '"x"', at=NOW + 3, id="same", dead_letter=True, deduplicate=True)
            assert await store.apply([sent, sent]) == [
                Delivered(run.key), Delivered(run.key, duplicate=True),
            ]  # fmt: skip
            assert (await one(store, sent, Delivered)).duplicate
            [letter] = await store.letters(LetterFilter(run=run.id))
            assert (letter.kind, letter.name, letter.payload) == ("event", "news", '"x"')
            assert (letter.target_status, letter.sent) == (status, NOW + 3)
            assert await unread(store, run.key) == []
        assert await one(store, message("nobody", dead_letter=True), Refused) == Refused(None)

    async def test_a_letter_is_delivered_to_a_run_after_all(self, store: Store) -> None:
        """S2-20: as a message, under the letter's id, once."""
        letter, run = await self._letter(store, '"p"'), await started(store)
        replay = ReplayEvent(letter=letter, at=NOW + 5, target=run.id)
        assert await one(store, replay, Done) == Done(1, owners=("w",))
        [found] = await unread(store, run.key)
        assert (found.kind, found.name, found.id, found.payload) == ("message", "news", letter, '"p"')
        assert await store.due("w", NOW + 5) == [run.key]
        [closed] = await store.letters(LetterFilter(id=letter))
        assert (closed.outcome, closed.acknowledged) == ("replayed", NOW + 5)
        assert await one(store, replay, Refused) == Refused(None, "moved")
        assert len(await unread(store, run.key)) == 1
        assert (await store.counts()).letters == [("event", "replayed", True, 1)]

    async def test_a_letter_is_published_to_who_waits_or_queued(self, store: Store) -> None:
        """S2-20: replay to broadcast."""
        letters = [await self._letter(store, str(n)) for n in range(2)]
        run = await waiting(store)
        assert await one(store, ReplayEvent(letter=letters[0], at=NOW), Done) == Done(1)
        assert await given(store, run) == [("event", "0")]
        assert await one(store, ReplayEvent(letter=letters[1], at=NOW), Done) == Done(1)
        assert (await store.counts()).events == {"news": 1}

    async def test_a_letter_that_cannot_be_delivered_stays(self, store: Store) -> None:
        """S2-20: refused with the reason, and can be replayed later."""
        letter, over = await self._letter(store), await started(store)
        await end(store, over, Status.FAILED)
        await queued(store, "0")
        full = ReplayEvent(letter=letter, at=NOW, rule=EventRule(max_pending=1))
        assert await store.apply(
            [
                ReplayEvent(letter=letter, at=NOW, target=over.id), ReplayEvent(letter=letter, at=NOW, target="nobody"),
                full, ReplayEvent(letter="nothing", at=NOW),
            ]
        ) == [Refused(Status.FAILED), Refused(None), Refused(None, "full"), Refused(None, "moved")]  # fmt: skip
        assert await _ids(store, acknowledged=False) == [letter]
        await waiting(store)
        assert await one(store, full, Done) == Done(1)

    async def test_a_letter_of_work_is_not_an_event(self, store: Store) -> None:
        run = await started(store)
        await one(store, extra(run.key, letters=[NewLetter(id="l", step="s", attempts=1, error="e")]), Committed)
        assert await one(store, ReplayEvent(letter="l", at=NOW), Refused) == Refused(None, "moved")

    async def test_an_acknowledged_letter_can_be_replayed(self, store: Store) -> None:
        letter, run = await self._letter(store), await started(store)
        outcomes = await store.apply(
            [Acknowledge(letter=letter, at=NOW + 1), ReplayEvent(letter=letter, at=NOW + 2, target=run.id)]
        )
        assert outcomes == [Done(1), Done(1, owners=("w",))]
        assert [found.acknowledged for found in await store.letters(LetterFilter(id=letter))] == [NOW + 1]
        assert await one(store, event(), Published) == Published(0)
