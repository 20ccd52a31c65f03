"""Where the runs of a check come from: the open runs of a store, a part of them, or those of an export."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace

from holdfast.contract.heads import HeadFilter
from holdfast.contract.rows import TERMINAL, EntryRow, RunFilter, RunRow, Status
from holdfast.contract.store import Store
from holdfast.histories.recorded import RecordedRun, recorded_run
from holdfast.stores.sql.tables import StoredRun
from holdfast.transfer import check_file

OPEN = tuple(status for status in Status if status not in TERMINAL)
_BYTES = 4 << 20
_FIRST, _MOST = 20, 500


async def open_runs(store: Store, most: int | None = None) -> AsyncIterator[list[RecordedRun]]:
    """Yield the open runs of a store, or the newest `most` of each status, some at a time."""
    seen: set[int] = set()
    size = _FIRST
    for status in OPEN:
        before: int | None = None
        left = most
        while left is None or left > 0:
            limit = size if left is None else min(size, left)
            rows = await store.runs(RunFilter(status=status, limit=limit, before=before))
            fresh = [row for row in rows if row.key not in seen]  # it may have moved on to another status
            seen.update(row.key for row in fresh)
            if fresh:
                runs = await _recorded(store, fresh)
                yield runs
                size = max(1, min(_MOST, _BYTES * len(runs) // (sum(map(_weight, runs)) or 1)))
            if len(rows) < limit:
                break
            before, left = rows[-1].key, None if left is None else left - len(rows)


async def chosen_runs(store: Store, which: HeadFilter, most: int | None = None) -> AsyncIterator[list[RecordedRun]]:
    """Yield the open runs that meet a filter, newest first."""
    wanted = tuple(status for status in which.statuses or OPEN if status in OPEN)
    before: int | None = None
    left = most if most is not None else 1 << 60
    while wanted and left > 0:
        page = await store.heads(replace(which, statuses=wanted, before=before, limit=min(_FIRST, left)))
        rows = [row for head in page.heads if (row := await store.get(head.id)) is not None and row.ended is None]
        left -= len(page.heads)
        if rows:
            yield await _recorded(store, rows)
        if page.next is None:
            return
        before = page.next


async def _recorded(store: Store, rows: Sequence[RunRow]) -> list[RecordedRun]:
    histories = {history.key: history.entries for history in await store.load([row.key for row in rows])}
    return [recorded_run(row, histories[row.key]) for row in rows]


def _weight(run: RecordedRun) -> int:
    return 500 + len(run.input) + sum(len(entry.data) for entry in run.entries)


async def exported_runs(file: str | os.PathLike[str]) -> AsyncIterator[list[RecordedRun]]:
    """Yield the open runs of an export.

    Raises:
        CannotMove: the file is damaged, or no export.
    """
    checked = check_file(file)
    runs: dict[int, StoredRun] = {}
    inputs: dict[int, str] = {}
    entries: dict[int, list[EntryRow]] = {}
    complete = False
    for table, row in checked.reader.rows(checked.footer.sha256):
        if table == "runs":
            if complete and runs:
                yield [_read(run, inputs, entries) for run in runs.values()]
                runs, inputs, entries = {}, {}, {}
            complete = False
            found = StoredRun(*row)  # type: ignore[arg-type]  # columns as in StoredRun
            if found.ended is None:
                runs[found.key] = found
            continue
        complete = True
        if table == "inputs" and row[0] in runs:
            inputs[int(row[0] or 0)] = str(row[1])
        elif table == "entries" and row[0] in runs:
            entries.setdefault(int(row[0] or 0), []).append(EntryRow(*row[1:]))  # type: ignore[arg-type]  # as in EntryRow
    if runs:
        yield [_read(run, inputs, entries) for run in runs.values()]


def _read(run: StoredRun, inputs: dict[int, str], entries: dict[int, list[EntryRow]]) -> RecordedRun:
    rows = sorted(entries.get(run.key, ()), key=lambda entry: entry.seq)
    begun = rows[0].at if run.generation and rows else run.begins or run.created
    return RecordedRun(
        run.id, run.workflow, inputs.get(run.key, ""), run.generation, run.seed, begun, rows, run.deadline, run.reopens,
        run.version,
    )  # fmt: skip
