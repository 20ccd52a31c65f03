"""A Redis server of a test's own, on a socket, which syncs everything that it is told."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

LONG = 120.0


def missing(environ: dict[str, str] | os._Environ[str] = os.environ) -> str:
    """Return why no server can be had here, empty if one can, or if it is required: then its absence is a failure."""
    if environ.get("HOLDFAST_REDIS") == "required" or shutil.which("redis-server", path=environ.get("PATH")):
        return ""
    return "redis-server is not installed: `make redis`"


class RedisServer:
    """A server that can be killed and started again with what it had on disk."""

    def __init__(self, folder: Path, fsync: str = "always") -> None:
        self.folder, self.socket, self._fsync = folder, str(folder / "redis.sock"), fsync

    def start(self) -> None:
        import redis

        command = [
            "redis-server", "--port", "0", "--unixsocket", self.socket, "--dir", str(self.folder),
            "--appendonly", "yes", "--appendfsync", self._fsync, "--save", "",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = redis.Redis(unix_socket_path=self.socket)
        end = time.monotonic() + LONG
        while True:
            try:
                client.ping()
                break
            except redis.exceptions.RedisError:
                assert time.monotonic() < end, "the server does not answer"
                assert self.process.poll() is None, "the server has ended"
                time.sleep(0.01)
        client.close()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def client(self, **options: Any) -> Any:
        """Return a client that tries nothing twice, unless it is told to."""
        import redis.asyncio

        return redis.asyncio.Redis(unix_socket_path=self.socket, **{"retry": None, **options})


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """Start a server and end it; where there is none the test is skipped, or fails if HOLDFAST_REDIS=required."""
    why = missing()
    if why:
        pytest.skip(why)
    server = RedisServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
