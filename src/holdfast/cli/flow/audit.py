"""`holdfast audit` and `evidence`: who did what and why, and what runs put on record."""

from __future__ import annotations

from contextlib import AbstractContextManager, aclosing
from typing import IO, TYPE_CHECKING, Any

import click

from holdfast.cli.database import going_on, json_option, local_time, looking, url_option
from holdfast.cli.output import emit, harmless, listed, payload, say, say_wrapped
from holdfast.cli.progress import ProgressLine
from holdfast.cli.shell.names import RUN
from holdfast.cli.shell.times import MOMENT
from holdfast.errors import BadInput
from holdfast.looking.views import AuditPageView

if TYPE_CHECKING:
    from holdfast.looking import Desk
    from holdfast.looking.about.runs import EvidencePage


@click.group("audit", short_help="What was done, by whom and why: list, verify, export.")
def audit_group() -> None:
    """Look at the audit trail, check that nothing of it was changed, and write it to a file."""


@audit_group.command("list", short_help="List what was done, newest first.")
@click.option("--actor", help="Only what this one did.")
@click.option("--action", help="Only this action, as in cancel.")
@click.option("--target", help="Only what was done to this run, workflow, queue, limit or schedule.")
@click.option(
    "--since", metavar="TIME", type=MOMENT, help="Only what was done from then on: -24h, 2026-11-01, or with T09:30."
)
@click.option("--until", metavar="TIME", type=MOMENT, help="Only what was done before.")
@click.option("--limit", default=20, show_default=True, help="How many to show, up to 1,000.")
@click.option("--before", type=int, help="Go on below this number, where an earlier page ended.")
@json_option
@url_option
def list_audit(limit: int, before: int | None, as_json: bool, url: str | None, **which: Any) -> None:
    """List what was done, newest first: when, by whom, to what, and why.

    \b
    Example: holdfast audit list --actor kim
    """
    page: AuditPageView = looking(url, lambda desk: desk.audit(limit=limit, before=before, **which))
    if as_json:
        emit("holdfast.audit/1", page)
        return
    rows = [
        (str(each.n), local_time(each.at), each.actor, each.action, each.target, _said(each.detail))
        for each in page.items
    ]
    listed(("N", "AT", "ACTOR", "ACTION", "TARGET", "DETAIL"), rows, "nothing is on record that fits", spare=(0, 1))
    if page.next is not None:
        older = going_on(["audit", "list"], url, **which, before=page.next)
        say(f"{'searched so far' if page.partial else 'older'}: {older}", err=True)


def _said(detail: Any) -> str:
    return "" if detail in (None, {}, "") else payload(detail, 200)


@audit_group.command("verify", short_help="Check that nothing of the audit trail was changed.")
@click.option("--run", "run_id", help="Check what this run put on record instead.")
@json_option
@url_option
def verify_audit(run_id: str | None, as_json: bool, url: str | None) -> int:
    """Check the chain of hashes of the audit trail, or of the evidence of one run; ends with 1 if it is broken.

    \b
    Example: holdfast audit verify
    """
    progress = ProgressLine("verifying", None, "rows")
    found = looking(url, lambda desk: desk.verify_audit(run_id, told=progress.show))
    progress.end()
    if as_json:
        emit("holdfast.verdict/1", found)
    elif found.ok:
        say_wrapped(f"{found.checked:,} rows hold; the last hash is {found.last or 'none'}")
    else:
        say(f"broken at row {found.broken_at}: it, or what came before it, was changed; {found.checked:,} rows hold")
    return 0 if found.ok else 1


@audit_group.command("export", short_help="Write the audit trail as lines of JSON that others can check.")
@click.option("--run", "run_id", help="Write what this run put on record instead.")
@click.option("-o", "--output", "file", type=click.Path(dir_okay=False), help="To a file instead of stdout.")
@url_option
def export_audit(run_id: str | None, file: str | None, url: str | None) -> None:
    """Write everything that was done, or what one run put on record, oldest first, one JSON object a line.

    Each has the fields of the hash rule and its hash, so that others can check the chain.

    \b
    Example: holdfast audit export -o audit.ndjson
    """

    async def work(desk: Desk) -> int:
        progress, rows = ProgressLine("exporting", None, "rows"), 0
        with _writing(file) as out:
            async with aclosing(desk.export_audit(run_id)) as lines:
                async for line in lines:
                    out.write(line if file is not None else harmless(line).encode())  # it says the same
                    rows += 1
                    progress.show(rows)
        progress.end()
        return rows

    rows = looking(url, work)
    if file is not None:
        say(f"exported {rows:,} row{'' if rows == 1 else 's'} to {file}", err=True)


def _writing(file: str | None) -> AbstractContextManager[IO[Any]]:
    try:
        return click.open_file(file or "-", "wb")
    except OSError as error:
        raise BadInput(f"{file}: cannot be written: {error.strerror}") from None


@click.command("evidence", short_help="Show what a run put on record.")
@click.argument("run_id", metavar="ID", type=RUN)
@click.option("--after", default=0, help="Only what comes after this number.")
@click.option("--limit", default=100, show_default=True, help="How much to show, up to 1,000.")
@json_option
@url_option
def evidence_command(run_id: str, after: int, limit: int, as_json: bool, url: str | None) -> None:
    """Show what a run put on record, oldest first, also when the run itself was deleted.

    \b
    Example: holdfast evidence order-88405
    """
    page: EvidencePage = looking(url, lambda desk: desk.evidence(run_id, after=after, limit=limit))
    if as_json:
        emit("holdfast.evidence/1", page)
        return
    rows = [(str(each.n), local_time(each.recorded_at), each.kind, payload(each.data, 200)) for each in page.items]
    listed(
        ("N", "AT", "KIND", "DATA"),
        rows,
        "it has put nothing on record" if not after else "there is nothing more on record",
    )
    if page.next is not None:
        say(f"more: {going_on(['evidence', run_id], url, after=page.next)}", err=True)
