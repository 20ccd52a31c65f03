"""What the systems run in: a virtual environment for each peer, and a PostgreSQL server with default durability."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import apsw
from plan import System

HERE = Path(__file__).parent
PLACE = HERE / ".systems"
sys.path.insert(0, str(HERE.parent / "tests" / "postgres"))

import servers  # type: ignore[import-not-found, unused-ignore]  # noqa: E402  # found by the line above


@dataclass(frozen=True)
class Database:
    """Where an empty database comes from, for each measurement again."""

    database: Callable[[], AbstractContextManager[str]]


@contextlib.contextmanager
def _none() -> Iterator[str]:
    yield ""


NO_DATABASE = Database(_none)


@contextlib.contextmanager
def postgres() -> Iterator[Database]:
    """Have the newest PostgreSQL server of this machine, with fsync, on disk."""
    version = next(iter(servers.find_servers()))
    with servers.own_server(version, durable=True) as server:
        yield Database(lambda: servers.fresh_database(server))


@contextlib.contextmanager
def address_of(given: str) -> Iterator[str]:
    """Have the database of an address; for the word `postgres` an empty one on a server of its own."""
    if given != "postgres":
        yield given
        return
    with postgres() as server, server.database() as address:
        yield address


def python_of(system: System) -> Path:
    """Return the interpreter that runs a system's script."""
    return PLACE / system.name / "bin" / "python" if system.environment else Path(sys.executable)


def prepare(system: System) -> None:
    """Install a peer into an environment of its own, unless it is there.

    Raises:
        RuntimeError: it cannot be installed here.
    """
    if not system.environment:
        return
    place = PLACE / system.name
    requirements = HERE / "systems" / "requirements" / f"{system.name}.txt"
    stamp = place / "installed.txt"
    wanted = requirements.read_text() + "\n".join(system.packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"installing {system.name} into {place}", file=sys.stderr)
    pip = [str(python_of(system)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(sys.executable, "-m", "venv", "--clear", str(place))
    _run(*pip, "-r", str(requirements))
    if system.packages:
        _run("npm", "install", "--silent", "--prefix", str(place), *system.packages)
    stamp.write_text(wanted)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise RuntimeError(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-600:]}")


def versions() -> dict[str, str]:
    """Return the versions of the databases."""
    found = {"sqlite": apsw.sqlite_lib_version()}
    with contextlib.suppress(StopIteration):
        found["postgres"] = servers._version(next(iter(servers.find_servers().values())))
    return found
