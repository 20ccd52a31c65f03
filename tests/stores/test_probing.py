"""The place of an instant in a table is found by a few looks, whatever clocks there were."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.sql.probing import SLACK, Mark, after_instant, before_instant

MINUTE = 60 * 1_000_000


class Table:
    """Rows by key, and how often it was looked at."""

    def __init__(self, rows: Sequence[Mark]) -> None:
        self.rows = sorted(rows)
        self.looks = 0
        self._keys = [row.key for row in self.rows]

    @property
    def ends(self) -> tuple[int, int]:
        return self._keys[0], self._keys[-1]

    async def around(self, keys: Sequence[int]) -> list[tuple[int, Mark | None, Mark | None]]:
        self.looks += 1
        return [(key, *self._beside(bisect_left(self._keys, key))) for key in sorted(keys)]

    def _beside(self, place: int) -> tuple[Mark | None, Mark | None]:
        return self.rows[place - 1] if place else None, self.rows[place] if place < len(self.rows) else None


def drive(work):
    """Return what comes of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


@given(
    steps=st.lists(st.tuples(st.integers(1, 1 << 40), st.integers(0, 10 * MINUTE)), min_size=1, max_size=60),
    clocks=st.lists(st.integers(-SLACK // 2, SLACK // 2), min_size=60, max_size=60),
    asked=st.integers(0, 600 * MINUTE),
)
def test_no_row_of_an_instant_is_on_the_wrong_side_of_its_place(steps, clocks, asked):
    """Clocks of those who added the rows are up to ten minutes apart, and keys lie as far apart as they like."""
    keys, times = accumulate(key for key, _ in steps), accumulate(later for _, later in steps)
    table = Table([Mark(*row) for row in zip(keys, map(sum, zip(times, clocks, strict=False)), strict=False)])
    low = drive(before_instant(table.around, table.ends, asked))
    high = drive(after_instant(table.around, table.ends, asked))
    assert all(row.at < asked for row in table.rows if row.key < low)
    assert all(row.at >= asked for row in table.rows if row.key >= high)


def test_an_instant_among_a_hundred_thousand_rows_is_found_in_five_looks():
    """A server is waited for in each of them."""
    dice = random.Random(3)
    keys = accumulate(dice.randrange(1, 1 << 40) for _ in range(100_000))
    table = Table([Mark(key, n * MINUTE) for n, key in enumerate(keys)])
    for n in range(0, 100_000, 9_973):
        table.looks = 0
        found = drive(before_instant(table.around, table.ends, n * MINUTE))
        assert table.rows[bisect_left(table._keys, found)].at in range(n * MINUTE - SLACK, n * MINUTE + 1)
        assert table.looks <= 5
