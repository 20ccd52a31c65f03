"""Runs from files that `holdfast export` wrote, for replay without that database."""

from __future__ import annotations

import os

from holdfast.contract.rows import EntryRow
from holdfast.errors import CannotMove, NoSuchRun
from holdfast.histories.recorded import RecordedRun
from holdfast.stores.sql.tables import StoredRun
from holdfast.transfer import check_file


def exported_run(file: str | os.PathLike[str], run_id: str | None = None) -> RecordedRun:
    """Return a run of an export, for `replay`; which one need not be said if there is one only.

    Raises:
        CannotMove: the file is damaged, or has several runs and none is named.
        NoSuchRun: the file has no run of that id.
    """
    checked = check_file(file)
    if run_id is None and checked.header.runs != 1:
        raise CannotMove(f"{checked.reader.path}: has {checked.header.runs} runs; say which one")
    run: StoredRun | None = None
    text = ""
    entries: list[EntryRow] = []
    for table, row in checked.reader.rows(checked.footer.sha256):
        if table == "runs":
            found = StoredRun(*row)  # type: ignore[arg-type]  # columns as in StoredRun
            run = found if run_id in (None, found.id) else run
        elif run is not None and row[:1] == (run.key,):
            if table == "inputs":
                text = str(row[1])
            elif table == "entries":
                entries.append(EntryRow(*row[1:]))  # type: ignore[arg-type]  # columns as in EntryRow
    if run is None:
        raise NoSuchRun(str(run_id))
    entries.sort(key=lambda entry: entry.seq)
    begun = entries[0].at if run.generation and entries else run.begins or run.created
    return RecordedRun(
        run.id, run.workflow, text, run.generation, run.seed, begun, entries, run.deadline, run.reopens, run.version
    )
