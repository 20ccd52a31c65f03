"""Sheets over the screen: an act with its dry run and reason, a message to send, a choice of acts, the keys."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input

from holdfast.errors import BadInput, HoldfastError
from holdfast.looking.acts import Options
from holdfast.looking.desk import Desk
from holdfast.looking.views import Acted, BulkProgress, SelectionView
from holdfast.tui.acts import ACTS, LETTER_ACTS, MANY_AT_ONCE, held_act, planned, typed
from holdfast.tui.drawing.lines import folded, said
from holdfast.tui.drawing.widgets import TextLines
from holdfast.tui.house import House
from holdfast.tui.view import Target, command_line

_DURATION = re.compile(r"(\d+) ?(s|min|m|h|d)")
_UNITS = {"s": "seconds", "min": "minutes", "m": "minutes", "h": "hours", "d": "days"}
_LABELS = {"for": "for how long, as 30min (or until it is resumed)", "from": "from which step (or from its beginning)"}


class Sheet(ModalScreen[str | None]):
    """Something that is asked of a person; it ends with what came of it, None if nothing was done."""

    AUTO_FOCUS = ""

    def __init__(self, house: House) -> None:
        super().__init__()
        self.house = house
        self.busy = False
        self._over = False

    def width(self) -> int:
        """How many columns there are for text."""
        return max(self.app.size.width - 4, 20)

    def lines(self, name: str, text: str, style: str = "", most: int = 4) -> None:
        """Write a text of the sheet."""
        self.query_one(f"#{name}", TextLines).show(folded(text, self.width(), most, style) if text else [])

    def on_key(self, event: events.Key) -> None:
        """Leave it with esc; what is under way is stopped."""
        if event.key == "escape":
            event.stop()
            self.leave()

    def end(self, outcome: str | None) -> None:
        """Close it, once: keys may come faster than it goes."""
        if self.is_current and not self._over:
            self._over = True
            self.dismiss(outcome)

    def leave(self) -> None:
        """Close it, and do nothing."""
        self.end(None)


class ActSheet(Sheet):
    """An act: what will happen, to how many, why; enter does it."""

    def __init__(self, house: House, action: str, target: Target) -> None:
        super().__init__(house)
        self._action = action
        self._act = (LETTER_ACTS if target.letters else ACTS)[action]
        self._target = target
        self._plan: SelectionView | None = None
        self._stop = asyncio.Event()

    @property
    def _many(self) -> bool:
        return bool(self._target.where) or len(self._target.ids or self._target.letters) > 1

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield TextLines(id="title")
            yield TextLines(id="means")
            yield TextLines(id="plan")
            needed = self._many or self._action == "terminate"
            yield TextLines([said(f"reason{' (needed)' if needed else ''}, for the audit trail:", "dim")])
            yield Input(self.house.reason, id="reason", select_on_focus=False)
            if self._act.field in _LABELS and not (self._many and self._act.field == "from"):
                yield TextLines([said(f"{_LABELS[self._act.field]}:", "dim")])
                yield Input(id="more")
            elif self._act.field == "undo":
                yield TextLines([said("undo what was done, too? yes or no:", "dim")])
                yield Input("no", id="more")
            yield Input(id="number", placeholder="their number, to be sure")
            yield TextLines(id="command")
            yield TextLines(id="outcome")
            yield TextLines([said("enter does it · tab next field · esc leaves it", "dim")], id="keys")

    def on_mount(self) -> None:
        """Ask what it would come to."""
        target = self._target
        about = target.where or (target.ids or target.letters)[0]
        many = f"{len(target.ids or target.letters):,} {'letters' if target.letters else 'runs'}"
        about = f"all that match {about}" if target.where else many if self._many else about
        self.lines("title", f"{self._act.verb} {about}", "bold")
        self.lines("means", self._act.many if self._many else self._act.one)
        self.query_one("#number", Input).display = False
        self.set_focus(self.query_one("#reason", Input))
        self._write_command()
        if not target.letters:
            self.lines("plan", "looking what it would come to ...", "dim")
            self.run_worker(self._ask(), exit_on_error=False)

    async def _ask(self) -> None:
        """Make the dry run, and tell what it found."""
        target = self._target
        try:
            plan = await self.house.ask(lambda desk: desk.select(self._action, target.where, ids=target.ids))
            said_so = planned(plan)
            if not self._many and self._action in ("retry", "rerun") and plan.can:
                options = Options(by=self.house.by, dry_run=True)
                acted = await self.house.act(lambda desk: desk.act(self._action, target.ids[0], options))
                again = f"; again: {', '.join(acted.steps)}" if acted.steps else ""
                said_so = f"It {acted.said}{again}."
        except (HoldfastError, OSError) as error:
            self.lines("plan", f"it cannot be told: {error}", "red")
            return
        self._plan = plan
        self.lines("plan", said_so, "green" if plan.can else "yellow")
        self.query_one("#number", Input).display = self._action == "terminate" and plan.can > MANY_AT_ONCE

    def on_input_changed(self, event: Input.Changed) -> None:
        """Keep the command line what would be done."""
        self._write_command()

    def _write_command(self) -> None:
        more = self._more()
        if self._act.field == "undo":
            more = more if more.lower() in ("y", "yes") else ""
        self.lines("command", typed(self._action, self._target, self._value("reason"), more), "cyan", 2)

    def _value(self, name: str) -> str:
        found = self.query(f"#{name}").results(Input)
        return next((each.value.strip() for each in found), "")

    def _more(self) -> str:
        return self._value("more")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Do it, if it can be done."""
        event.stop()
        problem = self._problem()
        if self.busy or problem:
            self.lines("outcome", problem, "yellow")
            return
        self.busy, self.house.reason = True, self._value("reason")
        self.run_worker(self._do(), exit_on_error=False)

    def _problem(self) -> str:
        """Return what is missing, if anything is."""
        plan, reason = self._plan, self._value("reason")
        if not self._target.letters and plan is None:
            return "what it would come to is not known yet"
        if plan is not None and not plan.can:
            return "there is nothing that it could be done to"
        if (self._many or self._action == "terminate") and not reason:
            return "say why: it is on record"
        if self._action == "terminate" and plan is not None and plan.can > MANY_AT_ONCE:
            return "" if self._value("number") == str(plan.can) else f"type {plan.can} to be sure"
        return ""

    def _options(self) -> Options:
        more, field = self._more(), self._act.field
        return Options(
            by=self.house.by,
            reason=self._value("reason"),
            compensate=field == "undo" and more.lower() in ("y", "yes"),
            duration=duration_of(more) if field == "for" and more else None,
            from_step=more if field == "from" and more else None,
        )

    async def _do(self) -> None:
        self.lines("outcome", f"{self._act.verb} ...")
        try:
            options = self._options()
            if self._target.letters:
                said_so = await self.house.act(lambda desk: self._letters(desk, options))
            elif self._many and self._plan is not None:
                plan = self._plan
                said_so = await self.house.act(lambda desk: self._bulk(desk, plan, options))
            else:
                run_id = self._target.ids[0]
                said_so = self._told(await self.house.act(lambda desk: desk.act(self._action, run_id, options)))
        except (HoldfastError, OSError) as error:
            self.busy = False
            self.lines("outcome", str(error), "red")
            return
        self.end(said_so)

    def _told(self, acted: Acted) -> str:
        if not acted.changed:
            return f"{acted.run}: nothing changed: {acted.said or 'it is not in a state for that'}"
        return f"{acted.run} is {self._act.past}{f', {acted.said}' if acted.said else ''}"

    async def _bulk(self, desk: Desk, plan: SelectionView, options: Options) -> str:
        done = BulkProgress(action=self._action, changed=0, finished=True)
        async with aclosing(desk.bulk(plan.selection, options)) as pages:
            async for done in pages:
                self.lines("outcome", f"{done.changed:,} of {plan.can:,} {self._act.past}; esc stops")
                if self._stop.is_set():
                    break
        failed = sum(done.failed.values())
        wrong = "".join(f"; {run_id}: {error}" for run_id, error in list(done.errors.items())[:1])
        stopped, short = "" if done.finished else "stopped: ", f", {failed:,} failed" if failed else ""
        return f"{stopped}{done.changed:,} of {plan.can:,} {self._act.past}{short}{wrong}"

    async def _letters(self, desk: Desk, options: Options) -> str:
        done, wrong = 0, ""
        acts: dict[str, Any] = {
            "replay": desk.replay, "acknowledge": desk.acknowledge, "remove": desk.remove_letter,
        }  # fmt: skip
        for letter in self._target.letters:
            try:
                done += (await acts[self._action](letter, by=options.by, reason=options.reason)).changed
            except BadInput as error:
                wrong = f"; {letter}: {error}"
            self.lines("outcome", f"{done:,} of {len(self._target.letters):,} {self._act.past}; esc stops")
            if self._stop.is_set():
                break
        return f"{done:,} of {len(self._target.letters):,} {self._act.past}{wrong}"

    def leave(self) -> None:
        if self.busy:
            self._stop.set()
        else:
            self.end(None)


