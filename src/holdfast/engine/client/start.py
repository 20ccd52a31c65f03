"""Starting runs: on this worker or for others, now or later, once per id and per unique key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec

from holdfast.clock import FAR_FUTURE, Instant, from_datetime, micros, new_id, new_seed
from holdfast.contract.operations import Existing, KeyHeld, Outcome, Refused
from holdfast.contract.rows import Status
from holdfast.contract.turns import NO_OPTIONS, Audit, NewRun, RunOptions, StartRun
from holdfast.definitions import Registry, Workflow, check_run_id
from holdfast.engine.client.link import Link, moved
from holdfast.engine.runs.ends import Rules, in_its_lane, rejected
from holdfast.engine.steps.queue.served import Queues
from holdfast.engine.worker.committer import Done, soon
from holdfast.errors import BadInput, InvalidDuration, RunConflict, RunRejected, StoreError, UniqueConflict
from holdfast.payloads import codec
from holdfast.replay.location import check_name
from holdfast.texts import check_text

if TYPE_CHECKING:
    from holdfast.engine.worker.worker import Worker

OnConflict = Literal["raise", "return"]
MOST_PRIORITY = 100


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `Engine.start`, which says what each means."""

    id: str | None = None
    unique_key: str | None = None
    on_conflict: OnConflict = "raise"
    delay: timedelta | None = None
    start_at: datetime | None = None
    timeout: timedelta | None = None
    priority: int = 0
    attributes: Mapping[str, Any] | None = None
    actor: str | None = None
    tenant: str | None = None
    connection: object = msgspec.UNSET

    def of_run(self, now: Instant) -> RunOptions:
        """Return what the store keeps of them, for a run that is started now.

        Raises:
            BadInput: naming the option that does not fit.
        """
        self._check()
        begins = self._begins(now)
        longest = micros(self.timeout, "timeout") if self.timeout is not None else 0
        begin = "start_at" if self.delay is None else "delay"
        for field, end in ((begin, begins or 0), ("timeout", (begins or now) + longest)):
            if end > FAR_FUTURE:
                raise InvalidDuration(f"{field} ends after the year 9999")
        attributes = _encoded(self.attributes) if self.attributes else {}
        options = RunOptions(
            begins=begins,
            timeout=longest or None,
            priority=self.priority,
            unique_key=self.unique_key,
            actor=self.actor,
            tenant=self.tenant,
            attributes={name: value for name, value in attributes.items() if value is not None},
        )
        return NO_OPTIONS if options == NO_OPTIONS else options

    def _check(self) -> None:
        if self.on_conflict not in ("raise", "return"):
            raise BadInput(f"on_conflict is 'raise' or 'return', not {self.on_conflict!r}")
        given: object = self.priority
        if not isinstance(given, int) or isinstance(given, bool) or not -MOST_PRIORITY <= given <= MOST_PRIORITY:
            raise BadInput(f"priority must be a whole number from -{MOST_PRIORITY} to {MOST_PRIORITY}, not {given!r}")
        if self.delay is not None and self.start_at is not None:
            raise BadInput("give a run a delay or a time to start at, not both")
        for field in ("unique_key", "actor", "tenant"):
            if (value := getattr(self, field)) is not None:
                check_text(value, field)

    def _begins(self, now: Instant) -> Instant | None:
        """Return when the run begins; None for at once."""
        begins = now
        if self.delay is not None:
            begins = now + micros(self.delay, "delay")
        elif self.start_at is not None:
            begins = from_datetime(self.start_at, "start_at")
        return begins if begins > now else None


class StartKeywords(TypedDict, total=False):
    """The same, for type checkers."""

    id: str | None
    unique_key: str | None
    on_conflict: OnConflict
    delay: timedelta | None
    start_at: datetime | None
    timeout: timedelta | None
    priority: int
    attributes: Mapping[str, Any] | None
    actor: str | None
    tenant: str | None
    connection: object


def _encoded(attributes: Mapping[str, Any]) -> dict[str, str | None]:
    # What runs say about themselves comes with the verbs of workflow code, which a program that only starts runs lacks.
    from holdfast.context.notes import encode_attributes

    return encode_attributes(attributes)


_NOTHING_ASKED = StartOptions()
_OF_THE_START = {"id", "connection"}
"""Options of which the run itself keeps nothing."""


