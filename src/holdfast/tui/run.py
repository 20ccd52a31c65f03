"""One run: why it is where it is, its timeline, steps, history, messages, children, and what is on record of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import tzinfo

from rich.text import Text

from holdfast.looking.about.runs import ChildList, EvidencePage, InboxPage
from holdfast.looking.about.timeline import CallRow, Timeline
from holdfast.looking.desk import Desk
from holdfast.looking.views import AuditPageView, EntryView, Head, RunView, StepView, Why
from holdfast.tui.drawing.bars import Scale
from holdfast.tui.drawing.lines import Row, clock, folded, joined, lasting, payload, said, status
from holdfast.tui.house import House
from holdfast.tui.view import Target, View, command_line

TABS = ("timeline", "steps", "history", "messages", "children", "record")
MOST_DRAWN = 5_000
"""A longer history is drawn from its newest thousand facts; the tab of the history has all."""
_PAGE = 1_000
_AT_LEAST = 5
"""A running run is read again at every fifth look though nothing was recorded: it may tell its progress."""
_MARKS = {"step": "", "sleep": "◷ ", "message": "◆ ", "child": "▸ ", "send": "→ ", "publish": "→ "}
_HELD_BACK = ("waiting", "skipped")


class RunScreen(View):
    """A run. Its row is looked at each second, and all the rest when that has changed."""

    title = "Run"
    hint = "tab part  [ ] neighbours  p pause  a acts  s send  f fold  esc back  ? keys"

    def __init__(self, zone: tzinfo | None, run_id: str, neighbours: Sequence[str] = ()) -> None:
        super().__init__(zone)
        self.run_id = run_id
        self.neighbours = list(neighbours)
        self.tab = "timeline"
        self.fold = True
        self.head: Head | None = None
        self.run: RunView | None = None
        self._why: Why | None = None
        self._drawn = Timeline()
        self._partial = False
        self._facts: list[EntryView] = []
        self._more: int | None = 0
        self._inbox: InboxPage | None = None
        self._children: ChildList | None = None
        self._audit: AuditPageView | None = None
        self._evidence: EvidencePage | None = None
        self._looks = 0
        self._read = ""

    # What is asked.

    async def look(self, house: House) -> None:
        await house.ask(self._ask)

    async def _ask(self, desk: Desk) -> None:
        page = await desk.heads(f"id:{json.dumps(self.run_id)}", limit=1, relative=True)
        head = next((head for head in page.items if head.id == self.run_id), None)
        if head is None:
            await desk.why(self.run_id)  # which says what is wrong with it
            return
        self.as_of, self._looks = page.as_of, self._looks + 1
        if self.head is not None and (head.reopened, head.generation) != (self.head.reopened, self.head.generation):
            self._drawn, self._facts, self._more = Timeline(), [], 0  # its history was cut
        # A run that is driven may change while its row does not: its facts are those of the turn in hand.
        driven = head.status in ("running", "compensating", "cancelling") and self._looks % _AT_LEAST == 0
        read = f"{head.updated_at} {head.status} {head.waiting_for}"
        self.head = head
        if read != self._read or driven or self.run is None:
            self.run = await desk.run(self.run_id, relative=True)
            await self._draw(desk, self.run.entries)
            self._why = await desk.why(self.run_id, relative=True)
            self._read = read
            changed = True
        else:
            changed = False
        if self.cursor is None and self.tab == "timeline":
            self.cursor = self._troubled()
        await self._ask_tab(desk, changed)

    def _troubled(self) -> str | None:
        """Return the call that the run waits for or failed at, the last one if there is none."""
        calls = self._drawn.rows()
        about = self._why.subject.get("step") if self._why is not None else None
        named = [call.path for call in calls if call.path == about]
        unfinished = [call.path for call in calls if call.status != "completed"]
        return next(iter([*named, *unfinished[-1:], *(call.path for call in calls[-1:])]), None)

    async def _draw(self, desk: Desk, entries: int) -> None:
        if not self._drawn.seq and entries > MOST_DRAWN:
            self._drawn.take((await desk.history(self.run_id, newest=True, limit=_PAGE)).items)
            self._partial = True
            return
        while True:
            page = await desk.history(self.run_id, after=self._drawn.seq, limit=_PAGE)
            self._drawn.take(page.items)
            if page.next is None:
                return

    async def _ask_tab(self, desk: Desk, changed: bool) -> None:
        if self.tab == "history" and (changed or self._wants_more()):
            after = self._facts[-1].seq if self._facts else 0
            page = await desk.history(self.run_id, after=after, limit=_PAGE)
            self._facts += page.items
            self._more = page.next
        elif self.tab == "messages":
            self._inbox = await desk.inbox(self.run_id)
        elif self.tab == "children":
            self._children = await desk.children(self.run_id, relative=True)
        elif self.tab == "record" and (changed or self._audit is None):
            self._audit = await desk.audit(target=self.run_id)
            self._evidence = await desk.evidence(self.run_id)

    def _wants_more(self) -> bool:
        """Whether the cursor has come near the end of the facts that were read."""
        near = self.cursor is not None and self.cursor in {str(entry.seq) for entry in self._facts[-_PAGE // 4 :]}
        return self._more is not None and (near or not self._facts)

    # What is shown.

    def turn(self, by: int) -> None:
        """Go to the next tab, or the one before."""
        self.tab, self.cursor = TABS[(TABS.index(self.tab) + by) % len(TABS)], None

    def neighbour(self, by: int) -> View | None:
        """Return the run before or after this one in the list that it was opened from."""
        if self.run_id not in self.neighbours:
            return None
        place = self.neighbours.index(self.run_id) + by
        if not 0 <= place < len(self.neighbours):
            return None
        other = RunScreen(self.zone, self.neighbours[place], self.neighbours)
        other.tab, other.fold = self.tab, self.fold
        return other

    def above(self, width: int) -> list[Text]:
        head, run = self.head, self.run
        if head is None:
            return [said(self.run_id, "bold")]
        steps = [step for step in run.steps if not step.compensation] if run is not None else []
        done = sum(step.status == "completed" for step in steps)
        title = joined(
            said(head.id, "bold"),
            status(head.status),
            f"{head.workflow} v{head.version}",
            joined("started ", clock(head.created_at, self.as_of, self.zone), gap=""),
            lasting(head.created_at, head.ended_at or self.as_of),
            f"{done:,} of {len(steps):,} steps" if steps else "",
        )
        lines = [title, *folded(head.why.sentence, width, 2), *self._helps(width), self._tabs()]
        return [*lines, *self._left_out(run)]

    def _left_out(self, run: RunView | None) -> list[Text]:
        """Say which facts of a long run the tab shows."""
        if run is None or not (run.partial if self.tab == "steps" else self._partial and self.tab == "timeline"):
            return []
        what = f"The {len(run.steps):,} steps that began in its newest facts"
        if self.tab == "timeline":
            what = f"The newest {_PAGE:,} of {run.entries:,} facts are drawn"
        return [said(f"{what}; history has all.", "dim")]

    def _helps(self, width: int) -> list[Text]:
        lines: list[Text] = []
        why = self._why
        if why is None:
            return lines
        if why.source is not None:
            lines.append(said(f"  {why.source.file.rpartition('/')[2]}:{why.source.line}  {why.source.text}", "cyan"))
        lines += [said(f"  {below.run}: {below.sentence}") for below in why.chain[:2]]
        helps = [help.command or help.say for help in why.help[:1]]
        return [*lines, *(said(f"  try: {help}", "dim") for help in helps)]

    def _tabs(self) -> Text:
        counts = {
            "steps": len(self.run.steps) if self.run is not None else 0,
            "history": self.run.entries if self.run is not None else 0,
            "messages": len(self._inbox.items) if self._inbox is not None else 0,
        }
        names = [
            said(f" {tab}{f' {counts[tab]:,}' if counts.get(tab) else ''} ", "reverse" if tab == self.tab else "")
            for tab in TABS
        ]
        return joined(*names, gap=" ")

    def rows(self, width: int) -> list[Row]:
        shown: dict[str, Callable[[int], list[Row]]] = {
            "timeline": self._timeline, "steps": self._steps, "history": self._history, "messages": self._messages,
            "children": self._children_rows, "record": self._record,
        }  # fmt: skip
        return shown[self.tab](width)

    def _timeline(self, width: int) -> list[Row]:
        calls = self._drawn.rows()
        self.titles, self.spare = ("CALL", "TOOK", ""), (1,)
        if not calls or self.head is None:
            return []
        names = [f"{'  ' * min(call.depth, 4)}{_MARKS.get(call.kind, f'{call.kind} ')}{call.name}" for call in calls]
        end = self.head.ended_at or self.as_of
        took = [lasting(call.begun, call.ended or (end if call.status != "completed" else None)) for call in calls]
        room = max(width - min(max(map(len, names)) + 2, 34) - max(4, *map(len, took)) - 4, 16)
        scale = Scale(calls, self.head.created_at, end, room, fold=self.fold)
        begin = clock(self.head.created_at, self.as_of, self.zone).plain
        self.titles = ("CALL", "TOOK", scale.axis(begin).plain)
        return [
            Row(
                call.path,
                (
                    joined(_mark(call.status), said(name), gap=" "),
                    said(lasted),
                    scale.draw(call, end),
                ),
            )
            for call, name, lasted in zip(calls, names, took, strict=True)
        ]

    def _steps(self, width: int) -> list[Row]:
        self.titles, self.spare = ("STEP", "STATUS", "ATTEMPTS", "STARTED", "TOOK", "RESULT OR ERROR"), (3, 4, 2)
        return [
            Row(
                step.path,
                (
                    said(f"{'undo ' if step.compensation else ''}{step.path}"),
                    status(step.status),
                    said(str(step.attempts)),
                    clock(step.started_at, self.as_of, self.zone),
                    said(self._took(step)),
                    said(_outcome(step), "red" if step.error is not None and step.status != "completed" else ""),
                ),
            )
            for step in (self.run.steps if self.run is not None else [])
        ]

    def _took(self, step: StepView) -> str:
        begun = step.status in ("running", "completed", "failed", "cancelled")
        return lasting(step.started_at, step.finished_at or self.as_of) if begun else ""

    def _history(self, width: int) -> list[Row]:
        self.titles, self.spare = ("SEQ", "AT", "KIND", "PATH", "DATA"), (1,)
        return [
            Row(
                str(entry.seq),
                (
                    said(str(entry.seq)),
                    clock(entry.at, self.as_of, self.zone),
                    said(entry.kind, "red" if "failed" in entry.kind or "lost" in entry.kind else ""),
                    said(entry.path),
                    said(payload(entry.data, 200) if entry.data not in ({}, [], None) else ""),
                ),
            )
            for entry in self._facts
        ]

    def _messages(self, width: int) -> list[Row]:
        self.titles, self.spare = ("STATE", "AT", "NAME", "PAYLOAD, OR WHO SENT IT"), (1,)
        unread = self._inbox.items if self._inbox is not None else []
        rows = [
            Row(
                f"unread {message.n}",
                (
                    said("unread", "yellow"),
                    clock(message.sent_at, self.as_of, self.zone),
                    said(message.name),
                    said(payload(message.payload, 300)),
                ),
            )
            for message in unread
        ]
        for call in self._drawn.rows():
            if call.kind in ("message", "send", "publish"):
                state = {"message": "taken" if call.marks else "waits", "send": "sent"}.get(call.kind, "published")
                at = call.marks[0][0] if call.marks else call.begun
                shown = (said(state), clock(at, self.as_of, self.zone), said(call.name), said(call.note))
                rows.append(Row(call.path, shown))
        return rows

    def _children_rows(self, width: int) -> list[Row]:
        self.titles, self.spare = ("STATUS", "RUN", "WORKFLOW", "NOW, AND WHY"), (2,)
        children = self._children.items if self._children is not None else []
        return [
            Row(
                child.head.id,
                (
                    status(child.head.status),
                    said(child.head.id),
                    said(child.head.workflow),
                    said(child.head.why.sentence),
                ),
            )
            for child in children
        ]

    def _record(self, width: int) -> list[Row]:
        self.titles, self.spare = ("AT", "WHO", "WHAT", "DETAIL"), (1,)
        rows = [
            Row(
                f"act {act.n}",
                (
                    clock(act.at, self.as_of, self.zone),
                    said(act.actor),
                    said(act.action),
                    said(payload(act.detail, 300) if act.detail else ""),
                ),
            )
            for act in (self._audit.items if self._audit is not None else [])
        ]
        rows += [
            Row(
                f"evidence {each.n}",
                (
                    clock(each.recorded_at, self.as_of, self.zone),
                    said("evidence", "cyan"),
                    said(each.kind),
                    said(payload(each.data, 300)),
                ),
            )
            for each in (self._evidence.items if self._evidence is not None else [])
        ]
        return rows

    def below(self, width: int) -> list[Text]:
        if self.tab in ("timeline", "steps"):
            return self._told(width)
        if self.tab == "history":
            fact = next((entry for entry in self._facts if str(entry.seq) == self.cursor), None)
            return folded(payload(fact.data), width, 4) if fact is not None else []
        row = next((row for row in self.rows(width) if row.key == self.cursor), None)
        return folded(row.cells[-1].plain, width, 4) if row is not None else []

    def _told(self, width: int) -> list[Text]:
        """Return what is known of the call under the cursor."""
        call = next((call for call in self._drawn.rows() if call.path == self.cursor), None)
        steps = self.run.steps if self.run is not None else []
        step = next((step for step in steps if step.path == self.cursor), None)
        lines: list[Text] = []
        if call is not None:
            lines.append(self._line_of(call))
            tries = [bar for bar in call.bars if bar.attempt]
            for bar in tries[-2:] if len(tries) > 1 or call.error else []:
                ended = bar.state if bar.state != "done" else "completed"
                begun = clock(bar.begin, self.as_of, self.zone).plain
                took = lasting(bar.begin, bar.end or self.as_of)
                lines.append(said(f"  attempt {bar.attempt}  {begun}  {took}  {ended}  {bar.error}"))
        if step is not None and step.progress is not None and step.status == "running":
            lines.append(said(f"  progress {payload(step.progress, 200)}"))
        if step is not None and step.status == "completed":
            lines += folded(f"  result {payload(step.result, 400)}", width, 2)
        return lines[:4]

    def _line_of(self, call: CallRow) -> Text:
        again = ""
        if call.next is not None and call.next > self.as_of:
            verb = "tried again in" if call.status in _HELD_BACK and call.kind == "step" else "until in"
            again = f"{verb} {lasting(self.as_of, call.next)}"
        tries = f"{call.attempts} attempts" if call.attempts > 1 else ""
        return joined(said(call.path, "bold"), status(call.status), tries, again, call.note)

    def empty(self) -> str:
        if self.run is None:
            return "looking ..."
        return {
            "timeline": "It has called nothing yet.",
            "steps": "It has called no step yet. await ctx.step(activity, ...) does.",
            "messages": "No message is unread. s sends one; the code takes it by ctx.receive(name).",
            "children": "It has no children. ctx.child(workflow, ...) starts one.",
            "record": "Nothing was done to it by a person, and it put nothing on record.",
        }.get(self.tab, "looking ...")

    def opened(self) -> View | None:
        if self.tab == "children" and self.cursor:
            items = self._children.items if self._children is not None else []
            return RunScreen(self.zone, self.cursor, [child.head.id for child in items])
        call = next((call for call in self._drawn.rows() if call.path == self.cursor and call.kind == "child"), None)
        return RunScreen(self.zone, call.name) if self.tab == "timeline" and call is not None else None

    def waits_for(self) -> str:
        """Return the name of a message that it waits for."""
        waiting = [call for call in self._drawn.rows() if call.kind == "message" and call.status == "waiting"]
        return waiting[0].name.partition(" or ")[0] if waiting else ""

    def target(self) -> Target:
        return Target(ids=(self.run_id,))

    def command(self) -> str:
        word = {"timeline": "why", "steps": "steps", "history": "history", "messages": "inbox", "children": "children"}
        if self.tab == "record":
            return command_line("holdfast", "audit", "list", "--target", self.run_id)
        return command_line("holdfast", word[self.tab], self.run_id)

    def to_copy(self) -> str:
        return self.run_id


def _mark(word: str) -> Text:
    return Text(status(word).plain[:1], status(word).style, end="")


def _outcome(step: StepView) -> str:
    if step.error is not None and step.status != "completed":
        return f"{step.error.type.rpartition('.')[2]}: {step.error.message}"
    return payload(step.result, 200) if step.status == "completed" else step.reason
