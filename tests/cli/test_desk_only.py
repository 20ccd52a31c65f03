"""Commands see and do everything through a desk, so that another face can do the same."""

from __future__ import annotations

import ast

from tests.support.paths import ROOT

CLI = ROOT / "src" / "holdfast" / "cli"
# What reaches a store or an engine by itself -> why no desk is between them.
ALLOWED = {
    "database.py": "it opens the desk that all others use",
    "serve.py": "it opens the desk that a server uses",
    "ship/bench.py": "it makes a database of its own",
}


def reaches_around(text: str) -> bool:
    """Tell whether code imports a store, an engine, or what belongs to one."""
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        if any(name == "holdfast.Engine" or name.startswith(("holdfast.stores", "holdfast.engine")) for name in names):
            return True
    return False


def test_no_command_reaches_around_the_desk():
    """FACES 0: everything a face can see or do is a method of `Desk`."""
    found = {path.relative_to(CLI).as_posix() for path in CLI.rglob("*.py") if reaches_around(path.read_text())}
    assert found == ALLOWED.keys()
    assert reaches_around("def f():\n    from holdfast import Engine")
    assert reaches_around("from holdfast.engine.client import x")
    assert not reaches_around("from holdfast.looking import LocalDesk")
