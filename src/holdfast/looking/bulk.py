"""Acting on many runs at a desk: exactly the runs that a dry run counted, page by page; it can be stopped and resumed.

A selection is a filter, the runs that existed when it was made, and what the act could do to them. A run that is
started later is not changed. Each page is durable before the next one begins, so that a process that dies leaves whole
pages. Repeating the act finishes it, because a run that was already changed no longer allows the act.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from holdfast.clock import Instant, to_datetime
from holdfast.contract.heads import HeadFilter, HeadPage, RunHead
from holdfast.contract.store import Store
from holdfast.definitions import check_run_id
from holdfast.engine.engine import Engine
from holdfast.errors import BadInput, HoldfastError, NoSuchRun, StoreError
from holdfast.looking.acts import ACTIONS, Options, act, unfit
from holdfast.looking.query import Query
from holdfast.looking.views import Acted, BulkProgress, SelectionView

PAGE = 200
MOST_COUNTED = 10_000
"""How many runs a dry run looks at; what there is beyond that is chosen, too, and not counted."""
LASTS = 10 * 60 * 1_000_000
"""For how many microseconds a selection may be used."""
_SKEW = 60 * 1_000_000
"""By how much the clock of the process that counted may be ahead of this one."""
_AT_ONCE = {"retry": 20, "rerun": 20}
"""How many runs of a page are acted on at the same time where that reads their histories; others all at once, so that
one transaction has a page."""
_SAMPLE = 20
_SIGNATURE = 32


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What a dry run chose: by a filter, or by ids."""

    action: str
    which: HeadFilter | None = None
    """With the key above those that there were as `before`."""
    ids: list[str] = []
    at: Instant
    matched: int = 0
    """How many runs the dry run found; more, if it is not `exact`."""
    exact: bool = True


class UnusableSelection(BadInput):
    """A selection that no dry run on this database has made, or not of late."""


async def select(
    store: Store, action: str, query: Query | None, ids: Sequence[str], *, count: bool = True
) -> SelectionView:
    """Return what acting on the runs of a filter, or on those with the ids, would come to; nothing is changed.

    Without `count` it looks at the newest page alone.

    Raises:
        BadInput: there is no such act, the filter chooses everything, or there are too many ids.
        NoSuchRun: there is no run with one of the ids.
    """
    if action not in ACTIONS:
        raise BadInput(f"there is no act {action!r}; there are {', '.join(ACTIONS)}")
    now = store.clock.now()
    if query is not None and query.word is not None:
        ids = [query.word]
    if query is None or ids:
        made = await _by_ids(store, action, ids, now)
    else:
        made = await _by_filter(store, action, query, now)
    can, cannot, matched, exact = 0, Counter[str](), 0, True
    sample: list[str] = []
    async with aclosing(_pages(store, made, None)) as pages:
        async for page in pages:
            for head in page.heads:
                why = unfit(action, head.status)
                cannot[why] += bool(why)
                can += not why
                if not why and len(sample) < _SAMPLE:
                    sample.append(head.id)
            matched += len(page.heads)
            if (matched >= MOST_COUNTED or not count) and page.next is not None:
                exact = False
                break
    made = msgspec.structs.replace(made, matched=matched, exact=exact)
    return SelectionView(
        selection=_signed(made, await store.secret("selections")),
        action=action,
        matched=matched,
        exact=exact,
        can=can,
        cannot={why: n for why, n in cannot.items() if n},
        sample=sample,
        expires_at=to_datetime(now + LASTS),
    )


async def _by_filter(store: Store, action: str, query: Query, now: Instant) -> Selection:
    if query.all or query.attention:
        raise BadInput(
            "acting on many needs a filter, such as workflow:... or status:...; it does not act on everything"
        )
    newest = (await store.heads(HeadFilter(limit=1))).heads
    until = min(query.which.created_until or now + 1, now + 1)
    before = newest[0].key + 1 if newest else 0
    which = msgspec.structs.replace(query.which, before=before, created_until=until, limit=PAGE)
    return Selection(action=action, which=which, at=now)


async def _by_ids(store: Store, action: str, ids: Sequence[str], now: Instant) -> Selection:
    wanted = list(dict.fromkeys(ids))
    if not 1 <= len(wanted) <= MOST_COUNTED:
        raise BadInput(f"name between 1 and {MOST_COUNTED:,} runs, not {len(wanted):,}")
    for each in wanted:
        check_run_id(each)
    for start in range(0, len(wanted), PAGE):
        some = wanted[start : start + PAGE]
        known = await store.heads_of(some)
        missing = next((each for each in some if each not in known), None)
        if missing is not None:
            raise NoSuchRun(missing, "; nothing was changed")
    return Selection(action=action, ids=wanted, at=now)


