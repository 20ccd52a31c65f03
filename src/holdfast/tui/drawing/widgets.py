"""What the screen is made of: lines of text, and rows with a cursor; both are drawn in the colours of the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from rich.text import Text
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget


class TextLines(Widget):
    """TextLines of text, as high as there are lines."""

    DEFAULT_CSS = "TextLines { height: auto; }"

    def __init__(self, lines: Sequence[Text] = (), *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines = list(lines)

    def show(self, lines: Sequence[Text]) -> None:
        """Show these lines."""
        if len(lines) == len(self._lines) and all(map(same, lines, self._lines)):
            return
        higher = len(lines) != len(self._lines)
        self._lines = [*lines]
        self.display = bool(self._lines)
        self.refresh(layout=higher)

    @property
    def text(self) -> str:
        """What is shown, without its colours."""
        return "\n".join(line.plain for line in self._lines)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        if y >= len(self._lines):
            return Strip.blank(self.size.width)
        return strip_of(self, self._lines[y], self.size.width)


class Rows(ScrollView):
    """Rows with a cursor, of which only those are drawn that are seen."""

    can_focus = False

    class Moved(Message):
        """The cursor was put on another row; `opens` if the row was asked for."""

        def __init__(self, opens: bool = False) -> None:
            super().__init__()
            self.opens = opens

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: list[Text] = []
        self.at = 0
        self.with_cursor = True

    def show(self, lines: Sequence[Text], at: int | None) -> None:
        """Show these lines, with the cursor on one of them, or on none."""
        before = [*self.lines] if self.with_cursor else []
        old = self.at
        self.lines = [*lines]
        self.with_cursor = at is not None
        self.at = min(at or 0, max(len(lines) - 1, 0))
        if len(before) != len(self.lines) or at is None:
            self.virtual_size = Size(self.size.width, len(self.lines))
            self.refresh()
            return
        for n in range(self.scroll_offset.y, min(self.scroll_offset.y + self.size.height, len(lines))):
            if n in (old, self.at) or not same(before[n], lines[n]):
                self.refresh(Region(0, n - self.scroll_offset.y, self.size.width, 1))

    def reveal(self) -> None:
        """Scroll to the cursor, if it is not seen."""
        self.scroll_to_region(Region(0, self.at, 1, 1), animate=False, force=True, immediate=True)

    def render_line(self, y: int) -> Strip:
        place = y + self.scroll_offset.y
        if place >= len(self.lines):
            return Strip.blank(self.size.width)
        strip = strip_of(self, self.lines[place], self.size.width)
        under = self.with_cursor and place == self.at
        return strip.apply_style(Style(reverse=True)) if under else strip

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the mouse is; a second click opens."""
        place = event.y + self.scroll_offset.y
        if place < len(self.lines) and self.with_cursor:
            self.at = place
            self.post_message(self.Moved(opens=event.chain > 1))


def same(one: Text, other: Text) -> bool:
    """Tell whether two lines look the same."""
    return one.plain == other.plain and one.style == other.style and one.spans == other.spans


def strip_of(widget: Widget, text: Text, width: int) -> Strip:
    """Return a line as it is drawn in so many columns."""
    return Strip(text.render(widget.app.console, end="")).adjust_cell_length(width)
