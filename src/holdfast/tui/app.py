"""`holdfast top`: the screen. It looks at one view each second, shows it, and does what keys say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, tzinfo
from functools import partial

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.widgets import Input

from holdfast.errors import BadInput, HoldfastError, NoSuchRun, NoSuchSchedule
from holdfast.looking.acts import FITS
from holdfast.texts import printable
from holdfast.tui.acts import ACTS, LETTER_ACTS, held_acts
from holdfast.tui.drawing.lines import folded, in_columns, joined, said
from holdfast.tui.drawing.widgets import Rows, TextLines
from holdfast.tui.house import House
from holdfast.tui.listings import AuditList, EventList, ScheduleList, VersionList
from holdfast.tui.pulse import Pulse
from holdfast.tui.reason import WhySheet
from holdfast.tui.run import TABS, RunScreen
from holdfast.tui.runs import RunList
from holdfast.tui.sheets import ActSheet, Choice, HoldSheet, SendSheet
from holdfast.tui.tables import Letters, Workers
from holdfast.tui.view import Target, View

EVERY = 1.0
"""How many seconds lie between two looks."""
_LONGEST = 5.0
"""And how many at most while the house does not answer."""
_MOST_LINES = 5
"""Of what went wrong: its end is the way out."""
_SILENT = 3.0
"""For how many seconds an answer may be waited for before that is said."""
_ACT_KEYS = {
    "pause": "p", "resume": "u", "cancel": "c", "retry": "r", "rerun": "e", "recover": "b", "nudge": "n",
    "terminate": "t",
}  # fmt: skip
_VIEWS: dict[str, type[View]] = {
    "r": RunList, "l": Letters, "s": ScheduleList, "w": Workers, "e": EventList, "d": VersionList,
    "a": AuditList,
}  # fmt: skip
_KEYS = (
    ("/", "filter"),
    ("g", "then o r l s w e d a: what needs attention, runs, dead letters, schedules, workers, events, deploys, audit"),
    ("j k", "move (also arrows, page up and down, home, end)"),
    ("enter", "open"),
    ("w", "why, in full: since when, at which line, and what helps"),
    ("esc", "close, or back"),
    ("x X", "select; select all that match"),
    ("n", "show newer runs"),
    ("> <", "older runs, and back"),
    ("tab", "next part of a run (also left, right and 1 to 6)"),
    ("[ ]", "run before, after"),
    ("s p a", "send or publish, pause or resume, all acts"),
    ("u", "undo the last act"),
    ("y c", "copy the id; copy as a command"),
    ("f", "fold idle time"),
    ("t z", "light or dark terminal; your time zone or UTC"),
    ("q", "quit"),
)


class Top(App[None]):
    """The screen of a house.

    Args:
        house: what it looks at.
        filter: which runs are shown at first.
        every: how many seconds lie between two looks.
    """

    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None  # keys are commands until a field is asked for
    TITLE = "holdfast top"
    CSS = """
    Screen { layers: base; }
    #head, #strip, #above, #titles, #below, #foot { width: 100%; }
    #rows { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }
    #below { border-top: solid ansi_bright_black; max-height: 6; }
    #filter { border: none; height: 1; padding: 0; display: none; }
    Sheet { align: left bottom; background: transparent; }
    Sheet > VerticalScroll {
        height: auto; max-height: 90%; width: 100%; border-top: solid ansi_cyan; padding: 0 1; background: ansi_default;
    }
    Sheet Input { border: none; height: 1; padding: 0; }
    """

    def __init__(self, house: House, filter: str = "", every: float = EVERY) -> None:
        super().__init__()
        self.theme = "ansi-dark"
        self.house = house
        self.view: View = RunList(house.zone, filter)
        self.looks = 0
        """How many looks have ended, well or not."""
        self._views: list[View] = []
        self._every = every
        self._pulse = Pulse()
        self._wanted = asyncio.Event()
        self._notice: Text | None = None
        self._wrong = ""
        self._lost = 0
        """How many looks in a row found no house."""
        self._seen = 0.0
        self._begun: float | None = None
        self._going = False
        self._shown = False
        self._undo: tuple[str, Target] | None = None
        self._own_zone: tzinfo | None = house.zone

    def compose(self) -> ComposeResult:
        for name in ("head", "strip"):
            yield TextLines(id=name)
        yield Input(id="filter", placeholder="status:failed workflow:... customer=c-1 created:-24h is:attention")
        for name in ("above", "titles"):
            yield TextLines(id=name)
        yield Rows(id="rows")
        for name in ("below", "foot"):
            yield TextLines(id=name)

    def on_mount(self) -> None:
        """Begin to look."""
        self.run_worker(self._watch(), name="look", exit_on_error=True)
        self.set_interval(1.0, self._tell_silence)
        self._shown = True
        self.show()

    # Looking.

    async def _watch(self) -> None:
        try:
            while True:
                self._wanted.clear()
                await self._look()
                try:
                    async with asyncio.timeout(min(self._every * (1 + self._lost), max(_LONGEST, self._every))):
                        await self._wanted.wait()
                except TimeoutError:
                    pass
        finally:
            await self.house.close()

    async def _look(self) -> None:
        view, clock = self.view, asyncio.get_running_loop().time
        self._begun = clock()
        try:
            await view.look(self.house)
            await self.house.ask(self._pulse.look)
            self._wrong, self._lost, self._seen = "", 0, clock()
        except (BadInput, NoSuchRun, NoSuchSchedule) as error:
            self._wrong, self._lost, self._seen = str(error), 0, clock()
        except (HoldfastError, OSError) as error:
            self._wrong, self._lost = str(error), self._lost + 1
        finally:
            self._begun = None
        self.looks += 1
        self.show()

    def look_now(self) -> None:
        """Look again at once."""
        self._wanted.set()

    def _tell_silence(self) -> None:
        if self._begun is not None and asyncio.get_running_loop().time() - self._begun > _SILENT:
            self._show_head()

    # Showing.

    def show(self) -> None:
        """Show the view as it was last answered."""
        if not self._shown:
            return
        view, width = self.view, self.size.width
        self._show_head()
        self._lines("strip").show([self._pulse.strip(width)] if self._pulse.counts else [])
        rows = view.rows(width - 1)
        keys = [row.key for row in rows]
        if view.cursor not in keys:
            view.cursor = keys[0] if keys else None
        titles, lines = in_columns(view.titles, rows, width - 1, view.spare, view.wants) if rows else (said(""), [])
        widget = self.screen_stack[0].query_one("#rows", Rows)
        if rows and view.cursor is not None:
            widget.show(lines, keys.index(view.cursor))
        else:
            widget.show([] if self._wrong else [said(line) for line in view.empty().split("\n")], None)
        self._lines("above").show(view.above(width))
        self._lines("titles").show([titles] if rows else [])
        self._lines("below").show(view.below(width))
        self._show_foot()

    def _lines(self, name: str) -> TextLines:
        return self.screen_stack[0].query_one(f"#{name}", TextLines)

    def _show_head(self) -> None:
        silent = asyncio.get_running_loop().time() - self._begun if self._begun is not None else 0.0
        state = said("live", "green")
        if self._lost:
            age = asyncio.get_running_loop().time() - self._seen if self._seen else 0.0
            old = f"this is {age:.0f} s old, " if self._seen else ""
            state = said(f"lost: {old}trying again", "bold red")
        elif silent > _SILENT:
            state = said(f"no answer for {silent:.0f} s", "bold yellow")
        name = said(f"holdfast top: {self.house.name}", "bold")
        begin = joined(name, state)
        lines = [joined(begin, self._pulse.line(self.size.width - begin.cell_len - 3))]
        filter = self.view.filter if isinstance(self.view, RunList) else ""
        if filter:
            lines.append(joined("filter: ", said(filter, "bold cyan"), gap=""))
        if self._wrong:
            lines += folded(self._wrong, self.size.width, _MOST_LINES, "red")
        self._lines("head").show(lines)

    def _show_foot(self) -> None:
        self._lines("foot").show([self._notice or said(self.view.hint, "dim")])

    def tell(self, text: str, style: str = "bold") -> None:
        """Say something in the line at the bottom, until the next key."""
        self._notice = said(text, style)
        self._show_foot()

    def on_resize(self) -> None:
        """Draw for another width."""
        self.call_after_refresh(self.show)

    # Keys.

    def on_key(self, event: events.Key) -> None:
        """Do what a key says; sheets and fields have their own."""
        field = self.focused
        if isinstance(field, Input) and event.is_printable and event.character:
            field.insert_text_at_cursor(event.character)  # typed ahead: a field keeps to itself what comes after it
        if isinstance(field, Input) or len(self.screen_stack) > 1:
            if isinstance(field, Input) and event.key == "enter":  # typed ahead, too
                self.run_worker(field.action_submit())
            elif len(self.screen_stack) == 1 and event.key == "escape":
                self._close_filter()
            return
        key = event.character if event.is_printable and event.character else event.key
        going, self._going, self._notice = self._going, False, None
        act = self._places().get(key) if going else self._acts().get(key)
        if act is not None:
            event.stop().prevent_default()
            act()
        self._show_foot()

    def _places(self) -> dict[str, Callable[[], None]]:
        zone = self.house.zone
        views = {letter: partial(self._go, view(zone)) for letter, view in _VIEWS.items()}
        return {"o": lambda: self._go(RunList(zone, "is:attention")), **views}

    def _acts(self) -> dict[str, Callable[[], None]]:
        page = max(self.screen_stack[0].query_one("#rows", Rows).size.height - 1, 1)
        return {
            "q": self.exit, "ctrl+c": self.exit, "ctrl+q": self.exit,
            "g": self._begin_going, "slash": self._open_filter, "/": self._open_filter,
            "j": lambda: self.move(1), "down": lambda: self.move(1), "k": lambda: self.move(-1),
            "up": lambda: self.move(-1), "pagedown": lambda: self.move(page), "pageup": lambda: self.move(-page),
            " ": lambda: self.move(page), "home": lambda: self.move(-(10**9)), "end": lambda: self.move(10**9),
            "enter": self._open, "escape": self._back, "x": self._select, "X": self._select_all, "n": self._newer,
            ">": lambda: self._turn_page(1), "<": lambda: self._turn_page(-1),
            "tab": lambda: self._turn_tab(1), "shift+tab": lambda: self._turn_tab(-1),
            "right": lambda: self._turn_tab(1), "left": lambda: self._turn_tab(-1),
            **{str(n + 1): partial(self._open_tab, n) for n in range(len(TABS))},
            "[": lambda: self._neighbour(-1), "]": lambda: self._neighbour(1),
            "w": self._why, "s": self._send, "p": self._pause, "a": self._choose_act, "u": self._undo_last,
            "y": lambda: self._copy(self.view.to_copy()), "c": lambda: self._copy(self.view.command()),
            "f": self._fold, "t": self._turn_theme, "z": self._turn_zone, "?": self._help,
        }  # fmt: skip

    def move(self, by: int) -> None:
        """Move the cursor by so many rows."""
        rows = [row.key for row in self.view.rows(self.size.width - 1)]
        if not rows:
            return
        at = rows.index(self.view.cursor) if self.view.cursor in rows else 0
        self.view.cursor = rows[max(0, min(at + by, len(rows) - 1))]
        self.show()
        self.screen_stack[0].query_one("#rows", Rows).reveal()

    def on_rows_moved(self, event: Rows.Moved) -> None:
        """Follow the mouse."""
        keys = [row.key for row in self.view.rows(self.size.width - 1)]
        at = self.screen_stack[0].query_one("#rows", Rows).at
        if at < len(keys):
            self.view.cursor = keys[at]
            self.show()
            if event.opens:
                self._open()

    def _begin_going(self) -> None:
        self._going = True
        self._notice = said("g: o attention r runs l letters s schedules w workers e events d deploys a audit", "bold")

    def _go(self, view: View) -> None:
        self._views.clear()
        self._enter(view)

    def _enter(self, view: View) -> None:
        self.view, self._wrong = view, ""
        self.screen_stack[0].query_one("#rows", Rows).scroll_to(y=0, animate=False, force=True)
        self.show()
        self.look_now()

    def _open(self) -> None:
        view = self.view.opened()
        if view is not None:
            self._views.append(self.view)
            self._enter(view)

    def _back(self) -> None:
        if self.view.selected or (isinstance(self.view, RunList) and self.view.all_selected):
            self.view.selected = set()
            if isinstance(self.view, RunList):
                self.view.all_selected = False
            self.show()
        elif self._views:
            view = self._views.pop()
            view.zone = self.house.zone
            self._enter(view)
            self.screen_stack[0].query_one("#rows", Rows).reveal()

    def _why(self) -> None:
        about = self.view if isinstance(self.view, RunScreen) else self.view.opened()
        if isinstance(about, RunScreen):
            self.push_screen(WhySheet(self.house, about.run_id))

    def _neighbour(self, by: int) -> None:
        other = self.view.neighbour(by) if isinstance(self.view, RunScreen) else None
        if other is not None:
            if self._views:
                self._views[-1].cursor = other.to_copy()
            self._enter(other)

    def _turn_tab(self, by: int) -> None:
        if isinstance(self.view, RunScreen):
            self.view.turn(by)
            self._enter(self.view)

    def _open_tab(self, place: int) -> None:
        if isinstance(self.view, RunScreen):
            self._turn_tab(place - TABS.index(self.view.tab))

    def _fold(self) -> None:
        if isinstance(self.view, RunScreen):
            self.view.fold = not self.view.fold
            self.show()

    # The filter, pages, and what is selected.

    def _open_filter(self) -> None:
        if not isinstance(self.view, RunList):
            self._go(next((view for view in self._views if isinstance(view, RunList)), RunList(self.house.zone)))
        field = self.screen_stack[0].query_one("#filter", Input)
        field.value = self.view.filter if isinstance(self.view, RunList) else ""
        field.display = True
        self.screen_stack[0].set_focus(field)  # at once: what is typed ahead is meant for it

    def _close_filter(self) -> None:
        field = self.screen_stack[0].query_one("#filter", Input)
        field.display = False
        self.screen.set_focus(None)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Show the runs of another filter."""
        if event.input.id == "filter" and isinstance(self.view, RunList):
            self.view.begin(" ".join(event.value.split()))
            self._close_filter()
            self._enter(self.view)

    def _newer(self) -> None:
        if isinstance(self.view, RunList):
            self.view.begin()
            self.view.cursor = None
            self._enter(self.view)

    def _turn_page(self, by: int) -> None:
        if isinstance(self.view, RunList) and (self.view.older() if by > 0 else self.view.back()):
            self._enter(self.view)

    def _select(self) -> None:
        view = self.view
        if view.cursor is not None and isinstance(view, RunList):
            view.selected ^= {view.cursor}
            view.all_selected = False
            self.move(1)

    def _select_all(self) -> None:
        if not isinstance(self.view, RunList):
            return
        if self.view.filter.strip() in ("", "is:attention"):
            self.tell("select all that match: give a filter first, as status:failed", "yellow")
            return
        self.view.all_selected = not self.view.all_selected
        self.show()

    # Acting.

    def _pause(self) -> None:
        held = self.view.held()
        if held is not None:
            self._hold("resume" if held[2] else "pause", *held[:2])
            return
        target = self.view.target()
        if target.letters or not target:
            return
        head = self.view.head if isinstance(self.view, RunScreen) else None
        if isinstance(self.view, RunList) and len(target.ids) == 1:
            head = next((head for head in self.view.heads if head.id == target.ids[0]), None)
        self.act("resume" if head is not None and head.status == "paused" else "pause", target)

    def _hold(self, verb: str | None, kind: str, name: str) -> None:
        if verb is not None:
            self.push_screen(HoldSheet(self.house, verb, kind, name), self._sent)

    def _choose_act(self) -> None:
        target, held = self.view.target(), self.view.held()
        if held is not None:
            kind, name, paused = held
            acts = [(verb[0], verb, words) for verb, words in held_acts(kind, paused).items()]
            self.push_screen(Choice(self.house, "Which act?", acts), lambda verb: self._hold(verb, kind, name))
            return
        if not target:
            return
        statuses = self._statuses(target)
        if target.letters:
            acts = [(name[0], name, f"{act.verb}: {act.one}") for name, act in LETTER_ACTS.items()]
        else:
            acts = [
                (_ACT_KEYS[name], name, f"{act.verb}: {act.one}")
                for name, act in ACTS.items()
                if not statuses or any(status in FITS[name] for status in statuses)
            ]
        self.push_screen(
            Choice(self.house, "Which act?", acts), lambda name: self.act(name, target) if name is not None else None
        )

    def _statuses(self, target: Target) -> set[str]:
        """Return the statuses of what is acted on, as far as they are known."""
        if isinstance(self.view, RunScreen):
            return {self.view.head.status} if self.view.head is not None else set()
        if isinstance(self.view, RunList) and not target.where:
            return {head.status for head in self.view.heads if head.id in target.ids}
        return set()

    def act(self, action: str, target: Target) -> None:
        """Open the sheet of an act."""

        def done(said_so: str | None) -> None:
            if said_so is None:
                return
            undo = "" if target.letters else ACTS[action].undo
            self._undo = (undo, target) if undo else None
            self._pulse.again()
            self.look_now()
            self.tell(f"{said_so}{' · u takes it back' if undo else ''}")

        self.push_screen(ActSheet(self.house, action, target), done)

    def _undo_last(self) -> None:
        if self._undo is not None:
            self.act(*self._undo)

    def _send(self) -> None:
        target = self.view.target()
        if isinstance(self.view, EventList):
            self.push_screen(SendSheet(self.house, "", self.view.to_copy()), self._sent)
            return
        if len(target.ids) != 1:
            return
        name = self.view.waits_for() if isinstance(self.view, RunScreen) else ""
        self.push_screen(SendSheet(self.house, target.ids[0], name), self._sent)

    def _sent(self, said_so: str | None) -> None:
        if said_so is not None:
            self.tell(said_so)
            self.look_now()

    # The rest.

    def _copy(self, text: str) -> None:
        if text:
            self.copy_to_clipboard(printable(text))
            self.tell(f"copied: {text}")

    def _turn_theme(self) -> None:
        self.theme = "ansi-light" if self.theme == "ansi-dark" else "ansi-dark"

    def _turn_zone(self) -> None:
        self.house.zone = UTC if self.house.zone is not UTC else self._own_zone
        self.view.zone = self.house.zone
        self.tell("times are in UTC" if self.house.zone is UTC else "times are in your zone")
        self._enter(self.view)

    def _help(self) -> None:
        self.push_screen(Choice(self.house, "Keys", [(key, "", words) for key, words in _KEYS]))
