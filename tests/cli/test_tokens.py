"""`holdfast token`, and what the command line says over HTTP when a token is over."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command_cases import Answer, furnished
from tests.support.serving import served

PEM = Path(__file__).parent.parent / "support" / "localhost.pem"
"""A certificate for localhost with its key, which nothing else trusts."""
NAMED = ("--allow-host", "localhost")


@pytest.fixture
def shop(tmp_path: Path) -> str:
    database = f"sqlite:///{tmp_path}/shop.db"
    furnished(database)
    return database


@pytest.fixture
def ask(capsys, monkeypatch):
    monkeypatch.setenv("HOLDFAST_ACTOR", "ada")
    monkeypatch.setenv("HOLDFAST_TZ", "UTC")
    return lambda *arguments: Answer(capsys, *arguments)


def test_a_token_is_made_by_the_word_new_too(shop, ask):
    made = ask("token", "new", "--name", "kim", "--url", shop)
    assert (made.code, made.out[:3]) == (0, "hf_")
    assert "  new" not in ask("token", "--help").out, "one command, not two"


def created(ask, shop: str, *options: str) -> tuple[str, str]:
    """Return a new token, and its id."""
    answer = ask("token", "create", "--url", shop, *options)
    assert answer.code == 0, answer.err
    found = re.fullmatch(r"hf_([0-9a-f]{12})_[\w-]{43}\n", answer.out)
    assert found, answer.out
    return answer.out.strip(), found[1]


def test_a_token_is_written_once_and_listed_without_itself(shop, ask):
    token, id = created(ask, shop, "--name", "kim", "--role", "operator", "--expires", "30d", "--reason", "board")
    _, other = created(ask, shop, "--expires", "never")
    listed = ask("token", "list", "--url", shop).out
    assert re.search(rf"live +{id} +operator .* kim$", listed, re.MULTILINE)
    assert re.search(rf"live +{other} +viewer .* never +ada$", listed, re.MULTILINE)
    assert token not in listed
    assert ask("token", "revoke", id, "--url", shop, "--reason", "lost").out == f"token {id} can be used no more\n"
    again = ask("token", "revoke", id, "--url", shop)
    assert (again.code, "no token with this id" in again.out) == (6, True)
    states = json.loads(ask("token", "list", "--all", "--json", "--url", shop).out)["items"]
    assert {each["id"]: each["state"] for each in states} == {id: "revoked", other: "live"}
    assert id not in ask("token", "list", "--url", shop).out
    trail = ask("audit", "list", "--json", "--url", shop).out
    assert all(word in trail for word in ("token.create", "token.revoke", '"board"', '"lost"', f"token {id}"))
    assert token.split("_", 2)[2] not in trail


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--expires", "soon"), "write a number and s, min, h or d"),
        (("--expires", "0s"), "longer than zero"),
        (("--expires", "9999d"), "at most 3,650 days"),
        (("--role", "root"), "'root' is not one of"),
        (("--name", ""), "name of a token"),
    ],
)
def test_a_token_that_can_be_none_is_refused(shop, ask, options, said):
    refused = ask("token", "create", "--url", shop, *options)
    assert (refused.code, said in refused.err) == (2, True), refused.err


def test_over_http_a_token_that_is_over_is_told_so_and_what_to_do(shop, ask, monkeypatch):
    token, id = created(ask, shop, "--role", "admin")
    with served(shop, tokens=True) as address:
        monkeypatch.setenv("HOLDFAST_TOKEN", token)
        assert ask("list", "--url", address).code == 0
        other, _ = created(ask, address, "--name", "kim")
        assert "kim" in ask("token", "list", "--url", address).out
        assert ask("token", "revoke", id, "--url", address, "--reason", "done").code == 0
        over = ask("list", "--url", address)
        assert (over.code, over.out) == (4, "")
        assert f"the token {id} of ada was revoked on " in over.err
        assert "holdfast token create" in over.err
        assert "HOLDFAST_TOKEN" in over.err
        monkeypatch.setenv("HOLDFAST_TOKEN", other)
        refused = ask("token", "list", "--url", address)
        assert (refused.code, "needs the role admin" in refused.err) == (4, True)


def test_other_machines_are_served_by_tokens_and_tls(shop, ask, monkeypatch, tmp_path):
    """As it is deployed: a certificate, a name, a token; and nothing that was written has the token in it."""
    token, id = created(ask, shop, "--role", "operator", "--name", "kim")
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "ui",
        "--bind",
        "0.0.0.0:0",
        "--allow-host",
        "localhost",
        "--url",
        shop,
    ]
    without = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert (without.returncode, "it needs TLS" in without.stderr) == (2, True), without.stderr
    serving = subprocess.Popen(
        [*command, "--tls-cert", str(PEM), "--tls-key", str(PEM)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ},
    )  # fmt: skip
    try:
        assert serving.stdout is not None
        address = serving.stdout.readline().strip()
        assert re.fullmatch(r"https://localhost:\d+/", address), serving.stderr.read() if serving.stderr else ""
        monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
        monkeypatch.setenv("HOLDFAST_TOKEN", token)
        seen = ask("list", "--url", address)
        assert (seen.code, "failed" in seen.out) == (0, True), seen.err
        assert ask("pause", "sleeps", "--url", address).code == 0
        wrong = ask("list", "--url", address.replace("localhost", "127.0.0.1"))
        assert (wrong.code, "--allow-host" in wrong.err) == (4, True)
        assert ask("token", "revoke", id, "--url", shop).code == 0
        over = ask("list", "--url", address)
        assert (over.code, "was revoked on" in over.err) == (4, True)
    finally:
        serving.send_signal(signal.SIGINT)
        out, err = serving.communicate(timeout=60)
    assert serving.returncode == 0, err
    assert token.split("_", 2)[2] not in out + err + seen.out + seen.err + over.err
