"""Key spaces for tests of an engine on them: one of each driver."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.redis_server import missing
from tests.support.waiting import soon


@pytest.fixture(scope="session")
def redis_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the socket of a Redis server that this process of tests has for itself; nothing is synced."""
    if why := missing():
        pytest.skip(why)
    socket = tmp_path_factory.mktemp("redis") / "redis.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--dir", str(socket.parent), "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert soon(socket.exists)
    yield socket
    process.send_signal(signal.SIGKILL)
    process.wait()
