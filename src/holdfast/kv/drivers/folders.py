"""The folder of a key space: one that has files of another program is not taken for an empty one."""

from __future__ import annotations

import os
from collections.abc import Collection

from holdfast.errors import NotOurDatabase

_OF_NONE = frozenset({"lost+found"})
"""What a file system puts there by itself, besides what is hidden."""


def refuse_foreign_folder(path: str | os.PathLike[str], own: Collection[str]) -> None:
    """Refuse a folder without a key space that has other files than those with which one begins.

    Raises:
        NotOurDatabase: it names one of them.
    """
    others = [name for name in os.listdir(path) if name not in own and name not in _OF_NONE and name[0] != "."]
    if others:
        raise NotOurDatabase(
            f"{os.fspath(path)}: has files of another program, {min(others)!r} for one; use a folder of its own"
        )
