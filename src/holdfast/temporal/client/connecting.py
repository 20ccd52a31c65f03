"""Reaching a Temporal server: its address, and why a server cannot serve."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from holdfast.errors import BadInput, CannotOpen, StoreUnreachable, UnsupportedServer

OLDEST = (1, 25)
"""The first server whose updates are on without a setting of its operator's."""
_TAGS = "HoldfastTags"


class ServerAddress(NamedTuple):
    """Where a namespace is."""

    target: str
    namespace: str

    def __str__(self) -> str:
        return f"temporal://{self.target}/{self.namespace}"


def address_of(url: str) -> ServerAddress:
    """Return the address that a URL names.

    Raises:
        BadInput: it names none.
    """
    parts = urlsplit(url)
    namespace = parts.path.strip("/") or "default"
    if parts.scheme != "temporal" or not parts.hostname or "/" in namespace or parts.username or parts.query:
        raise BadInput(f"{url!r} is no address of a Temporal server: write temporal://host:7233/namespace")
    try:
        port = parts.port or 7233
    except ValueError:
        raise BadInput(f"{url!r} has no port that could be one: write temporal://host:7233/namespace") from None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return ServerAddress(f"{host}:{port}", namespace)


async def connected(address: ServerAddress) -> Client:
    """Return a connection to a server.

    Raises:
        StoreUnreachable: there is none.
    """
    try:
        return await Client.connect(address.target, namespace=address.namespace)
    except RuntimeError as error:
        raise StoreUnreachable(
            f"no Temporal server answers at {address.target}: {_brief(error)}; is it running, and the port open?"
        ) from error


async def check_server(client: Client, address: ServerAddress, tags: bool) -> None:
    """Check that a server can serve.

    Raises:
        CannotOpen: it has no such namespace, or that namespace lacks the search attribute.
        UnsupportedServer: it is too old.
        StoreUnreachable: it does not answer.
    """
    try:
        info = await client.workflow_service.get_system_info(GetSystemInfoRequest())
        version = info.server_version
        numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:2] if part.isdigit())
        if len(numbers) == 2 and numbers < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise UnsupportedServer(
                f"the Temporal server at {address.target} is {version}: upgrade it to {oldest} or newer"
            )
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=address.namespace))
        if tags:
            listed = ListSearchAttributesRequest(namespace=address.namespace)
            found = await client.operator_service.list_search_attributes(listed)
            if _TAGS not in found.custom_attributes:
                raise CannotOpen(
                    f"namespace {address.namespace!r} lacks the search attribute by which runs are found: "
                    f"temporal operator search-attribute create --namespace {address.namespace} --name {_TAGS} "
                    "--type KeywordList; or TemporalEngine(..., tags=False), and attributes cannot be searched by"
                )
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise CannotOpen(
                f"the Temporal server at {address.target} has no namespace {address.namespace!r}: "
                f"temporal operator namespace create --namespace {address.namespace}"
            ) from error
        raise StoreUnreachable(f"the Temporal server at {address.target} does not answer: {_brief(error)}") from error


def _brief(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:300]
