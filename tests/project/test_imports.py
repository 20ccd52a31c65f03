"""Who may import whom, who may read a clock or throw dice, and which names are public."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from tests.support.source import SOURCE, trees

import holdfast

# Module names are written without the leading "holdfast."; the package itself is "". "replay.*" is what is inside
# replay, "replay" its __init__.
FOUNDATIONS = (
    "errors", "clock", "policy", "definitions", "definitions.*", "changes", "chains", "events", "limits",
    "texts", "logs", "system", "patience", "rates", "version",
)  # fmt: skip
PAYLOADS = ("payloads", "payloads.*")
DETERMINISM = ("determinism", "determinism.*")
ROWS = (
    "contract", "contract.rows", "contract.turns", "contract.operations", "contract.limits", "contract.heads",
    "contract.waits", "contract.house", "contract.figures", "contract.tokens", "contract.moves",
)  # fmt: skip
TIMES = ("schedules", "schedules.times")
GROUND = (*FOUNDATIONS, *PAYLOADS, *DETERMINISM, *ROWS, *TIMES)
REPLAY = ("replay", "replay.*")
CONTEXT = ("context", "context.*")
BODIES = ("bodies", "bodies.*")
DECLARATIVE = ("declarative", "declarative.*")
CONTRACT = (
    "contract.store",
    "contract.looking",
    "replay.entry",
)  # entries cross the store line, so who sees the one sees the other
OPS = ("ops", "ops.*")
ENGINE = ("engine", "engine.*", "schedules.*")
TRANSFER = ("transfer", "transfer.*")
HISTORIES = ("histories", "histories.*")
LOOKING = ("looking", "looking.*")
INSIDE = (
    *GROUND, *REPLAY, *CONTEXT, *BODIES, *DECLARATIVE, "contract.store", "stores", "stores.*", *OPS, *TRANSFER, *ENGINE,
)  # fmt: skip

# Every piece, and what it may import besides its own modules.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "": INSIDE,
    "__main__": ("cli", "cli.*"),
    **dict.fromkeys((*FOUNDATIONS, "payloads", "determinism"), GROUND),
    "contract": (*GROUND, "replay.entry"),
    "schedules": GROUND,
    # A schedule is a foundation in its times, and a facade of the engine in the rest.
    "schedules.service": (*GROUND, *CONTRACT, *OPS, "engine.*"),
    "schedules.ticker": (*GROUND, *CONTRACT, *OPS, "engine.*"),
    "schedules.view": (*GROUND, *CONTRACT, *OPS, "engine.*"),
    "replay": GROUND,
    "context": (*GROUND, *REPLAY),
    # Bodies of steps and what their ends mean: every runtime uses them, and none owns them.
    "bodies": (*GROUND, *REPLAY, *CONTEXT),
    # One run on a key-value store: it knows neither the engine's worker nor an SQL store.
    "kv": (*GROUND, *REPLAY, *CONTEXT, *BODIES),
    "declarative": (*GROUND, *REPLAY, *CONTEXT),
    "stores": (*GROUND, *CONTRACT),
    # The whole engine on a key-value store: of `kv` it knows the contract of drivers, and those that addresses name.
    "stores.keyvalue.space": (*GROUND, *CONTRACT, "kv.driver"),
    "stores.keyvalue.connections": (*GROUND, *CONTRACT, "kv.driver"),
    "stores.keyvalue.store": (*GROUND, *CONTRACT, "kv.driver"),
    "stores.keyvalue.addresses": (*GROUND, *CONTRACT, "kv.driver", "kv.drivers.*"),
    "stores.keyvalue.looking": (*GROUND, *CONTRACT, "kv.driver", "kv.drivers.segments", "kv.drivers"),
    "ops": (*GROUND, *CONTRACT),
    "transfer": (*GROUND, *CONTRACT, "stores", "stores.*"),
    # "stores" is the package's __init__, which opens a store by its URL: no engine module knows a particular store.
    # A backup is a transfer to a file, whatever the store.
    "engine": (*GROUND, *REPLAY, *CONTEXT, *BODIES, *CONTRACT, "stores", *OPS, "schedules.*", "transfer.backup"),
    # Recorded histories against code: what `check`, `debug` and the tools for tests share.
    "histories": (*GROUND, *REPLAY, *CONTEXT, *CONTRACT, "stores", "stores.sql.tables", *TRANSFER),
    # The desk: what every face shows and does. The engine knows no face.
    "looking": (*GROUND, *REPLAY, *CONTEXT, *CONTRACT, "stores", *OPS, "schedules.*", "engine", "engine.*", *HISTORIES),
    # A second runtime: drives replay itself, and has bodies, handles and views in common with the engine. No store.
    "temporal": (
        *GROUND,
        *REPLAY,
        *CONTEXT,
        *BODIES,
        "engine.client.filters",
        "engine.client.reopen",
        "engine.client.start",
        "engine.handle",
        "engine.port",
        "engine.runs.ends",
        "engine.runtime",
        "engine.settings",
        "engine.steps.queue.*",
        "engine.views.*",
        "engine.worker.committer",
        "ops.audit",
        "schedules.preview",
        "schedules.view",
        "testing.clock",  # of its engine for tests
    ),
    # Moving runs from a store to the second runtime: it knows both.
    "moving": (*GROUND, *CONTRACT, "temporal.client.*"),
    # The HTTP API calls the desk, and knows the engine only as what a desk is made of.
    "web": (*GROUND, *LOOKING, "", "engine.engine", "schedules.preview", "histories.recorded"),
    # The terminal screen is handed its desks.
    "tui": (*GROUND, *LOOKING, "schedules.preview"),
    "cli": ("", *INSIDE, *HISTORIES, *LOOKING, "web", "web.*", "tui", "moving.*", "temporal.*"),
    "testing": ("*",),
}

# (importing module, imported module) -> why this one import may go against the table.
EXCEPTIONS: dict[tuple[str, str], str] = {}

# Third-party package -> the modules that may import it. An extra stays inside its face, so that the core works without.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "apsw": ("stores.*", "testing.*"),
    "click": ("cli", "cli.*"),
    "cronsim": ("schedules.times",),
    "lmdb": ("kv.drivers.lmdb",),
    "msgspec": ("*",),
    "opentelemetry": ("ops.*",),
    "prometheus_client": ("ops.*",),
    "psycopg": ("stores.*", "testing.*"),
    "pydantic": ("payloads.encodable",),
    "rich": ("tui.*",),
    "redis": ("kv.drivers.redis",),
    "starlette": ("web", "web.*"),
    "textual": ("tui", "tui.*"),
    "temporalio": ("temporal", "temporal.*"),
    "uvicorn": ("web.standalone",),
    "pytest": ("testing", "testing.*"),
    "hypothesis": ("testing", "testing.*"),
}

# Data must never name code, and a second SQLite library in one process drops the locks of the first.
NOWHERE = {"cloudpickle", "dill", "marshal", "pickle", "shelve", "sqlite3"}

# A turn is a pure function of its facts.
NOT_IN_REPLAY = {
    "apsw",
    "concurrent",
    "http",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "psycopg",
    "random",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
}
ASYNCIO_OUTSIDE = (
    "asyncio.create_subprocess_*",
    "asyncio.open_*connection",
    "asyncio.run",
    "asyncio.run_coroutine_threadsafe",
    "asyncio.selector_events*",
    "asyncio.start_*server",
    "asyncio.streams*",
    "asyncio.subprocess*",
    "asyncio.to_thread",
)

WALL_CLOCK_AND_DICE = (
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "os.urandom",
    "random.[!R]*",  # random.Random(seed) is replayable, the module's own functions are not
    "time.ctime",
    "time.gmtime",
    "time.localtime",
    "time.strftime",
    "time.time",
    "time.time_ns",
    "uuid.uuid[14]",
)
STOPWATCH = ("time.clock_gettime*", "time.monotonic*", "time.perf_counter*")
MAY_TIME = (
    "system", "patience", "bodies.*", "engine.*", "stores.*", "ops.*", "cli.*", "testing.*", "schedules.service",
    "web.*",
)  # fmt: skip

# (module, name used) -> why. The clock itself needs no entry. Whoever needs one more adds it here with its reason.
ALLOWED: dict[tuple[str, str], str] = {
    ("engine.steps.attempts", "random.random"): "the jitter of a retry, drawn once and recorded",
    ("kv.steps", "random.random"): "the jitter of a retry, drawn once and recorded",
    ("temporal.judging", "random.random"): "the same",
    ("stores.postgres.database", "random.uniform"): "those who were in each other's way try again at different moments",
    ("stores.postgres.connections", "random.uniform"): "those who lost the server come back at different moments",
    ("stores.postgres.hints", "random.uniform"): "those who lost the server come back at different moments",
}


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
PACKAGES = {module_name(path) for path in SOURCE.rglob("__init__.py")}


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Return the tree of each module; made when a test asks, for every process of the tests reads this file."""
    return {module_name(path): tree for path, tree in trees().items() if path.is_relative_to(SOURCE)}


