"""The two lines at the top: workers, what ends and fails, how many runs of each status."""

from __future__ import annotations

from datetime import timedelta

from rich.text import Text

from holdfast.looking.about.figures import FiguresView
from holdfast.looking.desk import Desk
from holdfast.looking.times import span
from holdfast.looking.views import StatusCount, WorkerView
from holdfast.tui.drawing.lines import MARKS, STATUSES, counted, joined, said

COUNTED_EVERY = 5
"""At every so manieth look the workers and the runs of each status are counted."""
ADDED_EVERY = 10
"""Workers add to their figures every ten seconds."""
_SHORT = {"suspended": "wait", "compensating": "undo", "cancelling": "stop", "completed": "done", "cancelled": "cancel"}
_BLOCKS = "▁▂▃▄▅▆▇█"
_SLOTS = 20


class Pulse:
    """What is known of the database and its workers."""

    def __init__(self) -> None:
        self.counts: list[StatusCount] = []
        self.workers: list[WorkerView] = []
        self._figures: FiguresView | None = None
        self._looks = 0
        self._asked = False

    async def look(self, desk: Desk) -> None:
        """Ask what is due to be asked."""
        if self._looks % COUNTED_EVERY == 0:
            self.counts = await desk.counts()
            self.workers = await desk.workers()
        if self._looks % ADDED_EVERY == 0:
            self._figures = await desk.figures(last=timedelta(hours=1), by="time")
        self._looks += 1
        self._asked = True

    def again(self) -> None:
        """Ask everything at the next look."""
        self._looks = 0

    def line(self, width: int) -> Text:
        """Return workers, and what ended in the last hour, as much of it as so many columns have room for."""
        if not self._asked:
            return said("")
        alive = sum(worker.state == "alive" for worker in self.workers)
        silent = len([worker for worker in self.workers if worker.state == "silent"])
        hands = [
            said(f"{alive} worker{'' if alive == 1 else 's'}", "" if alive else "yellow"),
            said(f"{silent} silent", "yellow") if silent else "",
        ]
        for slots, more in ((_SLOTS, self._claimed()), (_SLOTS, ""), (10, ""), (5, ""), (0, "")):
            line = joined(*hands, *self._ended(slots), more)
            if line.cell_len <= width:
                return line
        short = joined(*hands, *self._ended(0)[1:])
        return short if short.cell_len <= width else joined(*hands)

    def _ended(self, slots: int) -> list[Text]:
        figures = self._figures
        if figures is None:
            return []
        total = figures.total
        ended = total.completed + total.failed + total.cancelled
        if not ended:
            return [said("nothing ended in an hour", "dim")]
        by_slot = [slot.completed + slot.failed + slot.cancelled for slot in figures.items][-slots:] if slots else []
        most = max(by_slot, default=0) or 1
        drawn = "".join(_BLOCKS[min(n * (len(_BLOCKS) - 1) // most, len(_BLOCKS) - 1)] for n in by_slot)
        share = 100 * total.failed / ended
        return [
            said(f"{ended:,} ended in 1 h {drawn}".rstrip()),
            said(f"failed {share:.1f} %", "red" if total.failed else ""),
        ]

    def _claimed(self) -> str:
        """Return how long 19 of 20 runs of the last hour were due before a worker claimed them."""
        took = self._figures.total.claim_p95 if self._figures is not None else None
        return f"due to claimed {span(round(took * 1e6))}" if took is not None else ""

    def strip(self, width: int) -> Text:
        """Return how many runs there are of each status, in short where there is little room."""
        by_status = {count.status: count for count in self.counts}
        shown = [(each, by_status[each]) for each in STATUSES if each in by_status and by_status[each].n]
        for short in (False, True):
            parts = [
                said(
                    f"{MARKS[each][0]} {_SHORT.get(each, each) if short else _long(each)} {counted(count)}",
                    MARKS[each][1],
                )
                for each, count in shown
            ]
            line = joined(*parts, gap="  ")
            if line.cell_len <= width:
                break
        return line


def _long(status: str) -> str:
    return "waiting" if status == "suspended" else status
