"""The source as syntax trees, for tests of what must hold of all of it."""

from __future__ import annotations

import ast
import functools
import gc
from pathlib import Path

from tests.support.paths import ROOT

SOURCE = ROOT / "src" / "holdfast"


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """Return the tree of each module, made once in each process of the tests.

    The garbage collector rests meanwhile, and goes through none of them later: looking for cycles, which trees have
    not, took four times as long as reading them, and made every collection that other tests ask for take seconds.
    """
    gc.collect()
    gc.disable()
    try:
        return {path: ast.parse(path.read_text(), str(path)) for path in sorted((ROOT / "src").rglob("*.py"))}
    finally:
        gc.freeze()
        gc.enable()
