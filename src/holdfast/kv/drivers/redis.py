"""A driver over a Redis server (extra `redis`): values in a hash, keys in a sorted set, a batch is one script."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from holdfast.clock import from_datetime, to_datetime
from holdfast.errors import (
    BadInput,
    MissingExtra,
    NotAsExpected,
    OutcomeUnknown,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from holdfast.kv.driver import Driver, Expected, Pair, check_sizes

_LIST = """
local found = {}
for _, key in ipairs(redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2])) do
  local value = redis.call('HGET', KEYS[2], key)
  found[#found + 1] = struct.pack('>I4I4', #key, #value)
  found[#found + 1] = key
  found[#found + 1] = value
end
return table.concat(found)
"""
"""All in one string: clients take longer to read thousands of answers than a replay takes."""
_LENGTHS = struct.Struct(">II")
_BATCH = """
local made = tonumber(redis.call('GET', KEYS[3]) or '0')
if made >= tonumber(ARGV[1]) then
  return false
end
if made < tonumber(ARGV[2]) then
  return made
end
local at, expected, puts, deletes = 6, tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
for _ = 1, expected do
  local value = redis.call('HGET', KEYS[2], ARGV[at])
  if (ARGV[at + 1] == '1') ~= (value ~= false) or (value and value ~= ARGV[at + 2]) then
    return ARGV[at]
  end
  at = at + 3
end
for _ = 1, puts do
  redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
  redis.call('ZADD', KEYS[1], 0, ARGV[at])
  at = at + 2
end
for _ = 1, deletes do
  redis.call('HDEL', KEYS[2], ARGV[at])
  redis.call('ZREM', KEYS[1], ARGV[at])
  at = at + 1
end
redis.call('SET', KEYS[3], ARGV[1], 'EX', 600)
return false
"""
"""Clients ask again when the answer was lost. So the number of a driver's last batch is remembered for as long as that
may take, and a batch that was made is not made once more, over what came after it. A server that does not remember the
batch before is another one, to which the last batches had not come: nothing is written upon what is not there."""
_REMEMBERED = 600.0
"""For how many seconds, as the script says."""


class RedisDriver(Driver):
    """One key space on a Redis server, under a name of its own.

    `client` is a `redis.asyncio.Redis`, which may serve many drivers and must not decode responses. Made by
    `await RedisDriver.open(client, name)`, the driver has asked the server how it keeps what it is told: `durability`
    is `disk` only if it appends to a file and syncs that always.

    Raises:
        MissingExtra: the package redis is not installed.
        BadInput: the client is not one of `redis.asyncio`, or decodes responses.
    """

    max_value = 64 * 1024 * 1024
    compares = True
    durability: Literal["disk", "process"] = "process"

    def __init__(self, client: Any, name: str) -> None:
        try:
            import redis
        except ImportError as error:
            raise MissingExtra("RedisDriver", "redis") from error
        if isinstance(client, redis.Redis):
            raise BadInput("RedisDriver needs a client of redis.asyncio, not one that blocks the event loop")
        if client.get_encoder().decode_responses:
            raise BadInput("RedisDriver needs a client that returns bytes: leave out decode_responses=True")
        self._errors: Any = redis.exceptions
        self._client = client
        self._own = False
        self.name = name
        # The braces keep all of them on one server of a cluster.
        self._order, self._values, self._alarm, self._made = (
            f"{{holdfast:{name}}}:{part}" for part in ("order", "values", "alarm", f"made:{secrets.token_hex(8)}")
        )
        self._number = self._made_number = 0
        self._made_at = 0.0
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, client: Any, name: str) -> RedisDriver:
        """Return a driver that knows what its server promises."""
        driver = cls(client, name)
        try:
            settings: Mapping[Any, Any] = await client.config_get("append*")
        except (driver._errors.ConnectionError, driver._errors.TimeoutError, OSError) as error:
            raise StoreUnreachable(f"redis: {error}") from error
        except driver._errors.ResponseError:
            return driver  # it does not say
        said = {_text(key): _text(value) for key, value in settings.items()}
        if said.get("appendonly") == "yes" and said.get("appendfsync") == "always":
            driver.durability = "disk"
        return driver

    @classmethod
    async def connect(cls, url: str, name: str) -> RedisDriver:
        """Return a driver with a connection of its own to the server of an address, closed with the driver."""
        try:
            import redis.asyncio
        except ImportError as error:
            raise MissingExtra("RedisDriver", "redis") from error
        # A batch whose answer was lost must not be sent again by the client: the caller has to know of it.
        client: Any = redis.asyncio.Redis.from_url(url, retry=None)
        try:
            driver = await cls.open(client, name)
        except BaseException:
            await client.aclose()
            raise
        driver._own = True
        return driver

    async def close(self) -> None:
        """Close the connection, if it is this driver's own."""
        if self._own:
            await self._client.aclose()

    async def get(self, key: bytes) -> bytes | None:
        found: bytes | None = await self._ask(self._client.hget(self._values, key))
        return found

    async def list(self, prefix: bytes) -> Sequence[Pair]:
        end = _after(prefix)
        low, high = b"[" + prefix if prefix else b"-", b"(" + end if end is not None else b"+"
        found: bytes = await self._ask(self._client.eval(_LIST, 2, self._order, self._values, low, high))
        pairs: list[Pair] = []
        at = 0
        while at < len(found):
            key, value = _LENGTHS.unpack_from(found, at)
            start, at = at + _LENGTHS.size, at + _LENGTHS.size + key + value
            pairs.append((found[start : start + key], found[start + key : at]))
        return pairs

    async def batch(
        self, puts: Mapping[bytes, bytes], deletes: Collection[bytes] = (), expect: Expected | None = None
    ) -> None:
        check_sizes(self, puts, deletes)
        expect = expect or {}
        given: list[bytes | int] = [0, 0, len(expect), len(puts), len(deletes)]
        for key, value in expect.items():
            given += [key, 0 if value is None else 1, value or b""]
        for key, value in puts.items():
            given += [key, value]
        given += deletes
        async with self._turn:
            self._number += 1
            given[0] = self._number
            if self._made_at + _REMEMBERED / 2 > asyncio.get_running_loop().time():
                given[1] = self._made_number
            asked = self._client.eval(_BATCH, 3, self._order, self._values, self._made, *given)
            wrong = await self._ask(asked, writes=True)
            if wrong is None:
                self._made_number, self._made_at = self._number, asyncio.get_running_loop().time()
        if isinstance(wrong, int):
            self._made_number = 0  # who is told of it goes on from what is there
            raise OutcomeUnknown("redis: the server does not know the batches before this one: another took its place")
        if wrong is not None:
            raise NotAsExpected(f"key {wrong!r} has another value than the batch expects: another driver wrote it")

    async def set_alarm(self, at: datetime) -> None:
        await self._ask(self._client.set(self._alarm, str(from_datetime(at))), writes=True)

    async def clear_alarm(self) -> None:
        await self._ask(self._client.delete(self._alarm), writes=True)

    async def get_alarm(self) -> datetime | None:
        stored = await self._ask(self._client.get(self._alarm))
        return to_datetime(int(stored)) if stored is not None else None

    async def _ask(self, asked: Any, writes: bool = False) -> Any:
        try:
            return await asked
        except self._errors.ResponseError as error:
            # Whether there is memory the server decides once, before a script begins.
            full = isinstance(error, self._errors.OutOfMemoryError) or str(error).startswith("MISCONF")
            raise (StoreFull if full else StoreError)(f"redis: nothing was written: {error}") from error
        except (self._errors.ConnectionError, self._errors.TimeoutError, OSError) as error:
            if writes:
                raise OutcomeUnknown(f"redis: the answer was lost: {error}") from error
            raise StoreUnreachable(f"redis: {error}") from error


def _after(prefix: bytes) -> bytes | None:
    """Return the first bytes after all that begin with a prefix, None if there are none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