class SendSheet(Sheet):
    """A message to a run, or without one an event for all: its name and its payload."""

    def __init__(self, house: House, run_id: str, name: str = "") -> None:
        super().__init__(house)
        self._run_id = run_id
        self._message = name

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            title = f"Send {self._run_id} a message" if self._run_id else "Publish an event"
            yield TextLines([said(title, "bold")])
            yield TextLines([said("its name:", "dim")])
            yield Input(self._message, id="name", select_on_focus=False)
            yield TextLines([said("its payload, in JSON (or nothing):", "dim")])
            yield Input(id="payload")
            yield TextLines([said("reason, for the audit trail:", "dim")])
            yield Input(self.house.reason, id="reason", select_on_focus=False)
            yield TextLines(id="command")
            yield TextLines(id="outcome")
            yield TextLines([said("enter sends it · tab next field · esc leaves it", "dim")])

    def on_mount(self) -> None:
        """Begin with what is missing."""
        self.set_focus(self.query_one("#payload" if self._message else "#name", Input))

    def _values(self) -> tuple[str, str, str]:
        name, payload, reason = (
            self.query_one(f"#{each}", Input).value.strip() for each in ("name", "payload", "reason")
        )
        return name, payload, reason

    def on_input_changed(self, event: Input.Changed) -> None:
        """Keep the command line what would be done."""
        name, payload, reason = self._values()
        words = [name or "NAME", payload, *(["--reason", reason] if reason else [])]
        verb = ("send", self._run_id) if self._run_id else ("publish",)
        self.lines("command", command_line("holdfast", *verb, *words), "cyan", 2)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Send it."""
        event.stop()
        name, text, reason = self._values()
        if self.busy or not name:
            self.lines("outcome", f"say which {'message' if self._run_id else 'event'}", "yellow")
            return
        try:
            payload = json.loads(text) if text else None
        except json.JSONDecodeError as error:
            wrong = f'the payload is no JSON: {error.msg} at position {error.pos}; a text is written "so"'
            self.lines("outcome", wrong, "yellow")
            return
        self.busy = True
        self.run_worker(self._send(name, payload, reason), exit_on_error=False)

    async def _send(self, name: str, payload: Any, reason: str) -> None:
        why = {"by": self.house.by, "reason": reason}
        self.house.reason = reason

        async def send(desk: Desk) -> str:
            if self._run_id:
                await desk.send(self._run_id, name, payload, **why)
                return f"sent {name} to {self._run_id}"
            return (await desk.publish(name, payload, **why)).said

        try:
            said_so = await self.house.act(send)
        except (HoldfastError, OSError) as error:
            self.busy = False
            self.lines("outcome", str(error), "red")
            return
        self.end(said_so)


class HoldSheet(Sheet):
    """Pause a queue, a limit or a schedule as a whole, or let it go on; trigger a schedule."""

    def __init__(self, house: House, verb: str, kind: str, name: str) -> None:
        super().__init__(house)
        self._verb = verb
        self._kind: Any = kind
        self._about = name
        self._past, self._means = held_act(verb, kind)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield TextLines([said(f"{self._verb.capitalize()} {self._kind} {self._about}", "bold")])
            yield TextLines(folded(self._means, self.width(), 3))
            yield TextLines([said("reason, for the audit trail:", "dim")])
            yield Input(self.house.reason, id="reason", select_on_focus=False)
            yield TextLines(id="command")
            yield TextLines(id="outcome")
            yield TextLines([said("enter does it · esc leaves it", "dim")])

    def on_mount(self) -> None:
        """Begin with the reason."""
        self.set_focus(self.query_one("#reason", Input))
        self._write_command()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Keep the command line what would be done."""
        self._write_command()

    def _write_command(self) -> None:
        reason = self.query_one("#reason", Input).value.strip()
        words = [self._verb, f"--{self._kind}", self._about]
        if self._kind == "schedule":
            words = ["schedules", self._verb, self._about]
        self.lines("command", command_line("holdfast", *words, *(["--reason", reason] if reason else [])), "cyan", 2)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Do it."""
        event.stop()
        if not self.busy:
            self.busy, self.house.reason = True, self.query_one("#reason", Input).value.strip()
            self.run_worker(self._do(), exit_on_error=False)

    async def _do(self) -> None:
        async def act(desk: Desk) -> Acted:
            why = {"by": self.house.by, "reason": self.house.reason}
            if self._kind == "schedule":
                on_schedule = {
                    "pause": desk.pause_schedule, "resume": desk.resume_schedule, "trigger": desk.trigger_schedule,
                }  # fmt: skip
                return await on_schedule[self._verb](self._about, **why)
            do = desk.resume_work if self._verb == "resume" else desk.pause_work
            return await do(self._kind, self._about, **why)

        try:
            acted = await self.house.act(act)
        except (HoldfastError, OSError) as error:
            self.busy = False
            self.lines("outcome", str(error), "red")
            return
        self.end(f"{acted.run} is {self._past}" if acted.changed else f"{acted.run}: {acted.said}")


class Choice(Sheet):
    """Some lines, each with a key; it ends with the name of the one that was chosen."""

    def __init__(self, house: House, title: str, choices: Sequence[tuple[str, str, str]]) -> None:
        super().__init__(house)
        self._title = title
        self._choices = {key: name for key, name, _ in choices}
        self._words = [(key, words) for key, _, words in choices]

    def _shown(self, width: int) -> Iterator[Text]:
        """Yield the choices, each broken at words where it is longer than a line."""
        wide = max((len(key) for key, _ in self._words), default=0)
        for key, words in self._words:
            first, *rest = folded(words, width - wide - 6, 3)
            yield Text.assemble((f" {key} ", "reverse"), " " * (wide - len(key) + 2), first, end="", no_wrap=True)
            yield from (Text.assemble(" " * (wide + 4), line, end="", no_wrap=True) for line in rest)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield TextLines([said(self._title, "bold")])
            yield TextLines([*self._shown(self.app.size.width)])
            yield TextLines([said("esc leaves it", "dim")])

    def on_key(self, event: events.Key) -> None:
        event.stop()
        key = event.character or event.key
        if key in self._choices:
            self.end(self._choices[key])
        elif event.key in ("escape", "q"):
            self.end(None)


def duration_of(text: str) -> timedelta:
    """Return a duration that was given as a number and a unit.

    Raises:
        BadInput: it is none.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise BadInput(f"{text}: write a number and s, min, h or d, as in 30min")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
