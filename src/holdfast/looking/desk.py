"""The desk: everything that a face can show or do is one of its methods."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, TypedDict, Unpack

from holdfast.looking.acting.desk import Acts
from holdfast.looking.views import (
    Acted,
    AuditPageView,
    BulkProgress,
    Count,
    EventNameView,
    EventPage,
    HeldBackView,
    HistoryPage,
    LetterDetail,
    LetterGroup,
    LetterView,
    Page,
    QueueView,
    ResultView,
    RunView,
    ScheduleView,
    SelectionView,
    SourceLine,
    StatusCount,
    StepList,
    VerdictView,
    Why,
    WorkerView,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from holdfast.histories.recorded import RecordedRun
    from holdfast.looking.about.arguments import ArgumentsView
    from holdfast.looking.about.chain import ChainPage
    from holdfast.looking.about.checks import CheckView, MisfitView
    from holdfast.looking.about.figures import BarsView, FiguresView
    from holdfast.looking.about.frames import FrameList
    from holdfast.looking.about.graph import GraphView, RunGraphView
    from holdfast.looking.about.inputs import InputView
    from holdfast.looking.about.past import PastTick
    from holdfast.looking.about.progress import ProgressView
    from holdfast.looking.about.runs import ChildList, EvidencePage, InboxPage
    from holdfast.looking.about.state import StateView
    from holdfast.looking.about.suggesting import Suggestions
    from holdfast.looking.about.timeline import CallList, MomentList
    from holdfast.looking.about.versions import VersionView
    from holdfast.looking.acting.limits import LimitView
    from holdfast.looking.acts import Options
    from holdfast.looking.bulk import Selection
    from holdfast.looking.database import DatabaseView, StoreView
    from holdfast.looking.views import HouseFinding
    from holdfast.schedules.preview import TickPreview


class AuditAsked(TypedDict, total=False):
    """Which rows of the audit trail; all of them by itself."""

    actor: str | None
    action: str | None
    target: str | None
    since: datetime | None
    until: datetime | None
    limit: int
    before: int | None


class SpanAsked(TypedDict, total=False):
    """Of which time, and of which workflow; of the last day and all of them by itself."""

    since: datetime | None
    until: datetime | None
    workflow: str | None


class FiguresAsked(SpanAsked, total=False):
    """Which figures; by step by itself."""

    last: timedelta
    by: str


class Desk(Acts):
    """One interface for every face; what one face can do, all can.

    Filters are texts of the filter language (see `looking/query.py`). With `relative` sentences say times as people
    read them, "in 38 s"; otherwise as instants.
    """

    @abstractmethod
    def in_zone(self, zone: tzinfo | None) -> Desk:
        """Return the same desk for a person in another time zone, None for that of this machine."""

    @abstractmethod
    def discreet(self) -> Desk:
        """Return the same desk, whose sentences tell no text of users' code: of an error they name the class."""

    @abstractmethod
    async def heads(
        self, which: str = "", *, limit: int = 50, cursor: str | None = None, relative: bool = False
    ) -> Page:
        """Return a page of runs, newest first, each with why it is where it is.

        Raises:
            BadFilter: the filter cannot be read, or the cursor belongs to another.
        """

    @abstractmethod
    async def count(self, which: str = "") -> Count:
        """Count runs, up to 10,000."""

    @abstractmethod
    async def suggest(self, text: str, at: int | None = None) -> Suggestions:
        """Return what may be written at a place of a filter (its end, unless it is said), and instead of what.

        Raises:
            BadInput: the place is not in the text.
        """

    @abstractmethod
    async def counts(self) -> list[StatusCount]:
        """Return how many runs there are of each status.

        Open ones are counted now, up to 10,000; those that have ended at most every ten seconds, and `as_of` says when.
        """

    @abstractmethod
    async def why(self, run_id: str, *, relative: bool = False) -> Why:
        """Return why a run is where it is, with the chain of runs that it waits for.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def source(self, run_id: str) -> SourceLine | None:
        """Return the line of workflow code at which a run waits, by replaying it with the code at hand.

        None without code, if the code does not fit its history, or if it has ended or not begun. Nothing is executed.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def frames(self, run_id: str, step: str | None = None) -> FrameList:
        """Return the code around where a run waits, or where its error, or the last one of a step, came through.

        Raises:
            NoSuchRun: there is no such run.
            BadInput: it has no such step.
        """

    @abstractmethod
    async def progress(self, ids: Sequence[str]) -> list[ProgressView]:
        """Return how many steps of runs are done; runs that are not there are left out.

        Raises:
            BadInput: there are more than 50 of them.
        """

    @abstractmethod
    async def run(self, run_id: str, *, relative: bool = False, facts: int | None = None) -> RunView:
        """Return one run with its payloads and steps.

        Its newest 10,000 facts are looked at, or so many as `facts` says; `partial` tells that there are more.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def steps(self, run_id: str) -> StepList:
        """Return the steps of a run, in the order in which its code called them; of a long one the newest, as `run`.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def result(self, run_id: str, *, wait: timedelta = timedelta(0), relative: bool = False) -> ResultView:
        """Return how a run ended, or, once it was waited for so long, where it stands; one that is blocked has ended.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def children(self, run_id: str, *, depth: int = 1, relative: bool = False) -> ChildList:
        """Return the runs that a run started, with theirs to a depth of up to ten, each after its parent.

        At most 200 of one parent, the newest, and 1,000 in all.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def inbox(self, run_id: str, *, after: int = 0, limit: int = 100) -> InboxPage:
        """Return what was sent to a run and its code has not received yet, oldest first.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def evidence(self, run_id: str, *, after: int = 0, limit: int = 100) -> EvidencePage:
        """Return what a run put on record, oldest first; also of a run that was purged."""

    @abstractmethod
    async def history(
        self, run_id: str, *, after: int = 0, limit: int = 100, newest: bool = False, archived: bool = False
    ) -> HistoryPage:
        """Return facts of a run's history, those after a number, in their order.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def calls(self, run_id: str, *, facts: int = 5_000) -> CallList:
        """Return the calls of a run with their attempts, waits and messages as they lie in time, of its newest facts.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def timeline(self, run_id: str, *, facts: int = 5_000) -> MomentList:
        """Return all that happened to a run and was done to it in order of time, of its newest facts.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def arguments(self, run_id: str, step: str) -> ArgumentsView:
        """Return what a step was called with: as it was recorded, or by replaying the run with the code at hand.

        Raises:
            NoSuchRun: there is no such run.
            BadInput: the run has called no such step.
        """

    @abstractmethod
    async def record(self, run_id: str, *, by: str | None = None) -> RecordedRun:
        """Return a run's input and history as it stands, to be replayed against code.

        It holds every payload in the clear: with `by`, the person that is given it, that is put on record first.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def act(self, action: str, run_id: str, options: Options) -> Acted:
        """Act on one run: cancel, pause, resume, retry, rerun, terminate, recover, nudge or attributes.

        Raises:
            NoSuchRun: there is none.
            CannotReopen, UniqueConflict, BadInput: it cannot be done; nothing was changed.
        """

    @abstractmethod
    async def select(
        self, action: str, which: str = "", *, ids: Sequence[str] = (), count: bool = True
    ) -> SelectionView:
        """Return what acting on all runs of a filter, or on those with the ids, would come to; nothing is changed.

        Without `count` only the newest 200 are looked at, and the numbers are theirs unless it says `exact`.
        Its `selection` is what to give to `bulk` to do it, at any desk on the same database. It is signed, so that no
        caller can make one up.

        Raises:
            BadFilter, BadInput: the filter cannot be read, or chooses everything.
            NoSuchRun: there is no run with one of the ids.
        """

    @abstractmethod
    async def chosen(self, selection: str) -> Selection:
        """Return what a selection chose: the act, and how many runs were counted.

        Raises:
            UnusableSelection: as `bulk`; over HTTP whether it was made up is only known when it is used.
        """

    @abstractmethod
    def bulk(
        self, selection: str, options: Options, *, before: int | None = None
    ) -> AsyncGenerator[BulkProgress, None]:
        """Act on the runs that `select` chose, and on none that was started since; tell after each page how it goes.

        Leave the iteration to stop after the page in hand; `before` goes on from the `next` of what was told last.

        Raises:
            UnusableSelection: the selection is older than ten minutes, or none that a desk on this database has made.
        """

    @abstractmethod
    async def letters(
        self, *, limit: int = 50, seen: bool | None = False, workflow: str | None = None, before: str | None = None
    ) -> list[LetterView]:
        """Return dead letters, newest first: those that no person has seen, those that were, or (None) all.

        `before` is the id of the last of the page before.
        """

    @abstractmethod
    async def letter(self, letter_id: str) -> LetterDetail:
        """Return one dead letter, with its error and its payload.

        Raises:
            NoSuchLetter: there is none.
        """

    @abstractmethod
    async def letter_groups(self) -> list[LetterGroup]:
        """Return unseen dead letters, the newest 10,000 of a kind, by their cause, the most frequent first."""

    @abstractmethod
    async def store(self) -> StoreView:
        """Return what the database is, which is known without looking into it."""

    @abstractmethod
    async def database(self) -> DatabaseView:
        """Return how the database is: schema, size, how many runs of each status, and which workers."""

    @abstractmethod
    async def doctor(self) -> list[HouseFinding]:
        """Return what is wrong with the database and its workers, with remedies, and what was found to be well."""

    @abstractmethod
    async def workers(self) -> list[WorkerView]:
        """Return the workers that there are, and those that died of late."""

    @abstractmethod
    async def versions(self) -> list[VersionView]:
        """Return the versions of workflows that workers have or open runs were started with, and how many of each."""

    @abstractmethod
    async def inputs(self) -> list[InputView]:
        """Return what the workflows take whose code is at hand, as JSON Schema."""

    @abstractmethod
    async def graph(self, workflow: str) -> GraphView:
        """Return which steps of a workflow follow which: as the code at hand declares it, or as its newest runs went.

        Raises:
            BadInput: it has no runs, and is not declared as a graph.
        """

    @abstractmethod
    async def run_graph(self, run_id: str) -> RunGraphView:
        """Return the graph of one run with how each node stands: all that its workflow declares, or what it has called.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def state(self, run_id: str) -> StateView:
        """Return what a run answers to its queries, by replaying it with the code at hand; without code it says so.

        Nothing is executed. A query that takes arguments is asked by `query`.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def figures(self, **which: Unpack[FiguresAsked]) -> FiguresView:
        """Return how often runs or steps ended and how long they took, all workers together, by step, workflow or time.

        The range is that from `since` to `until`, or the `last` day (or other duration) before `until`, or before now.
        Workers add what they counted every ten seconds, so what has just happened may be missing. Ranges of more than
        six hours, and what is older than two days, are told by whole hours.

        Raises:
            BadInput: they are by something else, or the range is empty.
        """

    async def bars(self, which: str = "", **span: Unpack[SpanAsked]) -> BarsView:
        """Return how many runs ended and failed over time, as `figures` by time knows them.

        With a filter, which is no bare word, the newest 10,000 runs that meet it are looked at.
        """
        from holdfast.looking.about.figures import bars_of

        return bars_of(await self.figures(**span, by="time"))

    @abstractmethod
    async def misfit(self, run_id: str) -> MisfitView:
        """Return where the history of a run and the code at hand part, by replaying it; without code it says so.

        Nothing is executed.

        Raises:
            NoSuchRun: there is no such run.
        """

    async def checks(self, *, limit: int = 50) -> list[CheckView]:
        """Return the newest checks before deploys that were put on record (`holdfast check --record`)."""
        from holdfast.looking.about.checks import ACTION, checks_of

        return checks_of(await self.audit(action=ACTION, limit=limit))

    @abstractmethod
    async def queues(self) -> list[QueueView]:
        """Return the attempts that wait in queues or were taken from them, by queue and activity."""

    @abstractmethod
    async def event_names(self) -> list[EventNameView]:
        """Return the names under which events are queued, or for which runs wait."""

    @abstractmethod
    async def events(self, name: str, *, after: int = 0, limit: int = 50) -> EventPage:
        """Return events that are queued under a name, those after a number, and the runs that wait longest for it."""

    @abstractmethod
    async def workflows(self, prefix: str = "") -> list[str]:
        """Return the names of workflows that have runs."""

    @abstractmethod
    async def attributes(self, prefix: str = "") -> list[str]:
        """Return the names of attributes that runs have."""

    @abstractmethod
    async def attribute_values(self, name: str, prefix: str = "") -> list[str]:
        """Return the first 20 values of an attribute that begin with a prefix, as the filter language writes them."""

    @abstractmethod
    async def schedules(self) -> list[ScheduleView]:
        """Return the schedules that there are, by their ids."""

    @abstractmethod
    async def limits(self) -> list[LimitView]:
        """Return the limits that workers share, by their names."""

    @abstractmethod
    async def held_back(self, run_id: str) -> list[HeldBackView]:
        """Return what flow control holds back of a run: pauses, its admission, the limits of its steps.

        Raises:
            NoSuchRun: there is no such run.
        """

    @abstractmethod
    async def preview(
        self,
        schedule: str | None = None,
        n: int = 20,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        timezone: str = "UTC",
    ) -> list[TickPreview]:
        """Return the next ticks of a schedule, or of a timetable that is none yet, as `engine.schedules.preview` does.

        Raises:
            NoSuchSchedule, InvalidSchedule, BadInput: as there.
        """

    @abstractmethod
    async def past_ticks(
        self, schedule: str, start: datetime | None = None, end: datetime | None = None, *, n: int = 50
    ) -> list[PastTick]:
        """Return past ticks of a schedule, the newest `n` or those of a time, each with how its run stands.

        Of those without a run it says why, as far as that can be told; a backfill would start them.

        Raises:
            NoSuchSchedule, BadInput: there is none, or it has more than `n` ticks in that time.
        """

    @abstractmethod
    async def verify_audit(
        self, run_id: str | None = None, *, told: Callable[[int], None] | None = None
    ) -> VerdictView:
        """Check the chain of what was done, or of what one run put on record.

        Where the database is at hand `told` hears how many rows hold so far.
        """

    @abstractmethod
    async def chain(self, run_id: str | None = None, *, after: int = 0, limit: int = 100) -> ChainPage:
        """Return rows of what was done, or of what one run put on record, as they are stored, oldest first."""

    @abstractmethod
    def export_audit(self, run_id: str | None = None) -> AsyncGenerator[bytes, None]:
        """Yield everything that was done, or what one run put on record, as lines of JSON that others can check."""

    @abstractmethod
    async def audit(self, **which: Unpack[AuditAsked]) -> AuditPageView:
        """Return what was done, newest first, 50 at once by itself; `before` is the `next` of the page before."""
