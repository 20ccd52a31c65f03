"""How large a file, a function, a class and a folder of the source may be, so that a reader can hold it in mind."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from tests.support.source import SOURCE, trees

LINES_OF_A_FILE = 500
LINES_OF_A_FUNCTION = 60
ATTRIBUTES_OF_A_CLASS = 25
FILES_OF_A_FOLDER = 14
"""Besides `__init__.py`."""

# Folders in which every file is one more of the same kind -> why they may have any number of them.
MANY_ALIKE = {"testing/conformance": "one file of tests for each topic of the store's contract"}


def over_a_limit() -> Iterator[str]:
    for path, tree in trees().items():
        if not path.is_relative_to(SOURCE):
            continue
        name = path.relative_to(SOURCE).as_posix()
        if len(path.read_text().splitlines()) > LINES_OF_A_FILE:
            yield f"{name} is longer than {LINES_OF_A_FILE} lines"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and length(node) > LINES_OF_A_FUNCTION:
                yield f"{name}: {node.name}() is longer than {LINES_OF_A_FUNCTION} lines"
            if isinstance(node, ast.ClassDef) and not is_record(node) and len(attributes(node)) > ATTRIBUTES_OF_A_CLASS:
                yield f"{name}: class {node.name} has more than {ATTRIBUTES_OF_A_CLASS} attributes"
    for folder in sorted({path.parent for path in SOURCE.rglob("*.py")}):
        name = folder.relative_to(SOURCE).as_posix()
        files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        if len(files) > FILES_OF_A_FOLDER and name not in MANY_ALIKE:
            yield f"{name} has more than {FILES_OF_A_FOLDER} files"


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def is_record(node: ast.ClassDef) -> bool:
    """Tell whether a class only holds data: as many fields as the thing has that it describes."""
    kinds = [ast.unparse(each) for each in (*node.bases, *node.decorator_list)]
    return any(kind.startswith(("dataclass", "msgspec.Struct", "NamedTuple", "Entry")) for kind in kinds)


def attributes(node: ast.ClassDef) -> set[str]:
    """Return what a class or its methods assign on `self`, and what it declares."""
    assigned = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    declared = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return assigned | declared


def test_nothing_is_larger_than_a_reader_can_hold_in_mind():
    assert list(over_a_limit()) == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("class A:\n    def __init__(self):\n        self.x, self.y = 1, 2\n        self.x.z = 3", {"x", "y"}),
        ("class A:\n    x: int\n    def f(self):\n        self.y = self.x", {"x", "y"}),
    ],
)
def test_attributes_are_what_a_class_assigns_or_declares(code: str, found: set[str]):
    [node] = ast.parse(code).body
    assert isinstance(node, ast.ClassDef)
    assert attributes(node) == found