def imports(module: str, root: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (module imported from, full name of what is imported) below a node, relative imports resolved."""
    for node in ast.walk(root):
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            here = f"holdfast.{module}".rstrip(".").split(".")
            above = node.level - 1 if module in PACKAGES else node.level
            package = here[: len(here) - above] if node.level else []
            origin = ".".join([*package, *([node.module] if node.module else [])])
            yield from ((origin, f"{origin}.{alias.name}") for alias in node.names)


def own_imports(module: str, root: ast.AST) -> Iterator[str]:
    """Yield the holdfast modules imported below a node: `from holdfast.stores import base` is stores.base."""
    for origin, name in imports(module, root):
        if f"{origin}.".startswith("holdfast."):
            inner = name.removeprefix("holdfast.")
            yield inner if inner in NAMES else origin.removeprefix("holdfast").removeprefix(".")


def packages_imported(module: str, root: ast.AST) -> set[str]:
    return {origin.partition(".")[0] for origin, _ in imports(module, root)}


def wrong_direction(module: str, tree: ast.AST) -> list[str]:
    piece = module.partition(".")[0]
    assert piece in MAY_IMPORT, f"{module} is a new piece: give it its place in MAY_IMPORT"
    allowed = MAY_IMPORT.get(module, MAY_IMPORT[piece])
    return [
        f"{module or 'holdfast'} imports {target or 'holdfast'}"
        for target in own_imports(module, tree)
        if not (piece and target.partition(".")[0] == piece)
        and not matches(target, allowed)
        and (module, target) not in EXCEPTIONS
    ]


def foreign_packages(module: str, tree: ast.AST) -> list[str]:
    packages = packages_imported(module, tree) - sys.stdlib_module_names - {"holdfast"}
    return [f"{module} imports {package}" for package in packages if not matches(module, THIRD_PARTY.get(package, ()))]


def impurities(module: str, tree: ast.AST) -> list[str]:
    if module.partition(".")[0] != "replay":
        return []
    found = packages_imported(module, tree) & NOT_IN_REPLAY | {
        name for name, _ in names_used(tree) if matches(name, ASYNCIO_OUTSIDE)
    }
    return [f"{module} uses {name}" for name in sorted(found) if (module, name) not in ALLOWED]


def forbidden_anywhere(module: str, tree: ast.AST) -> list[str]:
    return [f"{module} imports {package}" for package in sorted(packages_imported(module, tree) & NOWHERE)]


def clocks_and_dice(module: str, tree: ast.AST) -> list[str]:
    if module == "clock":
        return []
    forbidden = WALL_CLOCK_AND_DICE if matches(module, MAY_TIME) else WALL_CLOCK_AND_DICE + STOPWATCH
    return [
        f"{module}:{line} uses {name}"
        for name, line in names_used(tree)
        if matches(name, forbidden) and (module, name) not in ALLOWED
    ]


def names_used(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield (full dotted name, line) of each use of something imported, whatever alias it goes by."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                aliases[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        parts: list[str] = []
        at: ast.AST = node
        while isinstance(at, ast.Attribute):
            parts.append(at.attr)
            at = at.value
        if isinstance(at, ast.Name) and at.id in aliases and isinstance(node, ast.Attribute | ast.Name):
            yield ".".join([aliases[at.id], *reversed(parts)]), node.lineno


CHECKS = [wrong_direction, foreign_packages, impurities, forbidden_anywhere, clocks_and_dice]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_no_module_breaks_the_rule(check):
    assert NAMES
    assert [problem for module, tree in modules().items() for problem in check(module, tree)] == []


@pytest.mark.parametrize(
    ("check", "module", "code"),
    [
        (wrong_direction, "contract.rows", "from holdfast.stores.sqlite import store"),
        (wrong_direction, "replay.turn", "from holdfast.engine.worker.worker import Worker"),
        (wrong_direction, "replay.turn", "def later():\n    import holdfast.contract.store"),
        (wrong_direction, "bodies.attempt", "from holdfast.engine.worker.committer import Committer"),
        (wrong_direction, "kv.run", "from holdfast.engine.runs.runner import Runner"),
        (wrong_direction, "kv.space", "from holdfast.stores.sqlite.store import SqliteStore"),
        (wrong_direction, "context.steps", "if TYPE_CHECKING:\n    from holdfast.declarative.graph import graph"),
        (wrong_direction, "stores.sqlite.store", "from holdfast.replay.turn import Turn"),
        (wrong_direction, "stores.sqlite.store", "from ...replay.turn import Turn"),
        (wrong_direction, "ops.audit", "from holdfast.stores.sqlite.store import SqliteStore"),
        (wrong_direction, "engine.engine", "from holdfast.stores.sqlite.store import SqliteStore"),
        (wrong_direction, "engine.engine", "from holdfast import Engine"),
        (wrong_direction, "", "from holdfast.testing import TestEngine"),
        (foreign_packages, "payloads.codec", "import requests"),
        (foreign_packages, "engine.engine", "import click"),
        (impurities, "replay.loop", "import threading"),
        (impurities, "replay.loop", "from time import monotonic"),
        (impurities, "replay.loop", "import asyncio\nasyncio.open_connection"),
        (forbidden_anywhere, "stores.sqlite.store", "import sqlite3"),
        (forbidden_anywhere, "payloads.codec", "from pickle import loads"),
        (clocks_and_dice, "policy", "import time\ntime.time()"),
        (clocks_and_dice, "policy", "import time as t\nt.monotonic()"),
        (clocks_and_dice, "engine.worker.timers", "from time import time_ns as now\nnow()"),
        (clocks_and_dice, "engine.worker.timers", "from datetime import UTC, datetime\ndatetime.now(UTC)"),
        (clocks_and_dice, "engine.worker.timers", "import datetime as dt\ndt.datetime.now()"),
        (clocks_and_dice, "contract.rows", "import uuid\nfield(default_factory=uuid.uuid4)"),
        (clocks_and_dice, "policy", "import random\nrandom.uniform(0, 1)"),
    ],
)
def test_a_broken_rule_is_noticed(check, module, code):
    assert len(check(module, ast.parse(code))) == 1


@pytest.mark.parametrize(
    ("check", "module", "code"),
    [
        (wrong_direction, "stores.sqlite.store", "from holdfast.replay.entry import Entry"),
        (wrong_direction, "engine.runs.runner", "from holdfast.contract.store import Store"),
        (wrong_direction, "testing.model", "from holdfast.engine.engine import Engine"),
        (impurities, "replay.loop", "import asyncio\nasyncio.Future"),
        (clocks_and_dice, "engine.worker.lease", "import time\ntime.clock_gettime(time.CLOCK_BOOTTIME)"),
        (clocks_and_dice, "context.api", "import random\nrandom.Random(7)"),
        (clocks_and_dice, "clock", "import time\ntime.time_ns()"),
    ],
)
def test_a_rightful_use_is_left_alone(check, module, code):
    assert check(module, ast.parse(code)) == []


# A family of modules that know each other's types, one of which owns the others -> why it is cut into files at all.
CIRCLES: dict[frozenset[str], str] = {
    frozenset({"replay.journal", "replay.verbs"}): "a verb is an entry of its journal",
    frozenset(
        {"stores.rules.batch", *(f"stores.rules.limits.{topic}" for topic in ("late", "rules", "tasks"))}
        | {
            f"stores.rules.{topic}"
            for topic in [
                "events",
                "flow.arrivals",
                "flow.lanes",
                "flow.moves",
                "flow.pauses",
                "keys",
                "letters",
                "operators",
                "purge",
                "schedules",
                "tasks",
                "tokens",
                "trails",
            ]
        }
    ): "one class cut by topic: the batch owns the others, which write none of its attributes",
}


def circles() -> list[frozenset[str]]:
    """Return the sets of modules that import each other in a circle, imports for type checkers included."""
    graph = {module: set(own_imports(module, tree)) - {module} for module, tree in modules().items()}
    reach: dict[str, set[str]] = {}
    for module in graph:
        seen: set[str] = set()
        ahead = list(graph[module])
        while ahead:
            target = ahead.pop()
            if target not in seen:
                seen.add(target)
                ahead.extend(graph.get(target, ()))
        reach[module] = seen
    together = {
        frozenset(other for other in reach[module] if module in reach.get(other, ())) | {module}
        for module in graph
        if module in reach[module]
    }
    return sorted(together, key=sorted)


def test_modules_do_not_import_each_other_in_a_circle_but_those_named_here():
    assert circles() == sorted(CIRCLES, key=sorted)


def test_importing_holdfast_loads_nothing_that_only_workers_errors_and_views_need():
    """A program that declares workflows, or starts runs, does not wait for what it does not use."""
    code = "import sys; before = {*sys.modules}; import holdfast; print(*{*sys.modules} - before)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    ours = ("engine.worker.worker", "replay.journal", "replay.loop", "context.steps", "determinism.check", "transfer")
    views = ("engine.views.timeline", "engine.views.steps", "engine.views.history", "cli.main", "stores.sqlite.store")
    others = ("difflib", "ctypes", "zoneinfo", "sysconfig", "psycopg", "pydantic")
    unwanted = {*(f"holdfast.{name}" for name in (*ours, *views)), *others}
    assert sorted(unwanted & set(loaded)) == []


def test_the_public_names_are_few_sorted_and_there():
    names = list(getattr(holdfast, "__all__", []))
    assert names == sorted(set(names))
    assert len(names) <= 32
    assert [name for name in names if not hasattr(holdfast, name)] == []


def test_every_extra_is_used():
    """An extra brings packages that some module imports."""
    project = tomllib.loads((SOURCE.parent.parent / "pyproject.toml").read_text())["project"]
    packages = {"opentelemetry-api": "opentelemetry"}
    imported = {package for module, tree in modules().items() for package in packages_imported(module, tree)}
    for extra, requirements in project["optional-dependencies"].items():
        names = [re.split(r"[\[<>=~]", requirement)[0] for requirement in requirements if extra != "dev"]
        assert {packages.get(name, name.replace("-", "_")) for name in names} <= imported, extra
