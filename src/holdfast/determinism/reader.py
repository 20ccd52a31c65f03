"""Reading one function for the check: its syntax tree, and the real object that each called name stands for.

What cannot be seen from the source (a helper in another module, a method of an object) is left to replay to find.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import linecache
import random
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType

from holdfast.determinism.rules import ADVICE, MOMENTS, NOW, ONLY_WITHOUT_ARGUMENTS, RANDOM, Finding

_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_BODY_VERBS = frozenset({"step", "compensate"})
_MARKS = ("__holdfast_activity__", "__holdfast_workflow__")
_ALLOW = re.compile(r"#\s*holdfast:\s*allow\b")
CALLABLES = (FunctionType, BuiltinFunctionType, MethodType)
_WRAPPINGS = 100
_UNKNOWN = object()


def plain(function: object) -> FunctionType | None:
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


def helper_of(value: object, of: FunctionType) -> FunctionType | None:
    """The function of the same module that a called object is, if it is one and no step or workflow."""
    try:
        if any(hasattr(value, mark) for mark in _MARKS):
            return None
        function = plain(value)
    except Exception:  # a proxy of something that is not there yet
        return None
    return function if function is not None and function.__globals__ is of.__globals__ else None


def cells(function: FunctionType) -> dict[str, object]:
    """What the names that a function takes from the functions around it stand for."""
    contents = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            contents[name] = cell.cell_contents
        except ValueError:  # assigned later, or never
            contents[name] = _UNKNOWN
    return contents


def read(function: FunctionType, names: Mapping[object, str]) -> FunctionReader | None:
    """Read the source of a function; None if there is none."""
    code = function.__code__
    try:
        linecache.checkcache(code.co_filename)
        lines = linecache.getlines(code.co_filename, function.__globals__)
        block = inspect.getblock(lines[code.co_firstlineno - 1 :])
        indented = block[0][:1].isspace()
        tree = ast.parse("if 1:\n" * indented + "".join(block))
        ast.increment_lineno(tree, code.co_firstlineno - 1 - indented)
        (node,) = [node for node in ast.walk(tree) if isinstance(node, _FunctionNode) and _is_of(node, code)]
        reader = FunctionReader(function, lines, names, _step_bodies(node))
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


class FunctionReader(ast.NodeVisitor):
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
        self._outside: dict[str, object] = {**function.__globals__, **cells(function)}
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
                    advice = ADVICE.get(call) or (NOW if call.rpartition(".")[2] in MOMENTS else RANDOM)
                    self.findings.append(Finding(call, self._function.__code__.co_filename, line, advice))
            elif isinstance(node.func, ast.Name) and (helper := helper_of(value, self._function)) is not None:
                self.helpers.add(helper)
        self.generic_visit(node)

    def _allowed(self, *lines: int) -> bool:
        return any(_ALLOW.search(self._lines[line - 1]) for line in lines)

    def _watched(self, value: object) -> str | None:
        if isinstance(value, _NotLoaded):
            return value.name if value.name in ADVICE else None
        if not isinstance(value, (*CALLABLES, type)):
            return None
        owner = getattr(value, "__self__", None)
        if isinstance(owner, type) and issubclass(owner, date) and value.__name__ in MOMENTS:
            return f"{owner.__module__}.{owner.__qualname__}.{value.__name__}"
        if value in self._names:
            return self._names[value]
        # A generator that outlives the run goes on where the last run left it, even if it was seeded.
        return f"random.{value.__name__}" if isinstance(owner, random.Random) else None

    def _matters(self, call: str, node: ast.Call) -> bool:
        if call in ONLY_WITHOUT_ARGUMENTS:
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
