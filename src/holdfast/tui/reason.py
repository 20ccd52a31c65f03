"""A sheet that says in full why a run is where it is: since when, at which line, what it waits for, and what helps."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.containers import VerticalScroll

from holdfast.errors import HoldfastError
from holdfast.looking.views import Why
from holdfast.tui.drawing.lines import clock, counted, folded, joined, said
from holdfast.tui.drawing.widgets import TextLines
from holdfast.tui.house import House
from holdfast.tui.sheets import Sheet


class WhySheet(Sheet):
    """What `holdfast why` says."""

    def __init__(self, house: House, run_id: str) -> None:
        super().__init__(house)
        self._run_id = run_id

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield TextLines([said(self._run_id, "bold")])
            yield TextLines([said("looking ...", "dim")], id="why")
            yield TextLines([said("esc leaves it", "dim")])

    def on_mount(self) -> None:
        """Ask."""
        self._ask()

    @work(exit_on_error=False)
    async def _ask(self) -> None:
        try:
            why = await self.house.ask(lambda desk: desk.why(self._run_id, relative=True))
        except (HoldfastError, OSError) as error:
            self.lines("why", str(error), "red")
            return
        self.query_one("#why", TextLines).show([*self._told(why)])

    def _told(self, why: Why) -> Iterator[Text]:
        width = self.width()
        yield from folded(why.sentence, width, 4, "bold")
        since = clock(why.since, why.since, self.house.zone) if why.since is not None else ""
        others = f"{counted(why.others)} others wait to try this step again" if why.others and why.others.n else ""
        if line := joined(joined("since ", since, gap="") if since else "", others):
            yield line
        if why.source is not None:
            yield said(f"  {why.source.file}:{why.source.line}", "cyan")
            yield said(f"    {why.source.text}", "cyan")
        for below in why.chain:
            yield from folded(f"{below.run}: {below.sentence}", width, 2)
        for help in why.help:
            yield from folded(help.say, width, 3)
            if help.command:
                yield said(f"  {help.command}", "cyan")
