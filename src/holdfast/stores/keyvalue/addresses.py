"""Addresses of key spaces: `kv+dir:///path`, `kv+lmdb:///path`, `kv+redis://host/0?space=name`, `kv+memory://name`."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from holdfast.errors import BadInput, CannotOpen
from holdfast.kv.driver import Driver
from holdfast.kv.drivers.directory import DirectoryDriver
from holdfast.kv.drivers.memory import MemoryDriver
from holdfast.stores.keyvalue.looking import DirectoryLook
from holdfast.stores.keyvalue.store import KeyValueStore

_FORMS = "write kv+dir:///path, kv+lmdb:///path, kv+redis://host:6379/0?space=name or kv+memory://name"
_SPACE = "engine"

_in_memory: dict[str, MemoryDriver] = {}
"""The key spaces in memory that have a name: they last as long as the process."""


def open_key_space(kind: str, rest: str) -> KeyValueStore:
    """Return the store of an address, not yet opened; `rest` is what follows `kv+dir:`.

    Raises:
        BadInput: it names no key space. The address, which may have a password in it, is not shown.
    """
    made = _KINDS.get(kind.lower())
    if made is None:
        raise BadInput(f"kv+{kind}: is not a known kind of store; {_FORMS}")
    return made(rest)


def _directory(rest: str) -> KeyValueStore:
    path = os.path.abspath(_path("dir", rest))
    return KeyValueStore(
        lambda: DirectoryDriver(path),
        name=os.path.basename(path),
        shown=f"kv+dir:///{path}",
        path=path,
        open_to_look=lambda: DirectoryLook(path),
    )


def _lmdb(rest: str) -> KeyValueStore:
    path = os.path.abspath(_path("lmdb", rest))

    def open_driver() -> Driver:
        from holdfast.kv.drivers.lmdb import LMDBDriver

        return LMDBDriver(path)

    def open_to_look() -> Driver:
        from holdfast.kv.drivers.lmdb import is_environment

        if not is_environment(path):
            raise CannotOpen(f"{path}: there is no such database")
        return open_driver()

    return KeyValueStore(
        open_driver,
        name=os.path.basename(path),
        shown=f"kv+lmdb:///{path}",
        path=path,
        open_to_look=open_to_look,
    )


def _memory(rest: str) -> KeyValueStore:
    name = unquote(rest.removeprefix("//"))
    if not name:
        return KeyValueStore(MemoryDriver(), shown="kv+memory://")
    return KeyValueStore(lambda: _in_memory.setdefault(name, MemoryDriver()), name=name, shown=f"kv+memory://{name}")


def _redis(scheme: str) -> Callable[[str], KeyValueStore]:
    def made(rest: str) -> KeyValueStore:
        try:
            parts = urlsplit(f"{scheme}:{rest}")
            host, port = parts.hostname, parts.port
            options = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise BadInput(f"the address of the Redis server cannot be understood; {_FORMS}") from error
        if not host:
            raise BadInput(f"the address names no server; {_FORMS}")
        space = options.pop("space", [_SPACE])[-1]
        url = parts._replace(query=urlencode(options, doseq=True)).geturl()
        shown = f"kv+{scheme}://{host}{f':{port}' if port else ''}{parts.path}?space={space}"
        return KeyValueStore(lambda: _open_redis(url, space), name=space, shown=shown)

    return made


def _open_redis(url: str, space: str) -> Awaitable[Driver]:
    from holdfast.kv.drivers.redis import RedisDriver

    return RedisDriver.connect(url, space)


def _path(kind: str, rest: str) -> str:
    path = rest.removeprefix("//").removeprefix("/")
    if not path or "?" in path:
        raise BadInput(f"the address names no directory; write kv+{kind}:///relative or kv+{kind}:////absolute")
    return path


_KINDS: dict[str, Callable[[str], KeyValueStore]] = {
    "dir": _directory,
    "lmdb": _lmdb,
    "memory": _memory,
    "redis": _redis("redis"),
    "rediss": _redis("rediss"),
}
