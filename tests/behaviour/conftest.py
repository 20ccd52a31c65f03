"""Behaviour tests run over the ways an engine can keep runs: in memory, always evicted to a file, and on PostgreSQL.

With `--key-value` (`make keyvalue`) the first two are key spaces instead, in memory and in a directory.

Tests that stop an engine and open another say `file` and `evict`: a run that is in memory when its engine stops is
handed back, one that was evicted is not. Elsewhere a file adds nothing to what memory and eviction show.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.behaviour import on_temporal
from tests.behaviour.modes import NEED_SQL, RUN_IN

from holdfast.contract.store import Store
from holdfast.errors import StoreBusy, StoreError
from holdfast.stores import open_store
from holdfast.testing import TestEngine
from holdfast.testing.invariants import violations

MODES = ("memory", "evict", "postgres")
FOLDER = Path(__file__).parent
STOP_GRACE = timedelta(milliseconds=200)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test that names no modes only in those it runs in: collecting the others takes long, in each process."""
    named = any("mode" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "mode" in metafunc.fixturenames and not named:
        metafunc.parametrize("mode", _modes(metafunc), indirect=True)


def _modes(metafunc: pytest.Metafunc) -> list[str]:
    config, file = metafunc.config, Path(metafunc.function.__code__.co_filename)
    if config.getoption("--temporal"):
        return ["temporal"]
    if config.getoption("--key-value"):
        return ["memory", "evict"]
    if config.getoption("--all-modes") or any("[" in argument for argument in config.args):
        return [*MODES]
    if config.getoption("--quick"):
        return ["memory"]
    return [mode for mode in MODES if _shows_something(mode, file, metafunc.function.__name__)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--temporal"):
        on_temporal.select(config, items)
        return
    if config.getoption("--key-value"):
        left_out = [item for item in items if item.path.parent != FOLDER or _mode(item) in ("", "postgres")]
        config.hook.pytest_deselected(items=left_out)
        gone = {*map(id, left_out)}
        items[:] = [item for item in items if id(item) not in gone]
        for item in items:
            if needed := _needs_sql(item):
                item.add_marker(pytest.mark.skip(reason=f"a key-value store has not: {needed}"))
        return
    if config.getoption("--all-modes") or config.getoption("--quick"):
        return
    evicted = {_function(item) for item in items if _mode(item) == "evict"}
    elsewhere = {_function(item) for item in items if _mode(item) != "postgres"}
    left_out = [item for item in items if _adds_nothing(item, elsewhere if _mode(item) == "postgres" else evicted)]
    config.hook.pytest_deselected(items=left_out)
    gone = {*map(id, left_out)}
    items[:] = [item for item in items if id(item) not in gone]


def _adds_nothing(item: pytest.Item, also_run: set[tuple[Path, str]]) -> bool:
    """Whether a test that is run in another mode, too, shows nothing in its own that another test does not show."""
    if item.path.parent != FOLDER or _function(item) not in also_run:
        return False
    return not _shows_something(_mode(item), *_function(item))


def _needs_sql(item: pytest.Item) -> str:
    """Return what a test is about that key-value stores have not, empty if nothing."""
    if "[transaction" in item.name:
        return "transactions of users"
    for what, files in NEED_SQL.items():
        named = files.get(item.path.stem.removeprefix("test_"), ())
        if "*" in named or _function(item)[1] in named:
            return what
    return ""


def _shows_something(mode: str, file: Path, function: str) -> bool:
    needed = RUN_IN.get(mode, {}).get(file.stem.removeprefix("test_"))
    return needed is None or function in needed


def _mode(item: pytest.Item) -> str:
    return item.callspec.params.get("mode", "") if hasattr(item, "callspec") else ""


def _function(item: pytest.Item) -> tuple[Path, str]:
    return item.path, item.name.split("[")[0]


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> str:
    return "temporal" if request.config.getoption("--temporal") else request.param


@pytest.fixture
def address(mode: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Return the address of the database that engines of this test share, unless it is in memory."""
    if request.config.getoption("--temporal"):
        return ":memory:"
    if mode == "postgres":
        return request.getfixturevalue("empty_database")
    if request.config.getoption("--key-value"):
        return f"kv+memory://{tmp_path}" if mode == "memory" else f"kv+dir:///{tmp_path / 'space'}"
    if mode == "memory":
        return ":memory:"
    shutil.copyfile(request.getfixturevalue("empty_file"), tmp_path / "test.db")
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture
def make_store(address: str) -> Callable[[], Store]:
    """Return a function that makes another store on that database, for an engine that is opened with it."""
    return lambda: open_store(address, "process")


@pytest.fixture
async def make_engine(mode: str, address: str, request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Any]]:
    """Return a coroutine function that opens a TestEngine in the current mode and closes it after the test."""
    if request.config.getoption("--temporal"):
        restarts = mode not in ("temporal", "memory") or "mode" in inspect.signature(request.function).parameters
        name = f"{request.path.stem.removeprefix('test_')}::{request.function.__name__}"
        async with on_temporal.engines(restarts, name in on_temporal.in_real_time()) as make_there:
            yield make_there
        return
    engines: list[TestEngine] = []
    async with AsyncExitStack() as stack:

        async def make(*workflows: Any, **options: Any) -> TestEngine:
            if mode == "evict":
                options.setdefault("max_resident", 0)
            options.setdefault("database", address)
            options.setdefault("stop_grace", STOP_GRACE)
            made = TestEngine(workflows=workflows, **options)
            try:
                engine = await stack.enter_async_context(made)
            except StoreBusy:
                if address.startswith("kv+") and engines:
                    pytest.skip("one process at a time has a key space open")
                raise
            engines.append(engine)
            stack.push_async_callback(_check, engine)
            return engine

        yield make


async def _check(engine: TestEngine) -> None:
    """What must always hold, after every test whose engine is still open."""
    try:
        broken = await violations(engine.store)
    except StoreError:
        return
    assert broken == []
