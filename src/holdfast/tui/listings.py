"""What else there is of a house: schedules, events, versions of workflows, and what was done."""

from __future__ import annotations

import json
from datetime import datetime, tzinfo

from rich.text import Text

from holdfast.looking.about.checks import CheckView
from holdfast.looking.about.past import PURGED, PastTick
from holdfast.looking.about.versions import VersionView
from holdfast.looking.desk import Desk
from holdfast.looking.views import AuditView, EventNameView, EventPage, ScheduleView
from holdfast.schedules.preview import TickPreview
from holdfast.tui.drawing.lines import Row, clock, counted, folded, joined, payload, said, status
from holdfast.tui.house import House
from holdfast.tui.run import RunScreen
from holdfast.tui.runs import RunList
from holdfast.tui.view import Target, View, command_line

_ACTS = 100
_NEXT = 5
_PAST = 50
_WAITERS = 3
_ABOUT_RUNS = frozenset(
    {"start", "send", "cancel", "pause", "resume", "retry", "rerun", "recover", "nudge", "terminate", "set attributes"}
)


class Listing(View):
    """A list that is read as a whole."""

    hint = "enter open  y id  c copy  g go  ? keys  q quit"

    def __init__(self, zone: tzinfo | None) -> None:
        super().__init__(zone)
        self._known = False

    async def look(self, house: House) -> None:
        async def ask(desk: Desk) -> None:
            self.as_of = (await desk.heads(limit=1)).as_of
            await self._ask(desk)

        await house.ask(ask)
        self._known = True

    async def _ask(self, desk: Desk) -> None:
        raise NotImplementedError

    def empty(self) -> str:
        return self._nothing if self._known else "looking ..."

    _nothing = ""

    def _at(self, moment: datetime | None) -> Text:
        return clock(moment, self.as_of, self.zone)


class ScheduleList(Listing):
    """What the clock starts."""

    title = "Schedules"
    titles = ("STATE", "SCHEDULE", "NEXT", "WORKFLOW", "LAST RUN", "WHEN")
    spare = (4, 3)
    wants = 20
    hint = "enter its ticks and runs  p pause or resume  a acts  y id  c copy  ? keys"
    _nothing = 'There is no schedule. await engine.schedules.put("nightly", workflow, cron="30 2 * * *") makes one.'

    def __init__(self, zone: tzinfo | None) -> None:
        super().__init__(zone)
        self.schedules: list[ScheduleView] = []

    async def _ask(self, desk: Desk) -> None:
        self.schedules = await desk.schedules()

    def rows(self, width: int) -> list[Row]:
        return [
            Row(
                each.id,
                (
                    status("paused") if each.paused else said("✗ wrong", "red") if each.wrong else said("· waits"),
                    said(each.id),
                    said("") if each.paused else self._at(each.next_at) if each.next_at else said("never again", "dim"),
                    said(each.workflow),
                    status(each.last_status) if each.last_status else said("none yet", "dim"),
                    said(each.when),
                ),
            )
            for each in self.schedules
        ]

    def _under_cursor(self) -> ScheduleView | None:
        return next((each for each in self.schedules if each.id == self.cursor), None)

    def below(self, width: int) -> list[Text]:
        each = self._under_cursor()
        if each is None:
            return []
        told = joined(
            f"last {each.last_run}" if each.last_run else "it has started no run yet",
            f"if that is open: {each.overlap}" if each.overlap else "",
            f"missed ticks: {each.catch_up}" if each.catch_up else "",
            joined("until ", self._at(each.until), gap="") if each.until else "",
        )
        return [told, *(folded(each.wrong, width, 3, "red") if each.wrong else [])]

    def held(self) -> tuple[str, str, bool] | None:
        each = self._under_cursor()
        return ("schedule", each.id, each.paused) if each is not None else None

    def opened(self) -> View | None:
        each = self._under_cursor()
        return ScheduleScreen(self.zone, each.id) if each is not None else None

    def command(self) -> str:
        return "holdfast schedules list"


