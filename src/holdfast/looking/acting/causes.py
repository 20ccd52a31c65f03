"""Acting on all dead letters of one cause at a desk: counted first, then page by page, without later letters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Literal, get_args

import msgspec

from holdfast.contract.heads import RunHead
from holdfast.contract.rows import TERMINAL, LetterFilter, LetterRow, Status
from holdfast.contract.store import Store
from holdfast.errors import BadInput, HoldfastError, StoreError
from holdfast.looking.acts import FITS
from holdfast.looking.letters import letter_view
from holdfast.looking.views import Acted, BulkProgress

LetterAction = Literal["replay", "acknowledge", "remove"]
LETTER_ACTIONS: tuple[str, ...] = get_args(LetterAction)
PAGE = 200
MOST_COUNTED = 10_000
"""How many letters of a cause are counted; an act goes on to the last one that there was."""
_AT_ONCE = {"replay": 20}
"""How many letters of a page are acted on at the same time where that reads histories; others all at once."""
_SAMPLE = 20


class LetterCause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What unseen dead letters have in common, as a group of them tells it."""

    workflow: str
    step: str
    """The path of the step, or the name of the event."""
    error: str
    """The class of the error, empty where there is none."""


class LetterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an act on all dead letters of a cause would come to; `until` is what to give to the act itself."""

    action: str
    matched: int
    exact: bool
    """Whether all were counted; otherwise there are more than 10,000."""
    can: int
    cannot: dict[str, int] = {}
    """How many cannot, by what is in the way."""
    until: str = ""
    """The id of the newest letter that was counted: none that came later is acted on."""


class _Work(msgspec.Struct, frozen=True):
    """Letters that are dealt with together: those of one run, or one event."""

    letters: list[LetterRow]

    @property
    def run(self) -> str:
        return self.letters[0].run


async def plan_letters(store: Store, action: str, cause: LetterCause) -> LetterPlan:
    """Return what acting on the unseen letters of a cause would come to; nothing is changed.

    Raises:
        BadInput: there is no such act.
    """
    if action not in LETTER_ACTIONS:
        raise BadInput(f"there is no act {action!r} on dead letters; there are {', '.join(LETTER_ACTIONS)}")
    matched, until, exact, cannot = 0, "", True, Counter[str]()
    async with aclosing(_pages(store, cause, "")) as pages:
        async for page in pages:
            until = until or page[0].id
            heads = await store.heads_of([letter.run for letter in page if letter.run])
            cannot.update(why for letter in page if (why := _unfit(action, letter, heads)))
            matched += len(page)
            if matched >= MOST_COUNTED:
                exact = False
                break
    can = matched - cannot.total()
    return LetterPlan(action=action, matched=matched, exact=exact, can=can, cannot=dict(cannot), until=until)


Act = Callable[[str], Awaitable[Acted]]
"""Acts on the letter of an id."""


async def act_on_letters(
    store: Store, action: str, cause: LetterCause, until: str, act: Act
) -> AsyncGenerator[BulkProgress, None]:
    """Act on the unseen letters of a cause, newest first, and tell after each page what came of all so far.

    Leave the iteration to stop: the page in hand is done then. The same again does the rest, for a letter that was
    dealt with is in no group any more.

    Raises:
        BadInput: there is no such act, or it is not said up to which letter.
        StoreError: the store does not answer; what was told before is done.
    """
    if action not in LETTER_ACTIONS or not until:
        raise BadInput("name an act on dead letters and `until`, the id of the newest one that a dry run counted")
    changed, cannot, failed = 0, Counter[str](), Counter[str]()
    errors: dict[str, str] = {}
    replayed: set[tuple[str, bool]] = set()
    async with aclosing(_pages(store, cause, until)) as pages:
        async for page in pages:
            heads = await store.heads_of([letter.run for letter in page if letter.run])
            fit = [letter for letter in page if not _unfit(action, letter, heads)]
            cannot.update(why for letter in page if (why := _unfit(action, letter, heads)))
            works = _works(action, fit, replayed)
            changed += len(fit) - sum(len(work.letters) for work in works)
            for work, done in zip(works, await _act_on(action, works, act), strict=True):
                if done.changed:
                    changed += len(work.letters)
                    replayed.add((work.run, work.letters[0].compensation))
                elif done.error:
                    failed[done.error] += len(work.letters)
                    if len(errors) < _SAMPLE:
                        errors[work.run or work.letters[0].id] = done.said
                else:
                    cannot[done.said] += len(work.letters)
            yield _told(action, changed, cannot, failed, errors, finished=False)
    yield _told(action, changed, cannot, failed, errors, finished=True)


def _told(
    action: str, changed: int, cannot: Counter[str], failed: Counter[str], errors: dict[str, str], finished: bool
) -> BulkProgress:
    return BulkProgress(
        action=action, changed=changed, cannot=dict(cannot), failed=dict(failed), errors=dict(errors), finished=finished
    )


async def _pages(store: Store, cause: LetterCause, until: str) -> AsyncGenerator[list[LetterRow], None]:
    """Yield the unseen letters of a cause, newest first, page by page."""
    before: str | None = None
    found: list[LetterRow] = []
    while True:
        which = LetterFilter(workflow=cause.workflow, acknowledged=False, limit=PAGE, before=before)
        rows = await store.letters(which)
        found += [row for row in rows if _is_of(row, cause) and (not until or row.id <= until)]
        if len(found) >= PAGE or (found and len(rows) < PAGE):
            page, found = found, []
            yield page
        if len(rows) < PAGE:
            return
        before = rows[-1].id


def _is_of(row: LetterRow, cause: LetterCause) -> bool:
    if row.outcome or (row.step or row.name) != cause.step:
        return False
    error = letter_view(row).error
    return (error.type if error is not None else "") == cause.error


def _unfit(action: str, letter: LetterRow, heads: dict[str, RunHead]) -> str:
    """Return what is in the way of an act on a letter, nothing where it can be done."""
    if action != "replay" or not letter.run:
        return ""
    head = heads.get(letter.run)
    if head is None:
        return "the run is gone"
    if letter.kind == "event":
        return "" if head.status not in TERMINAL else f"the run is {head.status}"
    if letter.step.startswith("end#"):
        return "a callback of an ended run"
    fits = {Status.FAILED, Status.CANCELLED} if letter.compensation else FITS["retry"]
    return "" if head.status in fits else f"the run is {head.status}"


def _works(action: str, letters: Sequence[LetterRow], replayed: set[tuple[str, bool]]) -> list[_Work]:
    """Return letters as they are dealt with: those of one run are replayed with it, some perhaps by an earlier page."""
    works: dict[tuple[str, bool] | str, _Work] = {}
    for letter in letters:
        together = (letter.run, letter.compensation)
        if action != "replay" or letter.kind == "event":
            works[letter.id] = _Work([letter])
        elif together not in replayed:
            works.setdefault(together, _Work([])).letters.append(letter)
    return list(works.values())


async def _act_on(action: str, works: list[_Work], act: Act) -> list[Acted]:
    """Act on the letters of a page; what cannot be done to one stops no other."""
    places = asyncio.Semaphore(_AT_ONCE.get(action, PAGE))

    async def one(work: _Work) -> Acted:
        letter = work.letters[0].id
        async with places:
            try:
                return await act(letter)
            except StoreError:
                raise
            except HoldfastError as error:
                return Acted(run=letter, action=action, changed=False, said=str(error), error=type(error).__name__)

    found = await asyncio.gather(*map(one, works), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each  # all others of the page have come to their end, too
    return [each for each in found if isinstance(each, Acted)]
