"""The folder of a key space: another program's folder is not mistaken for an empty one, nor a file for a missing
one."""

from __future__ import annotations

import os
from collections.abc import Collection

from holdfast.errors import NotOurDatabase, StoreReplaced

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


FileIdentity = tuple[int, int]


def file_identity(path: str | os.PathLike[str] | int) -> FileIdentity | None:
    """Return what tells a file from every other that is there, None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_place(path: str | os.PathLike[str], identity: FileIdentity | None) -> None:
    """Refuse to acknowledge what was written into a file that is not the one under its name any more.

    Raises:
        StoreReplaced: it was moved, deleted or replaced while it was open.
    """
    if identity is None or file_identity(path) != identity:
        raise StoreReplaced(
            f"{os.fspath(path)}: was moved, deleted or replaced while it was open; nothing more is acknowledged: put "
            "back what there was, and open it again"
        )