class ScheduleScreen(Listing):
    """One schedule: its next ticks in both zones, and what became of its last ones."""

    title = "Schedule"
    wants = 20
    hint = "enter its run  p pause or resume  a acts  y id  c copy  esc back  ? keys"

    def __init__(self, zone: tzinfo | None, schedule: str) -> None:
        super().__init__(zone)
        self.id = schedule
        self._schedule: ScheduleView | None = None
        self._next: list[TickPreview] = []
        self._past: list[PastTick] = []

    async def _ask(self, desk: Desk) -> None:
        self._schedule = next((each for each in await desk.schedules() if each.id == self.id), None)
        if self._schedule is None or not self._schedule.wrong:
            self._next = await desk.preview(self.id, _NEXT)  # which says so if there is no such schedule any more
            self._past = await desk.past_ticks(self.id, n=_PAST)

    def above(self, width: int) -> list[Text]:
        each = self._schedule
        if each is None:
            return [said(self.id, "bold")]
        title = joined(
            said(each.id, "bold"), status("paused") if each.paused else "", each.when, each.workflow,
            f"if the last is open: {each.overlap}", f"missed: {each.catch_up}",
        )  # fmt: skip
        return [title, *(folded(each.wrong, width, 3, "red") if each.wrong else [])]

    def rows(self, width: int) -> list[Row]:
        paused = self._schedule is not None and self._schedule.paused
        ticks: list[TickPreview | PastTick] = [*self._next, *self._past]
        elsewhere = any(tick.local.utcoffset() != tick.at.astimezone(self.zone).utcoffset() for tick in ticks)
        self.titles = ("STATE", "HERE", *(["IN ITS ZONE"] if elsewhere else []), "RUN, OR WHY THERE IS NONE")

        def row(key: str, state: Text, tick: TickPreview | PastTick, told: Text) -> Row:
            there = [said(f"{tick.local:%Y-%m-%d %H:%M %z}")] if elsewhere else []
            return Row(f"{key} {tick.at.isoformat()}", (state, self._at(tick.at), *there, told))

        ahead = said("‖ held back", "yellow") if paused else said("· next")
        none = said("· no run", "yellow")
        return [
            *(row("next", ahead, tick, said(tick.note, "yellow")) for tick in self._next),
            *(
                row("past", status(tick.status) if tick.status else none, tick, said(tick.note or tick.run))
                for tick in reversed(self._past)
            ),
        ]

    def _tick(self) -> PastTick | None:
        return next((tick for tick in self._past if f"past {tick.at.isoformat()}" == self.cursor), None)

    def below(self, width: int) -> list[Text]:
        ahead = next((tick for tick in self._next if f"next {tick.at.isoformat()}" == self.cursor), None)
        past = self._tick()
        if ahead is not None and ahead.begins_at != ahead.at:
            return [joined("begins ", self._at(ahead.begins_at), gap=""), *folded(ahead.note, width, 3)]
        note = ahead.note if ahead is not None else past.note or past.run if past is not None else ""
        return folded(note, width, 3)

    def held(self) -> tuple[str, str, bool] | None:
        return ("schedule", self.id, self._schedule.paused) if self._schedule is not None else None

    def opened(self) -> View | None:
        tick = self._tick()
        runs = [each.run for each in reversed(self._past) if each.status not in ("", PURGED)]
        return RunScreen(self.zone, tick.run, runs) if tick is not None and tick.run in runs else None

    def command(self) -> str:
        return command_line("holdfast", "schedules", "show", self.id)

    def to_copy(self) -> str:
        tick = self._tick()
        return tick.run if tick is not None and tick.status else self.id


class EventList(Listing):
    """Events by name: what is queued, and which runs wait."""

    title = "Events"
    titles = ("NAME", "QUEUED", "OLDEST", "RUNS WAIT", "SINCE", "EACH IS GIVEN")
    spare = (2, 4)
    hint = "enter run that waits  s publish  y name  c copy  g go  ? keys  q quit"
    _nothing = "No event is queued, and no run waits for one. ctx.receive_event(name) waits."

    def __init__(self, zone: tzinfo | None) -> None:
        super().__init__(zone)
        self.names: list[EventNameView] = []
        self._of: tuple[str, EventPage] | None = None

    async def _ask(self, desk: Desk) -> None:
        self.names = await desk.event_names()
        name = self.cursor or next((each.name for each in self.names), "")
        self._of = (name, await desk.events(name, limit=_WAITERS)) if name else None

    def rows(self, width: int) -> list[Row]:
        return [
            Row(
                each.name,
                (
                    said(each.name),
                    said(f"{each.queued:,}"),
                    self._at(each.oldest),
                    said(f"{each.waiting:,}"),
                    self._at(each.since),
                    said(each.rule or "by default to the run that waits longest"),
                ),
            )
            for each in self.names
        ]

    def below(self, width: int) -> list[Text]:
        if self._of is None or self._of[0] != self.cursor:
            return []
        page = self._of[1]
        waits = [joined(f"{each.run} waits since ", self._at(each.since), gap="") for each in page.waiting[:_WAITERS]]
        queued = [joined(self._at(each.at), payload(each.payload, 200)) for each in page.queued[:_WAITERS]]
        return [*waits, *queued]

    def opened(self) -> View | None:
        waiting = self._of[1].waiting if self._of is not None and self._of[0] == self.cursor else []
        return RunScreen(self.zone, waiting[0].run, [each.run for each in waiting]) if waiting else None

    def command(self) -> str:
        return "holdfast events"


