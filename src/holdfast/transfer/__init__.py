"""Export and import: runs, live and finished, from one database to a file and from a file into another database."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.clock import Clock, to_datetime
from holdfast.contract.store import Store
from holdfast.errors import CannotMove
from holdfast.stores.sql.statements import Statements
from holdfast.texts import check_remark, check_text
from holdfast.transfer.endpoints import Endpoint
from holdfast.transfer.exporter import Export, Which
from holdfast.transfer.file import Footer, Header, Reader, Writer
from holdfast.transfer.importer import Import
from holdfast.transfer.matching import Terms
from holdfast.transfer.tables import COLUMNS
from holdfast.version import __version__

__all__ = ["CannotMove", "Checked", "Report", "Which", "check_file", "export_runs", "import_runs"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was moved.

    `runs` were written, `open_runs` of them have not ended, `skipped` were in the database already. `rows` are counted
    by table. `imported` says when the same file was imported before, which is why nothing was.
    """

    runs: int
    open_runs: int
    skipped: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)
    snapshot: bool
    sha256: str
    imported: datetime | None = None


async def export_runs(
    store: Store,
    file: str | os.PathLike[str],
    which: Which = Which(),  # noqa: B008  # frozen
    *,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write runs of an open store to a file, as they are at one moment.

    Everything is written unless `which` says less. That is a move: the runs are to go on in another database, so no
    worker may be alive. A selection, and whatever is marked as a snapshot, is a copy for looking, and workers may go on
    meanwhile. A PostgreSQL store answers nothing else while it lasts: give it one of its own beside an engine.
    `progress` is told, now and then, how many runs and rows were written; from another thread, perhaps.

    Raises:
        CannotMove: a worker is alive, or the file cannot be written; there is no file then.
        NoSuchRun: a run that was named is not there.
    """
    with Writer(file) as writer:
        export = Export(writer, which, progress or _quietly)
        sha256 = await export.write(Endpoint(store), __version__, (clock or Clock()).now())
    rows = dict(writer.rows)
    return Report(runs=rows.get("runs", 0), open_runs=export.open, rows=rows, snapshot=export.snapshot, sha256=sha256)


@dataclass(frozen=True, slots=True)
class Checked:
    """A file that was found to be as it was written."""

    reader: Reader
    header: Header
    footer: Footer


def check_file(file: str | os.PathLike[str]) -> Checked:
    """Read a whole file to see whether it is an export, and intact.

    Raises:
        CannotMove: it is not.
    """
    reader = Reader(file)
    return Checked(reader, *reader.check(COLUMNS))


async def import_runs(
    file: str | os.PathLike[str] | Checked,
    store: Store,
    *,
    skip_existing: bool = False,
    by: str = "import",
    reason: str = "",
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write the runs of a file into an open store, in one transaction; the audit trail says who (`by`) did it and why.

    Open runs go on here, as soon as a worker knows their workflow; those of a snapshot are paused. A run that is here
    already is left as it is if it is the same in the file, or if `skip_existing` says so. A file that was imported
    before changes nothing.

    Raises:
        CannotMove: the file is damaged, or a run is here that is another in the file; nothing was written.
    """
    check_text(by, "by", printable=False)
    check_remark(reason, "reason")
    checked = file if isinstance(file, Checked) else check_file(file)
    header, footer = checked.header, checked.footer
    now = (clock or Clock()).now()

    async def change(db: Statements) -> Report:
        for (at,) in await db.read("imported_before", [(footer.sha256,)]):
            when = to_datetime(int(at or 0))
            return Report(
                runs=0,
                open_runs=0,
                skipped=header.runs,
                snapshot=header.snapshot,
                sha256=footer.sha256,
                imported=when,
            )
        terms = Terms(skip_existing=skip_existing, by=by, reason=reason, now=now, snapshot=header.snapshot)
        importing = Import(db, terms, progress or _quietly)
        await importing.write(checked.reader, header, footer)
        return Report(
            runs=importing.runs,
            open_runs=importing.open,
            skipped=importing.skipped,
            rows=dict(importing.rows),
            snapshot=header.snapshot,
            sha256=footer.sha256,
        )

    return await Endpoint(store).change(change)


def _quietly(runs: int, rows: int) -> None:
    """Report no progress."""
