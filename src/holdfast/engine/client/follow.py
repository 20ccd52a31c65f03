"""Following one run through the store, on whichever engine it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast.changes import Change
from holdfast.clock import to_datetime
from holdfast.contract.rows import EntryRow, RunRow
from holdfast.contract.store import Store
from holdfast.contract.waits import words_of
from holdfast.engine.client.waiting import NewsWaiters
from holdfast.engine.views.changes import changes_of
from holdfast.engine.views.observers import Observers
from holdfast.errors import NoSuchRun
from holdfast.payloads.codec import ErrorData, decode
from holdfast.replay.entry import Reopened
from holdfast.replay.past import names_of

_Seen = tuple[str, str, int, int]


async def follow(store: Store, observers: Observers, news: NewsWaiters, run_id: str) -> AsyncIterator[Change]:
    """Yield the changes of a run from now on: where it stands first, its end last.

    Only what was recorded since is read, unless another history has begun: a run may have very many facts.
    """
    row = await _row(store, run_id)
    rows = await store.history(row.key)
    names = names_of(rows)
    unsubscribe = observers.subscribe(lambda change: news.wake(run_id), run_id)
    try:
        yield _status(row)
        seen, last = _seen(row), _last(rows)
        while not row.status.is_terminal:

            async def look(seen: _Seen = seen, last: int = last) -> tuple[RunRow, list[EntryRow]] | None:
                row = await _row(store, run_id)
                rows = await store.history(row.key, after=last if seen[2:] == _seen(row)[2:] else 0)
                return (row, rows) if _seen(row) != seen or _last(rows, last) != last else None

            row, fresh = await news.until(run_id, look)
            if seen[2:] != _seen(row)[2:]:
                names, rows = names_of(fresh), fresh
                last = _kept(rows, seen[2] != row.generation)
                fresh = [entry for entry in rows if entry.seq > last]
            else:
                names = names_of(fresh, names)
            for change in changes_of(run_id, row.workflow, names, fresh):
                yield change
            if _seen(row) != seen:
                yield _status(row)
            seen, last = _seen(row), _last(fresh, last)
    finally:
        unsubscribe()


async def _row(store: Store, run_id: str) -> RunRow:
    row = await store.get(run_id)
    if row is None:
        raise NoSuchRun(run_id)
    return row


def _seen(row: RunRow) -> _Seen:
    return row.status, row.wait, row.generation, row.reopens


def _last(rows: list[EntryRow], before: int = 0) -> int:
    return rows[-1].seq if rows else before


def _kept(rows: list[EntryRow], renewed: bool) -> int:
    """Return the last entry that was there before: none in a new life, those before the cut of a reopened one."""
    marks = [row.seq for row in rows if row.kind == Reopened.kind]
    return 0 if renewed or not marks else marks[-1] - 1


def _status(row: RunRow) -> Change:
    data: dict[str, object] = {"waiting_for": words_of(row.wait)} if row.wait else {}
    if row.error is not None:
        data["error"] = decode(row.error, ErrorData).brief()
    return Change(
        type=f"run.{row.status}",
        at=to_datetime(row.updated),
        run_id=row.id,
        workflow=row.workflow,
        status=row.status,
        data=data,
    )
