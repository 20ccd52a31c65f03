"""The check of workflow code when it is registered: clocks, random numbers and as_completed over bare coroutines.

It reads the source of the workflow and of the functions of the same module that it calls, and resolves every called
name to the real object, so an alias hides nothing. What only runs inside a step is not workflow code and is not read.
What cannot be seen from the source (a helper in another module, a method of an object) is left to replay to find.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import linecache
import opcode
import os.path
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from holdfast.errors import NonDeterministic

_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class Finding:
    """One call that may give another answer on replay, where it is, and what to write instead."""

    call: str
    file: str
    line: int
    advice: str

    def __str__(self) -> str:
        return f"NonDeterministic call {self.call}() at {os.path.basename(self.file)}:{self.line}; {self.advice}"


def require_deterministic(function: Callable[..., object]) -> None:
    """Refuse workflow code that uses the clock, random numbers or the outside world.

    Raises NonDeterministic with one line for each finding.
    """
    findings = check(function)
    if findings:
        raise NonDeterministic("\n".join(map(str, findings)))


def check(function: Callable[..., object]) -> list[Finding]:
    """List the calls in workflow code that a replay would not repeat, in order of file and line.

    Call it when the module is complete (registration, not decoration): a helper defined further down is not yet known
    to the decorator. Lines with the comment ``# holdfast: allow`` are exempt. Without source the list is empty; it
    never raises.
    """
    try:
        root = _plain(function)
        if root is None or not _worth_reading(root):
            return []
    except Exception:
        return []
    names = _watched_objects()
    findings: list[Finding] = []
    seen = {root}
    pending = [root]
    while pending:
        reader = _read(pending.pop(), names)
        if reader is not None:
            findings += reader.findings
            pending += reader.helpers - seen
            seen |= reader.helpers
    return sorted(dict.fromkeys(findings), key=lambda finding: (finding.file, finding.line))


_NOW = "use ctx.now()"
_RANDOM = "use ctx.random()"
_UUID = "use ctx.uuid()"
_SLEEP = "use ctx.sleep()"
_SECRET = "put it in a step"  # noqa: S105 - advice, not a password
_IO = "this is I/O: put it in a step"
_TASKS = "use as_completed([asyncio.create_task(c) for c in ...])"


def _rules(advice: str, module: str, names: str) -> dict[str, str]:
    return {f"{module}.{name}" if module else name: advice for name in names.split()}


_ADVICE: Mapping[str, str] = {
    **_rules(_NOW, "time", "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time"),
    **_rules(_NOW, "time", "process_time_ns thread_time thread_time_ns clock_gettime clock_gettime_ns"),
    **_rules(_NOW, "time", "gmtime localtime ctime asctime"),
    **_rules(_SLEEP, "time", "sleep"),
    **_rules(_RANDOM, "random", "Random SystemRandom"),
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
_ONLY_WITHOUT_ARGUMENTS = frozenset({"time.gmtime", "time.localtime", "time.ctime", "time.asctime", "random.Random"})
_MOMENTS = frozenset({"now", "utcnow", "today"})
_DICE = frozenset(
    name for name, value in vars(random).items() if isinstance(getattr(value, "__self__", 0), random.Random)
)
_LAST_NAMES = frozenset(name.rpartition(".")[2] for name in _ADVICE) | _DICE | _MOMENTS
_LAST_NAMES_BY_ROOT = {
    **{
        root: frozenset(name.rpartition(".")[2] for name in _ADVICE if name.startswith(f"{root}."))
        for root in {name.partition(".")[0] for name in _ADVICE}
    },
    "datetime": _MOMENTS,
    "random": _DICE | {"Random", "SystemRandom"},
}
_BUILTINS = frozenset({"open", "input"})

_BODY_VERBS = frozenset({"step", "compensate"})
_MARKS = ("__holdfast_activity__", "__holdfast_workflow__")
_ALLOW = re.compile(r"#\s*holdfast:\s*allow\b")
_IMPORT_NAME = opcode.opmap["IMPORT_NAME"]
_CALLABLES = (FunctionType, BuiltinFunctionType, MethodType)
_WRAPPINGS = 100
_UNKNOWN = object()


def _plain(function: object) -> FunctionType | None:
    """The function with a body that stands behind decorators, partials and bound methods."""
    for _ in range(_WRAPPINGS):
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, MethodType):
            function = function.__func__
        elif (wrapped := getattr(function, "__wrapped__", None)) is not None:
            function = wrapped
        else:
            return function if isinstance(function, FunctionType) else None
    return None


def _helper(value: object, of: FunctionType) -> FunctionType | None:
    try:
        if any(hasattr(value, mark) for mark in _MARKS):
            return None
        function = _plain(value)
    except Exception:  # a proxy of something that is not there yet
        return None
    return function if function is not None and function.__globals__ is of.__globals__ else None


def _worth_reading(function: FunctionType) -> bool:
    """Whether any name leads to something watched; for clean code this is all that is ever done."""
    seen = {function}
    pending = [function]
    while pending:
        function = pending.pop()
        known = function.__globals__
        values: list[Any] = list(_cells(function).values()) if function.__closure__ else []
        codes = [function.__code__]
        names: list[str] = []
        for code in codes:
            names += code.co_names
            codes += [constant for constant in code.co_consts if type(constant) is CodeType]
            if _IMPORT_NAME in code.co_code[::2]:
                return True
        for name in names:
            if (value := known.get(name)) is not None:
                values.append(value)
            elif name in _BUILTINS:
                return True
        for value in values:
            kind = type(value)
            if issubclass(kind, ModuleType):
                if not _last_names_in(value.__name__).isdisjoint(names):
                    return True
            elif issubclass(kind, type):
                if value.__name__ in _LAST_NAMES or (issubclass(value, date) and not _MOMENTS.isdisjoint(names)):
                    return True
            elif (kind in _CALLABLES and value.__name__ in _LAST_NAMES) or issubclass(kind, random.Random):
                return True
            elif (helper := _helper(value, function)) is not None and helper not in seen:
                seen.add(helper)
                pending.append(helper)
    return False


def _last_names_in(module: str) -> frozenset[str]:
    root = module.partition(".")[0]
    if root in _LAST_NAMES_BY_ROOT:
        return _LAST_NAMES_BY_ROOT[root]
    return frozenset() if root in sys.stdlib_module_names else _LAST_NAMES  # the user's module may pass anything on


def _cells(function: FunctionType) -> dict[str, object]:
    contents = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            contents[name] = cell.cell_contents
        except ValueError:  # assigned later, or never
            contents[name] = _UNKNOWN
    return contents


def _watched_objects() -> dict[object, str]:
    """The watched callables of every module loaded so far, with their names; what is not loaded has no aliases."""
    objects: dict[object, str] = {}
    for name in _ADVICE:
        module, _, attribute = name.rpartition(".")
        value = vars(sys.modules.get(module or "builtins", ast)).get(attribute)
        if value is not None:
            objects.setdefault(value, name)
    return objects


def _read(function: FunctionType, names: Mapping[object, str]) -> _Reader | None:
    code = function.__code__
    try:
        linecache.checkcache(code.co_filename)
        lines = linecache.getlines(code.co_filename, function.__globals__)
        block = inspect.getblock(lines[code.co_firstlineno - 1 :])
        indented = block[0][:1].isspace()
        tree = ast.parse("if 1:\n" * indented + "".join(block))
        ast.increment_lineno(tree, code.co_firstlineno - 1 - indented)
        (node,) = [node for node in ast.walk(tree) if isinstance(node, _FunctionNode) and _is_of(node, code)]
        reader = _Reader(function, lines, names, _step_bodies(node))
        reader.enter(node)
    except Exception:  # no source, or source that is not this function's: replay still guards it
        return None
    return reader


def _is_of(node: _FunctionNode, code: CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return node.name == code.co_name and first == code.co_firstlineno


@dataclass(frozen=True, slots=True)
class _Imported:
    """A name bound by an import inside the function; `attribute` is that of a from-import."""

    module: str
    attribute: str | None = None


@dataclass(frozen=True, slots=True)
class _NotLoaded:
    """Something in a module that nothing has imported yet; its dotted name is all there is to know."""

    name: str


class _Reader(ast.NodeVisitor):
    """Walks one function, inner functions included, and knows what each name stands for."""

    def __init__(
        self, function: FunctionType, lines: list[str], names: Mapping[object, str], bodies: frozenset[ast.AST]
    ) -> None:
        self.findings: list[Finding] = []
        self.helpers: set[FunctionType] = set()
        self._function = function
        self._lines = lines
        self._names = names
        self._bodies = bodies
        self._outside: dict[str, object] = {**function.__globals__, **_cells(function)}
        self._scopes: list[dict[str, list[object]]] = []

    def enter(self, node: _FunctionNode) -> None:
        self._scopes.append(_bindings(node))
        for statement in node.body if isinstance(node.body, list) else [node.body]:
            self.visit(statement)
        self._scopes.pop()

    def _visit_inner(self, node: _FunctionNode) -> None:
        outer = [*node.args.defaults, *(default for default in node.args.kw_defaults if default is not None)]
        if not isinstance(node, ast.Lambda):
            outer += node.decorator_list
        for expression in outer:
            self.visit(expression)
        if node not in self._bodies:
            self.enter(node)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_inner

    def visit_Call(self, node: ast.Call) -> None:
        line = node.func.end_lineno or node.lineno
        if not self._allowed(line, node.end_lineno or line):
            value = self._resolve(node.func)
            call = self._watched(value)
            if call is not None:
                if self._matters(call, node):
                    advice = _ADVICE.get(call) or (_NOW if call.rpartition(".")[2] in _MOMENTS else _RANDOM)
                    self.findings.append(Finding(call, self._function.__code__.co_filename, line, advice))
            elif isinstance(node.func, ast.Name) and (helper := _helper(value, self._function)) is not None:
                self.helpers.add(helper)
        self.generic_visit(node)

    def _allowed(self, *lines: int) -> bool:
        return any(_ALLOW.search(self._lines[line - 1]) for line in lines)

    def _watched(self, value: object) -> str | None:
        if isinstance(value, _NotLoaded):
            return value.name if value.name in _ADVICE else None
        if not isinstance(value, (*_CALLABLES, type)):
            return None
        owner = getattr(value, "__self__", None)
        if isinstance(owner, type) and issubclass(owner, date) and value.__name__ in _MOMENTS:
            return f"{owner.__module__}.{owner.__qualname__}.{value.__name__}"
        if value in self._names:
            return self._names[value]
        # A generator that outlives the run goes on where the last run left it, even if it was seeded.
        return f"random.{value.__name__}" if isinstance(owner, random.Random) else None

    def _matters(self, call: str, node: ast.Call) -> bool:
        if call in _ONLY_WITHOUT_ARGUMENTS:
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            return all(isinstance(argument, ast.Constant) and argument.value is None for argument in given)
        if call == "asyncio.as_completed":
            given = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "fs")]
            return any(self._is_coroutine(element) for argument in given for element in self._elements(argument))
        return True

    def _elements(self, node: object) -> Iterator[ast.expr]:
        if isinstance(node, ast.Name):
            node = self._bound(node.id)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            for element in node.elts:
                if isinstance(element, ast.Starred):
                    yield from self._elements(element.value)
                else:
                    yield element
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            yield node.elt

    def _is_coroutine(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call):
            return False
        value = self._resolve(node.func)
        return isinstance(value, ast.AsyncFunctionDef) or inspect.iscoroutinefunction(value)

    def _resolve(self, node: object, depth: int = 0) -> object:
        """The object an expression stands for, as far as that is certain."""
        if depth > _WRAPPINGS:  # x = y; y = x
            return _UNKNOWN
        if isinstance(node, ast.Name):
            return self._resolve(self._bound(node.id), depth + 1)
        if isinstance(node, ast.Attribute):
            return _attribute(self._resolve(node.value, depth + 1), node.attr)
        if isinstance(node, _Imported):
            module = _module(node.module, self._function.__globals__)
            return module if node.attribute is None else _attribute(module, node.attribute)
        return _UNKNOWN if isinstance(node, (ast.expr, ast.Lambda)) else node

    def _bound(self, name: str) -> object:
        """What a name was bound to: an expression, an import, an inner function or, from outside, a real object."""
        for scope in reversed(self._scopes):
            if name in scope:
                first, *others = scope[name]
                return first if all(other == first for other in others) else _UNKNOWN
        if name in self._outside:
            return self._outside[name]
        return vars(sys.modules["builtins"]).get(name, _UNKNOWN)


def _attribute(value: object, name: str) -> object:
    """Look an attribute up where no code runs for it: in modules, classes and generators of random numbers."""
    if isinstance(value, _NotLoaded):
        return _NotLoaded(f"{value.name}.{name}")
    if isinstance(value, ModuleType):
        return vars(value).get(name, _NotLoaded(f"{value.__name__}.{name}"))
    if isinstance(value, (type, random.Random)):
        return getattr(value, name, _UNKNOWN)
    return _UNKNOWN


def _module(name: str, known: Mapping[str, object]) -> object:
    package = known.get("__package__")
    if name.startswith(".") and isinstance(package, str) and package:
        name = importlib.util.resolve_name(name, package)
    return sys.modules.get(name) or _NotLoaded(name)


def _bindings(function: _FunctionNode) -> dict[str, list[object]]:
    """What each local name of a function is bound to, one item for each place that binds it."""
    found: dict[str, list[object]] = {}
    not_here: set[str] = set()
    taken: set[ast.AST] = set()

    def bind(name: str | None, value: object = _UNKNOWN) -> None:
        if name is not None:
            found.setdefault(name, []).append(value)

    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        bind(argument.arg if argument is not None else None)
    pending: list[ast.AST] = list(function.body) if isinstance(function.body, list) else [function.body]
    while pending:
        node = pending.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                bind(node.name, node)
                continue
            case ast.Lambda():
                continue
            case ast.Assign(targets=[ast.Name() as target], value=value) | ast.NamedExpr(target=target, value=value):
                bind(target.id, value)
                taken.add(target)
            case ast.AnnAssign(target=ast.Name() as target, value=value):
                bind(target.id, value or _UNKNOWN)
                taken.add(target)
            case ast.Name(ctx=ast.Store() | ast.Del()) if node not in taken:
                bind(node.id)
            case ast.Import():
                for alias in node.names:
                    bind(alias.asname or alias.name.partition(".")[0], _imported(alias))
            case ast.ImportFrom():
                for alias in node.names:
                    bind(alias.asname or alias.name, _Imported("." * node.level + (node.module or ""), alias.name))
            case ast.ClassDef() | ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
                bind(node.name)
            case ast.MatchMapping():
                bind(node.rest)
            case ast.Global() | ast.Nonlocal():
                not_here.update(node.names)
        pending += ast.iter_child_nodes(node)
    return {name: values for name, values in found.items() if name not in not_here}


def _imported(alias: ast.alias) -> _Imported:
    return _Imported(alias.name if alias.asname else alias.name.partition(".")[0])


def _step_bodies(function: _FunctionNode) -> frozenset[ast.AST]:
    """The inner functions that only ever run as part of a step: handed to one, or used by nothing but those handed."""
    definitions: dict[str, list[ast.AST]] = {}
    uses: dict[str, list[tuple[ast.AST, ...]]] = {}
    verbs: set[str] = set()
    bodies: set[ast.AST] = set()
    handed: set[ast.AST] = set()

    def hand(argument: ast.expr) -> None:
        if isinstance(argument, ast.Lambda):
            bodies.add(argument)
        elif isinstance(argument, ast.Name):
            handed.add(argument)
        elif isinstance(argument, ast.Call) and _last_name(argument.func) == "partial":
            for inner in argument.args:
                hand(inner)

    def walk(node: ast.AST, inside: tuple[ast.AST, ...]) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                definitions.setdefault(node.name, []).append(node)
                inside = (*inside, node)
            case ast.Lambda():
                inside = (*inside, node)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda() as value):
                definitions.setdefault(name, []).append(value)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute(attr=attribute)):
                if attribute in _BODY_VERBS:
                    verbs.add(name)
            case ast.Call(func=ast.Attribute(attr=name)) if name in _BODY_VERBS:
                for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                    hand(argument)
            case ast.Call(func=ast.Name(id=name)) if name in verbs:
                for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                    hand(argument)
            case ast.Name(ctx=ast.Load()):
                uses.setdefault(node.id, []).append(() if node in handed else (node, *inside))
        for child in ast.iter_child_nodes(node):
            walk(child, inside)

    for child in ast.iter_child_nodes(function):
        walk(child, ())
    before = -1
    while len(bodies) > before:
        before = len(bodies)
        for name in definitions.keys() & uses.keys():
            inside_steps = bodies.union(definitions[name])
            if all(not use or not inside_steps.isdisjoint(use) for use in uses[name]):
                bodies.update(definitions[name])
    return frozenset(bodies)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
