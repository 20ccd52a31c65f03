"""Schedules on Temporal: runs that the server starts by the calendar, in place of an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import temporalio.client as sdk
from temporalio.client import ScheduleActionStartWorkflow, ScheduleDescription, ScheduleOverlapPolicy
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode

from holdfast.clock import Instant, from_datetime, new_id, to_datetime
from holdfast.contract.rows import ScheduleRow
from holdfast.definitions import Registry, Workflow, check_run_id, options_given
from holdfast.engine.client.start import StartOptions
from holdfast.errors import InvalidSchedule, NoSuchSchedule, StoreUnreachable
from holdfast.payloads import codec
from holdfast.schedules.preview import TickPreview, previewed, ticks_to_fill
from holdfast.schedules.times import ALIASES, CatchUp, Overlap, ScheduleSpec, next_tick
from holdfast.schedules.times import spec as checked_spec
from holdfast.schedules.view import Schedule, schedule_of, spec_of
from holdfast.temporal.client.port import TemporalPort
from holdfast.temporal.client.starting import TemporalStarter
from holdfast.temporal.wire import VERSION, Carry, RunRules, data_of, packed, raw

_OVERLAP = {
    "skip": ScheduleOverlapPolicy.SKIP,
    "allow": ScheduleOverlapPolicy.ALLOW_ALL,
    "cancel": ScheduleOverlapPolicy.CANCEL_OTHER,
}
_SECOND = 1_000_000
_LONGEST_WAIT, _SHORTEST_WAIT = timedelta(days=365), timedelta(seconds=10)
_AT_ONCE = 10

Timetable = list[Schedule]
Ids = list[str]
Ticks = list[TickPreview]


class TemporalSchedules:
    """The schedules of a namespace.

    The verbs are those of `Engine.schedules`. The run of a tick has the id of its schedule and the tick as the server
    writes it, `nightly-2026-01-31T01:00:00Z`, and the actor `schedule:nightly`. Where clocks change, and how long runs
    are put off by the jitter, the server decides.
    """

    def __init__(
        self,
        port: TemporalPort,
        registry: Registry,
        starter: TemporalStarter,
        rules: RunRules,
        queue_of: Callable[[str], str],
    ) -> None:
        self._port = port
        self._registry = registry
        self._starter = starter
        self._rules = rules
        self._queue_of = queue_of

    # Declaring.

    async def put(
        self,
        id: str,
        workflow: Workflow[Any, Any] | str,
        /,
        *args: Any,
        cron: str | None = None,
        every: timedelta | None = None,
        timezone: str = "UTC",
        jitter: timedelta = timedelta(0),
        catch_up: CatchUp = "latest",
        overlap: Overlap = "skip",
        starting: datetime | None = None,
        until: datetime | None = None,
        **kwargs: Any,
    ) -> Schedule:
        """Create a schedule, or change the one with that id; declaring it again as it is does nothing.

        The options are those of `Engine.schedules.put`. What was missed in an outage is started by the server:
        `latest` what was missed less than one interval ago, `all` what was missed within a year, `none` nothing that is
        more than ten seconds late.

        Raises:
            InvalidSchedule: something about the timetable means nothing, or the server has no such timetable.
            BadInput: the id, the workflow or its arguments do not fit.
        """
        said = options_given(TemporalSchedules.put, locals())
        check_run_id(id)
        definition = self._registry.registered(workflow, "a schedule", "TemporalEngine")
        definition.refuse_ambiguous("schedules.put", said, len(args))
        encoded, digest = definition.encode_input(args, kwargs)
        spec = checked_spec(now=self._port.clock.now(), **said)
        row = await self._find(id)
        if row is not None and starting is None:
            spec = msgspec.structs.replace(spec, anchor=spec_of(row).anchor)
        if row is not None and (spec_of(row), row.workflow, row.input) == (spec, definition.name, encoded):
            return schedule_of(row)
        made = sdk.Schedule(
            action=self._action(id, definition, encoded, digest, spec),
            spec=_spec_of(spec),
            policy=sdk.SchedulePolicy(overlap=_OVERLAP[spec.overlap], catchup_window=_window(spec)),
            state=sdk.ScheduleState(paused=row is not None and row.paused),
        )
        try:
            if row is None:
                await self._port.client.create_schedule(id, made)
            else:
                await self._handle(id).update(lambda _: sdk.ScheduleUpdate(made))
        except RPCError as error:
            if error.status is RPCStatusCode.INVALID_ARGUMENT:
                raise InvalidSchedule(f"the Temporal server refuses the timetable of {id!r}: {error}") from error
            raise _unreachable(id, error) from error
        return schedule_of(await self._row(id))

    def _action(
        self, id: str, definition: Workflow[Any, Any], encoded: str, digest: int, spec: ScheduleSpec
    ) -> ScheduleActionStartWorkflow:
        carry = Carry(version=VERSION, digest=digest, rules=self._rules)
        return ScheduleActionStartWorkflow(
            definition.name,
            args=[raw(encoded), packed(carry)],
            id=id,
            task_queue=self._queue_of(definition.queue),
            task_timeout=self._rules.task_timeout,
            memo={"digest": str(digest), "actor": _actor(id), "timetable": codec.encode(spec).decode()},
        )

    # Looking and tending.

    async def get(self, id: str) -> Schedule:
        """Return one schedule.

        Raises:
            NoSuchSchedule: there is none with that id.
        """
        return schedule_of(await self._row(id))

    async def list(self) -> Timetable:
        """Return every schedule that was put with holdfast, by id: a new one a moment later."""
        ids = [each.id async for each in await self._port.client.list_schedules()]
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(id: str) -> ScheduleRow | None:
            async with slots:
                return await self._find(id)

        rows = await asyncio.gather(*(one(id) for id in sorted(ids)))
        return [schedule_of(row) for row in rows if row is not None]

    async def pause(self, id: str, by: str | None = None, reason: str = "") -> Schedule:
        """Let a schedule start nothing until it is resumed.

        Raises:
            NoSuchSchedule: there is none with that id.
        """
        await self._row(id)
        await self._done(id, self._handle(id).pause(note=_note(by, reason)))
        return await self.get(id)

    async def resume(self, id: str, by: str | None = None, reason: str = "") -> Schedule:
        """Let a paused schedule go on with the next tick; those it passed meanwhile are over, see `backfill`.

        Raises:
            NoSuchSchedule: there is none with that id.
        """
        await self._row(id)
        await self._done(id, self._handle(id).unpause(note=_note(by, reason)))
        return await self.get(id)

    async def delete(self, id: str, by: str | None = None, reason: str = "") -> None:
        """Forget a schedule; its runs stay.

        Raises:
            NoSuchSchedule: there is none with that id.
        """
        await self._row(id)
        await self._done(id, self._handle(id).delete())

    async def preview(
        self,
        id: str | None = None,
        n: int = 20,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        timezone: str = "UTC",
        starting: datetime | None = None,
        until: datetime | None = None,
    ) -> Ticks:
        """Return the next ticks of a schedule, or of a timetable that is none yet, as Engine.schedules.preview does.

        Raises:
            NoSuchSchedule: there is no such schedule.
            InvalidSchedule: something about the timetable means nothing; the message names it.
            BadInput: both are given, or `n` is not between 1 and 1,000.
        """
        row = await self._row(id) if id is not None else None
        timetable = {"cron": cron, "every": every, "timezone": timezone, "starting": starting, "until": until}
        return previewed(row, self._port.clock.now(), n, timetable)

    # Starting by hand.

    async def trigger(self, id: str, by: str | None = None, reason: str = "") -> str:
        """Start a run now, outside the timetable, and return its id; a paused schedule is no obstacle.

        Raises:
            NoSuchSchedule: there is none with that id.
            UnknownWorkflow, UndecodablePayload: its workflow is not known here, or the stored input does not fit it.
        """
        run_id, _ = await self._start(await self._row(id), f"{id}:{new_id()}")
        return run_id

    async def backfill(
        self, id: str, start: datetime, end: datetime, limit: int = 1000, by: str | None = None, reason: str = ""
    ) -> Ids:
        """Start the runs of past ticks from `start` on and before `end` and return the ids of those that were started.

        A tick whose run was started before, by the timetable or a backfill, is passed over. Overlap does not count.

        Raises:
            NoSuchSchedule: there is none with that id.
            UnknownWorkflow, UndecodablePayload: its workflow is not known here, or the stored input does not fit it.
            BadInput: there are more than `limit` ticks; nothing was started.
        """
        row = await self._row(id)
        ticks = ticks_to_fill(row, start, end, limit, self._port.clock.now())
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(tick: Instant) -> tuple[str, bool]:
            async with slots:
                return await self._start(row, run_id(id, tick))

        started = await asyncio.gather(*map(one, ticks))
        return [name for name, is_new in started if is_new]

    async def _start(self, row: ScheduleRow, name: str) -> tuple[str, bool]:
        definition = self._registry.get(row.workflow)
        args, kwargs = definition.decode_input(row.input)
        said = {"id": name, "actor": _actor(row.id)}
        options = {field: said.get(field, getattr(StartOptions(), field)) for field in StartOptions.__struct_fields__}
        started, _, is_new = await self._starter.start(definition, tuple(args), dict(kwargs), options)
        return started, is_new

    # The server.

    def _handle(self, id: str) -> sdk.ScheduleHandle:
        return self._port.client.get_schedule_handle(id)

    async def _done(self, id: str, coming: Any) -> None:
        try:
            await coming
        except RPCError as error:
            raise _unreachable(id, error) from error

    async def _row(self, id: str) -> ScheduleRow:
        row = await self._find(check_run_id(id))
        if row is None:
            raise NoSuchSchedule(f"there is no schedule {id!r}")
        return row

    async def _find(self, id: str) -> ScheduleRow | None:
        """Return a schedule as the server has it, None if there is none, or one that another program put."""
        try:
            found = await self._handle(id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise _unreachable(id, error) from error
        return _row_of(found)


def _row_of(found: ScheduleDescription) -> ScheduleRow | None:
    action = found.schedule.action
    if not isinstance(action, ScheduleActionStartWorkflow) or not action.memo or "timetable" not in action.memo:
        return None
    timetable: Any = action.memo["timetable"]
    given: Any = action.args[0]
    upcoming = found.info.next_action_times
    recent = found.info.recent_actions
    created = from_datetime(found.info.created_at)
    updated = found.info.last_updated_at
    last = recent[-1].action if recent else None
    return ScheduleRow(
        id=found.id,
        workflow=str(action.workflow),
        spec=str(msgspec.json.decode(timetable.data)),
        input=data_of(RawValue(given)).decode(),
        next=from_datetime(upcoming[0]) if upcoming and not found.schedule.state.paused else None,
        paused=found.schedule.state.paused,
        last_run=getattr(last, "workflow_id", None),
        created=created,
        updated=from_datetime(updated) if updated is not None else created,
    )


def _spec_of(spec: ScheduleSpec) -> sdk.ScheduleSpec:
    """Return a timetable as the server has it.

    Raises:
        InvalidSchedule: it has no ticks that are so close together.
    """
    starting = to_datetime(spec.anchor)
    made = sdk.ScheduleSpec(
        start_at=starting,
        end_at=to_datetime(spec.end) if spec.end is not None else None,
        jitter=timedelta(microseconds=spec.jitter_us) if spec.jitter_us else None,
        time_zone_name=spec.timezone,
    )
    if spec.every_us is not None:
        if spec.every_us % _SECOND:
            raise InvalidSchedule("on Temporal a schedule's interval is a whole number of seconds")
        offset = timedelta(seconds=spec.anchor // _SECOND % (spec.every_us // _SECOND))
        made.intervals = [sdk.ScheduleIntervalSpec(timedelta(microseconds=spec.every_us), offset)]
    else:
        line = ALIASES.get(spec.cron or "", spec.cron or "")
        made.cron_expressions = [f"{line} *" if len(line.split()) == 6 else line]  # theirs has the year, too
    return made


def _window(spec: ScheduleSpec) -> timedelta:
    """Return how late a tick may be that is started all the same."""
    if spec.catch_up == "all":
        return _LONGEST_WAIT
    if spec.catch_up == "none":
        return _SHORTEST_WAIT
    first = next_tick(spec, spec.anchor)
    second = next_tick(spec, first) if first is not None else None
    if first is None or second is None:
        return _LONGEST_WAIT
    return max(timedelta(microseconds=second - first), _SHORTEST_WAIT)


def run_id(schedule: str, tick: Instant) -> str:
    """Return the id of the run of a tick, as the server makes it."""
    return f"{schedule}-{to_datetime(tick).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _actor(schedule: str) -> str:
    return f"schedule:{schedule}"


def _note(by: str | None, reason: str) -> str | None:
    return ": ".join(word for word in (by or "", reason) if word) or None


def _unreachable(id: str, error: RPCError) -> StoreUnreachable:
    words = str(error).split("\n", 1)[0][:300]
    return StoreUnreachable(f"the Temporal server did not do what was asked for schedule {id!r}: {words}")
