"""The rules of the check: which calls a replay would not repeat, and what to write instead of each."""

from __future__ import annotations

import ast
import os.path
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One call that may give another answer on replay, where it is, and what to write instead."""

    call: str
    file: str
    line: int
    advice: str

    def __str__(self) -> str:
        return f"NonDeterministic call {self.call}() at {os.path.basename(self.file)}:{self.line}; {self.advice}"


NOW = "use ctx.now()"
RANDOM = "use ctx.random()"
_UUID = "use ctx.uuid()"
_SLEEP = "use ctx.sleep()"
_SECRET = "put it in a step"  # noqa: S105 - advice, not a password
_IO = "this is I/O: put it in a step"
_TASKS = "use as_completed([asyncio.create_task(c) for c in ...])"


def _rules(advice: str, module: str, names: str) -> dict[str, str]:
    return {f"{module}.{name}" if module else name: advice for name in names.split()}


ADVICE: Mapping[str, str] = {
    **_rules(NOW, "time", "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time"),
    **_rules(NOW, "time", "process_time_ns thread_time thread_time_ns clock_gettime clock_gettime_ns"),
    **_rules(NOW, "time", "gmtime localtime ctime asctime"),
    **_rules(_SLEEP, "time", "sleep"),
    **_rules(RANDOM, "random", "Random SystemRandom"),
    **_rules(_UUID, "uuid", "uuid1 uuid4 uuid6 uuid7"),
    **_rules(_SECRET, "secrets", "token_bytes token_hex token_urlsafe randbelow randbits choice SystemRandom"),
    **_rules(_SECRET, "os", "urandom getrandom"),
    **_rules(_IO, "", "open input"),
    **_rules(_IO, "io", "open"),
    **_rules(_IO, "os", "open system popen fork listdir scandir mkdir makedirs remove unlink rename replace rmdir"),
    **_rules(_IO, "socket", "socket create_connection create_server socketpair getaddrinfo getnameinfo gethostname"),
    **_rules(_IO, "socket", "gethostbyname gethostbyname_ex gethostbyaddr getfqdn"),
    **_rules(_IO, "subprocess", "run Popen call check_call check_output getoutput getstatusoutput"),
    **_rules(_IO, "sqlite3", "connect"),
    **_rules(_IO, "urllib.request", "urlopen urlretrieve"),
    **_rules(_IO, "requests", "get post put patch delete head options request Session session"),
    **_rules(_IO, "httpx", "get post put patch delete head options request stream Client AsyncClient"),
    **_rules(_TASKS, "asyncio", "as_completed"),
}
# These use the clock or random numbers only when called without the argument that says which moment or seed.
ONLY_WITHOUT_ARGUMENTS = frozenset({"time.gmtime", "time.localtime", "time.ctime", "time.asctime", "random.Random"})
MOMENTS = frozenset({"now", "utcnow", "today"})
_OF_THE_RANDOM_MODULE = frozenset(
    name for name, value in vars(random).items() if isinstance(getattr(value, "__self__", 0), random.Random)
)
LAST_NAMES = frozenset(name.rpartition(".")[2] for name in ADVICE) | _OF_THE_RANDOM_MODULE | MOMENTS
_LAST_NAMES_BY_ROOT = {
    **{
        root: frozenset(name.rpartition(".")[2] for name in ADVICE if name.startswith(f"{root}."))
        for root in {name.partition(".")[0] for name in ADVICE}
    },
    "datetime": MOMENTS,
    "random": _OF_THE_RANDOM_MODULE | {"Random", "SystemRandom"},
}
BUILTINS = frozenset({"open", "input"})


def watched_objects() -> dict[object, str]:
    """The watched callables of every module loaded so far, with their names; what is not loaded has no aliases."""
    objects: dict[object, str] = {}
    for name in ADVICE:
        module, _, attribute = name.rpartition(".")
        value = vars(sys.modules.get(module or "builtins", ast)).get(attribute)
        if value is not None:
            objects.setdefault(value, name)
    return objects


def last_names_in(module: str) -> frozenset[str]:
    """The last parts of names under which something watched may be found in a module."""
    root = module.partition(".")[0]
    if root in _LAST_NAMES_BY_ROOT:
        return _LAST_NAMES_BY_ROOT[root]
    return frozenset() if root in sys.stdlib_module_names else LAST_NAMES  # the user's module may pass anything on
