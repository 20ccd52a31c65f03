"""The timeline in columns: order is kept, idle time is folded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as some

from holdfast.looking.about.timeline import Bar, CallRow
from holdfast.tui.drawing.bars import Scale

BEGIN = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
STATES = ("done", "failed", "lost", "running", "wait", "backoff")


def call(name: str, *bars: tuple[float, float, str]) -> CallRow:
    made = [
        Bar(BEGIN + timedelta(seconds=begin), BEGIN + timedelta(seconds=begin + length), state)
        for begin, length, state in bars
    ]
    return CallRow(name, "step", name, made[0].begin, bars=made)


def test_a_sleep_of_thirty_days_does_not_flatten_the_second_before_it():
    """FACES 0.9: idle time is folded, and says how long it was."""
    month = 30 * 86_400
    rows = [call("a", (0, 1, "done")), call("sleep", (1, month, "wait")), call("b", (month + 1, 1, "failed"))]
    end = BEGIN + timedelta(seconds=month + 2)
    drawn = [Scale(rows, BEGIN, end, 40, fold=True).draw(row, end).plain for row in rows]
    assert drawn[0].count("█") >= 10
    assert drawn[2].count("▒") >= 10
    assert "╌" in drawn[1]
    assert "~30d~" in Scale(rows, BEGIN, end, 40, fold=True).axis("").plain
    flat = [Scale(rows, BEGIN, end, 40, fold=False).draw(row, end).plain for row in rows]
    assert flat[0].count("█") == 1


def test_a_run_that_only_waits_takes_the_whole_width():
    row = call("sleep", (0, 600, "wait"))
    drawn = Scale([row], BEGIN, BEGIN + timedelta(seconds=600), 60, fold=True).draw(row, BEGIN + timedelta(seconds=600))
    assert drawn.plain.count("╌") > 50


@given(
    some.lists(
        some.tuples(some.floats(0, 1e7), some.floats(0, 1e5), some.sampled_from(STATES)), min_size=1, max_size=12
    ),
    some.integers(1, 200),
    some.booleans(),
)
def test_whatever_happened_keeps_its_order_and_stays_in_its_columns(bars, width, fold):
    """FACES 10.11: folding keeps order."""
    rows = [call(str(n), bar) for n, bar in enumerate(bars)]
    end = max(row.bars[0].end for row in rows)
    scale = Scale(rows, BEGIN, end, width, fold=fold)
    moments = sorted({moment for row in rows for moment in (row.bars[0].begin, row.bars[0].end)})
    places = [scale.at(moment) for moment in moments]
    assert places == sorted(places)
    assert all(len(scale.draw(row, end).plain) == width for row in rows)
    assert len(scale.axis("00:30:00").plain) == width
