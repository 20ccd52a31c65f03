"""The desk on a store of this process."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from holdfast.clock import Instant, to_datetime
from holdfast.contract.heads import SCAN_BUDGET, HeadFilter, HeadPage, RunHead
from holdfast.contract.rows import TERMINAL, LetterFilter, RunRow, Status
from holdfast.contract.waits import notes_of, words_of
from holdfast.errors import BadFilter, BadInput, NoSuchRun
from holdfast.looking.acting.local import LocalActs
from holdfast.looking.facts import Facts, aside, gather, gather_one
from holdfast.looking.house import check_limit, check_place
from holdfast.looking.query import OPEN, OVERDUE, Query, cursor_at, meets, parse, read_cursor
from holdfast.looking.times import Times
from holdfast.looking.views import (
    Acted,
    BulkProgress,
    Count,
    ErrorHead,
    Head,
    HistoryPage,
    Page,
    ResultView,
    RunView,
    SelectionView,
    SourceLine,
    StepList,
    StepView,
    Why,
)
from holdfast.looking.why import DEPTH, explain
from holdfast.payloads import codec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from holdfast.histories.recorded import RecordedRun
    from holdfast.looking.about.arguments import ArgumentsView
    from holdfast.looking.about.checks import MisfitView
    from holdfast.looking.about.figures import BarsView
    from holdfast.looking.about.frames import FrameList
    from holdfast.looking.about.graph import RunGraphView
    from holdfast.looking.about.progress import ProgressView
    from holdfast.looking.about.runs import ChildList, EvidencePage, InboxPage
    from holdfast.looking.about.state import StateView
    from holdfast.looking.about.timeline import CallList, MomentList
    from holdfast.looking.acts import Options
    from holdfast.looking.bulk import Selection
    from holdfast.looking.desk import SpanAsked

MOST = 200
"""How many runs a page may have."""
MOST_FACTS = 10_000
"""How many facts of a run are looked at, the newest, to show it with its steps."""
_MOST_TRACEBACK = 4_000
_NAMED = 3
_OVER = frozenset({*TERMINAL, Status.BLOCKED})
"""What a caller that waits for a result does not wait on for."""
_LOOK_AGAIN = 0.2
_DRIVEN = (Status.RUNNING, Status.CANCELLING, Status.COMPENSATING)
"""Statuses of runs that a worker is at work on, or should be."""


class LocalDesk(LocalActs):
    """The desk on an open store, which may have been opened to look only.

    Args:
        store: where to look.
        zone: the time zone of filters and sentences; None for that of this machine.
        code: the workflows at hand (`engine.registry`): then it is told at which line a run waits.
        engine: what acts are done with; without one the desk only looks.
    """

    async def heads(
        self, which: str = "", *, limit: int = 50, cursor: str | None = None, relative: bool = False
    ) -> Page:
        if not 1 <= limit <= MOST:
            raise BadInput(f"limit must be between 1 and {MOST}, not {limit}")
        query = parse(which, self._now, self._zone)
        before = read_cursor(cursor, which) if cursor is not None else None
        if query.attention:
            heads = await self._attention(query, limit)
            return Page(as_of=to_datetime(self._now), items=await self._shown(heads, relative))
        found = await self._searched(query, limit, before)
        return Page(
            as_of=to_datetime(self._now),
            items=await self._shown(found.heads, relative),
            next=cursor_at(found.next, which) if found.next is not None else None,
            partial=found.partial,
            searched_to=to_datetime(found.searched_to) if found.searched_to is not None else None,
        )

    async def _searched(self, query: Query, limit: int, before: int | None) -> HeadPage:
        which = msgspec.structs.replace(query.which, limit=limit, before=before)
        if query.word is None:
            return await self._store.heads(which)
        exact = await self._store.heads_of([query.word])
        if exact:
            return HeadPage(heads=list(exact.values()), next=None)
        half = SCAN_BUDGET // 2
        by_id = await self._store.heads(msgspec.structs.replace(which, id_prefix=query.word, budget=half))
        if by_id.heads or by_id.partial or which.workflows:
            return by_id
        return await self._store.heads(msgspec.structs.replace(which, workflows=(query.word,), budget=half))

    async def _attention(self, query: Query, limit: int) -> list[RunHead]:
        """Return the newest runs that a person should look at: four bounded searches, merged."""
        which, scanned = await self._with_word(query, limit)
        lost = tuple(worker.id for worker in await self._store.workers() if worker.state != "alive")
        late = self._now - int(OVERDUE.total_seconds() * 1e6)
        found: dict[int, RunHead] = {}
        searches: list[tuple[tuple[Status, ...], dict[str, Any]]] = [
            ((Status.BLOCKED,), {"budget": SCAN_BUDGET // 2}),
            (_DRIVEN if lost else (), {"owners": lost, "budget": SCAN_BUDGET // 4}),
            (OPEN, {"due_until": late, "thorough": True}),
        ]
        for statuses, conditions in searches:
            both = tuple(status for status in statuses if not which.statuses or status in which.statuses)
            each = msgspec.structs.replace(which, statuses=both, **conditions)
            if both:
                left = max(min(each.budget, SCAN_BUDGET - scanned), 1)
                page = await self._store.heads(msgspec.structs.replace(each, budget=left))
                scanned += page.scanned
                found |= {head.key: head for head in page.heads}
        letters = await self._store.letters(LetterFilter(kind="work", acknowledged=False, limit=limit))
        failed = await self._store.heads_of([letter.run for letter in letters if not letter.outcome])
        found |= {head.key: head for head in failed.values() if head.status is Status.FAILED and meets(head, which)}
        return [found[key] for key in sorted(found, reverse=True)][:limit]

    async def _with_word(self, query: Query, limit: int) -> tuple[HeadFilter, int]:
        """Return a filter in which a word alone is the beginning of ids, or a workflow, and how many rows that took."""
        which = msgspec.structs.replace(query.which, limit=limit)
        if query.word is None:
            return which, 0
        by_id = await self._store.heads(HeadFilter(id_prefix=query.word, limit=1, budget=SCAN_BUDGET // 4))
        if by_id.heads or by_id.partial or which.workflows:
            return msgspec.structs.replace(which, id_prefix=query.word), by_id.scanned
        return msgspec.structs.replace(which, workflows=(query.word,)), by_id.scanned

    async def count(self, which: str = "") -> Count:
        query = parse(which, self._now, self._zone)
        if query.attention:
            heads = await self._attention(query, MOST)
            return Count(n=len(heads), exact=len(heads) < MOST)
        if query.word is not None:
            found = await self._searched(query, MOST, None)
            return Count(n=len(found.heads), exact=found.next is None)
        counted = await self._store.count(query.which)
        return Count(n=counted.n, exact=counted.exact)

    async def bars(self, which: str = "", **span: Unpack[SpanAsked]) -> BarsView:
        from holdfast.looking.about.figures import bars_of_filter

        if not which:
            return await super().bars(**span)
        query = parse(which, self._now, self._zone)
        if query.attention or query.word is not None or span.get("workflow"):
            raise BadFilter("bars need a filter with names, such as status:failed or customer=c-2210, or one workflow")
        return await bars_of_filter(self._store, query.which, span.get("since"), span.get("until"))

    async def why(self, run_id: str, *, relative: bool = False) -> Why:
        head = await self._head(run_id)
        why = explain(head, await self._facts(head), self._times(relative), DEPTH)
        return why if self._code is None else msgspec.structs.replace(why, source=await self.source(run_id))

    async def source(self, run_id: str) -> SourceLine | None:
        head = await self._head(run_id)
        row = await self._store.get(run_id) if self._code is not None and head.ended is None else None
        if row is None or self._code is None:
            return None
        from holdfast.looking.source import source_line

        return await source_line(self._store, row, self._code)

    async def arguments(self, run_id: str, step: str) -> ArgumentsView:
        from holdfast.looking.about.arguments import step_arguments

        return await step_arguments(self._store, await self._row(run_id), step, self._code)

    async def frames(self, run_id: str, step: str | None = None) -> FrameList:
        from holdfast.looking.about.frames import frame_list, waiting_frame

        row = await self._row(run_id)
        if step is None and row.ended is None:
            return await waiting_frame(row, await self.source(run_id))
        return await frame_list(self._store, row, step)

    async def progress(self, ids: Sequence[str]) -> list[ProgressView]:
        from holdfast.looking.about.progress import progress_views

        return await progress_views(self._store, ids, self._code)

    async def run(self, run_id: str, *, relative: bool = False, facts: int | None = None) -> RunView:
        from holdfast.engine.views.steps import steps_of

        most = MOST_FACTS if facts is None else facts
        if not 1 <= most <= MOST_FACTS:
            raise BadInput(f"facts must be between 1 and {MOST_FACTS:,}, not {most}")
        head, row = await self._head(run_id), await self._row(run_id)
        known = await self._facts(head)
        why = explain(head, known, self._times(relative), DEPTH)
        rows = await self._store.history(row.key, newest=True, limit=most + 1)
        partial = len(rows) > most
        entries = await self._with_names(row.key, rows[1:]) if partial else rows
        beats = await self._store.beats(row.key)
        steps = await aside(len(entries), lambda: steps_of(row.id, entries, beats, row.ended, row.generation))
        return RunView(
            as_of=to_datetime(self._now),
            head=head_view(head, why, known),
            input=codec.decode(row.input),
            output=codec.decode(row.output) if row.output is not None else None,
            error=codec.decode(row.error) if row.error is not None else None,
            compensation=codec.decode(row.compensation) if row.compensation is not None else None,
            steps=[_as_it_waits(_step(step), head, known) for step in steps],
            entries=rows[-1].seq if partial else len(rows),
            partial=partial,
        )

    async def steps(self, run_id: str) -> StepList:
        view = await self.run(run_id)
        return StepList(run=run_id, items=view.steps, partial=view.partial)

    async def result(self, run_id: str, *, wait: timedelta = timedelta(0), relative: bool = False) -> ResultView:
        clock = asyncio.get_running_loop().time
        end = clock() + wait.total_seconds()
        while True:
            over, left = (await self._head(run_id)).status in _OVER, end - clock()
            if over or left <= 0:
                break
            await asyncio.sleep(min(_LOOK_AGAIN, left))
        head, row = await self._head(run_id), await self._row(run_id)
        return ResultView(
            run=run_id,
            status=str(head.status),
            ended=head.status in _OVER,
            said=explain(head, await self._facts(head), self._times(relative), DEPTH).sentence,
            output=codec.decode(row.output) if row.output is not None else None,
            error=codec.decode(row.error) if row.error is not None else None,
        )

    async def children(self, run_id: str, *, depth: int = 1, relative: bool = False) -> ChildList:
        from holdfast.looking.about.runs import ChildList, ChildView, descendants

        await self._head(run_id)
        found, more = await descendants(self._store, run_id, depth)
        heads = await self._shown([head for _, head in found], relative)
        items = [ChildView(depth=level, head=head) for (level, _), head in zip(found, heads, strict=True)]
        return ChildList(run=run_id, items=items, more=more)

    async def inbox(self, run_id: str, *, after: int = 0, limit: int = 100) -> InboxPage:
        from holdfast.looking.about.runs import inbox_page

        check_limit(limit)
        check_place("after", after)
        return await inbox_page(self._store, await self._head(run_id), after, limit)

    async def evidence(self, run_id: str, *, after: int = 0, limit: int = 100) -> EvidencePage:
        from holdfast.looking.about.runs import evidence_page

        check_limit(limit)
        check_place("after", after)
        return await evidence_page(self._store, run_id, after, limit)

    async def history(
        self, run_id: str, *, after: int = 0, limit: int = 100, newest: bool = False, archived: bool = False
    ) -> HistoryPage:
        from holdfast.looking.about.timeline import entry_views

        check_limit(limit)
        check_place("after", after)
        head = await self._head(run_id)
        if archived:
            rows = await self._store.history(head.key, archived=True)
            rows = rows[-limit:] if newest else rows
        else:
            rows = await self._store.history(head.key, after=after, limit=limit + 1, newest=newest)
        more = len(rows) > limit and not archived
        rows = (rows[1:] if newest else rows[:limit]) if more else rows
        named = rows if not after and not newest and not archived else await self._with_names(head.key, rows)
        items = await aside(len(named), lambda: entry_views(named, {row.seq for row in rows}, archived))
        return HistoryPage(run=run_id, items=items, next=rows[-1].seq if more and not newest else None)

    async def calls(self, run_id: str, *, facts: int = 5_000) -> CallList:
        from holdfast.looking.about.timeline import MOST_FACTS, call_list

        if not 1 <= facts <= MOST_FACTS:
            raise BadInput(f"facts must be between 1 and {MOST_FACTS:,}, not {facts}")
        head = await self._head(run_id)
        rows = await self._store.history(head.key, newest=True, limit=facts + 1)
        partial = len(rows) > facts
        rows = rows[1:] if partial else rows
        named = await self._with_names(head.key, rows) if partial else rows
        return await aside(len(rows), lambda: call_list(run_id, named, {row.seq for row in rows}, partial))

    async def timeline(self, run_id: str, *, facts: int = 5_000) -> MomentList:
        from holdfast.looking.about.timeline import MOST_FACTS, moment_list

        if not 1 <= facts <= MOST_FACTS:
            raise BadInput(f"facts must be between 1 and {MOST_FACTS:,}, not {facts}")
        row = await self._store.get(run_id)
        if row is None:
            raise await self._no_such(run_id)
        return await moment_list(self._store, row, facts, self._with_names)

    async def _with_names(self, key: int, rows: list[Any]) -> list[Any]:
        """Return facts after those that name the calls they belong to."""
        from holdfast.replay.entry import Name

        if not rows:
            return rows
        return [*await self._store.facts_of_kind(key, Name.kind, rows[0].seq), *rows]

    async def record(self, run_id: str, *, by: str | None = None) -> RecordedRun:
        from holdfast.histories.recorded import recorded_run

        row = await self._row(run_id)
        if by is not None:
            await self._acting().audit.shown(run_id, "record", by=by)
        return recorded_run(row, await self._store.history(row.key))

    async def run_graph(self, run_id: str) -> RunGraphView:
        from holdfast.engine.views.steps import steps_of
        from holdfast.looking.about.graph import MOST_FACTS, declared_dependencies, run_graph_view

        head = await self._head(run_id)
        declared = declared_dependencies(head.workflow, self._code)
        most = None if declared is not None else MOST_FACTS
        entries, beats = await self._store.history(head.key, limit=most), await self._store.beats(head.key)
        steps = await aside(len(entries), lambda: steps_of(head.id, entries, beats, head.ended, head.generation))
        partial = most is not None and len(entries) == most
        # Which steps followed which takes a while of a long run.
        return await asyncio.to_thread(run_graph_view, run_id, head.workflow, steps, declared, partial)

    async def state(self, run_id: str) -> StateView:
        from holdfast.looking.about.state import state_view

        row = await self._row(run_id)
        return await state_view(self._store, row, self._code)

    async def misfit(self, run_id: str) -> MisfitView:
        from holdfast.looking.about.checks import misfit_view

        row = await self._row(run_id)
        return await misfit_view(self._store, row, self._code)

    # Acting.

    async def act(self, action: str, run_id: str, options: Options) -> Acted:
        from holdfast.looking.acts import act

        return await act(self._acting(), action, run_id, options)

    async def select(
        self, action: str, which: str = "", *, ids: Sequence[str] = (), count: bool = True
    ) -> SelectionView:
        from holdfast.looking.bulk import select

        if ids and which:
            raise BadInput("choose runs by a filter or by ids, not by both")
        query = None if ids else parse(which, self._now, self._zone)
        return await select(self._store, action, query, ids, count=count)

    async def chosen(self, selection: str) -> Selection:
        from holdfast.looking.bulk import chosen

        return await chosen(self._store, selection)

    def bulk(
        self, selection: str, options: Options, *, before: int | None = None
    ) -> AsyncGenerator[BulkProgress, None]:
        from holdfast.looking.bulk import bulk

        return bulk(self._acting(), self._store, selection, options, before)

    # What several of them do.

    def _times(self, relative: bool) -> Times:
        return Times(self._now, self._zone, relative, self._discreet)

    async def _head(self, run_id: str) -> RunHead:
        found = await self._store.heads_of([run_id])
        if run_id not in found:
            raise await self._no_such(run_id)
        return found[run_id]

    async def _row(self, run_id: str) -> RunRow:
        row = await self._store.get(run_id)
        if row is None:
            raise await self._no_such(run_id)
        return row

    async def _no_such(self, run_id: str) -> Exception:
        """Return the error for a run that is not there, naming others that begin so, or whose id cannot be one."""
        from holdfast.definitions import check_run_id  # it takes a third of what a command loads, and few need it

        try:
            check_run_id(run_id)
        except BadInput as error:
            return error
        begins = await self._store.heads(HeadFilter(id_prefix=run_id, limit=_NAMED))
        others = ", ".join(head.id for head in begins.heads)
        return NoSuchRun(run_id, f"; there is {others}" if others else "")

    async def _facts(self, head: RunHead) -> Facts:
        facts = await gather(self._store, [head], DEPTH)
        await gather_one(self._store, head, facts)
        return facts

    async def _shown(self, heads: list[RunHead], relative: bool) -> list[Head]:
        facts, times = await gather(self._store, heads), self._times(relative)
        return [head_view(head, explain(head, facts, times), facts) for head in heads]


def _as_it_waits(step: StepView, head: RunHead, facts: Facts) -> StepView:
    """Return a step as it waits: its history has one as under way whose attempt waits in a queue for a worker."""
    queues = {note.step: note.queue for note in notes_of(head.wait) if note.kind == "queue"}
    queue = queues.get(step.path)
    if step.status != "running" or queue is None or (head.key, queue) in facts.takers:
        return step
    return msgspec.structs.replace(step, status="waiting", reason=f"in queue {queue}")


def head_view(head: RunHead, why: Why, facts: Facts) -> Head:
    """Return a run as it is shown in a list."""
    return Head(
        id=head.id,
        workflow=head.workflow,
        version=head.version,
        status=str(head.status),
        why=why,
        created_at=to_datetime(head.created),
        updated_at=to_datetime(head.updated),
        ended_at=_moment(head.ended),
        due_at=_moment(head.due),
        begins_at=_moment(head.begins),
        deadline_at=_moment(head.deadline),
        waiting_for=words_of(head.wait),
        priority=head.priority,
        parent=head.parent,
        unique_key=head.unique_key,
        actor=head.actor,
        tenant=head.tenant,
        attributes=codec.decode(head.attributes),
        error=ErrorHead(type=head.error_type, message=head.error_message or "") if head.error_type else None,
        failed_step=head.failed_step or None,
        worker=head.owner,
        process=facts.worker(head.owner) if head.owner in facts.workers else "",
        reopened=head.reopens,
        generation=head.generation,
    )


def _moment(at: Instant | None) -> Any:
    return to_datetime(at) if at is not None else None


def _step(step: Any) -> StepView:
    error = step.error
    return StepView(
        path=step.path,
        name=step.name,
        status=step.status,
        attempts=step.attempts,
        failures=step.failures,
        started_at=step.started_at,
        finished_at=step.finished_at,
        next_attempt_at=step.next_attempt_at,
        heartbeat_at=step.heartbeat_at,
        progress=step.progress,
        result=step.result,
        error=ErrorHead(type=error.type, message=error.message) if error is not None else None,
        traceback=error.traceback[-_MOST_TRACEBACK:] if error is not None and step.status != "completed" else "",
        reason=step.reason,
        compensation=step.compensation,
        idempotency_key=step.idempotency_key,
    )
