"""A namespace as the target of a move: whether it can take the runs, has them, and continues them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from holdfast.clock import Instant
from holdfast.contract.rows import Message
from holdfast.errors import StoreUnreachable
from holdfast.temporal.client.connecting import ServerAddress, address_of, check_server, connected
from holdfast.temporal.client.handover import ABSENT, HandOver, TakesOver, check_size
from holdfast.temporal.wire import ACTS, RunRules, raw

T = TypeVar("T")


class MoveTarget:
    """Lets runs arrive in one namespace; every call is harmless when it is made again."""

    def __init__(
        self, address: ServerAddress, client: Client, rules: RunRules, tagging: bool, queue_of: Callable[[str], str]
    ) -> None:
        self.address = str(address)
        self._namespace = address.namespace
        self._client = client
        self._rules = rules
        self._takes = TakesOver(client, rules, tagging, queue_of)

    @classmethod
    async def connect(cls, url: str, *, tags: bool = True, client: Client | None = None) -> MoveTarget:
        """Return the end that an address names, once it is known that its server can serve.

        Raises:
            BadInput: the address names none.
            StoreUnreachable, CannotOpen, UnsupportedServer: its server cannot serve.
        """
        address = address_of(url)
        client = client or await connected(address)
        await check_server(client, address, tags)
        return cls(address, client, RunRules(), tags, lambda queue: f"holdfast.{queue}")

    def check_size(self, handed: HandOver) -> int:
        """Return how many bytes a hand-over takes.

        Raises:
            PayloadTooLarge: more than a server takes.
        """
        return check_size(handed, self._rules)

    async def retention(self) -> int:
        """Return for how many microseconds the server remembers runs that have ended."""
        asked = DescribeNamespaceRequest(namespace=self._namespace)
        found = await self._reached(self._client.workflow_service.describe_namespace(asked))
        return int(found.config.workflow_execution_retention_ttl.ToMicroseconds())

    async def token_of(self, run_id: str) -> str | None:
        """Return the token of the run that has an id there: None if it was not moved, ABSENT if there is none."""
        try:
            return await self._takes.token_of(run_id)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return ABSENT
            raise _silent(error) from error

    async def start(self, handed: HandOver, now: Instant) -> bool:
        """Let a run go on there; False if it was started by the same token before.

        Raises:
            RunConflict: another run has its id.
            StoreUnreachable: the server did not do it.
        """
        return await self._takes.take_over(handed, now)

    async def forward(self, run_id: str, message: Message) -> None:
        """Pass on what was sent to a run; what it has had already, or can take no more, changes nothing."""
        await self._unless_ended(self._takes.forward(run_id, message))

    async def resume(self, run_id: str) -> None:
        """Let a run go on that was started paused."""
        await self._unless_ended(self._client.get_workflow_handle(run_id).signal(ACTS + "resume", raw(b"null")))

    async def withdraw(self, run_id: str, token: str) -> None:
        """End a run that was started by this token and has not gone on."""
        if await self.token_of(run_id) == token:
            handle = self._client.get_workflow_handle(run_id)
            await self._unless_ended(handle.terminate(reason="it goes on where it came from"))

    async def _unless_ended(self, asking: Coroutine[Any, Any, None]) -> None:
        try:
            await asking
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise _silent(error) from error

    async def _reached(self, asking: Any) -> Any:
        try:
            return await asking
        except RPCError as error:
            raise _silent(error) from error


def _silent(error: RPCError) -> StoreUnreachable:
    words = str(error).split("\n", 1)[0][:300]
    return StoreUnreachable(f"the Temporal server does not answer: {words}")
