"""The examples run on a real server as they are, and go on after two kills; what is not offered is refused by name."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.support.paths import ROOT

pytestmark = [pytest.mark.temporal, pytest.mark.leaves("process")]  # the server that the tests of the file share
FOLDER = ROOT / "examples"
SCRIPT = ROOT / "tests" / "temporal" / "example.py"
RESULTS = {
    "order.py": "payment of order-7, parcel of order-7",
    "fair_chance_housing.py": "APPROVED: assessed: nobody was hurt, nine years",
    "reminder.py": "reminded kim 3 times",
    "photo_upload.py": "move 123: photos/7de06ae9",
    "build_graph.py": "published server-main@4",
}
REFUSED = {
    "agent_loop.py": "shared_limits",
    "clean_up.py": "store",
    "nightly.py": "shared_limits",
    "order_saga.py": "dead_letters",
}
LONGEST = 500.0
NO_ENGINE = {"billing.py", "chat_bots.py", "object_store.py", "photos_on_a_phone.py", "woken_function.py"}
"""A TestEngine with a clock of its own, and key-value stores."""
SERVICES = {"demo.py", "web_service.py"}
"""They name a database and no address."""
DOING = re.compile(r"  \S")


def begun(server: str, name: str, folder) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", str(SCRIPT), server, str(FOLDER / name)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_every_example_is_run_or_its_reason_is_named():
    named = RESULTS.keys() | REFUSED.keys() | NO_ENGINE | SERVICES
    assert {path.name for path in FOLDER.glob("*.py")} == named


@pytest.mark.parametrize("name", RESULTS)
def test_an_example_goes_on_after_two_kills(server, name, tmp_path):
    """G1, S3-16"""
    for _ in range(2):
        process = begun(server, name, tmp_path)
        assert process.stdout is not None
        next((line for line in process.stdout if DOING.match(line)), "")
        process.kill()
        process.communicate()
    out, errors = begun(server, name, tmp_path).communicate(timeout=LONGEST)
    assert RESULTS[name] in out, errors
    again = begun(server, name, tmp_path).communicate(timeout=LONGEST)[0]
    assert RESULTS[name] in again
    assert [line for line in again.splitlines() if DOING.match(line) and "history" not in line] == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_example_needs_that_is_not_offered_is_named(server, name, tmp_path):
    (tmp_path / server.replace("//", "/")).parent.mkdir(parents=True)  # one puts files beside its database
    _, errors = begun(server, name, tmp_path).communicate(timeout=LONGEST)
    assert "NotOffered: " in errors
    assert f"(offers({REFUSED[name]!r}) is False)" in errors