async def bulk(
    engine: Engine, store: Store, selection: str, options: Options, before: int | None = None
) -> AsyncGenerator[BulkProgress, None]:
    """Act on the runs of a selection, newest first, and tell after each page what came of all so far.

    Leave the iteration to stop: the page in hand is done then. `before`, the `next` of what was told last, goes on
    from there.

    Raises:
        UnusableSelection: it is too old, or none that a dry run on this database made.
        BadInput: it ends many runs, and there is no reason.
        StoreError: the store does not answer; what was told before is done.
    """
    made = await chosen(store, selection)
    if made.action == "terminate" and not options.reason:
        raise BadInput("terminating many runs needs a reason")
    changed, cannot, failed = 0, Counter[str](), Counter[str]()
    errors: dict[str, str] = {}
    async with aclosing(_pages(store, made, before)) as pages:
        async for page in pages:
            fit = [head for head in page.heads if not unfit(made.action, head.status)]
            cannot.update(unfit(made.action, head.status) for head in page.heads if head not in fit)
            for done in await _act_on(engine, made.action, fit, options):
                if done.changed:
                    changed += 1
                elif done.error:
                    failed[done.error] += 1
                    if len(errors) < _SAMPLE:
                        errors[done.run] = done.said
                else:
                    cannot[done.said.removeprefix("it is ")] += 1
            yield BulkProgress(
                action=made.action,
                changed=changed,
                cannot=dict(cannot),
                failed=dict(failed),
                errors=dict(errors),
                next=page.next,
                finished=page.next is None,
            )


async def _act_on(engine: Engine, action: str, runs: list[RunHead], options: Options) -> list[Acted]:
    """Act on the runs of a page; what cannot be done to one stops no other."""
    places = asyncio.Semaphore(_AT_ONCE.get(action, PAGE))

    async def one(head: RunHead) -> Acted:
        async with places:
            try:
                return await act(engine, action, head.id, options)
            except StoreError:
                raise
            except HoldfastError as error:
                return Acted(run=head.id, action=action, changed=False, said=str(error), error=type(error).__name__)

    found = await asyncio.gather(*map(one, runs), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each  # all others of the page have come to their end, too
    return [each for each in found if isinstance(each, Acted)]


async def _pages(store: Store, made: Selection, before: int | None) -> AsyncGenerator[HeadPage, None]:
    """Yield the runs of a selection page by page; of ids `next` is how many came before the page that follows."""
    if made.which is None:
        for start in range(before or 0, len(made.ids), PAGE):
            known = await store.heads_of(made.ids[start : start + PAGE])
            after = start + PAGE
            yield HeadPage(heads=list(known.values()), next=after if after < len(made.ids) else None)
        return
    below = made.which.before if before is None else min(before, made.which.before or before)
    while below is not None:
        page = await store.heads(msgspec.structs.replace(made.which, before=below))
        yield page
        below = page.next


# A selection goes to a caller and comes back: its signature says that it is one that a dry run has made. Every process
# on a database signs with the same secret.


def _signed(made: Selection, secret: bytes) -> str:
    body = msgspec.json.encode(made)
    return base64.urlsafe_b64encode(hmac.digest(secret, body, "sha256") + body).decode().rstrip("=")


async def chosen(store: Store, selection: str) -> Selection:
    """Return what a selection chose.

    Raises:
        UnusableSelection: it is too old, or none that a dry run on this database made.
    """
    signature, body = _parts(selection)
    if not hmac.compare_digest(signature, hmac.digest(await store.secret("selections"), body, "sha256")):
        raise _unknown()
    made = unchecked(selection)
    age = store.clock.now() - made.at
    if age < -_SKEW:
        raise UnusableSelection(
            f"the selection was made {-age // 60_000_000} minutes from now: the clocks of two machines differ; "
            "set them right, and look again with a dry run"
        )
    if age > LASTS:
        raise UnusableSelection("the selection is older than ten minutes; look again with a dry run")
    return made


def unchecked(selection: str) -> Selection:
    """Return what a selection says it chose; whether a dry run made it is known where its database is."""
    try:
        return msgspec.json.decode(_parts(selection)[1], type=Selection)
    except msgspec.MsgspecError:
        raise _unknown() from None


def _parts(selection: str) -> tuple[bytes, bytes]:
    try:
        signed = base64.urlsafe_b64decode(selection + "=" * (-len(selection) % 4))
    except ValueError:
        raise _unknown() from None
    return signed[:_SIGNATURE], signed[_SIGNATURE:]


def _unknown() -> UnusableSelection:
    return UnusableSelection("this is no selection that a dry run made here; look again")