class RunStarter:
    """Starts runs for an engine."""

    def __init__(self, link: Link, registry: Registry, queues: Queues, rules: Rules, here: bool) -> None:
        self._link = link
        self._registry = registry
        self._queues = queues
        self._rules = rules
        self._here = here

    async def start(
        self,
        workflow: Workflow[Any, Any] | str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        said: Mapping[str, Any],
        audit: Audit | None = None,
    ) -> tuple[str, Any, bool]:
        """Start a run, or find the one that is there; return its id, the type of its result, and whether it is new.

        `said` has the options that were given another value than their default. With `audit` it is on record that a
        person started it, and a worker begins it as it would one that another process started.
        """
        asked = StartOptions(**said) if said else _NOTHING_ASKED
        options = asked.of_run(self._link.clock.now()) if said.keys() - _OF_THE_START else NO_OPTIONS
        given = said if audit is None else ()
        definition, name, encoded, digest = input_of(
            self._registry, workflow, args, kwargs, given, unknown=not self._here
        )
        result_type = definition.result_type if definition is not None else Any
        worker = self._link.worker
        enclosed = asked.connection is not msgspec.UNSET
        if definition is not None and definition.flow is not None:
            options = _in_lane(definition, encoded, options, enclosed)
        new = check_run_id(asked.id) if asked.id is not None else new_id()
        if not enclosed and asked.id is not None and (row := await self._link.store.get(new)) is not None:
            # Looked up first, so that no code runs for a run that is there; of two starts at once one commit decides.
            if row.status is Status.MOVED:
                raise moved(row)
            return same_run(new, name, digest, row.workflow, row.digest), result_type, False
        run = NewRun(
            id=new,
            workflow=name,
            version=definition.version if definition is not None else "",
            input=encoded,
            digest=digest,
            seed=new_seed(),
            at=self._link.clock.now(),
            options=options,
            hooked=definition is not None and definition.told_of_cancels,
        )
        if enclosed:
            outcome = await self._link.enclose(asked.connection, StartRun(run=run))
        else:
            laned = in_its_lane(run, self._rules) if options.lane else run
            outcome = await self._insert(worker, laned, definition, audit)
        if isinstance(outcome, Existing):
            if outcome.status is Status.MOVED:
                await self._link.row_here(new)
            return same_run(new, name, digest, outcome.workflow, outcome.digest), result_type, False
        if isinstance(outcome, KeyHeld):
            if asked.on_conflict == "raise":
                raise UniqueConflict(outcome.id, name, options.unique_key or "")
            return outcome.id, result_type, False
        if isinstance(outcome, Refused) and options.lane is not None:
            raise RunRejected(new, rejected(name, options.lane))
        return new, result_type, True

    async def _insert(
        self, worker: Worker, run: NewRun, definition: Workflow[Any, Any] | None, audit: Audit | None
    ) -> Outcome:
        later = run.options.begins is not None and run.options.begins > run.at
        laned = run.options.lane is not None or audit is not None
        if not self._here or later or laned or definition is None or not self._queues.serves(definition):
            ask = partial(worker.committer.submit, StartRun(run=run, audit=audit))
            outcome = await self._link.settle(worker, run, ask)
            worker.look()
            return outcome
        owned = msgspec.structs.replace(run, owner=worker.id)
        # Whether a key is free only the commit knows, and no code must run for a run that is not to be.
        start = worker.arrivals.start if run.options.unique_key is None else worker.arrivals.start_plain

        def begin(done: Done) -> None:
            def told(outcome: Outcome | Exception) -> None:
                if isinstance(outcome, StoreError):
                    worker.in_doubt()  # whether the caller still waits or not
                done(outcome)

            start(owned, definition, told)

        return await self._link.settle(worker, owned, partial(soon, begin))


def input_of(
    registry: Registry,
    workflow: Workflow[Any, Any] | str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    given: Iterable[str],
    *,
    unknown: bool,
    engine: str = "Engine",
) -> tuple[Workflow[Any, Any] | None, str, str, int]:
    """Return what is to be started, its name, its encoded input and the digest of that; `given` names the options.

    Where `unknown` workflows may be started too, by name, None stands for such a one: its worker checks the input.

    Raises:
        BadInput: it is no workflow, another than the one registered, or its arguments do not fit.
        UnknownWorkflow: there is none of that name.
    """
    if unknown and isinstance(workflow, str) and workflow not in registry.names():
        check_name(workflow, "workflow name")
        if args:
            raise BadInput(f"workflow {workflow!r} is not known here: pass its arguments by keyword")
        data, digest = codec.encode_with_digest(kwargs, f"the input of workflow {workflow!r}")
        return None, workflow, data.decode(), digest
    definition = registry.registered(workflow, "start()", engine)
    definition.refuse_ambiguous("start", given, len(args))
    encoded, digest = definition.encode_input(args, kwargs)
    return definition, definition.name, encoded, digest


def _in_lane(workflow: Workflow[Any, Any], encoded: str, options: RunOptions, enclosed: bool) -> RunOptions:
    """Return the options of a run with the lane it waits in; inside a transaction of the caller it enters none yet.

    Raises:
        BadInput: its key cannot be made of its input, or it cannot be started so.
    """
    lane = workflow.lane(encoded)
    assert lane is not None
    if lane.window and enclosed:
        raise BadInput(
            f"workflow {workflow.name!r} has a debounce window, and whether a start with connection= counts there is "
            "known only when its transaction commits: start it without connection, after the commit"
        )
    if lane.window and options.begins is not None:
        raise BadInput(f"workflow {workflow.name!r} has a debounce window: it says itself when a run begins")
    return options if enclosed else msgspec.structs.replace(options, lane=lane)


def same_run(run_id: str, workflow: str, digest: int, recorded_workflow: str, recorded: int) -> str:
    """Return the id of a run that is there, if it is the one that was to be started."""
    if recorded_workflow != workflow:
        raise RunConflict(run_id, f"exists and is a run of {recorded_workflow!r}")
    if recorded != digest:
        raise RunConflict(run_id)
    return run_id
