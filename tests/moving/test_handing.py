"""An open run as it is handed over: what is under way in its history does not go along."""

from __future__ import annotations

import pytest

pytest.importorskip("temporalio")

import msgspec

from holdfast.contract.rows import EntryRow
from holdfast.moving.handing import lost_attempts
from holdfast.payloads.codec import ErrorData
from holdfast.replay import entry as entries


def rows(*facts: tuple[str, entries.Entry]) -> list[EntryRow]:
    """Return entries as a store has them."""
    return [
        EntryRow(location, seq, fact.kind, 7, entries.encode_entry(fact))
        for seq, (location, fact) in enumerate(facts, 1)
    ]


def lost(*facts: tuple[str, entries.Entry]) -> list[tuple[str, int, int, str]]:
    """Return where, after which number and which attempt counts as lost, and why."""
    found = lost_attempts(rows(*facts), "crash", 9)
    marks = [entries.decode_entry(row.kind, row.data) for row in found]
    return [(row.location, row.seq, mark.attempt, mark.why) for row, mark in zip(found, marks, strict=True)]


FAILED = entries.AttemptFailed(1, ErrorData(type="E", message="no"), 9)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([], []),
        ([entries.StepBegun(1)], [("a0", 2, 1, "crash")]),
        ([entries.StepBegun(1, 4)], [("a0", 2, 4, "crash")]),
        ([entries.StepBegun(1), FAILED], []),
        ([entries.StepBegun(1), FAILED, entries.AttemptBegun(2)], [("a0", 4, 2, "crash")]),
        ([entries.StepBegun(1), entries.AttemptLost(1, "lapse")], []),
        ([entries.StepBegun(1), entries.StepCompleted(1, msgspec.Raw(b"1"))], []),
    ],
)
def test_an_attempt_that_was_begun_and_has_no_end_counts_as_lost(
    facts: list[entries.Entry], expected: list[tuple[str, int, int, str]]
) -> None:
    """S3-16, G5: so that its number is not given again where the run goes on."""
    assert lost(*(("a0", fact) for fact in facts)) == expected
