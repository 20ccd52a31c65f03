"""The command line over HTTP: the same words and the same bytes as on the database itself."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_cases import Answer, furnished
from tests.support.serving import TOKEN, served

from holdfast import __version__


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[str, str]]:
    database = f"sqlite:///{tmp_path}/shop.db"
    furnished(database)
    with served(database) as address:
        yield database, address


@pytest.fixture
def ask(capsys, monkeypatch):
    monkeypatch.setenv("HOLDFAST_ACTOR", "kim")
    monkeypatch.setenv("HOLDFAST_TZ", "UTC")
    monkeypatch.setenv("HOLDFAST_TOKEN", TOKEN)
    return lambda *arguments: Answer(capsys, *arguments)


LOOKS = [
    ("list",), ("list", "status:failed"), ("list", "--limit", "2"), ("show", "failed"), ("show", "done"),
    ("why", "sleeps"), ("why", "failed"), ("history", "done"), ("history", "done", "--newest"), ("steps", "done"),
    ("letters", "list"), ("letters", "groups"), ("schedules", "list"), ("queues",), ("limits", "list"), ("events",),
    ("events", "parcel"), ("audit", "list"), ("audit", "verify"), ("result", "done"), ("result", "failed"),
]  # fmt: skip
WRONG = [
    ("show", "none"), ("show", "a b"), ("list", "status:nonsense"), ("list", "workflo:x"), ("list", "--cursor", "abc"),
    ("why", "none"), ("list", "--limit", "0"),
]  # fmt: skip


def test_looking_over_http_gives_the_same_bytes_and_the_same_errors(shop, ask):
    database, address = shop
    for command in LOOKS:
        here, there = (ask(*command, "--json", "--url", where) for where in (database, address))
        assert (there.code, _timeless(there.out)) == (here.code, _timeless(here.out)), command
        assert there.out
    for command in WRONG:
        here, there = (ask(*command, "--url", where) for where in (database, address))
        assert (there.code, there.err) == (here.code, here.err), command
        assert there.code != 0


def test_the_audit_trail_is_exported_over_http_as_it_is_stored(shop, ask):
    database, address = shop
    here, there = (ask("audit", "export", "--url", where) for where in (database, address))
    assert (there.code, there.out) == (0, here.out)
    assert '"previous"' in there.out


def _timeless(out: str) -> str:
    """Return a document without what says how long ago something was: the two were asked one after the other."""
    return re.sub(r'"(as_of|said)": ?"[^"]*"', r'"\1": ""', out)


def test_acting_over_http_is_on_record_by_the_name_that_the_server_knows(shop, ask, monkeypatch):
    _, address = shop
    monkeypatch.setenv("HOLDFAST_ACTOR", "mallory")
    assert ask("pause", "sleeps", "--reason", "late", "--url", address).code == 0
    assert ask("set", "sleeps", "size=3", "--url", address).code == 0
    assert ask("send", "waits", "other", "1", "--url", address).code == 0
    many = ask("pause", "--where", "id:acc*", "--yes", "--expect", "1", "--url", address)
    assert many.code == 0, many.err
    trail = ask("audit", "list", "--json", "--url", address).out
    assert "mallory" not in trail
    assert '"late"' in trail


def test_without_a_token_that_is_known_nothing_is_shown(shop, ask, monkeypatch):
    _, address = shop
    monkeypatch.setenv("HOLDFAST_TOKEN", "hf_other")
    refused = ask("list", "--url", address)
    assert (refused.code, refused.out) == (4, "")
    monkeypatch.delenv("HOLDFAST_TOKEN")
    assert "set HOLDFAST_TOKEN" in ask("list", "--url", address).err


def test_the_token_may_be_in_a_file_which_comes_before_the_environment(shop, ask, monkeypatch, tmp_path):
    _, address = shop
    monkeypatch.setenv("HOLDFAST_TOKEN", "hf_other")
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    there = ("--url", address, "--token-file", str(file))
    assert ask("list", *there).code == 0
    assert ask("pause", "sleeps", *there).code == 0
    shown = ask("config", *there)
    assert (TOKEN in shown.out, f"--token-file {file}" in " ".join(shown.out.split())) == (False, True)
    assert "hf_other" not in ask("config").out


@pytest.mark.parametrize("written", [None, b"", b"hf_one hf_two", b"\xff\xfe"])
def test_a_file_that_has_no_token_is_refused_by_name(ask, tmp_path, written):
    file = tmp_path / "token"
    if written is not None:
        file.write_bytes(written)
    refused = ask("list", "--url", "http://127.0.0.1:9", "--token-file", str(file))
    assert (refused.code, refused.out) == (2, "")
    assert f"--token-file {file}: " in " ".join(refused.err.split())
    assert "hf_one" not in refused.err


def test_a_server_that_is_not_there_is_said(ask):
    gone = ask("list", "--url", "http://127.0.0.1:9")
    assert (gone.code, "cannot be reached" in gone.err) == (4, True)


class _Older(http.server.BaseHTTPRequestHandler):
    """A server of an older version: it has no path for one question, and answers another with fewer fields."""

    def do_GET(self) -> None:
        known: dict[str, dict[str, object]] = {
            "/api/v1/": {"version": "0.0.9"},
            "/api/v1/queues": {"items": [{"queue": "gpu"}]},
        }
        answer = known.get(self.path.partition("?")[0], {"type": "/api/v1/problems/no-such-path", "detail": "nothing"})
        body = json.dumps(answer).encode()
        self.send_response(404 if "type" in answer else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *said: object) -> None:
        pass


@pytest.mark.parametrize("command", ["versions", "queues"])
def test_a_server_of_another_version_is_said(ask, command):
    """FACES 10.24: which version is where, and what to do."""
    with http.server.HTTPServer(("127.0.0.1", 0), _Older) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            old = ask(command, "--url", f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
    assert old.code == 1
    assert f"is holdfast 0.0.9 and {'has no' if command == 'versions' else 'answers'} GET /{command}" in old.err
    assert f"this is holdfast {__version__}: use the same version on both" in old.err


class _Busy(_Older):
    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        if self.asked < 3:
            self.send_response(429)
            self.send_header("Retry-After", "0")
            body = b'{"type": "/api/v1/problems/too-many", "detail": "wait"}'
        else:
            self.send_response(200)
            body = b'{"items": []}'
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_a_server_that_is_asked_too_often_is_asked_again_when_it_says(ask):
    with http.server.HTTPServer(("127.0.0.1", 0), _Busy) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            found = ask("queues", "--url", f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
    assert (found.code, _Busy.asked) == (0, 3)


def test_a_value_is_revealed_over_http_as_on_the_database(shop, ask):
    database, address = shop
    for where in (database, address):
        shown = ask("reveal", "done", "input", "--reason", "INC-7", "--url", where)
        assert (shown.code, json.loads(shown.out)) == (
            0,
            json.loads(ask("show", "done", "--json", "--url", database).out)["input"],
        )
        refused = ask("reveal", "done", "input", "/none", "--reason", "INC-7", "--url", where)
        assert (refused.code, "there is no value at '/none'" in refused.err) == (2, True)
        unexplained = ask("reveal", "done", "input", "--url", where)
        assert (unexplained.code, "needs a reason" in unexplained.err) == (2, True)
    trail = json.loads(ask("audit", "list", "--json", "--url", database).out)["items"]
    assert [row["target"] for row in trail if row["action"] == "reveal"] == ["done", "done"]
