"""The contract of a key-value store: what a driver must do so that a run on it survives a crash at any moment.

A driver is one key space: one run (`drive`), or one engine. The driver isolates the space, so keys carry no run id. One
process at a time writes it, except for `deliver`. Methods may be plain functions or coroutine functions; a plain one
blocks the event loop for as long as it takes. `holdfast.testing.drivers.DriverConformance` tests all of this for any
driver.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypeVar

from holdfast.errors import PayloadTooLarge

Pair: TypeAlias = tuple[bytes, bytes]
Expected: TypeAlias = Mapping[bytes, bytes | None]
T = TypeVar("T")


class Driver(ABC):
    """One key space with an alarm. Keys and values are bytes; keys are never empty."""

    max_key: int = 1024
    """The longest key, in bytes."""
    max_value: int = 16 * 1024 * 1024
    """The longest value, in bytes. Longer ones are spread over several keys by holdfast."""
    max_batch: int = 100_000
    """How many keys one batch may put and delete together. A turn of a run that needs more is refused."""
    compares: bool = False
    """Whether `batch` takes `expect`. Without it one driver at a time is a promise of the program's."""
    exclusive: bool = False
    """Whether no other process can have the key space open while this driver has: what had it before is gone."""
    durability: Literal["disk", "process"] = "disk"
    """What survives when `batch` has returned: a power cut (`disk`), or only the end of this process (`process`)."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | Awaitable[bytes | None] | None:
        """Return the value of a key, None if there is none."""

    @abstractmethod
    def list(self, prefix: bytes) -> Sequence[Pair] | Awaitable[Sequence[Pair]]:
        """Return every key that begins with exactly these bytes, and its value, in the order of the keys' bytes.

        It shows one moment: all of a batch or nothing of it.
        """

    @abstractmethod
    def batch(
        self, puts: Mapping[bytes, bytes], deletes: Collection[bytes] = (), expect: Expected | None = None
    ) -> Awaitable[None] | None:
        """Put and delete keys, all of it or nothing, durable when it returns. Deleting what is not there is no error.

        No key is both put and deleted. With `expect`, where the driver `compares`: only if each of these keys has that
        value (None: is not there), decided together with the write.

        Raises:
            NotAsExpected: a key had another value; nothing was written.
            OutcomeUnknown: the answer was lost: all of it may have been written, or nothing.
            StoreError: any other: nothing was written.
        """

    @abstractmethod
    def set_alarm(self, at: datetime) -> Awaitable[None] | None:
        """Have the run driven at an instant, durable when it returns. There is one alarm; this one replaces it.

        An alarm in the past is due at once. One that comes early, late or twice does no harm; one that is lost does.
        """

    @abstractmethod
    def clear_alarm(self) -> Awaitable[None] | None:
        """Have no alarm; none there is no error."""

    @abstractmethod
    def get_alarm(self) -> datetime | Awaitable[datetime | None] | None:
        """Return the instant of the alarm, None if there is none. It is still there after it was due."""

    def close(self) -> Awaitable[None] | None:  # noqa: B027  # most drivers hold nothing
        """Let go of files and connections; closing twice is no error."""


async def answer(given: T | Awaitable[T]) -> T:
    """Return what a method of a driver gave, or await it."""
    if inspect.isawaitable(given):
        awaited: Any = await given
        return awaited  # type: ignore[no-any-return]  # what it is to give, its signature says
    return given


def check_sizes(driver: Driver, puts: Mapping[bytes, bytes], deletes: Collection[bytes]) -> None:
    """Refuse a batch that is larger than its driver declares to take.

    Raises:
        PayloadTooLarge: it names what is too large.
    """
    if len(puts) + len(deletes) > driver.max_batch:
        raise PayloadTooLarge(
            f"a batch of {len(puts) + len(deletes)} keys, and {type(driver).__name__} takes {driver.max_batch}; "
            "begin fewer steps at once"
        )
    for key, value in puts.items():
        if len(key) > driver.max_key:
            raise PayloadTooLarge(
                f"a key of {len(key)} bytes, and {type(driver).__name__} takes {driver.max_key}: {key[:60]!r}...; "
                "nest joins, races and loops less deeply"
            )
        if len(value) > driver.max_value:
            raise PayloadTooLarge(
                f"a value of {len(value)} bytes, and {type(driver).__name__} takes {driver.max_value}"
            )
