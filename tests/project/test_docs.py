"""The documentation is true: its Python runs, its links lead somewhere, and no public name is missing from it."""

from __future__ import annotations

import ast
import asyncio
import builtins
import dataclasses
import importlib
import inspect
import json
import re
import sys
import textwrap
import types
from pathlib import Path

import pytest
from tests.support.paths import ROOT

import holdfast
from holdfast import Context, Engine, Event, Retention, Retry, RunHandle, errors, testing
from holdfast.bodies.context import StepContext
from holdfast.definitions import ActivityOptions
from holdfast.engine.settings import Settings
from holdfast.testing import conformance

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = [*PAGES, *(ROOT / name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))]

TESTED_APART = {"tutorial.md", "web-frameworks.md", "dashboard.md"}
"""Pages whose Python is files and not one program: test_tutorial.py and test_web_frameworks.py write and run them."""

_BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^( *)```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)]*))?\)")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in TESTED_APART], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_python_on_a_page_runs(page, tmp_path, monkeypatch, request):
    """The blocks of a page are one program, run in an empty folder; `await` is allowed outside functions."""
    if "DATABASE_URL" in page.read_text():
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("database"))
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    module.__dict__["__builtins__"] = builtins  # which formatting a datetime looks for
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with asyncio.Runner() as runner:
        for block in _BLOCK.finditer(page.read_text()):
            code = _compiled(page, block)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(types.FunctionType(code, module.__dict__)())
            else:
                exec(code, module.__dict__)


def _compiled(page: Path, block: re.Match[str]) -> types.CodeType:
    # With the page's name and line numbers, so that a traceback points into the page.
    line = page.read_text()[: block.start(2)].count("\n")
    source = "\n" * line + textwrap.dedent(block[2])
    return compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page):
    """To a file that exists and, behind a #, to one of its headings."""
    for target, heading in _LINK.findall(_FENCED.sub("", page.read_text())):
        if "://" not in target:
            found = page.parent / target if target else page
            assert found.exists(), target
            assert not heading or heading in _headings(found), f"{target}#{heading}"


def _headings(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", _FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tables_of_a_page_are_tables(page):
    """Every row has as many cells as the head; a | in a cell, even in code, would make one more."""
    width = 0
    for line in _FENCED.sub("", page.read_text()).splitlines():
        row = line.strip()
        cells = len(re.findall(r"(?<!\\)\|", row)) if row.startswith("|") else 0
        assert cells == width or not (cells and width), row
        assert not cells or row.endswith("|"), row
        width = cells


def test_every_path_in_the_architecture_exists():
    """Files and folders, of the source or of the repository."""
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?|\w+\.py)`", (ROOT / "ARCHITECTURE.md").read_text()))
    assert len(named) > 40
    homes = (ROOT / "src" / "holdfast", ROOT)
    assert sorted(path for path in named if not any((home / path).exists() for home in homes)) == []


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) < 120


def test_every_page_is_in_the_index():
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target).resolve() for target, _ in _LINK.findall(index.read_text())}
    assert {page.resolve() for page in PAGES} - linked <= {README.resolve(), index.resolve()}


def test_the_published_figures_are_those_that_were_measured(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    figures = importlib.import_module("figures")
    measured = figures.Figures(json.loads(figures.RESULTS.read_text()))
    for path, text in figures.PAGES.items():
        assert figures.published(path.read_text()) == text(measured)


def test_no_public_name_is_missing_from_the_documentation():
    written = "\n".join(page.read_text() for page in PAGES)
    names = {
        *holdfast.__all__,
        *testing.__all__,
        *_public(Context),
        *_public(Engine),
        *_public(RunHandle),
        *_public(StepContext),
        *(field.name for field in dataclasses.fields(Settings)),
        *(field.name for field in dataclasses.fields(ActivityOptions)),
        *(field.name for field in dataclasses.fields(Retry)),
        *(field.name for field in dataclasses.fields(Event)),
        *(field.name for field in dataclasses.fields(Retention)),
    }
    public = {name for name in names if not name.startswith("_")}
    assert sorted(name for name in public if not re.search(rf"\b{name}\b", written)) == []


def _public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def test_no_message_sends_its_reader_to_a_file_that_is_not_installed():
    """An error is read where holdfast is installed, and the pages of the documentation are not there."""
    package = ROOT / "src" / "holdfast"
    assert [path.name for path in package.rglob("*.py") if re.search(r"docs/|\.md\b", path.read_text())] == []


_ROW = re.compile(r"^\| `(holdfast[\w.]*)` \| (.*) \|$", re.MULTILINE)


def _surface() -> dict[str, set[str]]:
    """Return the modules and names that docs/reference.md lists as the whole public surface."""
    page = (ROOT / "docs" / "reference.md").read_text()
    surface = {module: set(re.findall(r"`(\w+)`", names)) for module, names in _ROW.findall(page)}
    assert surface["holdfast.errors"] == set()  # it says "every error class"
    surface["holdfast.errors"] = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    surface["holdfast.testing.conformance"] |= set(conformance.__all__)  # "and the classes and samples it is made of"
    return surface


def test_the_reference_lists_what_can_be_imported():
    """What is listed is there; a module that names what it exports has all of it listed."""
    for module, names in _surface().items():
        found = importlib.import_module(module)
        assert sorted(name for name in names if not hasattr(found, name)) == []
        assert names == set(getattr(found, "__all__", names)), module


def test_documents_and_examples_import_only_what_the_reference_lists():
    surface = _surface()
    code = {page: "\n".join(textwrap.dedent(block[2]) for block in _BLOCK.finditer(page.read_text())) for page in PAGES}
    code |= {path: path.read_text() for path in (ROOT / "examples").glob("*.py")}
    for path, source in code.items():
        for line in ast.walk(_parsed(source)):
            if isinstance(line, ast.ImportFrom) and (line.module or "").split(".")[0] == "holdfast":
                assert {each.name for each in line.names} <= surface.get(line.module, set()), (path, line.module)


def _parsed(source: str) -> ast.AST:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree: ast.AST = compile(source, "page", "exec", flags=flags, dont_inherit=True)
    return tree
