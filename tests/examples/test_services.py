"""The examples that are web services: several real processes on one database, killed and started again."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT
from tests.support.waiting import soon

FOLDER = ROOT / "examples"
PATIENCE = 300.0
"""For how many seconds a server may take to start, or to answer: a busy machine begins three processes slowly."""


class OverSocket(http.client.HTTPConnection):
    """HTTP over a Unix socket, whose name no other test can have taken."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Service:
    """A server of several processes, all of which are killed at once."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self._folder = folder
        self._command = command
        self._socket = folder / "s"
        self._output = folder / "output"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._socket.unlink(missing_ok=True)
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", *self._command],
                cwd=self._folder,
                env=os.environ | {"DATABASE": str(self._folder / "orders.db")},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        assert soon(self._answers, PATIENCE), self.output

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    @property
    def output(self) -> str:
        return self._output.read_text()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = OverSocket(self._socket)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"})
            answer = connection.getresponse()
            told = answer.read()
            return answer.status, json.loads(told) if answer.getheader("content-type") == "application/json" else told
        finally:
            connection.close()

    def _answers(self) -> bool:
        try:
            return self.ask("GET", "/orders/999999")[0] == 404
        except (OSError, http.client.HTTPException):
            assert self._process is not None
            assert self._process.poll() is None, self.output
            return False


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    with tempfile.TemporaryDirectory() as folder:  # short: the name of a socket has a hundred characters at most
        service = Service(Path(folder), [argument.replace("{folder}", folder) for argument in request.param])
        try:
            yield service
        finally:
            service.kill()


FASTAPI = ["uvicorn", "--app-dir", str(FOLDER), "--workers", "2", "--uds", "{folder}/s", "web_service:app"]
FLASK = ["gunicorn", "--config", str(FOLDER / "flask_service/gunicorn.conf.py"), "--bind", "unix:{folder}/s"]
FLASK += ["--chdir", str(FOLDER / "flask_service"), "app:app"]


@pytest.mark.parametrize("service", [FASTAPI, FLASK], ids=["fastapi", "flask"], indirect=True)
def test_a_service_of_two_processes_is_killed_and_goes_on(service: Service):
    """G1 G3 G7 S0-60 What was acknowledged is there when it is started again, by whichever process it was."""
    orders = range(1, 6)
    order = {"item": "kettle", "cents": 12900}
    service.start()
    assert service.ask("POST", "/orders/1/approval")[0] == 404
    for number in orders:
        assert service.ask("PUT", f"/orders/{number}", order)[0] == 202
    assert service.ask("PUT", "/orders/1", order)[0] == 202
    assert service.ask("PUT", "/orders/1", {"item": "piano", "cents": 1})[0] == 409
    for number in orders[:3]:
        assert service.ask("POST", f"/orders/{number}/approval")[0] == 202
    assert soon(lambda: "  charging" in service.output, PATIENCE), service.output
    service.kill()
    service.start()
    for number in orders:
        assert service.ask("POST", f"/orders/{number}/approval")[0] == 202

    def all_completed() -> bool:
        return all(service.ask("GET", f"/orders/{number}")[1]["status"] == "completed" for number in orders)

    assert soon(all_completed, PATIENCE), service.output
    for number in orders:
        assert service.ask("GET", f"/orders/{number}")[1]["result"] == "paid 129.00, parcel with a kettle"
    assert service.ask("POST", "/orders/1/approval")[0] == 202  # it was taken: repeating it is no error
