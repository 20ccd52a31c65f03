"""The files of the dashboard: read once, served from memory under a hash of all of them, and the page that loads them.

No path is ever joined: what is not a key of the map is not there.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "ico": "image/x-icon",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "mjs": "text/javascript; charset=utf-8",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "woff2": "font/woff2",
}
_IMPORT_MAP = re.compile(rb'<script type="importmap">(.*?)</script>', re.DOTALL)
_PAGE = "index.html"
_COMMENT = re.compile(rb"^[ \t]*(?://[^\n]*|/\*.*?\*/)$", re.MULTILINE | re.DOTALL)
"""A comment of ours that has its lines to itself; those of others have their licences."""


class Asset(msgspec.Struct, frozen=True):
    """A file: its type, its bytes, and the same compressed if that makes them fewer."""

    content_type: str
    plain: bytes
    compressed: bytes | None = None


class Assets(msgspec.Struct, frozen=True):
    """All files by their path, and the hash under which they are served."""

    hash: str
    files: dict[str, Asset]
    page: bytes

    def page_at(self, root: str) -> tuple[bytes, str]:
        """Return the page for an application that is mounted at `root`, and the hash of its import map for the CSP."""
        at = html.escape(root, quote=True).encode()
        page = self.page.replace(b"{{static}}", at + b"/static/" + self.hash.encode()).replace(b"{{root}}", at)
        found = _IMPORT_MAP.search(page)
        if found is None:
            return page, ""
        return page, f"'sha256-{base64.b64encode(hashlib.sha256(found[1]).digest()).decode()}'"


@cache
def assets() -> Assets:
    """Return the files of the dashboard."""
    found = dict(sorted(_files(files("holdfast.web") / "static", "")))
    digest = hashlib.sha256()
    for path, content in found.items():
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    page = found.pop(_PAGE)
    return Assets(
        digest.hexdigest()[:16],
        {path: _asset(path, content) for path, content in found.items() if path.rpartition(".")[2] in _TYPES},
        page,
    )


def _files(folder: Traversable, above: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for each in folder.iterdir():
        if each.is_dir():
            found += _files(each, f"{above}{each.name}/")
        elif not each.name.startswith("."):
            found.append((f"{above}{each.name}", each.read_bytes()))
    return found


def _asset(path: str, content: bytes) -> Asset:
    if path.startswith(("css/", "js/")):  # a browser is sent no comments; the numbers of lines stay
        content = _COMMENT.sub(lambda comment: b"\n" * comment[0].count(b"\n"), content)
    compressed = gzip.compress(content, mtime=0)
    kind = _TYPES[path.rpartition(".")[2]]
    return Asset(kind, content, compressed if len(compressed) < len(content) else None)
