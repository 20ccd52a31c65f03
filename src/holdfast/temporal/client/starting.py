"""Starting runs on Temporal: once for each id, with equal input."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec
from temporalio.common import (
    RawValue,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from holdfast.clock import new_id, new_seed
from holdfast.contract.turns import Audit
from holdfast.definitions import DEFAULT_QUEUE, Workflow, check_run_id
from holdfast.engine.client.start import StartOptions, input_of, same_run
from holdfast.errors import InvalidId, NotOffered, StoreUnreachable, UniqueConflict
from holdfast.temporal.client.answers import moved_of
from holdfast.temporal.client.port import TemporalPort
from holdfast.temporal.sdk import tagged
from holdfast.temporal.wire import MOST_BYTES, VERSION, Carry, RunRules, packed, raw, too_large

_ONCE, _AGAIN = WorkflowIDReusePolicy.REJECT_DUPLICATE, WorkflowIDReusePolicy.ALLOW_DUPLICATE


class TemporalStarter:
    """Starts runs for an engine."""

    def __init__(self, port: TemporalPort, rules: RunRules, tagging: bool, queue_of: Callable[[str], str]) -> None:
        self._port = port
        self._rules = rules
        self._tagging = tagging
        self._queue_of = queue_of

    async def start(
        self,
        workflow: Workflow[Any, Any] | str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        said: Mapping[str, Any],
        audit: Audit | None = None,
    ) -> tuple[str, Any, bool]:
        """Start a run, or find the one that is there; return its id, the type of its result, and whether it is new."""
        asked = StartOptions(**said)
        _refuse(asked)
        now = self._port.clock.now()
        options = asked.of_run(now)
        definition, name, encoded, digest = input_of(
            self._port.registry, workflow, args, kwargs, said, unknown=True, engine="TemporalEngine"
        )
        if len(encoded) > MOST_BYTES:
            raise too_large(f"the input of workflow {name!r}", len(encoded))
        run_id = _keyed(name, asked.unique_key) if asked.unique_key is not None else asked.id
        run_id = check_run_id(run_id) if run_id is not None else new_id()
        wait = max(options.begins - now, 0) if options.begins is not None else 0
        carry = Carry(
            version=VERSION,
            delay=wait,
            seed=new_seed(),
            digest=digest,
            workflow_version=definition.version if definition is not None else "",
            timeout=options.timeout,
            attributes=dict(options.attributes),
            rules=self._rules,
        )
        memo = {"digest": str(digest), "actor": asked.actor, "tenant": asked.tenant, "unique_key": asked.unique_key}
        result_type = definition.result_type if definition is not None else Any
        delay = timedelta(microseconds=wait) if wait else None
        keyed = asked.unique_key is not None
        try:
            await self._port.client.start_workflow(
                name,
                args=[raw(encoded), packed(carry)],
                id=run_id,
                task_queue=self._queue_of(definition.queue if definition is not None else DEFAULT_QUEUE),
                result_type=RawValue,
                task_timeout=self._rules.task_timeout,
                id_reuse_policy=_AGAIN if keyed else _ONCE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                memo={key: value for key, value in memo.items() if value is not None},
                search_attributes=tagged(options.attributes, self._tagging),
                start_delay=delay,
                request_eager_start=delay is None,
            )
        except WorkflowAlreadyStartedError:
            if not keyed:
                return await self._same(run_id, name, digest), result_type, False
            if asked.on_conflict == "raise":
                raise UniqueConflict(run_id, name, asked.unique_key or "") from None
            return run_id, result_type, False
        except RPCError as error:
            words = str(error).split("\n", 1)[0][:300]
            raise StoreUnreachable(f"the Temporal server did not start run {run_id!r}: {words}") from error
        return run_id, result_type, True

    async def _same(self, run_id: str, name: str, digest: int) -> str:
        """Return the id of a run that is there, if it is the one that was to be started."""
        found = await self._port.described(run_id)
        memo = await found.memo()
        if (moved := moved_of(run_id, memo)) is not None:
            raise moved
        return same_run(run_id, name, digest, found.workflow_type, int(memo.get("digest", -1)))


def _refuse(asked: StartOptions) -> None:
    """Refuse options of a start that are not offered."""
    if asked.connection is not msgspec.UNSET:
        raise NotOffered("start(connection=...)", "transactions", "start it after the transaction has committed")
    if asked.priority:
        raise NotOffered("start(priority=...)", "priorities", "leave it out, or serve another queue with more workers")
    if asked.unique_key is not None and asked.id is not None:
        instead = "give the run a unique_key, which is its id while it is open, or an id"
        raise NotOffered("start(id=..., unique_key=...)", "unique_key.id", instead)


def _keyed(workflow: str, key: str) -> str:
    """Return the id of the run that holds a unique key."""
    try:
        return check_run_id(f"{workflow}={key}")
    except InvalidId:
        return f"key-{uuid.uuid5(uuid.NAMESPACE_URL, f'{workflow}={key}')}"
