import importlib.util
import logging
import os
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import timeit
import types
import warnings
from functools import partial
from pathlib import Path

import pytest

from holdfast import system
from holdfast.determinism import guard as guards
from holdfast.determinism.check import check, require_deterministic
from holdfast.determinism.guard import guard, user_line
from holdfast.determinism.rules import Finding
from holdfast.errors import NonDeterministic


@pytest.fixture
def load(tmp_path):
    """Write a module called orders and import it, as a user would have it."""

    def load(source, name="orders"):
        file = tmp_path / f"{name}.py"
        file.write_text(textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def found(load):
    """The calls found in the function `flow` of a module."""

    def found(source):
        return [(finding.call, finding.line) for finding in check(load(source).flow)]

    return found


def test_a_clock_in_workflow_code_is_named_with_its_line_and_the_verb_to_use(load):
    """GUARANTEES 6 case 15."""
    module = load("""\
        import time

        async def flow(ctx):
            await ctx.step("a", print)
            return time.time()
        """)
    [finding] = check(module.flow)
    assert finding == Finding("time.time", module.__file__, 5, "use ctx.now()")
    assert str(finding) == "NonDeterministic call time.time() at orders.py:5; use ctx.now()"


def test_every_finding_is_listed_in_the_refusal(load):
    """GUARANTEES 6 case 15."""
    module = load("""\
        import random, socket, time

        async def flow(ctx):
            time.sleep(1)
            random.choice([1, 2])
            socket.create_connection(("localhost", 1))
            open("orders.csv")
        """)
    with pytest.raises(NonDeterministic) as refusal:
        require_deterministic(module.flow)
    assert str(refusal.value).splitlines() == [
        "NonDeterministic call time.sleep() at orders.py:4; use ctx.sleep()",
        "NonDeterministic call random.choice() at orders.py:5; use ctx.random()",
        "NonDeterministic call socket.create_connection() at orders.py:6; this is I/O: put it in a step",
        "NonDeterministic call open() at orders.py:7; this is I/O: put it in a step",
    ]


@pytest.mark.parametrize(
    ("imports", "call", "name", "advice"),
    [
        ("from time import time as t", "t()", "time.time", "use ctx.now()"),
        ("import time as clock", "clock.monotonic()", "time.monotonic", "use ctx.now()"),
        ("import time", "time.perf_counter()", "time.perf_counter", "use ctx.now()"),
        ("import time", "time.time_ns()", "time.time_ns", "use ctx.now()"),
        ("import time", "time.localtime()", "time.localtime", "use ctx.now()"),
        ("import datetime as dt", "dt.datetime.now()", "datetime.datetime.now", "use ctx.now()"),
        ("from datetime import datetime as D", "D.utcnow()", "datetime.datetime.utcnow", "use ctx.now()"),
        ("from datetime import datetime", "datetime.today()", "datetime.datetime.today", "use ctx.now()"),
        ("from datetime import date", "date.today()", "datetime.date.today", "use ctx.now()"),
        ("import uuid", "uuid.uuid4()", "uuid.uuid4", "use ctx.uuid()"),
        ("from uuid import uuid1 as make_id", "make_id()", "uuid.uuid1", "use ctx.uuid()"),
        ("import random", "random.random()", "random.random", "use ctx.random()"),
        ("from random import shuffle", "shuffle([])", "random.shuffle", "use ctx.random()"),
        ("from random import Random", "Random()", "random.Random", "use ctx.random()"),
        ("import random", "random.SystemRandom()", "random.SystemRandom", "use ctx.random()"),
        ("import secrets", "secrets.token_hex()", "secrets.token_hex", "put it in a step"),
        ("from os import urandom as noise", "noise(8)", "os.urandom", "put it in a step"),
        ("import subprocess as sp", "sp.run(['ls'])", "subprocess.run", "this is I/O: put it in a step"),
        ("import socket", "socket.socket()", "socket.socket", "this is I/O: put it in a step"),
        ("import io", "io.open('x')", "open", "this is I/O: put it in a step"),
        (
            "from urllib.request import urlopen as get",
            "get('http://x')",
            "urllib.request.urlopen",
            "this is I/O: put it in a step",
        ),
    ],
)
@pytest.mark.parametrize("inside", [False, True], ids=["module-import", "import-in-function"])
def test_an_alias_hides_nothing(load, imports, call, name, advice, inside):
    """GUARANTEES 6 case 15."""
    source = (
        f"async def flow(ctx):\n    {imports}\n    return {call}\n"
        if inside
        else (f"{imports}\nasync def flow(ctx):\n    return {call}\n")
    )
    [finding] = check(load(source).flow)
    assert (finding.call, finding.line, finding.advice) == (name, 3, advice)


def test_a_local_alias_and_a_re_export_are_seen_through(load, found):
    sys.modules["orders_compat"] = load("from time import time as moment\nimport time", "orders_compat")
    try:
        assert found("""\
            import orders_compat, time
            async def flow(ctx):
                clock = time
                tick = clock.monotonic
                orders_compat.moment(), orders_compat.time.time_ns()
                return tick()
            """) == [("time.time", 5), ("time.time_ns", 5), ("time.monotonic", 6)]
    finally:
        del sys.modules["orders_compat"]


def test_requests_is_found_whether_it_is_loaded_or_not(found, monkeypatch):
    monkeypatch.delitem(sys.modules, "requests", raising=False)
    source = "async def flow(ctx):\n    import requests as r\n    return r.get('http://x')\n"
    assert found(source) == [("requests.get", 3)]
    stand_in = types.ModuleType("requests")
    exec("def get(url): ...", vars(stand_in))
    monkeypatch.setitem(sys.modules, "requests", stand_in)
    assert found("from requests import get as g\nasync def flow(ctx):\n    return g('http://x')\n") == [
        ("requests.get", 3)
    ]


def test_a_generator_shared_by_all_runs_is_found_even_when_seeded(found):
    assert found("""\
        import random
        dice = random.Random(7)
        async def flow(ctx):
            return dice.randint(1, 6)
        """) == [("random.randint", 4)]


def test_what_says_its_own_moment_or_seed_is_fine(found):
    assert not found("""\
        import random, secrets, time, datetime
        async def flow(ctx, seed):
            random.Random(seed).random()
            time.gmtime(0), time.strftime("%Y", time.gmtime(0))
            datetime.datetime.fromtimestamp(0), datetime.datetime(2020, 1, 1)
            return secrets.compare_digest("a", "b")
        """)


def test_the_verbs_of_the_context_and_names_that_only_look_alike_are_fine(found):
    assert not found("""\
        import asyncio, random, time, uuid
        class shop:
            def open(self): ...
        async def flow(ctx, time, shop=shop()):
            def uuid4(): return 1
            random = ctx.random()
            ctx.now(), ctx.uuid(), random.random(), random.choice([1]), time.time(), uuid4(), shop.open()
            await asyncio.sleep(5)
            for open in []: open()
        """)


def test_whatever_binds_a_name_takes_it_away_from_the_module(found):
    assert found("""\
        import random, secrets, socket, time, uuid
        async def flow(ctx, *socket, **open):
            with ctx.lock as time: time.time()
            match ctx.value:
                case {"a": uuid, **secrets}: uuid.uuid4(), secrets.token_hex()
                case [_, *random]: random.random()
            try: socket.socket(), open()
            except OSError as input: input()
            a: object = ctx.a
            b = c = time
            a(), b(), c()
            return reset()
        def reset():
            global time
            import time
            from .missing import clock
            x = y
            y = x
            x(), clock()
            return time.time()
        """) == [("time.time", 20)]


def test_helpers_of_the_module_are_followed(found):
    assert found("""\
        import functools, time, uuid
        async def flow(ctx):
            await first(ctx)
            return cached(3)
        async def first(ctx):
            second(ctx)
            await flow(ctx)
        def second(ctx):
            first(ctx)
            return time.time()
        def elsewhere():
            return time.time()
        @functools.lru_cache
        def cached(n):
            return uuid.uuid4()
        """) == [("time.time", 10), ("uuid.uuid4", 15)]


def test_activities_and_other_workflows_are_not_followed(found):
    assert not found("""\
        import time
        def charge(): return time.time()
        charge.__holdfast_activity__ = True
        def other(): return time.time()
        other.__holdfast_workflow__ = True
        async def flow(ctx):
            charge(), other()
        """)


def test_step_bodies_are_not_blamed(found):
    assert not found("""\
        import functools, random, time, uuid
        def charge(order):
            return time.time()
        async def flow(ctx, order):
            def body():
                return again(time.time())
            def again(n):
                return again(n - 1) if n else random.random()
            async def fetch():
                return open("x")
            undo = lambda: uuid.uuid4()
            await ctx.step(charge, order)
            await ctx.step("now", time.time)
            await ctx.step(lambda: [time.time() for _ in range(3)])
            await ctx.step("b", body)
            await ctx.step(functools.partial(fetch))
            ctx.compensate(undo)
            step = ctx.step
            await step("c", lambda: time.time())
        """)


def test_what_runs_before_the_step_does_is_workflow_code(found):
    assert found("""\
        import time
        async def flow(ctx):
            await ctx.step(print, time.time())
            await ctx.step(print, [time.time() for _ in range(3)])
            await ctx.step(print, sorted([1], key=lambda _: time.monotonic()))
        """) == [("time.time", 3), ("time.time", 4), ("time.monotonic", 5)]


def test_inner_functions_outside_steps_are_checked(found):
    assert found("""\
        import time
        async def flow(ctx):
            def both():
                return time.time()
            async def branch():
                return time.monotonic()
            await ctx.step(both)
            both()
            await ctx.join(a=branch(), b=(lambda: time.time_ns())())
        """) == [("time.time", 4), ("time.monotonic", 6), ("time.time_ns", 9)]


def test_a_line_can_be_allowed(found):
    assert found("""\
        import time
        async def flow(ctx):
            started = time.time()  # holdfast: allow
            report(ctx)  # holdfast: allow - it only logs
            print(
                time.time(),
            )  # holdfast: allow
        def report(ctx):
            time.time()
        """) == [("time.time", 6)]


def test_as_completed_over_bare_coroutines_is_found(load):
    module = load("""\
        import asyncio
        from asyncio import as_completed
        async def work(ctx, n): ...
        async def flow(ctx):
            async def inner(): ...
            for done in asyncio.as_completed([work(ctx, 1), work(ctx, 2)]): await done
            for done in as_completed(work(ctx, n) for n in range(3)): await done
            for done in as_completed((inner(),)): await done
            later = [work(ctx, n) for n in range(3)]
            for done in as_completed(later, timeout=3): await done
            for done in as_completed([asyncio.create_task(work(ctx, n)) for n in range(3)]): await done
            for done in as_completed([ctx.step(print, n) for n in range(3)]): await done
            for done in as_completed(ctx.tasks): await done
        """)
    findings = check(module.flow)
    assert [finding.line for finding in findings] == [6, 7, 8, 10]
    assert {finding.advice for finding in findings} == {"use as_completed([asyncio.create_task(c) for c in ...])"}


def test_closures_methods_partials_and_decorated_functions_are_checked(load):
    module = load('''\
        import functools, time
        def decorated(function):
            @functools.wraps(function)
            async def wrapper(*args): return await function(*args)
            return wrapper
        def make():
            from time import time as moment
            def helper():
                text = """
        not indented
        """
                return moment()
            @decorated
            @decorated
            async def flow(ctx):
                return helper()
            return flow
        class Shop:
            async def flow(self, ctx):
                return time.time()
        ''')
    assert [finding.line for finding in check(module.make())] == [12]
    assert [finding.line for finding in check(module.Shop().flow)] == [20]
    assert [finding.line for finding in check(partial(module.Shop().flow, None))] == [20]


def test_without_source_nothing_is_found_and_nothing_is_raised(load):
    namespace = {"time": time}
    exec("async def flow(ctx): return time.time()", namespace)
    endless = partial(print)
    endless.__wrapped__ = endless

    class Unwilling:
        def __getattr__(self, name):
            raise RuntimeError(name)

    for odd in (namespace["flow"], print, len, int, object(), None, "text", endless, Unwilling(), lambda: time.time):
        assert check(odd) == []
    moved = load("import time\nasync def flow(ctx):\n    return time.time()\n")
    os.unlink(moved.__file__)
    assert check(moved.flow) == []


def test_a_global_that_refuses_to_be_looked_at_does_not_hide_the_clock(found):
    assert found("""\
        import time
        class Proxy:
            __slots__ = ()
            def __getattr__(self, name): raise RuntimeError(name)
            def __call__(self): ...
        request = Proxy()
        async def flow(ctx):
            request()
            return time.time()
        """) == [("time.time", 9)]


def test_clean_code_is_not_even_parsed(load):
    module = load("""\
        import asyncio, time
        from datetime import timedelta
        def charge(order): return order
        async def clean(ctx, order):
            await asyncio.gather(ctx.step(charge, order), ctx.sleep(timedelta(days=1)))
            return ctx.now(), ctx.random()
        async def dirty(ctx, order):
            await asyncio.gather(ctx.step(charge, order), ctx.sleep(timedelta(days=1)))
            return time.time()
        """)
    clean, dirty = (min(timeit.repeat(partial(check, f), number=50)) for f in (module.clean, module.dirty))
    assert clean * 5 < dirty


@pytest.fixture
def turn():
    guard.install()

    def turn(function):
        guard.enter(sys._getframe().f_code)
        try:
            function()
        finally:
            violation = guard.leave()
        return violation

    return turn


def line_of(function, offset=1):
    return function.__code__.co_firstlineno + offset


def test_a_file_opened_in_a_turn_is_refused_and_the_line_named(turn, tmp_path):
    """GUARANTEES 6 case 15."""
    path = tmp_path / "report.csv"

    def flow():
        path.write_text("x")

    with pytest.raises(NonDeterministic) as refusal:
        turn(flow)
    assert str(refusal.value) == (
        f"blocking I/O (open {str(path)!r}, mode 'w') in workflow code at test_determinism.py:{line_of(flow)}; "
        "this is I/O: put it in a step"
    )
    assert not path.exists()


@pytest.mark.parametrize(
    ("action", "event"),
    [
        (lambda: os.open("/etc/hostname", os.O_RDONLY), "open '/etc/hostname'"),
        (lambda: os.open(__file__, os.O_WRONLY), f"open {__file__!r}"),
        (lambda: socket.create_connection(("127.0.0.1", 9)), "socket.getaddrinfo '127.0.0.1', 9"),
        (lambda: socket.gethostbyname("localhost"), "socket.gethostbyname 'localhost'"),
        (lambda: subprocess.run(["true"]), "subprocess.Popen 'true', ['true']"),
        (lambda: os.system("true"), "os.system"),
        (lambda: sqlite3.connect(":memory:"), "sqlite3.connect ':memory:'"),
        (lambda: os.listdir("."), "os.listdir '.'"),
        (lambda: os.remove("nothing"), "os.remove 'nothing'"),
        (lambda: os.mkdir("/nowhere/at/all"), "os.mkdir '/nowhere/at/all'"),
    ],
)
def test_blocking_io_in_a_turn_is_refused(turn, action, event):
    """GUARANTEES 6 case 15."""
    with pytest.raises(NonDeterministic) as refusal:
        turn(action)
    assert str(refusal.value).startswith(f"blocking I/O ({event}")
    assert f"at test_determinism.py:{line_of(action, 0)}; this is I/O" in str(refusal.value)


def test_a_connection_to_an_address_is_refused(turn):
    with (
        socket.socket() as endpoint,
        pytest.raises(NonDeterministic, match=r"\(socket\.connect \('127\.0\.0\.1', 9\)\)"),
    ):
        turn(lambda: endpoint.connect(("127.0.0.1", 9)))


@pytest.mark.skipif(sys.version_info < (3, 13), reason="time.sleep is audited from 3.13 on")
def test_a_blocking_sleep_is_refused(turn):
    with pytest.raises(NonDeterministic, match=r"time.sleep 0.01\) in workflow code at .*; use ctx.sleep\(\)"):
        turn(lambda: time.sleep(0.01))


def test_swallowing_the_error_does_not_help(turn):
    def flow():
        for path in ("first.csv", "second.csv"):
            try:
                Path(path).read_text()
            except Exception:  # the trap
                pass

    violation = turn(flow)
    assert isinstance(violation, NonDeterministic)
    assert "first.csv" in str(violation)
    assert guard.violation is None
    assert turn(lambda: None) is None


def test_outside_a_turn_everything_is_free(turn, tmp_path):
    turn(lambda: None)
    (tmp_path / "free").write_text("x")
    assert os.listdir(tmp_path) == ["free"]


def test_other_threads_are_not_blamed(turn, tmp_path):
    failures = []
    inside, done = threading.Event(), threading.Event()

    def step():
        inside.wait()
        try:
            (tmp_path / "step").write_text("x")
        except BaseException as failure:
            failures.append(failure)
        done.set()

    thread = threading.Thread(target=step)
    thread.start()
    assert turn(lambda: (inside.set(), done.wait())) is None
    thread.join()
    assert not failures
    assert (tmp_path / "step").read_text() == "x"


def test_imports_tracebacks_warnings_logs_and_time_zones_are_allowed_in_a_turn(turn, tmp_path, monkeypatch):
    import traceback
    import zoneinfo

    (tmp_path / "late_module.py").write_text("open(__file__ + '.log', 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    zoneinfo.ZoneInfo.clear_cache()
    handler = logging.FileHandler(tmp_path / "late.log", delay=True)
    logger = logging.getLogger("late")
    logger.addHandler(handler)

    def flow():
        import late_module  # type: ignore[import-not-found]  # noqa: F401

        try:
            raise ValueError
        except ValueError:
            traceback.format_exc()
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            warnings.warn("x", stacklevel=1)
        warnings.formatwarning("x", UserWarning, logging.__file__, 3)
        open(__file__).close()
        zoneinfo.ZoneInfo("Europe/Berlin")
        logger.warning("x")

    assert turn(flow) is None
    logger.removeHandler(handler)
    handler.close()
    assert (tmp_path / "late.log").read_text() == "x\n"
    monkeypatch.delitem(sys.modules, "late_module")


def test_a_turn_driven_while_a_module_is_imported_is_still_guarded(turn, load, monkeypatch):
    monkeypatch.setattr(sys, "turn_of_this_test", turn, raising=False)
    with pytest.raises(NonDeterministic, match=r"orders\.py:3;"):
        load("""\
            import sys
            def flow():
                open("x.csv")
            sys.turn_of_this_test(flow)
            """)


def test_the_hook_is_added_once(monkeypatch):
    added = []
    monkeypatch.setattr(sys, "addaudithook", added.append)
    monkeypatch.setattr(system, "_audit_watches", watches := {})
    fresh = guards.TurnGuard()
    fresh.install()
    fresh.install()
    assert len(added) == 1
    assert {len(watching) for watching in watches.values()} == {1}


def test_the_users_line_is_outside_the_library_installed_packages_and_holdfast(tmp_path, load):
    folder = tmp_path / "site-packages" / "library"
    folder.mkdir(parents=True)
    library = compile("def call(function):\n    return function()\n", str(folder / "library.py"), "exec")
    inside = compile(
        "def verb():\n    return user_line()\n", os.path.join(os.path.dirname(guards.__file__), "x.py"), "exec"
    )
    namespace = {"user_line": user_line}
    exec(library, namespace)
    exec(inside, namespace)
    module = load("def flow(call, verb):\n    return max([1], key=lambda _: 0) and call(verb)\n")
    assert module.flow(namespace["call"], namespace["verb"]) == (module.__file__, 2)
    assert user_line() == (
        __file__,
        line_of(test_the_users_line_is_outside_the_library_installed_packages_and_holdfast, 12),
    )


def test_when_the_users_code_is_itself_installed_the_frame_holdfast_entered_is_named(tmp_path):
    package = os.path.dirname(guards.__file__)
    namespace = {"user_line": user_line}
    for file, source in {
        str(tmp_path / "site-packages" / "aiohttp" / "client.py"): "def get(): return user_line()",
        str(tmp_path / "site-packages" / "shop" / "orders.py"): "\ndef flow(): return get()",
        os.path.join(package, "turn.py"): "def drive(): return flow()",
    }.items():
        exec(compile(source, file, "exec"), namespace)
    file, line = namespace["drive"]()
    assert (os.path.basename(file), line) == ("orders.py", 2)
