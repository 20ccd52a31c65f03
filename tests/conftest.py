"""What all tests share: stores, servers that are started when a test asks for one, and a look at leftovers."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import shutil
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.postgres import servers
from tests.support import leftovers
from tests.support.paths import ROOT
from tests.support.sqlite_cases import opened
from tests.support.time_limit import TimeLimit

from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SQLiteStore

# How long an example takes says something about the machine, which others use too, and nothing about the code.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("shared machine"), max_examples=20)
settings.load_profile("shared machine")

_ROOM_FOR_DATABASES = 4 << 30
_LONG = ("crash", "examples", "transfer", "postgres", "simulation")
_LONGEST = ("test_tutorial.py",)
# These wait in real time, try hundreds of random examples, fill large databases, or start processes by a function of
# their own.
_NOT_QUICK = (
    "test_batches.py",
    "test_begin.py",
    "test_big.py",
    "test_broken_files.py",
    "test_cancelled_stops.py",
    "test_check.py",
    "test_crashing_steps.py",
    "test_described.py",
    "test_docs.py",
    "test_examples.py",
    "test_hostile_texts.py",
    "test_isolated_steps.py",
    "test_kills.py",
    "test_lifespan.py",
    "test_limit_clocks.py",
    "test_mounts.py",
    "test_patience.py",
    "test_queue_places.py",
    "test_servers.py",
    "test_small.py",
    "test_three_in_the_morning.py",
    "test_time_skipping.py",
    "test_which_store.py",
    "test_why_always.py",
)
_SEEDS = 10
"""How many of the random worlds, workflows and races of a test are tried in quick runs."""
_SERVERS = {"postgres", "oldest_postgres", "newest_server", "server", "looker", "python"}
"""The fixtures that start one, or another process."""
_KILLS = "test_a_killed_process_leaves_whole_batches_and_all_that_it_was_told_of"
_PROCESSES = {"subprocess", "SCRIPT", "SCRIPTS", "executable", "in_process", "isolate", "isolated", _KILLS}
"""What tests that start processes name: the module, the programs, and steps with a child process of their own."""

leftovers.watch_tasks()
_before = pytest.StashKey[leftovers.Before]()
_failed = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out tests that need a server or another process")
    parser.addoption("--temporal", action="store_true", help="run the tests of behaviour on Temporal, and only there")
    parser.addoption("--all-modes", action="store_true", help="run every test of behaviour on PostgreSQL, too")
    parser.addoption("--key-value", action="store_true", help="run tests of behaviour on key-value stores instead")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the databases of tests in memory where there is room for them: a disk makes every commit wait.

    A shell that runs the tests in its background lets them ignore interrupts, which the processes of tests must not.
    """
    if config.getoption("--quick"):
        settings.load_profile("quick")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    memory = Path("/dev/shm")
    if config.option.basetemp is None and memory.is_dir() and shutil.disk_usage(memory).free > _ROOM_FOR_DATABASES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import, in each process, the files that quick runs leave out as a whole."""
    return True if config.getoption("--quick") and _is_left_out(collection_path) else None


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, obj: object) -> list[pytest.Item] | None:
    """Nor make the hundreds of tests of a class that is left out as a whole."""
    if not isinstance(obj, type):
        return None
    marks = {mark.name for mark in getattr(obj, "pytestmark", ())}
    asked = collector.config.option.markexpr
    slow = "slow" in marks and "not slow" in asked and "slow or" not in asked
    return [] if slow or (collector.config.getoption("--quick") and not getattr(obj, "quick", True)) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        left_out = [item for item in items if not is_quick(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_quick(item)]
    # The long ones first: begun last, one of them keeps a single worker busy at the end.
    items.sort(key=lambda item: item.path.name not in _LONGEST and item.path.relative_to(ROOT).parts[1] not in _LONG)


def is_quick(item: pytest.Item) -> bool:
    """Whether a test needs no server and no other process, and is not run in another mode that is quicker."""
    if not isinstance(item, pytest.Function):
        return True
    given: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    if _is_left_out(item.path) or not getattr(item.cls, "quick", True) or _starts_processes(item.function):
        return False
    if _SERVERS.intersection(item.fixturenames) or "postgres" in (each for each in given.values() if type(each) is str):
        return False
    return given.get("mode", "memory") == "memory" and given.get("seed", 0) < _SEEDS


@functools.cache
def _starts_processes(test: FunctionType) -> bool:
    """Whether a test, or a function or class of its own file that it uses, names what starts processes."""
    seen: set[str] = set()
    found = [*_names(test.__code__)]
    while found:
        name = found.pop()
        if name in _PROCESSES:
            return True
        used = test.__globals__.get(name)
        if name not in seen and getattr(used, "__module__", None) == test.__module__:
            functions = [used, *vars(used).values()] if isinstance(used, type) else [used]
            found += [word for each in functions if isinstance(each, FunctionType) for word in _names(each.__code__)]
        seen.add(name)
    return False


def _names(code: CodeType) -> Iterator[str]:
    """Yield what a function names, and what those that are written inside it name."""
    yield from (*code.co_names, *code.co_cellvars, *code.co_varnames)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
        elif isinstance(inner, tuple):
            yield from (word for word in inner if isinstance(word, str))  # the names of arguments


def _is_left_out(path: Path) -> bool:
    return path.name in _NOT_QUICK or not {"browser", *_LONG}.isdisjoint(path.relative_to(ROOT).parts[1:])


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    limit = TimeLimit(settings.timeout)
    item.cancel_timeout = limit.cancel  # type: ignore[attr-defined]  # what pytest-timeout calls
    limit.start()
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    item.stash[_before] = leftovers.Before()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test that leaves something behind; one that failed was cut short and could not help it."""
    result = yield
    meant = tuple(f"{kind} " for mark in item.iter_markers("leaves") for kind in mark.args)
    left = [] if item.stash[_failed] else item.stash[_before].leftovers()
    if unmeant := [each for each in left if not each.startswith(meant)]:
        pytest.fail("left behind: " + "; ".join(unmeant), pytrace=False)
    return result


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database file with its tables, to be copied: making them takes longer than many a test."""
    path = tmp_path_factory.mktemp("empty") / "test.db"

    async def make() -> None:
        store = SQLiteStore(str(path))
        await store.open()
        await store.close()

    asyncio.run(make())
    return path


@pytest.fixture
async def store(path: Path, empty_file: Path) -> AsyncIterator[SQLiteStore]:
    shutil.copyfile(empty_file, path)
    store = await opened(path, durability="process")
    yield store
    await store.close()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the address of a database of this process on a real server that all test processes share.

    It is the newest PostgreSQL there is, or the one that HOLDFAST_POSTGRES names.
    """
    newest = next(iter(servers.find_servers()), "18")
    with _server(os.environ.get("HOLDFAST_POSTGRES") or newest, tmp_path_factory) as url:
        yield url


