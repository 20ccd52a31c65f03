"""Which runs a caller wants to see: filters of the API, translated for the store."""

from __future__ import annotations

from typing import Any

from holdfast.clock import from_datetime
from holdfast.contract.rows import RunFilter, Status
from holdfast.errors import BadInput
from holdfast.texts import check_text, shown


def run_filter(which: dict[str, Any], limit: int, before: int | None) -> RunFilter:
    """Return the filter for what was asked.

    Raises:
        BadInput: runs cannot be chosen by that; the message says by what they can.
    """
    check_limit(limit)
    wanted = dict(which)
    unknown = wanted.keys() - set(RunFilter.__struct_fields__)
    if unknown:
        known = ", ".join(field for field in RunFilter.__struct_fields__ if field not in ("limit", "before"))
        raise BadInput(f"runs cannot be chosen by {', '.join(sorted(unknown))}, only by {known}")
    for field in ("workflow", "parent", "actor", "tenant", "unique_key"):
        if wanted.get(field) is not None:
            check_text(wanted[field], field, printable=False)
    status = wanted.get("status")
    if status is not None:
        if status not in list(Status):
            raise BadInput(f"status {shown(status)} is none of {', '.join(Status)}")
        wanted["status"] = Status(status)
    for moment in ("created_from", "created_until"):
        if wanted.get(moment) is not None:
            wanted[moment] = from_datetime(wanted[moment], moment)
    from holdfast.context.notes import encode_attributes  # a program that only starts runs does not need it

    wanted["attributes"] = {
        name: value if value is not None else "null"
        for name, value in encode_attributes(wanted.get("attributes") or {}).items()
    }
    return RunFilter(**wanted, limit=limit, before=before)


def check_limit(limit: int) -> None:
    """Check how many may be listed at once.

    Raises:
        BadInput: it is none, or too many.
    """
    if not 1 <= limit <= 1000:
        raise BadInput(f"limit must be between 1 and 1,000, not {limit!r}")
