"""Fetch the JavaScript that the dashboard is shipped with: `python tests/web/fetch_vendor.py`.

`vendor.toml` says which files of which packages of the npm registry, and the SHA-256 of each. A file whose hash differs
is not written, unless `--accept` is given: then the new hashes are printed, to be written into `vendor.toml` by hand.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
import tomllib
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parent.parent.parent / "src" / "holdfast" / "web" / "static" / "vendor"
REGISTRY = "https://registry.npmjs.org/"


def listed() -> list[dict[str, Any]]:
    packages: list[dict[str, Any]] = tomllib.loads((VENDOR / "vendor.toml").read_text())["package"]
    return packages


def main(accept: bool) -> int:
    wrong = 0
    for package in listed():
        about = json.loads(_read(REGISTRY + urllib.parse.quote(package["name"], safe="@")))
        address = about["versions"][package["version"]]["dist"]["tarball"]
        with tarfile.open(fileobj=io.BytesIO(_read(address))) as archive:
            for name, file in package["files"].items():
                member = archive.extractfile(f"package/{file['from']}")
                assert member is not None, f"{package['name']} has no file {file['from']}"
                content = member.read()
                found = hashlib.sha256(content).hexdigest()
                if found != file["sha256"]:
                    sys.stderr.write(f"{name}: sha256 is {found}, and vendor.toml says {file['sha256']}\n")
                    wrong += 1
                if found == file["sha256"] or accept:
                    (VENDOR / name).parent.mkdir(parents=True, exist_ok=True)
                    (VENDOR / name).write_bytes(content)
    return 1 if wrong and not accept else 0


def _read(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as answer:
        content: bytes = answer.read()
    return content


if __name__ == "__main__":
    sys.exit(main("--accept" in sys.argv))