class VersionList(Listing):
    """Versions of workflows: open runs, and who has the code."""

    title = "Deploys"
    titles = ("WORKFLOW", "VERSION", "OPEN RUNS", "WORKERS", "CODE")
    wants = 10
    _nothing = "No workflow has runs, and no worker has one."

    def __init__(self, zone: tzinfo | None) -> None:
        super().__init__(zone)
        self.versions: list[VersionView] = []
        self.checks: list[CheckView] = []

    async def _ask(self, desk: Desk) -> None:
        self.versions = await desk.versions()
        self.checks = await desk.checks(limit=1)

    def above(self, width: int) -> list[Text]:
        if not self.checks:
            return (
                [said("no check before a deploy is on record: holdfast check --record", "dim")] if self._known else []
            )
        last = self.checks[0]
        bad = last.runs - last.fit
        said_so = said(f"{bad:,} would be blocked" if bad else "all fit", "red" if bad else "green")
        return [joined("last check ", self._at(last.at), f" by {last.by}: {last.runs:,} open runs, ", said_so, gap="")]

    def rows(self, width: int) -> list[Row]:
        return [
            Row(
                f"{each.workflow}\n{each.version}",
                (
                    said(each.workflow),
                    said(each.version or "not known yet"),
                    said(counted(each.open)),
                    said(f"{each.workers:,}") if each.workers or not each.open.n else said("■ none", "bold red"),
                    said(" ".join(print[:10] for print in each.fingerprints)),
                ),
            )
            for each in self.versions
        ]

    def below(self, width: int) -> list[Text]:
        each = self._under_cursor()
        if each is None or len(each.fingerprints) < 2:
            return []
        words = "Workers have different code of it: a rollout is under way, or it changed without a version."
        return folded(words, width, 2, "yellow")

    def _under_cursor(self) -> VersionView | None:
        return next((each for each in self.versions if f"{each.workflow}\n{each.version}" == self.cursor), None)

    def opened(self) -> View | None:
        each = self._under_cursor()
        if each is None:
            return None
        words = [f"workflow:{json.dumps(each.workflow)}", "is:open"]
        return RunList(
            self.zone, " ".join([*words, *([f"version:{json.dumps(each.version)}"] if each.version else [])])
        )

    def command(self) -> str:
        return "holdfast check"

    def to_copy(self) -> str:
        return (self.cursor or "").partition("\n")[0]


class AuditList(Listing):
    """What was done, and by whom, newest first."""

    title = "Audit"
    titles = ("AT", "WHO", "WHAT", "TO WHAT", "WHY, AND MORE")
    wants = 24
    _nothing = "Nothing was done by a person yet."

    def __init__(self, zone: tzinfo | None) -> None:
        super().__init__(zone)
        self.acts: list[AuditView] = []

    async def _ask(self, desk: Desk) -> None:
        self.acts = (await desk.audit(limit=_ACTS)).items

    def rows(self, width: int) -> list[Row]:
        return [
            Row(
                str(act.n),
                (self._at(act.at), said(act.actor), said(act.action), said(act.target), said(_told(act))),
            )
            for act in self.acts
        ]

    def _under_cursor(self) -> AuditView | None:
        return next((act for act in self.acts if str(act.n) == self.cursor), None)

    def below(self, width: int) -> list[Text]:
        act = self._under_cursor()
        return folded(_told(act), width, 4) if act is not None else []

    def opened(self) -> View | None:
        act = self._under_cursor()
        about_run = act is not None and act.action in _ABOUT_RUNS and act.target
        return RunScreen(self.zone, act.target) if act is not None and about_run else None

    def target(self) -> Target:
        return Target()

    def command(self) -> str:
        return command_line("holdfast", "audit", "list")

    def to_copy(self) -> str:
        act = self._under_cursor()
        return act.target if act is not None else ""


def _told(act: AuditView) -> str:
    """Return why something was done, and what else is known of it."""
    detail = act.detail if isinstance(act.detail, dict) else {"more": act.detail} if act.detail else {}
    more = {name: value for name, value in detail.items() if name != "reason" and value not in (None, "")}
    return " · ".join(
        [
            *([str(detail["reason"])] if detail.get("reason") else []),
            *(f"{name} {value if isinstance(value, str) else payload(value, 200)}" for name, value in more.items()),
        ]
    )