@pytest.fixture(scope="session")
def oldest_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the same on the oldest PostgreSQL there is."""
    versions = list(servers.find_servers())
    if len(versions) < 2:
        pytest.skip("there is no second PostgreSQL on this machine")
    with _server(versions[-1], tmp_path_factory) as url:
        yield url


@contextmanager
def _server(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if version not in servers.find_servers():
        pytest.skip(f"there is no PostgreSQL {version} on this machine")
    server = servers.shared_server(version, servers.session_folder(tmp_path_factory.getbasetemp()))
    with servers.fresh_database(server) as url:
        yield url
    server.leave()


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """Give the address of an empty schema, dropped after the test."""
    with servers.fresh_schema(postgres) as schema:
        yield with_schema(postgres, schema)


@pytest.fixture(scope="session")
def kept_schema(postgres: str) -> servers.KeptSchema:
    """Give a schema that is emptied, not dropped, after each test: making its tables takes longer than most tests."""
    address = with_schema(postgres, "kept")

    async def make() -> None:
        store = PostgresStore(address)
        await store.open()
        await store.close()

    asyncio.run(make())
    return servers.KeptSchema(postgres, "kept", address)


@pytest.fixture
def empty_database(kept_schema: servers.KeptSchema) -> Iterator[str]:
    """Give the address of a schema whose tables are there, and empty."""
    yield kept_schema.address
    kept_schema.empty()


@pytest.fixture
def old_database(oldest_postgres: str) -> Iterator[str]:
    """Give the same on the oldest server there is."""
    with servers.fresh_schema(oldest_postgres) as schema:
        yield with_schema(oldest_postgres, schema)


def with_schema(url: str, schema: str) -> str:
    """Return the address of a schema."""
    return f"{url}{'&' if '?' in url else '?'}schema={schema}"


def pytest_collection() -> None:
    """Collect no garbage while thousands of tests are collected."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what they are made of out of every later collection of garbage: it stays until the end."""
    gc.collect()
    gc.freeze()
    gc.enable()
