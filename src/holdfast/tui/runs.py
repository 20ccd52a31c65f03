"""The list of runs: found by a filter, newest first, each with why it is where it is."""

from __future__ import annotations

from datetime import tzinfo

from rich.text import Text

from holdfast.looking.desk import Desk
from holdfast.looking.views import Head, Page
from holdfast.tui.calls import CallLines
from holdfast.tui.drawing.lines import Row, clock, folded, joined, lasting, payload, said, status
from holdfast.tui.house import House
from holdfast.tui.run import RunScreen
from holdfast.tui.view import Target, View, command_line

PAGE = 50
_WIDE = 100
"""From how many columns on no word is shortened."""
_MOST = 200
_NO_RUNS = (
    "There are no runs yet. They appear here as soon as a program starts one:\n"
    "    async with Engine(database, workflows=[...]) as engine:\n"
    "        await engine.start(...)\n"
    "holdfast demo shows some, holdfast new makes a program that runs."
)


class RunList(View):
    """A page of runs that stands still: rows change in place, newer runs are counted until they are asked for."""

    title = "Runs"
    titles = ("  STATUS", "RUN", "WORKFLOW", "STARTED", "TOOK", "NOW, AND WHY")
    spare = (4, 3, 2)
    hint = "enter open  w why  / filter  x select  p pause  a acts  s send  ? keys  q quit"

    def __init__(self, zone: tzinfo | None, filter: str = "") -> None:
        super().__init__(zone)
        self.filter = filter
        self.heads: list[Head] = []
        self.newer = 0
        self.gone: set[str] = set()
        """RunList on the page that do not fit the filter any more."""
        self.all_selected = False
        self._page: Page | None = None
        self._cursors: list[str | None] = [None]
        self._fresh = True
        self._calls = CallLines()

    def begin(self, filter: str | None = None) -> None:
        """Show the newest page, of another filter if one is given."""
        if filter is not None and filter != self.filter:
            self.filter, self.heads, self.selected, self.all_selected = filter, [], set(), False
            self._page = None
        self._cursors, self._fresh = [None], True

    def older(self) -> bool:
        """Go to the next page; tell whether there is one."""
        if self._page is None or self._page.next is None:
            return False
        self._cursors.append(self._page.next)
        self._fresh = True
        return True

    def back(self) -> bool:
        """Go to the page before; tell whether there is one."""
        if len(self._cursors) == 1:
            return False
        self._cursors.pop()
        self._fresh = True
        return True

    async def look(self, house: House) -> None:
        cursor, text = self._cursors[-1], self.filter
        limit = PAGE if self._fresh or cursor is not None else min(_MOST, len(self.heads) + self.newer + PAGE // 2)

        async def ask(desk: Desk) -> Page:
            page = await desk.heads(text, limit=limit, cursor=cursor, relative=True)
            shown = {head.id: head for head in [*self.heads, *page.items]}
            await self._calls.look(desk, shown.get(self.cursor or "", next(iter(page.items), None)))
            return page

        page = await house.ask(ask)
        if (cursor, text) != (self._cursors[-1], self.filter):
            return  # something else was asked for meanwhile
        self.as_of = page.as_of
        if self._fresh or not self.heads or cursor is not None:
            self.heads, self._page, self._fresh = page.items[:PAGE], page, False
            self.newer, self.gone = 0, set()
        else:
            self._merge(page)

    def _merge(self, page: Page) -> None:
        by_id, shown = {head.id: head for head in page.items}, {head.id for head in self.heads}
        newest = self.heads[0].created_at
        self.newer = sum(head.id not in shown and head.created_at >= newest for head in page.items)
        last = page.items[-1].created_at if page.items and page.next is not None else None
        self.gone = {
            head.id for head in self.heads if head.id not in by_id and (last is None or head.created_at > last)
        }
        self.heads = [by_id.get(head.id, head) for head in self.heads]

    def above(self, width: int) -> list[Text]:
        said_so = []
        if self.selected or self.all_selected:
            many = "all that match are" if self.all_selected else f"{len(self.selected):,} are"
            said_so.append(said(f"{many} selected: p pause, a all acts, esc none", "bold"))
        if self.newer:
            more = "+" if self.newer + len(self.heads) >= _MOST else ""
            said_so.append(said(f"{self.newer}{more} newer run{'' if self.newer == 1 else 's'}: n shows them", "cyan"))
        if len(self._cursors) > 1:
            said_so.append(said(f"page {len(self._cursors)}: < back, n newest"))
        page = self._page
        if page is not None and page.partial and page.searched_to is not None:
            reached = clock(page.searched_to, self.as_of, self.zone)
            said_so.append(joined("searched back to ", reached, ": > keeps looking", gap=""))
        elif page is not None and page.next is not None and len(self._cursors) == 1 and not said_so:
            said_so.append(said("> older runs", "dim"))
        return [joined(*said_so)] if said_so else []

    def rows(self, width: int) -> list[Row]:
        return [self._row(head, width < _WIDE) for head in self.heads]

    def _row(self, head: Head, short: bool) -> Row:
        chosen = self.all_selected or head.id in self.selected
        return Row(
            head.id,
            (
                joined("x" if chosen else " ", status(head.status, short), gap=" "),
                said(head.id, "bold" if chosen else ""),
                said(head.workflow),
                clock(head.created_at, self.as_of, self.zone),
                said(lasting(head.created_at, head.ended_at or self.as_of) if head.status != "pending" else ""),
                said(head.why.sentence),
            ),
            head.id in self.gone,
        )

    def below(self, width: int) -> list[Text]:
        head = self.under_cursor()
        if head is None:
            return []
        facts = joined(
            status(head.status),
            f"{head.workflow} v{head.version}",
            f"by {head.actor}" if head.actor else "",
            f"tenant {head.tenant}" if head.tenant else "",
            f"child of {head.parent}" if head.parent else "",
            f"worker {head.worker}" if head.worker else "",
            f"priority {head.priority}" if head.priority else "",
            payload(head.attributes, 200) if head.attributes else "",
        )
        return [*folded(head.why.sentence, width, 2), *self._calls.lines(head, width, self.as_of, self.zone), facts]

    def under_cursor(self) -> Head | None:
        """Return the run under the cursor."""
        return next((head for head in self.heads if head.id == self.cursor), None)

    def empty(self) -> str:
        if self._page is None:
            return "looking ..."
        if self._page.partial:
            return "none found so far"
        return f"No run fits {self.filter}" if self.filter else _NO_RUNS

    def opened(self) -> View | None:
        head = self.under_cursor()
        return RunScreen(self.zone, head.id, [each.id for each in self.heads]) if head is not None else None

    def target(self) -> Target:
        if self.all_selected:
            return Target(where=self.filter)
        if self.selected:
            return Target(ids=tuple(sorted(self.selected)))
        return Target(ids=(self.cursor,)) if self.under_cursor() is not None and self.cursor else Target()

    def command(self) -> str:
        return command_line("holdfast", "list", self.filter)
