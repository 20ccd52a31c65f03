"""Runs that began in another runtime and continue here, in the middle of their code.

A `HandOver` is the whole state of a run while nothing is under way for it. The run is started here under its own id,
once for each token: after a crash the caller hands it over again, with the same token, and nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec
from temporalio.api.common.v1 import Payloads, WorkflowType
from temporalio.api.enums.v1 import WorkflowIdConflictPolicy as CONFLICT
from temporalio.api.enums.v1 import WorkflowIdReusePolicy as REUSE
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.common import (
    RawValue,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.converter import encode_search_attributes
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from holdfast.clock import Instant
from holdfast.contract.rows import EntryRow, InboxKind, Message
from holdfast.errors import BadInput, RunConflict, StoreUnreachable
from holdfast.temporal.sdk import tagged
from holdfast.temporal.wire import ACTS, MOST_BYTES, VERSION, Carry, RunRules, linked, packed, raw, too_large

TOKEN = "token"  # noqa: S105  # a name, no secret
"""Under which name the memo of a run has the token of the hand-over it was started from."""
ABSENT = ""
"""The token of a run that is not there."""
FORWARDED = frozenset({InboxKind.MESSAGE, InboxKind.CHILD_ENDED, InboxKind.CANCEL})
"""The kinds of inbox rows that a hand-over may have, and that can be forwarded to a run here."""


class HandOver(msgspec.Struct, frozen=True, kw_only=True):
    """An open run as another runtime leaves it: no attempt, message or start of a child is under way for it.

    A step that was called and has no end begins another attempt here. Parents go before their children, so that a child
    that ends at once finds its parent.
    """

    token: str
    """Names this hand-over: the same each time it is tried."""
    id: str
    workflow: str
    queue: str
    """Of the workflow, as definitions name it."""
    input: str
    seed: int
    digest: int
    begun: Instant
    version: str = ""
    """Of its workflow."""
    rows: Sequence[EntryRow] = ()
    """The history of its present life, in order."""
    inbox: Sequence[Message] = ()
    """What was sent to it and its code has not taken, of the kinds in FORWARDED."""
    seen: Sequence[str] = ()
    """The ids of messages that it has taken; those of `inbox` need not be named."""
    generation: int = 0
    reopens: int = 0
    begins: Instant | None = None
    """When it begins, if it has not begun."""
    timeout: int | None = None
    deadline: Instant | None = None
    attributes: Mapping[str, str] = {}
    """Searchable attributes by name, each encoded."""
    evidence: Sequence[tuple[str, str, str, int]] = ()
    """Id, kind, data and time of each piece."""
    parent: str = ""
    children: Mapping[str, bool] = {}
    """The children that have not ended, and whether they are cancelled with it."""
    paused: bool = False
    paused_until: Instant | None = None
    actor: str | None = None
    tenant: str | None = None
    unique_key: str | None = None


def carry_of(handed: HandOver, rules: RunRules) -> Carry:
    """Return a hand-over in the form in which one execution of Temporal's hands a run to the next.

    Raises:
        BadInput: its inbox has rows of a kind that only the runtime it comes from can take.
    """
    strange = sorted({message.kind for message in handed.inbox} - FORWARDED)
    if strange:
        raise BadInput(f"run {handed.id!r} cannot be handed over with {', '.join(strange)} in its inbox")
    return Carry(
        version=VERSION,
        seed=handed.seed,
        digest=handed.digest,
        workflow_version=handed.version,
        generation=handed.generation,
        begun=handed.begins or handed.begun,
        timeout=handed.timeout,
        deadline=handed.deadline,
        rows=[(*row,) for row in handed.rows],
        inbox=[(n, *message[1:]) for n, message in enumerate(handed.inbox, 1)],
        numbers=len(handed.inbox),
        seen=[*dict.fromkeys([*handed.seen, *(message.id for message in handed.inbox if message.id)])],
        attributes=dict(handed.attributes),
        evidence=linked(handed.evidence),  # the chain is one of this runtime from its first piece on
        reopens=handed.reopens,
        parent=handed.parent,
        children=dict(handed.children),
        paused=handed.paused,
        paused_until=handed.paused_until,
        rules=rules,
    )


def check_size(handed: HandOver, rules: RunRules) -> int:
    """Return how many bytes a hand-over takes on its way.

    Raises:
        PayloadTooLarge: more than a server takes.
    """
    if len(handed.input) > MOST_BYTES:
        raise too_large(f"the input of run {handed.id!r}", len(handed.input))
    size = packed(carry_of(handed, rules)).payload.ByteSize()
    if size > MOST_BYTES:
        raise too_large(f"what run {handed.id!r} has recorded", size)
    return size + len(handed.input)


class TakesOver:
    """Starts runs in one namespace from hand-overs."""

    def __init__(self, client: Client, rules: RunRules, tagging: bool, queue_of: Callable[[str], str]) -> None:
        self._client = client
        self._rules = rules
        self._tagging = tagging
        self._queue_of = queue_of

    async def take_over(self, handed: HandOver, now: Instant) -> bool:
        """Let a run go on here; False if it was started from the same hand-over before.

        Raises:
            RunConflict: another run has its id here.
            PayloadTooLarge: it does not fit through.
            StoreUnreachable: the server did not do it.
        """
        check_size(handed, self._rules)
        memo = {
            TOKEN: handed.token,
            "digest": str(handed.digest),
            "actor": handed.actor,
            "tenant": handed.tenant,
            "unique_key": handed.unique_key,
            "parent": handed.parent or None,
        }
        wait = max(handed.begins - now, 0) if handed.begins is not None else 0
        carry = msgspec.structs.replace(carry_of(handed, self._rules), delay=wait)
        try:
            await self._client.start_workflow(
                handed.workflow,
                args=[raw(handed.input), packed(carry)],
                id=handed.id,
                task_queue=self._queue_of(handed.queue),
                result_type=RawValue,
                task_timeout=self._rules.task_timeout,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                memo={key: value for key, value in memo.items() if value is not None},
                search_attributes=tagged(handed.attributes, self._tagging),
                start_delay=timedelta(microseconds=wait) if wait else None,
            )
        except WorkflowAlreadyStartedError:
            there = await self._memo(handed.id)
            if there.get(TOKEN) == handed.token:
                return False
            if not there.get("moved"):
                raise RunConflict(handed.id, "exists on the Temporal server already, and is another run") from None
            await self._start_again(handed, memo, carry)
        except RPCError as error:
            words = str(error).split("\n", 1)[0][:300]
            raise StoreUnreachable(f"the Temporal server did not take over run {handed.id!r}: {words}") from error
        return True

    async def token_of(self, run_id: str) -> str | None:
        """Return the token of the hand-over that a run was started from, None if from none, ABSENT if it left again."""
        memo = await self._memo(run_id)
        if memo.get("moved"):
            return ABSENT
        return str(memo[TOKEN]) if memo.get(TOKEN) is not None else None

    async def _memo(self, run_id: str) -> Mapping[str, Any]:
        found: WorkflowExecutionDescription = await self._client.get_workflow_handle(run_id).describe()
        return await found.memo()

    async def _start_again(self, handed: HandOver, memo: Mapping[str, str | None], carry: Carry) -> None:
        """Start a run whose execution here was closed when it left.

        The server knows the start by the token, so that it is done once although the id may be used again: the SDK
        itself makes up a new name for each start.
        """
        client, encode = self._client, self._client.data_converter.encode
        asked = StartWorkflowExecutionRequest(
            namespace=client.namespace,
            request_id=handed.token,
            identity=client.identity,
            workflow_id=handed.id,
            workflow_type=WorkflowType(name=handed.workflow),
            task_queue=TaskQueue(name=self._queue_of(handed.queue)),
            input=Payloads(payloads=await encode([raw(handed.input), packed(carry)])),
            workflow_id_reuse_policy=REUSE.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
            workflow_id_conflict_policy=CONFLICT.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
        )
        asked.workflow_task_timeout.FromTimedelta(self._rules.task_timeout)
        for name, value in memo.items():
            if value is not None:
                asked.memo.fields[name].CopyFrom((await encode([value]))[0])
        if (tags := tagged(handed.attributes, self._tagging)) is not None:
            encode_search_attributes(tags, asked.search_attributes)
        if carry.delay:
            asked.workflow_start_delay.FromMicroseconds(carry.delay)
        try:
            await client.workflow_service.start_workflow_execution(asked)
        except RPCError as error:
            words = str(error).split("\n", 1)[0][:300]
            raise StoreUnreachable(f"the Temporal server did not take run {handed.id!r} back: {words}") from error

    async def forward(self, run_id: str, message: Message) -> None:
        """Pass on an inbox row that came after the run was handed over; one that it knows already changes nothing.

        Raises:
            BadInput: it is of a kind that cannot be forwarded.
        """
        if message.kind not in FORWARDED:
            raise BadInput(f"{message.kind} of run {run_id!r} cannot be forwarded")
        name, given = message.name, message.id
        if message.kind == InboxKind.CHILD_ENDED:
            name, given = ACTS + "child", f"{message.name}/0"
        elif message.kind == InboxKind.CANCEL:
            name, given = ACTS + "cancel", ""
        await self._client.get_workflow_handle(run_id).signal(name, raw(message.payload or "null", id=given))
