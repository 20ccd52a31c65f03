"""Trying the patch that a mismatch proposes: the new call under `if ctx.patched(...):`, in memory only."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import CodeType, FunctionType
from typing import Any

from holdfast.context.api import Context
from holdfast.definitions import Workflow
from holdfast.errors import HistoryMismatch

_PROPOSED = re.compile(r'`if ctx\.patched\("([^"]+)"\):`')
_PLACE = re.compile(r"(.+):(\d+)")


def place_of(place: str) -> tuple[str, int]:
    """Return file and line of `file:line`, and nothing of anything else."""
    found = _PLACE.fullmatch(place)
    return (found[1], int(found[2])) if found is not None else ("", 0)


def tried_patch(workflow: Workflow[Any, Any], found: HistoryMismatch) -> AbstractContextManager[None] | str:
    """Return what puts the proposed patch into the code for a while, or why it is not tried."""
    proposed = _PROPOSED.search(found.advice)
    file, line = place_of(found.place)
    if proposed is None or not file:
        return "where the new call stands in the code is not known"
    try:
        with open(file, encoding="utf-8") as source:
            tree = ast.parse(source.read(), file)
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return f"the source {file} cannot be read"
    outermost = _wrap(tree, line, proposed[1])
    if isinstance(outermost, str):
        return outermost
    ast.fix_missing_locations(tree)
    code = _code_of(compile(tree, file, "exec", dont_inherit=True), outermost)
    function = next(_functions(workflow, file, outermost), None)
    if code is None or function is None or code.co_freevars != function.__code__.co_freevars:
        return "the function with the new call was not found in its module"
    return _swapped(function, code)


def _wrap(tree: ast.Module, line: int, name: str) -> int | str:
    """Put the statement of a line under the patch; return the first line of the outermost function around it."""
    around: list[tuple[ast.stmt, list[ast.stmt], int]] = []
    outermost: ast.FunctionDef | ast.AsyncFunctionDef | None = None
    for node in ast.walk(tree):  # the outer before the inner
        for field in ("body", "orelse", "finalbody"):
            found = getattr(node, field, None)
            body: list[ast.stmt] = found if isinstance(found, list) else []
            for place, statement in enumerate(body):
                if statement.lineno <= line <= (statement.end_lineno or 0):
                    around.append((statement, body, place))
                    if outermost is None and isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                        outermost = statement
    if not around or outermost is None:
        return "where the new call stands in the code is not known"
    statement, body, place = around[-1]
    receiver = _receiver(statement)
    if isinstance(receiver, str):
        return receiver
    test: ast.expr = ast.Call(ast.Attribute(receiver, "patched", ast.Load()), [ast.Constant(name)], [])
    body[place] = ast.copy_location(ast.If(test, [statement], []), statement)
    return min([outermost.lineno, *(decorator.lineno for decorator in outermost.decorator_list)])


def _receiver(statement: ast.AST) -> ast.expr | str:
    """Return the context on which a statement that is nothing but a call is made, or why it is not one."""
    if not isinstance(statement, ast.Expr):
        return "the result of the new call is used"
    value = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return "the new call is not a statement of its own"
    if not hasattr(Context, value.func.attr) or not isinstance(value.func.value, ast.Name | ast.Attribute):
        return "the new call is not a statement of its own"
    return value.func.value


def _code_of(module: CodeType, line: int) -> CodeType | None:
    """Return the code of the function that begins at a line."""
    for each in module.co_consts:
        if isinstance(each, CodeType):
            if each.co_firstlineno == line and not each.co_name.startswith("<"):
                return each
            found = _code_of(each, line)
            if found is not None:
                return found
    return None


def _functions(workflow: Workflow[Any, Any], file: str, line: int) -> Iterator[FunctionType]:
    """Yield the function that begins at a line of a file, wherever it is found."""
    modules = [module for module in list(sys.modules.values()) if getattr(module, "__file__", None) == file]
    values = [workflow.function, *(value for module in modules for value in list(vars(module).values()))]
    values += [member for value in values if inspect.isclass(value) for member in vars(value).values()]
    for value in values:
        plain = getattr(value, "function", value)
        plain = inspect.unwrap(plain) if callable(plain) else plain
        if isinstance(plain, FunctionType):
            code = plain.__code__
            if code.co_filename == file and code.co_firstlineno == line:
                yield plain


@contextmanager
def _swapped(function: FunctionType, code: CodeType) -> Iterator[None]:
    before, function.__code__ = function.__code__, code
    try:
        yield
    finally:
        function.__code__ = before
