"""Starting runs: what an engine offers to callers that start one run, many runs, or wait for the result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from operator import is_
from typing import Any, ParamSpec, TypeVar, Unpack, overload

import msgspec

from holdfast.definitions import Workflow, options_given
from holdfast.definitions.takes import Takes0, Takes1, Takes2, Takes3, Takes4, TakesMore
from holdfast.engine.client.link import Linked
from holdfast.engine.client.start import OnConflict, StartKeywords, StartOptions
from holdfast.engine.handle import RunHandle
from holdfast.engine.port import RunPort, Starter
from holdfast.ops.port import audited, check_who
from holdfast.patience import within

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")

_DEFAULTS = tuple(getattr(StartOptions(), name) for name in StartOptions.__struct_fields__)

_AT_ONCE = 1_000
"""How many of `start_many` are on their way at a time: ample for a commit, and no pile of coroutines for 100,000."""


class StartsRuns(Linked):
    """The side of an engine that starts runs."""

    _client: RunPort
    _starter: Starter

    # For type checkers. Without options arguments are checked by position and name, with options by position; with an
    # id those that go by name are let pass, and checked when the run is started: see `takes`.
    @overload
    async def start(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]: ...
    @overload
    async def start(self, workflow: Takes0[R], /, **options: Unpack[StartKeywords]) -> RunHandle[R]: ...
    @overload
    async def start(self, workflow: Takes1[A, R], a: A, /, **options: Unpack[StartKeywords]) -> RunHandle[R]: ...
    @overload
    async def start(
        self, workflow: Takes2[A, B, R], a: A, b: B, /, **options: Unpack[StartKeywords]
    ) -> RunHandle[R]: ...
    @overload
    async def start(
        self, workflow: Takes3[A, B, C, R], a: A, b: B, c: C, /, **options: Unpack[StartKeywords]
    ) -> RunHandle[R]: ...
    @overload
    async def start(
        self, workflow: Takes4[A, B, C, D, R], a: A, b: B, c: C, d: D, /, **options: Unpack[StartKeywords]
    ) -> RunHandle[R]: ...
    @overload
    async def start(
        self,
        workflow: TakesMore[R],
        a: Any,
        b: Any,
        c: Any,
        d: Any,
        e: Any,
        /,
        *more: Any,
        **options: Unpack[StartKeywords],
    ) -> RunHandle[R]: ...
    @overload
    async def start(self, workflow: TakesMore[R], /, *, id: str, **more: Any) -> RunHandle[R]: ...
    @overload
    async def start(self, workflow: Takes1[A, R], a: A, /, *, id: str, **more: Any) -> RunHandle[R]: ...
    @overload
    async def start(self, workflow: Takes2[A, B, R], a: A, b: B, /, *, id: str, **more: Any) -> RunHandle[R]: ...
    @overload
    async def start(
        self, workflow: Takes3[A, B, C, R], a: A, b: B, c: C, /, *, id: str, **more: Any
    ) -> RunHandle[R]: ...
    @overload
    async def start(self, workflow: str, /, *args: Any, **kwargs: Any) -> RunHandle[Any]: ...
    async def start(  # type: ignore[misc]  # a parameter named like an option goes by position
        self,
        workflow: Any,
        /,
        *args: Any,
        id: str | None = None,
        unique_key: str | None = None,
        on_conflict: OnConflict = "raise",
        delay: timedelta | None = None,
        start_at: datetime | None = None,
        timeout: timedelta | None = None,
        priority: int = 0,
        attributes: Mapping[str, Any] | None = None,
        actor: str | None = None,
        tenant: str | None = None,
        connection: object = msgspec.UNSET,
        **kwargs: Any,
    ) -> RunHandle[Any]:
        """Start a run and return its handle once that is durable.

        Args:
            workflow: what to run, with the arguments that follow; those whose names are taken here go by position.
            id: makes the start idempotent: a second start with equal input returns the same run, for a year after
                the run was deleted, too.
            unique_key: held while the run is open, by one run of the workflow at a time.
            on_conflict: what to do when another run has the unique key: `raise`, or `return` that run.
            delay: how long to wait before it begins.
            start_at: when it begins, instead of a delay.
            timeout: how long it may take from its beginning; then it fails with RunTimeout.
            priority: from -100 to 100; runs of a higher one are continued first when many are due.
            attributes: searchable: `engine.runs(attributes={"move_id": 123})`.
            actor: who started it.
            tenant: for whom.
            connection: a connection of psycopg to the same PostgreSQL database: the run is started if and when the
                transaction commits that is open there.

        Raises:
            RunConflict: the id belongs to a run with other input or of another workflow.
            UniqueConflict: another open run has the unique key; its id is `run_id`.
            RunRejected: the workflow has as many runs as it may, and `on_full="reject"`; nothing was stored.
            BadInput: the arguments do not fit, or the connection is None; nothing was stored.
        """
        given = (id, unique_key, on_conflict, delay, start_at, timeout, priority, attributes, actor, tenant, connection)
        said = {} if all(map(is_, given, _DEFAULTS)) else options_given(StartsRuns.start, locals())
        starting = self._starter.start(workflow, args, kwargs, said)
        # Without an id it asks for one thing; in a transaction of the caller's own, its connection says how long.
        several = id is not None and connection is msgspec.UNSET
        run_id, result_type, _ = await (within(self._call_patience, starting) if several else starting)
        return RunHandle(self._client, run_id, result_type)

    async def start_for(
        self,
        by: str,
        workflow: str,
        arguments: Mapping[str, Any],
        options: StartKeywords,
        reason: str = "",
    ) -> tuple[str, bool]:
        """Start a run for a person, on record in the audit trail; return its id, and whether it was not there before.

        The arguments are given by name, apart from the options of `start`, so that both may have the same names.

        Raises:
            RunConflict, UniqueConflict, RunRejected, BadInput: as `start` does.
        """
        check_who(by, reason)
        audit = audited(self._link, by, "start", reason=reason or None, workflow=workflow)
        said = {"actor": by, **options}
        starting = self._starter.start(workflow, (), dict(arguments), said, audit)
        run_id, _, new = await within(self._call_patience, starting)
        return run_id, new

    async def start_many(
        self,
        workflow: Workflow[P, R] | str,
        inputs: Iterable[Any],
        /,
        *,
        id: Callable[[Any], str] | None = None,
        **options: Any,
    ) -> list[RunHandle[R]]:
        """Start a run for each input (a tuple is several arguments) and return their handles, in order.

        `id` makes the id of each from its input; `options` are those of start, the same for all. Many share a commit.
        If one cannot be started the error is raised after the others were.
        """
        wanted = [each if isinstance(each, tuple) else (each,) for each in inputs]
        ids = [id(*args) for args in wanted] if id is not None else [None] * len(wanted)
        started: list[RunHandle[Any] | BaseException] = []
        for first in range(0, len(wanted), _AT_ONCE):
            some = zip(wanted[first : first + _AT_ONCE], ids[first : first + _AT_ONCE], strict=True)
            starting = [self.start(workflow, *args, id=run_id, **options) for args, run_id in some]
            started += await asyncio.gather(*starting, return_exceptions=True)
        for outcome in started:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in started if not isinstance(outcome, BaseException)]

    @overload
    async def execute(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def execute(self, workflow: Takes0[R], /, **options: Unpack[StartKeywords]) -> R: ...
    @overload
    async def execute(self, workflow: Takes1[A, R], a: A, /, **options: Unpack[StartKeywords]) -> R: ...
    @overload
    async def execute(self, workflow: Takes2[A, B, R], a: A, b: B, /, **options: Unpack[StartKeywords]) -> R: ...
    @overload
    async def execute(
        self, workflow: Takes3[A, B, C, R], a: A, b: B, c: C, /, **options: Unpack[StartKeywords]
    ) -> R: ...
    @overload
    async def execute(
        self, workflow: Takes4[A, B, C, D, R], a: A, b: B, c: C, d: D, /, **options: Unpack[StartKeywords]
    ) -> R: ...
    @overload
    async def execute(
        self,
        workflow: TakesMore[R],
        a: Any,
        b: Any,
        c: Any,
        d: Any,
        e: Any,
        /,
        *more: Any,
        **options: Unpack[StartKeywords],
    ) -> R: ...
    @overload
    async def execute(self, workflow: TakesMore[R], /, *, id: str, **more: Any) -> R: ...
    @overload
    async def execute(self, workflow: Takes1[A, R], a: A, /, *, id: str, **more: Any) -> R: ...
    @overload
    async def execute(self, workflow: Takes2[A, B, R], a: A, b: B, /, *, id: str, **more: Any) -> R: ...
    @overload
    async def execute(self, workflow: Takes3[A, B, C, R], a: A, b: B, c: C, /, *, id: str, **more: Any) -> R: ...
    @overload
    async def execute(self, workflow: str, /, *args: Any, **kwargs: Any) -> Any: ...
    async def execute(self, workflow: Any, /, *args: Any, **options: Any) -> Any:
        """Start a run (see start) and wait for its result."""
        handle: RunHandle[Any] = await self.start(workflow, *args, **options)
        return await handle.result()
