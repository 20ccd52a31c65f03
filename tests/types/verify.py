"""Whether type checkers know everything that users may import: pyright's `--verifytypes`, of the public names alone."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
_ROW = re.compile(r"^\| `(holdfast[\w.]*)` \| (.*) \|$", re.MULTILINE)
_LACKS = re.compile(r"missing type annotation|annotation is missing|is unknown")


def public() -> set[str]:
    """Return the names that docs/reference.md lists, each by the module that defines it."""
    found = set()
    for module, names in _ROW.findall((ROOT / "docs" / "reference.md").read_text()):
        for name in re.findall(r"`(\w+)`", names):
            value = getattr(importlib.import_module(module), name)
            if hasattr(value, "__qualname__"):
                found.add(f"{value.__module__}.{value.__qualname__}")
    return found


def symbols() -> list[dict[str, Any]]:
    """Return what the checker says of every symbol of the package."""
    here = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}  # it looks there for the package
    command = [str(here / "basedpyright"), "--verifytypes", "holdfast", "--ignoreexternal", "--outputjson"]
    said = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT / "tests")
    found: list[dict[str, Any]] = json.loads(said.stdout)["typeCompleteness"]["symbols"]
    return found


def main() -> int:
    """Print what a checker would have to guess; return 1 if there is anything, or nothing was looked at."""
    wanted, looked, lacking = public(), 0, []
    for symbol in symbols():
        name = symbol["name"]
        around = {name} | {name.rsplit(".", depth)[0] for depth in (1, 2)}
        if not around & wanted or "._" in name:
            continue
        looked += 1
        said = [each["message"].split("\n")[0] for each in symbol["diagnostics"]]
        lacking += [f"{name}: {message}" for message in said if _LACKS.search(message)]
    print("\n".join(lacking) or f"types of {looked} public names are known")
    return 1 if lacking or looked < 300 else 0


if __name__ == "__main__":
    sys.exit(main())
